"""The examples with frameworks on two ranks: with dsfix they train as without DeepSpeed, and log what the page
shows; without dsfix a job gives different results exactly if dsfix logs that a patch took effect."""

from __future__ import annotations

import re
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

from dsfix.catalogue.registry import catalogue

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "frameworks.md"
EFFECT = re.compile(r"^\[dsfix\] INFO: ((\w+) took effect, .*)$", re.M)
ANY = re.compile(r"^\[dsfix\] .*$", re.M)
# without --whole: the jobs that dsfix fixes, and of the others this one
USUAL = "examples/trainer.py --zero3"


def logged():
    """{command: {release: what dsfix logs}} by the page."""
    text = PAGE.read_text(encoding="utf-8")
    [(block, others)] = re.findall(r"^```\n(examples/.*?)\n```\n\n(On .*?)\n\n", text, re.M | re.S)
    jobs = {command: lines for command, *lines in (job.split("\n") for job in block.split("\n\n"))}
    jobs.update(dict.fromkeys(re.findall(r"`(examples/[^`]*)`", others), ()))
    return {
        command: {
            release: [line.split(": ", 1)[1] for line in lines if release in line.split(": ")[0]] or ["nothing"]
            for release in re.findall(r"\d+\.\d+\.\d+", others)
        }
        for command, lines in jobs.items()
    }


LOGGED = logged()


def numbers(printed):
    """The losses and norms of each step."""
    return [[float(each) for each in line] for line in re.findall(r"^loss (\S+) (?:grad_norm )?(\S+)$", printed, re.M)]


@pytest.mark.parametrize("command", LOGGED)
def test_what_dsfix_reports_about_a_job_is_true_and_on_the_page(command, ranks, whole):
    if find_spec("deepspeed") is None or version("deepspeed") not in LOGGED[command]:
        pytest.skip("DeepSpeed is not installed, or the page says nothing of this release")
    if "two_optimizers" not in command and find_spec("trl") is None:
        pytest.skip("trl is not installed")
    page = LOGGED[command][version("deepspeed")]
    if not whole and page == ["nothing"] and command != USUAL:
        pytest.skip("only with --whole")
    said = [line for line in page if not line.startswith("nothing")]

    # torch may abort as such a job ends (https://github.com/pytorch/pytorch/issues/190489): its status says nothing
    _, plain = ranks(f"{command} --plain", DSFIX_DISABLE="1")
    expected = numbers(plain)
    assert len(expected) >= 3, plain[-6000:]

    well, patched = ranks(command)
    assert well, patched[-6000:]
    assert [line for line, _ in EFFECT.findall(patched)] == said
    assert len(ANY.findall(patched)) == len(said) + 1  # and how many were applied
    assert numbers(patched) == [pytest.approx(step, rel=1e-5) for step in expected]

    well, alone = ranks(command, DSFIX_DISABLE="1")
    differs = not well or numbers(alone) != [pytest.approx(step, rel=1e-5) for step in expected]
    assert differs == (page != ["nothing"]), alone[-6000:]
    if not well:
        named = [catalogue()[each].patch for each in re.findall(r"\w+", " ".join(page)) if each in catalogue()]
        assert any(re.search(each.symptom or "$^", alone) for each in named)

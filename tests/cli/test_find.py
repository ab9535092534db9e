"""Which bugs `find` returns for words and for upstream numbers."""

import json
import re

import pytest

from dsfix.catalogue import registry

FLAGSHIP = "zero3_offload_clip_device"


def find(environment, *words, **variables):
    """The names of the bugs, those of the installed release first, and the exit status."""
    done = environment.dsfix("find", *words, "--json", DSFIX_ONLY="", **variables)
    assert done.stderr == ""
    results = json.loads(done.stdout)
    bugs = results["here"] + results["others"]
    return [bug["by"][0] if bug["by"] else bug["key"] for bug in bugs], done.returncode


@pytest.mark.parametrize(
    ("words", "patch"),
    [
        ("grad norm doubled with gradient accumulation", "dict_output_double_scaling"),
        ("LoRA gradient checkpointing CheckpointError", "zero3_checkpoint_recompute"),
        ("no_sync accelerate accumulate", "no_sync_incompatible"),
        ("clipping: tensors on cuda and cpu", FLAGSHIP),
        ("Stage 3 offloading, clipped gradients: cuda and cpu", FLAGSHIP),
        ("numpy 2 BUFSIZE", "numpy_bufsize"),
    ],
)
def test_words_lead_to_the_bug(environment, words, patch):
    results, status = find(environment, *words.split())
    assert status == 0
    assert any(each.startswith(f"patch {patch}") for each in results[:3]), results


@pytest.mark.parametrize(
    ("release", "words", "patch"),
    [
        ("0.14.2", "WarmupDecayLR: the first step is too large", "warmup_first_step"),
        ("0.14.2", "WarmupCosineLR: the first step is too large", "warmup_cosine_first_step"),
        ("0.18.2", "zero 2 accumulation, only the last micro-batch counts", "zero2_accumulation_drops_microbatches"),
        ("0.18.2", "pipeline: gradients too large by the number of micro-batches", "pipeline_accumulation_unscaled"),
        ("0.18.9", "gradients half as large with accelerate", "dict_output_double_scaling"),
        *(("0.18.9", name, "zero3_gather_of_two_dtypes") for name in ("GatheredParameters", "gathered parameters")),
        ("0.18.9", "lora: checkpointing of frozen parameters", "zero3_checkpoint_recompute"),
    ],
)
def test_the_bug_that_fits_best_is_first(environment, release, words, patch):
    assert find(environment.install(release), *words.split())[0][0] == f"patch {patch}"


def test_each_patch_for_a_bug_has_its_own_line(environment):
    shown = environment.install("0.14.2").dsfix("find", "first", "step", "warmup", DSFIX_ONLY="").stdout
    here = shown.partition("in other releases")[0]
    for patch in ("warmup_first_step", "warmup_cosine_first_step"):
        assert re.search(rf"^  {patch} .*{registry.catalogue()[patch].patch.title[:12]}", here, re.M), shown


@pytest.mark.parametrize(
    "name", [FLAGSHIP.upper(), "5461", "#5461", "https://github.com/deepspeedai/DeepSpeed/issues/5461"]
)
def test_ids_and_numbers(environment, name):
    assert find(environment.install("0.14.2"), name)[0][0] == f"patch {FLAGSHIP}"


def test_the_installed_release_comes_first(environment):
    lines = environment.install("0.14.2").dsfix("find", "gradient", "norm", DSFIX_ONLY="").stdout.splitlines()
    here, others = (next(n for n, line in enumerate(lines) if line.startswith(each)) for each in ("in d", "in o"))
    assert lines[here].startswith("in deepspeed 0.14.2")
    assert here < others
    assert any(line.startswith("  #") for line in lines)  # also bugs without a patch
    assert all(" to 0." in line for line in lines[others + 1 : -2])


def test_without_deepspeed_it_is_the_newest(environment):
    assert "\nin the newest, deepspeed 0." in environment.dsfix("find", "gradient").stdout


@pytest.mark.parametrize("words", [("qqqq",), ("#1",)])
def test_nothing_is_known(environment, words):
    assert find(environment, *words) == ([], 4)
    assert environment.dsfix("find", *words).stdout.startswith("No known bug matches ")

"""build/pages/errors.md: every bug under what users see."""

import re

import pytest
from packaging.specifiers import SpecifierSet

from dsfix.catalogue import registry
from dsfix.explain import signature as signatures
from dsfix.patch import Severity
from matrix import proofs, table
from matrix.pages import errors, evidence


@pytest.fixture(scope="module")
def found():
    return evidence.collect(registry.catalogue().values(), table.load(), proofs.DIRECTORY)


@pytest.fixture(scope="module")
def page(found):
    return errors.render(found)


def _section(page, heading):
    return page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def _linked(text):
    return set(re.findall(r"\(catalogue\.md#(\w+)\)", text))


def test_every_patch_with_a_symptom_has_a_message(page, found):
    assert _linked(_section(page, "Messages")) == {entry.id for entry in found.entries if entry.patch.symptom}


def test_every_bug_that_can_be_silent_is_under_a_config(page, found):
    silent = {
        entry.id for entry in found.entries if entry.patch.severity is Severity.WRONG_RESULT or not entry.patch.symptom
    }
    assert _linked(_section(page, "Wrong without a message")) == silent


def test_every_diagnosis_without_a_patch_is_listed_once(page):
    alone = [each for each in signatures.load() if not each.patches]
    assert _section(page, "Errors without a patch").count("\n- ") == len(alone)


def test_messages_are_readable(page):
    messages = re.findall(r"^- `+(.*?)`+$", page, re.M)
    assert len(messages) > 50
    texts = [re.sub(r"\\(?:csrc|deepspeed|ops|setup)", "", each) for each in messages]  # paths of Windows
    assert not [each for each in texts if re.search(r"\\[dswDSWb.(]|\[\^|\(\?|\.\*|/site-packages/|\x1b", each)]
    assert not [each for each in messages if len(each) > 190 or len(each) < 12]


def test_a_message_is_from_a_traceback_or_a_reproduction_if_one_shows_it(page):
    assert "`ValueError: Illegal to call wait on IllegalWork object`" in page
    assert "`MiCS_Optimizer.load_state_dict() got an unexpected keyword argument 'param_shapes'`" in page
    assert "`in get_lr_ratio … ZeroDivisionError: … division by zero`" in page


def test_messages_are_sorted_under_their_error(page):
    for part in re.split(r"\n### ", _section(page, "Messages"))[1:]:
        messages = [re.sub(r"\W+", " ", each).strip().casefold() for each in re.findall(r"^- (.*)", part, re.M)]
        assert messages == sorted(messages)
        assert len(set(messages)) == len(messages), "patches with one message share its line"


def test_the_counts_are_the_catalogue_s(page, found):
    release = found.releases[-1]
    newest = [each.patch for each in found.entries if SpecifierSet(each.patch.affects["deepspeed"]).contains(release)]
    wrong = [patch for patch in newest if patch.severity is Severity.WRONG_RESULT]
    said = " ".join(page.split())
    assert f"{len(found.entries)} bugs have a patch. {len(newest)} of them are in DeepSpeed {release}" in said
    assert f"{len(wrong)} of these {len(newest)} give wrong results" in said

"""Tracebacks of real runs, and the symptoms of the patches."""

import re
from pathlib import Path

import pytest

from dsfix.catalogue import registry
from dsfix.explain import problems

RECORDS = sorted(Path(__file__).parent.glob("tracebacks/*.txt"))
TRACEBACKS = {
    name: text
    for path in RECORDS
    for name, text in re.findall(r"^=== (.+)\n((?:(?!=== ).*\n)+)", path.read_text(encoding="utf-8"), re.MULTILINE)
}
SYMPTOMS = {entry.id: entry.patch.symptom for entry in registry.catalogue().values() if entry.patch.symptom}
RECORDED = {name: name.rpartition("-")[0] for name in TRACEBACKS}
OF_A_PATCH = {name: recorded for name, recorded in RECORDED.items() if recorded in SYMPTOMS}
OF_A_SIGNATURE = {
    name: re.sub(r"_zero\d$", "", recorded) for name, recorded in RECORDED.items() if name not in OF_A_PATCH
}
# their reproductions leave no traceback: a hang, a message by Python, weights that were not loaded
NOT_RECORDED = {
    "fp16_zero1_overflow_deadlock": "[INFO] [stage_1_and_2.py:1990:step] [deepspeed] OVERFLOW! Rank 0 Skipping step. "
    "Attempted loss scale: 65536, reducing to 32768\n"
    "[rank1]:[E321 02:07:08.4 ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=15, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600004 milliseconds\n",
    "cpu_adam_del_masks_error": "Exception ignored in: <function DeepSpeedCPUAdam.__del__ at 0x7f>\n"
    "Traceback (most recent call last):\n"
    '  File "deepspeed/ops/adam/cpu_adam.py", line 96, in __del__\n'
    "    self.ds_opt_adam.destroy_adam(self.opt_id)\n"
    "AttributeError: 'DeepSpeedCPUAdam' object has no attribute 'ds_opt_adam'\n",
    "universal_checkpoint_load_subgroups": "Traceback (most recent call last):\n"
    '  File "deepspeed/runtime/zero/stage3.py", line 2880, in load_hp_checkpoint_state_from_checkpoint_dir_stage3\n'
    "    self.optimizer.load_state_dict(optim_sd)\n"
    "ValueError: loaded state dict contains a parameter group that doesn't match the size of optimizer's group\n",
}


def test_a_record_names_its_content():
    assert [path.name for path in RECORDS if not path.read_text(encoding="utf-8").startswith("=== ")] == []


@pytest.mark.parametrize("name", OF_A_PATCH)
def test_a_traceback_is_recognised_by_the_symptom_of_its_patch(read, name):
    patch = OF_A_PATCH[name]
    findings, _ = read(TRACEBACKS[name])
    lead = findings[0].recognised
    assert patch in lead.patches
    assert lead.count == 1
    assert not findings[1:] or findings[0].role is not findings[1].role


@pytest.mark.parametrize("patch", NOT_RECORDED)
def test_a_log_is_recognised_by_the_symptom_of_its_patch(read, patch):
    findings, _ = read(NOT_RECORDED[patch])
    assert any(patch in finding.recognised.patches for finding in findings)


@pytest.mark.parametrize("name", OF_A_SIGNATURE)
def test_a_traceback_is_recognised_by_its_signature(recognised, name):
    assert recognised(TRACEBACKS[name])[0] == OF_A_SIGNATURE[name]


@pytest.mark.parametrize("name", TRACEBACKS)
def test_the_same_frames_with_a_different_error_are_not_recognised(read, name):
    whole = {each.recognised.problem.id for each in read(TRACEBACKS[name])[0] if each.recognised.problem}
    lines = TRACEBACKS[name].splitlines()
    frames = [line for line in lines if re.match(r"(\[rank0\]: )?(Traceback|  )", line)]
    frames = [line for line in frames if not re.search(r"\b(assert|raise) ", line)]  # they contain the message
    results = {
        each.recognised.problem.id
        for each in read("\n".join([*frames, "KeyError: 'another'"]))[0]
        if each.recognised.problem
    }
    assert not whole & results


@pytest.mark.parametrize("patch", sorted({*OF_A_PATCH.values(), *NOT_RECORDED}))
def test_every_matching_text_contains_the_strings_searched_for(patch):
    problem = next(all_problem for all_problem in problems.all_problems() if patch in all_problem.patches)
    of_patch = [each for each in problem.expressions if each.patch == patch]
    (expression,) = (each for each in of_patch if each.pattern == SYMPTOMS[patch])
    texts = [TRACEBACKS[name] for name, of in OF_A_PATCH.items() if of == patch] or [NOT_RECORDED[patch]]
    for text in texts:
        assert re.search(expression.pattern, text)
        assert expression.places(text)
    assert expression.clauses

"""Logs as they occur: interleaved, prefixed, coloured, compressed, truncated, long; the order of the findings."""

import codecs
import dataclasses
import gzip
import random
import subprocess
import sys
from pathlib import Path

import pytest

from dsfix.explain import excerpts, problems, stream
from dsfix.explain.fixes import fixes
from tests.explain.test_tracebacks import TRACEBACKS

HERE = Path(__file__).parent
CLIP = TRACEBACKS["zero3_offload_clip_device-0.14.2"]
INFLIGHT = "RuntimeError: still have inflight params [{'id': 5}]"
FILL = "step 1: loss 0.1\n"


def interleaved(logs):
    """Returns the logs merged line by line."""
    rows = [log.splitlines() for log in logs]
    return "".join(f"{row[place]}\n" for place in range(max(map(len, rows))) for row in rows if place < len(row))


def prefixed(prefix, log):
    return "".join(f"{prefix}{line}\n" for line in log.splitlines())


@pytest.mark.parametrize(
    ("form", "processes"),
    [
        ("[rank{}]: ", "01234567"),
        ("[default{}]:", "01234567"),
        ("[default{0}]:[rank{0}]: ", "01234567"),
        ("worker-{}: ", [f"worker-{number}" for number in range(8)]),
        ("{}: ", "01234567"),
        ("node{0}: [rank{0}]: ", [f"node{number}/{number}" for number in range(8)]),
        ("2024-05-01 10:00:00,123 [rank{}]: ", "01234567"),
        ("[rank{}]: 2024-05-01T10:00:00.123Z ", "01234567"),
        ("[1,{}]<stderr>:", "01234567"),
        ("(Worker pid={0}, ip=10.0.0.{0}) ", [f"Worker pid={number}, ip=10.0.0.{number}" for number in range(8)]),
        ("trainer-{}  | ", [f"trainer-{number}" for number in range(8)]),
        ("[pod/job-{}/train] ", [f"job-{number}/train" for number in range(8)]),
        ("[rank{}]:E1121 19:20:05.561000 13241 torch/utils/cpp_extension.py:606] ", "01234567"),
    ],
)
def test_eight_ranks_interleaved(read, form, processes):
    findings, _ = read(FILL * 100 + interleaved([prefixed(form.format(rank), CLIP) for rank in range(8)]) + FILL)
    (finding,) = findings
    assert finding.recognised.problem.id == "zero3_offload_clip_device"
    assert finding.recognised.sources == set(processes)
    assert finding.recognised.count == 8
    assert finding.first.line == 100 + 8 * (len(CLIP.splitlines()) - 1) + 1
    assert finding.first.text.startswith("RuntimeError: Expected all tensors")


def test_ranks_without_prefixes_interleaved(recognised):
    assert recognised(interleaved([CLIP] * 8)) == ["zero3_offload_clip_device"]


def test_prefixes_that_only_look_like_ranks(read):
    log = "".join(f"[step{step}]: {line}\n" for step, line in enumerate(["loss 1", INFLIGHT, "loss 2"]))
    (finding,), _ = read(log)
    assert finding.recognised.sources == set()


def test_tracebacks_of_two_ranks_are_not_mixed(recognised):
    """The frame of one and the message of the other together would match a problem that neither has."""
    frames = [line for line in CLIP.splitlines() if line[:1] in "T "]
    clip = "\n".join([*frames, "ValueError: something else"])
    forward = "\n".join([frames[0], '  File "model.py", line 7, in forward', *CLIP.splitlines()[-1:]])
    log = interleaved([prefixed("[rank0]: ", clip), prefixed("[rank1]: ", forward)])
    assert recognised(log) == ["module_left_on_cpu"]


def test_two_tracebacks_of_one_rank_are_not_mixed(recognised):
    frames = [line for line in CLIP.splitlines() if line[:1] in "T "]
    chained = "\nDuring handling of the above exception, another exception occurred:\n\n"
    for between in ("", FILL * 3, chained, FILL * 200):
        log = "\n".join([*frames, "ValueError: else", f"{between}{frames[0]}", '  File "m.py", line 7, in f', ""])
        assert recognised(f"{log}{CLIP.splitlines()[-1]}\n") == ["module_left_on_cpu"]


def test_distant_lines_are_not_one_problem(recognised):
    """A rank that waits long after another rank skipped a step, which fp16 does occasionally."""
    overflow = "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768\n"
    watchdog = "[rank1]: [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(Timeout(ms)=600000)\n"
    near, far, note = "fp16_zero1_overflow_deadlock", "collective_timeout", "loss_scale_searched"
    assert recognised(f"[rank0]: {overflow}{FILL * 10}{watchdog}") == [near, far, note]
    assert recognised(f"[rank0]: {overflow}{FILL * 2000}{watchdog}") == [far, note]


ENCODED = {
    "utf-8": lambda log: log.encode(),
    "utf-16-le": lambda log: codecs.BOM_UTF16_LE + log.encode("utf-16-le"),
    "utf-16-be": lambda log: codecs.BOM_UTF16_BE + log.encode("utf-16-be"),
    "gzip": lambda log: gzip.compress(log.encode()),
    "two gzip files": lambda log: gzip.compress(log[:700].encode()) + gzip.compress(log[700:].encode()),
    "Windows": lambda log: log.replace("\n", "\r\n").encode(),
    "a progress bar before it": lambda log: (
        b"\r".join(b" %d%%|##| 1.2s/it" % n for n in range(9)) + b"\r" + log.encode()
    ),
    "colours": lambda log: "\n".join(
        f"\x1b[1;31m{line[:30]}\x1b[0m\x1b[38;5;12m{line[30:]}\x1b[K" for line in log.splitlines()
    ).encode(),
    "a link and a title": lambda log: log.replace("tensors", "\x1b]8;;http://a\x07ten\x1b]8;;\x07sors").encode(),
    "no last line break": lambda log: log.rstrip("\n").encode(),
    "binary before it": lambda log: random.Random(0).randbytes(100_000) + b"\n" + log.encode(),
    "zeroes after a machine crashed": lambda log: b"\0" * 10_000 + b"\n" + log.encode(),
    "broken UTF-8": lambda log: log.replace("RuntimeError", "\udcff RuntimeError").encode(errors="surrogateescape"),
}


@pytest.mark.parametrize("how", ENCODED)
def test_encodings(recognised, how):
    assert recognised(ENCODED[how](CLIP)) == ["zero3_offload_clip_device"]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_an_escape_sequence_split_between_blocks_is_removed(size):
    text = b"a\x1b[38;5;12mb\x1b]0;title\x07c\x1b(Bd"
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    assert b"".join(stream._without_escapes(iter(pieces))) == b"abcd"


def test_a_truncated_start(recognised):
    lines = CLIP.splitlines()
    assert recognised("\n".join(lines[len(lines) // 2 :])) == ["zero3_offload_clip_device"]


@pytest.mark.parametrize("symptom", ["Xyzzy", r"\w+ quit"])
def test_a_symptom_without_a_long_string_is_tried(monkeypatch, symptom):
    """A plug-in's symptom may have only short strings, or none that a match requires."""
    problem = dataclasses.replace(problems.all_problems()[0], expressions=(problems._expression(symptom),))
    monkeypatch.setattr(problems, "all_problems", lambda: (problem,))
    monkeypatch.setattr(problems, "_by_literal", problems._by_literal.__wrapped__)
    assert problems.possible("rank 3: Xyzzy quit") == [problem]


@pytest.mark.parametrize("shift", [0, 1, 5, 40])
def test_hits_across_block_boundaries(recognised, monkeypatch, shift):
    monkeypatch.setattr(excerpts, "_ZONE", 97)
    monkeypatch.setattr(excerpts, "_BEFORE", 4000)
    monkeypatch.setattr(excerpts, "_AFTER", 1500)  # as in reality, more than a traceback
    monkeypatch.setattr(stream, "_BLOCK", 50)
    assert recognised("x" * shift + "\n" + CLIP) == ["zero3_offload_clip_device"]


def test_line_numbers_and_counts_over_many_blocks(read, monkeypatch):
    monkeypatch.setattr(excerpts, "_ZONE", 10_000)
    monkeypatch.setattr(excerpts, "_BEFORE", 3000)
    monkeypatch.setattr(excerpts, "_AFTER", 1000)
    monkeypatch.setattr(stream, "_BLOCK", 1000)
    log = "".join((FILL * 37 + INFLIGHT + "\n") for _ in range(50))
    (finding,), reading = read(log)
    assert (finding.first.line, finding.recognised.count) == (38, 50)
    assert reading.files[0].lines == 50 * 38
    assert reading.files[0].size == len(log)


def test_a_line_of_many_megabytes(read):
    (finding,), reading = read("x" * 5_000_000 + INFLIGHT + "y" * 5_000_000)
    assert finding.recognised.problem.id == "zero3_inflight_params"
    assert INFLIGHT in finding.first.text
    assert len(finding.first.text) < 1000
    assert reading.files[0].lines == 1


def test_memory_is_bounded(tmp_path):
    path = tmp_path / "log"
    with path.open("w") as file:
        for _ in range(20):
            file.write(FILL * 50_000 + CLIP)
    program = (
        "import resource, sys; from dsfix.explain import excerpts; from dsfix.explain.recognise import LogReading;"
        "excerpts._ZONE, excerpts._BEFORE, excerpts._AFTER = 1 << 18, 1 << 15, 1 << 14;"
        "reading = LogReading(); reading.read('/dev/null');"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; reading.read(sys.argv[1]);"
        "print(reading.known['zero3_offload_clip_device'].count, reading.files[1].size);"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=True)
    count, size, more = map(int, done.stdout.split())
    assert (count, size) == (20, path.stat().st_size)
    assert more * (1 if sys.platform == "darwin" else 1024) < size / 3


BOXED = """\
╭─────────────────── Traceback (most recent call last) ────────────────────╮
│ /home/user/train.py:7 in <module>                                        │
│                                                                          │
│   6 install()                                                            │
│ ❱ 7 engine.step()                                                        │
│                                                                          │
│ /site-packages/deepspeed/runtime/zero/stage3.py:2117 in unscale_and_clip_grads │
│                                                                          │
│   2116 │   │   │                                                         │
╰──────────────────────────────────────────────────────────────────────────╯
RuntimeError: Expected all tensors to be on the same device, but found at 
least two devices, cuda:0 and cpu! (when checking argument for argument mat1
in method wrapper_CUDA_addmm)
"""  # noqa: W291


@pytest.mark.parametrize("ranks", [1, 8])
@pytest.mark.parametrize("box", ["╭│╰", "+|+"])
def test_a_traceback_in_a_box(read, ranks, box):
    drawn = BOXED.replace("╭─", f"{box[0]}-").replace("│", box[1]).replace("╰─", f"{box[2]}-")
    prefixes = [f"[rank{rank}]: " if ranks > 1 else "" for rank in range(ranks)]
    (finding,), _ = read(interleaved([prefixed(prefix, f"{drawn}step 1\n") for prefix in prefixes]))
    assert finding.recognised.problem.id == "zero3_offload_clip_device"
    assert finding.recognised.count == ranks
    assert finding.first.text.endswith("in method wrapper_CUDA_addmm)")


def test_the_first_error_in_time_comes_first(read):
    log = (HERE / "logs" / "torchrun-2-ranks.txt").read_text(encoding="utf-8")
    findings, _ = read(log)
    assert [(finding.recognised.problem.id, finding.role.value) for finding in findings] == [
        ("zero3_inflight_params", "cause"),
        ("peer_gone", "follow-up"),
        ("launcher_child_failed", "follow-up"),
    ]
    assert findings[0].recognised.sources == {"1"}


def test_the_error_above_is_the_cause(read):
    masked = "AttributeError: 'DeepSpeedCPUAdam' object has no attribute 'ds_opt_adam'\n"
    findings, _ = read(f"{FILL}Error building extension 'cpu_adam'\nException ignored in: <function x>\n{masked}")
    assert [(finding.recognised.problem.id, finding.role.value) for finding in findings] == [
        ("extension_build_failed", "cause"),
        ("optimizer_del_masks_error", "follow-up"),
    ]


def test_an_unknown_error_comes_before_its_consequences(read):
    unknown = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    f()\nKeyError: 7\n'
    masked = "AttributeError: 'DeepSpeedCPUAdam' object has no attribute 'ds_opt_adam'\n"
    findings, _ = read(f"{FILL}{unknown}{masked}")
    assert [
        (finding.recognised.problem and finding.recognised.problem.id, finding.role.value) for finding in findings
    ] == [(None, "cause"), ("optimizer_del_masks_error", "follow-up")]
    assert findings[0].first.text == "KeyError: 7"
    assert findings[0].first.line == 5


def test_an_unknown_error_chained_to_a_known_one_is_omitted(read):
    first = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    f()\nKeyError: 7\n'
    chained = "\nDuring handling of the above exception, another exception occurred:\n\n"
    findings, _ = read(first + chained + CLIP)
    assert [finding.recognised.problem.id for finding in findings] == ["zero3_offload_clip_device"]


def test_the_first_error_of_an_unknown_chain_is_reported(read):
    first = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    f()\nKeyError: 7\n'
    chained = "\nDuring handling of the above exception, another exception occurred:\n\n"
    findings, _ = read(first + chained + first.replace("KeyError: 7", "ValueError: 8"))
    assert [finding.first.text for finding in findings] == ["KeyError: 7"]


def test_possible_causes_give_way_to_specific_ones(read):
    """Only in one traceback: elsewhere in the log they are shown after the cause."""
    mixed = "RuntimeError: mat1 and mat2 must have the same dtype\n"
    frame = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    f()\n'
    findings, _ = read(f"{frame}{mixed}{FILL * 600}{CLIP}")
    assert [(finding.recognised.problem.id, finding.role.value) for finding in findings] == [
        ("zero3_offload_clip_device", "cause"),
        ("dtypes_mixed", "possible"),
    ]
    unknown = f"{frame}KeyError: 7\n"
    for log, roles in (
        (unknown + FILL * 100 + frame + mixed, ["cause", "possible"]),
        (mixed + FILL * 100 + unknown, ["possible", "later"]),
    ):
        assert [each.role.value for each in read(log)[0]] == roles
    general = "AttributeError: 'DeepSpeedZeroOptimizer' object has no attribute 'optimizer'\n"
    assert [each.recognised.problem.id for each in read(frame + general)[0]] == ["deepspeed_of_another_release"]


def test_an_interrupted_job_is_not_an_error(read):
    stopped = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    f()\nKeyboardInterrupt\n'
    assert read(stopped)[0] == []


def test_files_are_ordered_by_time(read):
    later = f"2024-05-01 10:00:09,000 {INFLIGHT}\n"
    sooner = prefixed("2024-05-01 10:00:01,000 ", CLIP)
    assert [each.recognised.problem.id for each in read(later, sooner)[0]] == [
        "zero3_offload_clip_device",
        "zero3_inflight_params",
    ]
    assert [each.recognised.problem.id for each in read(later, CLIP)[0]] == [
        "zero3_inflight_params",
        "zero3_offload_clip_device",
    ]


@pytest.mark.parametrize(
    ("text", "versions"),
    [
        ("[INFO] [Rank 0] DeepSpeed info: version=0.14.2, git-hash=unknown\n", {"deepspeed": "0.14.2"}),
        ("deepspeed info ................... 0.14.2, unknown, unknown\n", {"deepspeed": "0.14.2"}),
        ("- DeepSpeed version: 0.16.9\n- PyTorch version (GPU?): 2.6.0\n", {"deepspeed": "0.16.9", "torch": "2.6.0"}),
        ("Successfully installed deepspeed-0.14.2 torch-2.3.1\n", {"deepspeed": "0.14.2", "torch": "2.3.1"}),
        ("deepspeed==0.15.4\n", {"deepspeed": "0.15.4"}),
        # the running version has priority over the requested one
        ("DeepSpeed info: version=0.14.4, git-hash=a\nRequirement deepspeed==0.14.2\n", {"deepspeed": "0.14.4"}),
        ("deepspeed-community is at 0.14\n", {}),
        ("Collecting deepspeed\n  Using cached deepspeed-0.7.7.tar.gz (712 kB)\n", {"deepspeed": "0.7.7"}),
        ("  created deepspeed-0.12.6+b51d57ad.tar.gz\n", {"deepspeed": "0.12.6+b51d57ad"}),
        (
            "deepspeed-0.14.2-py3-none-any.whl, torch-2.4.0a0+07cecf4168.nv24.05.dist-info\n" * 2,
            {"deepspeed": "0.14.2", "torch": "2.4.0a0+07cecf4168.nv24.05"},
        ),
        ("I use DeepSpeed v0.9.5 with transformers v4.31.0\n", {"deepspeed": "0.9.5"}),
        ("this needs DeepSpeed v0.9.15 or later, DeepSpeed v0.9.0+, newer than DeepSpeed 0.9.0\n", {}),
        ("It fails with DeepSpeed 0.18.6 and torch 2.4.0.\n", {"deepspeed": "0.18.6", "torch": "2.4.0"}),
        ("deepspeed==0.18.6\nIt worked with DeepSpeed 0.18.5\n", {"deepspeed": "0.18.6"}),
    ],
)
def test_versions_that_a_log_names(read, text, versions):
    assert read(text)[1].versions.as_dict() == versions


def test_one_of_two_releases_that_a_log_names_has_the_bug(read):
    """The job of the first release failed, or the one of the second."""
    both = ["DeepSpeed info: version=0.14.2, git-hash=a\n", "DeepSpeed info: version=0.14.4, git-hash=b\n"]
    for first, second in (both, reversed(both)):
        (finding,), reading = read(f"{first}{CLIP}{FILL}{second}")
        assert finding.role.value == "cause"
        assert set(reading.versions.described().removeprefix("deepspeed ").split(" and ")) == {"0.14.2", "0.14.4"}
        (fix,) = fixes(finding.recognised.patches, reading.versions.alternatives())
        assert (fix.in_log, fix.named["deepspeed"]) == (True, "0.14.2")
    (finding,), _ = read(f"{both[1]}{CLIP}{FILL}{both[1].replace('0.14.4', '0.15.0')}")
    assert finding.role.value == "excluded"


def test_a_release_older_than_any_range_does_not_exclude_what_begins_with_the_earliest(read):
    message = "AttributeError: 'DeepSpeedCPUAdam' object has no attribute 'ds_opt_adam'\n"
    roles = {
        version: read(f"DeepSpeed info: version={version}, git-hash=a\n{message}")[0][0].role.value
        for version in ("0.10.2", "0.14.2", "0.19.8")
    }
    assert roles == {"0.10.2": "follow-up", "0.14.2": "follow-up", "0.19.8": "excluded"}


def test_a_placeholder_does_not_hide_zero_3(recognised):
    log = "AttributeError: 'DummyOptim' object has no attribute 'step'\nRuntimeError: 'weight' must be 2-D\n"
    assert recognised(log) == ["placeholder_instead_of_engine", "module_outside_engine"]


def test_a_killed_rank_has_no_error_of_its_own(recognised):
    log = "[launch.py:316:sigkill_handler] Killing subprocess 94\n['python', 'x'] exits with return code = -9\n"
    assert recognised(log) == ["rank_killed", "launcher_child_failed"]
    assert recognised("['python', 'x'] exits with return code = -9\n") == ["rank_killed"]


def test_a_line_of_source_is_not_a_message(recognised):
    source = "  File \"train.py\", line 3, in f\n    raise ValueError('still have inflight params')\n"
    assert recognised(f"Traceback (most recent call last):\n{source}KeyError: 7\n") == []
    assert recognised(f"Traceback (most recent call last):\n{source}") == ["zero3_inflight_params"]


def test_a_message_above_a_traceback_that_is_cut(recognised):
    message = "RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn\n"
    frame = 'Traceback (most recent call last):\n  File "d.py", line 167, in backward\n    self.engine.backward(loss)\n'
    assert recognised(message + frame) == ["loss_without_graph"]


SITE = "/opt/env/lib/python3.11/site-packages"


@pytest.mark.parametrize(
    ("frames", "said"),
    [
        ([("/home/me/train.py", "main"), (f"{SITE}/deepspeed/engine.py", "step")], "deepspeed/engine.py, in step."),
        (
            [(f"{SITE}/deepspeed/module_inject/auto_tp.py", "split"), (f"{SITE}/torch/functional.py", "split")],
            "torch/functional.py, in split, called from deepspeed/module_inject/auto_tp.py, in split.",
        ),
        (
            [("/home/me/train.py", "main"), (f"{SITE}/transformers/trainer.py", "train")],
            "transformers/trainer.py, in train. DeepSpeed is not in the traceback",
        ),
        (  # a directory of the user's
            [("/home/me/deepspeed-experiments/deepspeed_train.py", "main")],
            "deepspeed_train.py, in main. DeepSpeed is not in the traceback",
        ),
        (  # a clone on Windows
            [(r"D:\src\DeepSpeed\deepspeed\runtime\pipe\engine.py", "train_batch")],
            "deepspeed/runtime/pipe/engine.py, in train_batch.",
        ),
        ([], ""),
    ],
)
def test_where_an_error_was_raised_that_no_signature_matches(read, frames, said):
    lines = [f'  File "{path}", line 7, in {name}\n    x = f(x)' for path, name in frames]
    _, reading = read("\n".join(["Traceback (most recent call last):", *lines, "RuntimeError: of the test", ""]))
    (unknown,) = reading.unknown.values()
    assert unknown.where.startswith(said) if said else unknown.where == ""

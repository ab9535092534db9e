"""The placement report as text, and buffers that cannot be moved."""

import types

import pytest

from dsfix.guards import placement_report
from dsfix.guards.placement_report import Misplaced, PlacementReport, move_buffers
from tests.samples import assert_sample


def misplaced(path, why="left", kind="buffer", device="cpu"):
    module, _, name = path.rpartition(".")
    return Misplaced(module, name, kind, (2, 3), "float32", device, why, f"remedy of {why}")


def report(*found):
    return PlacementReport("cuda:0", found)


def test_an_empty_report():
    assert not report()
    assert str(report()) == "all tensors are on cuda:0"
    assert str(PlacementReport("", ())) == "no device is expected"


def test_tensors_are_grouped_by_cause():
    text = str(report(misplaced("b"), misplaced("a.c", "plain", "attribute"), misplaced("a.b")))
    assert text.splitlines() == [
        "3 tensors are not on the expected device (cuda:0):",
        "  b: buffer [2, 3] float32 on cpu",
        "  a.b: buffer [2, 3] float32 on cpu",
        "    why: left",
        "    remedy: remedy of left",
        "  a.c: attribute [2, 3] float32 on cpu",
        "    why: plain",
        "    remedy: remedy of plain",
    ]


def test_the_sample_in_the_docs():
    left, plain = placement_report._LEFT_BEHIND, placement_report._PLAIN
    text = report(
        Misplaced("talker", "window", "buffer", (400,), "float32", "cpu", *left),
        Misplaced("talker", "filters", "buffer", (80, 201), "float32", "cpu", *left),
        Misplaced("talker", "gain", "attribute", (16,), "float32", "cpu", *plain),
    ).text()
    assert_sample("guards.md", f"[dsfix] WARNING: {text}")


def test_it_is_a_collection():
    results = report(misplaced("b"), misplaced("a.b"))
    assert results
    assert len(results) == 2
    assert [(each.path, each.module, each.name) for each in results] == [("b", "", "b"), ("a.b", "a", "b")]


def test_a_long_list_is_shortened_and_says_how_to_list_all():
    results = report(*(misplaced(f"a{n}") for n in range(4)), misplaced("c", "plain"), misplaced("d", "plain"))
    lines = results.text(limit=5).splitlines()
    assert [line for line in lines if " more" in line] == [
        "  and 1 more; print(dsfix.placement_report(engine)) lists them all"
    ]
    assert sum("float32" in line for line in lines) == 5
    assert " more" not in results.text(limit=6)
    assert results.text(limit=2).splitlines()[3:] == [
        "  and 2 more; print(dsfix.placement_report(engine)) lists them all",
        "    why: left",
        "    remedy: remedy of left",
        "  and 2 more; print(dsfix.placement_report(engine)) lists them all",
        "    why: plain",
        "    remedy: remedy of plain",
    ]


@pytest.mark.parametrize("path", ["talker.x", "base.token2wav.net.0.x", "code2wav.x"])
def test_the_audio_output_of_qwen_omni_is_recognised(path):
    text = str(report(misplaced(path)))
    assert "  " + path.split(".")[0 if path[0] != "b" else 1] + ": the audio output of a Qwen-Omni model" in text
    assert "ENABLE_AUDIO_OUTPUT=0" in text


@pytest.mark.parametrize("path", ["talkers.x", "thinker.talker", "talker"])
def test_similar_names_are_not_the_audio_output(path):
    assert "ENABLE_AUDIO_OUTPUT" not in str(report(misplaced(path)))


class Buffer:
    """Has `data` like a tensor; `to` raises if `error` is given."""

    def __init__(self, error=None):
        self.error, self.data = error, self

    def to(self, device):
        if self.error:
            raise RuntimeError(self.error)
        return device


def test_a_buffer_that_cannot_be_moved_stays_with_the_reason():
    buffers = {"a": Buffer(), "b": Buffer("out of memory"), "c": Buffer()}
    model = types.SimpleNamespace(get_submodule=lambda path: types.SimpleNamespace(_buffers=buffers))
    results = report(*map(misplaced, "abc"), misplaced("p", kind="parameter"), misplaced("q", kind="attribute"))
    moved, left = move_buffers(model, results)
    assert [each.path for each in moved] == ["a", "c"]
    assert [(each.path, each.why) for each in left] == [
        ("b", "could not be moved: out of memory"),
        ("p", "left"),
        ("q", "left"),
    ]
    assert [buffers[name].data for name in "ac"] == ["cuda:0"] * 2

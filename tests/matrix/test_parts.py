"""The parts of DeepSpeed: how examples are drawn, what becomes of a part that differs, the record and the page."""

import dataclasses
from types import SimpleNamespace

import pytest

from dsfix.cli.exits import CommandError
from matrix.parts import docs, drawing, part, record, running
from matrix.parts.explanations import Explanation
from matrix.parts.part import Absent, Part
from matrix.parts.record import AGREES, DIFFERS, PATCHED, Line

LAB = SimpleNamespace()


def made(check, **options):
    return Part("area/name", "itself", check, **options)


class TestExamples:
    def test_an_example_that_differs_is_shortened_to_what_it_needs(self):
        def check(lab, draw):
            draw.flag("beside the point")
            number = draw.integer("number", 0, 1000)
            if number >= 100:
                raise ValueError(f"wrong of {number}")

        outcome, _, seen = drawing.run(made(check), LAB)
        assert (outcome, seen) == (DIFFERS, "beside the point=False, number=100: ValueError: wrong of 100")

    def test_a_part_that_fails_at_random_differs(self):
        calls = []

        def check(lab, draw):
            draw.integer("number", 0, 9)
            calls.append(0)
            assert len(calls) != 3, "once"

        assert drawing.run(made(check), LAB)[0] == DIFFERS

    def test_what_a_release_lacks_is_absent(self):
        def check(lab, draw):
            raise Absent("no such function")

        assert drawing.run(made(check), LAB) == ("absent", 0, "no such function")


class Children:
    """Stands in for the processes: `wrong(skip)` says whether the part differs there."""

    def __init__(self, wrong, reached):
        self.wrong, self.reached, self.tried = wrong, reached, []

    def attempt(self, release, parts, skip):
        self.tried.append(tuple(skip))
        outcome = DIFFERS if self.wrong(set(skip)) else AGREES
        told = {"outcome": outcome, "seen": "x=1: off", "applied": [*"abcdef"], "reached": self.reached}
        return {each.name: told for each in parts}


@pytest.fixture
def line(monkeypatch):
    """What is recorded of a part that differs where `wrong(the patches that are left out)`."""
    monkeypatch.setattr(running, "digest", lambda area: "123456")
    monkeypatch.setattr(running.environments, "not_importing", lambda: tuple("abcdef"))

    def of(wrong, known=(), reached=()):
        of.children = Children(wrong, reached)
        [found] = running.run(running.Batch("0.19.8", (made(None),)), of.children, {"area/name": known})
        return found

    return of


class TestCause:
    @pytest.mark.parametrize("needed", ["a", "bd", "abcdef"])
    def test_the_patches_without_which_it_differs_are_named(self, line, needed):
        assert line(lambda skip: skip & {*needed}).patches == tuple(needed)

    @pytest.mark.parametrize(("known", "reached", "tries"), [("e", "a", 3), ("", "be", 5), ("a", "e", 4)])
    def test_known_patches_and_those_that_were_reached_are_tried_first(self, line, known, reached, tries):
        assert line(lambda skip: "e" in skip, known, reached).patches == ("e",)
        assert len(line.children.tried) == tries

    def test_what_dsfix_does_not_change_has_no_patch(self, line):
        found = line(lambda skip: True)
        assert (found.outcome, found.patches, found.seen) == (DIFFERS, (), "x=1: off")

    def test_a_part_that_only_dsfix_makes_wrong_is_told_so(self, line):
        found = line(lambda skip: not skip)
        assert (found.outcome, found.seen) == (DIFFERS, "only with dsfix: x=1: off")


LINES = (
    Line("moe/MoE", "0.18.9", "abcdef", PATCHED, ("one", "two"), "k=2: off by 1"),
    Line("moe/MoE", "0.19.8", "abcdef", DIFFERS, (), "k=3, x=(1, 2): KeyError: 'a b'"),
    Line("zero/clip norm", "0.9.0", "abcdef", AGREES),
)


class TestRecord:
    def test_what_is_written_is_read(self, tmp_path):
        written = {(each.part, each.release): each for each in LINES}
        record.save(written, tmp_path / "record.txt")
        assert record.load(tmp_path / "record.txt") == written

    def test_a_damaged_line_is_named(self, tmp_path):
        (tmp_path / "record.txt").write_text("moe/MoE\t0.19.8\tabcdef\tperhaps\n")
        with pytest.raises(CommandError, match="line 1 is not a line of the record"):
            record.load(tmp_path / "record.txt")


class TestPage:
    @pytest.fixture(autouse=True)
    def parts(self, monkeypatch):
        every = {name: Part(name, "its formula", print) for name in ("moe/MoE", "zero/clip")}
        every["zero/none"] = Part("zero/none", "needs a GPU")
        monkeypatch.setattr(docs, "load", lambda: every)
        monkeypatch.setattr(docs, "digest", lambda area: "abcdef")
        monkeypatch.setattr(docs, "releases", lambda: ["0.18.9", "0.19.8"])
        return every

    def test_each_outcome_is_a_cell_and_what_differs_a_note(self):
        page = docs.render({(each.part, each.release): each for each in LINES}, ())
        assert "| MoE | patched | differs |" in page
        assert "| clip | not run | not run |" in page
        assert "- clip: its formula" in page
        assert "- zero/none: needs a GPU" in page
        assert "- MoE (0.18.9): patched by [one](../bugs/one.md), [two](../bugs/two.md)" in page
        assert "- MoE (0.19.8): differs: k=3, x=(1, 2): KeyError: 'a b'" in page

    def test_what_differs_needs_an_explanation_that_fits(self, parts):
        found = {(each.part, each.release): each for each in LINES}
        fits = Explanation("moe/MoE", "KeyError", "k=3 loses a key.")
        for given, told in ((), 1), ((fits,), 0), ((dataclasses.replace(fits, seen="ValueError"),), 1):
            faults = list(docs.faults(found, [parts["moe/MoE"]], ["0.19.8"], given))
            assert len(faults) == told
            assert bool(list(docs.unused(found, given))) == (bool(given) and bool(told))

    @pytest.mark.parametrize("digest", ["abcdef", "another"])
    def test_a_part_that_was_changed_has_to_be_run_again(self, parts, monkeypatch, digest):
        monkeypatch.setattr(docs, "digest", lambda area: digest)
        found = {("zero/clip", "0.19.8"): dataclasses.replace(LINES[2], part="zero/clip", release="0.19.8")}
        faults = list(docs.faults(found, [parts["zero/clip"]], ["0.19.8"], ()))
        assert bool(faults) == (digest != "abcdef")


def test_what_the_committed_record_shows_is_of_the_parts_as_they_are_and_explained():
    found, every = record.load(), part.load()
    for name, release in found:
        assert list(docs.faults(found, [every[name]], [release])) == []
    assert list(docs.unused(found)) == []

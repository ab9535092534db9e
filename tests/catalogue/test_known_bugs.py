"""The table of known bugs: its form, and its coverage by the patches' declarations."""

import types

import pytest
from packaging.version import Version

from dsfix.catalogue.registry import Entry
from dsfix.known_bugs import coverage, table
from dsfix.known_bugs.coverage import CoverageState
from dsfix.patch import Patch, Provide, Severity

RELEASES = ("0.12.0", "0.12.1", "0.13.0", "0.13.1")
PULL = "https://github.com/deepspeedai/DeepSpeed/pull/1"


def written(*rows, releases=RELEASES, columns=table.COLUMNS):
    lines = ["# judged: 0a1b", f"# releases: {' '.join(releases)}", "\t".join(columns), *rows]
    return "\n".join(lines) + "\n"


def row(key="pull/1", first="0.12.0", last="0.13.0", severity="crash", weight="3", area="engine", state="", links=""):
    return "\t".join((key, first, last, severity, weight, area, "It fails", state, links))


def patch(patch_id="one", affects=">=0.12.0,<0.13.1", role="fixed in 0.13.1", link=PULL, **fields):
    declared = {
        "title": "it fails",
        "severity": Severity.CRASH,
        "affects": {"deepspeed": affects},
        "changes": (Provide("torch", "name", None),),
        "symptom": "",
        "upstream": {link: role},
        "fixed_in": None,
        **fields,
    }
    return Entry(patch_id, Patch(**declared), types.ModuleType(patch_id))


def known(*rows, patches=()):
    return coverage.bugs(table.parse(written(*rows)), {each.id: each for each in patches})


def states(bug):
    return [bug.on(Version(each)).state for each in RELEASES if bug.row.has(Version(each))]


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (row(severity="bad"), "pull/1: 'bad' is none of"),
        (row(area="everywhere"), "pull/1: 'everywhere' is none of"),
        (row(weight="9"), "pull/1: '9' is none of"),
        (row(first="?"), "pull/1: Invalid version"),
        (row(state="explain"), "lacks a name or a reason"),
        (row(state="maybe: later"), "pull/1: 'maybe' is none of"),
        ("pull/1\t0.12.0", "2 cells for 9 columns"),
    ],
)
def test_an_invalid_row_is_named(broken, said):
    with pytest.raises(table.TableError, match=said):
        table.parse(written(broken))


@pytest.mark.parametrize("text", ["", "# judged: a\n", written(columns=("key",)), written(releases=("new",))])
def test_a_table_without_its_head_is_refused(text):
    with pytest.raises(table.TableError):
        table.parse(text)


def test_ends_of_a_range_are_affected_and_a_guess_says_so():
    [sure, guess] = table.parse(written(row(last="0.12.1"), row("pull/2", first="~0.12.1", last=""))).rows
    assert [each for each in RELEASES if sure.has(Version(each))] == ["0.12.0", "0.12.1"]
    assert [each for each in RELEASES if guess.has(Version(each))] == ["0.12.1", "0.13.0", "0.13.1"]
    assert (sure.about, guess.about) == (False, True)


@pytest.mark.parametrize(
    ("link", "address"),
    [
        ("pull/5", "https://github.com/deepspeedai/DeepSpeed/pull/5"),
        ("commit/0a1b2c3", "https://github.com/deepspeedai/DeepSpeed/commit/0a1b2c3"),
        ("huggingface/trl/issues/7", "https://github.com/huggingface/trl/issues/7"),
        ("source/a_bug", ""),
    ],
)
def test_links(link, address):
    assert table.url(link) == address


def test_a_patch_covers_the_row_whose_fix_it_names_on_the_releases_that_it_claims():
    [bug] = known(row(), patches=[patch(affects="==0.12.1")])
    assert states(bug) == [CoverageState.OPEN, CoverageState.PATCHED, CoverageState.OPEN]
    assert bug.on(Version("0.12.1")).by == ("patch one",)


def test_releases_where_no_job_can_hit_a_bug_are_distinguished():
    [bug] = known(row(state="unreachable: it waits"), patches=[patch(affects="==0.12.1")])
    assert states(bug) == [CoverageState.UNREACHABLE, CoverageState.PATCHED, CoverageState.UNREACHABLE]


@pytest.mark.parametrize("role", ["introduced in 0.12.0", "related: fixed in part in 0.13.0", "reported"])
def test_a_patch_that_names_a_change_for_another_reason_does_not_cover_it(role):
    results = known(row(), patches=[patch(role=role)])
    assert [bug.covers for bug in results if bug.row.key == "pull/1"] == [()]


@pytest.mark.parametrize("role", ["reported", "proposed fix, open"])
def test_a_row_that_no_release_has_fixed_is_covered_by_the_patch_that_names_the_report(role):
    [bug] = known(row("issues/3", last="", links="pull/1"), patches=[patch(role=role, affects=">=0.12.0")])
    assert set(states(bug)) == {CoverageState.PATCHED}


def test_a_patch_named_by_hand_also_covers():
    [bug] = known(row("source/x", state="patch:one"), patches=[patch(role="related")])
    assert set(states(bug)) == {CoverageState.PATCHED}


@pytest.mark.parametrize(
    ("state", "expected", "by", "why"),
    [
        (
            "explain:out_of_step; check:empty_bucket",
            CoverageState.DIAGNOSED,
            ("explain out_of_step", "check empty_bucket"),
            "",
        ),
        ("unsafe: files would not fit", CoverageState.UNSAFE, (), "files would not fit"),
        ("unreachable: it is off", CoverageState.UNREACHABLE, (), "it is off"),
        ("unconfirmed: not seen", CoverageState.UNCONFIRMED, (), "not seen"),
        ("open: too large", CoverageState.OPEN, (), "too large"),
        ("", CoverageState.OPEN, (), ""),
    ],
)
def test_states_by_hand_are_for_the_releases_without_a_patch(state, expected, by, why):
    [bug] = known(row(state=state), patches=[patch(affects="==0.12.0")])
    answers = [bug.on(Version(each)) for each in RELEASES[:2]]
    assert [answer.state for answer in answers] == [CoverageState.PATCHED, expected]
    assert (answers[1].by, answers[1].why) == (by, why)


def test_a_patch_for_a_part_of_a_bug_says_which():
    [bug] = known(row(state="part: the decay, not the memory"), patches=[patch()])
    assert set(states(bug)) == {CoverageState.IN_PART}
    assert bug.on(Version("0.12.0")).why == "the decay, not the memory"


def test_a_patch_that_is_off_by_default_is_not_counted_as_one_that_applies():
    [bug] = known(row(), patches=[patch(default=False)])
    assert set(states(bug)) == {CoverageState.OPTIONAL}


def test_other_requirements_of_a_patch_are_shown():
    [bug] = known(row(), patches=[patch(affects=">=0.12", role="fixed")])
    gated = known(row(), patches=[Entry("one", _with_torch(patch().patch), types.ModuleType("one"))])
    assert bug.on(Version("0.12.0")).why == ""
    assert gated[0].on(Version("0.12.0")).why == "with torch >=2.5"


def _with_torch(declared):
    import dataclasses

    fields = {field.name for field in dataclasses.fields(declared) if field.init}
    values = {name: getattr(declared, name) for name in fields}
    return Patch(**{**values, "affects": {**declared.affects, "torch": ">=2.5"}})


def test_a_bug_known_only_from_patches_is_one_row_for_all_its_continuations():
    first = patch("early", "<0.12.1", role="introduced", continued_by="late")
    late = patch("late", ">=0.12.1", role="introduced")
    [bug] = known(patches=[first, late])
    assert (bug.row.key, str(bug.row.first), bug.row.last) == ("patch/late", "0.12.0", None)
    assert [bug.on(Version(each)).by for each in RELEASES[:2]] == [("patch early",), ("patch late",)]


def test_patches_of_plugins_are_bugs_of_their_own():
    theirs = Entry("theirs:one", patch().patch, types.ModuleType("one"), "theirs")
    covers = {bug.row.key: [cover.id for cover in bug.covers] for bug in known(row(), patches=[theirs])}
    assert covers == {"pull/1": [], "patch/theirs:one": ["theirs:one"]}


def test_the_worst_come_first():
    results = known(
        row("pull/1", weight="5"), row("pull/2", severity="wrong-result", weight="1"), row("pull/3", weight="4")
    )
    assert [bug.row.key for bug in results] == ["pull/2", "pull/1", "pull/3"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0.11.2", "older than 0.12.0, the first"),
        ("0.14", "newer than 0.13.1, the newest"),
        ("0.12.5", "not a release; the one before it is 0.12.1"),
        ("newest", "'newest' is not a version of DeepSpeed"),
    ],
)
def test_an_unknown_release_is_refused_in_one_sentence(text, said):
    with pytest.raises(table.UnknownRelease, match=said) as error:
        table.release_named(text, table.parse(written()))
    assert "\n" not in str(error.value)


def test_a_release_may_be_named_short():
    assert str(table.release_named("0.13", table.parse(written()))) == "0.13.0"


@pytest.mark.parametrize(
    ("text", "remark"),
    [("0.12.1", ""), ("0.12.1+abc", "not a release"), ("0.12.7", "not a release"), ("0.14.0", "newer than 0.13.1")],
)
def test_an_installed_version_between_and_after_the_releases_is_judged_by_version_number(text, remark):
    version, result = table.installed_release(text, table.parse(written()))
    assert str(version) == text
    assert (remark in result) if remark else result == ""

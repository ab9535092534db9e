"""The page of the site, from the records, the fixes and the explanations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from dsfix.catalogue import registry
from matrix.deepspeed_tests import explanations, fixes, selection
from matrix.deepspeed_tests.explanations import EXPLANATIONS, Explanation
from matrix.deepspeed_tests.fixes import FIXES, Fix
from matrix.deepspeed_tests.records import Record, Run, worst
from matrix.pages import text

COMMAND = "python -m tox run -e deepspeed-tests"
_REPOSITORY = "https://github.com/deepspeedai/DeepSpeed"
_SHOWN = 8  # reasons for failures that are listed separately

_HEAD = f"""\
# DeepSpeed's own tests

A selection of DeepSpeed's unit tests (`matrix/deepspeed_tests/selection.py`), run on a release without and with dsfix,
in ranks on the CPU. No test may be worse with dsfix.

    {COMMAND} -- run --tests DIR --release 0.18.9

runs the tests that are not in the record; DIR is a clone of DeepSpeed at the release's tag. This repository contains
only the tests' names. Only the releases listed here have a record. Tests that were worse
were run three times on both sides.

"""

_FIXES = """
## The tests that came with upstream's fixes

On releases that do not have the fix yet. "With dsfix" includes the fixes' patches that are off by default; "all but the
patch" is dsfix with every patch but this one.

"""


def faults(
    found: Sequence[Record], known: Sequence[Explanation] = EXPLANATIONS, known_fixes: Sequence[Fix] = FIXES
) -> Iterator[str]:
    """One sentence for each unexplained worse test, useless explanation or unknown patch."""
    used = set()
    for record in found:
        for test, run in record.runs.items():
            explanation = explanations.fitting(test, record.release, known) if run.worse else None
            used.add(explanation)
            where = f"{record.release}, tests of {record.tests}: {test}"
            if run.worse and explanation is None:
                yield f"{where}: {_seen(run.without)} without dsfix, {_seen(run.patched)} with it: not explained"
            fix = fixes.of(test, known_fixes) if not record.own else None
            tried = fix is not None and set(fix.patches) <= run.left_out.keys()
            if run.better and tried and not any(_needed(outcome) for outcome in run.left_out.values()):
                yield f"{where}: passes with dsfix, but needs none of the fix's patches"
    for each in known:
        if each not in used and found:
            yield f"the explanation of {each.test} explains nothing"
        if each.patch and each.patch not in registry.catalogue():
            yield f"{each.test}: {each.patch} is not a patch"
    for fix in known_fixes:
        for patch in fix.patches:
            if patch not in registry.catalogue():
                yield f"#{fix.request}: {patch} is not a patch"


def render(
    found: Sequence[Record], known: Sequence[Explanation] = EXPLANATIONS, known_fixes: Sequence[Fix] = FIXES
) -> str:
    parts = [_HEAD, "## What was run\n\n", _overview(found, known)]
    if not any(record.own for record in found):
        parts.append("\nNo release was run with its own tests yet; these are newer tests.\n")
    parts += [_release(record, known) for record in found if record.own]
    others = [record for record in found if not record.own]
    parts += [_FIXES, _fixed(others, known_fixes), "\n", _uncollected(others)]
    left_out = [[f"`{pattern}`", why] for pattern, why in selection.LEFT_OUT.items()]
    parts += ["\n## What is not run\n\n", text.table(("tests", "why"), left_out)]
    return "".join(parts)


def _overview(found: Sequence[Record], known: Sequence[Explanation]) -> str:
    rows = []
    for record in found:
        runs = [(test, run) for test, run in record.runs.items() if run.complete]
        explained = [explanations.fitting(test, record.release, known) for test, run in runs if run.worse]
        worse_count = f"{len(explained)}, {sum(each is not None for each in explained)} explained" if explained else "0"
        both = [(worst(run.without), worst(run.patched)) for _, run in runs]
        rows.append(
            [
                record.release,
                f"[{record.tests}]({_REPOSITORY}/tree/{record.tests}/tests)",
                f"{len(runs)} of {record.collected}" if record.collected else str(len(runs)),
                str(both.count((0, 0))),
                str(sum(without > 1 and patched == 0 for without, patched in both)),
                str(sum(without > 1 and patched > 1 for without, patched in both)),
                str(sum(without == patched == 1 for without, patched in both)),
                worse_count,
                record.date,
            ]
        )
    heads = ("release", "tests of", "run", "pass", "only with dsfix", "fail", "skipped", "worse", "date")
    return text.table(heads, rows)


def _release(record: Record, known: Sequence[Explanation]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items() if name != "deepspeed")
    families = Counter(selection.family(test) for test, run in record.runs.items() if run.complete)
    counts = ", ".join(f"{name} {families[name]}" for name in selection.FILES if families[name])
    lines = [f"\n### {record.release}\n", f"{versions}; at most {record.ranks} ranks. Tests by family: {counts}.\n"]
    worse_tests = [(test, run) for test, run in sorted(record.runs.items()) if run.worse]
    if worse_tests:
        rows = []
        for test, run in worse_tests:
            why = explanations.fitting(test, record.release, known)
            because = f"{why.kind.value}: {why.text}" if why is not None else "not explained"
            if why is not None and why.patch:
                because += f" ([{why.patch}](../bugs/{why.patch}.md))"
            rows.append([_name(test), _seen(run.without), _seen(run.patched), because])
        lines.append(text.table(("worse", "without dsfix", "with it", "why"), rows))
    better = [[_name(test), _why(run, "without")] for test, run in sorted(record.runs.items()) if run.better]
    if better:
        lines.append(text.table(("passes only with dsfix", "without it"), better))
    reasons = Counter(_why(run, "with") for run in record.runs.values() if run.complete and worst(run.patched) > 1)
    if reasons:
        rest = sum(reasons.values()) - sum(count for _, count in reasons.most_common(_SHOWN))
        rows = [[str(count), reason] for reason, count in reasons.most_common(_SHOWN)]
        rows += [[str(rest), "other reasons"]] if rest else []
        lines.append(text.table(("tests", "also fail with dsfix"), rows))
    if record.uncollected:
        lines.append(_uncollected([record]))
    return "\n".join(lines)


def _uncollected(found: Sequence[Record]) -> str:
    rows = [
        [f"`{file}`", record.release, text.escape(why)]
        for record in found
        for file, why in sorted(record.uncollected.items())
    ]
    return text.table(("not collected", "release", "why"), rows) if rows else ""


def _fixed(found: Sequence[Record], known_fixes: Sequence[Fix]) -> str:
    rows = []
    for record in found:
        for test, run in sorted(record.runs.items()):
            fix = fixes.of(test, known_fixes) if run.complete else None
            if fix is not None:
                rows.append(
                    [
                        _name(test),
                        f"[#{fix.request}]({_REPOSITORY}/pull/{fix.request}), {fix.release}",
                        record.release,
                        _seen(run.without),
                        _seen(run.patched),
                        _needing(run, fix),
                    ]
                )
    return text.table(("test", "fix", "release", "without dsfix", "with it", "all but the patch"), rows)


def _needing(run: Run, fix: Fix) -> str:
    """The patches without which the test fails, and those not tried yet."""
    needed = [
        f"[{patch}](../bugs/{patch}.md): {run.left_out.get(patch, 'not run')}"
        for patch in fix.patches
        if run.better and _needed(run.left_out.get(patch, "failed"))
    ]
    return ", ".join(needed)


def _needed(outcome: str) -> bool:
    return worst([outcome]) > 1


def _name(test: str) -> str:
    file, _, name = test.partition("::")
    return f"`{file.rpartition('/')[2]}::{name}`".replace("|", "\\|")


def _seen(outcomes: Sequence[str]) -> str:
    """The outcomes, with counts if they differ."""
    counts = Counter(outcomes)
    return ", ".join(
        f"{name} {count} of {len(outcomes)}" if len(counts) > 1 else name for name, count in counts.items()
    )


def _why(run: Run, variant: str) -> str:
    return text.escape(run.why.get(variant) or run.outcomes(variant)[-1])

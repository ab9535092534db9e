"""build/pages/errors.md: the bugs by what users see: a message, or a config whose results are wrong without one."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from dsfix.catalogue.registry import Entry
from dsfix.explain import signature as signatures
from dsfix.explain.signature import Role, Signature
from dsfix.patch import Severity
from matrix import proofs
from matrix.proofs import State

from . import text
from .evidence import Evidence

_HEAD = """\
# Is my error in here?

Written by `python -m tox run -e pages` from `patches/` and `dsfix/explain/signatures/`; edit those.

{total} bugs have a patch. {newest} of them are in DeepSpeed {release}, the newest release, and {wrong} of these
{newest} give wrong results.

- [Messages](#messages): search this page for a few words of yours, without numbers and paths
- [Errors without a patch](#errors-without-a-patch): the cause and the remedy
- [Wrong without a message](#wrong-without-a-message): look under your config

`python -m dsfix explain LOG` searches a whole log; `python -m dsfix list` shows which patches apply to the installed
DeepSpeed. All known bugs of a release, with and without a patch: [upstream.md](upstream.md).
"""
_MESSAGES = """
## Messages

Each is followed by the bug, the DeepSpeed releases that have it, and the patch that fixes it.
"""
_DIAGNOSES = """
## Errors without a patch

No patch fixes these; most are caused by the job or its environment.
"""
_SILENT = """
## Wrong without a message

The job runs and reports nothing, or shows a message in some cases only.
"""
_NO_TYPE = "Other messages"
_CHECKOUT = Path(__file__).resolve().parents[2]
_LONGEST = 110  # characters of a message
_TELLING = 12  # characters
_GENERIC = 10  # a message as short as this is shown with the function that raises it
_RANK = re.compile(r"^\[\w+\]:\s?", re.M)
_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_ERROR = re.compile(r"\b([A-Z]\w*(?:Error|Exception))\b")
_RAISED = re.compile(r"^[\w.]*(?:Error|Exception)\b", re.M)
_parser: Any = importlib.import_module("re._parser")

# A bug is listed under the first of these that its title matches, else under every one of _STAGES.
_TOPICS = {
    "Checkpoints": r"checkpoint(?!ing)|zero_to_fp32",
    "Pipeline parallelism": r"pipeline",
    "Mixture of experts": r"\bMoE\b",
    "Sequence tiling": r"TiledMLP",
    "Learning rate schedulers": r"\bWarmup|scheduler",
    "Muon": r"\bMuon\b",
}
_STAGES = {
    "ZeRO off": r"without ZeRO|ZeRO off",
    "ZeRO-1 and ZeRO-2": r"ZeRO-[12](?! to|.*offload)|ZeRO-1 to",
    "ZeRO-1 and ZeRO-2 with optimizer offload": r"ZeRO-[12].*offload",
    "ZeRO-3": r"ZeRO-3|ZeRO-\d to 3|ZeRO-2/3|hpZ",
}
_ANY_CONFIG = "Any ZeRO stage"
_NOT_NUMBERS = "Slower, more memory, or another precision"


def render(evidence: Evidence) -> str:
    """The page's Markdown."""
    release = evidence.releases[-1]
    newest = [entry for entry in evidence.entries if text.affected(entry.patch, evidence.releases[-1:])]
    wrong = [entry for entry in newest if entry.patch.severity is Severity.WRONG_RESULT]
    head = _HEAD.format(total=len(evidence.entries), newest=len(newest), wrong=len(wrong), release=release)
    return head + _messages(evidence) + _diagnoses() + _silent(evidence)


def _messages(evidence: Evidence) -> str:
    found: dict[str, dict[str, list[Entry]]] = {}
    for entry in evidence.entries:
        for message in _of_patch(entry, evidence) if entry.patch.symptom else ():
            raised = _ERROR.search(message)
            found.setdefault(raised[1] if raised else _NO_TYPE, {}).setdefault(message, []).append(entry)
    lines = [_MESSAGES]
    for error in sorted(found, key=lambda each: (each == _NO_TYPE, each)):
        lines.append(f"\n### {error}\n\n")
        for message in sorted(found[error], key=_alphabetical):
            lines.append(f"- {text.code(message)}\n")
            lines += [f"  - {_bug(entry, evidence)}\n" for entry in found[error][message]]
    return "".join(lines)


def _diagnoses() -> str:
    found = [(_message(each.id, each.pattern, ()), each) for each in signatures.load() if not each.patches]
    lines = [_DIAGNOSES, "\n"]
    for message, signature in sorted(found, key=lambda each: _alphabetical(each[0])):
        lines += [f"- {text.code(message)}\n", f"  - {_diagnosis(signature)}\n"]
    return "".join(lines)


def _diagnosis(signature: Signature) -> str:
    affects = ", ".join(f"{name} {specifiers}" for name, specifiers in signature.affects.items())
    told = signature.title + (f" · {affects}" if affects else "")
    if signature.role is Role.FOLLOW_UP:
        told += " · follows from an earlier error"
    if signature.role is Role.POSSIBLE:
        told += " · several causes"
    return text.escape(f"{told}. {signature.remedy}")


def _silent(evidence: Evidence) -> str:
    headings = (*_STAGES, _ANY_CONFIG, *_TOPICS, _NOT_NUMBERS)
    found: dict[str, list[Entry]] = {heading: [] for heading in headings}
    for entry in evidence.entries:
        if entry.patch.severity is Severity.WRONG_RESULT or not entry.patch.symptom:
            for heading in _headings(entry):
                found[heading].append(entry)
    lines = [_SILENT]
    for heading, entries in found.items():
        if entries:
            lines.append(f"\n### {heading}\n\n")
            lines += [f"- {_bug(entry, evidence)}\n" for entry in entries]
    return "".join(lines)


def _headings(entry: Entry) -> list[str]:
    title = entry.patch.title
    if entry.patch.severity is not Severity.WRONG_RESULT:
        return [_NOT_NUMBERS]
    for heading, pattern in _TOPICS.items():
        if re.search(pattern, title):
            return [heading]
    return [heading for heading, pattern in _STAGES.items() if re.search(pattern, title)] or [_ANY_CONFIG]


def _bug(entry: Entry, evidence: Evidence) -> str:
    releases = text.affected(entry.patch, evidence.releases)
    needs = text.beside(entry.patch)
    where = f"{releases}, with {text.escape(needs)}" if needs else releases
    return f"{text.escape(entry.patch.title)} · {where} · [`{entry.id}`](catalogue.md#{entry.id})"


def _of_patch(entry: Entry, evidence: Evidence) -> list[str]:
    """One message for each alternative of the symptom."""
    cells = (cell for column in evidence.cells[entry.id].values() for cell in column.values())
    details = [cell.cell.without.detail for cell in cells if cell.cell is not None and cell.state is State.FIXED]
    alternatives = _alternatives(entry.patch.symptom)
    return list(dict.fromkeys(_message(entry.id, each, details) for each in alternatives))


def _message(name: str, pattern: str, details: Iterable[str]) -> str:
    """What users see: from a recorded traceback, else from what a reproduction saw, else the expression as text."""
    seen = _clipped(_recorded(name, pattern) or _reproduced(pattern, details))
    return seen if len(_without_type(seen)) > _GENERIC else _rendered(pattern)


def _without_type(message: str) -> str:
    return _RAISED.sub("", message).strip(": …")


def _recorded(name: str, pattern: str) -> str:
    """The error that a traceback ends with, and the line in which the match ends; that patch's own tracebacks first."""
    tracebacks = _tracebacks()
    for one in sorted(tracebacks, key=lambda one: (not one.startswith(f"{name}-"), one)):
        for match in re.finditer(pattern, tracebacks[one]):
            if line := _line_at(tracebacks[one], match.end()):
                return line
    return ""


def _line_at(traceback: str, end: int) -> str:
    """The line of a message that ends there; "" for a line of source."""
    start = traceback.rfind("\n", 0, end) + 1
    line = traceback[start:].partition("\n")[0]
    if not line or line[0].isspace():
        return ""
    raised = [match.start() for match in _RAISED.finditer(traceback, 0, end)]
    if not raised or raised[-1] >= start:
        return line
    return f"{_clipped(traceback[raised[-1] :].partition(chr(10))[0])} … {traceback[start:end]}"


@cache
def _tracebacks() -> Mapping[str, str]:
    """ID-RELEASE -> a recorded traceback, without prefixes, colours and paths."""
    files = [path.read_text(encoding="utf-8") for path in _CHECKOUT.glob("tests/explain/tracebacks/*.txt")]
    recorded = [each.partition("\n") for text in files for each in f"\n{text}".split("\n=== ")[1:]]
    return {name: proofs.without_paths(_COLOUR.sub("", _RANK.sub("", text))) for name, _, text in recorded}


def _reproduced(pattern: str, details: Iterable[str]) -> str:
    for detail in details:
        for part in detail.split("; "):
            if re.search(pattern, part):
                return part.partition(": ")[2] or part
    return ""


def _rendered(pattern: str) -> str:
    """A text that the expression matches, "…" for what may be anything; of its alternatives the first that tells."""
    whole = [pattern, *_alternatives(pattern)]
    told = [re.sub(r"(?:\s*…\s*)+", " … ", _text_of(_parser.parse(each))).strip(": …") for each in whole]
    return next((each for each in told if len(each) >= _TELLING), max(told, key=len))


def _text_of(parsed: Any) -> str:
    told = ""
    for operator, argument in parsed:
        name = str(operator)
        if name == "LITERAL":
            told += chr(argument) if argument != ord("\n") else "…"
        elif name == "SUBPATTERN":
            told += _text_of(argument[-1])
        elif name == "BRANCH":
            told += _text_of(argument[1][0])
        elif name in ("MAX_REPEAT", "MIN_REPEAT"):
            told += _text_of(argument[2]) if argument[0] else "…"
        elif name in ("ANY", "IN", "NOT_LITERAL"):
            told += "…"
    return told


def _alternatives(pattern: str) -> list[str]:
    """The expression split at "|" outside of groups."""
    parts, depth = [""], 0
    for token in re.findall(r"\\.|\[(?:\\.|[^\]])*\]|.", pattern):
        depth += (token == "(") - (token == ")")
        if token == "|" and not depth:
            parts.append("")
        else:
            parts[-1] += token
    return parts


def _clipped(message: str) -> str:
    """One line of it, without numbers that are different in each run."""
    message = re.sub(r"\d{6,}", "…", " ".join(message.split())).replace("… …", "…")
    if len(message) <= _LONGEST or " … " in message:
        return message
    return message[:_LONGEST].rpartition(" ")[0] + " …"


def _alphabetical(message: str) -> str:
    return re.sub(r"\W+", " ", message).strip().casefold()

"""``python verdicts.py ID...``: dsfix's verdict on each patch for the DeepSpeed on PYTHONPATH, as JSON.

Runs in a separate process per release. Reads sources and metadata, and imports neither torch nor DeepSpeed.
"""

from __future__ import annotations

import ast
import functools
import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType
from typing import Any

from packaging.version import Version

from dsfix import survey, versions
from dsfix.catalogue import registry
from dsfix.engine import rewrite
from dsfix.engine import verdict as verdict_of
from dsfix.engine.source import FunctionSource, split_target, text_of
from dsfix.outcome import ChangeRefused, Outcome
from dsfix.patch import Edit, Patch, Provide, Replace
from dsfix.settings import Settings
from dsfix.versions import module_file

_HIDDEN = "Metadata-Version: 2.1\nName: deepspeed\nVersion: unknown\n"
Edits = list[tuple[str, Edit]]
Site = tuple[str, str]  # module, outermost function


def main() -> None:
    versions.NEWEST_PROVEN = Version("9999")  # a release that is being proven does not count as newer than proven
    registry.PROVEN = Path(os.devnull)  # results of earlier proofs are ignored
    entries = [registry.catalogue()[patch_id] for patch_id in sys.argv[1:]]
    answer = {entry.id: verdict_by_version(entry) for entry in entries}
    with hidden_number():
        for entry in entries:
            begun = time.perf_counter()
            source = verdict(entry)
            answer[entry.id]["source"] = [source.outcome.value, source.reason]
            answer[entry.id]["seconds"] += time.perf_counter() - begun
    applied = [entry for entry in entries if answer[entry.id]["number"][0] == Outcome.PENDING.value]
    for patch_id, fault in shared_faults(applied):
        answer[patch_id]["faults"].append(fault)
    imported = sorted({"torch", "deepspeed"} & sys.modules.keys())
    print(json.dumps({"imported": imported, "patches": answer}))


def verdict_by_version(entry: registry.Entry) -> dict[str, Any]:
    """The verdict by version number, (outcome, reason), and why changes cannot be made."""
    begun = time.perf_counter()
    number = verdict(entry)
    pending = number.outcome is Outcome.PENDING
    return {
        "number": [number.outcome.value, number.reason],
        "faults": list(faults(entry.id, entry.patch)) if pending else [],
        "fingerprint": verdict_of.fingerprint(*verdict_of.fingerprint_inputs(entry.patch)) if pending else "",
        "seconds": time.perf_counter() - begun,
    }


def verdict(entry: registry.Entry) -> verdict_of.Verdict:
    """The verdict in a job that enables only this patch."""
    return survey.verdict_of(entry, Settings(only=frozenset({entry.id})))


@contextmanager
def hidden_number() -> Iterator[None]:
    """Hides DeepSpeed's version number."""
    with tempfile.TemporaryDirectory() as directory:
        record = Path(directory, "deepspeed-0.dist-info")
        record.mkdir()
        (record / "METADATA").write_text(_HIDDEN, encoding="utf-8")
        home = Path(module_file("deepspeed") or "deepspeed/__init__.py").parents[1]
        # as of an editable install of what is imported
        link = {"url": home.as_uri(), "dir_info": {"editable": True}}
        (record / "direct_url.json").write_text(json.dumps(link), encoding="utf-8")
        sys.path.insert(0, directory)
        versions.installed.cache_clear()
        yield
        sys.path.remove(directory)
        versions.installed.cache_clear()


def faults(patch_id: str, patch: Patch) -> Iterator[str]:
    """Why changes of an applicable patch cannot be made; nothing if all can."""
    for change in patch.changes:
        path = module_file(change.module)
        if path is None:
            yield f"module {change.module} does not exist"
        elif isinstance(change, Replace) and not exists(path, change.qualname):
            yield f"{change.module} has no {change.qualname}"
        elif isinstance(change, Provide) and bound(ast.parse(text_of(path) or "").body, change.name) is not None:
            yield f"{change.module} already has {change.name}"
    for site, edits in by_site([(patch_id, patch)]).items():
        fault = edit_fault(site, edits)
        if fault is not None:
            yield fault


def by_site(entries: Iterable[tuple[str, Patch]]) -> dict[Site, Edits]:
    """All edits of the patches (id, patch), by the function whose code is recompiled."""
    sites: dict[Site, Edits] = {}
    for patch_id, patch in entries:
        for change in patch.changes:
            if isinstance(change, Edit):
                outer = split_target(change.qualname)[0]
                sites.setdefault((change.module, outer), []).append((patch_id, change))
    return sites


def shared_faults(entries: Iterable[registry.Entry]) -> Iterator[tuple[str, str]]:
    """(patch id, fault) for edits of one function by several patches that are incompatible."""
    for site, edits in by_site((entry.id, entry.patch) for entry in entries).items():
        ids = sorted({patch_id for patch_id, _ in edits})
        fault = edit_fault(site, edits) if len(ids) > 1 else None
        if fault is not None:
            yield from ((patch_id, f"together with {', '.join({*ids} - {patch_id})}: {fault}") for patch_id in ids)


def edit_fault(site: Site, edits: Edits) -> str | None:
    """Why the edits of one function cannot be made, None if they can."""
    try:
        compile_edited(site, edits)
    except (ChangeRefused, SyntaxError) as error:
        return f"Edit of {site[1]}: {error}"
    return None


def compile_edited(site: Site, edits: Edits) -> None:
    """Make the edits of one function as the engine would. Raises ChangeRefused or SyntaxError if they do not fit."""
    block = verdict_of.places(edits[0][1])[0]
    code = original(block, site[1])
    rewrite.compile_edited(block, site[1], code, rewrite.imports_of(block, site[1], code), edits)


def original(block: FunctionSource, qualname: str) -> CodeType:
    """The function's code as compiled with its file. Raises ChangeRefused if it is not found."""
    for code in nested(compiled(block.path)):
        if code.co_firstlineno == block.first and code.co_qualname == qualname:
            return code
    raise ChangeRefused(Outcome.DRIFTED, f"{block.path} compiles to no {qualname} at line {block.first}")


@functools.cache
def compiled(path: str) -> CodeType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return compile(text_of(path) or "", path, "exec", dont_inherit=True)


def nested(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from nested(constant)


def exists(path: str, qualname: str) -> bool:
    """Whether the file binds the dotted name, as far as its source shows."""
    body: list[ast.stmt] = ast.parse(text_of(path) or "").body
    for name in qualname.split("."):
        binding = bound(body, name)
        if binding is None:
            return "*" in set().union(*map(bound_names, statements(body)))
        if not isinstance(binding, ast.ClassDef):
            return True  # a function, or an object whose attributes are known only at run time
        body = binding.body
    return True


def bound(body: list[ast.stmt], name: str) -> ast.stmt | None:
    """The first statement of a module's or class's body, including nested `if`, `try` etc., that binds the name."""
    return next((statement for statement in statements(body) if name in bound_names(statement)), None)


def statements(body: list[Any]) -> Iterator[ast.stmt]:
    for each in body:
        yield each
        if not isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            for block in ("body", "handlers", "orelse", "finalbody", "cases"):
                yield from statements(getattr(each, block, []))


def bound_names(statement: ast.stmt) -> set[str]:
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {statement.name}
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return {alias.asname or alias.name.partition(".")[0] for alias in statement.names}
    targets = [*getattr(statement, "targets", []), getattr(statement, "target", None)]
    targets += [item.optional_vars for item in getattr(statement, "items", [])]
    return {node.id for target in targets if target for node in ast.walk(target) if isinstance(node, ast.Name)}


if __name__ == "__main__":
    main()

"""64 threads that import DeepSpeed's modules concurrently.

In every second process they start with `import deepspeed`, and nothing may be raised. In the others they start with its
submodules, each thread in its own order. Python itself refuses some of these imports, with or without dsfix: a thread
that imports a.b holds its lock and waits for a, while another that executes a waits for a.b. Exceptions there are
counted, and compared with a process that has only the patches needed to import DeepSpeed with this torch and NumPy. One
thread then imports everything again. A package that has copied names from a half-executed module lacks the rest, and
modules that need them can no longer be imported; these are counted as well. All patches of the imported modules have to
be applied.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import random
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path

from children import forked, wait

THREADS = 64


def threads(options: argparse.Namespace) -> str:
    """Run the rounds, each in a fresh process, and return the report. Raises Broken."""
    refused, broken = Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory(prefix="dsfix-soak-") as name:
        scratch = Path(name)
        result = scratch / "result"
        wait(forked(lambda: result.write_text(json.dumps(import_alone())), scratch), "an import by one thread")
        modules, wanted, needed = json.loads(result.read_text())
        for number in range(options.rounds):
            for only in ("", needed) if number % 2 else ("",):

                def work(number: int = number, only: str = only) -> None:
                    os.environ["DSFIX_ONLY"] = only
                    seed, whole = options.seed + number, number % 2 == 0
                    result.write_text(json.dumps(import_at_once(modules, {} if only else wanted, seed, whole)))

                wait(forked(work, scratch), f"round {number} of the threads")
                raised, missing = json.loads(result.read_text())
                refused[only] += raised
                broken[only] += bool(missing)
    applied, other = sum(outcome == "applied" for outcome in wanted.values()), options.rounds // 2
    return (
        f"In each of {options.rounds} processes, {THREADS} threads imported DeepSpeed and {len(modules)} of its\n"
        f"modules at the same time; nothing hung. {options.rounds - other} processes began with `import deepspeed`:\n"
        f"nothing was raised, and all {applied} patches were applied. The other {other} began with\n"
        f"submodules: {refused['']:,} imports failed ({refused[needed]:,} with only the patches of severity import),\n"
        "because Python lets a thread see the half-executed module of another rather than deadlock.\n"
        f"In {broken['']} processes ({broken[needed]}), DeepSpeed could not be imported completely afterwards.\n"
        "All patches of the imported modules were applied."
    )


def import_alone() -> tuple[list[str], dict[str, str], str]:
    """The modules that `import deepspeed` imports, the patches' outcomes, and the patches needed for the import."""
    import dsfix  # noqa: F401 isort: skip
    import deepspeed  # noqa: F401

    from dsfix.catalogue.registry import catalogue
    from dsfix.patch import Severity

    modules = sorted(name for name in sys.modules if name.startswith("deepspeed."))
    needed = [entry.id for entry in catalogue().values() if entry.patch.severity is Severity.IMPORT]
    return modules, outcomes(), ",".join(needed)


def import_at_once(modules: list[str], wanted: dict[str, str], seed: int, whole: bool) -> tuple[int, list[str]]:
    """How many imports were refused, and the modules that can no longer be imported.

    Raises the first exception if the `whole` package was imported first, and AssertionError if a patch of imported
    modules has a different outcome than with one thread.
    """
    import dsfix  # noqa: F401
    from dsfix.catalogue.registry import catalogue

    raised: list[Exception] = []
    together = threading.Barrier(THREADS)

    def work(number: int) -> None:
        order = random.Random(seed * THREADS + number).sample(modules, len(modules))
        together.wait()
        for module in ["deepspeed", *order] if whole else order:
            try:
                importlib.import_module(module)
            except Exception as error:
                raised.append(error)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if whole and raised:
        raise raised[0]
    for _ in range(5):  # a failed module may make others fail
        for module in ["deepspeed", *modules]:
            with contextlib.suppress(ImportError, AttributeError, KeyError):
                importlib.import_module(module)
    missing = [module for module in modules if module not in sys.modules]
    found = outcomes()
    wrong = {patch_id: found[patch_id] for patch_id, outcome in wanted.items() if found[patch_id] != outcome}
    waits = [patch_id for patch_id in wrong if not set(missing).isdisjoint(catalogue()[patch_id].patch.modules)]
    assert {*map(wrong.pop, waits)} <= {"pending"}
    assert not wrong
    assert not (whole and missing), missing
    return len(raised), missing


def outcomes() -> dict[str, str]:
    import dsfix

    return {each.id: each.outcome.value for each in dsfix.report()}

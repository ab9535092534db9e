"""64 threads that import DeepSpeed's modules at once.

In every second process they begin with `import deepspeed`, and nothing may be raised. In the others they begin with the
modules below it, each thread in an order of its own. Python itself refuses some of these imports, with or without
dsfix: a thread that imports a.b holds its lock and waits for a, another that executes a waits for a.b. So what is
raised there is counted; one thread imports everything again, and all patches have to be applied then, too.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import random
import sys
import tempfile
import threading
from pathlib import Path

from children import forked, wait

THREADS = 64


def threads(options: argparse.Namespace) -> str:
    """So many rounds, each in a fresh process."""
    refused = 0
    with tempfile.TemporaryDirectory(prefix="dsfix-soak-") as name:
        scratch = Path(name)
        told = scratch / "told"
        wait(forked(lambda: told.write_text(json.dumps(import_alone())), scratch), "an import by one thread")
        modules, wanted = json.loads(told.read_text())
        for number in range(options.rounds):

            def work(number: int = number) -> None:
                told.write_text(str(import_at_once(modules, wanted, options.seed + number, whole=number % 2 == 0)))

            wait(forked(work, scratch), f"round {number} of the threads")
            refused += int(told.read_text())
    applied = sum(outcome == "applied" for outcome in wanted.values())
    return (
        f"{options.rounds} processes in which {THREADS} threads import DeepSpeed and {len(modules)} modules of it at\n"
        f"once: all {applied} patches were applied each time, nothing hung. Nothing was raised where the threads\n"
        f"began with `import deepspeed`; where they began with the modules, Python refused {refused} imports, as\n"
        "it does without dsfix."
    )


def import_alone() -> tuple[list[str], dict[str, str]]:
    """The modules that `import deepspeed` brings; what became of the patches then."""
    import dsfix  # noqa: F401 isort: skip
    import deepspeed  # noqa: F401

    return sorted(name for name in sys.modules if name.startswith("deepspeed.")), outcomes()


def import_at_once(modules: list[str], wanted: dict[str, str], seed: int, whole: bool) -> int:
    """How many imports were refused; raises what they raised where the `whole` package was imported first.

    Raises AssertionError where a patch is not what it is with one thread.
    """
    import dsfix  # noqa: F401

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
    for _ in range(5):  # a module that has failed may leave others in want of it
        for module in ["deepspeed", *modules]:
            with contextlib.suppress(ImportError, AttributeError, KeyError):
                importlib.import_module(module)
    found = outcomes()
    assert found == wanted, {patch_id: found[patch_id] for patch_id in wanted if found[patch_id] != wanted[patch_id]}
    return len(raised)


def outcomes() -> dict[str, str]:
    import dsfix

    return {each.id: each.outcome.value for each in dsfix.report()}

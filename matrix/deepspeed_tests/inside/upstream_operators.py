"""Runs once per release: compiles the operators that tests load, so that tests need not."""

from __future__ import annotations

import importlib

_BUILDERS = ("ShareMemCommBuilder", "CCLCommBuilder", "FusedAdamBuilder", "CPUAdamBuilder")


def load() -> None:
    importlib.import_module("deepspeed")
    accelerator = importlib.import_module("deepspeed.accelerator").get_accelerator()
    for name in _BUILDERS:
        try:
            accelerator.create_op_builder(name).load(verbose=False)
        except Exception as error:  # some releases lack some of them for the CPU
            print(f"{name}: {error}")


if __name__ == "__main__":
    load()

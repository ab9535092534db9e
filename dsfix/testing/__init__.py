"""For pytest: prove a patch, hold it to the contract, and use the (emulated) CUDA device in tests.

``pytest_plugins = ["dsfix.testing"]`` in the conftest.py of the root directory. It is no entry point of pytest: that
would import dsfix, and so patch DeepSpeed, in every run of pytest beside which dsfix is installed.
docs/plugins.md tells of the fixtures `dsfix_lab` and `dsfix_contract`, the mark `dsfix_lab`, and of these functions.
"""

from dsfix.testing.apart import dsfix_lab, pytest_configure, pytest_runtest_protocol
from dsfix.testing.installed import CHECKS, Contract, dsfix_contract
from dsfix.testing.proof import patch_ids, prove

__all__ = [
    "CHECKS",
    "Contract",
    "dsfix_contract",
    "dsfix_lab",
    "patch_ids",
    "prove",
    "pytest_configure",
    "pytest_runtest_protocol",
]

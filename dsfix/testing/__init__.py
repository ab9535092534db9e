"""A pytest plug-in: prove a patch, check it against the contract, and use the (emulated) CUDA device in tests.

Put ``pytest_plugins = ["dsfix.testing"]`` into the conftest.py of the root directory. It is not a pytest entry point,
which would import dsfix, and thus patch DeepSpeed, in every pytest run of an environment with dsfix.
docs/plugins.md documents the fixtures `dsfix_lab` and `dsfix_contract`, the mark `dsfix_lab`, and these functions.
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

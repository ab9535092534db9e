"""A pytest plug-in: prove a patch, and check it against the contract.

Put ``pytest_plugins = ["dsfix.testing"]`` into the conftest.py of the root directory. It is not a pytest entry point,
which would import dsfix, and thus patch DeepSpeed, in every pytest run of an environment with dsfix.
docs/plugins.md documents the fixture `dsfix_contract` and these functions.
"""

from dsfix.testing.installed import CHECKS, Contract, dsfix_contract, patch_ids, prove

__all__ = ["CHECKS", "Contract", "dsfix_contract", "patch_ids", "prove"]

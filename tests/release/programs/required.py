"""Writes the answers of `dsfix.require` after the imports: for the applied patches and for an unknown id."""

import importlib
import json
import sys

if "late" in sys.argv[2:]:
    importlib.import_module("deepspeed")
import dsfix

importlib.import_module("deepspeed")


def said(*ids):
    try:
        dsfix.require(*ids)
    except dsfix.RequirementError as error:
        return str(error)
    return None


applied = [each.id for each in dsfix.report() if each.outcome is dsfix.Outcome.APPLIED]
result = {"error": said(*applied), "unknown": said("zero3"), "patches": len(applied)}
with open(sys.argv[1], "w", encoding="utf-8") as out:
    json.dump(result, out)

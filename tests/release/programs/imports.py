"""Writes the error of `import deepspeed` here, if any.

Arguments: "dsfix": with dsfix imported first, "late": with dsfix imported afterwards, and then the answers of
`dsfix.require` for the applied patches and for an unknown id. "by hand": the script itself has added the names that
numpy and torch lack.
"""

import json
import sys

result = {"error": None, "outcomes": {}}
if "by hand" in sys.argv[2:]:
    import numpy
    from torch.distributed.elastic.agent.server import api

    provided = numpy.BUFSIZE, api.log, api._get_socket_with_port = 8192, api.logger, lambda: None
if "dsfix" in sys.argv[2:]:
    import dsfix
try:
    import deepspeed  # noqa: F401
except ImportError as error:
    result["error"] = str(error)
if "by hand" in sys.argv[2:]:
    result["provided"] = (numpy.BUFSIZE, api.log, api._get_socket_with_port) == provided
if "late" in sys.argv[2:]:
    import dsfix


def required(*ids):
    try:
        dsfix.require(*ids)
    except dsfix.RequirementError as error:
        return str(error)
    return None


if {"dsfix", "late"} & {*sys.argv[2:]}:
    result["outcomes"] = {each.id: each.outcome.value for each in dsfix.report()}
    applied = [patch_id for patch_id, outcome in result["outcomes"].items() if outcome == "applied"]
    result["required"], result["unknown"] = required(*applied), required("zero3")
with open(sys.argv[1], "w", encoding="utf-8") as out:
    json.dump(result, out)

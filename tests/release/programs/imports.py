"""Writes with which error `import deepspeed` ends here, or none; after "dsfix", with dsfix imported first."""

import json
import sys

result = {"error": None, "outcomes": {}}
if sys.argv[2:] == ["dsfix"]:
    import dsfix
try:
    import deepspeed  # noqa: F401
except ImportError as error:
    result["error"] = str(error)
if sys.argv[2:] == ["dsfix"]:
    result["outcomes"] = {each.id: each.outcome.value for each in dsfix.report()}
with open(sys.argv[1], "w", encoding="utf-8") as out:
    json.dump(result, out)

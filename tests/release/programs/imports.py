"""Writes the error of `import deepspeed` here, if any; after "dsfix", with dsfix imported first.

After "by hand", the script itself has added the names that numpy and torch lack.
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
if "dsfix" in sys.argv[2:]:
    result["outcomes"] = {each.id: each.outcome.value for each in dsfix.report()}
with open(sys.argv[1], "w", encoding="utf-8") as out:
    json.dump(result, out)

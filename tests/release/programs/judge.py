"""Writes what dsfix says of every patch before anything is imported and, after "live", once DeepSpeed has been.

Two more arguments say when ("before" or "after" dsfix) and how (comma-separated) another package changes a method.
"""

import importlib
import json
import sys


def provide_what_newer_releases_lack():
    """The names that the import patches provide, where DeepSpeed is to be imported before dsfix."""
    api = importlib.import_module("torch.distributed.elastic.agent.server.api")
    numpy = importlib.import_module("numpy")
    for module, name in ((api, "log"), (api, "_get_socket_with_port"), (numpy, "BUFSIZE")):
        if not hasattr(module, name):
            setattr(module, name, None)


def take_over(how):
    stage3 = importlib.import_module("deepspeed.runtime.zero.stage3")
    importlib.import_module("another_package").take_over(stage3.DeepSpeedZeroOptimizer_Stage3, how)


mode, when, how = (*sys.argv[2:], "", "")[:3]
if when == "before":
    provide_what_newer_releases_lack()
    take_over(how)
before = sorted({"torch", "deepspeed"} & sys.modules.keys())
import dsfix  # noqa: E402
from dsfix import survey  # noqa: E402
from dsfix.catalogue import registry  # noqa: E402
from dsfix.settings import Settings  # noqa: E402


def reported():
    return {each.id: [each.outcome.value, each.reason] for each in dsfix.report()}


verdicts = {entry.id: survey.decide(entry, Settings()) for entry in registry.catalogue().values()}
result = {"static": {name: [verdict.outcome.value, verdict.reason] for name, verdict in verdicts.items()}}
result["imported"] = sorted(({"torch", "deepspeed"} & sys.modules.keys()) - set(before))
if mode == "live":
    importlib.import_module("deepspeed.runtime.zero.stage3")
    result["live"] = reported()
    if when == "after":
        result["later"] = []
        for each in how.split(","):
            take_over(each)
            result["later"].append(reported())
with open(sys.argv[1], "w", encoding="utf-8") as out:
    json.dump(result, out)

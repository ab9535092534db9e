"""Trains plans one after the other on one rank in this process and writes their verdicts. grid.py PLANS RESULTS"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

from dsfix.audit import rank
from dsfix.audit.plan import Plan
from dsfix.audit.seen import Seen
from dsfix.lab.session import Lab

with Lab("cuda") as lab:
    assert lab.deepspeed
    from dsfix.audit.assemble import verdict_of

    rank.provide_kernels(lab)
    verdicts = {}
    for label, text in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")).items():
        plan, seen = Plan.load(text), Seen()
        rank.train(plan, lab, seen)
        rank.describe(lab, seen)
        verdicts[label] = dataclasses.asdict(verdict_of(plan, [seen]))
Path(sys.argv[2]).write_text(json.dumps(verdicts), encoding="utf-8")

"""``pull_requests.py [ID]...``: prints, as JSON, what there is for the DeepSpeed that PYTHONPATH has.

Without ids: for each patch whose bug it has, or may have if the patch is off by default.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
import matrix  # noqa: F401 isort: skip  takes the checkout, whose dsfix/ has no patches, off sys.path again

from dsfix import survey
from dsfix.catalogue.registry import catalogue
from dsfix.outcome import Outcome
from matrix.pull_requests.pull_request import PullRequest, pull_request

found = {}
for entry in survey.named(sys.argv[1:]) or catalogue().values():
    verdict = survey.if_asked_for(entry)
    if verdict.outcome is Outcome.PENDING:
        found[entry.id] = pull_request(entry)._asdict()
    elif sys.argv[1:]:
        why = f"{entry.id} does not apply here: {verdict.outcome.value}: {verdict.reason}"
        found[entry.id] = PullRequest("", "", (why,))._asdict()
print(json.dumps(found))

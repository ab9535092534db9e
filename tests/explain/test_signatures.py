"""Every signature is valid, and is recognised in its `matches` but not in `near`."""

import re
from collections import Counter
from dataclasses import fields

import pytest
from packaging.specifiers import SpecifierSet

from dsfix.catalogue import registry
from dsfix.explain import signature
from dsfix.explain.literals import required, trigger
from dsfix.explain.signature import Role, Signature, tomllib

CATALOGUE = registry.catalogue()
TABLES = {file.name: tomllib.loads(file.read_text("utf-8")) for file in sorted(signature.FAMILIES.glob("*.toml"))}
FIELDS = {field.name for field in fields(Signature)} - {"id"}
UNKNOWN = {name: set(each) - FIELDS for table in TABLES.values() for name, each in table.items() if set(each) - FIELDS}
LOADED = signature.load() if not UNKNOWN else ()
# lines that jobs without a problem print: a string in them makes reading slow
USUAL = """\
[rank3]: [2026-11-21 10:01:02,123] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=0, lr=[1e-05], mom=[(0.9, 0.999)]
[2026-11-21 10:01:02,123] [INFO] [timer.py:264:stop] epoch=0/micro_step=10/global_step=10, RunningAvgSamplesPerSec=9.1
{'loss': 1.25, 'grad_norm': 0.54321, 'learning_rate': 1e-05, 'epoch': 0.01}
{'loss': '1.25', 'grad_norm': '0.54', 'reward': '1.0', 'rewards/accuracy': '0.5', 'kl': '0.0', 'epoch': '0.01'}
 iteration 10/ 1000 | consumed samples: 80 | lm loss: 1.25E+00 | loss scale: 1.0 | grad norm: 0.5 | learning rate: 1E-05
 42%|####2     | 420/1000 [00:12<01:23,  1.23s/it]
"""  # noqa: E501


def test_fields_are_known():
    assert not UNKNOWN


def test_ids_are_unique():
    count = Counter([name for table in TABLES.values() for name in table] + list(CATALOGUE))
    assert [name for name, times in count.items() if times > 1] == []
    assert [name for table in TABLES.values() for name in table if not re.fullmatch(r"[a-z][a-z0-9_]*", name)] == []


@pytest.mark.parametrize("found", LOADED, ids=lambda found: found.id)
def test_it_is_valid(found):
    assert found.title
    assert found.remedy[:1].isupper()
    assert not found.title.endswith(".")
    assert all(each.endswith((".", ".)")) for each in (found.what, found.remedy) if each)
    assert found.role in Role
    assert set(found.patches) <= set(CATALOGUE)
    assert all(SpecifierSet(affect) for affect in found.affects.values())
    assert not found.pattern_of or (found.pattern and found.pattern_of in found.patches)
    assert all(re.fullmatch(r"https://\S+", link) for link in found.evidence)
    if found.pattern:
        literals = trigger(required(found.pattern))
        assert min(len(literal.encode()) for literal in literals) >= 8
        assert not [literal for literal in literals if re.sub(r"\d", "", literal) in re.sub(r"\d", "", USUAL)]
        assert found.matches
    else:
        assert any(CATALOGUE[patch].patch.symptom for patch in found.patches)


@pytest.mark.parametrize("found", LOADED, ids=lambda found: found.id)
def test_it_is_recognised_in_matches_and_not_in_near_misses(found, recognised):
    assert [text for text in found.matches if found.id not in recognised(text)] == []
    assert [text for text in found.near if found.id in recognised(text)] == []

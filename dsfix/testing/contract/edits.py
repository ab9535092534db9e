"""``python edits.py ID...``: module -> text with the edits of these patches, for `dsfix diff` and as the engine has it.

`dsfix diff` omits effect reports. Runs with the DeepSpeed to edit on PYTHONPATH; prints JSON.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator

from dsfix.catalogue.registry import catalogue
from dsfix.cli.printing.edits import edited
from dsfix.engine import verdict
from dsfix.patch import Edit


def main() -> None:
    changes = [(each, change) for each in sorted(sys.argv[1:]) for change in catalogue()[each].patch.changes]
    edits = [(each, change) for each, change in changes if isinstance(change, Edit)]
    written = [(edit, edit.code_with_imports) for _, edit in edits]
    effects = [pair for each in edits for pair in _with_effect_code(*each)]
    modules = dict.fromkeys(edit.module for _, edit in edits)
    print(json.dumps({name: [_text(name, written), _text(name, effects)] for name in modules}))


def _text(module: str, pairs: list[tuple[Edit, str]]) -> str:
    return edited(pair for pair in pairs if pair[0].module == module)[2]


def _with_effect_code(patch_id: str, edit: Edit) -> Iterator[tuple[Edit, str]]:
    """The edit with its code; for an expression, also the effect report before the statement that contains it."""
    block, places = verdict.places(edit)
    telling, nodes = edit.effect_code(patch_id), {id(place[0]) for place in places if isinstance(place[0], ast.expr)}
    yield edit, edit.code_with_imports if nodes else telling + edit.code_with_imports
    if telling and nodes:
        statements = [node for node in ast.walk(block.tree()) if isinstance(node, ast.stmt)]
        around = [statement for statement in statements if _holds(statement, nodes)]
        texts = list(map(ast.unparse, around))
        for text in dict.fromkeys(texts):
            yield Edit(edit.target, before=text, code=telling, count=texts.count(text)), telling


def _holds(statement: ast.stmt, nodes: set[int]) -> bool:
    """Whether one of the expressions is in the statement and in none inside it."""
    waiting, present = list(ast.iter_child_nodes(statement)), False
    for node in waiting:
        present = present or id(node) in nodes
        waiting += [] if isinstance(node, ast.stmt) else ast.iter_child_nodes(node)
    return present


if __name__ == "__main__":
    main()

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
    written = [(edit, edit.written) for _, edit in edits]
    told = [pair for each in edits for pair in _told(*each)]
    modules = dict.fromkeys(edit.module for _, edit in edits)
    print(json.dumps({name: [_text(name, written), _text(name, told)] for name in modules}))


def _text(module: str, pairs: list[tuple[Edit, str]]) -> str:
    return edited(each for each in pairs if each[0].module == module)[2]


def _told(patch_id: str, edit: Edit) -> Iterator[tuple[Edit, str]]:
    """The edit with its code; for an expression, also the effect report before the statement that contains it."""
    block, places = verdict.places(edit)
    telling, nodes = edit.telling(patch_id), {id(place[0]) for place in places if isinstance(place[0], ast.expr)}
    yield edit, edit.written if nodes else telling + edit.written
    if telling and nodes:
        statements = [each for each in ast.walk(block.tree()) if isinstance(each, ast.stmt)]
        around = [each for each in statements if _holds(each, nodes)]
        texts = list(map(ast.unparse, around))
        for text in dict.fromkeys(texts):
            yield Edit(edit.target, before=text, code=telling, count=texts.count(text)), telling


def _holds(statement: ast.stmt, nodes: set[int]) -> bool:
    """Whether one of the expressions is in the statement and in none inside it."""
    waiting, found = list(ast.iter_child_nodes(statement)), False
    for node in waiting:
        found = found or id(node) in nodes
        waiting += [] if isinstance(node, ast.stmt) else ast.iter_child_nodes(node)
    return found


if __name__ == "__main__":
    main()

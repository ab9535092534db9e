"""The modules of dsfix import each other in one direction; imports in functions and for types count."""

import ast
import functools
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "dsfix"

# part -> the parts below it that it may import; `patch` is the vocabulary, with what every part may import
VOCABULARY = ("patch", "outcome", "job", "rules", "log", "versions", "settings", "catalogue")
BELOW = {
    "patch": set(),
    "engine": {"patch"},
    "process": {"patch", "engine"},
    "survey": {"patch", "engine"},
    "known_bugs": {"patch"},
    "doctor": {"patch", "engine", "survey"},
    "check": {"patch", "engine", "survey", "doctor"},
    "explain": {"patch", "engine", "survey", "known_bugs"},
    "lab": {"patch", "engine"},
    "audit": {"patch", "engine", "check", "lab"},
    "guards": {"patch", "engine", "process", "check"},
    "start": {"patch", "engine"},
    "cli": {
        *("patch", "engine", "survey", "known_bugs", "doctor", "check", "explain"),
        *("lab", "audit", "guards", "start"),
    },
    "testing": {"patch", "engine", "survey", "lab", "cli"},
    "dsfix": {"patch", "engine", "process", "check", "guards"},
    "__main__": {"cli"},
}


def _modules():
    """Name -> file of every module of dsfix, without the patches."""
    results = {}
    for path in PACKAGE.rglob("*.py"):
        parts = ("dsfix", *path.relative_to(PACKAGE).with_suffix("").parts)
        if parts[1] != "patches":
            results[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return results


def _graph():
    """Module -> the modules of dsfix that it imports, anywhere in the file."""
    modules = _modules()
    graph = {}
    for name, path in modules.items():
        package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
        named = set()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                named |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                outer = package[: len(package) - node.level + 1] if node.level else []
                base = ".".join([*outer, *([node.module] if node.module else [])])
                named |= {f"{base}.{alias.name}" for alias in node.names}
        graph[name] = {module for each in named if (module := _longest(each, modules))} - {name, "dsfix"}
    return graph


def _longest(name, modules):
    """The module that the dotted name is, or that contains it."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name


def _part(module):
    names = module.split(".")
    if len(names) == 1:
        return "dsfix"
    return "patch" if names[1] in VOCABULARY else names[1]


def test_no_import_cycle_between_modules():
    try:
        TopologicalSorter(_graph()).prepare()
    except CycleError as error:
        circle = " imports ".join(reversed(error.args[1]))
        raise AssertionError(circle) from None


def test_parts_import_only_lower_parts():
    wrong = {
        f"{name} imports {each}"
        for name, imported in _graph().items()
        for each in imported
        if _part(each) not in {_part(name), *BELOW[_part(name)]}
    }
    assert sorted(wrong) == []


def test_no_import_cycle_between_parts():
    TopologicalSorter(BELOW).prepare()


def test_what_tests_import_from_dsfix_exists():
    """Also in tests that need torch, which most environments do not collect."""
    modules, missing = _modules(), []
    for path in Path(__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            module = getattr(node, "module", None) or ""
            if module.partition(".")[0] == "dsfix" and not module.startswith("dsfix.patches"):
                names = {each.name for each in node.names if f"{module}.{each.name}" not in modules}
                missing += [f"{path.name}: {module}.{name}" for name in names - _defined(modules.get(module))]
    assert missing == []


@functools.cache
def _defined(path):
    """The names that are bound anywhere in the file."""
    nodes = list(ast.walk(ast.parse(path.read_text("utf-8")))) if path else []
    bound = {getattr(node, "name", None) for node in nodes} | {getattr(node, "asname", None) for node in nodes}
    return bound | {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}

"""The documents tell of every patch, and every patch tells its story."""

import ast
import inspect
import re
from pathlib import Path

import pytest

from dsfix.engine import registry
from dsfix.patch import Severity

CHECKOUT = Path(__file__).resolve().parents[1]
ENTRIES = registry.catalogue()
SECTION = re.compile(r"^(Why|How|Changes|Upstream|Retire): (.*(?:\n(?!\w+: ).*)*)", re.M)

# what the interpreter or dsfix itself has loaded, and small modules
CHEAP = {
    *("__future__", "collections.abc", "contextlib", "copy", "datetime", "dsfix.patch", "functools", "gc"),
    *(
        "importlib.util",
        "itertools",
        "logging",
        "os",
        "pickle",
        "re",
        "shutil",
        "sys",
        "threading",
        "traceback",
        "typing",
    ),
}

each_patch = pytest.mark.parametrize("patch_id", ENTRIES)


def _page(name):
    return (CHECKOUT / name).read_text(encoding="utf-8")


def _sections(patch_id):
    return {name: " ".join(text.split()) for name, text in SECTION.findall(ENTRIES[patch_id].docstring)}


def test_no_patch_is_broken():
    assert registry.load()[1] == ()


@each_patch
def test_the_changelog_names_every_patch(patch_id):
    assert re.search(rf"^- `{patch_id}`: \S", _page("CHANGELOG.md"), re.M), (
        f"CHANGELOG.md has no line - `{patch_id}`: …"
    )


@each_patch
def test_the_catalogue_has_a_section_for_every_patch(patch_id):
    assert re.search(rf"^#+ `?{patch_id}`?$", _page("docs/catalogue.md"), re.M)


@each_patch
def test_a_patch_tells_its_story(patch_id):
    sections = _sections(patch_id)
    assert [name for name in sections if name != "Changes"] == ["Why", "How", "Upstream", "Retire"]
    assert all(sections.values()), f"nothing under {[name for name, text in sections.items() if not text]}"


@each_patch
def test_a_patch_that_changes_numbers_says_so(patch_id):
    if ENTRIES[patch_id].patch.severity is Severity.WRONG_RESULT:
        sections = _sections(patch_id)
        assert list(sections) == ["Why", "How", "Changes", "Upstream", "Retire"]
        assert re.search(r"checkpoint|resum", sections["Changes"]), "nothing on resuming from a checkpoint"


@each_patch
def test_retire_can_be_checked(patch_id):
    retire = _sections(patch_id)["Retire"]
    version = r"\d+\.\d+(\.\d+)?"
    condition = rf"DeepSpeed {version}|(torch|numpy|Python|transformers|pydantic) {version}|https://github\.com/\S+"
    assert re.search(condition, retire), f"no release and no link tells when: {retire!r}"


@each_patch
def test_loading_a_patch_is_cheap(patch_id):
    """`import dsfix` loads them all: beyond what it needs itself, a patch imports where it runs."""
    modules = set()
    for node in ast.parse(inspect.getsource(ENTRIES[patch_id].module)).body:
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules.add(node.module)
    assert modules - CHEAP == set()


@each_patch
def test_the_device_is_there_before_a_reproduction_imports_torch(patch_id):
    """The emulated CUDA device is loaded before torch, by the lab: else `verify` cannot tell."""
    body = inspect.getsource(ENTRIES[patch_id].module.reproduce).partition("\n")[2]
    first = re.search(r"import torch|dsfix\.lab\.(models|reference|half|outputs|pipeline|empty_parameter)", body)
    if first is not None:
        assert re.search(r"lab\.(torch|deepspeed|initialize|device)\b|\(lab\b", body[: first.start()])


@each_patch
def test_upstream_is_linked(patch_id):
    patch = ENTRIES[patch_id].patch
    assert patch.upstream
    for link in patch.upstream:
        assert re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+/(issues/\d+|pull/\d+|commit/[0-9a-f]{7,40})", link), (
            link
        )


@each_patch
def test_title_and_symptom_are_usable(patch_id):
    patch = ENTRIES[patch_id].patch
    assert patch.title == patch.title.strip() != ""
    assert "\n" not in patch.title
    if patch.symptom:
        assert not re.search(patch.symptom, ""), "the symptom is found in every log"
    else:
        silent = (Severity.WRONG_RESULT, Severity.LEAK, Severity.USABILITY)
        assert patch.severity in silent, f"a bug of severity {patch.severity.value} shows in a log"


@each_patch
def test_a_patch_has_a_reproduction_that_says_what_it_saw(patch_id):
    (reproduce,) = (
        node
        for node in ast.parse(inspect.getsource(ENTRIES[patch_id].module)).body
        if isinstance(node, ast.FunctionDef) and node.name == "reproduce"
    )
    assert [each.arg for each in reproduce.args.args] == ["lab"]
    assert reproduce.returns is not None
    assert ast.unparse(reproduce.returns) == "str"
    assert any(isinstance(node, ast.Return) and node.value is not None for node in ast.walk(reproduce))

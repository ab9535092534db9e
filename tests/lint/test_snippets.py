"""Linters do not move `import dsfix` in the documentation's snippets, the examples and the demonstration."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("isort")
CHECKOUT = Path(__file__).resolve().parents[2]
TOOLS = {
    "ruff's default rules": ("ruff", "check", "--isolated", "--fix", "--exit-zero"),
    "ruff's import rules": ("ruff", "check", "--isolated", "--fix", "--exit-zero", "--select=F,I,RUF100"),
    "isort": ("isort",),
    "isort, as black": ("isort", "--profile=black"),
    "isort, sorted by name alone": ("isort", "--force-sort-within-sections"),
}
LINE = re.compile(r"^ *import dsfix\b.*\n", re.MULTILINE)


def scripts():
    """Name -> text of what users copy that imports dsfix."""
    for page in (CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").glob("*.md"))):
        blocks = re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
        yield from ((f"{page.name} {number}", block) for number, block in enumerate(blocks))
    for file in (*sorted(CHECKOUT.glob("examples/*.py")), *sorted(CHECKOUT.glob("docs/plugin-example/**/*.py"))):
        yield file.name, file.read_text("utf-8")
    [first] = re.findall(r'\["(import dsfix.*)\\n"', (CHECKOUT / "demo" / "run.py").read_text("utf-8"))
    yield "demo", f"{first}\n{(CHECKOUT / 'demo' / 'train.py').read_text('utf-8')}"


SCRIPTS = {name: text for name, text in scripts() if LINE.search(text)}


def fixed(text, tool, directory):
    file = directory / "train.py"
    file.write_text(text, encoding="utf-8")
    subprocess.run([sys.executable, "-m", *tool, file.name], cwd=directory, check=True, capture_output=True)
    return file.read_text("utf-8")


def is_first(text):
    """Whether the first import, apart from __future__, is that of dsfix."""
    imports = re.findall(r"^(?:import|from) (?!__future__)(\S+)", text, re.MULTILINE)
    return imports[:1] == ["dsfix"]


@pytest.mark.parametrize("tool", TOOLS.values(), ids=TOOLS)
@pytest.mark.parametrize("text", SCRIPTS.values(), ids=SCRIPTS)
def test_the_import_stays_first(text, tool, tmp_path):
    after = fixed(text, tool, tmp_path)
    assert is_first(after) == is_first(text)
    assert len(LINE.findall(after)) == len(LINE.findall(text))


@pytest.mark.parametrize("tool", TOOLS.values(), ids=TOOLS)
def test_without_the_comment_it_moves(tool, tmp_path):
    bare = "import dsfix\n\nimport deepspeed\nimport torch\n\nprint(deepspeed, torch)\n"
    assert not is_first(fixed(bare, tool, tmp_path))


def test_the_places_that_show_it():
    names = {name.partition(" ")[0] for name in SCRIPTS}
    assert names >= {"README.md", "frameworks.md", "demo", "accelerate_loop.py", "trainer.py", "trl_lora.py"}

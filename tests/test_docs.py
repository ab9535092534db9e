"""Every patch is documented, and the pages agree with the code. Each test lists its offenders."""

import ast
import importlib
import inspect
import pkgutil
import re
from collections import Counter
from pathlib import Path

import dsfix.cli
from dsfix import rules
from dsfix.catalogue import registry
from dsfix.explain import signature as signatures
from dsfix.known_bugs import coverage
from dsfix.known_bugs import table as known_bugs
from dsfix.outcome import Outcome
from dsfix.patch import Severity
from matrix import table

CHECKOUT = Path(__file__).resolve().parents[1]
ENTRIES = registry.catalogue()
PATCHES = {patch_id: entry.patch for patch_id, entry in ENTRIES.items()}
# next to the tools that they describe
READMES = sorted(
    str(path.relative_to(CHECKOUT)) for part in ("dsfix", "matrix") for path in (CHECKOUT / part).rglob("README.md")
)
WRITTEN = (
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", *READMES),
    *(f"docs/{path.name}" for path in sorted((CHECKOUT / "docs").glob("*.md"))),
)
BY_HAND = (
    *("README.md", "CONTRIBUTING.md", "docs/audit.md", "docs/commands.md", "docs/design.md"),
    *("docs/emulated-device.md", "docs/frameworks.md"),
    *("docs/guards.md", "docs/launchers.md", "docs/outcomes.md", "docs/plugins.md", "docs/reporting.md"),
)
FOLDERS = ("bench", "demo", "docs", "dsfix", "examples", "matrix", "patches", "tests")
SECTION = re.compile(r"^(Why|How|Changes|Workaround): (.*(?:\n(?!\w+: ).*)*)", re.M)
LINES = {"Why": 6, "How": 4, "Changes": 3, "Workaround": 5}
LINK = re.compile(r"https://github\.com/[\w.-]+/[\w.-]+/(issues/\d+|pull/\d+|commit/[0-9a-f]{7,40})")
# translated, not English: each has a plainer form
SILENT = (Severity.WRONG_RESULT, Severity.LEAK, Severity.USABILITY)

# what the interpreter or dsfix itself has loaded, and small modules
CHEAP = {
    *("__future__", "collections", "collections.abc", "contextlib", "copy", "dataclasses", "datetime", "dsfix.patch"),
    *("dsfix.process.effects", "functools"),
    *("gc", "importlib.util", "inspect", "itertools", "logging", "math", "os", "packaging.version", "pickle", "re"),
    *("shutil", "sys", "threading", "traceback", "types", "typing", "weakref"),
    *(".._shared", ".._warn_once", "._accumulation_dtype", "._passes", "._tied", "._tiled", "._torch_load"),
    *("._tiled_loss", "._used_tokens"),
}
SHARED_WITH_TORCH = [
    path.stem
    for path in (CHECKOUT / "patches").rglob("_*.py")
    if "\nimport torch\n" in path.read_text(encoding="utf-8")
]
LAB_WITH_TORCH = rf"import torch|dsfix\.lab\.(models|reference|kernels)|from \..*\b({'|'.join(SHARED_WITH_TORCH)})\b"


def _page(name):
    return (CHECKOUT / name).read_text(encoding="utf-8")


def _sections(patch_id):
    return {
        name: " ".join(text.split()) for name, text in SECTION.findall(inspect.cleandoc(ENTRIES[patch_id].docstring))
    }


def test_no_patch_is_broken():
    assert registry.load()[1] == ()


def test_a_page_names_every_patch():
    text = _page("docs/patches.md")
    assert [each for each in ENTRIES if f"\n| `{each}` |" not in text] == []


def test_a_docstring_has_why_how_changes_and_workaround():
    """Links are in `upstream`, and `fixed_in` says when a patch can be deleted: the docstring repeats neither."""
    offenders = {}
    for each, patch in PATCHES.items():
        result = [name for name, text in _sections(each).items() if text]
        wrong = patch.severity is Severity.WRONG_RESULT
        # Changes: also of a crash whose fix changes numbers
        if result != ["Why", "How", "Changes", "Workaround"] and (wrong or result != ["Why", "How", "Workaround"]):
            offenders[each] = result
    assert offenders == {}


def test_sections_of_a_docstring_are_short():
    results = {each: SECTION.findall(inspect.cleandoc(entry.docstring)) for each, entry in ENTRIES.items()}
    offenders = [
        (each, name) for each, sections in results.items() for name, text in sections if text.count("\n") >= LINES[name]
    ]
    assert offenders == []


def test_changes_says_what_resuming_from_a_checkpoint_does():
    wrong = [each for each, patch in PATCHES.items() if patch.severity is Severity.WRONG_RESULT]
    assert [each for each in wrong if not re.search(r"checkpoint|resum", _sections(each).get("Changes", ""))] == []


def test_fixed_in_ends_the_range():
    """The release in `fixed_in` is not affected; without it the newest release is, or a second patch continues."""
    newest = table.load().releases[-1].deepspeed
    offenders = []
    for patch_id, patch in PATCHES.items():
        if patch.fixed_in is not None:
            ends = not patch.claims(patch.fixed_in)
        else:
            ends = patch.continued_by in PATCHES or patch.claims(newest)
        if not ends:
            offenders.append(patch_id)
    assert offenders == []


def test_an_id_with_a_release_says_where_its_range_begins_or_ends():
    """A bug in code that has changed has two patches: `_before_X`, `_from_X` or `_in_X` distinguishes them."""
    offenders = []
    for patch_id, patch in PATCHES.items():
        if re.search(r"_0_?\d", patch_id):
            match = re.search(r"_(before|from|in)_(0_\d+_\d+)$", patch_id)
            edge = match and {"before": "<", "from": ">=", "in": ">="}[match[1]] + match[2].replace("_", ".")
            if edge not in patch.affects["deepspeed"].split(","):
                offenders.append(patch_id)
    assert offenders == []


def test_each_folder_of_patches_is_an_area():
    folders = Counter(entry.area for entry in ENTRIES.values())
    assert {name: count for name, count in folders.items() if not 4 <= count <= 45} == {}
    assert sorted(folders) == re.findall(r"^    dsfix\.patches\.(\w+)$", _page("setup.cfg"), re.M)
    assert {coverage.area(entry) for entry in ENTRIES.values()} <= {*known_bugs.AREAS}


def test_loading_a_patch_is_cheap():
    """dsfix loads each patch that may apply: beyond what dsfix needs itself, a patch imports inside its functions."""
    offenders = {}
    for path in (CHECKOUT / "patches").rglob("*.py"):
        if path.stem.startswith("_") and not CHEAP & {f".{path.stem}", f"..{path.stem}"}:
            continue  # only reproductions import it
        modules = set()
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Import):
                modules |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                modules.add("." * node.level + node.module)
        if modules - CHEAP:
            offenders[path.stem] = modules - CHEAP
    assert offenders == {}


def test_a_reproduction_uses_the_lab_before_it_imports_torch():
    """The lab loads the emulated CUDA device, which must happen before torch is imported: else `verify` cannot tell."""
    offenders = []
    for patch_id, entry in ENTRIES.items():
        body = inspect.getsource(entry.module.reproduce).partition("\n")[2]
        first = re.search(LAB_WITH_TORCH, body)
        if first and not re.search(
            r"lab\.(torch|deepspeed|initialize|device|late_streams|models|reference)\b|\(lab\b", body[: first.start()]
        ):
            offenders.append(patch_id)
    assert offenders == []


def test_upstream_links_are_github_links_that_say_what_they_did():
    # the changes that introduced them were not found either
    unreported = ["autocast_fp16_overflow_keeps_scale", "scalar_parameter_broadcast"]
    assert [each for each, patch in PATCHES.items() if not patch.upstream] == unreported
    bad = {
        each: {link: role for link, role in dict(patch.upstream).items() if not (LINK.fullmatch(link) and role.strip())}
        for each, patch in PATCHES.items()
    }
    assert {each: links for each, links in bad.items() if links} == {}


def test_titles_are_one_line():
    titles = {each: patch.title for each, patch in PATCHES.items()}
    assert {
        each: title for each, title in titles.items() if title != title.strip(" .") or not title or "\n" in title
    } == {}


def test_a_symptom_is_specific_and_only_silent_bugs_lack_one():
    assert [each for each, patch in PATCHES.items() if patch.symptom and re.search(patch.symptom, "")] == []
    assert [each for each, patch in PATCHES.items() if not patch.symptom and patch.severity not in SILENT] == []


def test_a_reproduction_returns_what_it_saw():
    offenders = []
    for patch_id in ENTRIES:
        (reproduce,) = (
            node
            for node in ast.parse(inspect.getsource(ENTRIES[patch_id].module)).body
            if isinstance(node, ast.FunctionDef) and node.name == "reproduce"
        )
        takes_lab = [each.arg for each in reproduce.args.args] == ["lab"]
        says_str = reproduce.returns is not None and ast.unparse(reproduce.returns) == "str"
        if not (takes_lab and says_str and any(isinstance(n, ast.Return) and n.value for n in ast.walk(reproduce))):
            offenders.append(patch_id)
    assert offenders == []


def test_the_table_of_known_bugs_names_what_exists():
    names = {
        "patch": set(PATCHES),
        "explain": {each.id for each in signatures.load()},
        "check": {each.id for each in rules.load("dsfix.check.rules")},
        "doctor": {each.id for each in rules.load("dsfix.doctor.rules")},
    }
    unknown = {row.key: dict(row.states) for row in known_bugs.load().rows}
    unknown = {
        key: {kind: name for kind, name in states.items() if kind in names and name not in names[kind]}
        for key, states in unknown.items()
    }
    assert {key: states for key, states in unknown.items() if states} == {}


def _contradictions(bugs, releases):
    """Patches that claim releases which none of their rows covers."""
    rows = {}
    for bug in bugs:
        for cover in bug.covers:
            rows.setdefault(cover.id, (cover, []))[1].append(bug.row)
    return [
        (name, str(release))
        for name, (cover, own) in rows.items()
        for release in releases
        if cover.claims(release) and not any(row.has(release) for row in own)
    ]


def test_the_table_of_known_bugs_agrees_with_the_patches_ranges():
    """A patch's range is proven and wins; the rest of a row's range has its own hand-written state."""
    known = known_bugs.load()
    bugs = coverage.bugs(known, ENTRIES)
    assert _contradictions(bugs, known.releases) == []
    in_part = {
        bug.row.key: [str(release) for release in known.releases if bug.row.has(release) and not bug.on(release).by]
        for bug in bugs
        if bug.covers and not bug.row.states
    }
    assert {key: left for key, left in in_part.items() if left} == {}


def test_rows_of_known_bugs_name_known_releases_and_are_readable():
    known = known_bugs.load()
    assert [str(release) for release in known.releases] == [release.deepspeed for release in table.load().releases]
    keys = [row.key for row in known.rows]
    assert sorted({key for key in keys if keys.count(key) > 1}) == []
    newest = known.releases[-1]
    offenders = [
        row.key
        for row in known.rows
        if row.first not in known.releases
        or (row.last is not None and not (row.first <= row.last < newest and row.last in known.releases))
        or not 10 < len(row.bug) <= 170
        or row.bug.strip(" .?") != row.bug
    ]
    assert offenders == []


def test_commands_and_variables_are_documented():
    page = _page("docs/commands.md")
    modules = (importlib.import_module(f"dsfix.cli.{each.name}") for each in pkgutil.iter_modules(dsfix.cli.__path__))
    commands = [module.NAME for module in modules if hasattr(module, "NAME")]
    assert len(commands) > 10
    assert [command for command in commands if not re.search(rf"`{command}\b", page)] == []
    package = Path(dsfix.cli.__file__).parents[1]
    files = [package / "settings.py", *(package / "engine").glob("*.py")]
    variables = {each for path in files for each in re.findall(r"\bDSFIX_[A-Z_]*[A-Z]\b", path.read_text("utf-8"))}
    assert [variable for variable in sorted(variables) if f"`{variable}" not in page] == []


def test_outcomes_are_documented():
    page = _page("docs/outcomes.md")
    assert [each.value for each in Outcome if f"| `{each.value}` |" not in page] == []


def test_links_between_pages_lead_somewhere():
    offenders = []
    for name in WRITTEN:
        for target in re.findall(r"\]\((?!https?:)([^)\s]*)\)", re.sub(r"`[^`\n]*`", "", _page(name))):
            path, _, anchor = target.partition("#")
            page = (CHECKOUT / name).parent / path if path else CHECKOUT / name
            if not page.exists() or (anchor and anchor not in _anchors(page)):
                offenders.append(f"{name}: {target}")
    assert offenders == []


def test_paths_on_pages_written_by_hand_exist():
    offenders = []
    for name in BY_HAND:
        words = " ".join(re.findall(r"`([^`\n]*)`", _page(name)))
        for path in re.findall(rf"(?<!\S)(?:{'|'.join(FOLDERS)})/[\w./-]*(?!\S)", words):
            if not any((base / path).exists() for base in (CHECKOUT, CHECKOUT / "docs")):
                offenders.append(f"{name}: {path}")
    assert offenders == []


def test_the_layout_table_is_the_tree():
    section = _page("CONTRIBUTING.md").partition("## Where things are")[2].partition("\n## ")[0]
    named = {
        CHECKOUT / name for row in re.findall(r"^\| (.*?`) \|", section, re.M) for name in re.findall(r"`([^`]*)`", row)
    }
    assert [str(path) for path in sorted(named) if not path.is_dir()] == []
    folders = {each for root in (CHECKOUT, CHECKOUT / "dsfix") for each in root.iterdir() if any(each.rglob("*.py"))}
    unnamed = {folder.name for folder in folders - named if not folder.name.startswith((".", "build"))}
    assert unnamed <= {"dsfix", "tests"}


def test_every_page_is_linked_from_the_readme_or_a_page_it_links():
    linked = {target for name in WRITTEN for target in re.findall(r"\]\((?:docs/)?([\w-]+\.md)", _page(name))}
    assert [name for name in WRITTEN if name.startswith("docs/") and name[5:] not in linked] == []


def _anchors(page):
    headings = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}

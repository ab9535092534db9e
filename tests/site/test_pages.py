"""How the pages look to people, and to programs that read them out."""

import pytest
from axe_playwright_python.sync_playwright import Axe

from dsfix.catalogue import registry
from matrix.site import command, known

KINDS = (
    *("bugs/zero3_offload_clip_device.html", "bugs/zero2_accumulation_drops_microbatches.html", "bugs/pull-7257.html"),
    *("messages/cuda_home_missing.html", "bugs/without-patch.html", "docs/patches.html", "docs/commands.html"),
    *("README.html", "CONTRIBUTING.html"),
)
# the theme lets the text scroll on its own
FITS = (
    "[document.documentElement, document.querySelector('.content')].every(each => each.scrollWidth <= each.clientWidth)"
)


@pytest.mark.parametrize("name", KINDS)
def test_no_page_scrolls_sideways(open_page, name):
    page = open_page(name)
    assert page.evaluate(FITS), name


@pytest.mark.parametrize("name", ["index.html", "docs/commands.html", *KINDS[:1], *KINDS[3:4]])
def test_contrast_and_labels(open_page, page, shown, name):
    open_page(name, "query=gradient+norm" * (name == "index.html"))
    if name == "index.html":
        shown()
        assert page.evaluate(FITS)
    assert _violations(page) == []
    page.emulate_media(color_scheme="dark")
    assert _violations(page, runOnly=["color-contrast"]) == []


def _violations(page, **options):
    """What axe finds; it loads nothing, as no script may read a file. Some tables have no head in Markdown."""
    options = {"preload": False, "rules": {"empty-table-header": {"enabled": False}}, **options}
    results = Axe().run(page, options=options).response["violations"]
    return [(each["id"], [node["html"] for node in each["nodes"]][:3]) for each in results]


@pytest.mark.parametrize(
    ("bug", "asked", "answer"),
    [
        ("zero3_offload_clip_device", "", ""),
        ("zero3_offload_clip_device", "deepspeed=0.14.2", "Yes: DeepSpeed 0.14.2 has this bug."),
        ("zero3_offload_clip_device", "deepspeed=0.14.3", "No: DeepSpeed 0.14.3 does not have this bug."),
        ("torch_elastic_log", "deepspeed=0.14.0", "Yes, with torch >=2.4.0.dev0: DeepSpeed 0.14.0 has this bug."),
        ("torch_elastic_log", "deepspeed=0.14.0&torch=2.4", "Yes: DeepSpeed 0.14.0 with torch 2.4 has this bug."),
        (
            "torch_elastic_log",
            "deepspeed=0.14.0&torch=2.3",
            "No: DeepSpeed 0.14.0 with torch 2.3 does not have this bug.",
        ),
    ],
)
def test_whether_mine_is_among_them(open_page, bug, asked, answer):
    page = open_page(f"bugs/{bug}.html", asked)
    assert page.inner_text(".mine output") == answer


def test_every_bug_has_its_page():
    ids = [f"bugs/{entry}.html" for entry in registry.catalogue()]
    rows = [f"bugs/{known.name(row)}.html" for row in command.rows() if not row.row.key.startswith("patch/")]
    assert [each for each in (*ids, *rows) if not (command.CHECKOUT / "site" / each).is_file()] == []


def test_an_option_has_two_dashes_outside_of_code_too():
    page = command.CHECKOUT / "site" / "messages" / "cuda_home_missing.html"
    assert "with --no-build-isolation" in page.read_text(encoding="utf-8")

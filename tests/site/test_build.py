"""What the build refuses, and what it does without the package index."""

import pytest

from dsfix.catalogue import registry
from dsfix.cli.exits import CommandError
from matrix.sdists import Unavailable
from matrix.site import bugs, diffs, guides, index, links


class NoIndex:
    def sources(self, release):
        raise Unavailable("the package index is not available: no connection")


@pytest.mark.parametrize(
    ("html", "fault"),
    [
        ('<a href="gone.html">', "index.html links to gone.html, which does not exist"),
        ('<a href="other.html#gone">', "index.html links to other.html#gone: the page has no such anchor"),
        ('<a href="#gone">', "index.html links to #gone: the page has no such anchor"),
        ('<script src="https://a.host/x.js">', "index.html loads https://a.host/x.js from another host"),
        ('<img src="//a.host/x.png">', "index.html loads //a.host/x.png from another host"),
        ('<a href="other.html#there">', None),
        ('<a href="https://a.host/">', None),
    ],
)
def test_a_link_that_leads_nowhere_is_named(tmp_path, html, fault):
    (tmp_path / "index.html").write_text(html)
    (tmp_path / "other.html").write_text('<h1 id="there">')
    assert list(links.faults(tmp_path)) == ([fault] if fault else [])


@pytest.mark.parametrize("pattern", [r"(?i)error", r"(?P<name>a)", r"end\Z", r"a++b", r"end$", r"^begin"])
def test_a_pattern_that_only_python_understands_is_refused(pattern):
    with pytest.raises(CommandError, match="only Python understands"):
        index.pattern(pattern)


def test_without_the_package_index_the_diffs_are_missing_and_the_pages_say_so():
    results, missing = diffs.made({"zero3_offload_clip_device": "0.14.2"}, NoIndex())
    assert (results, missing) == ({}, "the package index is not available: no connection")
    entry = registry.catalogue()["zero3_offload_clip_device"]
    [result, *_] = bugs.changes(entry, "0.14.2", None)
    assert result.startswith("The source of DeepSpeed 0.14.2 was not there when this page was built")


def test_a_guide_keeps_links_to_pages_alone_and_names_what_the_repository_has_beside_them(tmp_path):
    (tmp_path / "README.md").write_text("[licence](LICENSE), [changes](CHANGELOG.md#new), [there](https://a.host)")
    (tmp_path / "CHANGELOG.md").touch()
    (tmp_path / "LICENSE").touch()
    text = dict(guides.pages(tmp_path, NoIndex(), {}))["README.md"]
    assert text == "licence (`LICENSE` in the repository), [changes](CHANGELOG.md#new), [there](https://a.host)"
    (tmp_path / "LICENSE").unlink()
    with pytest.raises(CommandError, match=r"README\.md links to LICENSE, which does not exist"):
        dict(guides.pages(tmp_path, NoIndex(), {}))

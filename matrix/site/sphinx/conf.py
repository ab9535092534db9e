"""Sphinx's settings for the site."""

from typing import Any

import dsfix

project = "dsfix"
release = dsfix.__version__
extensions = ["myst_parser"]
exclude_patterns = ["_static"]
myst_heading_anchors = 4
smartquotes = False  # "--option" is no dash
html_theme = "furo"
html_title = "dsfix"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = [("site.js", {"defer": "defer"})]
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_show_sphinx = False
html_use_index = False
html_sidebars = {  # furo's, without a second search
    "**": ["sidebar/brand.html", "sidebar/scroll-start.html", "sidebar/navigation.html", "sidebar/scroll-end.html"]
}


def setup(app: Any) -> None:
    app.connect("builder-inited", _without_search)
    app.connect("html-page-context", _with_levels, priority=900)  # after furo's


def _without_search(app: Any) -> None:
    app.builder.search = False  # the start page has its own


def _with_levels(app: Any, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    tree = context["furo_navigation_tree"]  # its captions are headings without a level
    context["furo_navigation_tree"] = tree.replace('role="heading"', 'role="heading" aria-level="2"')

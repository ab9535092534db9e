"""Whether each link of the built pages leads somewhere, and nothing is loaded from another host."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from urllib.parse import unquote

_TAG = re.compile(r"<(?!/|!)(\w+)\b([^>]*)>")
_ATTRIBUTE = re.compile(r"\b(href|src|id)=\"([^\"]*)\"")
_ELSEWHERE = re.compile(r"(?:https?:)?//")


def faults(site: Path) -> Iterator[str]:
    """One sentence for each link that leads nowhere."""
    anchors: dict[str, set[str]] = {}
    links: list[tuple[str, str, str]] = []
    for path in sorted(site.rglob("*.html")):
        name = path.relative_to(site).as_posix()
        anchors[name] = set()
        for tag, attributes in _TAG.findall(path.read_text(encoding="utf-8")):
            for key, value in _ATTRIBUTE.findall(attributes):
                if key == "id":
                    anchors[name].add(value)
                else:
                    links.append((name, tag, unescape(value)))
    for path in site.glob("_static/known.js"):
        urls = re.findall(r'"url":"([^"]+)"', path.read_text(encoding="utf-8"))
        links += [("index.html", "a", url) for url in urls]
    for name, tag, link in dict.fromkeys(links):
        if _ELSEWHERE.match(link):
            if tag != "a":
                yield f"{name} loads {link} from another host"
        elif not link.startswith(("mailto:", "data:")):
            file, _, anchor = link.partition("#")
            file = unquote(file.partition("?")[0])
            target = os.path.normpath(os.path.join(os.path.dirname(name), file)) if file else name
            if target not in anchors and not (site / target).is_file():
                yield f"{name} links to {link}, which does not exist"
            elif anchor and target in anchors and unquote(anchor) not in anchors[target]:
                yield f"{name} links to {link}: the page has no such anchor"

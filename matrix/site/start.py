"""The start page: the one search field, and the ways into the site."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_PAGE = """\
# Is my error listed?

```{{raw}} html
<form id="find" role="search" aria-label="Search the known bugs">
<label for="query">Paste a message or a whole traceback, or type words, a config key, the number of an issue</label>
<textarea id="query" rows="3" spellcheck="false" autocomplete="off"></textarea>
<div class="filters">
{selects}
</div>
<p id="count" role="status"></p>
<p id="guides"></p>
<ol id="found"></ol>
</form>
<noscript>The search needs JavaScript; the pages linked below list everything that it finds.</noscript>
```

dsfix fixes known bugs in your installed DeepSpeed. Put `import dsfix` on the first line of the training script: it
patches DeepSpeed in memory as it is imported, and only where the installed release has the bug.
[Start here](README.md).

- [The patches](docs/patches.md)
- [The bugs without a patch](bugs/without-patch.md), and what helps

```{{toctree}}
:hidden:
:caption: Guides

Search <self>
Start here <README>
{guides}
```

```{{toctree}}
:hidden:
:caption: Known bugs

docs/patches
bugs/without-patch
```

```{{toctree}}
:hidden:
:caption: For developers
:glob:

{developers}
```
"""
_GUIDES = ("launchers", "frameworks", "guards", "commands", "outcomes", "audit", "plugins", "reporting")
_DEVELOPERS = (
    *("CONTRIBUTING", "docs/design", "docs/emulated-device", "docs/overhead"),
    *("*/*/README", "matrix/README", "results/bystanders", "results/parts", "results/deepspeed-tests", "CHANGELOG"),
)


def render(releases: Sequence[str], torch: Sequence[str], pages: Iterable[Mapping[str, Any]]) -> str:
    pages = list(pages)
    choices = {
        "deepspeed": ("My DeepSpeed", releases[::-1]),
        "torch": ("My torch", torch[::-1]),
        "area": ("Area", sorted({page.get("area", "") for page in pages} - {""})),
        "severity": ("Severity", sorted({page.get("severity", "") for page in pages} - {""})),
    }
    selects = "\n".join(_select(name, *choice) for name, choice in choices.items())
    guides = "\n".join(f"docs/{each}" for each in _GUIDES)
    return _PAGE.format(selects=selects, guides=guides, developers="\n".join(_DEVELOPERS))


def _select(name: str, label: str, values: Iterable[str]) -> str:
    options = "".join(f'<option value="{each}">{each}</option>' for each in values)
    return f'<label>{label} <select id="{name}"><option value="">any</option>{options}</select></label>'

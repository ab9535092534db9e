"""The built site, opened from its folder in Chromium."""

import os
import re
import shutil
from pathlib import Path

import pytest

SITE = Path(__file__).resolve().parents[2] / "site"
SIZES = {"desktop": {"width": 1280, "height": 900}, "phone": {"width": 390, "height": 844}}


@pytest.fixture(scope="session")
def browser():
    from playwright.sync_api import sync_playwright

    programs = filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome")))
    program = next(programs, None) or pytest.skip("no Chromium: `apt-get install chromium`")
    with sync_playwright() as running:
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = running.chromium.launch(executable_path=program, args=options)
        yield browser
        browser.close()


@pytest.fixture(params=SIZES)
def page(browser, request):
    """A page at both widths; no error may come to its console, and nothing may be loaded from elsewhere."""
    context = browser.new_context(viewport=SIZES[request.param], color_scheme="light")
    page = context.new_page()
    page.set_default_timeout(60_000)
    seen = []
    page.on("console", lambda message: seen.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: seen.append(str(error)))
    page.on("request", lambda request: None if request.url.startswith("file:") else seen.append(request.url))
    yield page
    context.close()
    assert seen == []


@pytest.fixture
def open_page(page):
    """Opens a page of the site; part: what follows "#"."""

    def go(name="index.html", part=""):
        page.goto("about:blank")  # else another part of the same page is no new visit
        page.goto(f"{(SITE / name).as_uri()}{part and '#'}{part}")
        return page

    return go


@pytest.fixture
def shown(page):
    """Waits for the results; the names of their pages."""

    def read():
        page.wait_for_function("document.getElementById('count').textContent !== ''")
        return _names(page.eval_on_selector_all("#found a", "all => all.map(each => each.getAttribute('href'))"))

    return read


@pytest.fixture
def found(page, shown):
    """Types or pastes a query; the names of the pages that are found."""

    def search(query):
        page.fill("#query", "")
        page.wait_for_function("document.getElementById('count').textContent === ''")
        page.fill("#query", query)
        return shown()

    return search


@pytest.fixture
def pasted(page, found):
    """The names of the pages that each of many texts finds, as if it had been pasted."""

    def search(texts):
        found("loads the index")
        script = """async (text) => {
            document.getElementById('query').value = text;
            document.getElementById('query').dispatchEvent(new Event('input', { bubbles: true }));
            await new Promise((done) => setTimeout(done));
            return [...document.querySelectorAll('#found a')].map((each) => each.getAttribute('href'));
        }"""
        return [_names(page.evaluate(script, text)) for text in texts]

    return search


def _names(addresses):
    return [re.sub(r"^.*/|\.html.*$", "", address) for address in addresses]

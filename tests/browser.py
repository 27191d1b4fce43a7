"""The lab in a real browser: a server of its own, and Chromium driven by Playwright."""

import contextlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SERVE = "import sys; from fedhsa.cli import main; sys.exit(main(['lab', '--no-browser']))"
WAIT = 90_000
"""Milliseconds: a page may take this long on a busy machine."""


def needs_browser() -> None:
    """Skips the test where there is no marimo, no Playwright or no Chromium."""
    pytest.importorskip("marimo", reason="The lab needs the extra `lab`.")
    pytest.importorskip("playwright", reason="Browser tests need Playwright, of the extra `test`.")
    if CHROMIUM is None:
        pytest.skip("Browser tests need Chromium.")


@contextlib.contextmanager
def lab() -> Iterator[str]:
    """The address of a lab that is served by another process, as users have it."""
    server = subprocess.Popen([sys.executable, "-c", SERVE], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        said = server.stdout.readline()
        found = re.search(r"http://[\w.:]+", said)
        assert found, f"The lab said {said!r}."
        yield found.group()
    finally:
        server.terminate()
        server.communicate(timeout=20)


class Visit(NamedTuple):
    page: Any
    errors: list[str]
    """What the console reported as an error, and exceptions of the page."""
    strangers: list[str]
    """Addresses of other machines that the page asked for something."""


@contextlib.contextmanager
def visit(address: str, *, width: int = 1280, height: int = 900, dark: bool = False) -> Iterator[Visit]:
    """A page in a fresh browser."""
    from playwright.sync_api import sync_playwright

    errors: list[str] = []
    strangers: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            scheme = "dark" if dark else "light"
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
            page.set_default_timeout(WAIT)
            page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
            page.on("pageerror", lambda error: errors.append(str(error)))
            local = re.compile(r"(https?|wss?)://(localhost|127\.0\.0\.1)[:/]|data:|blob:")
            page.on("request", lambda request: None if local.match(request.url) else strangers.append(request.url))
            page.goto(address)
            yield Visit(page, errors, strangers)
        finally:
            browser.close()

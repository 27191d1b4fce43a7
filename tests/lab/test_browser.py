"""The lab in a real browser: Debian's Chromium or another one that is installed, driven by Playwright."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from browser import CHROMIUM
from fedhsa.cli import main
from fedhsa.lab import quadratic as lab

pytestmark = pytest.mark.slow

GUARDED = """
import socket, sys
connect = socket.socket.connect
def guarded(self, address):
    if isinstance(address, tuple) and address[0] not in ("127.0.0.1", "localhost", "::1"):
        print("LEFT", address, file=sys.stderr, flush=True)
        raise OSError("no way out")
    return connect(self, address)
socket.socket.connect = guarded
from fedhsa.cli import main
sys.exit(main(sys.argv[1:]))
"""
"""The command line, in a process that reports every connection that would leave the machine."""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    pytest.importorskip("marimo")
    command = [sys.executable, "-c", GUARDED, "lab", "--no-browser"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ)
    assert process.stdout is not None
    said = re.fullmatch(r"The lab is at (http://localhost:\d+/) \(Ctrl-C ends it\)\n", process.stdout.readline())
    assert said
    yield said[1]
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (out, err, process.returncode) == ("The lab has ended.\n", "", 0)  # and nothing left the machine


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium: Any, server: str) -> Iterator[Any]:
    """Opens the lab with the options of a browser's context; fails on console errors and on foreign requests."""
    contexts, troubles = [], []

    def open(words: str = "", **options: Any) -> Any:
        context = chromium.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("console", lambda said: troubles.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: troubles.append(str(error)))
        near = (server, server.replace("http", "ws", 1), "data:", "blob:")
        page.on("request", lambda request: None if request.url.startswith(near) else troubles.append(request.url))
        page.goto(server + words)
        page.wait_for_selector("#code")
        return page

    yield open
    for context in contexts:
        context.close()
    assert troubles == []


def numbers(page: Any) -> dict[str, Any]:
    return json.loads(page.text_content("#fh-numbers"))


def close_to(page: Any, setting: lab.Setting) -> None:
    seen = lab.see(setting)
    found = numbers(page)
    assert list(found) == list(seen)
    for name, one in seen.items():
        np.testing.assert_allclose(found[name]["error"], one.errors[-1], rtol=1e-12)
        np.testing.assert_allclose(found[name]["floor"], one.floor.total, rtol=1e-12)


MOVE = """() => new Promise((done) => {
  const before = document.querySelector("#curves svg.fh-curves").outerHTML, start = performance.now();
  const look = () => {
    const now = document.querySelector("#curves svg.fh-curves");
    if (now && now.outerHTML !== before) done(performance.now() - start); else requestAnimationFrame(look);
  };
  window.fhMoved = true;
  look();
})"""


def test_a_slider_moves_the_curves_and_the_copied_command_gives_their_numbers(visit, capsys):
    page = visit()
    close_to(page, lab.Setting())
    thumb = page.get_by_role("slider").nth(2)
    thumb.focus()
    times = []
    for _ in range(5):
        waited = page.evaluate_handle(f"() => ({{promise: ({MOVE})()}})")
        page.keyboard.press("ArrowLeft")
        times.append(page.evaluate("async (held) => await held.promise", waited))
        page.wait_for_timeout(300)
    assert min(times) < 300, times
    page.wait_for_function("location.search === document.querySelector('[data-fh-link]').dataset.fhLink")
    page.wait_for_timeout(1000)  # the address follows the last move
    moved = lab.from_link(dict(word.split("=") for word in page.url.partition("?")[2].split("&")))
    assert moved != lab.Setting()
    close_to(page, moved)
    page.locator("#code button", has_text="Copy").nth(1).click()
    command = page.evaluate("navigator.clipboard.readText()")
    capsys.readouterr()
    assert main([*shlex.split(command)[1:], "--json", "--no-plot"]) == 0
    told = json.loads(capsys.readouterr().out)["algorithms"]
    for name, one in numbers(page).items():
        np.testing.assert_allclose(told[name]["floor"], one["floor"], rtol=1e-9)


def test_a_link_restores_the_setting(visit):
    setting = lab.Setting(num_agents=3, local_steps=5, step_size=0.1, rounds=20, others=("SCAFFOLD", "SynchronisedSA"))
    words = "&".join(f"{name}={value}" for name, value in lab.to_link(setting).items())
    page = visit("?" + words)
    close_to(page, setting)
    link = page.get_attribute("[data-fh-link]", "data-fh-link")
    assert lab.from_link(dict(word.split("=") for word in link[1:].split("&"))) == setting


def test_the_simulation_is_drawn_over_the_curves_and_goes_when_a_setting_changes(visit):
    page = visit("?M=2&H=2&rounds=20")
    page.get_by_role("combobox").filter(has_text="128").select_option("8")
    page.get_by_role("button", name="Simulate").click()
    page.wait_for_selector("#curves .fh-legend:has-text('mean of 8 seeds')", timeout=120_000)
    assert page.locator("#curves polygon").count() == 4
    page.get_by_role("slider").nth(1).focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("#curves .fh-legend:not(:has-text('mean of 8 seeds'))")


def test_the_local_steps_play_by_mouse_and_by_keys(visit):
    page = visit("?M=3&H=5")
    first = page.locator("#drift [data-track]").first
    end = first.get_attribute("cx")
    page.focus("#drift input")
    page.keyboard.press("Home")
    assert page.text_content("#drift output") == "round 1, local step 0"
    assert first.get_attribute("cx") != end
    page.keyboard.press("ArrowRight")
    assert page.text_content("#drift output") == "round 1, local step 1"
    page.get_by_role("button", name="Play the local steps").click()
    page.wait_for_function("document.querySelector('#drift output').textContent === 'round 4, local step 5'")
    assert abs(float(first.get_attribute("cx")) - float(end)) < 0.1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_overflows_on_a_phone(visit, scheme):
    page = visit(viewport={"width": 360, "height": 800}, is_mobile=True, has_touch=True, color_scheme=scheme)
    wide = "Math.max(...[document.documentElement, ...document.querySelectorAll('#App, .fh-card, .fh-controls')]"
    assert page.evaluate(f"{wide}.map((e) => e.scrollWidth - e.clientWidth))") <= 0
    assert page.evaluate("document.querySelector('#App').getBoundingClientRect().width") <= 360
    ground = page.evaluate("getComputedStyle(document.querySelector('.fh-card')).backgroundColor")
    assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(26, 32, 41)"}[scheme]


def test_a_step_size_that_is_too_large_is_warned_about(visit):
    page = visit("?M=3&H=20&eta=1")
    assert "FedHSA diverges at this setting" in page.text_content(".fh-warning >> nth=0")
    assert numbers(page)["FedHSA"]["stable"] is False

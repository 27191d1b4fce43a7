"""The lab's second page in a real browser."""

import json

import pytest

import browser
from fedhsa.lab.worlds import Setting, simulate, solve

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def address():
    browser.needs_browser()
    with browser.lab() as found:
        yield f"{found}/grid-worlds/"


def numbers(page) -> dict:
    return json.loads(page.locator("#fh-numbers").text_content())


def ready(page) -> None:
    page.wait_for_selector("#errors svg")
    page.wait_for_selector("#code pre")


def test_the_page_shows_the_numbers_of_its_setting_and_a_slider_moves_them(address):
    with browser.visit(address) as (page, errors, strangers):
        ready(page)
        map_before = page.locator("#common svg").nth(2).inner_html()
        assert numbers(page)["root"] == solve(Setting()).root.max(-1).round(6).tolist()
        slider = page.locator(".fh-controls").get_by_role("slider").nth(1)  # heterogeneity
        slider.focus()
        page.keyboard.press("ArrowLeft")
        page.wait_for_function("old => document.querySelectorAll('#common svg')[2].innerHTML != old", arg=map_before)
        page.wait_for_function("document.querySelector('[data-fh-link]').href.includes('heterogeneity')")
        assert numbers(page)["root"] == solve(Setting(heterogeneity=0.9)).root.max(-1).round(6).tolist()
        assert "heterogeneity=0.9" in page.locator("[data-fh-link]").get_attribute("href")
        assert errors == []
        assert strangers == []


def test_clicking_a_world_selects_its_agent(address):
    with browser.visit(address) as (page, errors, _):
        ready(page)
        assert "Agent 1 " in page.locator("#worlds .fh-says").inner_text()
        page.locator('.fh-choice[data-agent="3"] button').click()
        page.wait_for_selector('.fh-choice[data-agent="3"][aria-current="true"]')
        assert "Agent 3 " in page.locator("#worlds .fh-says").inner_text()
        page.wait_for_function("document.querySelector('#common figcaption').textContent == 'agent 3 alone'")
        assert errors == []


def test_a_link_restores_the_setting_and_a_simulation_gives_the_numbers_of_python(address):
    setting = Setting(world="cliff", policy="uniform", num_agents=3, rounds=20, local_steps=5)
    query = "&".join(f"{name}={value}" for name, value in setting.restores.items())
    with browser.visit(f"{address}?{query}") as (page, errors, strangers):
        ready(page)
        assert numbers(page)["root"] == solve(setting).root.max(-1).round(6).tolist()
        page.get_by_role("button", name="Simulate").click()
        page.wait_for_function("JSON.parse(document.querySelector('#fh-numbers').textContent).simulated")
        expected = {name: errors[:, -1].mean() for name, errors in simulate(setting).errors.items()}
        assert numbers(page)["simulated"] == pytest.approx(expected, rel=1e-9)
        assert errors == []
        assert strangers == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_phone_shows_everything_without_scrolling_sideways(address, dark):
    with browser.visit(f"{address}?task=control", width=390, height=844, dark=dark) as (page, errors, _):
        ready(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        paper, ink = page.evaluate(
            "[document.body, document.querySelector('.fh-card')].map((e, i) => "
            "getComputedStyle(e)[i ? 'color' : 'backgroundColor'].match(/\\d+/g).slice(0, 3).map(Number))"
        )
        assert (sum(paper) < sum(ink)) == dark
        assert errors == []

"""The page has no violation that axe finds, in light and dark, wide and narrow."""

from __future__ import annotations

from importlib import resources
from typing import Any

import pytest
from tests.serve.page.driver import TOKENS, Driver
from tests.serve.page.test_kinds import show_kind

NARROW = {"viewport": {"width": 360, "height": 720}}


@pytest.fixture(scope="session")
def axe() -> str:
    package = pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is missing")
    return (resources.files(package) / "axe.min.js").read_text(encoding="utf-8")


def violations(page: Any, axe: str) -> list[str]:
    """Return the violations with the elements at fault: of all rules in light, of contrast in dark."""
    page.evaluate(axe)
    found = []
    for scheme, options in (("light", {}), ("dark", {"runOnly": ["color-contrast"]})):
        page.emulate_media(color_scheme=scheme)
        result = page.evaluate(
            "(options) => axe.run(document, {resultTypes: ['violations'], ...options})", options
        )
        found += [
            (scheme, each["id"], node["html"]) for each in result["violations"] for node in each["nodes"]
        ]
    return [f"{scheme}, {rule}: {html[:200]}" for scheme, rule, html in found]


@pytest.mark.parametrize(
    (), [pytest.param(id="wide"), pytest.param(id="narrow", marks=pytest.mark.window(**NARROW))]
)
def test_a_conversation(driver: Driver, axe: str) -> None:
    page = driver.open(tokens=None).page
    assert violations(page, axe) == []
    for opener in page.locator(".drawer-button:visible").all():
        opener.click()
        assert violations(page, axe) == []
        page.keyboard.press("Escape")
    driver.begin("how is the weather?")
    page.keyboard.press("Escape")
    driver.finished()
    driver.press("Retry: write another answer")
    page.wait_for_selector(TOKENS, state="attached")
    page.keyboard.press("Escape")
    driver.finished()
    driver.press("Details: how this answer was made")
    page.locator(TOKENS).nth(1).click()
    page.wait_for_selector("#token-panel", state="visible")
    assert violations(page, axe) == []
    driver.press("Show the attention")
    page.wait_for_selector("dialog")
    assert violations(page, axe) == []
    page.keyboard.press("Escape")
    page.click("#card-button")
    assert violations(page, axe) == []
    page.keyboard.press("Escape")
    driver.press("Edit this message")
    assert violations(page, axe) == []
    page.goto(f"{driver.address}#model=chat&conversation=none")
    page.wait_for_selector("#log [role=alert]")
    assert violations(page, axe) == []
    page.goto(f"{driver.address}#model=none")
    page.wait_for_selector("#view > [role=alert]")
    assert violations(page, axe) == []


def test_the_key_dialog(chromium: Any, server_with_key: str, axe: str) -> None:
    context = chromium.new_context()
    page = context.new_page()
    page.goto(server_with_key)
    page.wait_for_selector("#api-key")
    assert violations(page, axe) == []
    context.close()


def test_gates(driver: Driver, axe: str) -> None:
    page = driver.open("rnn").page
    driver.ask("the sea")
    page.locator(TOKENS).nth(2).click()
    driver.press("Show the gates")
    page.wait_for_selector("dialog .gates")
    assert violations(page, axe) == []


@pytest.mark.parametrize("name", ["translation", "classification", "answering", "words"])
def test_other_kinds(driver: Driver, axe: str, name: str) -> None:
    show_kind(driver, name)
    assert violations(driver.page, axe) == []

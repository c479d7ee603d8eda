"""Models and conversations have addresses, which Back, a reload and another tab find again."""

from __future__ import annotations

from tests.serve.page.driver import TOKENS, Driver

ASKED = ".message.user .text"


def shows(driver: Driver, text: str) -> None:
    """Wait until the first message in view has this text."""
    driver.page.wait_for_function(
        "([where, text]) => document.querySelector(where)?.textContent === text", arg=[ASKED, text]
    )


def test_back_forward_reload_and_another_tab(driver: Driver) -> None:
    page = driver.open(tokens=3).page
    driver.ask("the sea")
    sea = page.url
    assert page.title() == "the sea · chat · Wordloom"
    driver.press("New")
    driver.ask("the boats")
    driver.choose("base")
    page.wait_for_selector('h2:has-text("base")')
    page.go_back()
    shows(driver, "the boats")
    assert page.input_value("#model") == "chat"
    page.go_back()
    shows(driver, "the sea")
    assert page.url == sea
    answer = driver.answer
    page.go_forward()
    shows(driver, "the boats")
    page.reload()
    shows(driver, "the boats")
    with page.context.expect_page() as opened:
        page.get_by_role("link", name="the sea").click(modifiers=["Control"])
    other = Driver(opened.value, driver.address)
    shows(other, "the sea")
    other.page.wait_for_selector(TOKENS, state="attached")
    assert other.answer == answer
    assert other.page.url == sea
    other.check()


def test_an_address_that_leads_nowhere_says_so(driver: Driver) -> None:
    page = driver.open(tokens=3).page
    driver.ask("the sea")
    kept = page.url
    driver.press("New")
    driver.ask("the boats")
    driver.press("Delete “the boats”")
    page.go_back()
    page.wait_for_selector('[role=alert]:has-text("This browser has no conversation with this address.")')
    page.goto(kept.replace("model=chat", "model=base"))
    page.wait_for_selector('[role=alert]:has-text("It was written with “chat”, which answers messages.")')
    page.goto(kept.replace("model=chat", "model=gone"))
    page.wait_for_selector('[role=alert]:has-text("The server has no model “gone”.")')
    assert page.is_disabled("#card-button")
    driver.choose("chat")
    shows(driver, "the sea")
    assert page.url == kept
    driver.expected.append("404")
    page.route(
        "**/card", lambda route: route.fulfill(status=404, json={"error": {"message": "it is damaged"}})
    )
    page.select_option("#model", "base")
    page.wait_for_selector('[role=alert]:has-text("The model “base” cannot be shown. It is damaged")')
    page.unroute_all()
    driver.press("Try again")
    page.wait_for_selector('h2:has-text("base")')


def test_another_model_continues_a_conversation(driver: Driver) -> None:
    page = driver.open("base", tokens=3).page
    driver.ask("the sea")
    before = page.url
    driver.choose("twin")
    shows(driver, "the sea")
    driver.ask("the boats")
    assert driver.asked[1]["model"] == "twin"
    assert page.locator("#conversations .about").all_text_contents() == ["Completion · twin, base"]
    page.go_back()
    page.wait_for_function("() => document.getElementById('model').value === 'base'")
    assert page.url == before
    shows(driver, "the sea")

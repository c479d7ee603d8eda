"""The panel of a token opens and closes by keyboard and pointer."""

from __future__ import annotations

import pytest
from tests.serve.page.driver import TOKENS, Driver

SETTLED = 400  # ms; the panel opens 120 ms after the pointer has come, and closes 250 ms after it has left


@pytest.fixture
def answered(driver: Driver) -> Driver:
    """A window with an answer of twelve tokens."""
    driver.open().ask("the sea")
    driver.texts()
    return driver


def assert_closed(driver: Driver) -> None:
    """Fail if the panel is open, or opens again."""
    assert driver.page.is_hidden("#token-panel")
    driver.page.wait_for_timeout(SETTLED)
    assert driver.page.is_hidden("#token-panel")


def focused_token(driver: Driver) -> str | None:
    """Return the index of the token that has the focus."""
    found = driver.page.evaluate("() => document.activeElement.dataset.index ?? null")
    return None if found is None else str(found)


@pytest.mark.parametrize("how", ["Escape", "Close"])
def test_the_panel_closes_at_once_by_keyboard(answered: Driver, how: str) -> None:
    page = answered.page
    for index in (2, 3):
        page.locator(TOKENS).nth(index).focus()
        page.keyboard.press("Enter")
        assert page.evaluate("() => document.activeElement.closest('#token-panel') !== null")
        if how == "Close":
            page.locator("#token-panel").get_by_role("button", name="Close").focus()
        page.keyboard.press("Enter" if how == "Close" else how)
        assert_closed(answered)
        assert focused_token(answered) == str(index)


def test_the_arrow_keys_show_the_panel_of_each_token(answered: Driver) -> None:
    page = answered.page
    page.focus("#draft")
    while focused_token(answered) is None:
        page.keyboard.press("Shift+Tab")
    for index in (1, 2, 3):
        page.keyboard.press("ArrowRight")
        assert focused_token(answered) == str(index)
        assert page.is_visible("#token-panel")
        assert page.locator(f'{TOKENS}[data-index="{index}"].current').count() == 1
    page.keyboard.press("Escape")
    assert_closed(answered)
    page.keyboard.press("ArrowRight")
    assert page.is_visible("#token-panel")


def test_escape_closes_the_attention_and_then_the_panel(answered: Driver) -> None:
    page = answered.page
    page.locator(TOKENS).nth(5).click()
    page.get_by_role("button", name="Show the attention").click()
    page.wait_for_selector("dialog .attended span")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog", state="detached")
    assert page.is_visible("#token-panel")
    page.keyboard.press("Escape")
    assert_closed(answered)


def test_escape_closes_the_panel_right_after_a_click(answered: Driver) -> None:
    page = answered.page
    page.mouse.move(0, 0)
    page.evaluate("""(tokens) => {
        // one task: no timer runs between the pointer's arrival, the click and the key
        const token = document.querySelectorAll(tokens)[2];
        const pointer = { bubbles: true, pointerType: "mouse" };
        token.dispatchEvent(new PointerEvent("pointerover", pointer));
        token.dispatchEvent(new PointerEvent("pointermove", pointer));
        token.click();
        document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape", bubbles: true }));
    }""", TOKENS)  # fmt: skip
    assert_closed(answered)


def test_a_token_that_comes_to_lie_below_the_pointer_does_not_open_the_panel(answered: Driver) -> None:
    """Where the panel was, the pointer rests on whatever the panel has covered."""
    page = answered.page
    page.set_viewport_size({"width": 1000, "height": 500})
    page.evaluate("""(tokens) => {
        // a long answer: the panel covers tokens
        const all = [...document.querySelectorAll(tokens)];
        all[0].closest(".text").style.fontSize = "2.2rem";
        all[0].closest(".text").style.wordSpacing = "3rem";
    }""", TOKENS)  # fmt: skip
    first = page.locator(TOKENS).first
    first.click()
    box = page.locator("#token-panel").bounding_box()
    covered = page.evaluate("""([tokens, box]) => [...document.querySelectorAll(tokens)].slice(1)
        .map((each) => each.getBoundingClientRect())
        .map(({x, y, width, height}) => [x + width / 2, y + height / 2])
        .filter(([x, y]) => x > box.x && x < box.x + box.width)
        .filter(([x, y]) => y > box.y && y < box.y + box.height)""", [TOKENS, box])  # fmt: skip
    assert covered
    page.mouse.move(*covered[0])
    page.keyboard.press("Escape")
    assert_closed(answered)

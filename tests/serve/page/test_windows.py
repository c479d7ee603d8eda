"""Two windows with one conversation: both keep what is written in either of them."""

from __future__ import annotations

from tests.serve.page.driver import TOKENS, Driver
from tests.serve.page.test_addresses import shows

HEARD = 300  # ms, within which a window receives a change of another window


def another(driver: Driver) -> Driver:
    """Open another window, which shows the last conversation."""
    return Driver(driver.page.context.new_page(), driver.address).open(tokens=3)


def set_system_message(driver: Driver, text: str) -> None:
    driver.page.fill("#system", text)
    driver.page.locator("#system").blur()


def shows_system_message(driver: Driver, text: str) -> None:
    """Wait until the box of the system message has this text."""
    driver.page.wait_for_function("(text) => document.getElementById('system').value === text", arg=text)


def test_two_windows_keep_what_the_other_writes(driver: Driver) -> None:
    page = driver.open(tokens=3).page
    driver.ask("one")
    other = another(driver)
    assert other.page.locator(".message").count() == 2
    other.ask("two")
    page.wait_for_function("() => document.querySelectorAll('.message').length === 4")
    page.wait_for_selector(f"{TOKENS}:nth-child(3)")
    assert driver.texts() == other.texts()
    page.locator('button[title="Edit this message"]').first.click()
    page.fill(".edit textarea", "one, again")
    page.press(".edit textarea", "Enter")
    driver.finished()
    other.page.wait_for_selector('.version:has-text("1/2")')
    other.ask("three")
    page.wait_for_function("() => !document.querySelector('[aria-busy=true]')")
    page.reload()
    page.wait_for_selector(".message")
    kept = [node["content"] for node in driver.export()["nodes"].values() if node.get("role") == "user"]
    assert sorted(kept) == ["one", "one, again", "three", "two"]
    other.press("Delete “one”")
    page.wait_for_selector('#notice:has-text("Another window has deleted this conversation.")')
    driver.ask("four")
    assert page.locator("#conversations .title").all_text_contents() == ["one"]  # the open one alone
    page.reload()
    page.wait_for_selector("#draft")
    assert page.locator(".message").count() == 0
    other.check()


def test_a_conversation_that_another_window_brings_back_is_stored(driver: Driver) -> None:
    driver.open(tokens=3).ask("one")
    other = another(driver)
    other.press("New")
    driver.press("Delete “one”")
    other.page.wait_for_selector('#conversations .entry:has-text("one")', state="detached")
    driver.press("Undo")
    other.page.get_by_role("link", name="one").click()
    shows(other, "one")
    other.ask("two")
    other.page.reload()
    shows(other, "one")
    assert other.page.locator(".message.user .text").all_text_contents() == ["one", "two"]
    other.check()


def test_the_newer_system_message_is_kept(driver: Driver) -> None:
    driver.open(tokens=3).ask("one")
    other = another(driver)
    set_system_message(driver, "be brief")
    shows_system_message(other, "be brief")
    other.page.fill("#system", "be long")
    set_system_message(driver, "be kind")
    other.page.wait_for_timeout(HEARD)
    assert other.page.input_value("#system") == "be long"  # a box that has the focus does not change
    other.page.locator("#system").blur()
    shows_system_message(driver, "be long")
    other.page.focus("#system")
    set_system_message(driver, "be kind")
    other.page.wait_for_timeout(HEARD)
    other.page.locator("#system").blur()
    shows_system_message(other, "be kind")
    other.check()


def test_a_window_without_a_system_message_keeps_that_of_the_other(driver: Driver) -> None:
    driver.open(tokens=3).ask("one")
    other = another(driver)
    set_system_message(driver, "be brief")
    driver.page.close()
    other.ask("two")
    assert other.asked[0]["messages"][0] == {"role": "system", "content": "be brief"}
    other.page.reload()
    shows(other, "one")
    assert other.page.input_value("#system") == "be brief"
    other.check()


def test_the_time_of_a_system_message_may_be_missing(driver: Driver) -> None:
    """Conversations that were stored before do not have it."""
    page = driver.open(tokens=3).page
    driver.ask("one")
    driver.press("New")
    page.evaluate("""() => {
        const name = Object.keys(localStorage).find((each) => / conversation /.test(each));
        const { systemTime, ...conversation } = JSON.parse(localStorage[name]);
        localStorage[name] = JSON.stringify({ ...conversation, system: "be brief" });
    }""")
    page.get_by_role("link", name="one").click()
    shows_system_message(driver, "be brief")
    other = another(driver)
    shows_system_message(other, "be brief")
    set_system_message(driver, "be kind")
    shows_system_message(other, "be kind")
    other.check()

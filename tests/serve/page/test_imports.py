"""Imported conversations: those that cannot be stored, and those for another kind of model."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.serve.page.driver import TOKENS, Driver
from tests.serve.page.test_addresses import ASKED, shows
from tests.serve.page.test_page import conversation

REFUSED = "This conversation needs a model that answers messages, and the server has none."
LOST = '#notice:has-text("This conversation is not stored, and is lost when you leave the page.")'


def written_with(model: str, kind: str = "chat", text: str = "the sea", n: int = 2) -> str:
    """An exported conversation of this kind, with a model of this name."""
    return json.dumps(json.loads(conversation(n, text)) | {"model": model, "kind": kind})


@pytest.mark.parametrize("model", ["chat", "base"])
def test_an_import_that_cannot_be_stored_says_so(driver: Driver, model: str) -> None:
    page = driver.open(model).page
    driver.expected += ["400", "413"]  # its tokens are too many to be counted
    driver.import_file(written_with("chat", text="x" * 6_000_000, n=1))
    page.wait_for_selector(LOST, timeout=60_000)
    assert page.input_value("#model") == "chat"
    assert page.locator(ASKED).evaluate("(each) => each.textContent.length") == 6_000_000
    assert "conversation=" not in page.url
    page.reload()
    page.wait_for_selector("#draft")
    assert page.locator(".message").count() == 0


@pytest.mark.parametrize("view", ["chat", "twin"])
@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_an_import_is_opened_with_a_model_of_its_kind(driver: Driver, view: str, kind: str) -> None:
    """The name of its model may belong to a model of the other kind."""
    named, right = ("base", ["chat"]) if kind == "chat" else ("chat", ["base", "twin", "rnn"])
    page = driver.open(view).page
    driver.import_file(written_with(named, kind))
    shows(driver, "the sea")
    page.wait_for_selector("#view[aria-busy=false]")
    opened = page.input_value("#model")
    assert opened in right
    assert view not in right or opened == view
    assert page.get_attribute("#log", "aria-label") == ("Conversation" if kind == "chat" else "Completions")
    page.reload()
    shows(driver, "the sea")
    page.wait_for_selector(TOKENS, state="attached")
    driver.choose("rnn" if opened != "rnn" else "base")
    driver.press("New")
    page.get_by_role("link", name="the sea").click()
    shows(driver, "the sea")


def test_an_import_without_a_model_of_its_kind_is_refused(driver: Driver) -> None:
    page = driver.page

    def without_chat(route: Any) -> None:
        found = route.fetch().json()
        found["data"] = [each for each in found["data"] if each["id"] != "chat"]
        route.fulfill(json=found)

    page.route("**/v1/models", without_chat)
    driver.open()  # the first model, which continues texts
    for model in ("base", "gone"):
        driver.import_file(written_with(model))
        page.wait_for_selector(f'#notice:has-text("{REFUSED}")')
        driver.press("Dismiss")
        assert page.locator(".message").count() == 0
    page.unroute_all()

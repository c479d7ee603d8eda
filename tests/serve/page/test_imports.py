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


def test_no_probability_of_an_import_exceeds_1(driver: Driver) -> None:
    page = driver.open("chat").page
    damaged = written_with("chat").replace('"logprob": -1.0', '"logprob": 1e308')
    damaged = damaged.replace('"logprob": 0, "kept": 0.1', '"logprob": 1e308, "kept": -1e308')
    assert damaged.count("e308") == 6
    driver.import_file(damaged)
    page.wait_for_selector(TOKENS, state="attached")
    assert page.get_attribute(TOKENS, "aria-label").endswith(", 100 %")
    page.locator(TOKENS).first.click()
    cells = page.locator("#token-panel tbody tr").first.locator("td").all_text_contents()
    assert cells[1:] == ["100 %", "0 %"]


def test_the_field_at_fault_is_named(driver: Driver) -> None:
    page = driver.open("chat").page
    driver.expected.append("400")
    found = json.loads(written_with("chat"))
    found["nodes"]["m1"]["made"] = {"system": "", "settings": {
        "temperature": {"value": -1, "from": "given"}, "seed": {"value": 1, "from": "given"}}}  # fmt: skip
    driver.import_file(json.dumps(found))
    page.wait_for_selector(TOKENS, state="attached")
    driver.press("Details: how this answer was made")
    driver.press("Repeat exactly")
    fault = "Temperature: input should be greater than or equal to 0"
    page.wait_for_selector(f'.note.error:has-text("{fault}")')
    page.fill("#sampling-stop", "a\n" * 65)
    driver.press("Retry: write another answer")
    page.wait_for_selector('.note.error:has-text("Stop: list should have at most 64 items after validation")')
    said = page.evaluate("""async () => {
        const { ApiError } = await import("./scripts/api.js");
        return ["'texts[2]': it is too long", "'top_k': input is wrong", "'a' is missing", "it is lost"].map(
            (each) => new ApiError(400, each).message);
    }""")
    assert said == ["Texts, item 3: it is too long", "Top k: input is wrong", "'a' is missing", "It is lost"]


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


def test_an_import_without_the_server_says_that_it_cannot_be_reached(driver: Driver) -> None:
    page = driver.open("base").page
    page.route("**/card", lambda route: route.abort())
    driver.expected.append("ERR_FAILED")
    driver.import_file(written_with("rnn"))
    page.wait_for_selector('#notice:has-text("chat.json: The server cannot be reached.")')
    page.unroute_all()

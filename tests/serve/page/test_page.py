"""The page in Chromium: conversations, tokens and settings."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from tests.serve.page.conftest import CONTEXT
from tests.serve.page.driver import TOKENS, Driver

HTML = "<img src=x onerror=\"window.hacked = 1\"><script>window.hacked = 1</script>{{7*7}}"  # fmt: skip
PHONE = {"viewport": {"width": 360, "height": 720}, "has_touch": True, "is_mobile": True}


def conversation(n: int, text: str = "the weather is fine") -> str:
    """An exported conversation of ``n`` messages; answers have tokens."""
    nodes: dict[str, Any] = {
        "root": {"id": "root", "parent": None, "role": "root", "children": [], "shown": 0}
    }
    last = "root"
    for number in range(n):
        node = {"id": f"m{number}", "parent": last, "children": [], "shown": 0, "content": text}
        if number % 2:
            likely = [{"id": k, "token": text, "logprob": -k, "kept": 0.1, "ends": False} for k in range(8)]
            words = [
                {"id": 300, "text": f" {word}", "logprob": -1.0, "ends": False, "alternatives": likely}
                for word in text.split()
            ]
            node |= {
                "role": "assistant",
                "tokens": words,
                "model": "chat",
                "finish": "stop",
                "error": "",
                "speed": 9,
            }
        else:
            node["role"] = "user"
        nodes[f"m{number}"] = node
        nodes[last]["children"] = [f"m{number}"]
        last = f"m{number}"
    return json.dumps({"version": 1, "id": "x", "title": "", "model": "chat", "kind": "chat", "system": "",
                       "created": 1, "updated": 1, "nodes": nodes})  # fmt: skip


def test_an_answer_streams_and_is_announced_once(driver: Driver) -> None:
    page = driver.open(tokens=60).page
    page.evaluate("""() => {
        window.said = [];
        const region = document.getElementById("announcer");
        new MutationObserver(() => window.said.push(region.textContent)).observe(region, {childList: true});
    }""")
    driver.begin("how is the weather?")
    answer = driver.finished()
    assert len(driver.texts()) == 60
    assert re.fullmatch(r"Done: 60 tokens, \d+ tokens/s", driver.status)
    assert page.evaluate("() => window.said") == [f"Model: {answer}"]
    assert page.get_attribute("#log", "aria-live") == "off"
    assert driver.focus == "draft"
    assert driver.asked[0]["messages"] == [{"role": "user", "content": "how is the weather?"}]


def test_an_empty_conversation_says_what_to_try(driver: Driver) -> None:
    page = driver.open().page
    said = page.text_content("#log section")
    assert "llama" in said
    assert "It answers messages." in said
    page.locator("#log section button").first.click()
    assert driver.focus == "draft"
    assert page.input_value("#draft") == page.text_content("#log section button")
    driver.choose("base")
    assert "It does not answer questions" in page.text_content("#log section")
    driver.ask("the sea")
    assert page.locator("#log section").count() == 0


def test_escape_stops(driver: Driver) -> None:
    page = driver.open(tokens=4000).page
    driver.begin("write a long answer")
    page.keyboard.press("Escape")
    driver.finished()
    assert driver.status.startswith("Stopped")
    assert page.text_content(".message.assistant .note") == "Stopped."
    assert 0 < len(driver.texts()) < 3000
    assert driver.focus == "draft"
    driver.begin("and another one")
    driver.press("Stop")
    driver.finished()
    assert driver.status.startswith("Stopped")
    assert driver.focus == "draft"
    assert len(driver.asked[1]["messages"]) == 3


def test_an_answer_that_a_reload_interrupts_is_stopped(driver: Driver) -> None:
    page = driver.open(tokens=4000).page
    for _ in range(3):  # the browser breaks the connection sooner or later
        driver.begin("write a long answer")
        page.wait_for_timeout(150)
        page.reload()
        page.wait_for_selector(TOKENS, state="attached")
        assert page.text_content(".message.assistant:last-child .note") == "Stopped."
        driver.press("New")


def test_an_answer_whose_connection_breaks_has_failed(driver: Driver) -> None:
    page = driver.open().page
    page.route(
        "**/v1/chat/completions", lambda route: route.fulfill(content_type="text/event-stream", body="")
    )
    driver.ask("the sea")
    note = page.text_content(".message.assistant .note.error")
    assert note == "The connection broke before the answer ended."
    page.reload()
    page.wait_for_selector('.note.error:has-text("The connection broke")')


def test_an_answer_that_was_stopped_continues(driver: Driver) -> None:
    driver.open(tokens=6)
    first = driver.ask("the sea")
    driver.press("Continue this answer")
    assert driver.finished().startswith(first)
    assert len(driver.texts()) == 12
    assert len(driver.asked[1]["continue_ids"]) == 6


def test_retry_keeps_the_old_answer(driver: Driver) -> None:
    driver.open()
    first = driver.ask("the sea")
    driver.press("Retry: write another answer")
    second = driver.finished()
    assert first != second
    assert driver.versions() == ["2/2"]
    driver.press("Previous version")
    assert driver.answer == first
    assert driver.versions() == ["1/2"]
    driver.ask("and then?")
    driver.page.get_by_role("button", name="Next version").click()
    assert driver.answer == second
    assert driver.page.locator(".message").count() == 2
    driver.press("Previous version")
    assert driver.page.locator(".message").count() == 4


def test_the_arrows_between_versions_keep_the_focus(driver: Driver) -> None:
    page = driver.open(tokens=3).page
    driver.ask("the sea")
    for _ in range(2):
        driver.press("Retry: write another answer")
        driver.finished()
    page.get_by_role("button", name="Previous version").focus()
    focused = "() => document.activeElement.title"
    for key, version, title in (
        ("Enter", "2/3", "Previous version"),
        ("Enter", "1/3", "Next version"),  # the other arrow is disabled at the first version
        ("Enter", "2/3", "Next version"),
        ("Enter", "3/3", "Previous version"),
    ):
        page.keyboard.press(key)
        assert driver.versions() == [version]
        assert page.evaluate(focused) == title


@pytest.mark.window(permissions=["clipboard-write"])
def test_copying_is_announced(driver: Driver) -> None:
    page = driver.open(tokens=3).page
    driver.ask("the sea")
    driver.press("Copy the text")
    page.wait_for_selector('#announcer:text-is("Copied")', state="attached")
    assert driver.status == "Copied"
    driver.press("Details: how this answer was made")
    driver.press("Use these settings")
    assert page.text_content("#announcer") == driver.status == "Copied into the settings"


def test_an_edited_message_is_a_branch(driver: Driver) -> None:
    page = driver.open().page
    first = driver.ask("the sea")
    driver.press("Edit this message")
    page.get_by_role("textbox", name="Edit this message").fill("the weather")
    page.keyboard.press("Enter")
    driver.finished()
    assert driver.asked[1]["messages"] == [{"role": "user", "content": "the weather"}]
    assert driver.versions() == ["2/2"]
    driver.press("Previous version")
    assert driver.answer == first
    driver.press("Edit this message")
    page.keyboard.press("Escape")
    assert driver.page.locator("form.edit").count() == 0
    assert driver.versions() == ["1/2"]


def test_export_and_import_keep_all_branches(driver: Driver) -> None:
    driver.open()
    first = driver.ask("the sea")
    driver.press("Retry: write another answer")
    second = driver.finished()
    saved = driver.export()
    driver.press("Delete “the sea”")
    assert driver.page.locator(".message").count() == 0
    driver.import_file(json.dumps(saved))
    driver.page.wait_for_selector(TOKENS, state="attached")
    assert driver.versions() == ["2/2"]
    assert driver.answer == second
    driver.press("Previous version")
    assert driver.answer == first
    driver.press("Next version")
    again = driver.export()
    assert again["nodes"] == saved["nodes"]
    assert again["id"] != saved["id"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "The file is not JSON."),
        ("{}", "The file holds no conversation."),
        ('{"nodes": {}, "version": 9}', "version 9"),
        (conversation(2).replace('"parent": "root"', '"parent": "m1"'), "form no tree"),
        (conversation(2).replace('"children": []', '"children": ["m0"]'), "form no tree"),
        (conversation(2).replace('"user"', '"system"'), "unknown role"),
    ],
)
def test_a_damaged_file_is_refused(driver: Driver, text: str, message: str) -> None:
    driver.open().import_file(text)
    driver.page.wait_for_selector(f'#notice:has-text("{message}")')


def test_conversations_are_stored(driver: Driver) -> None:
    page = driver.open().page
    answer = driver.ask("the sea")
    driver.press("New")
    driver.ask("the boats")
    driver.choose("base")
    driver.ask("123 boats")
    page.reload()
    page.wait_for_selector(TOKENS, state="attached")
    assert page.locator("#conversations .entry").all_inner_texts() == [
        "123 boats\nCompletion · base", "the boats\nChat · chat", "the sea\nChat · chat"
    ]  # fmt: skip
    page.get_by_role("link", name="the sea").click()
    page.wait_for_function(
        "(text) => document.querySelector('.message.user .text')?.textContent === text", arg="the sea"
    )
    page.wait_for_selector(TOKENS, state="attached")
    assert driver.answer == answer
    assert driver.focus == "draft"
    page.get_by_role("link", name="the boats").click()
    page.wait_for_selector('.message.user .text:has-text("the boats")')
    assert driver.focus == "draft"


def test_a_deleted_conversation_does_not_come_back(driver: Driver) -> None:
    page = driver.open(tokens=4000).page
    driver.begin("the sea")
    driver.press("Delete “the sea”")
    page.wait_for_selector("#send:not([hidden])")
    assert page.locator("#conversations .title").all_text_contents() == ["New conversation"]
    page.reload()
    page.wait_for_selector("#draft")
    assert page.locator("#conversations .title").all_text_contents() == ["New conversation"]


def test_an_alternative_rewinds(driver: Driver) -> None:
    page = driver.open(tokens=8).page
    driver.ask("the sea")
    before = driver.texts()
    page.locator(TOKENS).nth(3).click()
    rows = page.locator("#token-panel tbody tr")
    assert rows.count() == 8
    cells = rows.first.locator("td").all_text_contents()
    assert re.fullmatch(r"[\d.]+ %", cells[1])
    assert re.fullmatch(r"[\d.]+ %", cells[2])
    rows.locator("button:not(:disabled)").nth(1).click()
    after = driver.rewound()
    assert after[:3] == before[:3]
    assert after[3] != before[3]
    assert len(after) == 3 + 1 + 8
    assert len(driver.asked[1]["continue_ids"]) == 4
    assert driver.versions() == ["2/2"]
    driver.press("Previous version")
    assert driver.texts() == before
    assert page.is_hidden("#token-panel")


def test_hovering_shows_the_panel_and_leaving_hides_it(driver: Driver) -> None:
    page = driver.open().page
    driver.ask("the sea")
    page.locator(TOKENS).nth(2).hover()
    page.wait_for_selector("#token-panel", state="visible")
    page.hover("#draft")
    page.wait_for_selector("#token-panel", state="hidden")


def test_probabilities_are_never_shown_by_colour_alone(driver: Driver) -> None:
    page = driver.open(tokens=40).page
    driver.ask("the sea")
    styles = page.evaluate("""() => [1, 2, 3, 4, 5].map((level) => {
        const style = getComputedStyle(document.querySelector(`.legend .level-${level}`));
        return style.textDecorationLine + style.textDecorationStyle;
    })""")
    assert len(set(styles)) == 5
    assert re.search(r", [<\d.]+ %$", page.get_attribute(TOKENS, "aria-label"))
    page.uncheck("#shows-tokens")
    page.wait_for_selector(TOKENS, state="detached")
    assert page.text_content(".message.assistant .text")
    assert page.is_hidden(".legend")


def test_attention_of_a_token(driver: Driver) -> None:
    page = driver.open().page
    driver.ask("the sea")
    page.locator(TOKENS).nth(5).click()
    driver.press("Show the attention")
    page.wait_for_selector("dialog .attended span")
    assert "".join(page.locator(".attended span").all_text_contents()).endswith("".join(driver.texts()[:5]))
    chosen = driver.texts()[5].strip()
    assert chosen in page.text_content("#dialog-heading")
    said = page.text_content("#attention-shown")
    assert chosen in said
    assert "the mean of all 4 heads of layer 1, the last." in said
    first = page.text_content(".strongest")
    page.select_option("#attention-layer", "mean")
    page.select_option("#attention-head", "3")
    assert page.text_content(".strongest") != first
    assert "head 3 and all 2 layers" in page.text_content("#attention-shown")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog", state="detached")
    assert page.evaluate("() => document.activeElement.closest('#token-panel') !== null")


def test_gates_of_a_recurrent_model(driver: Driver) -> None:
    page = driver.open("rnn").page
    driver.ask("the sea")
    page.locator(TOKENS).nth(5).click()
    driver.press("Show the gates")
    page.wait_for_selector("dialog .gates")
    assert page.locator(".gates").count() == 2
    assert "forget gate" in page.text_content("dialog")


def test_a_base_model_continues_prompts(driver: Driver) -> None:
    page = driver.open("base", tokens=9).page
    driver.ask("the sea is")
    driver.ask("123 boats")
    assert [body["prompt"] for body in driver.asked] == ["the sea is", "123 boats"]
    assert page.locator("#system").count() == 0
    page.locator(TOKENS).nth(2).click()
    page.locator("#token-panel tbody button:not(:disabled)").first.click()
    assert len(driver.rewound()) == 3 + 9
    driver.choose("chat")
    assert page.locator(".message").count() == 0


def test_everything_works_by_keyboard(driver: Driver) -> None:
    page = driver.open(tokens=8).page
    page.fill("#sampling-seed", "3")  # a seed whose answer has a token at each place below
    page.focus("#draft")
    page.keyboard.type("the sea")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("is calm")
    page.keyboard.press("Enter")
    driver.finished()
    assert driver.asked[0]["messages"][0]["content"] == "the sea\nis calm"
    before = driver.texts()
    for _ in range(20):
        page.keyboard.press("Shift+Tab")
        if page.evaluate("() => document.activeElement.matches('.token')"):
            break
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.wait_for_timeout(400)  # a panel closes 250 ms after the focus or the pointer has left; not this one
    assert page.evaluate("() => document.activeElement.closest('#token-panel') !== null")
    page.keyboard.press("Escape")
    assert page.evaluate("() => document.activeElement.dataset.index") == "2"
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert driver.rewound()[:2] == before[:2]
    assert driver.versions() == ["2/2"]
    assert driver.focus == "draft"


def test_the_keys_reach_the_alternatives_of_the_likeliest_token(driver: Driver) -> None:
    """Its own button comes first, and is disabled."""
    page = driver.open(tokens=4).page
    page.fill("#sampling-temperature", "0")
    driver.ask("the sea")
    page.locator(TOKENS).first.focus()
    page.keyboard.press("Enter")
    assert page.locator("#token-panel td button").first.is_disabled()
    assert page.evaluate("() => document.activeElement.closest('#token-panel') !== null")


@pytest.mark.window(**PHONE)
def test_a_phone_needs_no_sideways_scrolling(driver: Driver) -> None:
    page = driver.open(tokens=None).page

    def fits() -> bool:
        return bool(
            page.evaluate("""() => [document.documentElement, document.getElementById("log")]
                .every((each) => each.scrollWidth <= each.clientWidth)""")
        )

    assert fits()
    page.get_by_role("button", name="Settings").tap()
    page.fill("#sampling-max_tokens", "60")
    assert fits()
    page.keyboard.press("Escape")
    driver.ask("w" * 300)
    assert fits()
    page.locator(TOKENS).nth(8).tap()
    box = page.locator("#token-panel").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 360
    driver.press("Show the attention")
    page.wait_for_selector("dialog")
    assert fits()
    driver.press("Close")
    driver.press("Details: how this answer was made")
    page.wait_for_selector(".made table")
    assert fits()
    page.get_by_role("button", name="Model card").tap()
    assert fits()


@pytest.mark.window(**PHONE)
def test_drawers(driver: Driver) -> None:
    page = driver.open(tokens=None).page
    focused = "() => document.activeElement.textContent"
    for label, outside in (("Settings", 20), ("Conversations", 340)):
        for close in (
            lambda label=label: page.get_by_role("button", name=f"Close: {label}").tap(),
            lambda outside=outside: page.touchscreen.tap(outside, 400),
            lambda: page.keyboard.press("Escape"),
        ):
            page.get_by_role("button", name=label, exact=True).tap()
            assert page.get_by_role("dialog", name=label).is_visible()
            assert page.evaluate(focused) == "Close"
            page.keyboard.press("Shift+Tab")  # the rest of the page cannot be reached
            page.keyboard.press("Shift+Tab")
            outer = "() => document.activeElement.matches('body, .drawer.open *')"
            assert page.evaluate(outer)
            close()
            page.wait_for_selector(".drawer.open", state="detached")
            assert page.evaluate(focused) == label
    driver.begin("the sea")
    driver.press("Stop")
    driver.choose("base")
    page.get_by_role("button", name="Conversations", exact=True).tap()
    page.get_by_role("link", name="the sea").tap()
    page.wait_for_selector('.message.user .text:has-text("the sea")')
    page.click("#theme-button")  # nothing is left in front of the page
    page.get_by_role("button", name="Settings", exact=True).tap()
    page.set_viewport_size({"width": 1280, "height": 800})
    page.click("#draft")


@pytest.mark.window(color_scheme="dark")
def test_dark_and_light(driver: Driver) -> None:
    page = driver.open().page

    def lightness() -> int:
        colour = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
        return sum(map(int, re.findall(r"\d+", colour)[:3])) // 3

    assert lightness() < 60
    page.click("#theme-button")
    assert page.text_content("#theme-button") == "Theme: light"
    assert lightness() > 200
    page.reload()
    assert lightness() > 200


def test_500_messages_cost_no_more_than_four(driver: Driver) -> None:
    page = driver.open().page
    driver.import_file(conversation(500, "the sea"))
    page.wait_for_selector(".message:nth-child(500)")
    driver.answer_with({"id": 5, "text": "fine", "logprob": -1.0, "ends": False, "alternatives": []})
    assert page.locator(".message .token").count() < 500  # tokens far from the window have no elements
    page.evaluate("""() => {
        window.changed = 0;
        new MutationObserver((changes) => {
            for (const each of changes) window.changed += each.addedNodes.length + each.removedNodes.length;
        }).observe(document.body, { childList: true, subtree: true });
    }""")
    changed = []
    for n in (500, 4):
        driver.import_file(conversation(n, "the sea"))
        page.wait_for_function(f"() => document.querySelectorAll('.message').length === {n}")
        page.evaluate("() => { window.changed = 0; }")
        driver.ask("the sea")
        changed.append(page.evaluate("() => window.changed"))
        assert page.locator(".message").count() == n + 2
    assert 0 < changed[0] < 2 * changed[1] + 50, changed  # a question changes as much in a long conversation


def test_html_is_shown_as_text(driver: Driver) -> None:
    page = driver.open().page
    driver.ask(HTML)
    driver.import_file(conversation(2, HTML))
    page.wait_for_selector(TOKENS, state="attached")
    page.locator(TOKENS).first.click()
    driver.answer_with({"id": 5, "text": HTML, "logprob": -1.0, "ends": False, "alternatives": []})
    assert driver.ask("the sea") == HTML
    assert page.evaluate("() => window.hacked") is None
    assert page.locator("main img, main script, #token-panel img").count() == 0
    assert page.text_content(".message.user .text") == HTML


def test_the_meter_counts_the_context(driver: Driver) -> None:
    page = driver.open(tokens=5).page
    page.fill("#draft", "the weather is fine")
    counted = page.evaluate("""async () => {
        const messages = [{role: "user", content: "the weather is fine"}];
        const body = JSON.stringify({model: "chat", messages});
        const headers = {"Content-Type": "application/json"};
        return (await (await fetch("tokenize", {method: "POST", headers, body})).json()).count;
    }""")
    page.wait_for_selector(f'#context-text:has-text("{counted} of {CONTEXT:,} tokens")')
    page.press("#draft", "Enter")
    driver.finished()
    page.wait_for_selector(f'#context-text:has-text("{counted + 5} of {CONTEXT:,} tokens")')
    assert page.evaluate("() => document.getElementById('context-meter').value") == counted + 5


def test_sampling_settings(driver: Driver) -> None:
    page = driver.open().page
    assert page.get_attribute("#sampling-temperature", "placeholder") == "0.7"
    assert page.get_attribute("#sampling-top_k", "placeholder") == "20"
    values = {
        "temperature": 0.5, "top_k": 3, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.2,
        "presence_penalty": 0.5, "frequency_penalty": -0.5, "max_tokens": 4, "seed": 7,
    }  # fmt: skip
    for name, value in values.items():
        page.fill(f"#sampling-{name}", str(value))
    page.fill("#sampling-stop", "\\n\n the end")
    page.fill("#system", "be brief")
    first = driver.ask("the sea")
    driver.press("Retry: write another answer")
    assert driver.finished() == first  # the seed is fixed
    body = driver.asked[0]
    assert body["messages"][0] == {"role": "system", "content": "be brief"}
    assert {name: body[name] for name in values} == values
    assert body["stop"] == ["\n", " the end"]
    page.fill("#sampling-top_p", "2")
    page.fill("#draft", "more")
    page.press("#draft", "Enter")
    page.wait_for_selector('#notice:has-text("Top p")')
    assert page.input_value("#draft") == "more"
    driver.press("Use the checkpoint's settings")
    assert page.input_value("#sampling-top_p") == page.input_value("#sampling-stop") == ""


def test_the_error_of_the_server_is_shown(driver: Driver) -> None:
    page = driver.open("base", tokens=None).page
    driver.expected.append("400")
    page.fill("#draft", "the sea " * 600)
    page.press("#draft", "Enter")
    page.wait_for_selector('.note.error:has-text("the context holds 512")')
    assert driver.focus == "draft"


@pytest.mark.parametrize(("model", "spare"), [("chat", 0), ("base", 1)])
def test_an_answer_that_fills_the_context_says_so(driver: Driver, model: str, spare: int) -> None:
    """The page leaves room for a start token before a text, and none before a chat, which has its own."""
    page = driver.page

    def with_short_context(route: Any) -> None:
        route.fulfill(json=route.fetch().json() | {"context": 60})

    page.route("**/card", with_short_context)
    driver.open(model, tokens=400)
    driver.ask("the sea")
    used = int(page.text_content("#context-text").split()[0])
    assert used == 60 - spare
    assert page.text_content(".message.assistant .note") == "Reached the end of the context."
    assert page.get_by_role("button", name="Continue this answer").count() == 0
    page.fill("#sampling-max_tokens", "5")
    driver.press("Retry: write another answer")
    driver.finished()
    assert page.text_content(".message.assistant .note") == "Reached the largest number of tokens."
    page.unroute_all()


def test_the_model_card(driver: Driver) -> None:
    page = driver.open().page
    page.click("#card-button")
    text = page.text_content("dialog")
    assert "llama" in text
    assert "loss1.5" in text
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog", state="detached")
    assert driver.focus == "card-button"


def test_the_page_works_behind_a_proxy_with_a_path(driver: Driver) -> None:
    page, root = driver.page, driver.address

    def pass_on(route: Any) -> None:
        route.fulfill(response=route.fetch(url=route.request.url.replace("/models/loom/", "/")))

    page.route(f"{root}models/loom/**", pass_on)
    page.on(
        "request",
        lambda request: driver.problems.append(request.url) if "/loom/" not in request.url else None,
    )
    driver.address = f"{root}models/loom/"
    driver.open(tokens=3)
    assert driver.ask("the sea")
    page.unroute_all(behavior="wait")


def test_the_key_is_asked_for_once(chromium: Any, server_with_key: str) -> None:
    context = chromium.new_context()
    driver = Driver(context.new_page(), server_with_key)
    driver.expected.append("401")
    page = driver.page
    page.goto(server_with_key)
    page.fill("#api-key", "wrong")
    page.keyboard.press("Enter")
    page.wait_for_selector('dialog:has-text("refused")')
    page.fill("#api-key", "open sesame")
    page.keyboard.press("Enter")
    page.wait_for_selector("#draft")
    page.fill("#sampling-max_tokens", "3")
    assert driver.ask("the sea")
    page.reload()
    page.wait_for_selector("#draft")
    assert page.locator("dialog").count() == 0
    assert page.evaluate("() => JSON.stringify(localStorage).includes('sesame')") is False
    assert page.evaluate("() => JSON.stringify(sessionStorage).includes('sesame')") is True
    context.close()
    driver.check()


def test_the_page_works_without_storage(chromium: Any, server_with_key: str) -> None:
    context = chromium.new_context()
    context.add_init_script("""for (const name of ["localStorage", "sessionStorage"]) {
        Object.defineProperty(window, name, {
            get() { throw new DOMException("The operation is insecure.", "SecurityError"); },
        });
    }""")
    driver = Driver(context.new_page(), server_with_key)
    driver.expected.append("401")
    page = driver.page
    page.goto(server_with_key)
    for key, said in (("wrong", "asks for an API key"), ("open sesame", "refused this key")):
        page.wait_for_selector(f'dialog:has-text("{said}")')
        page.fill("#api-key", key)
        page.keyboard.press("Enter")
    page.wait_for_selector("#draft")
    page.fill("#sampling-max_tokens", "3")
    assert driver.ask("the sea")
    page.wait_for_selector('#notice:has-text("This conversation is not stored")')
    driver.press("Delete “the sea”")
    assert page.locator(".message").count() == 0
    driver.press("Undo")
    page.wait_for_selector(TOKENS)
    context.close()
    driver.check()


def test_a_key_that_no_header_can_hold_is_not_stored(chromium: Any, server_with_key: str) -> None:
    context = chromium.new_context()
    driver = Driver(context.new_page(), server_with_key)
    driver.expected.append("401")
    page = driver.page
    page.goto(server_with_key)
    for key in ("ключ", "clé", "  "):
        page.fill("#api-key", key)
        page.keyboard.press("Enter")
        page.wait_for_selector('dialog [role=alert]:has-text("A key consists of ASCII letters, digits")')
        assert page.evaluate("() => sessionStorage.length") == 0
    page.evaluate("() => sessionStorage.setItem('wordloom-api-key', 'ключ')")
    page.reload()
    page.wait_for_selector('dialog:has-text("This server asks for an API key.")')
    assert page.is_hidden("#notice")
    page.fill("#api-key", "open sesame")
    page.keyboard.press("Enter")
    page.wait_for_selector("#draft")
    context.close()
    driver.check()


def test_an_answer_that_ends(driver: Driver) -> None:
    page = driver.open().page
    end = {"id": 0, "token": "<|endoftext|>", "logprob": -2.0, "kept": 0.1, "ends": True}
    word = {"id": 5, "token": "sea", "logprob": -0.5, "kept": 0.6, "ends": False}
    driver.answer_with(
        {"id": 5, "text": "sea", "logprob": -0.5, "ends": False, "alternatives": [word, end]},
        {"id": 0, "text": "", "logprob": -2.0, "ends": True, "alternatives": [word, end]},
    )
    assert driver.ask("the") == "sea"
    assert page.locator(".message.assistant .end").count() == 1
    assert page.get_by_role("button", name="Continue this answer").count() == 0
    page.locator(TOKENS).first.click()
    driver.press("end of the answer")
    page.wait_for_selector('.version:has-text("2/2")')
    assert driver.answer == ""
    assert page.locator(".message.assistant .end").count() == 1
    assert len(driver.asked) == 1

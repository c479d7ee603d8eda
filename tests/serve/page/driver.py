"""Uses the page as a person does."""

from __future__ import annotations

import json
import re
from typing import Any

TOKENS = ".message.assistant:last-child .token[data-index]"


class Driver:
    """A window with the page.

    Attributes:
        page: the page of Playwright.
        expected: parts of console errors that a test expects.
        asked: the bodies of the requests for answers.
    """

    def __init__(self, page: Any, address: str) -> None:
        self.page, self.address = page, address
        self.expected: list[str] = []
        self.problems: list[str] = []
        self.asked: list[dict[str, Any]] = []
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("request", self._request)

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(message.text)

    def _request(self, request: Any) -> None:
        if not request.url.startswith((self.address, "blob:", "data:")):
            self.problems.append(f"a request to {request.url}")
        if request.url.endswith("completions"):
            self.asked.append(json.loads(request.post_data))

    def check(self) -> None:
        """Fail on an error of the page that was not expected."""
        problems = [each for each in self.problems if not any(part in each for part in self.expected)]
        assert problems == []

    def open(self, model: str = "chat", *, tokens: int | None = 12) -> Driver:
        """Open the page with a model; answers have this many tokens at most."""
        self.page.goto(self.address)
        self.page.wait_for_selector("#draft")
        if model != "chat":
            self.choose(model)
        if tokens is not None:
            self.page.fill("#sampling-max_tokens", str(tokens))
        return self

    def choose(self, model: str) -> None:
        self.page.select_option("#model", model)
        self.page.wait_for_selector("#view[aria-busy=false]")

    def begin(self, text: str) -> None:
        """Send a message, and wait until its answer has tokens."""
        self.page.fill("#draft", text)
        self.page.press("#draft", "Enter")
        self.page.wait_for_selector(TOKENS, state="attached")

    def ask(self, text: str) -> str:
        """Send a message, and return the answer."""
        self.page.fill("#draft", text)
        self.page.press("#draft", "Enter")
        return self.finished()

    def finished(self) -> str:
        """Wait for the end of the answer, and return it."""
        self.page.wait_for_selector("#send:not([hidden])")
        return self.answer

    def rewound(self) -> list[str]:
        """Wait for the end of the second version of the last answer, and return the texts of its tokens."""
        self.page.wait_for_selector('.message:last-child .version:has-text("2/2")')
        self.finished()
        return self.texts()

    @property
    def answer(self) -> str:
        """The text of the last answer, without the mark of its end."""
        return str(
            self.page.evaluate("""() => {
                const texts = document.querySelectorAll(".message.assistant .text");
                const text = texts[texts.length - 1].cloneNode(true);
                text.querySelector(".end")?.remove();
                return text.textContent;
            }""")
        )

    def texts(self) -> list[str]:
        """The texts of the tokens of the last answer."""
        self.page.wait_for_selector(TOKENS, state="attached")
        return list(self.page.locator(f"{TOKENS}:not(.end)").all_text_contents())

    @property
    def status(self) -> str:
        return str(self.page.text_content("#status"))

    def press(self, name: str) -> None:
        """Press the last button with this name."""
        button = self.page.get_by_role("button", name=name, exact=True).last
        if button.locator("xpath=ancestor::*[@id='token-panel']").count() == 0:
            self.page.mouse.move(0, 0)  # the pointer may rest on a token, whose panel could cover the button
        button.click()

    def versions(self) -> list[str]:
        """The numbers of the shown versions, such as 2/3."""
        return list(self.page.locator(".version").all_text_contents())

    @property
    def focus(self) -> str:
        """The id of the focused element."""
        return str(self.page.evaluate("() => document.activeElement.id"))

    def answer_with(self, *tokens: dict[str, Any], finish: str = "stop") -> None:
        """Answer all later messages in place of the server, with these tokens."""
        choice = {"index": 0, "delta": {}, "tokens": list(tokens), "finish_reason": finish}
        events = f"data: {json.dumps({'choices': [choice]})}\n\ndata: [DONE]\n\n"
        self.page.route(
            re.compile("/v1/(chat/)?completions$"),
            lambda route: route.fulfill(content_type="text/event-stream", body=events),
        )

    def import_file(self, text: str) -> None:
        file = {"name": "chat.json", "mimeType": "application/json", "buffer": text.encode()}
        self.page.set_input_files("#import-file", files=[file])

    def export(self) -> dict[str, Any]:
        with self.page.expect_download() as download:
            self.press("Export")
        return dict(json.loads(download.value.path().read_text()))

"""The details of an answer: those of the version in view, with which it can be repeated exactly."""

from __future__ import annotations

import json
import re

from tests.serve.page.driver import TOKENS, Driver
from tests.serve.page.test_addresses import shows

DETAILS = "Details: how this answer was made"


def test_an_answer_is_repeated_from_its_details(driver: Driver) -> None:
    page = driver.open(tokens=None).page
    page.fill("#system", "be brief")
    page.fill("#sampling-temperature", "1.5")
    page.fill("#sampling-max_tokens", "20")
    page.fill("#sampling-stop", "zzz")
    page.get_by_role("textbox", name="Stop strings").blur()
    first = driver.ask("the sea")
    seed = driver.asked[0]["seed"]
    assert driver.asked[0]["return_settings"] is True
    saved = driver.export()
    driver.press("Use the checkpoint's settings")
    page.fill("#system", "")
    driver.import_file(json.dumps(saved))
    page.wait_for_function("() => document.querySelectorAll('#conversations li').length === 2")
    page.reload()
    shows(driver, "the sea")
    page.wait_for_selector(TOKENS, state="attached")
    page.fill("#system", "be long")
    driver.press(DETAILS)
    rows = page.locator(".made tr").all_inner_texts()
    assert f"Seed\t{seed}\tdrawn for this answer" in rows
    assert "Temperature\t1.5\tyour setting" in rows
    assert "Top k\t20\tgeneration_config.json" in rows
    assert 'Stop strings\t"zzz"\tyour setting' in rows
    assert "System message\tbe brief\t" in rows
    driver.press("Repeat exactly")
    page.wait_for_selector('.version:has-text("2/2")')
    assert driver.finished() == first
    assert driver.status.endswith("The same tokens again.")
    assert {**driver.asked[1], **driver.asked[0]} == driver.asked[1]
    driver.press(DETAILS)
    driver.press("Use these settings")
    assert page.input_value("#sampling-seed") == str(seed)
    assert page.input_value("#sampling-stop") == "zzz"


def test_stopped_and_continued_answers_are_repeated(driver: Driver) -> None:
    page = driver.open(tokens=400).page
    driver.begin("the sea")
    page.keyboard.press("Escape")
    driver.finished()
    begun = driver.texts()
    page.fill("#sampling-max_tokens", "5")
    driver.press("Continue this answer")
    whole = driver.rewound()
    assert whole[: len(begun)] == begun
    driver.press(DETAILS)
    driver.press("Repeat exactly")
    page.wait_for_selector('.version:has-text("3/3")')
    driver.finished()
    assert driver.texts() == whole
    driver.press("Previous version")
    driver.press("Previous version")
    driver.press(DETAILS)
    driver.press("Repeat exactly")
    page.wait_for_selector('.version:has-text("4/4")')
    driver.finished()
    assert driver.texts()[: len(begun)] == begun


def test_the_line_below_the_box_describes_the_version_in_view(driver: Driver) -> None:
    page = driver.open(tokens=5).page
    driver.ask("the sea")
    used = int(page.text_content("#context-text").split()[0])
    page.fill("#sampling-max_tokens", "9")
    driver.press("Retry: write another answer")
    driver.finished()

    def describes(tokens: int, version: str, more: int) -> None:
        page.wait_for_selector(f'#context-text:has-text("{used + more} of")')
        assert re.fullmatch(rf"Done: {tokens} tokens, [\d.]+ tokens/s \({version}\)", driver.status)

    describes(9, "version 2 of 2", 4)
    driver.press("Previous version")
    describes(5, "version 1 of 2", 0)
    page.fill("#sampling-max_tokens", "4000")
    driver.press("Retry: write another answer")
    page.wait_for_selector(TOKENS, state="attached")
    driver.press("Previous version")  # stops the third one
    driver.finished()
    describes(9, "version 2 of 3", 4)
    page.reload()
    page.wait_for_selector(TOKENS, state="attached")
    describes(9, "version 2 of 3", 4)
    driver.press("New")
    page.wait_for_selector('#context-text:has-text("0 of")')
    assert driver.status == ""

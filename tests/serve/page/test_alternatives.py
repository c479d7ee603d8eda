"""A chosen alternative: the text that it adds, and what happens if the user leaves in the meantime."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.serve.page.driver import TOKENS, Driver
from tests.serve.servers import running
from tests.serve.tiny import CONFIGS, TEXTS

from wordloom.models import build
from wordloom.text import Tokenizer
from wordloom.weights import save_model

LEAD, TAIL = b"\xc3", b"\xa9"  # of the letter é
REPLACEMENT = "\ufffd"


def token(index: int, text: str, alternative: int | None = None) -> dict[str, Any]:
    """A token as the server reports it, with one alternative."""
    other = {"id": alternative, "token": "other", "logprob": -2.0, "kept": 0.1, "ends": False}
    alternatives = [] if alternative is None else [other]
    return {"id": index, "text": text, "logprob": -1.0, "ends": False, "alternatives": alternatives}


def last_answer(driver: Driver) -> dict[str, Any]:
    """Return the exported node of the answer that was written last."""
    return dict(list(driver.export()["nodes"].values())[-1])


@pytest.fixture(scope="session")
def tokenizer(folders: dict[str, Path]) -> Tokenizer:
    return Tokenizer.from_pretrained(folders["chat"])


@pytest.mark.parametrize(
    ("before", "alternative", "begins"),
    [
        ([(b"s", "s")], LEAD, f"s{REPLACEMENT}"),
        ([(b"s", "s"), (LEAD, "")], TAIL, "sé"),
        ([(b"s", "s"), (LEAD, "")], b"e", f"s{REPLACEMENT}e"),
        ([(b"s", "s"), (TAIL, REPLACEMENT)], b"e", f"s{REPLACEMENT}e"),
        ([(b"s", "s"), (TAIL, REPLACEMENT), (LEAD, "")], TAIL, f"s{REPLACEMENT}é"),
    ],
)
def test_an_alternative_may_be_a_part_of_a_character(
    driver: Driver, tokenizer: Tokenizer, before: list[tuple[bytes, str]], alternative: bytes, begins: str
) -> None:
    """The server sends a character with the token that completes it, or U+FFFD with the next token."""
    page, id_of = driver.open(tokens=3).page, (tokenizer.token_bytes or []).index
    kept = [token(id_of(piece), text) for piece, text in before]
    driver.answer_with(*kept, token(id_of(b"a"), "a", id_of(alternative)))
    driver.ask("the sea")
    page.unroute_all()
    page.locator(TOKENS).nth(len(kept)).click()
    driver.press("other")
    driver.rewound()
    answer = last_answer(driver)
    ids = [each["id"] for each in answer["tokens"]]
    assert driver.asked[1]["continue_ids"] == [*(each["id"] for each in kept), id_of(alternative)]
    assert driver.answer == answer["content"] == tokenizer.decode(ids)
    assert answer["content"].startswith(begins)


def test_an_answer_that_ends_within_a_character_continues(driver: Driver, tokenizer: Tokenizer) -> None:
    page, id_of = driver.open(tokens=3).page, (tokenizer.token_bytes or []).index
    driver.answer_with(token(id_of(b"s"), "s"), token(id_of(LEAD), REPLACEMENT), finish="length")
    assert driver.ask("the sea") == f"s{REPLACEMENT}"
    page.unroute_all()
    driver.answer_with(token(id_of(TAIL), "é"))
    driver.press("Continue this answer")
    driver.rewound()
    assert driver.answer == "sé"


@pytest.fixture(scope="session")
def server_with_pieces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of a model whose tokenizer is SentencePiece's."""
    sentencepiece = pytest.importorskip("sentencepiece")
    file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS), model_writer=file, model_type="bpe", byte_fallback=True,
        vocab_size=300, hard_vocab_limit=False, normalization_rule_name="identity", minloglevel=2,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("pieces")
    (folder / "tokenizer.model").write_bytes(file.getvalue())
    tokenizer = Tokenizer.from_pretrained(folder)
    assert tokenizer.strips_first_space
    model = build(CONFIGS["llama"](tokenizer.vocab_size), generator=torch.Generator().manual_seed(1))
    save_model(model, folder / "model", tokenizer=tokenizer)
    with running({"pieces": folder / "model"}) as found:
        yield f"{found.url}/"


def test_an_alternative_to_the_first_token_keeps_its_space(
    chromium: Any, server_with_pieces: str, tmp_path: Path
) -> None:
    context = chromium.new_context()
    driver = Driver(context.new_page(), server_with_pieces)
    page = driver.open(tokens=1).page
    found = page.request.post(f"{driver.address}tokenize", data={"model": "pieces", "text": "is the"}).json()
    driver.answer_with(token(5, "x", found["ids"][-1]))
    driver.ask("the sea")
    page.unroute_all()
    page.locator(TOKENS).first.click()
    driver.press("other")
    assert driver.rewound()[0] == found["tokens"][-1]
    assert found["tokens"][-1].startswith(" ")
    context.close()
    driver.check()


@pytest.mark.parametrize("leaves", ["conversation", "model"])
def test_leaving_before_the_text_of_an_alternative_arrives(driver: Driver, leaves: str) -> None:
    page = driver.open(tokens=6).page
    driver.ask("the sea")
    held: list[Any] = []
    page.route("**/detokenize", lambda route: held.append(route))
    page.locator(TOKENS).nth(2).click()
    with page.expect_request("**/detokenize"):
        page.locator("#token-panel tbody button:not(:disabled)").first.click()
    if leaves == "conversation":
        driver.press("New")
    else:
        driver.choose("base")
    page.fill("#sampling-max_tokens", "400")
    driver.begin("the boats")
    with page.expect_response("**/detokenize"):
        for route in held:
            route.continue_()
    driver.finished()
    page.wait_for_timeout(200)
    assert driver.status.startswith("Done: 400 tokens")  # nothing has stopped it
    assert page.is_hidden("#notice")
    assert len(driver.asked) == 2


def test_leaving_before_the_attention_arrives(driver: Driver) -> None:
    page = driver.open(tokens=6).page
    driver.ask("the sea")
    held: list[Any] = []
    page.route("**/inspect", lambda route: held.append(route))
    page.locator(TOKENS).nth(2).click()
    with page.expect_request("**/inspect"):
        driver.press("Show the attention")
    driver.press("New")
    with page.expect_response("**/inspect"):
        held[0].continue_()
    page.wait_for_timeout(200)
    assert page.locator("dialog").count() == 0

"""The views of models that generate no text, with answers as their endpoints give them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from tests.serve.page.driver import Driver


class Kind(NamedTuple):
    """A kind of model: the form's values, the request that they make, the answer, and the shown cells."""

    description: str
    values: dict[str, str]
    button: str
    path: str
    request: dict[str, Any]
    answer: dict[str, Any]
    cells: list[str]
    card: Mapping[str, Any] = MappingProxyType({})


LABELS = {"labels": [{"label": "good", "probability": 0.75}, {"label": "bad", "probability": 0.25}]}
KINDS = {
    "translation": Kind(
        "a translation model",
        {"texts": "the sea\n\nthe boat"},
        "Translate",
        "translate",
        {"texts": ["the sea", "the boat"], "n_best": 1, "alignment": True},
        {
            "data": [
                {
                    "translations": [{"text": "das <b>Meer</b>", "score": -0.5}],
                    "alignment": {
                        "source": ["the", "sea"],
                        "target": ["das", "Meer"],
                        "weights": [[0.9, 0.1], [0.2, 0.8]],
                    },
                },
                {"translations": [{"text": "das Boot", "score": -0.75}], "alignment": None},
            ]
        },
        ["das <b>Meer</b>", "-0.50", "90 %", "das Boot"],
    ),
    "masked": Kind(
        "an encoder",
        {"text": "the [MASK] is fine", "top_k": "2"},
        "Fill in",
        "fill-mask",
        {"text": "the [MASK] is fine", "top_k": 2},
        {
            "data": [
                {"masks": [[{"token": "sea", "probability": 0.5}, {"token": "day", "probability": 0.25}]]}
            ]
        },
        ["sea", "50 %", "day", "the sea is fine", "the day is fine"],
        {"mask_token": "[MASK]"},
    ),
    "masked bytes": Kind(
        "an encoder",
        {"text": "A <mask> and <mask>!"},
        "Fill in",
        "fill-mask",
        {"text": "A <mask> and <mask>!", "top_k": 5},
        {
            "data": [
                {
                    "masks": [
                        [{"token": "Ġcaf\u00c3\u00a9", "probability": 0.5}],
                        [{"token": "\u00e2\u0122\u00a6", "probability": 0.25}],
                    ]
                }
            ]
        },
        [" café", "A café and <mask>!", "…", "A <mask> and …!"],
        {"mask_token": "<mask>", "tokenizer": {"kind": "bpe", "vocab_size": 300}},
    ),
    "classification": Kind(
        "a classifier",
        {"texts": "fine"},
        "Predict",
        "classify",
        {"texts": ["fine"]},
        {"data": [{"label": "good", "probability": 0.75, **LABELS, "truncated": True}]},
        ["good", "75 %", "bad"],
        {"texts": 1},
    ),
    "pairs": Kind(
        "a model for regression",
        {"texts": "fine", "pair": "good"},
        "Predict",
        "classify",
        {"pairs": [["fine", "good"]]},
        {"data": [{"score": 4.5, "truncated": False}]},
        [],
        {"texts": 2},
    ),
    "token classification": Kind(
        "a model for token classification",
        {"texts": "the sea"},
        "Predict",
        "classify",
        {"texts": ["the sea"]},
        {
            "data": [
                {
                    "words": [
                        {"word": "the", "label": "DET", "probability": 0.9},
                        {"word": "sea", "label": None, "probability": None},
                    ],
                    "truncated": True,
                }
            ]
        },
        ["the", "DET", "90 %", "sea", "not read"],
    ),
    "choices": Kind(
        "a model for multiple choice",
        {"prompt": "the sea is", "choices": "calm\nloud"},
        "Choose",
        "classify",
        {"prompt": "the sea is", "choices": ["calm", "loud"]},
        {"data": [{"choice": 0, "probabilities": [0.8, 0.2]}]},
        ["calm", "80 %", "loud", "20 %"],
    ),
    "answering": Kind(
        "a model for question answering",
        {"question": "what is calm?", "context": "🌊 the sea is calm"},
        "Answer",
        "answer",
        {"question": "what is calm?", "context": "🌊 the sea is calm", "top_k": 3},
        {"answers": [{"answer": "the sea", "start": 2, "end": 9, "probability": 0.7}]},
        ["the sea", "70 %"],
    ),
    "similarity": Kind(
        "an encoder",
        {"one": "the sea", "others": "the boat\n\nthe <i>sea</i>"},
        "Compare",
        "v1/embeddings",
        {"input": ["the sea", "the boat", "the <i>sea</i>"], "normalize": True},
        {"data": [{"embedding": [1, 0]}, {"embedding": [0.6, 0.8]}, {"embedding": [0.96, 0.28]}]},
        ["the <i>sea</i>", "0.960", "the boat", "0.600"],
    ),
    "map": Kind(
        "word vectors",
        {"words": "king, man", "around": "1"},
        "Draw the map",
        "map",
        {"words": ["king", "man"], "neighbours": 1, "method": "pca"},
        {
            "method": "pca",
            "explained": [0.3, 0.2],
            "data": [
                {"word": "king", "x": 0.0, "y": 0.0, "group": 0, "asked": True},
                {"word": "man", "x": 1.0, "y": 0.5, "group": 1, "asked": True},
                {"word": "queen<b>", "x": 0.3, "y": 0.2, "group": 0, "asked": False},
                {"word": "prince", "x": 0.0, "y": 1e-9, "group": 0, "asked": False},
                {"word": "boy", "x": 1.0, "y": 0.0, "group": 1, "asked": False},
            ],
        },
        ["queen<b>", "king", "boy", "man", "0.50"],
    ),
    "words": Kind(
        "word vectors",
        {"positive": "king, woman", "negative": "man"},
        "Find words",
        "analogy",
        {"positive": ["king", "woman"], "negative": ["man"], "top_k": 10},
        {"data": [{"word": "queen", "score": 0.7}]},
        ["queen", "0.700"],
    ),
}


def show_kind(driver: Driver, name: str) -> dict[str, Any]:
    """Open a view, send its form, and return the request."""
    kind, page = KINDS[name], driver.page
    card = {
        "id": "chat", "kind": kind.description, "bytes": 1, "context": None, "metrics": {}, "chat": False,
        "mask_token": None, "texts": None, **kind.card,
    }  # fmt: skip
    page.unroute_all()
    page.route("**/card", lambda route: route.fulfill(json=card))
    page.route(f"**/{kind.path}", lambda route: route.fulfill(json=kind.answer))
    page.goto(driver.address)
    for field, value in kind.values.items():
        page.fill(f"#query-{field}", value)
    with page.expect_request(f"**/{kind.path}") as request:
        page.get_by_role("button", name=kind.button).click()
    page.wait_for_selector(".results[aria-busy=false]:not(:empty)")
    return dict(json.loads(request.value.post_data))


@pytest.mark.window(viewport={"width": 360, "height": 720})
@pytest.mark.parametrize("name", KINDS)
def test_results(driver: Driver, name: str) -> None:
    asked = show_kind(driver, name)
    assert asked == {"model": "chat", **KINDS[name].request}
    cells = driver.page.locator(".results td").all_text_contents()
    assert [cell for cell in KINDS[name].cells if cell not in cells] == []
    assert driver.page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    labels = driver.page.locator("main label").all_text_contents()
    headings = driver.page.locator("main form, main h2").locator("xpath=self::h2").all_text_contents()
    assert len({*labels, *headings}) == len([*labels, *headings])
    assert (driver.page.locator("#query-pair").count() == 1) == (name == "pairs")
    if name == "answering":
        assert driver.page.text_content(".results mark") == "the sea"
    if name == "map":
        assert driver.page.locator(".map text").all_text_contents() == ["king", "man", "queen<b>", "boy"]
        assert "prince" in driver.page.locator(".map title").all_text_contents()  # its name has no room
        assert "show 50 % of" in driver.page.text_content("main")
        assert driver.page.locator(".map text.asked").count() == 2
    if name == "similarity":
        assert driver.page.locator("#query-text").count() == 0
    if name == "pairs":
        assert driver.page.text_content(".results .score") == "Score 4.500"


SAMPLES = {
    "texts": "the cat sat",
    "text": "the [MASK] sat",
    "question": "who sat?",
    "context": "the cat sat on a mat",
    "prompt": "the cat",
    "choices": "sat\nran",
    "positive": "king",
    "word": "king",
    "words": "king cat",
    "one": "the cat sat",
    "others": "a dog\na mat",
}


MODELS = (
    "transformer", "bert", "sentences", "classification", "regression", "multiple_choice",
    "token_classification", "question_answering", "vectors", "fasttext",
)  # fmt: skip


def test_real_models_of_all_kinds(chromium: Any, kinds: Any) -> None:
    context = chromium.new_context()
    driver = Driver(context.new_page(), f"{kinds.url}/")
    page = driver.page
    page.goto(driver.address)
    for name in MODELS:
        driver.choose(name)
        for field, value in SAMPLES.items():
            for box in page.locator(f"#query-{field}").all():
                box.fill(value)
        for number, button in enumerate(page.locator("main button[type=submit]").all()):
            button.click()
            page.locator(".results").nth(number).locator(".map, table, .score").first.wait_for()
        assert page.is_hidden("#notice"), name
    context.close()
    driver.check()


def test_an_unknown_kind_has_its_card(driver: Driver) -> None:
    page = driver.page
    card = {"id": "chat", "kind": "a riddle", "bytes": 1, "context": None, "metrics": {}, "chat": False}
    page.route("**/card", lambda route: route.fulfill(json=card))
    page.goto(driver.address)
    page.wait_for_selector('main:has-text("This page has no view for a riddle.")')
    page.click("#card-button")
    assert "a riddle" in page.text_content("dialog")

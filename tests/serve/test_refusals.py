"""Requests that make no sense get an error that names the field; no request breaks the server."""

from __future__ import annotations

import json
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st
from tests.serve.conftest import Kinds

# A request to each endpoint that is answered, and a model that it is not for.
GOOD: dict[str, tuple[dict[str, Any], str]] = {
    "/v1/embeddings": ({"model": "bert", "input": ["a dog"], "dimensions": 3}, "transformer"),
    "/translate": ({"model": "transformer", "texts": ["eins"], "length_penalty": 0.5, "beams": 2}, "bert"),
    "/fill-mask": ({"model": "bert", "texts": ["a [MASK]"], "top_k": 3}, "gpt2"),
    "/classify": ({"model": "bag", "texts": ["a dog"], "top_k": 3}, "bert"),
    "/answer": (
        {"model": "question_answering", "question": "who?", "context": "a dog", "threshold": 0.5},
        "classification",
    ),
    "/analogy": ({"model": "vectors", "positive": ["king"], "negative": ["man"], "top_k": 3}, "bag"),
    "/neighbours": ({"model": "vectors", "word": "king", "top_k": 3}, "bag"),
    "/map": ({"model": "vectors", "words": ["king", "cat"], "neighbours": 2}, "bag"),
    "/score": ({"model": "gpt2", "prompt": "a", "continuations": [" dog"]}, "seq2seq"),
}
TEXTS = ("input", "texts", "question", "context", "positive", "word", "words", "continuations")
MAY_BE_NULL = ("dimensions", "threshold", "negative")
FRACTIONS = ("threshold", "length_penalty")
PATHS = list(GOOD)


def named(error: dict[str, Any], field: str) -> bool:
    return error["param"].startswith(field) and field in error["message"]


@pytest.mark.parametrize("path", PATHS)
def test_fields_that_are_missing_unknown_or_of_another_type(kinds: Kinds, path: str) -> None:
    good, other = GOOD[path]
    assert kinds.post(path, good).status_code == 200
    for field in good:
        for value in (None, True, {"a": 1}, [[["a"]]], 1.5):
            if (value is None and field in MAY_BE_NULL) or (value == 1.5 and field in FRACTIONS):
                continue
            assert named(kinds.refusal(path, **{**good, field: value}), field), (field, value)
    for field in set(good) & {*TEXTS, "model"}:
        without = {name: value for name, value in good.items() if name != field}
        error = kinds.refusal(path, **without)
        assert field in error["message"] or error["param"] == field
    error = kinds.refusal(path, **good, colour="red")
    assert (error["param"], error["code"]) == ("colour", "unknown_parameter")
    error = kinds.refusal(path, **{**good, "model": other})
    assert (error["param"], error["code"]) == ("model", "unsupported_model")
    assert repr(other) in error["message"]
    assert kinds.post(path, {**good, "model": "absent\x00"}).status_code == 404


@pytest.mark.parametrize("path", PATHS)
def test_texts_that_are_empty_huge_or_no_unicode(kinds: Kinds, path: str) -> None:
    good, _ = GOOD[path]
    for field in [field for field in good if field in TEXTS]:
        several = isinstance(good[field], list)
        for text in ("", "a" * 200_001, "\ud800"):
            if (path, text) == ("/translate", ""):
                continue  # has the empty translation
            body = {**good, field: [good[field][0], text] if several else text}
            answer = kinds.post_raw(path, json.dumps(body))
            assert answer.status_code == 400, (field, text[:5])
            assert named(answer.json()["error"], field)
        if several:
            assert named(kinds.refusal(path, **{**good, field: []}), field)
            assert named(kinds.refusal(path, **{**good, field: ["a"] * 2100}), field)
    answer = kinds.post(path, {**good, "model": "a" * 5_000_000})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")


@pytest.mark.parametrize("path", PATHS)
def test_numbers_that_are_none_or_out_of_range(kinds: Kinds, path: str) -> None:
    good, _ = GOOD[path]
    numbers = [field for field, value in good.items() if isinstance(value, int | float)]
    for field in numbers:
        for written in ("NaN", "Infinity", "-1e400", '"3"', "-1e6" if field == "length_penalty" else "[0]"):
            text = json.dumps({**good, field: "HERE"}).replace('"HERE"', written)
            answer = kinds.post_raw(path, text)
            assert answer.status_code == 400, (field, written)
            assert named(answer.json()["error"], field)
    for field in {"top_k", "beams", "dimensions"} & set(numbers):
        for value in (0, -1, 10**9, 2.0):
            assert named(kinds.refusal(path, **{**good, field: value}), field)


@pytest.mark.parametrize("path", PATHS)
def test_bodies_that_are_no_json(kinds: Kinds, path: str) -> None:
    for content in (
        b"",
        b"{",
        b"[]",
        b"1",
        b"\xff\xfe",
        b'"a"',
        b"[" * 10_000,
        b'{"model": ' + b"9" * 9999 + b"}",
    ):
        answer = kinds.post_raw(path, content)
        assert answer.status_code == 400, content[:20]
        assert answer.json()["error"]["type"] == "invalid_request_error"


values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2000) | st.floats() | st.text(max_size=8)
    | st.sampled_from(["king", "a dog", "[MASK]", "eins", "\x00", " "]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=5,
)  # fmt: skip


@hypothesis.settings(max_examples=300)
@hypothesis.given(st.data())
def test_random_values_are_answered_or_refused(kinds: Kinds, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(PATHS))
    body = dict(GOOD[path][0])
    for field in data.draw(st.lists(st.sampled_from(sorted(set(body) - {"model"})), min_size=1)):
        body[field] = data.draw(values)
    answer = kinds.post_raw(path, json.dumps(body))
    assert answer.status_code in (200, 400), answer.text
    if answer.status_code == 400:
        assert answer.json()["error"]["message"]

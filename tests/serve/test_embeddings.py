"""``/v1/embeddings``: the vectors that Python gives, through OpenAI's client and by plain requests."""

from __future__ import annotations

import base64
from typing import Any

import hypothesis
import numpy as np
import openai
import pytest
from hypothesis import strategies as st
from tests.serve.conftest import Kinds
from tests.serve.kinds import TEXTS

from wordloom.vectors import TextEmbedder, WordRule, load_vectors

ENCODERS = ["bert", "roberta", "sentences", "bert-adapted"]
CAUSAL = ["llama", "gpt2", "lstm", "gpt2-adapted"]
UNUSUAL = ["Ünïcode — 漢字 🙂", "a\nb\tc", "[MASK] </s> <|endoftext|>", "\x00", "   "]
OTHERS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)


def in_python(kinds: Kinds, name: str, text: str, **given: Any) -> np.ndarray:
    """The vector of one text."""
    if name == "vectors":
        embedder = TextEmbedder(load_vectors(kinds.folders[name]), split=WordRule())
        return embedder.encode_batch([text], **given)[0][0]
    return kinds.load(name).embedder(**given)([text]).vectors[0]


def vectors_in(answer: Any) -> np.ndarray:
    return np.array([one["embedding"] for one in answer["data"]], np.float32)


@pytest.mark.parametrize("name", [*ENCODERS, *CAUSAL, "vectors"])
def test_the_vectors_are_bit_for_bit_those_of_python(kinds: Kinds, name: str) -> None:
    texts = TEXTS if name == "sentences" else [*TEXTS, *UNUSUAL[:2]]
    expected = np.stack([in_python(kinds, name, text) for text in texts])
    assert np.array_equal(vectors_in(kinds.ask("/v1/embeddings", name, input=texts)), expected)
    alone = [vectors_in(kinds.ask("/v1/embeddings", name, input=text))[0] for text in texts]
    assert np.array_equal(alone, expected)


@pytest.mark.parametrize("name", ["bert", "gpt2", "vectors"])
def test_openais_client_reads_base64_and_lists_of_numbers(kinds: Kinds, name: str) -> None:
    client = openai.OpenAI(base_url=f"{kinds.url}/v1", api_key="-")
    expected = np.stack([in_python(kinds, name, text) for text in TEXTS])
    for given in ({}, {"encoding_format": "base64"}, {"encoding_format": "float"}):
        answer = client.embeddings.create(model=name, input=TEXTS, **given)
        rows = [one.embedding for one in answer.data]
        if "base64" in given.values():
            rows = [np.frombuffer(base64.b64decode(row), "<f4") for row in rows]
        assert np.array_equal(np.array(rows, np.float32), expected)
        assert [one.index for one in answer.data] == list(range(len(TEXTS)))
        assert answer.model == name
        assert answer.usage.prompt_tokens == answer.usage.total_tokens > len(TEXTS)
    with pytest.raises(openai.BadRequestError, match="needs an encoder"):
        client.embeddings.create(model="transformer", input="eins")


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_token_ids_have_the_vector_of_their_text(kinds: Kinds, name: str) -> None:
    ids = [kinds.post("/tokenize", {"model": name, "text": text}).json()["ids"] for text in TEXTS]
    by_text = vectors_in(kinds.ask("/v1/embeddings", name, input=TEXTS))
    assert np.array_equal(vectors_in(kinds.ask("/v1/embeddings", name, input=ids)), by_text)
    assert np.array_equal(vectors_in(kinds.ask("/v1/embeddings", name, input=ids[0])), by_text[:1])


@hypothesis.settings(max_examples=20)
@hypothesis.given(st.lists(OTHERS, min_size=1, max_size=5))
def test_a_text_has_the_same_vector_beside_any_others(kinds: Kinds, texts: list[str]) -> None:
    alone = vectors_in(kinds.ask("/v1/embeddings", "bert", input="a dog ran", too_long="cut"))[0]
    beside = vectors_in(kinds.ask("/v1/embeddings", "bert", input=[*texts, "a dog ran"], too_long="cut"))[-1]
    assert np.array_equal(alone, beside)


def test_settings_of_the_embedder(kinds: Kinds) -> None:
    long = "a dog ran " * 30
    for given in ({"pooling": "max"}, {"pooling": "last", "normalize": True}, {"too_long": "window"}):
        expected = in_python(kinds, "bert", TEXTS[0], **given)
        assert np.array_equal(
            vectors_in(kinds.ask("/v1/embeddings", "bert", input=TEXTS[0], **given))[0], expected
        )
    answer = kinds.ask("/v1/embeddings", "bert", input=["a", long], too_long="cut")
    assert answer["report"]["truncated"] == [1]
    answer = kinds.ask("/v1/embeddings", "bert", input=[long, "a"], too_long="window")
    assert answer["report"]["windowed"] == [0]
    error = kinds.refusal("/v1/embeddings", model="bert", input=["a", long])
    assert "'input[1]' has 90 tokens and the model reads 38" in error["message"]
    error = kinds.refusal("/v1/embeddings", model="gpt2", input="a", pooling="cls")
    assert error["param"] == "pooling"


def test_dimensions_keep_the_first_components_at_length_1(kinds: Kinds) -> None:
    for name in ("bert", "vectors"):
        whole = in_python(kinds, name, TEXTS[0])
        first = vectors_in(kinds.ask("/v1/embeddings", name, input=TEXTS[0], dimensions=4))[0]
        assert first == pytest.approx(whole[:4] / np.linalg.norm(whole[:4]), abs=1e-6)
    error = kinds.refusal("/v1/embeddings", model="bert", input="a", dimensions=17)
    assert (error["param"], "have 16 components" in error["message"]) == ("dimensions", True)
    assert kinds.refusal("/v1/embeddings", model="gpt2", input="a", dimensions=4)["param"] == "dimensions"


def test_words_without_a_vector_are_counted_and_texts_without_words_listed(kinds: Kinds) -> None:
    answer = kinds.ask("/v1/embeddings", "vectors", input=["the king flies", "nothing known", "QUEEN"])
    assert (answer["report"]["tokens"], answer["report"]["unknown"], answer["report"]["empty"]) == (6, 3, [1])
    assert answer["usage"] == {"prompt_tokens": 6, "total_tokens": 6}
    assert not vectors_in(answer)[1].any()
    for field in (
        {"input": [1, 2]},
        {"input": "king", "pooling": "max"},
        {"input": "king", "too_long": "cut"},
    ):
        assert kinds.refusal("/v1/embeddings", model="vectors", **field)["param"] in {*field} - {"model"}

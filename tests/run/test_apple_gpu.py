"""Apple GPUs have no float64: every evaluation and prediction works there, with the CPU's results."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from tests.apple_gpu import AppleGPU
from tests.run.bodies import SHAPE, tokenizer_of

from wordloom.data.bags.vectorizer import BagVectorizer
from wordloom.data.rows.choices import ChoiceRow
from wordloom.data.rows.facts import Fact
from wordloom.data.rows.minimal_pairs import MinimalPair
from wordloom.data.rows.squad import Question
from wordloom.data.rows.tagged import TaggedText
from wordloom.evaluate import classification, perplexity
from wordloom.evaluate.masked import pseudo_likelihoods, pseudo_perplexity
from wordloom.evaluate.minimal_pairs import acceptability
from wordloom.evaluate.positions import bits_by_position
from wordloom.generate import Sampling, generate
from wordloom.inspect import (
    attention_map,
    attribution,
    contributions,
    geometry,
    head_scores,
    lens,
    lens_summary,
    patching,
    probe,
    word_in_texts,
)
from wordloom.inspect.memories.memories import memories
from wordloom.inspect.memories.triggers import find_triggers
from wordloom.models import (
    BagOfWordsConfig,
    BertConfig,
    GPT2Config,
    GPTConfig,
    LlamaConfig,
    RNNConfig,
    TaskConfig,
    build,
)
from wordloom.run.models.embedder import POOLINGS, Embedder
from wordloom.run.models.heads.classification import TextClassifier
from wordloom.run.models.heads.multiple_choice import MultipleChoice
from wordloom.run.models.heads.question_answering import QuestionAnswerer
from wordloom.run.models.heads.regression import TextRegressor
from wordloom.run.models.heads.token_classification import TokenClassifier
from wordloom.run.models.language_model import LanguageModel
from wordloom.run.models.text_readers import BagReader, MarkedReader
from wordloom.run.views.ablation import ablation
from wordloom.run.views.knowledge import knowledge

TEXTS = ["the cat sat on a mat", "a dog ran", "dogs", "it rains, and the cat"]
LABELS = {"0": "no", "1": "yes", "2": "perhaps"}
TOKENIZERS = {kind: tokenizer_of(TEXTS * 4, kind) for kind in ("bert", "gpt2")}
CHOICES = [
    ChoiceRow("the cat", "", ("sat", "ran"), 0, "file", 1),
    ChoiceRow("it", "", ("rains", "a mat", "dogs"), 1, "file", 2),
]
TAGGED = [TaggedText(("the", "cat", "sat"), ("no", "yes", "no"), "file", 1), TaggedText(("a",), None, "f", 1)]


def body(kind: str, **settings: Any) -> Any:
    size = {"vocab_size": TOKENIZERS[kind].vocab_size, **SHAPE}
    return BertConfig(**size, **settings) if kind == "bert" else GPT2Config(**size)


def headed(task: str, kind: str = "bert", *, pooler: bool = True) -> tuple[Any, Any]:
    """A model with a head for ``task``, and its tokenizer."""
    given = body(kind, pooler=pooler, masked_lm_head=False) if kind == "bert" else body(kind)
    classifies = task in ("classification", "token_classification")
    config = TaskConfig(body=given, task=task, id2label=LABELS if classifies else {})
    return built(config), TOKENIZERS[kind]


def built(config: Any) -> Any:
    model = build(config, generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        for number, weight in enumerate(model.parameters()):
            weight += 0.2 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(number))
    return model.eval()


def classifies() -> tuple[Any, Callable[[], Any]]:
    model, tokenizer = headed("classification")
    made = TextClassifier(
        model=model, reader=MarkedReader(tokenizer, config=model.config), config=model.config
    )

    def call() -> Any:
        read = made.reader.read(TEXTS, None)
        batches = made.reader.batches(read, np.array([0, 1, 2, 0]))
        every = (batches.batch(*some) for some in batches.passes())
        scores = classification(model, every, labels=tuple(LABELS.values()), settings={})
        return made.probabilities(TEXTS), [scores[name].value for name in scores]

    return model, call


def weighs_words() -> tuple[Any, Callable[[], Any]]:
    vectorizer = BagVectorizer(sorted({word for text in TEXTS for word in text.split()}))
    model = built(BagOfWordsConfig(vocab_size=len(vectorizer), id2label=LABELS))
    made = TextClassifier(model=model, reader=BagReader(vectorizer), config=model.config)

    def call() -> Any:
        words = made.top_words(3)
        return (
            made.probabilities(TEXTS),
            made.vectorize(TEXTS).toarray(),
            [[weight for _, weight in words[label]] for label in LABELS.values()],
        )

    return model, call


def tags() -> tuple[Any, Callable[[], Any]]:
    model, tokenizer = headed("token_classification", pooler=False)
    made = TokenClassifier(model=model, tokenizer=tokenizer, config=model.config)

    def call() -> Any:
        return [word.probability for text in made.predict(TEXTS) for word in text], made.evaluate(TAGGED)[
            "loss"
        ].value

    return model, call


def chooses() -> tuple[Any, Callable[[], Any]]:
    model, tokenizer = headed("multiple_choice", "gpt2")
    made = MultipleChoice(model=model, tokenizer=tokenizer, config=model.config)
    return model, lambda: (
        [share for one in made.predict(CHOICES) for share in one.probabilities],
        made.evaluate(CHOICES)["loss"].value,
    )


def scores_pairs() -> tuple[Any, Callable[[], Any]]:
    model, tokenizer = headed("regression")
    made = TextRegressor(model=model, tokenizer=tokenizer, config=model.config)
    return model, lambda: made.score(TEXTS)


def answers() -> tuple[Any, Callable[[], Any]]:
    model, tokenizer = headed("question_answering", pooler=False)
    made = QuestionAnswerer(
        model=model, tokenizer=tokenizer, config=model.config, max_seq_len=16, max_query=6
    )
    asked = [Question("1", "", TEXTS[0], "a dog", (), True, "file")]
    return model, lambda: [span.probability for span in made.predict(asked)[0].spans]


VIEWED = {
    "gpt": GPTConfig,
    "gpt with sinusoids": lambda **shape: GPTConfig(positions="sinusoidal", **shape),
    "gpt2": GPT2Config,
    "llama": LlamaConfig,
}
IDS, OTHER_IDS = [3, 1, 4, 1, 5], [3, 2, 4, 1, 5]


def views_of(kind: str) -> tuple[Any, Callable[[], Any]]:
    """Every view of a causal Transformer."""
    tokenizer = TOKENIZERS["gpt2"]
    model = built(VIEWED[kind](vocab_size=tokenizer.vocab_size, hidden_dim=20, **SHAPE))

    def call() -> Any:
        parts = contributions(model, IDS, at=2, target=1, against=2)
        neurons = memories(model, find_triggers(model, [IDS, OTHER_IDS], top_k=3), most=3).as_dict()
        facts = [Fact("the", " cat", (" dog", " mat"))]
        lm = LanguageModel(model=model, tokenizer=tokenizer, config=model.config)
        probed = probe(model, [[i % 7, i % 2] for i in range(40)], [str(i % 2) for i in range(40)])
        return [
            [part.value for part in parts.parts],
            lens(model, IDS, top_k=2).nats.tolist(),
            lens_summary(model, [IDS, OTHER_IDS]).bits.tolist(),
            patched(model),
            [ablation(model, tokenizer, TEXTS, value=value).heads.tolist() for value in ("zero", "mean")],
            attention_map(model, IDS).weights.tolist(),
            head_scores(model, length=4, rows=2).scores["previous"].tolist(),
            word_in_texts(model, [IDS, OTHER_IDS], [2, 3], "a", ["a", "a"]).centred.tolist(),
            [neuron["triggers"][0]["activation"] for neuron in neurons["neurons"]],
            [group.mean for group in geometry(model).groups],
            knowledge(lm, facts).bits,
            list(probed.accuracy),
            [group.bits_per_byte for group in bits_by_position(model, tokenizer, TEXTS)],
            attributed(model, lambda tokens: model.lm_head(model.hidden(tokens)[:, -1])[:, 1]),
        ]

    return model, call


def patched(model: Any) -> list[Any]:
    """The effects in logits: shares of a small difference would be rounded more."""
    seen = patching(model, IDS, OTHER_IDS, target=1, foil=2)
    return ((seen.clean_difference - seen.corrupt_difference) * seen.effects).tolist()


def attributed(model: Any, score: Any) -> list[Any]:
    return [
        attribution(model, IDS, score, method=method, most_steps=64).values
        for method in ("occlusion", "gradient", "integrated-gradients")
    ]


def views_of_recurrent() -> tuple[Any, Callable[[], Any]]:
    model = built(RNNConfig(vocab_size=TOKENIZERS["gpt2"].vocab_size, dim=12, cell="lstm", n_layers=2))
    return model, lambda: [
        attributed(model, lambda tokens: model.lm_head(model.hidden(tokens)[:, -1])[:, 1]),
        patched(model),
        word_in_texts(model, [IDS, OTHER_IDS], [2, 3], "a", ["a", "a"]).centred.tolist(),
    ]


def views_of_an_encoder(attention: str, **settings: Any) -> tuple[Any, Callable[[], Any]]:
    model = built(body("bert", pooler=False, masked_lm_head=True, attention=attention, **settings))

    def call() -> Any:
        def score(tokens: torch.Tensor) -> torch.Tensor:
            return model.lm_head(model.mlm_hidden(model.hidden(tokens)[:, -1]))[:, 1]

        return [
            attention_map(model, IDS).weights.tolist(),
            head_scores(model, length=4, rows=2).scores["previous"].tolist(),
            word_in_texts(model, [IDS, OTHER_IDS], [2, 3], "a", ["a", "a"]).raw.tolist(),
            attributed(model, score),
        ]

    return model, call


def judges_pairs(kind: str) -> tuple[Any, Callable[[], Any]]:
    model = built(body(kind, pooler=False, masked_lm_head=True) if kind == "bert" else body(kind))
    pairs = [
        MinimalPair(good, bad, "", "", "file", 1)
        for good, bad in (("the cat", "cat the"), ("a dog", "dog a"))
    ]

    def call() -> Any:
        nats = pseudo_likelihoods(model, TOKENIZERS[kind], [IDS, OTHER_IDS]) if kind == "bert" else ()
        return [list(nats), acceptability(model, TOKENIZERS[kind], pairs)["accuracy"].value]

    return model, call


def reads_causally() -> tuple[Any, Callable[[], Any]]:
    model, tokenizer = built(body("gpt2")), TOKENIZERS["gpt2"]

    def call() -> Any:
        scores = perplexity(model, tokenizer, TEXTS)
        made = generate(model, [[1, 2, 3]], Sampling(max_new_tokens=4, seed=3))
        return [scores[name].value for name in scores], made[0].ids

    return model, call


def fills_in() -> tuple[Any, Callable[[], Any]]:
    model = built(body("bert", pooler=False, masked_lm_head=True))
    return model, lambda: pseudo_perplexity(model, TOKENIZERS["bert"], TEXTS)["pseudo_loss"].value


def embeds(kind: str) -> tuple[Any, Callable[[], Any]]:
    model = built(body(kind, pooler=False, masked_lm_head=True) if kind == "bert" else body(kind))
    poolings = [p for p in POOLINGS if p != "cls" or kind == "bert"]
    return model, lambda: [
        Embedder(model, TOKENIZERS[kind], pooling=pooling, too_long="window", limit=5)(TEXTS).vectors
        for pooling in poolings
    ]


@pytest.mark.parametrize(
    "made",
    [
        classifies,
        weighs_words,
        tags,
        chooses,
        scores_pairs,
        answers,
        reads_causally,
        fills_in,
        lambda: embeds("bert"),
        lambda: embeds("gpt2"),
        *(partial(views_of, kind) for kind in VIEWED),
        views_of_recurrent,
        lambda: views_of_an_encoder("full"),
        lambda: views_of_an_encoder("performer:8"),
        lambda: views_of_an_encoder("nystrom:3"),
        lambda: views_of_an_encoder("band:2+global:1", global_projections=True),
        lambda: judges_pairs("bert"),
        lambda: judges_pairs("gpt2"),
    ],
)
def test_results_on_an_apple_gpu_are_those_of_the_cpu(
    made: Callable[[], tuple[Any, Callable[[], Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    # the stand-in's weights are of a subclass, which the view takes for modified ones
    monkeypatch.setattr("wordloom.inspect.layers.contributions.modification", lambda *_: "")
    model, call = made()
    on_cpu = call()
    with AppleGPU():
        model.to("mps:0")
        assert next(model.parameters()).device.type == "mps"
        on_gpu = call()
    for one, other in zip(flat(on_gpu), flat(on_cpu), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def flat(made: Any) -> list[Any]:
    return [x for part in made for x in flat(part)] if isinstance(made, (list, tuple)) else [made]


def test_the_stand_in_refuses_what_an_apple_gpu_refuses() -> None:
    with AppleGPU():
        x = torch.arange(3.0).to("mps:0")
        assert (x + 1).device.type == "mps"
        assert (x + 1).cpu().double().tolist() == [1.0, 2.0, 3.0]
        for refused in (x.double, lambda: x.sum(dtype=torch.float64), lambda: x.to(torch.float64), x.numpy):
            with pytest.raises(TypeError):
                refused()
        with pytest.raises(RuntimeError):
            x + torch.ones(3)

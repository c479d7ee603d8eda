"""A tiny model of every kind, with random weights."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.run.bodies import write_body
from tests.run.translators import write_translator
from tests.serve.servers import assistant
from tests.vectors.fasttext_models import REAL, SUPERVISED
from tests.weights.test_adapters import shake

from wordloom.data.bags.vectorizer import BagVectorizer
from wordloom.models import (
    BagOfWordsConfig,
    BertConfig,
    GPT2Config,
    RNNClassifierConfig,
    TaskConfig,
    build,
)
from wordloom.models.building.lora import LoraSettings, add_adapter, matching_layers
from wordloom.models.task_model import SUMMARIES, TASKS
from wordloom.run.models.sentence_folder import SentenceSettings, pooling_files
from wordloom.text import Tokenizer
from wordloom.vectors import KeyedVectors, save_vectors
from wordloom.weights import load_model, save_model
from wordloom.weights.adapters import save_adapter

TEXTS = ["the cat sat on a mat", "a dog ran", "dogs slept", "the mat", "a cat and a dog ran far"]
LABELS = {"0": "no", "1": "yes", "2": "perhaps"}
WORDS = ["king", "queen", "man", "woman", "cat", "dog", "mat", "ran", "sat", "the", "paris", "france"]


def random_model(config: Any) -> Any:
    """A model whose classifier has random weights too, so that its answers differ from each other."""
    model = build(config, generator=torch.Generator().manual_seed(3))
    random = torch.Generator().manual_seed(4)
    for parameter in model.classifier.parameters():
        torch.nn.init.normal_(parameter, generator=random)
    return model


def write_head(folder: Path, task: str, *, causal: bool = False) -> None:
    """Write a model with the head of ``task``."""
    if causal:
        tokenizer = Tokenizer.train(TEXTS * 4, kind="bpe", vocab_size=300, special_tokens=["<|endoftext|>"])
        body: Any = GPT2Config(vocab_size=tokenizer.vocab_size, dim=16, n_layers=1, n_heads=2, max_seq_len=24)
    else:
        tokenizer = Tokenizer.train(TEXTS * 4, kind="wordpiece", vocab_size=80)
        body = BertConfig(
            vocab_size=tokenizer.vocab_size, dim=16, n_layers=1, n_heads=2, max_seq_len=24,
            pooler=task in SUMMARIES,
        )  # fmt: skip
    labels = {"token_classification": {"0": "O", "1": "B-PET"}, "classification": LABELS}.get(task, {})
    model = random_model(TaskConfig(body=body, task=task, id2label=labels))
    save_model(model, folder, tokenizer=tokenizer)


def write_adapter(folder: Path, base: Path) -> None:
    """Write an adapter of the model in ``base`` that changes its outputs."""
    model = load_model(base)
    add_adapter(model, LoraSettings(rank=2, alpha=4), matching_layers(model, ["q_proj", "k_proj", "v_proj"]))
    torch.manual_seed(0)
    shake(model)
    save_adapter(model, folder, base=base)


def write_all(place: Path) -> dict[str, Path]:
    """Write the models into folders of ``place``; return the folders by the names of the models."""
    for kind in ("bert", "roberta"):
        write_body(place / kind, TEXTS, kind, max_seq_len=40)
    write_body(place / "sentences", TEXTS)
    (place / "sentences" / "1_Pooling").mkdir()
    for name, text in pooling_files(16, SentenceSettings("cls", True, 16)).items():
        (place / "sentences" / name).write_text(text)
    for family in ("llama", "gpt2", "lstm"):
        assistant(place / family, family)
    write_translator(place / "transformer")
    write_translator(place / "seq2seq", "seq2seq", separate=False)
    for task in TASKS:
        write_head(place / task, task)
    write_head(place / "causal", "classification", causal=True)
    tokenizer = Tokenizer.train(TEXTS, kind="word")
    rnn = RNNClassifierConfig(vocab_size=tokenizer.vocab_size, id2label=LABELS, dim=8)
    save_model(random_model(rnn), place / "rnn", tokenizer=tokenizer)
    vectorizer = BagVectorizer(sorted({word for text in TEXTS for word in text.split()}))
    bag = BagOfWordsConfig(vocab_size=len(vectorizer), id2label=LABELS)
    save_model(random_model(bag), place / "bag", tokenizer=vectorizer)
    values = np.random.default_rng(1).normal(size=(len(WORDS), 6)).astype(np.float32)
    save_vectors(KeyedVectors(WORDS, values), place / "vectors")
    (place / "fasttext").mkdir()
    model = base64.b64decode(REAL["models"][SUPERVISED[0]]["file"])
    (place / "fasttext" / "model.bin").write_bytes(model)
    return {path.name: path for path in sorted(place.iterdir())}

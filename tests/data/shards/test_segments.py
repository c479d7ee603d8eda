"""Where a document is cut, no id changes: places proven by a tokenizer's definition, and none elsewhere."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import wordloom.data.shards.prepare as shards_module
from wordloom.data import Corpus, prepare
from wordloom.data.shards.segments import Cutter, Rule, cut_rule, first_cut, last_cut
from wordloom.text import Tokenizer
from wordloom.text.definition import bytes_to_characters
from wordloom.vectors import WordVocabulary
from wordloom.vectors.fasttext.labelled_text import LabelledVocabulary

LIVELY = [*"aBéΣİςя日의ญ.,!/“'1٣½ \n\r\t\v\u00a0\u3000\x1c\x85\u2028\u200b\u0301🙂\u0000"]
LIVELY += ["'s", "\r\n", "\n\n", "  "]
lively = st.lists(st.sampled_from(LIVELY), max_size=30).map("".join)

# Byte pairs that only a word with white space inside it can hold, so that a wrong cut shows in the ids.
TEXT = "He'll say “naïve” 12345 times!\n\n!\n.\r\n  İt's Σος, 日本語。\r\n\u3000\u3000я я\t\tx\n \n" * 20
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}


@pytest.fixture(scope="module")
def splitting() -> dict[str, Tokenizer]:
    """Tokenizers that split text into words first, by every rule there is."""
    made = {"whitespace": Tokenizer.train([TEXT], kind="word", split="whitespace")}
    for split in ("gpt2", "llama3"):
        for lower in (False, True):
            made[f"{split} {lower}"] = Tokenizer.train(
                [TEXT], kind="bpe", vocab_size=500, split=split, lower=lower
            )
        made[f"unigram {split}"] = Tokenizer.train([TEXT], kind="unigram", vocab_size=400, split=split)
    for kind in ("word", "wordpiece"):
        made[kind] = Tokenizer.train([TEXT], kind=kind, vocab_size=200)
        made[f"{kind} lower"] = Tokenizer.train([TEXT], kind=kind, vocab_size=200, lower=True)
    return made


def places(text: str, rule: Rule) -> Iterator[int]:
    place = first_cut(text, 0, rule)
    while place is not None:
        yield place
        place = first_cut(text, place, rule)


def words(tokenizer: Tokenizer, text: str) -> list[str]:
    """What the tokenizers library splits ``text`` into before it looks anything up."""
    backend = tokenizer._encoder.interpreting
    if backend.normalizer is not None:
        text = backend.normalizer.normalize_str(text)
    return [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)]


@given(lively)
@settings(deadline=None, max_examples=150)
def test_a_cut_lies_where_words_end_in_the_whole_and_in_the_part(
    splitting: dict[str, Tokenizer], text: str
) -> None:
    for name, tokenizer in splitting.items():
        rule = cut_rule(tokenizer)
        assert rule == ("llama3" if "llama3" in name else "words")
        whole = words(tokenizer, text)
        for place in places(text, rule):
            assert words(tokenizer, text[:place]) + words(tokenizer, text[place:]) == whole, (name, place)


@pytest.fixture(scope="module")
def others() -> list[Any]:
    """Those without a split of the tokenizers library, and vocabularies that stand in for a tokenizer."""
    names = ["a", "b", "ax", "1", "é", "日", "ς", "σ", ".", "'s", "a\u3000b", "</s>"]
    return [
        Tokenizer.train([], kind="byte"),
        Tokenizer.train(["".join(LIVELY)], kind="char"),
        Tokenizer.train(["".join(LIVELY)], kind="char", lower=True),
        WordVocabulary(names, [1] * len(names)),
        WordVocabulary(names, [1] * len(names), split="whitespace"),
        LabelledVocabulary(names, ["__label__x"], [], [1] * (len(names) + 1)),
    ]


@given(lively, st.integers(1, 12), st.integers(1, 15))
@settings(deadline=None, max_examples=100)
def test_segments_have_the_ids_of_the_whole(
    splitting: dict[str, Tokenizer], others: list[Any], text: str, size: int, step: int
) -> None:
    for tokenizer in [*splitting.values(), *others]:
        cutter = Cutter(size, cut_rule(tokenizer))
        parts = [s for n in range(0, len(text), step) for s in cutter.push(text[n : n + step], last=False)]
        parts += cutter.push("", last=True)
        assert "".join(map(str, parts)) == text
        cut = [i for part in parts for i in tokenizer.encode_ids(part, specials="text")]
        assert cut == list(tokenizer.encode_ids(text, specials="text")), tokenizer


@given(lively, st.integers(0, 20), st.integers(0, 40))
def test_the_last_place_is_the_last_of_all(text: str, start: int, reach: int) -> None:
    for rule in ("words", "llama3", "lines"):
        there = [place for place in places(text, rule) if start < place <= start + reach]
        assert last_cut(text, start, start + reach, rule) == (there[-1] if there else None)


@pytest.mark.parametrize("rule", ["words", "llama3"])
@pytest.mark.parametrize(
    "line",
    ["Слово за словом\n\n", "слово\r\n\r\n", "日本語。\r\n\u3000\u3000", "日本語！\n\n", "one\ttwo."],
)
def test_text_of_any_script_has_places(line: str, rule: Rule) -> None:
    assert len(list(places(line * 3, rule))) >= 2


def byte_level(
    pre_tokenizer: dict, merges: list[tuple[str, str]], changed: dict[str, Any] | None = None
) -> Tokenizer:
    """Byte-level BPE with these merges."""
    definition = Tokenizer.train([], kind="byte", special_tokens=())._definition
    vocabulary = [*bytes_to_characters(), *("".join(pair) for pair in merges)]
    model = {"vocab": {token: index for index, token in enumerate(vocabulary)}, "merges": merges}
    definition = definition | {"model": definition["model"] | model}
    return Tokenizer(definition | {"pre_tokenizer": pre_tokenizer} | (changed or {}))


@pytest.mark.parametrize(
    ("pre_tokenizer", "merges"),
    [
        (
            {
                "type": "Sequence",
                "pretokenizers": [
                    {"type": "Split", "pattern": {"Regex": O200K}, "behavior": "Isolated", "invert": False},
                    BYTE_LEVEL,
                ],
            },
            [("*", "Ċ"), ("*Ċ", "/")],
        ),
        (BYTE_LEVEL, [("Ċ", "i"), ("Ċ", "/"), ("Ċ", "f"), ("Ċ", "r")]),
    ],
    ids=["o200k", "without a split"],
)
def test_a_split_that_is_not_known_is_not_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pre_tokenizer: dict, merges: list
) -> None:
    """Many texts get the same ids in segments; this one does not."""
    monkeypatch.setattr(shards_module, "SEGMENT", 40)
    tokenizer = byte_level(pre_tokenizer, merges)
    text = "if (x) return y; /*\n/ for\n*\n/path\n" * 9
    (tmp_path / "a.txt").write_text(text)
    shards = prepare(Corpus(sources=tmp_path / "a.txt", validation_fraction=0), tokenizer, part="train")
    assert shards.tokens().tolist() == tokenizer.encode_ids(text)
    assert cut_rule(tokenizer) is None


def test_what_else_would_make_a_cut_unsafe() -> None:
    gpt2 = BYTE_LEVEL | {"use_regex": True}
    assert cut_rule(byte_level(gpt2, [])) == "words"
    added = {"id": 256, "content": "\n\n", "special": False, "normalized": False}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
    for changed in (
        {"normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
                        "strip_accents": None, "lowercase": False}},  # takes "\0" out of "a \0\nb"
        {"normalizer": {"type": "Prepend", "prepend": " "}},
        {"added_tokens": [added | flags]},
        {"added_tokens": [added | flags | {"content": "<end of text>", "special": True}]},
        {"pre_tokenizer": gpt2 | {"add_prefix_space": True}},
    ):  # fmt: skip
        assert cut_rule(byte_level(gpt2, [], changed)) is None, changed


def test_llamas_tokenizer_is_cut_where_line_breaks_stand_alone(
    data_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    definition = json.loads((data_folder / "weights/stories260K/hf/tokenizer.json").read_text())
    model = definition["model"]
    size = len(model["vocab"])
    metaspace = definition | {"normalizer": None, "pre_tokenizer": METASPACE}
    (tmp_path / "a.txt").write_text(text := "One day, \n\nLily\nran.\r\n▁\n and\n so on \n" * 9)
    monkeypatch.setattr(shards_module, "SEGMENT", 20)
    for known in (definition, metaspace):
        tokenizer = Tokenizer(known)
        assert cut_rule(tokenizer) == "lines"
        corpus = Corpus(sources=tmp_path / "a.txt", validation_fraction=0)
        ids = prepare(corpus, tokenizer, part="train").tokens().tolist()
        assert ids == [*tokenizer.encode_ids(text), tokenizer.eos_id]
    for changed in (
        {"vocab": model["vocab"] | {".\n": size}, "merges": [*model["merges"], [".", "\n"]]},
        {"vocab": model["vocab"] | {"<0x0A><0x0A>": size}},
        {"ignore_merges": True},
    ):
        assert cut_rule(Tokenizer(definition | {"model": model | changed})) is None, changed
    for split in ({"pre_tokenizer": METASPACE}, metaspace | {"pre_tokenizer": METASPACE | {"split": True}}):
        assert cut_rule(Tokenizer(definition | split)) is None


def test_a_text_without_any_place_costs_linear_time() -> None:
    for rule in ("words", "llama3"):
        cutter = Cutter(1000, rule)
        begun = time.process_time()
        pieces = ["語" * 10_000, "\u3000" * 10_000] * 150
        assert sum(1 for piece in pieces for _ in cutter.push(piece, last=False)) <= len(pieces)
        assert time.process_time() - begun < 5  # a quadratic one takes minutes

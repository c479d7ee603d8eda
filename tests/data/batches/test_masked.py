"""Windows and sentence pairs of masked text: every token, the published proportions, by number alone."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from wordloom.data import IGNORE, Marks, MaskedBatches, Masker, Masking, SentencePairBatches
from wordloom.data.ledgers import Ledger
from wordloom.data.shards.storage import ShardWriter, TokenShards
from wordloom.errors import DataError
from wordloom.text import Tokenizer

CLS, SEP, PAD, MASK = 990, 991, 992, 993
MARKS = Marks(CLS, SEP, PAD)


class Ids:
    vocab_size, mask_id, special_ids = 1000, MASK, frozenset(range(990, 1000))

    def continuations(self) -> Any:
        return np.zeros(1000, bool)


def masker(**settings: Any) -> Masker:
    return Masker(Masking(**settings), Ids())


def originals(batch: Any) -> torch.Tensor:
    """The tokens before they were masked, as far as the targets tell."""
    return torch.where(batch.targets == IGNORE, batch.tokens, batch.targets)


# ------------------------------------------------------------------------------------- windows


@pytest.fixture
def shards(make_shards: Any) -> TokenShards:
    return make_shards(*(list(range(at, at + 90)) for at in range(0, 900, 90)))


@pytest.mark.parametrize("tokens", [32, 63, 64, 65, 95, 96])
def test_rows_hidden_once_and_for_all_are_all_whole_windows(make_shards: Any, tokens: int) -> None:
    shards = make_shards(list(range(tokens)))
    batches = MaskedBatches(shards, seq_len=34, marks=MARKS, masker=masker(), seed=3, dynamic=False)
    first, again = batches.batch(0, tokens // 32), batches.batch(tokens // 32, tokens // 32)
    starts = originals(first)[:, 1].tolist()
    assert sorted(starts) == list(range(0, tokens // 32 * 32, 32))
    told = {row[1].item(): hidden for row, hidden in zip(originals(again), again.tokens, strict=True)}
    for start, hidden in zip(starts, first.tokens, strict=True):
        assert torch.equal(told[start], hidden)


def test_an_epoch_visits_the_text_once_between_marks(shards: TokenShards) -> None:
    batches = MaskedBatches(shards, seq_len=34, marks=MARKS, masker=masker(), seed=3)
    n = batches.samples_per_epoch
    phases, orders = set(), set()
    for epoch in range(6):
        batch = batches.batch(epoch * n, n)
        assert batch.tokens.shape == (n, 34)
        assert batch.attend is None
        assert batch.is_next is None
        assert not batch.segments.any()
        text = originals(batch)
        assert (text[:, 0] == CLS).all()
        assert (text[:, -1] == SEP).all()
        assert (batch.targets[:, [0, -1]] == IGNORE).all()
        starts = text[:, 1].tolist()
        assert sorted(starts) == list(range(min(starts), min(starts) + 32 * n, 32))
        assert (text[:, 1:-1] == text[:, 1:2] + torch.arange(32)).all()
        phases.add(min(starts))
        orders.add(tuple(starts))
    assert len(orders) == 6
    assert len(phases) > 2


def test_masks_are_new_every_time_or_always_the_same(shards: TokenShards) -> None:
    for dynamic in (True, False):
        batches = MaskedBatches(shards, seq_len=34, marks=MARKS, masker=masker(), dynamic=dynamic)
        n = batches.samples_per_epoch
        seen: list[dict[int, list[int]]] = []
        for epoch in range(2):
            batch = batches.batch(epoch * n, n)
            text = originals(batch)
            seen.append(
                {int(row[1]): (t != IGNORE).tolist() for row, t in zip(text, batch.targets, strict=True)}
            )
        if dynamic:
            assert seen[0] != seen[1]
        else:
            assert seen[0] == seen[1]


def test_batches_are_numbers_of_samples_and_nothing_else(shards: TokenShards) -> None:
    batches = MaskedBatches(shards, seq_len=34, marks=MARKS, masker=masker(), seed=3)
    whole = batches.batch(20, 30)
    parts = [batches.batch(at, 10) for at in (20, 30, 40)]
    assert whole.attend is None
    for name in ("tokens", "segments", "targets"):
        assert torch.equal(getattr(whole, name), torch.cat([getattr(part, name) for part in parts])), name
    assert batches.document_ids(0, 1)[0].startswith("made#")
    other = MaskedBatches(shards, seq_len=34, marks=MARKS, masker=masker(share=0.2), seed=3)
    assert other.fingerprint != batches.fingerprint


def test_validation_holds_every_token_once(shards: TokenShards) -> None:
    batches = MaskedBatches(shards, seq_len=34, marks=MARKS, masker=masker(), order="sequential")
    batch = batches.batch(0, batches.samples_per_epoch)
    text = originals(batch)
    inside = batch.attend & (text != CLS) & (text != SEP)
    assert text[inside].tolist() == list(range(900))
    assert not batch.attend[-1].all()
    assert (text[~batch.attend] == PAD).all()
    again = batches.batch(batches.samples_per_epoch, 3)
    assert torch.equal(again.targets, batch.targets[:3])  # masked by place: figures compare
    assert sum("in text order" in note for note in batches.ledger.notes) == 1


def test_ends_of_documents_are_no_words(make_shards: Any) -> None:
    shards = make_shards(*([*range(at, at + 9), SEP] for at in range(0, 300, 10)))
    batches = MaskedBatches(shards, seq_len=32, marks=MARKS, masker=masker(share=1.0))
    targets = batches.batch(0, 5).targets
    assert (targets != SEP).all()
    assert ((targets != IGNORE).sum(1) == 27).all()


# ------------------------------------------------------------------------------------- pairs


def sentence_shards(tmp_path: Any, documents: list[list[int]]) -> TokenShards:
    """Documents of sentences of these lengths; a token's hundreds are its document, its id is its place."""
    writer = ShardWriter(tmp_path / "s", vocab_size=100_000)
    ids, ends, origins, at = [], [], [], 0
    for number, lengths in enumerate(documents):
        for length in lengths:
            ids += range(at, at + length)
            at += length
            ends.append(at)
            origins.append((0, number))
    writer.add(np.array(ids, writer.dtype), ends, [1] * len(ends), origins)
    ledger = Ledger(part="train", split="none", files=1, documents=len(ends), tokens=at, bytes=at)
    meta = {"fingerprint": "f", "vocab_size": 100_000, "eos_id": None, "pad_id": None}
    writer.finish({**meta, "sources": ["made"], "ledger": ledger.as_dict()})
    return TokenShards(tmp_path / "s")


class Many(Ids):
    vocab_size, special_ids = 100_000, frozenset(range(99_990, 100_000))
    mask_id = 99_993

    def continuations(self) -> Any:
        return np.zeros(self.vocab_size, bool)


FAR = Marks(99_990, 99_991, 99_992)


def pairs_of(tmp_path: Any, documents: list[list[int]], **settings: Any) -> SentencePairBatches:
    given: dict[str, Any] = {"seq_len": 64, "marks": FAR, "masker": Masker(Masking(), Many()), "seed": 1}
    return SentencePairBatches(sentence_shards(tmp_path, documents), **{**given, **settings})


def split(row: torch.Tensor, segments: torch.Tensor, attend: torch.Tensor) -> tuple[list[int], list[int]]:
    first, second = row[attend & (segments == 0)].tolist(), row[attend & (segments == 1)].tolist()
    assert first[0] == FAR.cls
    assert first[-1] == second[-1] == FAR.sep
    return first[1:-1], second[:-1]


def test_half_follow_and_the_others_come_from_another_document(tmp_path: Any) -> None:
    draw = np.random.default_rng(0)
    documents = [draw.integers(4, 30, 60).tolist() for _ in range(12)]
    edges = np.cumsum([sum(lengths) for lengths in documents])
    batches = pairs_of(tmp_path, documents)
    n = batches.samples_per_epoch
    batch = batches.batch(0, 4 * n)
    text = originals(batch)
    assert batch.is_next is not None
    following, contents, lengths = 0, Counter[int](), []
    for row, segments, attend, follows in zip(text, batch.segments, batch.attend, batch.is_next, strict=True):
        one, two = split(row, segments, attend)
        assert one
        assert two
        lengths.append(len(one) + len(two) + 3)
        assert one == list(range(one[0], one[-1] + 1))  # a stretch of text
        assert two == list(range(two[0], two[-1] + 1))
        document = [
            int(np.searchsorted(edges, at, side="right")) for at in (one[0], one[-1], two[0], two[-1])
        ]
        assert document[0] == document[1]
        assert document[2] == document[3]
        if follows:
            following += 1
            assert document[0] == document[2]
            assert two[0] > one[-1]  # behind it, perhaps some lost to length
            assert two[0] - one[-1] < 64
        else:
            assert document[0] != document[2]
        contents.update([*one, *two])
    assert following / (4 * n) == pytest.approx(0.5, abs=0.07)
    assert max(lengths) == 64
    short = np.mean(np.array(lengths) < 45)
    assert 0.02 < short < 0.2  # a tenth aims lower
    assert len(contents) > 0.95 * edges[-1]  # four epochs leave hardly anything unread


def test_pairs_are_divided_anew_unless_asked_not_to(tmp_path: Any) -> None:
    documents = [[10] * 30, [12] * 30, [7] * 40]
    for dynamic in (True, False):
        batches = pairs_of(tmp_path / str(dynamic), documents, dynamic=dynamic)
        n = batches.samples_per_epoch
        epochs = [sorted(batches.batch(k * n, n).tokens.tolist()) for k in range(2)]
        assert (epochs[0] == epochs[1]) is not dynamic
        whole, parts = batches.batch(5, 6), [batches.batch(5, 3), batches.batch(8, 3)]
        width = whole.tokens.shape[1]
        padded = [
            torch.nn.functional.pad(p.tokens, (0, width - p.tokens.shape[1]), value=FAR.pad) for p in parts
        ]
        assert torch.equal(whole.tokens, torch.cat(padded))
        assert torch.equal(whole.is_next, torch.cat([part.is_next for part in parts]))


def test_long_sentences_are_divided_and_counted(tmp_path: Any) -> None:
    batches = pairs_of(tmp_path, [[500, 3], [20, 20, 20]])
    assert batches.divided == 1
    assert "1 sentence(s) longer than a row's 61 tokens, divided" in "\n".join(batches.ledger.lines())
    assert batches.samples_per_epoch > 8  # nothing of it is lost
    seen = set()
    for at in range(40):
        seen.update(originals(batches.batch(at * 10, 10)).flatten().tolist())
    assert set(range(503)) <= seen


def test_one_document_is_refused(tmp_path: Any) -> None:
    with pytest.raises(DataError, match=r"one document.*data\.separator"):
        pairs_of(tmp_path, [[10] * 30])


def test_marks_are_the_tokenizers(tmp_path: Any) -> None:
    pieces = Tokenizer.train(["some words"], kind="wordpiece", vocab_size=40)
    assert Marks.of(pieces) == Marks(pieces.cls_id, pieces.sep_id, pieces.pad_id)
    as_roberta = Tokenizer.train(
        ["some words"], kind="bpe", vocab_size=300, special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    )
    assert Marks.of(as_roberta) == Marks(0, 2, 1)
    with pytest.raises(DataError, match=r"no \[CLS\] or <s>"):
        Marks.of(Tokenizer.train(["some words"], kind="bpe", vocab_size=300))

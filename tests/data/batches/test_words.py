"""The first token of each word carries its label, as the tokenizers library counts words; windows, cuts."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tokenizers
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from wordloom.data import IGNORE, TaggedText, tagged_rows
from wordloom.data.batches.words import NO_WORD, WordLabelBatches
from wordloom.errors import DataError
from wordloom.text import Tokenizer

LINES = ["the cat sat on the mat, unbelievably.", "größer 日本 don't stop U.S. e-mail 🙂 naïve"] * 3
LABELS = ("A", "B", "C")
KINDS = {"wordpiece": 300, "bpe": 300, "unigram": 400, "char": None, "byte": None}
words = st.lists(
    st.one_of(
        st.sampled_from(["the", "unbelievably", "don't", "U.S.", "日本", "🙂", "größer", "Naïve", "\u200b"]),
        st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc", "Zs", "Zl", "Zp"]), min_size=1,
                max_size=8),
    ),
    min_size=1, max_size=8,
)  # fmt: skip


@pytest.fixture(scope="module")
def trained():
    return {kind: Tokenizer.train(LINES, kind=kind, vocab_size=size) for kind, size in KINDS.items()}


def scored_words(rows):
    """Text, word, label and first token of each word that is scored."""
    columns = np.repeat(rows.texts, rows.lengths), rows.words, rows.targets, rows.ids
    return np.stack(columns, 1)[rows.words != NO_WORD].tolist()


def tagged(words):
    return TaggedText(tuple(words), tuple(LABELS[n % 3] for n in range(len(words))), "x.conll", 1, True)


@settings(max_examples=40, deadline=None)
@given(words=words)
def test_first_tokens_are_the_librarys(trained, words):
    ours = trained["wordpiece"]
    special = map(ours.id_to_token, ours.special_ids)  # which the library does not read as text
    assume(not any(token in word for token in special for word in words))
    library = tokenizers.Tokenizer.from_str(json.dumps({**ours._definition, "post_processor": None}))
    encoding = library.encode(words, is_pretokenized=True)
    rows = tagged_rows(ours, [tagged(words)], LABELS, start=[7], end=[8])
    assert rows.ids.tolist() == [7, *encoding.ids, 8]
    firsts = {word: encoding.word_ids.index(word) for word in set(encoding.word_ids)}
    expected = [IGNORE] * (len(encoding.ids) + 2)
    for word, token in firsts.items():
        expected[token + 1] = word % 3
    assert rows.targets.tolist() == expected
    assert rows.ledger.counts["silent"] == len(words) - len(firsts)


@pytest.mark.parametrize("kind", KINDS)
def test_any_kind_of_tokenizer(trained, kind):
    text = tagged(["größer", "cat", ",", "日本", "🙂", "don't"])
    rows = tagged_rows(trained[kind], [text], LABELS)
    assert rows.words[rows.words != NO_WORD].tolist() == list(range(6))
    encoding = trained[kind].encode(text.text)
    for token in np.flatnonzero(rows.words != NO_WORD):
        begin, end = text.spans[rows.words[token]]
        assert begin - 1 <= encoding.offsets[token][0] <= begin < encoding.offsets[token][1] <= end
        assert rows.targets[token] == rows.words[token] % 3
    assert (rows.targets[rows.words == NO_WORD] == IGNORE).all()


@settings(max_examples=40, deadline=None)
@given(texts=st.lists(words, min_size=1, max_size=3), room=st.integers(1, 12), data=st.data())
def test_windows_score_every_word_once_and_read_every_token(trained, texts, room, data):
    context = data.draw(st.integers(0, room - 1))
    tokenizer = trained["wordpiece"]
    given = [tagged(words) for words in texts]
    whole = tagged_rows(tokenizer, given, LABELS)
    rows = tagged_rows(
        tokenizer, given, LABELS, start=[7], longest=room + 1, too_long="window", context=context
    )
    assert rows.lengths.max() <= room + 1
    assert (rows.ids[rows.offsets[:-1]] == 7).all()
    assert scored_words(rows) == scored_words(whole)
    assert rows.ledger.counts["lost"] == 0
    assert rows.ledger.counts["windowed"] == int((whole.lengths > room).sum())
    if context == 0:
        assert np.delete(rows.ids, rows.offsets[:-1]).tolist() == whole.ids.tolist()


def test_windows_part_between_words_and_see_what_was_before(trained):
    text = tagged(["at", "ca", "ts"])
    rows = tagged_rows(trained["char"], [text], LABELS, longest=6, too_long="window", context=2)
    parts = [
        trained["char"].decode(rows.ids[a:b]) for a, b in zip(rows.offsets, rows.offsets[1:], strict=False)
    ]
    assert parts == ["at ca ", "a ts"]
    assert [rows.words[a:b].tolist() for a, b in zip(rows.offsets, rows.offsets[1:], strict=False)] == [
        [0, -1, -1, 1, -1, -1], [-1, -1, 2, -1]
    ]  # fmt: skip


def test_too_long_is_an_error_or_a_cut_as_asked(trained):
    texts = [tagged(["the"]), tagged(["the", "cat", "the", "cat"])]
    with pytest.raises(DataError, match=r"x\.conll:1: has 4 tokens in 4 words, .* room for 2; .*\"window\""):
        tagged_rows(trained["wordpiece"], texts, LABELS, start=[7], end=[8], longest=4)
    rows = tagged_rows(trained["wordpiece"], texts, LABELS, start=[7], end=[8], longest=4, too_long="cut")
    assert rows.targets.tolist() == [IGNORE, 0, IGNORE, IGNORE, 0, 1, IGNORE]
    assert (rows.cut, rows.ledger.cut, rows.ledger.counts["lost"], rows.ledger.labels) == (
        1,
        1,
        2,
        {"A": 3, "B": 1, "C": 1},
    )
    assert rows.ledger.lines() == [
        "2 texts, 5 tokens; labels: A 3, B 1, C 1",
        "words: 5 in all",
        "model rows: 2 rows of tokens that the model reads",
        "lost: 2 words lie behind the truncation; their labels are left out",
        "truncated: 1 text is longer than the limit and lost its end",
    ]  # fmt: skip
    silent = tagged_rows(trained["wordpiece"], [tagged(["\u200b", "the"])], LABELS).ledger
    assert (silent.counts["silent"], silent.counts["lost"], silent.as_dict()["words"]) == (1, 0, 2)


def test_labels_that_training_has_not(trained):
    with pytest.raises(DataError, match=r"x\.conll:3: the label 'C' of 'mat' was not seen in training"):
        tagged_rows(trained["char"], [tagged(["the", "cat", "mat"])], ("A", "B"))
    rows = tagged_rows(trained["char"], [tagged(["the"])._replace(labels=None)])
    assert (rows.targets == IGNORE).all()
    assert rows.words.tolist() == [0, -1, -1]
    for wrong, says in [
        ({"too_long": "windows"}, "did you mean 'window'"),
        ({"longest": 2}, "leave 0 for a text"),
        ({"longest": 4, "context": 2}, "2 of them read again"),
    ]:
        with pytest.raises(DataError, match=says):
            tagged_rows(trained["char"], [], LABELS, start=[7], end=[8], **wrong)


def test_batches_hold_every_token_beside_its_label(trained):
    texts = [tagged(words) for words in (["the", "cat"], ["unbelievably"], ["the", "cat", "sat", "on"])]
    rows = tagged_rows(trained["wordpiece"], texts, LABELS, start=[7], end=[8])
    batches = WordLabelBatches(rows, pad_id=3, order="sequential")
    batch = batches.batch(1, 4)  # and on into the next epoch
    tokens, segments, attend = batch.inputs
    assert segments is None
    assert batch.targets.shape == tokens.shape == attend.shape
    for n, row in enumerate((1, 2, 0, 1)):
        begin, end = rows.offsets[row : row + 2]
        assert tokens[n][attend[n]].tolist() == rows.ids[begin:end].tolist()
        assert batch.targets[n][attend[n]].tolist() == rows.targets[begin:end].tolist()
    assert (tokens[~attend] == 3).all()
    assert (batch.targets[~attend] == IGNORE).all()
    other = tagged_rows(trained["wordpiece"], texts, LABELS[::-1], start=[7], end=[8])
    assert WordLabelBatches(other).fingerprint != WordLabelBatches(rows).fingerprint
    assert sum(count for _, count in batches.passes()) == 3

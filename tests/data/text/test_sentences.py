"""Where a text is cut into sentences, and that nothing of it is lost."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wordloom.data import Corpus, Sentences, prepare
from wordloom.data.text.sentences import sentences
from wordloom.errors import DataError
from wordloom.text import Tokenizer


@given(st.text(alphabet='ab A.!?\n"”)। 。', max_size=60), st.sampled_from(["punctuation", "line"]))
def test_nothing_is_lost(text: str, rule: str) -> None:
    found = sentences(text, rule)
    assert "".join(found) == text
    assert all(found)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("It rained. We stayed in.", 2),
        ("“It rained.” We stayed in! (So did she.) Why?", 4),
        ("It was 3.5 miles. no capital follows here", 1),
        ("e.g. this one", 1),
        ("A title\n\nThe text under it", 2),
        ("A line\nthat goes on", 1),
        ("Wait... What?", 2),
        ("今日は雨だ。家にいる。", 2),
        ("वह आया। वह गया।", 2),
        ("A title\r\n\r\nThe text\r\n \t\r\nunder it", 3),
        ("Er kam z.B. über Nacht. Österreich", 2),
        ("г. москва и т.д. другие. Все", 2),
        ("", 0),
    ],
)
def test_where_sentences_end(text: str, count: int) -> None:
    assert len(sentences(text)) == count


def test_lines_are_sentences_as_berts_own_code_reads_them(tmp_path: Path) -> None:
    (tmp_path / "input.txt").write_text("One here. And more.\nTwo.\n\nThree.\nFour.\nFive.\n")
    corpus = Sentences(
        Corpus(sources=[str(tmp_path / "input.txt")], separator="blank-line", validation_fraction=0), "line"
    )
    pieces = list(corpus.pieces("train"))
    assert [str(piece.text).strip() for piece in pieces] == [
        "One here. And more.",
        "Two.",
        "Three.",
        "Four.",
        "Five.",
    ]
    assert [piece.index for piece in pieces] == [0, 0, 1, 1, 1]


def test_tokens_are_those_of_the_whole_document(tmp_path: Path) -> None:
    text = "It rained. “We stayed in,” he said. Nobody came! " * 4000  # longer than a piece
    (tmp_path / "long.txt").write_text(text)
    tokenizer = Tokenizer.train([text[:500]], kind="wordpiece", vocab_size=80)
    corpus = Corpus(sources=[str(tmp_path / "long.txt")], validation_fraction=0)
    whole = prepare(corpus, tokenizer, part="train", end="none")
    cut = prepare(Sentences(corpus), tokenizer, part="train", end="none")
    assert np.array_equal(whole.tokens(), cut.tokens())
    assert cut.ends.size == 3 * 4000
    assert (cut.origins == cut.origins[0]).all()
    assert (
        prepare(Sentences(corpus, "line"), tokenizer, part="train", end="none").fingerprint != cut.fingerprint
    )


def test_mistakes_in_one_line(tmp_path: Path) -> None:
    corpus = Corpus(sources=[str(tmp_path)])
    with pytest.raises(DataError, match="did you mean 'line'"):
        Sentences(corpus, "lines")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="use 'replace'"):
        Sentences(Corpus(sources=[str(tmp_path)], encoding_errors="bytes"))

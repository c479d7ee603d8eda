"""The comparison of tokenizers, checked against counts made by hand."""

import pytest

from wordloom.errors import DataError, TokenizerError
from wordloom.text import Tokenizer, compare_tokenizers, report


def test_figures_by_hand():
    word = Tokenizer.train(["a b c d"], kind="word", special_tokens=["<unk>", "<pad>"])
    byte = Tokenizer.train([], kind="byte", special_tokens=())
    documents = ["a b x\n", "a é", ""]
    by_word, by_byte = compare_tokenizers({"word": word, "byte": byte}, documents)
    assert (by_word.name, by_word.kind, by_word.lossless, by_word.vocab_size) == ("word", "word", False, 6)
    assert by_word.tokens == 5
    assert by_word.bytes_per_token == 10 / 5  # 'é' is two bytes
    assert by_word.tokens_per_word == 5 / 5
    assert by_word.unknown_rate == 2 / 5
    assert by_word.unused_share == 2 / 4  # c and d
    assert (by_word.lines, by_word.round_trip_failures, by_word.first_failure) == (2, 2, "a b x\n")
    assert by_byte.tokens == 10
    assert by_byte.bytes_per_token == 1
    assert by_byte.unknown_rate == 0
    assert by_byte.unused_share == (256 - len(set("a b x\na é".encode()))) / 256
    assert (by_byte.round_trip_failures, by_byte.first_failure) == (0, None)


def test_special_tokens_in_the_text_are_text(trained):
    (result,) = compare_tokenizers({"bpe": trained["bpe"]}, ["a<|endoftext|>b"])
    assert result.tokens == len(trained["bpe"].encode_ids("a<|endoftext|>b", specials="text"))
    assert result.round_trip_failures == 0


def test_batches_do_not_change_the_figures(trained, corpus, monkeypatch):
    whole = compare_tokenizers(trained, corpus)
    monkeypatch.setattr(report, "_BATCH", 3000)
    parts = compare_tokenizers(trained, iter(corpus))
    for one, other in zip(whole, parts, strict=True):
        same = ("tokens", "bytes_per_token", "tokens_per_word", "unknown_rate", "unused_share")
        assert [getattr(one, name) for name in same] == [getattr(other, name) for name in same]
    lossless = {result.kind for result in whole if result.lossless}
    assert lossless == {"byte", "bpe", "unigram"}
    assert all(result.round_trip_failures == 0 for result in [*whole, *parts] if result.lossless)


def test_no_text_and_text_that_cannot_be_encoded():
    byte = Tokenizer.train([], kind="byte")
    with pytest.raises(DataError, match="no text"):
        compare_tokenizers({"byte": byte}, ["", ""])
    char = Tokenizer.train(["abc"], kind="char", special_tokens=())
    with pytest.raises(TokenizerError, match=r"^mine: character 'x'"):
        compare_tokenizers({"mine": char}, ["abcx"])

"""Properties of tokenizers over arbitrary text."""

from pydoc_data.topics import topics

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from wordloom.errors import TokenizerError
from wordloom.text import TOKENIZERS, Tokenizer

LOSSLESS = ["byte", "bpe", "bpe-llama3", "unigram", "unigram-llama3"]
LOSSY = ["word", "word-whitespace", "word-lower", "char", "char-lower", "wordpiece", "wordpiece-lower"]
LOSSY += ["bpe-lower", "unigram-lower"]
SIZES = {"bpe": 600, "unigram": 700, "wordpiece": 500}

# Unicode of every kind, and text thick with what tokenizers treat specially.
AWKWARD = "the class 12 's\u00a0\u2028\u0085\t\r\n\0\x1b\x7f._-##'\"[UNK]<unk>|<0x41>"
AWKWARD += "▁ĠÿéE\u0301\u200d😀🇫🇷中가İßΣſŒ\ufffd\ufeff"
TEXT = st.text(max_size=50) | st.lists(
    st.sampled_from([*AWKWARD, "<|endoftext|>", "</s>", "[SEP]", "  "])
).map("".join)


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, Tokenizer]:
    corpus = [topics[name][:4000] for name in sorted(topics)][:30] + ["été 中文 😀"] * 3
    made = {}
    for name in LOSSLESS + LOSSY:
        kind, _, option = name.partition("-")
        setting = {"lower": True} if option == "lower" else {"split": option} if option else {}
        made[name] = Tokenizer.train(corpus, kind=kind, vocab_size=SIZES.get(kind), **setting)
    assert set(TOKENIZERS) == {tokenizer.kind for tokenizer in made.values()}
    return made


@settings(max_examples=150, deadline=None)
@given(name=st.sampled_from(LOSSLESS), text=TEXT)
@example(name="unigram", text=" leading")
@example(name="unigram", text="▁<0x41> \0")
def test_lossless_kinds_give_every_text_back(name, text, tokenizers):
    tokenizer = tokenizers[name]
    assert tokenizer.lossless
    ids = tokenizer.encode_ids(text, specials="text")
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode_bytes(ids) == text.encode()
    assert not tokenizer.special_ids & set(ids)
    assert tokenizer.byte_lengths()[ids].sum() == len(text.encode())


@settings(max_examples=100, deadline=None)
@given(data=st.binary(max_size=60))
def test_the_byte_kind_gives_any_bytes_back(data, tokenizers):
    tokenizer = tokenizers["byte"]
    assert tokenizer.decode_bytes(tokenizer.encode_ids(data, specials="text")) == data


@settings(max_examples=150, deadline=None)
@given(name=st.sampled_from(LOSSY), text=TEXT)
def test_lossy_kinds_settle_after_one_round(name, text, tokenizers):
    """decode(encode(.)) is idempotent; the unknown token that decoding writes is read as what it is."""
    tokenizer = tokenizers[name]
    assert not tokenizer.lossless
    once = tokenizer.decode(tokenizer.encode_ids(text, specials="text"))
    twice = tokenizer.decode(tokenizer.encode_ids(once, specials="interpret"))
    assert twice == once


@settings(max_examples=150, deadline=None)
@given(name=st.sampled_from(LOSSLESS + LOSSY), text=TEXT)
def test_special_tokens_never_slip_in(name, text, tokenizers):
    tokenizer = tokenizers[name]
    plain = tokenizer.encode_ids(text, specials="text")
    assert not (tokenizer.special_ids - {tokenizer.unk_id}) & set(plain)
    holds_special = any(tokenizer.id_to_token(i) in text for i in tokenizer.special_ids)
    if holds_special:
        with pytest.raises(TokenizerError, match="special token"):
            tokenizer.encode_ids(text)
    else:
        assert tokenizer.encode_ids(text) == tokenizer.encode_ids(text, specials="interpret") == plain
        encoding = tokenizer.encode(text)
        assert encoding.ids == plain
        assert all(0 <= a <= b <= len(text) for a, b in encoding.offsets)


@settings(max_examples=100, deadline=None)
@given(name=st.sampled_from(LOSSLESS + LOSSY), text=TEXT, start=st.integers(0, 5))
def test_streaming_is_decoding(name, text, start, tokenizers):
    tokenizer = tokenizers[name]
    ids = tokenizer.encode_ids(text, specials="interpret")
    before = tokenizer.decode(ids[:start])
    stream = tokenizer.stream_decoder(ids[:start])
    streamed = "".join(map(stream.push, ids[start:])) + stream.flush()
    if "\ufffd" not in before:  # else the prompt ended within a character
        assert before + streamed == tokenizer.decode(ids)


@settings(max_examples=100, deadline=None)
@given(name=st.sampled_from(LOSSLESS), seed=st.randoms(use_true_random=False), size=st.integers(0, 12))
def test_any_ids_stream_as_they_decode(name, seed, size, tokenizers):
    """Ids as a model draws them: bytes that are no UTF-8, in any order."""
    tokenizer = tokenizers[name]
    ids = [seed.randrange(tokenizer.vocab_size) for _ in range(size)]
    stream = tokenizer.stream_decoder()
    assert "".join(map(stream.push, ids)) + stream.flush() == tokenizer.decode(ids)
    assert tokenizer.decode(ids) == tokenizer.decode_bytes(ids).decode(errors="replace")

"""Every way of encoding gives the same ids; offsets are places in the given text."""

import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wordloom.errors import TokenizerError
from wordloom.text import TOKENIZERS, Tokenizer, encoding
from wordloom.text.encoding import cut_at_spaces
from wordloom.text.fast_paths import proven_ranks, tiktoken_twin

# Every code point below U+20000 outside the large uniform blocks, and a sample of all others.
UNIFORM = [range(0x3400, 0xA000), range(0xAC00, 0xD7A4), range(0xD800, 0xF900), range(0x17000, 0x18D00)]
CODE_POINTS = [chr(c) for c in range(0x20000) if not any(c in block for block in UNIFORM)]
CODE_POINTS += [chr(c) for c in range(0, 0x110000, 211) if not 0xD800 <= c < 0xE000]


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_all_ways_agree(kind, trained, corpus):
    tokenizer = trained[kind]
    texts = [*corpus[:5], "", "naïve 中文 😀"]
    batch = tokenizer.encode_batch(texts)
    for text, ids in zip(texts, batch, strict=True):
        assert ids.dtype == np.int32
        assert tokenizer.encode(text).ids == tokenizer.encode_ids(text) == ids.tolist()
        assert tokenizer.encode(text, specials="interpret").ids == tokenizer.encode_ids(text, specials="text")
        assert all(0 <= i < tokenizer.vocab_size for i in ids)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_offsets_are_places_in_the_text(kind, trained):
    text = " The  class é😀 of objects"
    ids, offsets = trained[kind].encode(text)
    assert len(ids) == len(offsets)
    assert all(0 <= a <= b <= len(text) for a, b in offsets)
    assert [a for a, _ in offsets] == sorted(a for a, _ in offsets)
    covered = {i for a, b in offsets for i in range(a, b)}
    missed = set(range(len(text))) - covered
    assert all(text[i] == " " for i in missed)
    if trained[kind].lossless:
        assert not missed
        assert all(
            trained[kind].decode([i]) == text[a:b]
            for i, (a, b) in zip(ids, offsets, strict=True)
            if text[a:b].isascii()
        )


def test_byte_offsets(trained):
    assert trained["byte"].encode("aé😀").offsets == [(0, 1), (1, 2), (1, 2)] + [(2, 3)] * 4
    assert trained["byte"].encode("aé".encode()).offsets == [(0, 1), (1, 2), (2, 3)]


@pytest.mark.parametrize("kind", [*TOKENIZERS, "llama"])
def test_long_texts_are_cut_without_a_trace(kind, trained, corpus, request, monkeypatch):
    if kind == "llama":
        folder = request.getfixturevalue("data") / "weights" / "stories260K" / "hf"
        tokenizer = Tokenizer.from_pretrained(folder)
    else:
        tokenizer = trained[kind]
    text = "  ".join(corpus[:6]) + "   \n\n  end  "
    whole = tokenizer.encode(text).ids
    monkeypatch.setattr(encoding, "_PIECE", 50)
    assert tokenizer.encode_ids(text) == whole
    for text in ("a" * 50 + " ", "a" * 50 + "\u2581 b", "a" * 49 + "\u2581 ", "ab " * 17):
        assert tokenizer.encode_ids(text) == tokenizer.encode(text).ids, text


@given(text=st.text("ab .\n\u00a0é"), limit=st.integers(1, 9))
def test_cutting_keeps_the_text_and_cuts_before_spaces(text, limit):
    parts = list(cut_at_spaces(text, limit))
    assert "".join(parts) == text
    assert all(part.startswith(" ") and not before[-1].isspace() for before, part in pairwise(parts))


# The tiktoken path


def both(tokenizer):
    """Encoders of ordinary text through tiktoken and through the tokenizers library."""
    definition, plain = tokenizer._definition, tokenizer._encoder._plain
    fast = tiktoken_twin(definition)
    assert fast is not None
    return fast.encode_ordinary_batch, lambda texts: [e.ids for e in plain.encode_batch_fast(texts)]


@pytest.fixture(scope="session")
def byte_level(corpus, trained):
    llama3 = Tokenizer.train(corpus, kind="bpe", vocab_size=700, split="llama3")
    return {"gpt2": trained["bpe"], "llama3": llama3}


@pytest.mark.parametrize("split", ["gpt2", "llama3"])
def test_tiktoken_classifies_code_points_as_tokenizers_does(split, byte_level):
    fast, slow = both(byte_level[split])
    around = "a{}1{} {}!'{}x It'{} {}\n"
    chunks = [CODE_POINTS[i : i + 2000] for i in range(0, len(CODE_POINTS), 2000)]
    texts = ["".join(around.replace("{}", c) for c in chunk) for chunk in chunks]
    differing = [ascii(c[0]) for c, a, b in zip(chunks, fast(texts), slow(texts), strict=True) if a != b]
    assert differing == []


@settings(max_examples=150, deadline=None)
@given(
    split=st.sampled_from(["gpt2", "llama3"]),
    text=st.text() | st.text(st.sampled_from("the class'sſ 12\t\r\n\u00a0éE\u0301_-")),
)
def test_tiktoken_gives_equal_ids(split, text, byte_level):
    fast, slow = both(byte_level[split])
    assert fast([text]) == slow([text])


def test_tiktoken_gives_equal_ids_for_gpt2(gpt2_folder, shakespeare):
    tokenizer = Tokenizer.from_pretrained(gpt2_folder)
    fast, slow = both(tokenizer)
    paragraphs = shakespeare.split("\n\n")
    assert fast(paragraphs) == slow(paragraphs)


def test_the_fast_path_is_taken_for_much_text_and_equals_the_slow_one(trained, corpus, monkeypatch):
    texts = [text * 10 for text in corpus]
    tokenizer = Tokenizer(trained["bpe"]._definition)
    fast = [ids.tolist() for ids in tokenizer.encode_batch(texts)]
    assert tokenizer._encoder._fast is not None
    assert "_fast" in tokenizer._encoder.__dict__
    monkeypatch.setitem(sys.modules, "tiktoken", None)  # as if it were not installed
    slow = Tokenizer(trained["bpe"]._definition)
    assert [ids.tolist() for ids in slow.encode_batch(texts)] == fast
    assert slow._encoder._fast is None


def test_a_million_spaces(trained):
    tokenizer = Tokenizer(trained["bpe"]._definition)
    text = "x" + " " * 1_000_000 + "y"
    assert tokenizer.decode(tokenizer.encode_ids(text)) == text


def test_no_proof_no_fast_path(trained):
    definition = trained["bpe"]._definition
    assert proven_ranks(definition) is not None

    def changed(**model):
        return definition | {"model": definition["model"] | model}

    merges = definition["model"]["merges"]
    vocab = definition["model"]["vocab"]
    assert proven_ranks(changed(merges=merges[::-1])) is None  # ids do not rise with rank
    assert proven_ranks(changed(merges=merges[:-1])) is None  # a token that no merge makes
    assert proven_ranks(changed(dropout=0.0, unk_token="a")) is None
    assert proven_ranks(definition | {"normalizer": {"type": "NFC"}}) is None
    # a token that is not reached alone: 'b'+'c' joins before 'ab'+'c' can
    alphabet = {token: i for token, i in vocab.items() if len(token) == 1}
    size = len(vocab)
    unreachable = alphabet | {"bc": size, "ab": size + 1, "abc": size + 2}
    plain = {"added_tokens": []}
    for flag in (False, True):  # under ignore_merges every token is itself without a merge
        merges = [["b", "c"], ["a", "b"], ["ab", "c"]]
        assert proven_ranks(changed(vocab=unreachable, merges=merges, ignore_merges=flag) | plain) is None
        merges = [["b", "c"], ["a", "b"], ["a", "bc"]]
        assert proven_ranks(changed(vocab=unreachable, merges=merges, ignore_merges=flag) | plain) is not None


@pytest.mark.parametrize("ignore_merges", [False, True])
def test_ids_do_not_depend_on_what_was_encoded_before(ignore_merges, trained):
    """'aab' is a token that merging never reaches in 'aaab': tiktoken would join 'aa' and 'b'."""
    definition = trained["bpe"]._definition
    alphabet = {token: i for token, i in definition["model"]["vocab"].items() if len(token) == 1}
    size = 1 + max(alphabet.values())
    model = definition["model"] | {
        "vocab": alphabet | {"ab": size, "aa": size + 1, "aab": size + 2},
        "merges": [["a", "b"], ["a", "a"], ["aa", "b"]],
        "ignore_merges": ignore_merges,
    }
    tokenizer = Tokenizer(definition | {"model": model, "added_tokens": []})
    texts = ["aaab", "aab", "baaab aaab", "aaaab"]
    before = [tokenizer.encode_ids(text) for text in texts]
    tokenizer.encode_batch(["aab " * 100_000])
    assert [tokenizer.encode_ids(text) for text in texts] == before
    assert [tokenizer.encode(text).ids for text in texts] == before


# What is not a text, and what is not an id


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_batches_may_be_any_iterable_but_one_string(kind, trained):
    tokenizer = trained[kind]
    texts = ["the class", "", "of objects"]
    expected = [tokenizer.encode_ids(text) for text in texts]
    for batch in (texts, iter(texts), (text for text in texts), tuple(texts), np.array(texts)):
        assert [ids.tolist() for ids in tokenizer.encode_batch(batch)] == expected
    assert tokenizer.encode_batch([]) == tokenizer.encode_batch(iter(())) == []
    for batch, message in (
        ("abc", "texts is one string"),
        (b"abc", "texts is one string"),
        (None, "must be a list of strings, not None"),
        (5, "must be a list of strings, not int 5"),
        (["a", None], r"texts\[1\] of the batch: the text must be a str( or bytes)?, not None"),
        ([["a"], ["b"]], r"texts\[0\] of the batch: .* not list \['a'\]"),
        (np.array([["a", "b"], ["c", "d"]]), r"texts\[0\] of the batch: .* not ndarray of shape \(2,\)"),
    ):
        with pytest.raises(TokenizerError, match=message) as caught:
            tokenizer.encode_batch(batch)
        assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_batch_names_the_text_that_it_refuses(kind, trained):
    special = trained[kind].id_to_token(min(trained[kind].special_ids))
    for wrong, message in (("a\ud800", "the text has a lone surrogate"), (f"the {special}", "special token")):
        with pytest.raises(TokenizerError, match=rf"texts\[2\] of the batch: .*{message}"):
            trained[kind].encode_batch(["a", "b", wrong, wrong])
        with pytest.raises(TokenizerError, match=r"^the text"):
            trained[kind].encode_batch([wrong])
    for no_unknown in ("word", "char"):
        tokenizer = Tokenizer.train(["the class"], kind=no_unknown, special_tokens=())
        with pytest.raises(TokenizerError, match=r"texts\[1\] of the batch: .*not in|outside the vocabulary"):
            tokenizer.encode_batch(["the", "Ω"])


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_what_is_not_a_text_is_refused(kind, trained):
    tokenizer = trained[kind]
    for text in (None, 5, ["a"], np.array(["a"]), bytearray(b"a")):
        for encode in (tokenizer.encode, tokenizer.encode_ids, tokenizer.prompt_ids):
            with pytest.raises(TokenizerError, match="must be a str") as caught:
                encode(text)
            assert isinstance(caught.value, TypeError)
    with pytest.raises(TokenizerError, match="specials"):
        tokenizer.encode("a", specials=None)
    for texts in () if kind == "byte" else (None, "abc", ["a", None], [["a"]], [b"a"]):  # it reads none
        with pytest.raises(TokenizerError, match="texts"):
            Tokenizer.train(texts, kind=kind)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_ids_are_integers_of_any_type_in_one_dimension(kind, trained):
    torch = pytest.importorskip("torch")
    tokenizer = trained[kind]
    ids = tokenizer.encode_ids("the class")
    text = tokenizer.decode(ids)
    for given_ids in (
        *(np.array(ids, dtype) for dtype in ("int32", "int64", "uint16")),
        *(torch.tensor(ids, dtype=dtype) for dtype in (torch.int64, torch.int32)),
        *(tuple(ids), iter(ids), [np.int64(i) for i in ids], list(torch.tensor(ids))),
        np.repeat(ids, 2)[::2],
    ):
        assert tokenizer.decode(given_ids) == text
    assert tokenizer.id_to_token(np.int64(ids[0])) == tokenizer.id_to_token(ids[0])
    assert tokenizer.decode([]) == tokenizer.decode(np.array([], dtype=np.int64)) == ""
    for wrong, message in (
        (None, "not None"),
        (5, "not int 5"),
        ("12", "not str '12'"),
        *([] if kind == "byte" else [(b"12", "not bytes b'12'")]),  # whose ids are byte values
        ([1.0], r"ids\[0\] must be an integer, not float 1.0"),
        ([1, None], r"ids\[1\] must be an integer, not None"),
        ([True], "not bool True"),
        ([[1, 2], [3]], r"ids\[0\] must be an integer, not list \[1, 2\]"),
        (np.array([1.5]), "not float 1.5"),
        (np.array([[1, 2]]), r"one dimension, not the shape \(1, 2\)"),
        (torch.tensor(5), r"one dimension, not the shape \(\)"),
        (torch.tensor([[1], [2]]), r"one dimension, not the shape \(2, 1\)"),
        (tokenizer.encode("the class"), r"ids\[0\] must be an integer, not list"),
    ):
        for decode in (tokenizer.decode, tokenizer.stream_decoder):
            with pytest.raises(TokenizerError, match=message) as caught:
                decode(wrong)
            assert isinstance(caught.value, TypeError)
    for index in (-1, tokenizer.vocab_size):
        with pytest.raises(TokenizerError, match="is not in the vocabulary"):
            tokenizer.decode([index])
    for index in (None, "1", [1], 1.0):
        for call in (tokenizer.id_to_token, tokenizer.bytes_of, tokenizer.stream_decoder().push):
            with pytest.raises(TokenizerError, match=r"must be an integer|has no bytes"):
                call(index)
        with pytest.raises(TokenizerError, match="a token must be a str"):
            tokenizer.token_to_id([index])

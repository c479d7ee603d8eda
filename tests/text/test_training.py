"""Training: vocabularies, special roles, bounds, and the mistakes a user can make."""

import string
import tracemalloc

import pytest

from wordloom.errors import TokenizerError
from wordloom.text import TOKENIZERS, Tokenizer
from wordloom.text.definition import bytes_to_characters
from wordloom.text.training.corpus import Corpus


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_default_specials_have_a_pad_that_is_not_eos(kind, trained):
    tokenizer = trained[kind]
    assert tokenizer.kind == kind
    assert tokenizer.pad_id is not None
    assert tokenizer.pad_id not in (tokenizer.eos_id, tokenizer.bos_id, tokenizer.unk_id)
    end = tokenizer.sep_id if kind == "wordpiece" else tokenizer.eos_id
    assert end in tokenizer.special_ids
    assert [tokenizer.id_to_token(i) for i in sorted(tokenizer.special_ids)] == sorted(
        TOKENIZERS[kind].special_tokens, key=tokenizer.token_to_id
    )


@pytest.mark.parametrize(
    ("kind", "size"), [("bpe", 700), ("wordpiece", 700), ("unigram", 900), ("byte", 258)]
)
def test_vocab_size_is_what_was_asked_for(kind, size, trained):
    assert trained[kind].vocab_size == size
    assert trained[kind].training_report.notes == ()


def test_char_vocabulary_without_specials_is_the_sorted_characters(corpus):
    tokenizer = Tokenizer.train(corpus, kind="char", special_tokens=())
    characters = sorted(set("".join(corpus)))
    assert [tokenizer.id_to_token(i) for i in range(tokenizer.vocab_size)] == characters
    assert tokenizer.special_ids == frozenset()
    assert tokenizer.eos_id is tokenizer.pad_id is tokenizer.unk_id is None
    assert tokenizer.byte_lengths().tolist() == [len(c.encode()) for c in characters]
    with pytest.raises(TokenizerError, match=r"'中' \(U\+4E2D\) at position 2"):
        tokenizer.encode("ab中")


def test_tiny_shakespeare_has_65_characters(shakespeare):
    tokenizer = Tokenizer.train([shakespeare], kind="char", special_tokens=())
    assert tokenizer.vocab_size == 65
    table = {c: i for i, c in enumerate(sorted(set(shakespeare)))}
    assert tokenizer.encode_ids(shakespeare) == [table[c] for c in shakespeare]


def test_word_counts_decide_the_vocabulary():
    texts = ["the cat sat. the cat ran.", "the dog ran!"]
    words = {"the", "cat", "sat", ".", "ran", "dog", "!"}
    everything = Tokenizer.train(texts, kind="word", special_tokens=["<unk>"])
    assert {everything.id_to_token(i) for i in range(1, everything.vocab_size)} == words
    frequent = Tokenizer.train(texts, kind="word", min_frequency=2, special_tokens=["<unk>"])
    assert {frequent.id_to_token(i) for i in range(1, frequent.vocab_size)} == {"the", "cat", ".", "ran"}
    assert frequent.encode_ids("the dog ran") == [
        frequent.token_to_id("the"),
        frequent.unk_id,
        frequent.token_to_id("ran"),
    ]
    spaced = Tokenizer.train(texts, kind="word", split="whitespace", vocab_size=3, special_tokens=["<unk>"])
    assert [spaced.id_to_token(i) for i in range(3)] == ["<unk>", "the", "cat"]


def test_a_word_spelt_like_a_special_token_is_that_token():
    """As the Penn Treebank has <unk> for its rare words."""
    texts = ["the <unk> sat", "the <unk> ran by the <unk>"]
    for size in (None, 4):
        tokenizer = Tokenizer.train(
            texts, kind="word", split="whitespace", vocab_size=size, special_tokens=["<unk>", "<eos>"]
        )
        assert tokenizer.vocab_size == (size or 6)
        assert [tokenizer.id_to_token(i) for i in range(3)] == ["<unk>", "<eos>", "the"]
        ids = tokenizer.encode("the <unk> flew", specials="text").ids
        assert ids == [2, tokenizer.unk_id, tokenizer.unk_id]


def test_byte_ids_are_byte_values(trained):
    assert trained["byte"].encode_ids("aé") == [97, 0xC3, 0xA9]
    assert trained["byte"].encode_ids(bytes(range(256))) == list(range(256))


@pytest.mark.parametrize("kind", ["word", "char", "bpe", "wordpiece", "unigram"])
def test_lower(kind, corpus):
    size = {"bpe": 400, "wordpiece": 400, "unigram": 700}.get(kind)
    tokenizer = Tokenizer.train(corpus, kind=kind, lower=True, vocab_size=size)
    assert not tokenizer.lossless
    assert tokenizer.encode_ids("The CLASS") == tokenizer.encode_ids("the class")
    tokens = {tokenizer.id_to_token(i) for i in range(tokenizer.vocab_size) if i not in tokenizer.special_ids}
    ordinary = {t for t in tokens if not t.startswith("<0x")} - set(bytes_to_characters())
    assert not any(c in string.ascii_uppercase for token in ordinary for c in token)


@pytest.mark.parametrize("kind", ["word", "char", "bpe", "wordpiece"])
def test_training_is_repeatable(kind, corpus, trained):
    size = {"bpe": 700, "wordpiece": 700}.get(kind)
    assert Tokenizer.train(iter(corpus), kind=kind, vocab_size=size).fingerprint == trained[kind].fingerprint


def test_llama3_split_cuts_numbers_in_threes(corpus):
    tokenizer = Tokenizer.train([*corpus, "1234567 " * 50], kind="bpe", vocab_size=600, split="llama3")
    assert tokenizer.lossless
    spans = [text for a, b in tokenizer.encode("1234567").offsets if (text := "1234567"[a:b])]
    assert spans == ["123", "456", "7"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "bqe"}, "did you mean 'bpe'"),
        ({"kind": "bpe", "vocab_size": "300"}, "vocab_size must be an integer, not str '300'"),
        ({"kind": "bpe", "special_tokens": [None]}, r"special_tokens\[0\] must be a str, not None"),
        ({"kind": "bpe", "special_tokens": 5}, "special_tokens must be a list of strings, not int 5"),
        ({"kind": "bpe", "vocab_size": 200}, r"256 bytes and 2 special tokens need 258"),
        ({"kind": "wordpiece", "vocab_size": 30}, r"characters kept"),
        ({"kind": "unigram", "vocab_size": 300}, r"256 bytes and the \d+ characters kept"),
        ({"kind": "byte", "vocab_size": 300}, "give 258 or leave it out"),
        ({"kind": "byte", "lower": True}, "does not lower-case"),
        ({"kind": "char", "vocab_size": 20, "special_tokens": ()}, "no unknown token"),
        ({"kind": "bpe", "vocab_size": 0}, "vocab_size=0 is impossible"),
        ({"kind": "bpe", "min_frequency": -1}, "min_frequency=-1 is impossible"),
        *(
            ({"kind": kind, "vocab_size": 10**11}, "impossible: give a number from 1 to 10,000,000")
            for kind in ("bpe", "wordpiece", "unigram", "word", "char")
        ),
        ({"kind": "bpe", "vocab_size": 10**23}, "impossible: give a number from 1 to 10,000,000"),
        ({"kind": "bpe", "min_frequency": 10**23}, "impossible: give a number from 1 to 1,000,000,000,000"),
        ({"kind": "unigram", "min_frequency": 2}, "has no min_frequency"),
        ({"kind": "bpe", "limit_alphabet": 9}, "has no limit_alphabet"),
        ({"kind": "bpe", "split": "lama3"}, "did you mean 'llama3'"),
        ({"kind": "char", "split": "words"}, "has no such choice"),
        ({"kind": "wordpiece", "special_tokens": ["[PAD]"]}, r"needs an unknown token: add '\[UNK\]'"),
        ({"kind": "bpe", "special_tokens": "<x>"}, "is one string"),
        ({"kind": "bpe", "special_tokens": ["<x>", "<x>"]}, "twice"),
        ({"kind": "bpe", "special_tokens": ["x"]}, "shorter than two characters"),
        ({"kind": "bpe", "special_tokens": {"eos": "<x>", "pad": "<x>"}}, "could never learn to stop"),
        ({"kind": "bpe", "special_tokens": {"eso": "<x>"}}, "did you mean 'eos'"),
        ({"kind": "bpe", "sample_bytes": 10}, "too small"),
    ],
)
def test_mistakes_are_one_clear_line(settings, message, corpus):
    with pytest.raises(TokenizerError, match=message) as caught:
        Tokenizer.train(corpus, **settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", [kind for kind in TOKENIZERS if kind != "byte"])
def test_empty_corpus(kind):
    for texts in ([], ["", ""]):
        with pytest.raises(TokenizerError, match="corpus is empty"):
            Tokenizer.train(texts, kind=kind)
    with pytest.raises(TokenizerError, match="one string"):
        Tokenizer.train("text", kind=kind)
    with pytest.raises(TokenizerError, match="lone surrogate"):
        Tokenizer.train(["a\udc80"], kind=kind)


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram", "word"])
def test_a_vocabulary_smaller_than_asked_for_is_reported(kind):
    text = "a rose is a rose is a rose " * 20
    tokenizer = Tokenizer.train([text], kind=kind, vocab_size=50_000)
    report = tokenizer.training_report
    assert report.vocab_size == tokenizer.vocab_size < 50_000 == report.requested_vocab_size
    assert "entries instead of 50,000" in report.notes[-1]


def test_characters_beyond_the_alphabet_are_reported_and_still_encode(corpus):
    rare = "".join(map(chr, range(0x4E00, 0x4E40)))
    wordpiece = Tokenizer.train([*corpus, rare], kind="wordpiece", vocab_size=500, limit_alphabet=60)
    assert "beyond limit_alphabet=60 and become the unknown token" in wordpiece.training_report.notes[0]
    assert wordpiece.encode_ids("一") == [wordpiece.unk_id]
    unigram = Tokenizer.train([*corpus, rare], kind="unigram", vocab_size=600, limit_alphabet=60)
    assert "become their UTF-8 bytes" in unigram.training_report.notes[0]
    assert [unigram.id_to_token(i) for i in unigram.encode_ids("一")] == ["<0xE4>", "<0xB8>", "<0x80>"]
    char = Tokenizer.train([*corpus, rare], kind="char", vocab_size=70)
    assert char.vocab_size == 70
    assert "become the unknown token" in char.training_report.notes[0]


def test_special_tokens_by_role():
    roles = {"eos": "<end>", "pad": "<blank>", "bos": "<end>"}
    tokenizer = Tokenizer.train(["some text"], kind="bpe", special_tokens=roles, vocab_size=300)
    assert tokenizer.eos_id == tokenizer.bos_id == tokenizer.token_to_id("<end>")
    assert tokenizer.pad_id == tokenizer.token_to_id("<blank>") != tokenizer.eos_id
    extra = Tokenizer.train(["some text"], kind="byte", special_tokens=["</s>", "<|user|>"])
    assert (extra.eos_id, extra.pad_id, extra.special_ids) == (256, None, {256, 257})


def test_progress_and_report_count_bytes(corpus):
    calls = []
    tokenizer = Tokenizer.train(corpus, kind="bpe", vocab_size=300, progress=lambda *call: calls.append(call))
    n_bytes = sum(len(text.encode()) for text in corpus)
    assert [call for call in calls if call[0] == "reading"][-1] == ("reading", n_bytes, None)
    assert calls[-1] == ("counting", n_bytes, n_bytes)
    report = tokenizer.training_report
    assert (report.texts, report.bytes_seen, report.bytes_used) == (len(corpus), n_bytes, n_bytes)


def test_a_corpus_beyond_the_bound_is_sampled_uniformly_and_said_so():
    def stream():
        for i in range(200):
            yield f"{chr(0x100 + i)} " * 20_000  # 60 kB each

    corpus = Corpus(stream(), sample_bytes=1 << 20, seed=1, count=False, progress=None)
    assert corpus.bytes_seen == 200 * 60_000
    assert (1 << 20) - 130_000 < corpus.bytes_used <= 1 << 20
    kept = [ord(text[0]) - 0x100 for text in corpus.texts()]
    assert kept == sorted(kept)
    assert min(kept) < 60 < 140 < max(kept)  # from all over the stream
    other = Corpus(stream(), sample_bytes=1 << 20, seed=2, count=False, progress=None)
    assert kept != [ord(text[0]) - 0x100 for text in other.texts()]
    tokenizer = Tokenizer.train(stream(), kind="bpe", vocab_size=300, sample_bytes=1 << 20)
    assert "uniform sample of 1 of 12 MB" in tokenizer.training_report.notes[-1]


def test_memory_stays_within_the_bound():
    tracemalloc.start()
    Corpus(("word " * 20_000 for _ in range(300)), sample_bytes=1 << 20, seed=0, count=False, progress=None)
    _, peak = tracemalloc.get_traced_memory()  # 30 MB went through
    tracemalloc.stop()
    assert peak < 3 << 20


def test_a_long_document_is_cut_without_changing_what_is_learnt(corpus):
    text = "\n\n".join(corpus * 2)
    assert len(text) > 1 << 17
    one = Tokenizer.train([text], kind="bpe", vocab_size=400)
    import tokenizers

    whole = tokenizers.Tokenizer(tokenizers.models.BPE())
    whole.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        min_frequency=2,
        special_tokens=["<|endoftext|>", "<|pad|>"],
        initial_alphabet=bytes_to_characters(),
        show_progress=False,
    )
    whole.train_from_iterator([text], trainer)
    assert {one.id_to_token(i): i for i in range(400)} == whole.get_vocab()

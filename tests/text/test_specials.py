"""Special tokens inside text: refused, taken as text, or interpreted, and never anything else."""

import json

import pytest

from wordloom.errors import TokenizerError
from wordloom.text import TOKENIZERS, Tokenizer


def with_added(tokenizer: Tokenizer, folder, *added: dict) -> Tokenizer:
    """The tokenizer read back after adding tokens to its tokenizer.json, as another program would."""
    tokenizer.save_pretrained(folder)
    definition = json.loads((folder / "tokenizer.json").read_text())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    for i, token in enumerate(added):
        definition["added_tokens"].append({**flags, "id": tokenizer.vocab_size + i, "special": True, **token})
    (folder / "tokenizer.json").write_text(json.dumps(definition))
    return Tokenizer.from_pretrained(folder)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_three_ways(kind, trained):
    tokenizer = trained[kind]
    for index in sorted(tokenizer.special_ids):
        name = tokenizer.id_to_token(index)
        text = f"The class{name} of objects"
        says = r'at character 9: say specials="text" \(--specials text, in a recipe data\.specials\)'
        with pytest.raises(TokenizerError, match=says) as caught:
            tokenizer.encode(text)
        assert f"'{name}'" in str(caught.value)
        for call in (tokenizer.encode_ids, tokenizer.prompt_ids, lambda t: tokenizer.encode_batch(["ok", t])):
            with pytest.raises(TokenizerError, match="special token"):
                call(text)
        as_text = tokenizer.encode_ids(text, specials="text")
        assert not (tokenizer.special_ids - {tokenizer.unk_id}) & set(as_text)
        interpreted = tokenizer.encode(text, specials="interpret")
        assert interpreted.ids.count(index) == 1
        assert interpreted.offsets[interpreted.ids.index(index)] == (9, 9 + len(name))
        assert tokenizer.encode_ids(text, specials="interpret") == interpreted.ids
        parts = [tokenizer.encode_ids("The class"), [index], tokenizer.encode_ids(" of objects")]
        assert interpreted.ids == [i for part in parts for i in part]


@pytest.mark.parametrize("kind", ["byte", "bpe", "unigram"])
def test_taken_as_text_it_comes_back_as_text(kind, trained):
    tokenizer = trained[kind]
    names = [tokenizer.id_to_token(i) for i in tokenizer.special_ids]
    text = "".join(names) + " " + " ".join(names)
    ids = tokenizer.encode_ids(text, specials="text")
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert not tokenizer.special_ids & set(ids)


def test_bytes_are_searched_too(trained):
    tokenizer = trained["byte"]
    data = b"\xff\xfe<|endoftext|>\x80"
    with pytest.raises(TokenizerError, match="at byte 2"):
        tokenizer.encode(data)
    assert tokenizer.encode(data, specials="interpret") == (
        [255, 254, tokenizer.eos_id, 128],
        [(0, 1), (1, 2), (2, 15), (15, 16)],
    )
    assert bytes(tokenizer.encode_ids(data, specials="text")) == data
    with pytest.raises(TokenizerError, match="bytes were given to a bpe tokenizer"):
        trained["bpe"].encode(b"abc")


def test_a_word_that_is_spelt_like_a_special_token_is_unknown():
    tokenizer = Tokenizer.train(
        ["a b <pad> a b"], kind="word", split="whitespace", special_tokens=["<unk>", "<pad>"]
    )
    assert tokenizer.encode_ids("a <pad> b", specials="text") == [
        tokenizer.token_to_id("a"),
        tokenizer.unk_id,
        tokenizer.token_to_id("b"),
    ]
    assert tokenizer.encode_ids("a <pad> b", specials="interpret")[1] == tokenizer.pad_id


def test_pieces_that_spell_a_special_token_are_not_joined_to_it(tmp_path):
    """A BPE whose merges lead to its own special token, as SentencePiece conversions have."""
    vocab = {t: i for i, t in enumerate(["<unk>", "<s>", "<", "s", ">", "<s"])}
    definition = {
        "version": "1.0",
        "added_tokens": [
            {"id": i, "content": t, "special": True, "normalized": False}
            | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
            for t, i in (("<unk>", 0), ("<s>", 1))
        ],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Fuse"},
        "model": {"type": "BPE", "vocab": vocab, "unk_token": "<unk>", "merges": ["< s", "<s >"]},
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    tokenizer = Tokenizer.from_pretrained(tmp_path)
    assert tokenizer.encode_ids("<s>", specials="text") == [5, 4]
    assert tokenizer.encode_ids("<s>", specials="interpret") == [1]


def test_tokens_added_later(trained, tmp_path):
    tokenizer = with_added(
        trained["bpe"], tmp_path, {"content": "<|im_start|>"}, {"content": "::=!", "special": False}
    )
    assert tokenizer.vocab_size == 702
    assert tokenizer.special_ids == trained["bpe"].special_ids | {700}
    with pytest.raises(TokenizerError, match=r"'<\|im_start\|>' at character 2"):
        tokenizer.encode("a <|im_start|>")
    # an added token that is not special is part of the ordinary vocabulary
    assert tokenizer.encode_ids("a::=!b") == [
        *tokenizer.encode_ids("a"),
        701,
        *tokenizer.encode_ids("b"),
    ]
    text = "a <|im_start|>::=!b"
    ids = tokenizer.encode_ids(text, specials="text")
    assert 700 not in ids
    assert 701 in ids
    assert tokenizer.decode(ids) == text
    assert 700 in tokenizer.encode_ids(text, specials="interpret")


def test_a_token_that_matches_normalised_text(corpus, tmp_path):
    lower = Tokenizer.train(corpus, kind="bpe", vocab_size=400, lower=True)
    tokenizer = with_added(lower, tmp_path, {"content": "<|tool|>", "normalized": True})
    text = "x <|TOOL|> y"
    assert 400 in tokenizer.encode_ids(text, specials="interpret")
    with pytest.raises(TokenizerError, match=r"'<\|tool\|>' after normalisation"):
        tokenizer.encode(text)
    assert 400 not in tokenizer.encode_ids(text, specials="text")


def test_unknown_mode(trained):
    with pytest.raises(TokenizerError, match="did you mean 'text'"):
        trained["bpe"].encode("a", specials="txt")


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_lone_surrogates_are_refused(kind, trained):
    with pytest.raises(TokenizerError, match=r"lone surrogate \(U\+DC80\) at character 1"):
        trained[kind].encode_ids("a\udc80")


def test_unused_ids_stand_for_no_bytes(tmp_path):
    tokenizer = Tokenizer.train(["a mole, é"], kind="char", special_tokens=())
    tokenizer.save_pretrained(tmp_path)
    definition = json.loads((tmp_path / "tokenizer.json").read_text())
    definition["model"]["vocab"]["ü"] = tokenizer.vocab_size + 3
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    lengths = Tokenizer.from_pretrained(tmp_path).byte_lengths()
    assert lengths.tolist() == [*tokenizer.byte_lengths().tolist(), 0, 0, 0, 2]

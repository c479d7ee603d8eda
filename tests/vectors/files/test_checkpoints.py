"""Any model's token rows as vectors: the very rows, under names that a person can type."""

import gzip
import json
import shutil

import numpy as np
import pytest
import torch

from wordloom.errors import CheckpointError, TokenizerError, VectorError
from wordloom.models import build, config_from
from wordloom.text import Tokenizer
from wordloom.vectors import KeyedVectors, TokenVectors, UnknownWordError, open_vectors, save_vectors
from wordloom.vectors.use.text_embeddings import TextEmbedder
from wordloom.weights import load_model, save_model
from wordloom.weights.tensors import open_tensors

TEXT = "the king and the queen. A king is making kings; thinking of nothing\n" * 20 + "Zoë said: ☃!\n"
SHAPE = {"max_seq_len": 8, "dim": 12, "n_layers": 2, "n_heads": 2}
MODELS = {
    "gpt": {"family": "gpt"},
    "gpt-own": {"family": "gpt", "positions": "sinusoidal", "output_bias": True},
    "gpt-untied": {"family": "gpt", "tie_embeddings": False},
    "gpt2": {"family": "gpt2"},
    "gpt2-own": {"family": "gpt2", "bias": False, "activation": "swish_learnt"},
    "gpt2-untied": {"family": "gpt2", "tie_embeddings": False},
    "llama": {"family": "llama", "n_kv_heads": 1},
    "llama-tied": {"family": "llama", "tie_embeddings": True},
}


def model_of(settings, vocab_size, seed=0):
    model = build(config_from(**SHAPE, **settings, vocab_size=vocab_size))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return model


@pytest.fixture(scope="module")
def bpe():
    return Tokenizer.train([TEXT], kind="bpe", vocab_size=300)


def folder_of(tmp_path, tokenizer, *, settings=MODELS["gpt2"], extra=0, **saving):
    model = model_of(settings, tokenizer.vocab_size + extra)
    save_model(model, tmp_path / "m", tokenizer=tokenizer, **saving)
    return tmp_path / "m", model


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("shards", [None, "2KB"])
def test_rows_are_the_models(name, shards, bpe, tmp_path):
    saving = {"max_shard_size": shards} if shards else {}
    folder, model = folder_of(tmp_path, bpe, settings=MODELS[name], **saving)
    assert (folder / "model.safetensors.index.json").exists() == (shards is not None)
    embedding, head = open_vectors(folder), open_vectors(folder, rows="head")
    assert np.array_equal(embedding.vectors, model.token_embedding.weight.detach().numpy())
    assert np.array_equal(head.vectors, model.lm_head.weight.detach().numpy())
    assert np.array_equal(embedding.vectors, head.vectors) == model.config.tie_embeddings
    assert embedding.token_ids.tolist() == list(range(bpe.vocab_size))


def test_one_tensor_is_read_and_no_other(bpe, tmp_path, monkeypatch):
    folder, _ = folder_of(tmp_path, bpe, settings=MODELS["llama"], max_shard_size="2KB")
    kind = type(open_tensors(folder))
    read, names = kind.read, []

    def watched(self, name):
        names.append(name)
        return read(self, name)

    monkeypatch.setattr(kind, "read", watched)
    open_vectors(folder)
    open_vectors(folder, rows="head")
    assert names == ["model.embed_tokens.weight", "lm_head.weight"]


def test_half_precision_is_widened(bpe, tmp_path):
    _, model = folder_of(tmp_path, bpe)
    save_model(model.bfloat16(), tmp_path / "half", tokenizer=bpe)
    vectors = open_vectors(tmp_path / "half").vectors
    assert vectors.dtype == np.float32
    assert np.array_equal(vectors, model.token_embedding.weight.detach().float().numpy())


@pytest.mark.parametrize("family", ["gpt2", "llama", "openai-gpt"])
@pytest.mark.parametrize("body_only", [False, True])
def test_folders_of_transformers(family, body_only, bpe, tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    tiny = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 20}
    tiny["vocab_size"] = bpe.vocab_size
    config = transformers.AutoConfig.for_model(family, **tiny, bos_token_id=None, eos_token_id=None)
    if body_only and not config.tie_word_embeddings:
        pytest.skip("an untied model without a head is not whole")
    kind = transformers.AutoModel if body_only else transformers.AutoModelForCausalLM
    theirs = kind.from_config(config)
    theirs.save_pretrained(tmp_path)
    bpe.save_pretrained(tmp_path)
    expected = theirs.get_input_embeddings().weight.detach().numpy()
    assert np.array_equal(open_vectors(tmp_path).vectors, expected)


def test_a_published_model(data):
    folder = data / "weights" / "stories260K" / "hf"
    vectors = open_vectors(folder)
    weight = load_model(folder).token_embedding.weight.detach().numpy()
    assert np.array_equal(vectors.vectors, weight)
    assert vectors.get_index(" the") == vectors.get_index("the") == vectors.get_index("▁the")
    assert np.array_equal(vectors["the"], weight[vectors.tokenizer.token_to_id("▁the")])
    assert np.array_equal(vectors["he"], weight[vectors.tokenizer.token_to_id("▁he")])
    assert np.array_equal(vectors["##he"], weight[vectors.tokenizer.token_to_id("he")])
    assert vectors.namesakes("he") == ["##he"]
    assert vectors.namesakes(" he") == vectors.namesakes("day") == []
    assert np.array_equal(vectors["ing"], weight[vectors.tokenizer.token_to_id("ing")])
    assert "<0x0A>" in vectors
    assert "<s>" in vectors
    with pytest.raises(UnknownWordError, match="splits it into ' k', 'ing', '##d', 'om'; use one of these"):
        vectors["kingdom"]


# -- names of tokens ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bpe", "byte", "char", "word", "wordpiece", "unigram"])
def test_every_name_can_be_typed_again(kind, tmp_path):
    size = {"vocab_size": 400} if kind in ("bpe", "wordpiece", "unigram") else {}
    tokenizer = Tokenizer.train([TEXT], kind=kind, **size)
    vectors = TokenVectors(tokenizer, np.random.default_rng(0).normal(size=(tokenizer.vocab_size, 3)))
    assert [vectors.get_index(key) for key in vectors.index_to_key] == list(range(len(vectors)))
    assert all(key.isprintable() for key in vectors.index_to_key)
    seen = 0
    for key, index in zip(vectors.index_to_key, vectors.token_ids.tolist(), strict=True):
        text = tokenizer.decode([index])
        if key.startswith("<0x"):
            continue
        if tokenizer.token_bytes is not None and text.isprintable() and "\ufffd" not in text and text:
            assert key in (text, f"##{text}")
            assert key == text or f" {text}" in vectors.key_to_index
            seen += 1
    assert seen > 30 or tokenizer.token_bytes is None
    vectors["king" if kind not in ("byte", "char") else "k"]


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_names_in_published_vocabularies(name, data, tmp_path):
    files = {
        "gpt2": [("gpt2-encoder.json.gz", "encoder.json"), ("gpt2-vocab.bpe.gz", "vocab.bpe")],
        "llama": [("llama-tokenizer.model", "tokenizer.model")],
        "bert": [("bert-base-uncased-vocab.txt.gz", "vocab.txt")],
    }
    for stored, wanted in files[name]:
        content = (data / "tokenizers" / stored).read_bytes()
        (tmp_path / wanted).write_bytes(gzip.decompress(content) if stored.endswith(".gz") else content)
    tokenizer = Tokenizer.from_pretrained(tmp_path)
    vectors = TokenVectors(tokenizer, np.ones((tokenizer.vocab_size, 1), dtype=np.float32))
    assert [vectors.get_index(key) for key in vectors.index_to_key] == list(range(tokenizer.vocab_size))
    assert all(key.isprintable() for key in vectors.index_to_key)
    spelled = {"gpt2": "Ġking", "llama": "▁king", "bert": "king"}[name]
    assert vectors.get_index("king") == tokenizer.token_to_id(spelled)
    inside = {"gpt2": "king", "llama": "king", "bert": "##king"}[name]
    assert vectors.get_index("##king") == tokenizer.token_to_id(inside)
    cut = {"gpt2": "' king', '##d', 'omm'", "llama": "' king', '##d', 'omm'", "bert": "'kingdom', '##m'"}[
        name
    ]
    with pytest.raises(UnknownWordError, match=rf"did you mean '.*\(the tokenizer splits it into {cut}\)"):
        vectors["kingdomm"]


def test_byte_level_names(bpe):
    vectors = TokenVectors(bpe, np.arange(2.0 * bpe.vocab_size).reshape(-1, 2))
    assert bpe.token_to_id("Ġking") is not None
    assert bpe.token_to_id("king") is not None
    for spelling in (" king", "king", "Ġking"):
        assert vectors.get_index(spelling) == bpe.token_to_id("Ġking")
    assert vectors.get_index("##king") == bpe.token_to_id("king")
    assert vectors.namesakes("king") == ["##king"]
    assert vectors.get_index("\\n") == bpe.token_to_id("Ċ")
    assert vectors.get_index("<0xE2>") == bpe.token_to_id("â")
    assert vectors.get_index(".") == bpe.token_to_id(".")
    assert "Ġnothere" not in vectors
    assert 3 in vectors  # the number of a row
    assert bpe.vocab_size not in vectors


def test_the_first_gpts_words_end_in_a_space(tmp_path):
    vocabulary = ["k", "i", "n", "g</w>", "g", "in", "ing</w>", "king</w>", "king", "<unk>"]
    merges = ["i n", "in g</w>", "k ing</w>", "in g", "k ing"]
    (tmp_path / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(vocabulary)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges[:3]) + "\n")
    vectors = TokenVectors(Tokenizer.from_pretrained(tmp_path), np.eye(10))
    assert vectors.get_index("king ") == vectors.get_index("king</w>") == 7
    assert vectors.get_index("king") == 7
    assert vectors.get_index("##king") == 8
    assert vectors.get_index("ing") == 6
    assert vectors.namesakes("king") == ["##king"]


def test_names_alike_are_told_apart():
    """A token that spells out an escape, as the line break itself is called."""
    tokenizer = Tokenizer.train(["\\n\\n\n" * 50], kind="bpe", vocab_size=300, special_tokens=["\\n"])
    vectors = TokenVectors(tokenizer, np.ones((tokenizer.vocab_size, 1)))
    keys = vectors.index_to_key
    assert len(set(keys)) == len(keys)
    assert {vectors.get_index("\\n"), vectors.get_index("Ċ")} == {
        int(np.flatnonzero(vectors.token_ids == tokenizer.token_to_id(token))[0]) for token in ("\\n", "Ċ")
    }


def test_rows_without_a_token_are_left_out(bpe, tmp_path):
    folder, model = folder_of(tmp_path, bpe, extra=7)
    vectors = open_vectors(folder)
    assert len(vectors) == bpe.vocab_size
    assert np.array_equal(vectors.vectors, model.token_embedding.weight.detach().numpy()[:-7])


def test_answers_are_tokens(bpe):
    vectors = TokenVectors(bpe, np.random.default_rng(0).normal(size=(bpe.vocab_size, 8)))
    answers = vectors.most_similar("king", topn=len(vectors))
    assert len(answers) == len(vectors) - 1
    assert " king" not in dict(answers)
    assert vectors.similarity("king", "Ġking") == pytest.approx(1)


def test_whole_words_for_questions_written_with_words(bpe):
    vectors = TokenVectors(bpe, np.random.default_rng(0).normal(size=(bpe.vocab_size, 8)))
    words = vectors.words()
    assert isinstance(words, KeyedVectors)
    assert not any(word != word.strip() for word in words.index_to_key)
    assert np.array_equal(words["king"], vectors[" king"])
    assert np.array_equal(words["Z"], vectors["Z"])
    both = [key.removeprefix("##") for key in vectors.index_to_key if key.startswith("##") and key != "##"]
    assert both
    assert all(np.array_equal(words[key], vectors[f" {key}"]) for key in both)


def test_texts_are_cut_by_the_tokenizer(bpe):
    vectors = TokenVectors(bpe, np.random.default_rng(0).normal(size=(bpe.vocab_size, 8)))
    text = "the king is Zoë <|endoftext|>"
    ids = bpe.encode_ids(text, specials="text")
    expected = vectors.vectors[ids].mean(axis=0)
    assert np.allclose(TextEmbedder(vectors).encode(text), expected, atol=1e-6)


# -- mistakes ------------------------------------------------------------------------------------------------


def test_what_is_not_there(bpe, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(VectorError, match=r"neither word vectors \(vectors.json\) nor a trained model"):
        open_vectors(tmp_path / "empty")
    with pytest.raises(VectorError, match="cannot read"):
        open_vectors(tmp_path / "none.bin")
    with pytest.raises(VectorError, match=r"unknown rows 'heads'; did you mean 'head'\?"):
        open_vectors(tmp_path / "empty", rows="heads")
    save_vectors(KeyedVectors(["a", "b"], np.eye(2)), tmp_path / "words")
    assert open_vectors(tmp_path / "words").index_to_key == ["a", "b"]
    with pytest.raises(VectorError, match="holds word vectors, not a model with head rows"):
        open_vectors(tmp_path / "words", rows="head")


def test_a_folder_that_lacks_something(bpe, tmp_path):
    folder, _ = folder_of(tmp_path, bpe)
    shutil.copytree(folder, tmp_path / "nameless")
    (tmp_path / "nameless" / "tokenizer.json").unlink()
    with pytest.raises(TokenizerError, match="the tokens have no names without it"):
        open_vectors(tmp_path / "nameless")
    Tokenizer.train(
        [TEXT + "Wholly different words, quite unlike these.\n" * 20], kind="bpe", vocab_size=320
    ).save_pretrained(folder)
    with pytest.raises(VectorError, match=r"\d+ tokens and the model 289 rows; they do not belong together"):
        open_vectors(folder)
    (folder / "model.safetensors").write_bytes(b"\0" * 40)
    with pytest.raises(CheckpointError, match="cannot be read"):
        open_vectors(folder)

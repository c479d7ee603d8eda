"""Merge an adapter into the weights of its base (Hu et al. 2021, section 4.1)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch

from wordloom.errors import CheckpointError
from wordloom.models import translates
from wordloom.models.building.lora import merge_adapter
from wordloom.run.checkpoint.derived import check_out
from wordloom.run.checkpoint.loaders import stored_dtype
from wordloom.run.models.tokenizers import folder_tokenizer
from wordloom.weights import load_model, save_model
from wordloom.weights.adapters import LoadedAdapter, load_adapter
from wordloom.weights.tensors import read_json

_ROWS, _TOKENS = 2, 32  # of the random text on which both are compared


class Merged(NamedTuple):
    """The adapter that was merged, and the largest difference of a logit that merging made.

    ``stored`` is the difference with the weights as they were stored, perhaps rounded.
    """

    adapter: LoadedAdapter
    largest: float
    stored: float
    dtype: torch.dtype


@torch.inference_mode()
def merge_into_base(
    base: str | Path, adapter: str | Path, out: str | Path, *, overwrite: bool = False
) -> Merged:
    """Write the model of ``base`` with ``adapter`` merged into its weights into the folder ``out``.

    The product is added in float32 and stored in the precision of ``base``.  The tokenizer and the generation
    settings are those of the adapter, if it has some.

    Raises CheckpointError for an adapter of another base, a family whose logits need two texts, and as
    :func:`wordloom.weights.save_model`.
    """
    base, adapter, out = Path(base), Path(adapter), Path(out)
    check_out(out)
    model: Any = load_model(base, dtype=torch.float32)
    if translates(model.config):
        raise CheckpointError(f"{base} holds an encoder-decoder; only models of one text can be merged")
    loaded = load_adapter(model, adapter, base=base)
    tokens = torch.randint(
        model.config.vocab_size, (_ROWS, _tokens(model)), generator=torch.Generator().manual_seed(0)
    )
    expected = _outputs(model, tokens)
    merge_adapter(model, loaded.name)
    largest = float((_outputs(model, tokens) - expected).abs().max())
    dtype = stored_dtype(base)
    model.to(dtype)
    stored = float((_outputs(model.float(), tokens) - expected).abs().max())
    folders, V = (adapter, base), model.config.vocab_size
    tokenizer = folder_tokenizer(adapter, V) or folder_tokenizer(base, V)
    paths = [path for folder in folders if (path := folder / "generation_config.json").exists()]
    facts = {"base": str(base), "adapter": str(adapter), "largest_change_of_a_logit": largest}
    save_model(
        model,
        out,
        dtype=dtype,
        tokenizer=tokenizer,
        generation=read_json(paths[0]) if paths else None,
        files={"merge.json": json.dumps(facts, indent=2) + "\n"},
        overwrite=overwrite,
    )
    return Merged(loaded, largest, stored, dtype)


def _tokens(model: Any) -> int:
    return min(_TOKENS, getattr(model.config, "max_seq_len", _TOKENS))


def _outputs(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Return the logits, or the hidden states of a model that gives none."""
    out = model(tokens)
    found: torch.Tensor = getattr(out, "last_hidden_state", out)
    return found

"""Merge an adapter into the weights of its base (Hu et al. 2021, section 4.1)."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import torch

from wordloom.errors import CheckpointError
from wordloom.models import translates
from wordloom.models.building.lora import merge_adapter
from wordloom.run.checkpoint.derived import check_out, copied_recipe
from wordloom.run.checkpoint.loaders import stored_dtype
from wordloom.run.models.sentence_folder import pooling_files, pooling_of
from wordloom.run.models.tokenizers import folder_tokenizer, read_vocabularies
from wordloom.text import Tokenizer
from wordloom.weights import save_model
from wordloom.weights.adapted import load_adapted_model
from wordloom.weights.adapters import LoadedAdapter
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

    The product is added in float32 and stored in the precision of ``base``.  The tokenizer, the generation
    settings, the pooling and the recipe are those of the adapter, if it has some.

    Raises CheckpointError for an adapter of another base, and as :func:`wordloom.weights.save_model`.
    """
    base, adapter, out = Path(base), Path(adapter), Path(out)
    check_out(out)
    model, loaded = load_adapted_model(base, adapter)
    tokens = torch.randint(
        model.config.vocab_size, (_ROWS, _tokens(model)), generator=torch.Generator().manual_seed(0)
    )
    expected = _outputs(model, tokens)
    merge_adapter(model, loaded.name)
    largest = float((_outputs(model, tokens) - expected).abs().max())
    if not math.isfinite(largest):
        raise CheckpointError(
            f"{base} with {adapter} gives logits that are NaN or infinite: weights of one of them are "
            "damaged; nothing is written"
        )
    dtype = stored_dtype(base)
    model.to(dtype)
    stored = float((_outputs(model.float(), tokens) - expected).abs().max())
    facts = {"base": str(base), "adapter": str(adapter), "largest_change_of_a_logit": largest}
    files = {"merge.json": json.dumps(facts, indent=2) + "\n"}
    files |= copied_recipe(adapter) or copied_recipe(base)
    if (pooling := pooling_of(adapter)) is not None:
        files |= pooling_files(model.config.dim, pooling)
    tokenizer, source_tokenizer = _tokenizers(model.config, adapter, base)
    save_model(
        model,
        out,
        dtype=dtype,
        tokenizer=tokenizer,
        source_tokenizer=source_tokenizer,
        generation=_generation(adapter, base),
        files=files,
        overwrite=overwrite,
    )
    return Merged(loaded, largest, stored, dtype)


def _generation(adapter: Path, base: Path) -> dict[str, Any] | None:
    """Return the generation settings of the adapter, or else of the base."""
    paths = [folder / "generation_config.json" for folder in (adapter, base)]
    return next((read_json(path) for path in paths if path.exists()), None)


def _tokenizers(config: Any, adapter: Path, base: Path) -> tuple[Tokenizer | None, Tokenizer | None]:
    """Return the tokenizer, and that of the sources if a translation model has one for them."""
    V = config.vocab_size
    if not translates(config):
        return folder_tokenizer(adapter, V) or folder_tokenizer(base, V), None
    if not (base / "tokenizer.json").exists():
        return None, None
    sides = read_vocabularies(base, config)
    return sides.target, sides.beside


def _tokens(model: Any) -> int:
    return min(_TOKENS, getattr(model.config, "max_seq_len", _TOKENS))


def _outputs(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Return the logits, or the hidden states of a model that gives none.

    An encoder-decoder reads ``tokens`` on both sides.
    """
    if translates(model.config):
        logits: torch.Tensor = model(tokens % model.config.source_vocab, tokens)
        return logits
    out = model(tokens)
    found: torch.Tensor = getattr(out, "last_hidden_state", out)
    return found

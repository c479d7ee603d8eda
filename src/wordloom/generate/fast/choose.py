"""Choose the compiled programs that decode with a model."""

from __future__ import annotations

from typing import Any

from wordloom.generate.conditioned import Conditioned
from wordloom.generate.fast.accepts import accepts
from wordloom.models import RNN

__all__ = ["accelerate"]


def accelerate(model: Any) -> Any:
    """Return ``model`` wrapped for fast decoding, or ``model`` itself if no program computes what it does.

    :func:`wordloom.generate.fast.accepts.accepts` decides.  It accepts GPT, GPT-2, LLaMA, recurrent models,
    and a Transformer or BertGeneration with its sources, on a CPU in float32 or bfloat16.
    """
    if not accepts(model):
        return model
    # numba is optional, and these modules import it
    if isinstance(model, Conditioned):
        from wordloom.generate.fast.transformer import FastTransformer

        return FastTransformer(model.model, model.memory, kept=model.kept)
    if isinstance(model, RNN):
        from wordloom.generate.fast.recurrent import FastRNN

        return FastRNN(model)
    from wordloom.generate.fast.causal import FastModel

    return FastModel(model)

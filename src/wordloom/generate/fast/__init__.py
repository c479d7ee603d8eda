"""Fast decoding on a CPU: compiled programs compute new tokens instead of the modules.

The programs of the Transformer and BertGeneration read a packed copy of the decoder and the head, and the
others read the model's own matrices.  :func:`accelerate` wraps a model; the modules stay, and are the oracle
of the tests.  In float32 both give the same tokens, and logits within 1e-5.  In bfloat16 the programs compute
in float32 between the layers, where PyTorch rounds, so their logits are the more exact ones.

The programs of GPT, GPT-2 and LLaMA are in ``causal``, those of RNN, LSTM and GRU in ``recurrent``, and
those of the Transformer and BertGeneration in ``transformer``.
"""

from typing import Any

from wordloom.generate.conditioned import Conditioned
from wordloom.generate.fast.threads import Accelerated
from wordloom.generate.fast.weights import accepts
from wordloom.models import RNN

__all__ = ["Accelerated", "accelerate"]


def accelerate(model: Any) -> Any:
    """Return ``model`` wrapped for fast decoding, or ``model`` itself if no program computes what it does.

    :func:`accepts` decides.  It accepts GPT, GPT-2, LLaMA, recurrent models,
    and a Transformer or BertGeneration with its sources, on a CPU in float32 or bfloat16.
    """
    checked = isinstance(model, Conditioned) and bool(model.kept)  # with the first memory that shares it
    if not checked and not accepts(model):
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

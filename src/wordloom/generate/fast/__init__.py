"""Fast decoding on a CPU: compiled programs that read a model's own tensors in place of its modules.

:func:`accelerate` wraps a model; the modules stay, and are the oracle of the tests.  In float32 both give the
same tokens, and logits within 1e-5.  In bfloat16 the programs compute in float32 between the layers, where
PyTorch rounds, so their logits are the more exact ones.

choose      which wrapper a model gets           accepts   which models the programs compute exactly
causal      GPT, GPT-2 and LLaMA                 threads   the threads that run one program together
recurrent   RNN, LSTM, GRU                       stacking  the small weights of all layers as one array
transformer Transformer and BertGeneration
"""

from wordloom.generate.fast.choose import accelerate
from wordloom.generate.fast.threads import Accelerated

__all__ = ["Accelerated", "accelerate"]

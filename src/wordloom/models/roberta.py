"""RoBERTa: A Robustly Optimized BERT Pretraining Approach (Liu et al. 2019, arXiv:1907.11692).

BERT's network.  The paper changes its training: more text, new masks at every visit, no next-sentence
prediction, and GPT-2's byte-level BPE.

Changes from BERT in the model:

    a vocabulary of 50,265;  one segment;  norm_eps 1e-5
    the masked-LM head uses GELU whatever the activation of the feed-forward (``mlm_activation``)
    position_embedding counts from 2: fairseq reserves rows 0 and 1 for padding

Parameters without heads: base 124,645,632, large 355,359,744; the paper prints 125 M and 355 M.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from wordloom.errors import ConfigError
from wordloom.models.bert import Bert, BertConfig


@dataclass(frozen=True, kw_only=True)
class RobertaConfig(BertConfig):
    """Settings of a RoBERTa; the defaults are the paper's base model, without heads."""

    vocab_size: int = 50265
    type_vocab_size: int = 1
    norm_eps: float = 1e-5

    position_offset: ClassVar[int] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.next_sentence_head:
            raise ConfigError("a RoBERTa has no next_sentence_head; take family bert for one")

    @property
    def mlm_head_activation(self) -> str:
        """The activation of mlm_transform: ``mlm_activation``, or GELU as in transformers."""
        return self.mlm_activation or "gelu"


class Roberta(Bert):
    """An encoder; see :class:`wordloom.models.Encoder` for the protocol."""


PRESETS = {"roberta-base": RobertaConfig(), "roberta-large": RobertaConfig(dim=1024, n_layers=24, n_heads=16)}

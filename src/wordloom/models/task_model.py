"""A pretrained model with a head for one task, as BERT (Devlin et al. 2018, arXiv:1810.04805, section 4) and
GPT (Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training", section 3.2) are
fine-tuned.

    x = body(tokens)                                     [B, T, D]; an encoder or a causal language model
    summary = tanh(pooler(x[:, 0]))                      encoder: the first token, [CLS]
    summary = x[:, last]                                 causal model: the last token, which sees all others

    classification       classifier(dropout(summary))                   [B, C]
    regression           one such output, the predicted number          [B]
    multiple_choice      one such output for each choice                [B, K], the largest wins
    token_classification classifier(dropout(x))                         [B, T, C]
    question_answering   classifier(x)                                  [B, T, 2]: start and end of the answer

C classes; K choices, each a row with the question.  A causal model may read two texts in both orders
(``tokens`` [B, 2, T]).  The summaries are then added, as GPT does for similarity, which has no order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from wordloom.errors import ConfigError, did_you_mean
from wordloom.models.bert import Bert, BertConfig
from wordloom.models.checks import check_labels, check_settings, dropout_or, fills_everything
from wordloom.models.gpt import GPT, GPTConfig
from wordloom.models.gpt2 import GPT2, GPT2Config
from wordloom.models.llama import Llama, LlamaConfig
from wordloom.models.roberta import Roberta, RobertaConfig
from wordloom.nn.dropout import dropout
from wordloom.nn.linear import Linear

SUMMARIES = ("classification", "regression", "multiple_choice")  # tasks that read one vector per text
TASKS = (*SUMMARIES, "token_classification", "question_answering")
BODIES: dict[type, type[nn.Module]] = {
    BertConfig: Bert,
    RobertaConfig: Roberta,
    GPTConfig: GPT,
    GPT2Config: GPT2,
    LlamaConfig: Llama,
}


@dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """Settings; ``body`` is the config of a model in BODIES.

    ``id2label`` maps "0", "1", ... to the names of the C classes; it is empty for a task without classes.
    ``language_model`` keeps the body's own head, for an auxiliary loss or a previous task: a causal model's
    ``lm_head`` or an encoder's ``masked_lm_head``.  ``both_orders`` reads two texts in both orders.
    """

    body: Any
    task: str = "classification"
    id2label: Mapping[str, Any] = field(default_factory=dict)
    head_dropout: float | None = None  # before the head; None: the dropout of body
    language_model: bool = False
    both_orders: bool = False

    def __post_init__(self) -> None:
        if type(self.body) not in BODIES:
            raise ConfigError(f"no head goes on a {type(self.body).__name__}; take an encoder, GPT or LLaMA")
        if self.task not in TASKS:
            raise ConfigError(f"unknown task {self.task!r}; {did_you_mean(self.task, TASKS)}")
        check_settings(self)
        if self.classifies:
            check_labels(self)
        elif self.id2label:
            raise ConfigError(f"{self.task} has no classes; leave id2label out")
        if self.encodes and self.body.pooler != (self.task in SUMMARIES):
            needs = "needs" if self.task in SUMMARIES else "has no use for"
            raise ConfigError(f"{self.task} {needs} the body's pooler; set pooler to {not self.body.pooler}")
        if self.encodes and self.body.masked_lm_head != self.language_model:
            has = self.body.masked_lm_head
            raise ConfigError(f"language_model is {self.language_model} and the body's masked_lm_head {has}")
        if self.both_orders and (self.encodes or self.task not in ("classification", "regression")):
            raise ConfigError("both_orders needs a causal body, and classification or regression")

    @property
    def encodes(self) -> bool:
        """True if the body reads in both directions."""
        return isinstance(self.body, BertConfig)

    @property
    def classifies(self) -> bool:
        """True if the head predicts named classes."""
        return self.task in ("classification", "token_classification")

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes, in order."""
        return tuple(str(name) for name in self.id2label.values())

    @property
    def outputs(self) -> int:
        """Outputs of the head for one vector."""
        return {"question_answering": 2}.get(self.task, len(self.id2label) or 1)

    # settings of the body that are read without regard to a head
    vocab_size = property(lambda self: self.body.vocab_size)
    max_seq_len = property(lambda self: self.body.max_seq_len)
    dim = property(lambda self: self.body.dim)
    n_layers = property(lambda self: self.body.n_layers)


class TaskModel(nn.Module):
    """A body and a linear head; see the module for the output of each task."""

    def __init__(self, config: TaskConfig) -> None:
        super().__init__()
        self.config = c = config
        self.body: Any = BODIES[type(c.body)](c.body)
        if not c.encodes and not self.has_lm_head:
            del self.body.lm_head
        self.head_dropout = dropout_or(c.head_dropout, c.body.dropout)
        # on a causal model's summary the head has no bias, like W_y in the GPT paper
        self.classifier = Linear(c.dim, c.outputs, bias=c.encodes or c.task not in SUMMARIES)

    @property
    def blocks(self) -> nn.ModuleList:
        """The blocks of the body."""
        blocks: nn.ModuleList = self.body.blocks
        return blocks

    @property
    def has_lm_head(self) -> bool:
        """True if a causal body still has its ``lm_head``, kept or tied to the embedding."""
        c = self.config
        return not c.encodes and bool(c.language_model or c.body.tie_embeddings)

    def forward(self, tokens: Tensor, segments: Tensor | None = None, attend: Tensor | None = None) -> Tensor:
        """tokens, segments and attend [B, T], or [B, K, T] with choices or orders -> outputs, float32.

        ``attend`` is True for tokens, which precede all padding.  A choice without any token scores -inf.
        """
        return self.answers(self.hidden(tokens, segments, attend), attend)

    def hidden(self, tokens: Tensor, segments: Tensor | None = None, attend: Tensor | None = None) -> Tensor:
        """Inputs as in :meth:`forward` -> the body's vectors of all tokens, [.., T, D]."""
        rows = tokens.flatten(0, -2)  # [R, T]
        if not self.config.encodes:
            return self.body.hidden(rows).view(*tokens.shape, -1)  # no token sees the padding behind it
        if segments is not None:
            segments = segments.flatten(0, -2)  # [R, T]
        if attend is not None:
            attend = attend.flatten(0, -2)  # [R, T]
        return self.body.hidden(rows, segments, attend).view(*tokens.shape, -1)  # [.., T, D]

    def answers(self, x: Tensor, attend: Tensor | None = None) -> Tensor:
        """x [.., T, D] from :meth:`hidden` -> the outputs of the task."""
        task = self.config.task
        if task not in SUMMARIES:
            p = self.head_dropout if task == "token_classification" else 0.0
            return self.classifier(dropout(x, p, self.training)).float()  # [B, T, C or 2]
        summary = self.summary(x, attend)  # [.., D]
        if task == "multiple_choice":
            scores = self._scores(summary)[..., 0]  # [B, K]
            return scores if attend is None else scores.masked_fill(~attend.any(-1), -torch.inf)
        if summary.dim() == 3:  # both orders
            summary = summary.sum(1)  # [B, D]
        scores = self._scores(summary)  # [B, C or 1]
        return scores[:, 0] if task == "regression" else scores

    def summary(self, x: Tensor, attend: Tensor | None = None) -> Tensor:
        """x [.., T, D] -> [.., D], one vector for each text."""
        if self.config.encodes:
            pooled: Tensor = torch.tanh(self.body.pooler(x[..., 0, :]))
            return pooled
        if attend is None:
            return x[..., -1, :]
        last = (attend.sum(-1) - 1).clamp(min=0)  # [..]
        return x.take_along_dim(last[..., None, None], dim=-2)[..., 0, :]

    def _scores(self, summary: Tensor) -> Tensor:
        return self.classifier(dropout(summary, self.head_dropout, self.training)).float()

    def tie_weights(self) -> None:
        """Tie the weights of the body."""
        if self.config.encodes or self.has_lm_head:
            self.body.tie_weights()

    @fills_everything
    def init_weights(self, generator: torch.Generator | None = None) -> None:
        """The body by its own method; the head Normal(0, 0.02) as in both papers' code, its bias zero."""
        self.body.init_weights(generator)
        nn.init.normal_(self.classifier.weight, 0.0, 0.02, generator=generator)
        if self.classifier.bias is not None:
            nn.init.zeros_(self.classifier.bias)

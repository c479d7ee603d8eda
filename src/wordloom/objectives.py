"""Objectives: (model, batch) -> Loss(total, count).

The trainer divides the summed loss once by the global count.  So gradient accumulation, padding and several
ranks cannot turn it into a mean of means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from wordloom.data.batches.causal import IGNORE, CausalBatch
from wordloom.data.batches.contiguous import ContiguousBatch
from wordloom.data.batches.labelled import LabelBatch
from wordloom.data.batches.masked import MaskedBatch
from wordloom.data.batches.pairs import PairBatch
from wordloom.data.batches.preferences import PreferenceBatch
from wordloom.nn.head import head_loss


class Loss(NamedTuple):
    """The summed loss in nats, and the number of scored items, which has no gradient.

    Both are scalars, or both [k]: each of k terms is divided by its own count, and the quotients are added.
    """

    total: Tensor
    count: Tensor  # type: ignore[assignment]  # hides tuple.count, which a loss does not need


Objective = Callable[[Any, Any], Loss]

_ROWS = 512  # of hidden states, of which the head reads a multiple


def causal_lm(model: Any, batch: CausalBatch) -> Loss:
    """Next-token cross-entropy; the batch has shifted the targets [B, T], and IGNORE is not scored."""
    hidden = model.hidden(batch.tokens, positions=batch.positions, documents=batch.documents)  # [B, T, D]
    return _next_token_loss(model.lm_head, hidden, batch.targets)


def instruction(model: Any, batch: CausalBatch) -> Loss:
    """:func:`causal_lm` where few targets [B, T] are scored: the head sees their positions alone."""
    hidden = model.hidden(batch.tokens, positions=batch.positions, documents=batch.documents)  # [B, T, D]
    targets = batch.targets.flatten()
    places = _scored_places(targets)
    total = head_loss(model.lm_head, hidden.flatten(0, 1)[places], targets[places])
    return Loss(total, (targets != IGNORE).sum())


def _scored_places(targets: Tensor) -> Tensor:
    """Return the places of the targets [N] that are scored: [n].

    Places that are not scored fill them up to a multiple of a few hundred.  The head then needs blocks of
    memory of few sizes, which later steps use again; with sizes that differ at every step, memory would grow.
    """
    scored = (targets != IGNORE).nonzero()[:, 0]
    unscored = (targets == IGNORE).nonzero()[: -len(scored) % _ROWS, 0]
    return torch.cat([scored, unscored])


def _next_token_loss(head: Any, hidden: Tensor, targets: Tensor, smoothing: float = 0.0) -> Loss:
    """Return the loss of ``head`` for hidden [B, T, D] and targets [B, T]."""
    total = head_loss(head, hidden.flatten(0, 1), targets.flatten(), smoothing=smoothing)
    return Loss(total, (targets != IGNORE).sum())


def answer_logprobs(model: Any, tokens: Tensor, targets: Tensor) -> Tensor:
    """Return the log-probability of each row's scored targets, in nats: tokens, targets [B, T] -> [B]."""
    hidden = model.hidden(tokens)  # [B, T, D]
    flat = targets.flatten()
    places = _scored_places(flat)  # [n]
    logits = model.lm_head(hidden.flatten(0, 1)[places]).float()  # [n, V]
    nats = F.cross_entropy(logits, flat[places], reduction="none")  # [n], 0 where nothing is scored
    return -torch.zeros(len(tokens), device=nats.device).index_add(0, places // targets.shape[1], nats)


class Preference:
    """Direct preference optimisation (Rafailov et al. 2023, arXiv:2305.18290, equation 7).

        -log sigmoid(beta ((log p(y_w) - log q(y_w)) - (log p(y_l) - log q(y_l))))

    p is the model and q the reference, whose log-probabilities the batch has; y_w is the preferred answer.
    The term of an answer times beta is its reward.
    """

    def __init__(self, beta: float = 0.1) -> None:
        self.beta = beta

    def __call__(self, model: Any, batch: PreferenceBatch) -> Loss:
        margins = self.margins(answer_logprobs(model, batch.tokens, batch.targets), batch)
        return Loss(-F.logsigmoid(margins).sum(), torch.tensor(len(margins), device=margins.device))

    def margins(self, logprobs: Tensor, batch: PreferenceBatch) -> Tensor:
        """Return the reward of each preferred answer minus that of the rejected one, [B]."""
        preferred, rejected = logprobs.view(2, -1) - batch.reference.T
        return self.beta * (preferred - rejected)

    def counts(self, batch: PreferenceBatch) -> list[int]:
        """Return the number of pairs."""
        return [len(batch.reference)]


def classification(model: Any, batch: LabelBatch) -> Loss:
    """Softmax cross-entropy of the logits [B, C] of ``model(*inputs)`` with targets [B].

    In multiple choice, a missing choice has the logit -inf.
    """
    return Loss(_class_nats(model(*batch.inputs), batch.targets), (batch.targets != IGNORE).sum())


def _class_nats(logits: Tensor, targets: Tensor) -> Tensor:
    logits = logits.float().t()[None]  # [1, C, B]: PyTorch's softmax over few classes is slow
    return F.cross_entropy(logits, targets[None], ignore_index=IGNORE, reduction="sum")


class Regression:
    """Squared error of the numbers [B] of ``model(*inputs)``, compared with targets [B], float."""

    def __call__(self, model: Any, batch: LabelBatch) -> Loss:
        total = _squared_errors(model(*batch.inputs), batch.targets)
        return Loss(total, torch.tensor(len(batch.targets), device=total.device))

    def counts(self, batch: LabelBatch) -> list[int]:
        """Return the number of rows: each number is a target, also the value of IGNORE."""
        return [len(batch.targets)]


def _squared_errors(answers: Tensor, targets: Tensor) -> Tensor:
    return F.mse_loss(answers.float(), targets.float(), reduction="sum")


def token_classification(model: Any, batch: LabelBatch) -> Loss:
    """Softmax cross-entropy of the logits [B, T, C] of ``model(*inputs)`` with targets [B, T]."""
    scored = batch.targets != IGNORE
    logits = model(*batch.inputs)[scored].float()  # [n, C]
    return Loss(F.cross_entropy(logits, batch.targets[scored], reduction="sum"), scored.sum())


def question_answering(model: Any, batch: LabelBatch) -> Loss:
    """Softmax cross-entropy over a row's tokens, for the start and the end of the answer; targets [B, 2].

    Devlin et al. 2018, section 4.2.  Padding is masked, so a row's loss does not depend on the other rows.
    """
    return answer_loss(model(*batch.inputs), batch)


def answer_loss(logits: Tensor, batch: LabelBatch) -> Loss:
    """Return the loss of :func:`question_answering` for ``logits`` [B, T, 2]."""
    logits = logits.float().masked_fill(~batch.inputs[2][..., None], -torch.inf)  # type: ignore[index]
    total = F.cross_entropy(logits, batch.targets, ignore_index=IGNORE, reduction="sum")
    return Loss(total, (batch.targets != IGNORE).sum())


class WithLanguageModel:
    """A task's loss plus the weighted next-token cross-entropy of its texts: L = L_task + weight * L_lm.

    Both terms are means (Radford et al. 2018, equation 5).  The model is a :class:`wordloom.models.TaskModel`
    that keeps its language-model head.  With choices or both orders (tokens [B, K, T]), each row is a text.

    Args:
        task: :func:`classification`, also for multiple choice, or :class:`Regression`.
    """

    def __init__(self, task: Objective | type[Regression], language_model_weight: float) -> None:
        self.numbers = task is Regression
        self.language_model_weight = language_model_weight

    def __call__(self, model: Any, batch: LabelBatch) -> Loss:
        tokens, segments, attend = batch.inputs
        assert tokens is not None
        assert attend is not None
        hidden = model.hidden(tokens, segments, attend)  # [.., T, D]
        answers = model.answers(hidden, attend)
        task = (_squared_errors if self.numbers else _class_nats)(answers, batch.targets)
        following = tokens[..., 1:].masked_fill(~attend[..., 1:], IGNORE).flatten(0, -2)  # [R, T - 1]
        lm = _next_token_loss(model.body.lm_head, hidden[..., :-1, :].flatten(0, -3), following)
        total = torch.stack([task, self.language_model_weight * lm.total])
        return Loss(total, torch.tensor(self.counts(batch), device=total.device))

    def counts(self, batch: LabelBatch) -> list[int]:
        """Return the scored items of both terms: rows, and tokens after the first of a row."""
        attend = batch.inputs[2]
        assert attend is not None
        rows = len(batch.targets) if self.numbers else int((batch.targets != IGNORE).sum())
        return [rows, int(attend[..., 1:].sum())]


def masked_lm(model: Any, batch: MaskedBatch) -> Loss:
    """Cross-entropy of the masked tokens (Devlin et al. 2018, section 3.1, task 1).

    Rows of two texts add a second term: next-sentence prediction (task 2).
    """
    hidden = model.hidden(batch.tokens, batch.segments, batch.attend)  # [B, T, D]
    places = (batch.targets != IGNORE).flatten().nonzero()[:, 0]  # the head sees these alone
    scored = model.mlm_hidden(hidden.flatten(0, 1)[places])  # [n, D]
    total = head_loss(model.lm_head, scored, batch.targets.flatten()[places])
    count = torch.tensor(len(places), device=total.device)
    if batch.is_next is None:
        return Loss(total, count)
    logits = model.next_sentence(model.pooled(hidden).pooler_output).float()  # [B, 2]
    following = F.cross_entropy(logits, (~batch.is_next).long(), reduction="sum")  # class 0 is "it follows"
    return Loss(torch.stack([total, following]), torch.stack([count, torch.full_like(count, len(logits))]))


class TruncatedBPTT:
    """:func:`causal_lm` on consecutive windows of a stream; gradients stay within a window.

    Williams & Peng 1990, with equal numbers of forward and backward steps.  Each stream carries its recurrent
    state from batch to batch, and starts with zeros, as do the ``restarts`` of a batch.

    Attributes:
        carried: the state of each layer for the streams that were read, h [rows, R] and, in an LSTM, c
            [rows, H]; empty before the first batch.
        first: the stream of the first row.
    """

    def __init__(self) -> None:
        self.carried: list[tuple[Tensor, ...]] = []
        self.first = 0

    def __call__(self, model: Any, batch: ContiguousBatch) -> Loss:
        B, T = batch.tokens.shape
        if not self.carried:
            self.first = batch.first_row
        rows = slice(batch.first_row - self.first, batch.first_row - self.first + B)
        cache = model.new_cache(B, T)
        if not batch.fresh:
            for layer, parts in zip(cache.layers, self.carried, strict=True):
                layer.state = tuple(part[rows].to(batch.tokens.device) for part in parts)
                if batch.restarts is not None:
                    layer.state = tuple(part.masked_fill(batch.restarts[:, None], 0) for part in layer.state)
        hidden = model.hidden(
            batch.tokens, positions=batch.positions, documents=batch.documents, cache=cache
        )  # [B, T, D]
        cache.detach()
        self._keep([layer.state for layer in cache.layers], rows)
        return _next_token_loss(model.lm_head, hidden, batch.targets)

    def _keep(self, states: list[tuple[Tensor, ...]], rows: slice) -> None:
        if rows.start == 0 and (not self.carried or len(self.carried[0][0]) <= rows.stop):
            self.carried = states
            return
        for i, (old, new) in enumerate(zip(self.carried, states, strict=True)):
            self.carried[i] = tuple(
                torch.cat([a[: rows.start].to(b), b, a[rows.stop :].to(b)])
                for a, b in zip(old, new, strict=True)  # restored states are on the CPU
            )

    def reset(self) -> None:
        """Forget the carried states, as before the first batch."""
        self.carried = []

    def state_tensors(self) -> dict[str, Tensor]:
        """Return the tensors of :attr:`carried` by name: ``carried.<layer>.<part>``."""
        return {
            f"carried.{i}.{j}": part for i, parts in enumerate(self.carried) for j, part in enumerate(parts)
        }

    def load_state_tensors(self, tensors: Mapping[str, Tensor], layers: Iterable[Any]) -> None:
        """Restore the :meth:`state_tensors` of ``layers``."""
        self.first = 0
        self.carried = [
            tuple(tensors[f"carried.{i}.{j}"] for j in range(len(layer.state_dims)))
            for i, layer in enumerate(layers)
        ]


class Translation:
    """Cross-entropy of the target tokens, given the source and the previous target tokens.

    Attributes:
        label_smoothing: in training, the share of each target's probability that is spread over the
            vocabulary (Szegedy et al. 2016; Vaswani et al. 2017, section 5.4).
    """

    def __init__(self, label_smoothing: float = 0.0) -> None:
        self.label_smoothing = label_smoothing

    def __call__(self, model: Any, batch: PairBatch) -> Loss:
        memory = model.encode(batch.source, attend=batch.source_attend)
        hidden = model.hidden(batch.prefix, memory)  # [B, T, D]
        smoothing = self.label_smoothing if model.training else 0.0
        return _next_token_loss(model.lm_head, hidden, batch.targets, smoothing)


#: The objectives by name; each run creates an object of a class, because the object has state.
OBJECTIVES: dict[
    str, Objective | type[Regression] | type[TruncatedBPTT] | type[Translation] | type[Preference]
] = {
    "causal_lm": causal_lm,
    "instruction": instruction,
    "preference": Preference,
    "classification": classification,
    "regression": Regression,
    "multiple_choice": classification,
    "token_classification": token_classification,
    "question_answering": question_answering,
    "truncated_bptt": TruncatedBPTT,
    "translation": Translation,
    "masked_lm": masked_lm,
    "masked_lm+next_sentence": masked_lm,
}


def objective(name: str, *, label_smoothing: float = 0.0, language_model_weight: float = 0.0) -> Objective:
    """Return the objective called ``name``, without carried state.

    ``label_smoothing`` is for translation, ``language_model_weight`` for classification, regression and
    multiple choice.
    """
    found = OBJECTIVES[name]
    if (found is classification or found is Regression) and language_model_weight:
        return WithLanguageModel(found, language_model_weight)
    if found is Translation:
        return Translation(label_smoothing)
    return found() if isinstance(found, type) else found

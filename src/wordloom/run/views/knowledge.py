"""How much of a table of facts a model knows, in bits, and per parameter (after Allen-Zhu & Li 2024).

It takes log2 K bits to choose among K possible answers.  If the model gives the right one the share s of the
probability of all K, it has log2 K + log2 s of these bits: all for s = 1, none for s = 1 / K, and fewer than
none if another answer is more probable.  The sum over all facts, divided by the number of parameters, is how
many bits of them a parameter holds.  Allen-Zhu & Li (arXiv:2404.05405) report 2 for models that were trained
on facts alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from wordloom.data.rows.facts import Fact
from wordloom.errors import EvaluationError, WordloomError
from wordloom.inspect.figures import ADDS, COLOURS, FONT, INK, TAKES, hide_frame, new_figure
from wordloom.inspect.layers.states import row_of
from wordloom.inspect.token_names import visible
from wordloom.inspect.view import Table, View
from wordloom.models import skeleton
from wordloom.nn.evaluating import evaluating
from wordloom.run.models.language_model import LanguageModel

_SHOWN = 30  # facts in the table
_BARS = 30  # facts that the picture shows one by one


class Known(NamedTuple):
    """How well a model knows a fact.

    Attributes:
        probability: of the whole answer after the prompt.
        first_rank: the rank of the answer's first token among all tokens, 1 for the most probable.
        rank: the rank of the answer among its alternatives; None without alternatives.
        share: the answer's share of the probability of all alternatives; None without them.
        bits: log2 K + log2 share; None without alternatives.
    """

    fact: Fact
    probability: float
    first_rank: int
    rank: int | None
    share: float | None
    bits: float | None


@dataclass(frozen=True)
class Knowledge(View):
    """How well a model with ``parameters`` parameters knows some facts."""

    known: tuple[Known, ...]
    parameters: int
    title: str = "Facts that the model knows"

    @property
    def bits(self) -> float | None:
        """The sum over the facts with alternatives; None if no fact has any."""
        found = [each.bits for each in self.known if each.bits is not None]
        return math.fsum(found) if found else None

    @property
    def possible_bits(self) -> float:
        """The sum of log2 K over the facts with alternatives."""
        return math.fsum(math.log2(1 + len(each.fact.alternatives)) for each in self.known)

    def as_dict(self) -> dict[str, Any]:
        facts = [{**each._asdict(), "fact": each.fact._asdict()} for each in self.known]
        totals = {"facts": len(self.known), "parameters": self.parameters, "bits": self.bits}
        return {**totals, "possible_bits": self.possible_bits, "known": facts}

    def tables(self) -> list[Table]:
        rows = [
            (
                f"{visible(each.fact.prompt)} → {visible(each.fact.answer)}",
                f"{each.probability:.2g}",
                f"{each.first_rank:,}",
                "" if each.rank is None else f"{each.rank} of {1 + len(each.fact.alternatives)}",
                "" if each.share is None else f"{each.share:.1%}",
                "" if each.bits is None else f"{each.bits:+.2f}",
            )
            for each in self.known[:_SHOWN]
        ]
        columns = ("fact", "probability", "rank of first token", "rank", "share", "bits")
        return [Table(self.title, columns, rows)]

    def notes(self) -> list[str]:
        lines = []
        if len(self.known) > _SHOWN:
            lines.append(f"the first {_SHOWN} of {len(self.known):,} facts; --json has all")
        first = [each for each in self.known if each.rank is not None]
        if first and self.bits is not None:
            right = sum(each.rank == 1 for each in first)
            each = self.bits / self.parameters
            lines += [
                f"{right:,} of {len(first):,} answers rank first among their alternatives",
                f"{self.bits:,.1f} of {self.possible_bits:,.1f} bits, {each:.3g} for each of "
                f"{self.parameters:,} parameters",
            ]
        return lines

    def words(self) -> Sequence[str]:
        shown = self.known if len(self.known) <= _BARS else ()
        return [visible(each.fact.prompt + each.fact.answer) for each in shown]

    def figure(self) -> Any:
        """Return the bits of each fact, or of many facts their distribution; without alternatives log10 p."""
        has_bits = self.bits is not None
        if has_bits:
            values = [each.bits for each in self.known if each.bits is not None]
        else:
            values = [math.log10(max(each.probability, 1e-30)) for each in self.known]
        if len(values) <= _BARS:
            return self._bars(values, has_bits)
        found = np.sort(np.array(values))
        figure = new_figure((5.2, 3.2))
        panel = figure.subplots()
        panel.plot(found, np.arange(1, len(found) + 1) / len(found), drawstyle="steps-post", color=COLOURS[0])
        if has_bits:
            panel.axvline(0, color=COLOURS[9], linewidth=0.8, linestyle=":")
        panel.set_xlabel("bits that the model has" if has_bits else "log10 probability", fontsize=FONT)
        panel.set_ylabel("share of facts with no more", fontsize=FONT)
        panel.set_ylim(0, 1)
        panel.grid(alpha=0.25)
        hide_frame(panel)
        return figure

    def _bars(self, values: Sequence[float], has_bits: bool) -> Any:
        """Return a bar for each fact, and a line at the bits that it could have."""
        shown = [each for each in self.known if each.bits is not None or not has_bits]
        places = np.arange(len(shown))
        figure = new_figure((6.4, 1.1 + 0.26 * len(shown)))
        panel = figure.subplots()
        panel.barh(places, values, color=[ADDS if value > 0 else TAKES for value in values], height=0.7)
        if has_bits:
            most = [math.log2(1 + len(each.fact.alternatives)) for each in shown]
            panel.plot(most, places, linestyle="", marker="|", markersize=11, color=INK)
            panel.axvline(0, color=COLOURS[9], linewidth=0.8)
        names = [f"{visible(each.fact.prompt)} → {visible(each.fact.answer)}"[-48:] for each in shown]
        panel.set_yticks(places, names, fontsize=FONT - 1, parse_math=False)
        panel.invert_yaxis()
        of_bits = "bits that the model has; line: the possible ones"
        panel.set_xlabel(of_bits if has_bits else "log10 probability", fontsize=FONT)
        hide_frame(panel)
        return figure


def knowledge(
    lm: LanguageModel, facts: Sequence[Fact], *, progress: Callable[[int], None] | None = None
) -> Knowledge:
    """Return what a causal language model knows of ``facts``.

    An answer continues its prompt as it is written, with its own space in front.  ``progress`` is called
    after each fact.

    Raises EvaluationError for no facts, GenerationError for a fact that does not fit the context.
    """
    if not facts:
        raise EvaluationError("there is no fact to look for; give one or more")
    known = []
    for number, fact in enumerate(facts, 1):
        try:
            scored = lm.score(fact.prompt, [fact.answer, *fact.alternatives])
        except WordloomError as error:
            raise type(error)(f"fact {number:,}, {fact.prompt[:40]!r}: {error}") from None
        totals = torch.tensor([each.total for each in scored], dtype=torch.float64)  # [K] nats
        with evaluating(lm.model):
            row = row_of(lm.model, lm.text_tokenizer.prompt_ids(fact.prompt))
            logits = lm.model.lm_head(lm.model.hidden(row)[:, -1])[0].float()  # [V]
        one = Known(
            fact=fact,
            probability=math.exp(float(totals[0])),
            first_rank=int((logits > logits[scored[0].ids[0]]).sum()) + 1,
            rank=None,
            share=None,
            bits=None,
        )
        if len(totals) > 1:
            share = totals.log_softmax(0)[0]
            one = one._replace(
                rank=int((totals > totals[0]).sum()) + 1,
                share=float(share.exp()),
                bits=math.log2(len(totals)) + float(share) / math.log(2),
            )
        known.append(one)
        if progress is not None:
            progress(1)
    whole = skeleton(lm.model.config)  # in 8 bits, most weights of the model are buffers
    return Knowledge(tuple(known), sum(parameter.numel() for parameter in whole.parameters()))

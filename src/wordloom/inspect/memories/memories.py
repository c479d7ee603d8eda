"""The triggers of neurons, and the words that their values promote."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from wordloom.errors import ConfigError
from wordloom.inspect.directions import neuron_directions
from wordloom.inspect.figures import COLOURS, FONT, hide_frame, new_figure
from wordloom.inspect.memories.triggers import NONE, Triggers, feed_forwards
from wordloom.inspect.token_names import visible
from wordloom.inspect.view import Table, View
from wordloom.nn.evaluating import evaluating

_CHUNK = 1 << 24  # of logits computed at once
_SHOWN = 5  # contexts in a row of the table


class Trigger(NamedTuple):
    """A context that activates a neuron: its last tokens, the token that follows, and the activation."""

    context: tuple[str, ...]
    follower: str
    activation: float


class Neuron(NamedTuple):
    """A neuron of a feed-forward layer: the words that its value promotes, and its triggers."""

    layer: int
    number: int
    promotes: tuple[tuple[str, float], ...]
    triggers: tuple[Trigger, ...]
    agrees: bool  # its most promoted word follows its first trigger


@dataclass(frozen=True)
class Memories(View):
    """The neurons of a model as memories.

    ``agreement`` is for each layer the share of neurons whose most promoted word follows their first
    trigger, ``shuffled`` the share that is expected if words and triggers are paired at random, and
    ``chance`` 1 / V.  ``neurons`` are the chosen ones.
    """

    neurons: tuple[Neuron, ...]
    agreement: tuple[float, ...]
    shuffled: tuple[float, ...]
    chance: float
    tokens: int
    per_layer: int  # F
    title: str = "Neurons as memories"

    def as_dict(self) -> dict[str, Any]:
        found = {
            name: getattr(self, name) for name in ("agreement", "shuffled", "chance", "tokens", "per_layer")
        }
        neurons = [
            {**neuron._asdict(), "triggers": [trigger._asdict() for trigger in neuron.triggers]}
            for neuron in self.neurons
        ]
        return {**found, "neurons": neurons}

    def tables(self) -> list[Table]:
        shares = [
            (f"layer {layer}", f"{share:.2%}", f"{random:.2%}", f"{self.chance:.3%}")
            for layer, (share, random) in enumerate(zip(self.agreement, self.shuffled, strict=True))
        ]
        title = f"Of {self.per_layer:,} neurons in a layer: most promoted token follows the first trigger"
        tables = [Table(title, ("layer", "agreement", "paired at random", "1 / vocabulary"), shares)]
        for neuron in self.neurons:
            promoted = ", ".join(f"{visible(word)} {share:.1%}" for word, share in neuron.promotes)
            rows = [
                (visible("".join(trigger.context)), visible(trigger.follower), f"{trigger.activation:.2f}")
                for trigger in neuron.triggers[:_SHOWN]
            ]
            name = f"layer {neuron.layer}, neuron {neuron.number} promotes: {promoted}"
            tables.append(Table(name, ("triggered by", "follows", "activation"), rows))
        return tables

    def notes(self) -> Sequence[str]:
        return (f"contexts from {self.tokens:,} tokens",)

    def words(self) -> Sequence[str]:
        return [visible(word) for neuron in self.neurons for word, _ in neuron.promotes]

    def figure(self) -> Any:
        """Return the agreement by layer."""
        figure = new_figure((4.8, 3.2))
        panel = figure.subplots()
        layers = range(len(self.agreement))
        panel.plot(layers, [100 * v for v in self.agreement], marker="o", label="agreement")
        panel.plot(
            layers, [100 * v for v in self.shuffled], marker="s", color=COLOURS[9], label="paired at random"
        )
        panel.set_xlabel("layer")
        panel.set_xticks(layers)
        panel.set_ylabel("neurons, %")
        panel.set_ylim(0)
        panel.grid(alpha=0.25)
        panel.legend(frameon=False, fontsize=FONT - 1)
        hide_frame(panel)
        return figure


def check_neurons(model: Any, chosen: Sequence[tuple[int, int]]) -> None:
    """Raise ConfigError for a neuron, a layer and a number in it, that ``model`` does not have."""
    feeds = feed_forwards(model)
    for layer, number in chosen:
        F = feeds[layer].down_proj.in_features if 0 <= layer < len(feeds) else 0
        if not 0 <= number < F:
            last = feeds[0].down_proj.in_features - 1
            raise ConfigError(
                f"neuron {layer}.{number} does not exist; allowed: layers 0 to {len(feeds) - 1}, "
                f"neurons 0 to {last}"
            )


def memories(
    model: Any,
    triggers: Triggers,
    name: Callable[[int], str] = str,
    *,
    chosen: Sequence[tuple[int, int]] = (),
    most: int = 10,
    top_k: int = 8,
) -> Memories:
    """Return what triggers the neurons of a causal ``model``, and what they promote.

    Args:
        triggers: see :func:`wordloom.inspect.memories.triggers.find_triggers`.
        name: returns the text of a token id.
        chosen: layer and number of the neurons to show; none: the ``most`` ones that promote one word most.
        top_k: how many promoted words to show.

    Raises ConfigError for a neuron that does not exist, WordloomError for a model of another family.
    """
    feeds = feed_forwards(model)
    check_neurons(model, chosen)
    layers, F, _ = triggers.values.shape
    top_k = min(top_k, model.config.vocab_size)
    with evaluating(model):
        promoted = [_promoted(model, feed, top_k) for feed in feeds]  # shares and ids, each [F, k]
    best = torch.stack([ids[:, 0] for _, ids in promoted])  # [layers, F]
    follower = triggers.followers[..., 0].long()  # [layers, F]
    agrees = (best == follower) & (follower != NONE)
    if not chosen:
        shares = torch.stack([shares[:, 0] for shares, _ in promoted]).flatten()  # [layers * F]
        top = shares.topk(min(most, layers * F)).indices
        chosen = [divmod(index, F) for index in top.tolist()]
    return Memories(
        neurons=tuple(
            Neuron(
                layer,
                number,
                tuple(
                    (name(index), share)
                    for share, index in zip(*(part[number].tolist() for part in promoted[layer]), strict=True)
                ),
                _triggers_of(triggers, layer, number, name),
                bool(agrees[layer, number]),
            )
            for layer, number in chosen
        ),
        agreement=tuple(agrees.double().mean(1).tolist()),
        shuffled=tuple(
            _at_random(best[layer], follower[layer], model.config.vocab_size) for layer in range(layers)
        ),
        chance=1 / model.config.vocab_size,
        tokens=triggers.tokens,
        per_layer=F,
    )


def _promoted(model: Any, feed_forward: Any, top_k: int) -> tuple[Tensor, Tensor]:
    """Return the probabilities and ids [F, k] of the words that each value promotes."""
    values = neuron_directions(feed_forward)  # [F, D]
    nothing = model.lm_head(torch.zeros_like(values[:1]))  # the bias
    rows = max(1, _CHUNK // model.config.vocab_size)
    parts = [
        (model.lm_head(values[start : start + rows]) - nothing).float().softmax(-1).topk(top_k)
        for start in range(0, len(values), rows)
    ]
    return torch.cat([part.values for part in parts]).cpu(), torch.cat([part.indices for part in parts]).cpu()


def _at_random(best: Tensor, follower: Tensor, V: int) -> float:
    """Return the expected share of equal pairs if ``follower`` [F] is shuffled."""
    known = follower[follower != NONE]
    counts = torch.bincount(best, minlength=V).double(), torch.bincount(known, minlength=V).double()
    return float((counts[0] * counts[1]).sum()) / len(best) ** 2


def _triggers_of(
    triggers: Triggers, layer: int, number: int, name: Callable[[int], str]
) -> tuple[Trigger, ...]:
    def words(ids: Tensor) -> tuple[str, ...]:
        return tuple(name(index) for index in ids.tolist() if index != NONE)

    found = zip(
        triggers.values[layer, number].tolist(),
        triggers.contexts[layer, number],
        triggers.followers[layer, number, :, None],
        strict=True,
    )
    return tuple(
        Trigger(words(context), "".join(words(follower)), value)
        for value, context, follower in found
        if value != -torch.inf
    )

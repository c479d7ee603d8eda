"""The setting ``model.attention``: the kind of attention of each layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from wordloom.errors import ConfigError
from wordloom.nn.attention.approximation import Approximation
from wordloom.nn.attention.kinds import APPROXIMATIONS, numbers_of
from wordloom.nn.attention.low_rank import Linformer, Nystrom
from wordloom.nn.attention.pattern import Pattern
from wordloom.nn.attention.performer import Performer

AttentionKind: TypeAlias = Pattern | Approximation
MOST_FEATURES = 1 << 14  # of a Performer: orthogonal features take cubic time to draw


def patterns_of_layers(
    setting: str, n_layers: int, *, causal: bool, longest: int | None = None
) -> tuple[AttentionKind, ...]:
    """Return the kind of attention of each layer.

    ``setting`` is one kind for all layers, or a sequence such as ``"band:256*3,full"`` that is repeated over
    the layers: three with a band, one full, three with a band, ...  ``longest`` is the longest text, for a
    Linformer.

    Raises ConfigError as :meth:`Pattern.parse`, and for low-rank attention in a causal model.
    """
    if setting.lstrip().startswith("["):
        raise ConfigError(f"attention {setting!r}: write the layers without brackets, as 'full,band:64'")
    texts = [text for item in setting.split(",") for text in _repeated(item.strip(), setting)]
    if "" in texts:
        raise ConfigError(f"attention {setting!r} has an entry without text; write one such as 'full'")
    return tuple(_parsed(texts[layer % len(texts)], layer, causal, longest) for layer in range(n_layers))


def _parsed(text: str, layer: int, causal: bool, longest: int | None) -> AttentionKind:
    terms = [term.strip().split(":") for term in text.split("+")]
    name = next((term[0] for term in terms if term[0] in APPROXIMATIONS), None)
    if name is None:
        return Pattern.parse(text, causal=causal)
    if len(terms) > 1:
        raise ConfigError(f"attention {text!r}: {name} approximates full attention, and '+' joins patterns")
    (number,) = numbers_of(name, APPROXIMATIONS[name], terms[0][1:], text)
    if name == "performer" and number > MOST_FEATURES:
        raise ConfigError(f"attention {text!r}: a Performer has at most {MOST_FEATURES:,} features")
    if name == "performer":
        return Performer(causal, number, layer)
    if causal or longest is None:
        raise ConfigError(f"attention {text!r}: {_REFUSED[name]}; use it in BERT or RoBERTa")
    return Linformer(causal, number, longest) if name == "linformer" else Nystrom(causal, number)


_REFUSED = {
    "linformer": "its projected keys mix all tokens of a text, so a causal model would see later ones",
    "nystrom": "its landmarks are means over all tokens of a text, so a causal model would see later ones",
}


def sequence_of_layers(texts: Sequence[Any], n_layers: int) -> str:
    """Return the setting for :func:`patterns_of_layers` that a list with an entry for each layer stands for.

    Raises ConfigError for another number of entries, and for an entry that is not one layer's.
    """
    for text in texts:
        if not isinstance(text, str) or "," in text or "*" in text:
            raise ConfigError(f"attention lists {text!r}; a list has one pattern such as 'band:256' a layer")
    if len(texts) != n_layers:
        raise ConfigError(
            f"attention is a list of {len(texts)} for {n_layers} layers; give one for each, or a sequence "
            "such as 'band:256*3,full' to repeat"
        )
    return ",".join(texts)


def _repeated(item: str, setting: str) -> list[str]:
    """Return the patterns of one item of a sequence: "band:256*3" is three."""
    text, star, times = item.partition("*")
    if not star:
        return [text]
    if not (times.isascii() and times.isdigit() and 0 < int(times) <= 2_000):
        raise ConfigError(f"attention {setting!r}: after * stands a number of layers from 1, not {times!r}")
    return [text] * int(times)

"""Masking for a masked language model: the masked tokens, their replacements, and the scored tokens.

There are two kinds:

``bert``      Devlin et al. 2018, section 3.1: ``share`` of the tokens are chosen.  Of these, ``mask_share``
              become the mask, ``random_share`` become a random token, and the others are unchanged.  All
              chosen tokens are scored.
``replace``   Whole words are replaced: ``mask_words`` of the words by the placeholder, and
              ``substitute_words`` of the other words by random pieces.  If both are 0, the text is
              unchanged.  ``scored`` decides whether only replaced tokens are scored, or all tokens.

The masks are computed from one key per row: a row with a given key has equal masks in every batch.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from wordloom.data.batches.causal import IGNORE
from wordloom.data.batches.order import mix
from wordloom.errors import DataError

EMPTY = "[EMPTY]"  # the token of the placeholder "empty"

_CHOICE, _FATE, _PIECE, _ROUND = (np.uint64(k * 0x9E3779B97F4A7C15 % 2**64) for k in (3, 5, 7, 11))


_ONLY = {  # settings by the kind that has them
    "bert": ("share", "mask_share", "random_share", "whole_words"),
    "replace": ("mask_words", "substitute_words", "scored"),
}


@dataclass(frozen=True, kw_only=True)
class Masking:
    """The settings of masking; see the module.

    Attributes:
        whole_words: (``bert``) choose whole words, with all their pieces; ``share`` still counts tokens.
        placeholder: ``mask`` is the mask token, ``empty`` a token whose vector is zero.
        scored: (``replace``) ``changed`` or ``all``.
    """

    kind: Literal["bert", "replace"] = "bert"
    share: float = 0.15
    mask_share: float = 0.8
    random_share: float = 0.1
    whole_words: bool = False
    mask_words: float = 0.1
    substitute_words: float = 0.0
    placeholder: Literal["mask", "empty"] = "mask"
    scored: Literal["changed", "all"] = "changed"

    def __post_init__(self) -> None:
        other = "replace" if self.kind == "bert" else "bert"
        for name in _ONLY[other]:
            default = type(self).__dataclass_fields__[name].default
            if getattr(self, name) != default:
                raise DataError(
                    f'{name} is not a setting of masking.kind = "{self.kind}"; leave it out, or set '
                    f'kind = "{other}"'
                )
        for first, second in (("mask_share", "random_share"), ("mask_words", "substitute_words")):
            if getattr(self, first) + getattr(self, second) > 1:
                raise DataError(f"{first} and {second} are shares of the same tokens: their sum is 1 at most")
        if (
            self.kind == "replace"
            and self.scored == "changed"
            and not self.mask_words + self.substitute_words
        ):
            raise DataError('nothing is changed, so nothing would be scored; set scored to "all"')


class Masker:
    """Masks rows of tokens according to :class:`Masking`.

    Args:
        tokenizer: its special tokens never replace another token.  The candidates of a call are the tokens
            that may be chosen.
        empty_id: the id of the placeholder ``empty``.

    Raises DataError for a tokenizer without the placeholder.
    """

    def __init__(self, masking: Masking, tokenizer: Any, *, empty_id: int | None = None) -> None:
        self.masking = masking
        empty = masking.placeholder == "empty"
        placeholder = empty_id if empty else tokenizer.mask_id
        needed = masking.mask_share if masking.kind == "bert" else masking.mask_words
        if placeholder is None and needed:
            raise DataError(
                f"the tokenizer has no {'empty' if empty else 'mask'} token; train one with it among its "
                f"special tokens ({'[EMPTY]' if empty else '[MASK]'})"
            )
        self.placeholder = placeholder
        V = tokenizer.vocab_size
        special = np.zeros(V, bool)
        special[sorted(tokenizer.special_ids)] = True
        continues = tokenizer.continuations()  # [V]
        self._continues: NDArray[np.bool_] = continues & ~special
        self._begins: NDArray[np.int64] = np.flatnonzero(~continues & ~special)
        self._inner: NDArray[np.int64] = np.flatnonzero(self._continues)

    def __call__(
        self, tokens: NDArray[np.int64], candidates: NDArray[np.bool_], keys: NDArray[np.uint64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """tokens [B, T], ``candidates`` [B, T] that may be chosen, keys [B] -> inputs, targets [B, T]."""
        m = self.masking
        places = np.arange(tokens.shape[1], dtype=np.uint64)
        noise = mix(keys[:, None] + mix(places + np.uint64(1))[None])  # [B, T], all draws derive from it
        fate = _uniform(noise, _FATE)
        if m.kind == "bert":
            chosen = self._chosen(tokens, candidates, noise, keys)
            masked = chosen & (fate < m.mask_share)
            other = chosen & ~masked & (fate < m.mask_share + m.random_share)
        else:
            masked, other = self._replaced(tokens, candidates, noise, keys)
            chosen = masked | other
        scored = candidates if m.kind == "replace" and m.scored == "all" else chosen
        targets = np.where(scored, tokens, IGNORE)
        inputs = tokens.copy()
        if self.placeholder is not None:
            inputs[masked] = self.placeholder
        inputs[other] = self._pieces(tokens[other], noise[other])
        return inputs, targets

    def _pieces(self, tokens: NDArray[np.int64], noise: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return random tokens [n]: any for ``bert``, else with equal places in a word as ``tokens``."""
        draw = mix(noise ^ _PIECE)

        def one_of(pieces: NDArray[np.int64]) -> NDArray[np.int64]:
            return pieces[(draw % np.uint64(len(pieces))).astype(np.int64)]

        if self.masking.kind == "bert" or not self._inner.size:
            return one_of(np.concatenate([self._begins, self._inner]))
        return np.where(self._continues[tokens], one_of(self._inner), one_of(self._begins))

    def _chosen(
        self,
        tokens: NDArray[np.int64],
        candidates: NDArray[np.bool_],
        noise: NDArray[np.uint64],
        keys: NDArray[np.uint64],
    ) -> NDArray[np.bool_]:
        """Choose ``share`` of the candidates of each row: [B, T].

        The count of a row is rounded down or up at random, so that the share is exact on average.
        As in BERT's code, a row has at least one chosen token.
        """
        draw = mix(noise ^ _CHOICE)
        draw[~candidates] = np.uint64(2**64 - 1)
        count = candidates.sum(1)
        wanted = np.floor(self.masking.share * count + _uniform(keys, _ROUND))  # [B]
        budget = np.minimum(np.maximum(1, wanted), count).astype(np.int64)  # [B]
        if not self.masking.whole_words:
            order = np.argsort(draw, axis=1, kind="stable")
            chosen = np.zeros(tokens.shape, bool)
            np.put_along_axis(chosen, order, np.arange(tokens.shape[1]) < budget[:, None], axis=1)
            return chosen & candidates
        words = self._words(tokens, candidates)
        return np.stack([_whole_words(*row) for row in zip(words, draw, budget, strict=True)])

    def _replaced(
        self,
        tokens: NDArray[np.int64],
        candidates: NDArray[np.bool_],
        noise: NDArray[np.uint64],
        keys: NDArray[np.uint64],
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return the tokens of masked words and of substituted words: two disjoint masks [B, T]."""
        m = self.masking
        draw = mix(noise ^ _CHOICE)
        masked, other = np.zeros(tokens.shape, bool), np.zeros(tokens.shape, bool)
        for row, words in enumerate(self._words(tokens, candidates)):
            n = int(words.max()) + 1
            if not n:
                continue
            at = np.unique(words[words >= 0], return_index=True)[1]
            order = np.argsort(draw[row][words >= 0][at], kind="stable")  # of words
            rank = np.empty(n, np.int64)
            rank[order] = np.arange(n)
            # rounded up or down at random, so that the share is exact on average in short texts too
            lift = float(_uniform(keys[row : row + 1], _ROUND)[0])
            first = int(m.mask_words * n + lift)
            last = min(n, int((m.mask_words + m.substitute_words) * n + lift))
            of_word = rank[np.maximum(words, 0)]  # [T]
            masked[row] = (words >= 0) & (of_word < first)
            other[row] = (words >= 0) & (of_word >= first) & (of_word < last)
        return masked, other

    def _words(self, tokens: NDArray[np.int64], candidates: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return the number of the word of each candidate, from 0 in each row; -1 for other tokens."""
        T = tokens.shape[1]
        follows = np.zeros(tokens.shape, bool)  # a candidate stands just before
        follows[:, 1:] = candidates[:, :-1]
        begins = candidates & ~(self._continues[tokens] & follows)
        return np.where(candidates, np.cumsum(begins, axis=1) - 1, -1).reshape(-1, T)

    def identity(self) -> dict[str, Any]:
        """Return the settings that decide the masks, together with the keys."""
        # "rounding" tells these masks from those of versions that rounded each row's count to the nearest
        rounding = {"rounding": "random"} if self.masking.kind == "bert" else {}
        return {**asdict(self.masking), "placeholder_id": self.placeholder, **rounding}


def _uniform(noise: NDArray[np.uint64], purpose: np.uint64) -> NDArray[np.float64]:
    """Return numbers in [0, 1) from ``noise``."""
    return (mix(noise ^ purpose) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _whole_words(words: NDArray[np.int64], draw: NDArray[np.uint64], budget: int) -> NDArray[np.bool_]:
    """Choose words in random order while they fit into ``budget`` tokens, as in the authors' code: [T]."""
    inside = np.flatnonzero(words >= 0)
    if not inside.size:
        return words >= 0
    sizes = np.bincount(words[inside])
    starts = inside[np.unique(words[inside], return_index=True)[1]]
    chosen, left = np.zeros(len(sizes), bool), int(budget)
    for word in np.argsort(draw[starts], kind="stable").tolist():
        if sizes[word] <= left:
            chosen[word] = True
            left -= int(sizes[word])
        if not left:
            break
    if not chosen.any():  # every word is longer than the budget
        chosen[int(np.argmin(sizes))] = True
    return (words >= 0) & chosen[np.maximum(words, 0)]

"""The requests to the engine, and the events with which it answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from wordloom.generate.sampling import Sampling
from wordloom.text import Tokenizer

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, kw_only=True)
class Request:
    """A text to continue.

    Attributes:
        prompt: its ids.
        sampling: the settings, with a seed.  ``samples`` is the number of choices.
        tokenizer: decodes the choices.
        eos_ids: ids that end a choice.
        alternatives: how many likely tokens are reported for each token.
        adapter: the name of the adapter to use; None: the base model.
        deadline: when the request fails, in seconds of :func:`time.monotonic`; None: never.
    """

    prompt: Sequence[int]
    sampling: Sampling
    tokenizer: Tokenizer
    eos_ids: Sequence[int] = ()
    alternatives: int = 0
    adapter: str | None = None
    deadline: float | None = None


class Alternative(NamedTuple):
    """A likely token: its log-probability by the model, and its probability by the settings."""

    id: int
    logprob: float
    kept: float


class Token(NamedTuple):
    """A drawn token of one choice.

    ``text`` is what it adds to the answer, perhaps nothing yet.  ``logprob`` is the model's own, before all
    settings.  ``finish_reason`` is None unless the choice ends with it.  A token that ``ends`` the answer is
    no part of it.
    """

    choice: int
    id: int
    text: str
    logprob: float
    finish_reason: FinishReason | None
    alternatives: tuple[Alternative, ...] = ()
    ends: bool = False


class Failure(NamedTuple):
    """The end of a request that cannot be answered."""

    kind: Literal["timeout", "invalid", "damaged", "broken"]
    message: str


Event = Token | Failure


@dataclass(eq=False)
class Stream:
    """A request in the engine.

    The engine calls ``deliver`` with the stream's new events.  Its rows rest while ``most_unsent`` tokens
    wait to be sent; :meth:`sent` counts those that were.

    Attributes:
        n_cached: the tokens of the prompt that did not have to be read.
        n_delivered: the tokens that the engine has delivered; its thread alone writes this.
        n_sent: the tokens that were sent to the client; the caller's thread alone writes this.
        created: when the request came, in seconds of :func:`time.perf_counter`.
        first_token: when its first token was drawn; None before.
    """

    request: Request
    deliver: Callable[[list[Event]], None]
    wake: Callable[[], None] = lambda: None
    most_unsent: int = 64
    n_delivered: int = 0
    n_sent: int = 0
    n_cached: int = 0
    cancelled: bool = False
    created: float = 0.0
    first_token: float | None = None

    def sent(self, n: int) -> None:
        """Count ``n`` tokens that were sent."""
        resting = self.resting
        self.n_sent += n
        if resting and not self.resting:
            self.wake()

    @property
    def unsent(self) -> int:
        """The tokens that wait to be sent."""
        return self.n_delivered - self.n_sent

    @property
    def resting(self) -> bool:
        """Whether the client is slow, so that its rows wait."""
        return self.unsent >= self.most_unsent

    def cancel(self) -> None:
        """Free the slots of the request before the next step."""
        self.cancelled = True
        self.wake()

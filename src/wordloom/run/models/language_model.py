"""A trained language model and its tokenizer, as :func:`wordloom.load` returns them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from wordloom.errors import GenerationError
from wordloom.generate import (
    NextToken,
    Sampling,
    Scored,
    complete,
    generate_text,
    next_tokens,
    score,
    settings,
    stream_ids,
    stream_text,
)
from wordloom.generate.prompts import are_several
from wordloom.generate.speculation import NewDrafter
from wordloom.generate.text import StreamOptions
from wordloom.run.models.embedder import Embedder
from wordloom.run.models.tokenizers import ReadsText
from wordloom.text import Specials
from wordloom.weights import save_model

if TYPE_CHECKING:
    from wordloom.run.chat import Chat

_warn_once = cache(logging.getLogger(__name__).warning)


@dataclass(kw_only=True)
class LanguageModel(ReadsText):
    """A causal language model and its tokenizer, as :func:`wordloom.load` returns them.

    ``tokenizer`` is None if the folder has none; the model then reads and writes token ids only.  Sampling
    settings are given by name (``temperature=0.8, top_k=50, seed=1``) or as ``Sampling(...)``.  ``system`` is
    the system message that an assistant was tuned with.
    """

    takes_ids: ClassVar[bool] = True
    generation_defaults: dict[str, Any] = field(default_factory=dict)
    system: str | None = None

    def generate(
        self,
        prompt: Any,
        sampling: Sampling | None = None,
        *,
        specials: Specials = "refuse",
        speculate: str | None = None,
        **given: Any,
    ) -> Any:
        """Return the continuation of ``prompt``: a str, or a list for several prompts or ``samples`` above 1.

        For a prompt of token ids (a list, array or tensor of ints, or several of them) the continuation is
        token ids, with the id that ended it; ``stop`` strings then need a tokenizer.  ``specials`` says how
        special tokens in a text are read: "refuse", "text" or "interpret".  ``speculate`` is "lookup" or
        "corpus": see :meth:`drafter`.
        """
        sampling, options = self._sampling(sampling, given)
        options["speculate"] = self.drafter(speculate)
        prompt = list(prompt) if isinstance(prompt, Iterator) else prompt
        if not _is_text(prompt):
            several = are_several(prompt)
            rows = list(prompt) if several else [prompt]
            completions = complete(self.model, self.tokenizer, rows, sampling, **options)
            done = [completion.ids for completion in completions]
            return done if several or len(done) > 1 else done[0]
        options["specials"] = specials
        return generate_text(self.model, self.text_tokenizer, prompt, sampling, **options)

    def stream(
        self,
        prompt: str | Sequence[int],
        sampling: Sampling | None = None,
        *,
        specials: Specials = "refuse",
        speculate: str | None = None,
        **given: Any,
    ) -> Iterator[Any]:
        """Yield the continuation of ``prompt`` in pieces; no piece ends inside a character.

        For a prompt of token ids the pieces are ints, those of the list that :meth:`generate` returns.
        ``specials`` and ``speculate`` are those of :meth:`generate`.
        """
        sampling, options = self._sampling(sampling, given)
        options["speculate"] = self.drafter(speculate)
        if not isinstance(prompt, str):
            return stream_ids(self.model, self.tokenizer, prompt, sampling, **options)
        options["specials"] = specials
        return stream_text(self.model, self.text_tokenizer, prompt, sampling, **options)

    def drafter(self, name: str | None) -> NewDrafter | None:
        """Return what guesses the next tokens, so that several are read at once; None: nothing does.

        "lookup" expects n-grams of the prompt and of the text written so far, "corpus" those of the training
        data.  The text stays the same.
        """
        from wordloom.run.speculation import drafter_named

        return None if name is None else drafter_named(name, self.folder, self.tokenizer)

    def score(
        self,
        prompt: str | Sequence[int],
        continuations: Sequence[str] | Sequence[Sequence[int]],
        *,
        specials: Specials = "refuse",
    ) -> list[Scored]:
        """Return the log-probability of each continuation, in nats: total and per token.

        Continuations are texts if the prompt is a text, and lists of token ids otherwise.  ``specials`` is
        that of :meth:`generate`, for the prompt and the continuations.
        """
        tokenizer = self.text_tokenizer if isinstance(prompt, str) else self.tokenizer
        return score(self.model, tokenizer, prompt, continuations, specials=specials)

    def next_tokens(
        self, prompt: str | Sequence[int], k: int = 10, *, specials: Specials = "refuse"
    ) -> list[NextToken]:
        """Return the ``k`` most probable next tokens, best first.

        Without a tokenizer their ``text`` is empty.  ``specials`` is that of :meth:`generate`.
        """
        tokenizer = self.text_tokenizer if isinstance(prompt, str) else self.tokenizer
        return next_tokens(self.model, tokenizer, prompt, k, specials=specials)

    def chat(self, sampling: Sampling | None = None, *, system: str | None = None, **given: Any) -> Chat:
        """Return a conversation with an assistant, whose :meth:`~wordloom.run.chat.Chat.ask` yields answers.

        ``system`` is its system message, by default that of the training; an empty text means none.

        Raises ChatError for a model without a chat template.
        """
        from wordloom.run.chat import Chat

        sampling, options = self._sampling(sampling, given)
        chat = Chat(self.model, self.text_tokenizer, sampling, eos_ids=tuple(options["eos_ids"] or ()))
        chat.system = self.system if system is None else system
        return chat

    def embedder(self, **settings: Any) -> Embedder:
        """Return an :class:`~wordloom.run.models.embedder.Embedder` of texts with these settings."""
        return Embedder(self.model, self.text_tokenizer, **settings)

    def save_pretrained(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write a folder that transformers and :func:`wordloom.load` read, with the generation settings."""
        save_model(
            self.model,
            Path(folder),
            tokenizer=self.tokenizer,
            generation=self.generation_defaults,
            overwrite=overwrite,
        )

    def _sampling(self, sampling: Sampling | None, given: dict[str, Any]) -> tuple[Sampling, StreamOptions]:
        """Return the sampling settings, and the options that follow from the checkpoint.

        Settings of the call come first, then those of the checkpoint, then the defaults.
        """
        if sampling is not None and given:
            raise GenerationError("give sampling settings either by name or as one Sampling, not both")
        chosen = settings(self.generation_defaults, given, tokenizer=self.tokenizer)
        if chosen.ignored_line is not None:
            _warn_once("%s: %s", self.folder or "the model", chosen.ignored_line)
        if sampling is None:
            return chosen.sampling, {"eos_ids": chosen.eos_ids, "fit_new_tokens": chosen.fit_new_tokens}
        return sampling, {"eos_ids": chosen.eos_ids}


def _is_text(prompt: Any) -> bool:
    """Return whether a prompt is a str or a list of them, which may be empty."""
    if isinstance(prompt, list | tuple):
        return all(isinstance(part, str) for part in prompt)
    return isinstance(prompt, str)

"""A trained model from its folder: model, tokenizer, and what one does with them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from wordloom.errors import CheckpointError, DeviceError, GenerationError, did_you_mean
from wordloom.generate import (
    NextToken,
    Sampling,
    Scored,
    generate,
    generate_text,
    next_tokens,
    score,
    settings,
    stream_text,
)
from wordloom.text import Tokenizer
from wordloom.training.precision import choose_device
from wordloom.weights import load_model, save_model

__all__ = ["DTYPES", "LanguageModel", "load", "save"]

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.txt", "vocab.bpe", "merges.txt")


@dataclass(kw_only=True)
class LanguageModel:
    """A model and its tokenizer, as :func:`load` gives them.

    ``tokenizer`` is None where the folder has none; such a model takes and gives token ids only.
    Sampling settings are given by name (``temperature=0.8, top_k=50, seed=1``) or as ``Sampling(...)``.
    """

    model: Any
    tokenizer: Tokenizer | None
    config: Any
    folder: Path | None = None
    generation_defaults: dict[str, Any] = field(default_factory=dict)

    def generate(self, prompt: Any, sampling: Sampling | None = None, **given: Any) -> Any:
        """The continuation of ``prompt``: a str, or a list for several prompts or ``samples`` above 1.

        A prompt of token ids (a list of ints, or several) is answered in token ids.
        """
        sampling, eos_ids = self._settled(sampling, given)
        if not isinstance(prompt, str) and prompt and not isinstance(prompt[0], str):
            rows = [prompt] if isinstance(prompt[0], int) else prompt
            done = [generation.ids for generation in generate(self.model, rows, sampling, eos_ids=eos_ids)]
            return done[0] if isinstance(prompt[0], int) and len(done) == 1 else done
        return generate_text(self.model, self._tokenizer(), prompt, sampling, eos_ids=eos_ids)

    def stream(self, prompt: str, sampling: Sampling | None = None, **given: Any) -> Iterator[str]:
        """The continuation of ``prompt`` piece by piece; no piece ends inside a character."""
        sampling, eos_ids = self._settled(sampling, given)
        return stream_text(self.model, self._tokenizer(), prompt, sampling, eos_ids=eos_ids)

    def score(self, prompt: str, continuations: Sequence[str]) -> list[Scored]:
        """The log-probability of each continuation, in nats: total and per token."""
        return score(self.model, self._tokenizer(), prompt, continuations)

    def next_tokens(self, prompt: str, k: int = 10) -> list[NextToken]:
        """The ``k`` likeliest next tokens, best first."""
        return next_tokens(self.model, self._tokenizer(), prompt, k)

    def save_pretrained(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write a folder that transformers, and :func:`load`, read as it is."""
        save(self, folder, overwrite=overwrite)

    def _settled(self, sampling: Sampling | None, given: dict[str, Any]) -> tuple[Sampling, tuple[int, ...]]:
        """Settings asked for, then the checkpoint's, then the defaults; and the ids that end a text."""
        if sampling is not None and given:
            raise GenerationError("give sampling settings either by name or as one Sampling, not both")
        settled = settings(self.generation_defaults, given, tokenizer=self.tokenizer)
        return sampling or settled.sampling, settled.eos_ids

    def _tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise CheckpointError(
                f"{self.folder} has no tokenizer; give token ids, or put a tokenizer.json there"
            )
        return self.tokenizer


def load(folder: str | Path, *, device: str = "auto", dtype: str = "auto") -> LanguageModel:
    """The model in ``folder``: ours, or a Hugging Face folder of a family we have.

    ``dtype`` is auto (as stored), fp32, bf16 or fp16.  Raises CheckpointError for a folder that is not a
    model, DeviceError for a device that is not there.
    """
    folder = Path(folder)
    if dtype != "auto" and dtype not in DTYPES:
        raise DeviceError(f"unknown dtype {dtype!r}; {did_you_mean(dtype, ['auto', *DTYPES])}")
    place = choose_device(device)
    model: Any = load_model(folder, dtype=DTYPES.get(dtype), device=place)
    model.eval()
    has_tokenizer = any((folder / name).exists() for name in _TOKENIZER_FILES)
    tokenizer = Tokenizer.from_pretrained(folder) if has_tokenizer else None
    if tokenizer is not None and tokenizer.vocab_size > model.config.vocab_size:
        raise CheckpointError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size} tokens and the model "
            f"{model.config.vocab_size}; they do not belong together"
        )
    return LanguageModel(
        model=model,
        tokenizer=tokenizer,
        config=model.config,
        folder=folder,
        generation_defaults=_read_object(folder / "generation_config.json"),
    )


def _read_object(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``, empty when there is no file; raises CheckpointError for anything else."""
    if not path.exists():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path} is not JSON ({error}); mend or remove it") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds no JSON object; mend or remove it")
    return value


def save(lm: LanguageModel, folder: str | Path, *, overwrite: bool = False) -> None:
    """Write ``lm`` to ``folder``; an existing checkpoint is kept unless ``overwrite``."""
    save_model(lm.model, Path(folder), tokenizer=lm.tokenizer, overwrite=overwrite)

"""A trained model from its folder: model, tokenizer, and what one does with them."""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch

from wordloom.errors import CheckpointError, DeviceError, GenerationError
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
from wordloom.generate.token_ids import are_several
from wordloom.models import TaskConfig, encodes, family_of, translates
from wordloom.recipe import load_recipe
from wordloom.run.checkpoint.dtypes import choose_dtype
from wordloom.run.checkpoint.headed import is_headed, load_headed, task_in
from wordloom.run.checkpoint.tokenizers import folder_tokenizer
from wordloom.run.models.text_classifier import TextClassifier
from wordloom.run.models.text_encoder import TextEncoder, is_encoder, load_encoder
from wordloom.run.models.text_readers import text_reader
from wordloom.run.models.translator import Translator, load_translator
from wordloom.text import Specials, Tokenizer
from wordloom.training.precision import choose_device
from wordloom.weights import load_config, load_model, save_model
from wordloom.weights.configs import TOKEN_IDS, format_of
from wordloom.weights.tensors import read_json

__all__ = [
    "LanguageModel",
    "is_classifier",
    "is_translator",
    "load",
    "load_classifier",
    "load_language_model",
    "next_command",
    "save",
]

log = logging.getLogger(__name__)


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

    def generate(
        self,
        prompt: Any,
        sampling: Sampling | None = None,
        *,
        specials: Specials = "refuse",
        **given: Any,
    ) -> Any:
        """The continuation of ``prompt``: a str, or a list for several prompts or ``samples`` above 1.

        A prompt of token ids (a list, array or tensor of ints, or several of them) is answered in token ids,
        the one that ended it included; ``stop`` strings are looked for in what they decode to, and refused
        without a tokenizer.  ``specials`` says what special tokens written in a text are: refused, "text", or
        "interpret".
        """
        sampling, eos_ids = self._settled(sampling, given)
        prompt = list(prompt) if isinstance(prompt, Iterator) else prompt
        if not _is_text(prompt):
            several = are_several(prompt)
            rows = list(prompt) if several else [prompt]
            made = complete(self.model, self.tokenizer, rows, sampling, eos_ids=eos_ids)
            done = [completion.ids for completion in made]
            return done if several or len(done) > 1 else done[0]
        return generate_text(
            self.model, self._tokenizer(), prompt, sampling, eos_ids=eos_ids, specials=specials
        )

    def stream(
        self, prompt: str | Sequence[int], sampling: Sampling | None = None, **given: Any
    ) -> Iterator[Any]:
        """The continuation of ``prompt`` piece by piece: a str each, and none ends inside a character.

        One prompt of token ids (a list of ints) is answered in token ids, an int each, which add up to the
        list that :meth:`generate` gives.
        """
        sampling, eos_ids = self._settled(sampling, given)
        if not isinstance(prompt, str):
            return stream_ids(self.model, self.tokenizer, prompt, sampling, eos_ids=eos_ids)
        return stream_text(self.model, self._tokenizer(), prompt, sampling, eos_ids=eos_ids)

    def score(
        self, prompt: str | Sequence[int], continuations: Sequence[str] | Sequence[Sequence[int]]
    ) -> list[Scored]:
        """The log-probability of each continuation, in nats: total and per token.

        Continuations are a list: of str after a str, of lists of token ids after a list of token ids.
        """
        tokenizer = self._tokenizer() if isinstance(prompt, str) else self.tokenizer
        return score(self.model, tokenizer, prompt, continuations)

    def next_tokens(self, prompt: str | Sequence[int], k: int = 10) -> list[NextToken]:
        """The ``k`` likeliest next tokens, best first, after a str or a list of token ids.

        Without a tokenizer their ``text`` is empty.
        """
        tokenizer = self._tokenizer() if isinstance(prompt, str) else self.tokenizer
        return next_tokens(self.model, tokenizer, prompt, k)

    def save_pretrained(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write a folder that transformers and :func:`load` read as it is, with its generation settings."""
        save_model(
            self.model,
            Path(folder),
            tokenizer=self.tokenizer,
            generation=self.generation_defaults,
            overwrite=overwrite,
        )

    def _settled(self, sampling: Sampling | None, given: dict[str, Any]) -> tuple[Sampling, tuple[int, ...]]:
        """Settings asked for, then the checkpoint's, then the defaults; and the ids that end a text."""
        if sampling is not None and given:
            raise GenerationError("give sampling settings either by name or as one Sampling, not both")
        settled = settings(self.generation_defaults, given, tokenizer=self.tokenizer)
        if settled.ignored_line is not None:
            _warn_once(f"{self.folder or 'the model'}: {settled.ignored_line}")
        return sampling or settled.sampling, settled.eos_ids

    def _tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise CheckpointError(
                f"{self.folder} has no tokenizer; give token ids, or put a tokenizer.json there"
            )
        return self.tokenizer


def _is_text(prompt: Any) -> bool:
    """Return whether a prompt is a str or a list of them, which may be empty."""
    if isinstance(prompt, list | tuple):
        return all(isinstance(part, str) for part in prompt)
    return isinstance(prompt, str)


def load(folder: str | Path, *, device: str = "auto", dtype: str = "auto") -> Any:
    """The model in ``folder``: ours, or a Hugging Face folder of a family we have.

    A :class:`LanguageModel`, a :class:`~wordloom.run.models.text_classifier.TextClassifier`, a
    :class:`~wordloom.run.models.translator.Translator`, a
    :class:`~wordloom.run.models.text_encoder.TextEncoder`, or for a head
    of another task than classification what :func:`wordloom.run.checkpoint.headed.load_headed` makes.
    ``dtype`` is auto (as stored), fp32, bf16 or fp16.  Raises CheckpointError for a folder that is not a
    model, DeviceError for a device that is not there.
    """
    if is_headed(folder):
        return load_headed(folder, device=device, dtype=dtype)
    if is_classifier(folder):
        return load_classifier(folder, device=device, dtype=dtype)
    if is_translator(folder):
        return load_translator(folder, device=device, dtype=dtype)
    if is_encoder(folder):
        return load_encoder(folder, device=device, dtype=dtype)
    return load_language_model(folder, device=device, dtype=dtype)


def is_classifier(folder: str | Path) -> bool:
    """Whether the model in ``folder`` tells classes apart; raises CheckpointError as :func:`load`."""
    config = load_config(folder)
    if isinstance(config, TaskConfig):
        return config.task == "classification"
    return not format_of(config).generates and not encodes(config)


def is_translator(folder: str | Path) -> bool:
    """Whether the model in ``folder`` turns one text into another; raises CheckpointError as :func:`load`."""
    return translates(load_config(folder))


def next_command(folder: str | Path) -> str:
    """The command that tries the model in ``folder``; raises CheckpointError as :func:`load`."""
    name = shlex.quote(str(folder))
    if is_classifier(folder) or is_headed(folder):
        return f"wordloom predict {name} FILE"
    if is_translator(folder):
        return f"wordloom translate {name} FILE"
    if is_encoder(folder):
        return f"wordloom {'predict' if load_config(folder).masked_lm_head else 'embed'} {name} FILE"
    recipe = Path(folder) / "recipe.toml"
    if recipe.exists() and load_recipe(str(recipe)).data.label_prefix:
        return f'wordloom generate {name} --prompt "<LABEL>" --specials interpret'
    return f'wordloom generate {name} --prompt "..."'


def load_classifier(folder: str | Path, *, device: str = "auto", dtype: str = "auto") -> TextClassifier:
    """As :func:`load`, for classifiers; raises CheckpointError for a language model."""
    folder = Path(folder)
    kept = choose_dtype(dtype)
    if not is_classifier(folder):
        what = "an encoder" if is_encoder(folder) else "a translator" if is_translator(folder) else ""
        what = f"a model for {task_in(folder)}" if is_headed(folder) else what
        raise CheckpointError(
            f"{folder} holds {what or 'a language model'}, which tells no classes apart; train a classifier "
            'with train.objective = "classification"'
        )
    if family_of(load_config(folder)) == "bag_of_words":
        if kept not in (None, torch.float32):
            raise DeviceError(f"a bag of words computes in fp32, not in {dtype}; leave the dtype out")
        kept = torch.float32
    model: Any = load_model(folder, dtype=kept, device=choose_device(device))
    reader = text_reader(folder, model.config)
    return TextClassifier(model=model.eval(), reader=reader, config=model.config, folder=folder)


def load_language_model(folder: str | Path, *, device: str = "auto", dtype: str = "auto") -> LanguageModel:
    """As :func:`load`, for models that write text; raises CheckpointError for a classifier."""
    folder, kept = Path(folder), choose_dtype(dtype)
    if is_classifier(folder):
        raise CheckpointError(
            f"{folder} holds a classifier, which tells classes apart and writes no text; use "
            f"`{next_command(folder)}`"
        )
    if is_headed(folder):
        raise CheckpointError(
            f"{folder} holds a model for {task_in(folder)}, which writes no text; use "
            f"`{next_command(folder)}`"
        )
    if is_encoder(folder):
        raise CheckpointError(
            f"{folder} holds an encoder, which reads texts and writes none; use `{next_command(folder)}`"
        )
    if is_translator(folder):
        raise CheckpointError(
            f"{folder} holds a model that turns one text into another, and continues none; use "
            f"`{next_command(folder)}`"
        )
    place = choose_device(device)
    model: Any = load_model(folder, dtype=kept, device=place)
    model.eval()
    tokenizer = folder_tokenizer(folder, model.config.vocab_size)
    return LanguageModel(
        model=model,
        tokenizer=tokenizer,
        config=model.config,
        folder=folder,
        generation_defaults=_generation_defaults(folder),
    )


@cache
def _warn_once(message: str) -> None:
    log.warning("%s", message)


def _generation_defaults(folder: Path) -> dict[str, Any]:
    """The settings in generation_config.json; in a folder without that file, the token ids in config.json."""
    path = folder / "generation_config.json"
    if path.exists():
        return _read_object(path)
    config = read_json(folder / "config.json")
    return {key: config[key] for key in TOKEN_IDS if config.get(key) is not None}


def _read_object(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``; raises CheckpointError for anything else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path} is not JSON ({error}); mend or remove it") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds no JSON object; mend or remove it")
    return value


def save(
    lm: LanguageModel | TextClassifier | Translator | TextEncoder,
    folder: str | Path,
    *,
    overwrite: bool = False,
) -> None:
    """Write ``lm`` to ``folder``; an existing checkpoint is kept unless ``overwrite``."""
    lm.save_pretrained(folder, overwrite=overwrite)

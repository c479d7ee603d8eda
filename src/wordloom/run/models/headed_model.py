"""What every object of a model with a head has: the model, its tokenizer, its folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from wordloom.evaluate.likelihood import DTYPE_NAMES
from wordloom.models import TaskConfig
from wordloom.run.models.tokenizers import ReadsText
from wordloom.text import Tokenizer
from wordloom.weights import save_model

__all__ = ["HeadedModel"]


@dataclass(kw_only=True)
class HeadedModel(ReadsText):
    """A :class:`wordloom.models.TaskModel` and its tokenizer, as :func:`wordloom.load` gives them."""

    model: Any
    tokenizer: Tokenizer | None
    config: TaskConfig
    folder: Path | None = None

    @classmethod
    def of(cls, folder: Path, model: Any, tokenizer: Tokenizer | None) -> Self:
        """Of the parts in ``folder``."""
        return cls(model=model, tokenizer=tokenizer, config=model.config, folder=folder)

    @property
    def dtype(self) -> str:
        """Of the weights, as signatures name it."""
        return DTYPE_NAMES.get(next(self.model.parameters()).dtype, "other")

    def save_pretrained(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write a folder that :func:`wordloom.load` reads, and transformers where it has the task."""
        save_model(self.model, Path(folder), tokenizer=self.tokenizer, overwrite=overwrite)

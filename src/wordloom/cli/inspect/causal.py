"""Language models for the views that show models which continue text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wordloom.errors import CheckpointError

if TYPE_CHECKING:
    from wordloom.run import LanguageModel

__all__ = ["load_causal"]


def load_causal(folder: str, view: str) -> LanguageModel:
    """The language model in ``folder``; raises CheckpointError for any other kind, naming the ``view``."""
    from wordloom.run import is_classifier, is_encoder, is_translator, load_language_model
    from wordloom.run.checkpoint.headed import is_headed, task_in

    kinds = {
        "a classifier": is_classifier,
        f"a model for {task_in(folder)}": is_headed,
        "an encoder": is_encoder,
        "a translation model": is_translator,
    }
    for kind, holds in kinds.items():
        if holds(folder):
            raise CheckpointError(
                f"the view '{view}' is for causal language models, which continue text (GPT, GPT-2, LLaMA, "
                f"recurrent ones); {folder} holds {kind}"
            )
    return load_language_model(folder)

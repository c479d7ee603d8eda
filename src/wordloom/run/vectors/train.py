"""Train word vectors, or fastText's text classifier, from a recipe."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wordloom.errors import RankError, RecipeError
from wordloom.progress import TrainingProgress
from wordloom.recipe.vectors import VectorRecipe, load_vector_recipe
from wordloom.run.folder import RunFolder, refuse_changes
from wordloom.run.vectors.supervised import SupervisedRun
from wordloom.run.vectors.vector_run import VectorResult, VectorRun

# Settings that may change on resume.  Threads and save_minutes do not change the vectors; another device
# continues with other random numbers.
_FREE_ON_RESUME = ("vectors.threads", "vectors.device", "vectors.save_minutes")


def train_vectors(
    recipe: str | Path | VectorRecipe | dict[str, Any] | None,
    overrides: Sequence[str] = (),
    *,
    out: str | Path | None = None,
    resume: bool = False,
    force: bool = False,
    progress: TrainingProgress | None = None,
) -> VectorResult:
    """Train the word vectors of ``recipe`` and write them to the folder ``out`` (default: ``runs/NAME``).

    With ``resume`` the recipe may be None: the folder's recipe is used.

    :func:`wordloom.vectors.load_vectors` opens the finished folder.  The folder also has ``recipe.toml``,
    ``metrics.jsonl``, ``vocabulary.tsv`` and, for resuming, ``checkpoints/``.  If a signal stops the run
    during training, the folder holds the vectors as they are then.

    Raises WordloomError for mistakes that the user can correct, NonFiniteError when the vectors diverge.
    """
    progress = progress or TrainingProgress()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        if int(os.environ.get("RANK", "0")):
            raise RankError("the first rank says why")
        raise RecipeError(
            "static word vectors are trained by the threads of one process; leave out torchrun, and set "
            "vectors.threads"
        )
    loaded = None if recipe is None else load_vector_recipe(recipe, overrides, say=progress.say)
    if out is not None and (loaded is not None or resume):
        path = Path(out)
    elif loaded is not None:
        path = Path("runs") / loaded.name
    else:
        raise RecipeError("there is no run to resume. Give its folder: --out runs/NAME --resume")
    with RunFolder(path, resume=resume, force=force) as folder:
        loaded = loaded or load_vector_recipe(path / "recipe.toml", overrides)
        if resume and "metrics.jsonl" in folder.missing():
            progress.say(f"{path / 'metrics.jsonl'} is missing: a new, empty one is written")
        if resume:
            refuse_changes(loaded, folder.saved_recipe(VectorRecipe), free=_FREE_ON_RESUME)
        kind = SupervisedRun if loaded.vectors.algorithm == "fasttext-supervised" else VectorRun
        return kind(loaded, folder, progress).train()

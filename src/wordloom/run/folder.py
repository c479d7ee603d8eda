"""The run's folder: claimed by one process, never overwritten unasked, resumed by its own recipe."""

from __future__ import annotations

import contextlib
import os
import shutil
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any

from wordloom.errors import CheckpointError, RecipeError
from wordloom.recipe import Recipe
from wordloom.recipe.reading import BUDGETS, AnyRecipe
from wordloom.recipe.vectors import VectorRecipe

__all__ = ["RunFolder", "refuse_changes", "resumed_recipe", "write_text"]

# What a run writes; --force removes these and nothing else.
_OURS = (
    *("recipe.toml", "ledger.json", "metrics.jsonl", "checkpoints", "tensorboard", "config.json"),
    "old_task.json",
    *("generation_config.json", "model*.safetensors*", "tokenizer.json", "tokenizer_config.json"),
    *("chat_template.jinja", "vocabulary.json", ".*.tmp", "vectors.npy", "words.txt", "counts.npy"),
    *("vectors.json", "vocabulary.tsv", "phrases.json", "model.bin", "source_tokenizer"),
)
# Settings that may change on resume: they decide what is seen and kept, not what is computed.
_FREE_ON_RESUME = (
    *("log_every", "save_every", "keep_last", "tensorboard", "sample_every", "sample_prompt"),
    *("sample_tokens", "allocator", *BUDGETS),
)


class RunFolder:
    """Holds ``path`` for this process, as a context manager.

    Nothing in the folder changes before :meth:`begin`; a start that fails earlier leaves it as it was.

    Raises CheckpointError for a folder that would be overwritten unasked, that is no run, or that another
    process trains into.
    """

    def __init__(self, path: Path, *, resume: bool, force: bool) -> None:
        if resume and force:
            raise CheckpointError("--resume goes on with a run and --force replaces it; give one of them")
        self.path = path
        self.resume = resume
        self.force = force
        self._lock: int | None = None
        self._created = False
        self.begun = False

    def __enter__(self) -> RunFolder:
        try:
            self._check()
            self._created = not self.path.exists()
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path / ".lock", os.O_CREAT | os.O_RDWR)
        except OSError as error:
            raise CheckpointError(
                f"cannot write into {self.path}: {error.strerror}; choose another --out"
            ) from None
        try:
            import fcntl

            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # no flock on Windows
            pass
        except OSError:
            os.close(self._lock)
            raise CheckpointError(
                f"another process is training into {self.path}; wait for it, or choose another --out"
            ) from None
        return self

    def __exit__(self, *_: object) -> None:
        assert self._lock is not None
        (self.path / ".lock").unlink(missing_ok=True)
        os.close(self._lock)
        if self._created:
            with contextlib.suppress(OSError):  # not empty: the run began
                self.path.rmdir()

    def _check(self) -> None:
        occupied = self.path.exists() and (not self.path.is_dir() or not self._unbegun())
        is_run = (self.path / "recipe.toml").exists() and (self.path / "metrics.jsonl").exists()
        if self.resume and not is_run:
            raise CheckpointError(f"{self.path} holds no run to resume; leave out --resume to start one")
        if occupied and not is_run:
            raise CheckpointError(
                f"{self.path} is not empty and holds no run of Wordloom's; choose another --out"
            )
        if occupied and not self.resume and not self.force:
            raise CheckpointError(
                f"{self.path} holds a run; go on with it by --resume, replace it by --force, or choose "
                "another --out"
            )

    def _unbegun(self) -> bool:
        """Whether the folder holds nothing but what :meth:`begin` leaves behind when it is cut short."""
        found = {path.name: path.stat().st_size for path in self.path.iterdir() if path.name != ".lock"}
        marks = {"metrics.jsonl", "ledger.json", ".ledger.json.tmp", ".recipe.toml.tmp"}
        # metrics.jsonl is the first of them: without it, what is there is somebody else's
        return not found or (found.keys() <= marks and found.get("metrics.jsonl") == 0)

    def saved_recipe(self, kind: type[AnyRecipe]) -> AnyRecipe:
        """The recipe the run began with."""
        path = self.path / "recipe.toml"
        try:
            return kind.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"cannot read {path}: {error}; put it back, or start again with --force"
            ) from None

    def begin(self, recipe: Recipe | VectorRecipe, ledger: str) -> None:
        """Everything is known to work: replace what --force replaces, and leave the run's own marks."""
        self.begun = True
        if self.force:
            for pattern in _OURS:
                for path in self.path.glob(pattern):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        try:
            (self.path / "metrics.jsonl").touch()
            write_text(self.path / "ledger.json", ledger)
            write_text(self.path / "recipe.toml", recipe.to_toml())  # last: with it, the folder holds a run
        except OSError as error:
            raise CheckpointError(f"cannot begin a run in {self.path}: {error.strerror}") from None


def resumed_recipe(given: Recipe, saved: Recipe) -> Recipe:
    """``given`` where it only changes what may change; raises RecipeError naming what may not."""
    if given.start_from is None:
        given = given.model_copy(update={"start_from": saved.start_from})
    free = {f"train.{name}" for name in _FREE_ON_RESUME}
    if saved.train.long_seq_len is not None:  # which rows are long follows from the budget
        free -= {f"train.{name}" for name in BUDGETS}
    refuse_changes(given, saved, free=free)
    return given


def refuse_changes(
    given: Recipe | VectorRecipe, saved: Recipe | VectorRecipe, *, free: Collection[str]
) -> None:
    """Raise RecipeError where ``given`` differs from ``saved`` in more than its name and what is ``free``."""
    ours, theirs = _flat(given.as_dict()), _flat(saved.as_dict())
    changed = [
        key
        for key in sorted(ours.keys() | theirs.keys())
        if ours.get(key) != theirs.get(key)
        and key not in free
        and not key.startswith(("result.", "description", "name"))
    ]
    if changed:
        shown = ", ".join(f"{key} {theirs.get(key)!r} -> {ours.get(key)!r}" for key in changed[:4])
        raise RecipeError(
            f"the run was started with another recipe ({shown}); resume with the same one, or choose another "
            "--out"
        )


def write_text(path: Path, text: str) -> None:
    """Write ``path`` whole or not at all."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def _flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat

"""The folder of a run: lock it, refuse to overwrite it, and check the recipe with which it resumes."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from wordloom.data.sets.fetch import names_dataset
from wordloom.errors import CheckpointError, RecipeError
from wordloom.files import remove, remove_folder, write_text
from wordloom.recipe import Recipe
from wordloom.recipe.reading import BUDGETS, AnyRecipe, read_recipe
from wordloom.recipe.vectors import VectorRecipe
from wordloom.training.checkpoint import checkpoint_steps
from wordloom.weights.integrity import read_values

# The files that a run writes beside its recipe and metrics; --force removes these and nothing else.
_OURS = (
    *("ledger.json", "checkpoints", "tensorboard", "config.json"),
    *("old_task.json", "generation_config.json", "model*.safetensors*", "tokenizer.json"),
    *("tokenizer_config.json", "chat_template.jinja", "vocabulary.json", ".*.tmp", ".wordloom-*"),
    *("vectors.npy", "words.txt", "counts.npy", "vectors.json", "vocabulary.tsv", "phrases.json"),
    *("model.bin", "source_tokenizer", "adapter_config.json", "adapter_model.safetensors"),
)
# The files of other tools' models.
_THEIRS = (
    *("*.safetensors*", "*.bin", "*.model", "vocab.*", "merges.txt", "encoder.json", "*_map.json"),
    *("added_tokens.json", "modules.json", "README.md"),
)
# Settings that may change on resume: they decide what is reported and kept, not what is computed.
_FREE_ON_RESUME = (
    *("log_every", "save_every", "keep_last", "tensorboard", "sample_every", "sample_prompt"),
    *("sample_tokens", "allocator", "shard", "consolidate", *BUDGETS),
)


def is_own_file(path: Path, folder: Path) -> bool:
    """Return True if ``path`` is ``folder`` itself, or a file of the run or the model in it."""
    real, whole = Path(os.path.realpath(path)), Path(os.path.realpath(folder))
    if not real.is_relative_to(whole) or real == whole:
        return real == whole
    name = real.relative_to(whole).parts[0]
    return any(fnmatch(name, pattern) for pattern in (*_OURS, *_THEIRS, "metrics.jsonl", "recipe.toml"))


class RunFolder:
    """A context manager that locks the folder ``path`` of a run for this process.

    Nothing in the folder changes before :meth:`begin`, so that a start which fails earlier has no effect.
    Without ``owner``, another process has checked and locked the folder for this one.

    Raises CheckpointError for a folder that holds a run, unless ``resume`` or ``force``; for a folder that
    holds something else; and for a folder that another process trains into.
    """

    def __init__(self, path: Path, *, resume: bool, force: bool, owner: bool = True) -> None:
        if resume and force:
            raise CheckpointError("--resume continues a run and --force replaces it; give one of them")
        self.path = path
        self.resume = resume
        self.force = force
        self.owner = owner
        self._lock = contextlib.ExitStack()
        self._created = False
        self.begun = False

    def __enter__(self) -> RunFolder:
        if not self.owner:
            return self
        try:
            self._check()
            self._created = not self.path.exists()
        except OSError as error:
            raise CheckpointError(
                f"cannot read {self.path}: {error.strerror}; choose another --out"
            ) from None
        self._lock.enter_context(locked(self.path, "is training"))
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()
        if self._created:
            with contextlib.suppress(OSError):  # not empty: the run began
                self.path.rmdir()

    def _check(self) -> None:
        occupied = self.path.exists() and (not self.path.is_dir() or not self._unbegun())
        vectors = (self.path / "checkpoints" / "vectors.safetensors").exists()
        is_run = not self.missing() or vectors or bool(checkpoint_steps(self.path))
        if self.resume and not is_run:
            raise CheckpointError(f"{self.path} holds no run to resume; leave out --resume to start one")
        if occupied and not is_run:
            raise CheckpointError(
                f"{self.path} is not empty and holds no run of Wordloom's; choose another --out"
            )
        if occupied and not self.resume and not self.force:
            raise CheckpointError(
                f"{self.path} holds a run; continue it with --resume, replace it with --force, or choose "
                "another --out"
            )

    def missing(self) -> list[str]:
        """Return which of the two files that every run begins with are not in the folder."""
        return [name for name in ("recipe.toml", "metrics.jsonl") if not (self.path / name).exists()]

    def _unbegun(self) -> bool:
        """Return whether the folder is empty, or has only the files of an interrupted :meth:`begin`."""
        sizes = {path.name: path.stat().st_size for path in self.path.iterdir() if path.name != ".lock"}
        marks = re.compile(r"metrics\.jsonl|ledger\.json|\.(ledger\.json|recipe\.toml)\.\d+\.tmp")
        # begin() writes metrics.jsonl first: without it, the files belong to somebody else
        return not sizes or (all(map(marks.fullmatch, sizes)) and sizes.get("metrics.jsonl") == 0)

    def saved_recipe(self, kind: type[AnyRecipe]) -> AnyRecipe:
        """Return the recipe the run began with, read from its newest checkpoint if recipe.toml is missing."""
        path = self.path / "recipe.toml"
        steps = checkpoint_steps(self.path)
        try:
            if steps and not path.exists():
                path = self.path / "checkpoints" / f"step-{steps[-1]}"
                return kind.model_validate(read_values(path)["recipe"])
            return read_recipe(kind, {}, path)
        except (OSError, ValueError, KeyError, TypeError, RecipeError) as error:
            raise CheckpointError(
                f"cannot read {path}: {error}; put it back, or start again with --force"
            ) from None

    def begin(self, recipe: Recipe | VectorRecipe, ledger: str) -> None:
        """Write the first files of the run; with --force, remove the files of the run before."""
        self.begun = True
        metrics = self.path / "metrics.jsonl"
        try:
            if self.force:  # recipe and metrics go last: while they are there, --force replaces it
                for name in self.missing():
                    (self.path / name).touch()
                discarded = self.path / ".wordloom-discarded"
                remove_folder(self.path / "checkpoints", discarded)  # a part of one counts as complete
                for pattern in (*_OURS, "metrics.jsonl", "recipe.toml"):
                    for path in self.path.glob(pattern):
                        metrics.write_bytes(b"") if path == metrics else remove(path)
            metrics.touch()
            write_text(self.path / "ledger.json", ledger)
            write_text(self.path / "recipe.toml", recipe.to_toml())  # last: it makes the folder a run
        except OSError as error:
            raise CheckpointError(f"cannot begin a run in {self.path}: {error.strerror}") from None


@contextlib.contextmanager
def locked(folder: Path, does: str) -> Iterator[None]:
    """Make ``folder`` and lock it for this process; raises CheckpointError if another process has the lock.

    ``does`` says in the error what the other process does: "is training" into the folder.
    """
    path = folder / ".lock"
    lock = FileLock(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        raise CheckpointError(
            f"another process {does} into {folder}; wait for it, or choose another --out"
        ) from None
    except OSError as error:
        raise CheckpointError(f"cannot write into {folder}: {error.strerror}; choose another --out") from None
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # Windows does not remove open files
            path.unlink(missing_ok=True)
        lock.release()


def resumed_recipe(new: Recipe, saved: Recipe) -> Recipe:
    """Return the recipe ``new`` with which a run of ``saved`` resumes, from the same start checkpoint.

    Raises RecipeError for a change that would change what is computed.
    """
    if new.start_from is None:
        new = new.model_copy(update={"start_from": saved.start_from})
    free = {f"train.{name}" for name in _FREE_ON_RESUME}
    if saved.train.long_seq_len is not None:  # the budget decides which rows are long
        free -= {f"train.{name}" for name in BUDGETS}
    refuse_changes(new, saved, free=free)
    return new


def refuse_changes(
    new: Recipe | VectorRecipe, saved: Recipe | VectorRecipe, *, free: Collection[str]
) -> None:
    """Raise RecipeError if ``new`` differs from ``saved`` in a key that is neither its name nor ``free``."""
    after, before = _flat(new.as_dict()), _flat(saved.as_dict())
    changed = [
        key
        for key in sorted(after.keys() | before.keys())
        if after.get(key) != before.get(key)
        and key not in free
        and not key.startswith(("result.", "description", "name"))
    ]
    if changed:
        shown = ", ".join(f"{key} {before.get(key)!r} -> {after.get(key)!r}" for key in changed[:4])
        raise RecipeError(
            f"the run was started with another recipe ({shown}); resume with the same one, or choose another "
            "--out"
        )


def _flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat


def name_of(source: str, *, default: str) -> str:
    """Return the name of a run on a text: that of its file, folder or data set, or the folder above a glob.

    ``default`` is the name where that leaves none, such as for ``-``.
    """
    if names_dataset(source):
        return source.replace("/", "-")
    plain = [part for part in Path(source).parts if not set(part) & set("*?[")]
    name = re.sub(r"[^\w.-]+", "-", plain[-1].partition(".")[0] if plain else "").strip("-")
    return name or default

"""Read recipes of both kinds: TOML files, overrides of single keys, and one-line error messages.

:mod:`wordloom.recipe.recipe` and :mod:`wordloom.recipe.vectors` define what the two kinds hold.
"""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Callable, Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, ValidationError

from wordloom.errors import RecipeError, did_you_mean
from wordloom.recipe.table import Table, keys_of, unused_keys

BUDGETS = ("steps", "tokens", "epochs", "flops", "minutes")
MAX_THREADS = 1024  # far above what a machine has; OpenMP crashes when the system refuses it a thread
_LARGEST = 2**63 - 1  # of TOML's integers


def _folder_name(name: str) -> str:
    if name in ("", ".", "..") or any(letter in name for letter in "/\\\0"):
        raise ValueError(
            f"name {name!r} is not a folder name, and the run would go into runs/NAME; use no / or \\"
        )
    return name


FolderName = Annotated[str, AfterValidator(_folder_name)]


# Other tools' names for our settings, so that the error can say ours.
_FOREIGN = {
    "max_steps": "steps", "max_iters": "steps", "num_iterations": "steps", "max_tokens": "tokens",
    "num_train_epochs": "epochs", "num_epochs": "epochs", "n_epochs": "epochs", "max_epochs": "epochs",
    "max_time": "minutes", "block_size": "seq_len", "max_seq_length": "seq_len",
    "max_length": "seq_len", "sequence_length": "seq_len", "global_batch_size": "batch_size",
    "per_gpu_batch_size": "batch_size", "per_gpu_train_batch_size": "batch_size",
    "per_device_batch_size": "batch_size", "per_device_train_batch_size": "batch_size",
    "train_batch_size": "batch_size", "device_batch_size": "micro_batch_size",
    "gradient_accumulation_steps": "micro_batch_size", "lr": "learning_rate", "max_lr": "learning_rate",
    "warmup_iters": "warmup_steps", "lr_warmup_steps": "warmup_steps", "min_lr": "final_share",
    "lr_scheduler_type": "schedule", "adam_beta1": "beta1", "adam_beta2": "beta2", "adam_epsilon": "epsilon",
    "grad_clip": "clip", "max_grad_norm": "clip", "max_norm": "clip", "dtype": "precision",
    "bf16": "precision",
    "save_interval": "save_every", "save_steps": "save_every", "eval_interval": "evaluate_every",
    "eval_steps": "evaluate_every", "eval_every": "evaluate_every", "log_interval": "log_every",
    "logging_steps": "log_every", "do_lower_case": "lower", "dataset_text_field": "field",
    "text_column_name": "text_column", "label_column_name": "label_column", "alpha": "l2",
    "val_split_fraction": "validation_fraction", "dataset": "train", "dataset_name": "train",
}  # fmt: skip

# Added to our name in [train] where the other tool counts a batch or an epoch per device.
_OF_ALL_DEVICES = {
    "batch_size": "and counts all devices together; 'train.micro_batch_size' is the size of one pass",
    "epochs": "and counts steps of 'train.batch_size', which counts all devices together",
}


def shipped_recipes(folder: str = "recipes") -> dict[str, Path]:
    """Return the files of the recipes in a ``folder`` of the package, by name."""
    package = Path(str(resources.files("wordloom")))
    return {path.stem: path for path in sorted((package / folder).glob("*.toml"))}


AnyRecipe = TypeVar("AnyRecipe", bound=Table)


def read_recipe(
    kind: type[AnyRecipe],
    shipped: dict[str, Path],
    source: str | Path | AnyRecipe | dict[str, Any],
    overrides: Sequence[str] = (),
    *,
    say: Callable[[str], None] | None = None,
) -> AnyRecipe:
    """Return the recipe of ``kind`` that ``source`` names: one of ``shipped``, a file, a run, or its values.

    ``overrides`` are ``key=value``.  ``say`` is called with a line for the recipe's keys that an override
    makes useless.

    Raises RecipeError for a file that is missing or not TOML, an unknown key, a value out of its range, or a
    key that has no effect.
    """
    if isinstance(source, Table):
        values, origin = source.as_dict(), str(getattr(source, "name", ""))
    elif isinstance(source, dict):
        values, origin = copy.deepcopy(source), "settings"
    else:
        path = _find(str(source), shipped)
        origin = path.name
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8-sig"))  # some editors write a mark first
        except (ValueError, RecursionError) as error:  # also for an integer of more than 4,300 digits
            raise RecipeError(f"{path} is not a TOML file: {str(error).partition(';')[0]}") from None
        values.setdefault("name", path.stem)
    _check_kind(kind, values, origin)
    overridden = {override.partition("=")[0].strip() for override in overrides}
    removed = {override.partition("=")[0].strip() for override in overrides if override.endswith("=none")}
    dropped = _make_room(values, overridden, removed)
    for override in overrides:
        _apply(values, override)
    for key, value in _flat(values):
        if isinstance(value, int) and abs(value) > _LARGEST:
            raise RecipeError(f"{origin}: {key} is an integer beyond {_LARGEST}; give a smaller one")
    notes = _drop_unused(kind, values, overridden)
    try:
        recipe = kind.model_validate(values)
    except ValidationError as error:
        raise RecipeError(f"{origin}: {_explain(error, kind)}") from None
    if say is not None:
        for line in (*_dropped_lines(recipe, dropped), *notes):
            say(line)
    return recipe


def refuse_repeated(overrides: Sequence[str]) -> None:
    """Raise RecipeError for a key that ``overrides`` set twice."""
    given: dict[str, str] = {}
    for override in overrides:
        key = override.partition("=")[0].strip()
        if key in given:
            raise RecipeError(f"{key} is given twice ({given[key]} and {override}); give it once")
        given[key] = override


def _flat(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value within tables and lists, with the name it is set by."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield from _flat(part, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list):
        for part in value:
            yield from _flat(part, key)
    else:
        yield key, value


def _check_kind(kind: type[Table], values: dict[str, Any], origin: str) -> None:
    """Raise RecipeError for a recipe of the other command, which its tables show."""
    for table, folder in _TABLES.items():
        if table in values and table not in kind.model_fields:
            raise RecipeError(f"{origin} has a table [{table}]: it is for {_COMMANDS[folder]}")


# The command that a recipe is for, by its folder in the package, and the tables that show the kind.
_COMMANDS = {
    "recipes": "'wordloom train', which trains models",
    "recipes/vectors": "'wordloom vectors train', which trains word vectors",
}
_TABLES = {
    **dict.fromkeys(("vectors", "words"), "recipes/vectors"),
    **dict.fromkeys(("train", "model", "tokenizer"), "recipes"),
}


def _find(source: str, shipped: dict[str, Path]) -> Path:
    if source in shipped:
        return shipped[source]
    path = Path(source)
    if path.is_file():
        return path
    if path.is_dir() and (path / "recipe.toml").is_file():
        return path / "recipe.toml"
    if source.endswith(".toml") or "/" in source:
        raise RecipeError(
            f"no recipe file {source}; give a .toml file, the folder of a run, or a shipped recipe such as "
            "quickstart"
        )
    for folder, command in _COMMANDS.items():
        if source in shipped_recipes(folder):
            raise RecipeError(f"the recipe {source!r} is for {command}")
    raise RecipeError(f"no recipe called {source!r}; {did_you_mean(source, shipped)}")


# Keys that belong to one text: how it is read, and what is held out of it.
_KEYS_OF_A_TEXT = {
    "data": (
        *("validation", "field", "separator", "text_column", "label_column", "header"),
        *("targets", "validation_targets", "source_column", "target_column"),
    ),
    "old_task": ("validation", "field", "separator"),
}


def _make_room(values: dict[str, Any], overridden: set[str], removed: set[str]) -> dict[str, Any]:
    """Remove the keys of a recipe that an override replaces under another name, such as another budget.

    Another training text is read in its own way and has its own validation part; one of the keys ``removed``
    is none.  Return the keys that are removed for that reason.
    """
    dropped: dict[str, Any] = {}
    for table, rivals in (
        ("train", BUDGETS),
        ("tokenizer", ("kind", "path")),
        ("model", ("family", "preset")),
    ):
        if overridden & {f"{table}.{name}" for name in rivals} and isinstance(values.get(table), dict):
            for name in rivals:
                values[table].pop(name, None)
    for table, names in _KEYS_OF_A_TEXT.items():
        if f"{table}.train" in overridden - removed and isinstance(values.get(table), dict):
            for name in names:
                if values[table].get(name) is not None:
                    dropped[f"{table}.{name}"] = values[table].pop(name)
    if "tokenizer.path" in overridden:
        values["tokenizer"] = {}
    if "model.preset" in overridden:
        values["model"] = {}
    return {key: value for key, value in dropped.items() if key not in overridden}


def _dropped_lines(recipe: Table, dropped: dict[str, Any]) -> Iterator[str]:
    """Yield a line for each table whose keys :func:`_make_room` removed."""
    for table in _KEYS_OF_A_TEXT:
        names = [f"{key} = {value!r}" for key, value in dropped.items() if key.startswith(f"{table}.")]
        if not names:
            continue
        line = f"left out of the recipe, because {table}.train is another text: {', '.join(names)}"
        share = getattr(getattr(recipe, table), "validation_fraction", None)
        if f"{table}.validation" in dropped and share is not None:
            line += f"; a share of {share:g} of the text is for validation ({table}.validation_fraction)"
        yield line


# Overrides of these keys make another kind of run; the recipe's keys that do not fit are errors.
_KINDS_OF_RUN = ("train.objective", "data.label_prefix", "vectors.algorithm")


def _drop_unused(kind: type[Table], values: dict[str, Any], overridden: set[str]) -> list[str]:
    """Remove the recipe's keys that an override leaves without effect, and return a line for each."""
    lines: list[str] = []
    changed = overridden - set(_KINDS_OF_RUN)
    while True:  # a key that is removed may leave another one without effect
        droppable = (unused for unused in unused_keys(kind, values) if unused.name not in overridden)
        unused = next((unused for unused in droppable if unused.decides in changed), None)
        if unused is None:
            return lines
        *tables, key = unused.name.split(".")
        table = values
        for name in tables:
            table = table[name]
        del table[key]
        changed.add(unused.name)
        lines.append(f"the recipe's {unused.name} = {unused.value!r} is left out: {unused.reason}")


def _apply(values: dict[str, Any], override: str) -> None:
    """Set one ``table.key=value`` in place; the value is read as TOML, or as a bare string."""
    key, equals, text = override.partition("=")
    names = key.strip().split(".")
    if not equals or not all(names):
        raise RecipeError(
            f"cannot read the override {override!r}; write it as table.key=value, e.g. train.steps=500"
        )
    value = override_value(text)
    table = values
    for name in names[:-1]:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise RecipeError(f"cannot set {key!r}: {name!r} is a value, not a table")
    if value is None:
        table.pop(names[-1], None)
    else:
        table[names[-1]] = value


def override_value(text: str) -> Any:
    """Return the value of an override, read as TOML or as a bare string; ``none`` is None."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    except ValueError:
        raise RecipeError(f"{text[:20]}... is an integer beyond {_LARGEST}; give a smaller one") from None
    except RecursionError:
        raise RecipeError(f"{text[:20]}... has too many lists or tables in each other") from None
    return None if value == "none" else value


def _explain(error: ValidationError, kind: type[Table]) -> str:
    """Return pydantic's first error as one line: the value, the allowed values, and what to do."""
    # a missing table may be there under a mistyped name
    first, *others = error.errors()
    if first["type"] == "missing":
        first = next((other for other in others if other["type"] == "extra_forbidden"), first)
    where = ".".join(
        str(part) for part in first["loc"] if not str(part).startswith(("list[", "str", "constrained"))
    )
    given = first.get("input")
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    if first["type"] == "extra_forbidden":
        table, key = first["loc"][:-1], str(first["loc"][-1])
        allowed = keys_of(kind, table)
        ours = _FOREIGN.get(key, key)
        if ours in allowed:
            return f"unknown key '{where}'; it is called {_called(table, ours)}{more}"
        if table and key in keys_of(kind, ()):
            return f"unknown key '{where}'; it is called '{key}' here{more}"
        elsewhere = [name for name in kind.model_fields if ours in keys_of(kind, (name,))]
        if not table and elsewhere:
            if ours != key:
                return f"unknown key '{where}'; it is called {_called(elsewhere[:1], ours)}{more}"
            return f"unknown key '{where}'; did you mean '{elsewhere[0]}.{key}'?{more}"
        if not table and isinstance(given, dict):
            tables = [name for name in allowed if keys_of(kind, (name,)) or name == "model"]
            return f"unknown table [{key}]; {did_you_mean(key, tables)}{more}"
        return f"unknown key '{where}'; {did_you_mean(key, allowed)}{more}"
    if first["type"] == "missing":
        return f"'{where}' is missing{more}"
    if first["type"] == "value_error":
        return str(first["ctx"]["error"]) + more
    if first["type"] == "literal_error":
        allowed = first["ctx"]["expected"].replace("'", "").replace(" or ", ", ").split(", ")
        return f"'{where}' cannot be {given!r}; {did_you_mean(str(given), allowed)}{more}"
    return f"'{where}' cannot be {given!r}: {first['msg'][0].lower()}{first['msg'][1:]}{more}"


def _called(table: Sequence[int | str], ours: str) -> str:
    """Return our name for another tool's key, and a note where its meaning differs."""
    note = _OF_ALL_DEVICES.get(ours) if list(table) == ["train"] else None
    return f"'{'.'.join([*map(str, table), ours])}' here" + (f", {note}" if note else "")

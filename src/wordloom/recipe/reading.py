"""Reading recipes of any kind: TOML, overrides of single settings, and mistakes told in one line.

What a recipe of each kind holds is said in :mod:`wordloom.recipe` and :mod:`wordloom.recipe.vectors`.
"""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Callable, Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from wordloom.errors import RecipeError, did_you_mean

__all__ = [
    "BUDGETS",
    "MAX_THREADS",
    "AnyRecipe",
    "FolderName",
    "Strict",
    "override_value",
    "read_recipe",
    "refuse_repeated",
    "shipped_recipes",
]

BUDGETS = ("steps", "tokens", "epochs", "flops", "minutes")
MAX_THREADS = 1024  # far above what a machine has; OpenMP crashes when the system refuses it a thread
_LARGEST = 2**63 - 1  # of TOML's integers


def _folder_name(name: str) -> str:
    if name in ("", ".", "..") or any(letter in name for letter in "/\\\0"):
        raise ValueError(
            f"name {name!r} is no folder name, and the run would go into runs/NAME: use no / or \\"
        )
    return name


FolderName = Annotated[str, AfterValidator(_folder_name)]


class Strict(BaseModel):
    """A recipe, or a table of one: nothing unknown, nothing converted, never changed."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, nothing left out but what is None."""
        return self.model_dump(mode="json", exclude_none=True)


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

# What is said beside our name in [train], where theirs means a batch, or an epoch, of each device.
_OF_ALL_DEVICES = {
    "batch_size": "and is of all devices together; what goes through at a time is 'train.micro_batch_size'",
    "epochs": "and counts steps of 'train.batch_size', which is of all devices together",
}


def shipped_recipes(folder: str = "recipes") -> dict[str, Path]:
    """Name -> file of every recipe that comes with the package, of models or in another ``folder``."""
    place = Path(str(resources.files("wordloom"))) / folder
    return {path.stem: path for path in sorted(place.glob("*.toml"))}


AnyRecipe = TypeVar("AnyRecipe", bound=Strict)


def read_recipe(
    kind: type[AnyRecipe],
    shipped: dict[str, Path],
    source: str | Path | AnyRecipe | dict[str, Any],
    overrides: Sequence[str] = (),
    *,
    say: Callable[[str], None] | None = None,
) -> AnyRecipe:
    """Return the recipe of ``kind`` that ``source`` names: one of ``shipped``, a file, a run, or its values.

    ``overrides`` are ``key=value``; ``say`` is called with a line for the settings that one of them makes the
    recipe leave out.  Raises RecipeError for a file that is missing or not TOML, an unknown
    key, or a value out of its range.
    """
    if isinstance(source, Strict):
        values, origin = source.as_dict(), str(getattr(source, "name", ""))
    elif isinstance(source, dict):
        values, origin = copy.deepcopy(source), "settings"
    else:
        path = _find(str(source), shipped)
        origin = path.name
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:  # also for an integer of more than 4,300 digits
            raise RecipeError(f"{path} is not a TOML file: {str(error).partition(';')[0]}") from None
        values.setdefault("name", path.stem)
    _check_kind(kind, values, origin)
    dropped = _make_room(values, overrides)
    for override in overrides:
        _apply(values, override)
    for key, value in _flat(values):
        if isinstance(value, int) and abs(value) > _LARGEST:
            raise RecipeError(f"{origin}: {key} is an integer beyond {_LARGEST}; give a smaller one")
    try:
        recipe = kind.model_validate(values)
    except ValidationError as error:
        raise RecipeError(f"{origin}: {_explain(error, kind)}") from None
    if say is not None:
        for line in _told_dropped(recipe, dropped, overrides):
            say(line)
    return recipe


def refuse_repeated(overrides: Sequence[str]) -> None:
    """Raise RecipeError for a key that a command line sets twice."""
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


def _check_kind(kind: type[Strict], values: dict[str, Any], origin: str) -> None:
    """A recipe for the other command is told apart by its table."""
    for table, folder in _TABLES.items():
        if table in values and table not in kind.model_fields:
            raise RecipeError(f"{origin} has a table [{table}]: it is for {_COMMANDS[folder]}")


# What a recipe is for, by the folder of its kind, and the tables that tell.
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
        raise RecipeError(f"no recipe file {source}; give a .toml file, or one of: {', '.join(shipped)}")
    for folder, command in _COMMANDS.items():
        if source in shipped_recipes(folder):
            raise RecipeError(f"the recipe {source!r} is for {command}")
    raise RecipeError(f"no recipe called {source!r}; {did_you_mean(source, shipped)}")


# What says how a text is read and held out: another text has its own.
_OF_THE_TEXT = {
    "data": (
        *("validation", "field", "separator", "text_column", "label_column", "header"),
        *("targets", "validation_targets", "source_column", "target_column"),
    ),
    "old_task": ("validation", "field", "separator"),
}


def _make_room(values: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Drop what an override replaces under another name: the recipe's budget, its tokenizer's source.

    Another training text brings its own validation part and is read in its own way: the settings dropped for
    that are returned.
    """
    dropped: dict[str, Any] = {}
    given = {override.partition("=")[0].strip() for override in overrides}
    for table, rivals in (
        ("train", BUDGETS),
        ("tokenizer", ("kind", "path", "source_path")),
        ("model", ("family", "preset")),
    ):
        if given & {f"{table}.{name}" for name in rivals} and isinstance(values.get(table), dict):
            for name in rivals:
                values[table].pop(name, None)
    for table, names in _OF_THE_TEXT.items():
        if f"{table}.train" in given and isinstance(values.get(table), dict):
            for name in names:
                if values[table].get(name) is not None:
                    dropped[f"{table}.{name}"] = values[table].pop(name)
    if "tokenizer.path" in given:
        values["tokenizer"] = {}
    if "model.preset" in given:
        values["model"] = {}
    return {key: value for key, value in dropped.items() if key not in given}


def _told_dropped(recipe: Strict, dropped: dict[str, Any], overrides: Sequence[str]) -> Iterator[str]:
    """Yield a line for each table whose settings :func:`_make_room` dropped."""
    for table in _OF_THE_TEXT:
        names = [f"{key} = {value!r}" for key, value in dropped.items() if key.startswith(f"{table}.")]
        if not names:
            continue
        line = f"{table}.train is another text, without the recipe's {', '.join(names)}: set what fits it"
        share = getattr(getattr(recipe, table), "validation_fraction", None)
        if f"{table}.validation" in dropped and share is not None:
            line += f". {share:g} of the text is held out for validation ({table}.validation_fraction)"
        yield line


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
    """What stands behind ``key=``, read as TOML or as a bare string; ``none`` is None."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    except ValueError:
        raise RecipeError(f"{text[:20]}... is an integer beyond {_LARGEST}; give a smaller one") from None
    return None if value == "none" else value


def _explain(error: ValidationError, kind: type[Strict]) -> str:
    """pydantic's first complaint as one line: what was given, what is allowed, what to do."""
    # a table that is missing may be there under a mistyped name
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
        allowed = _keys_of(kind, table)
        ours = _FOREIGN.get(key, key)
        if ours in allowed:
            return f"unknown key '{where}'; it is called {_called(table, ours)}{more}"
        if table and key in _keys_of(kind, ()):
            return f"unknown key '{where}'; it is called '{key}' here{more}"
        elsewhere = [name for name in kind.model_fields if ours in _keys_of(kind, (name,))]
        if not table and elsewhere:
            if ours != key:
                return f"unknown key '{where}'; it is called {_called(elsewhere[:1], ours)}{more}"
            return f"unknown key '{where}'; did you mean '{elsewhere[0]}.{key}'?{more}"
        if not table and isinstance(given, dict):
            tables = [name for name in allowed if _keys_of(kind, (name,)) or name == "model"]
            return f"unknown table [{key}]; {did_you_mean(key, tables)}{more}"
        return f"unknown key '{where}'; {did_you_mean(key, allowed)}{more}"
    if first["type"] == "missing":
        return f"'{where}' is missing{more}"
    if first["type"] == "value_error":
        return str(first["ctx"]["error"]) + more
    return f"'{where}' cannot be {given!r}: {first['msg'][0].lower()}{first['msg'][1:]}{more}"


def _called(table: Sequence[int | str], ours: str) -> str:
    """Our name for what another tool calls otherwise, and what else differs."""
    note = _OF_ALL_DEVICES.get(ours) if list(table) == ["train"] else None
    return f"'{'.'.join([*map(str, table), ours])}' here" + (f", {note}" if note else "")


def _keys_of(kind: type[Strict], table: Sequence[int | str]) -> list[str]:
    """The keys of a recipe, or of one of its tables."""
    if not table:
        return list(kind.model_fields)
    field = kind.model_fields.get(str(table[0]))
    given = () if field is None else (field.annotation, *get_args(field.annotation))
    for schema in given:
        if isinstance(schema, type) and issubclass(schema, Strict):
            return list(schema.model_fields)
    return []

"""The model card of a checkpoint: a README.md whose metadata block hubs read.

The card describes what the folder holds: the model, its tokenizer, the data and their ledger, the recipe, and
the scores with their signatures.  What is not in the folder, such as the licence, is marked to be filled in.
"""

from __future__ import annotations

import json
import math
import re
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import tomli_w

from wordloom.data.sets.fetch import files_of, names_dataset
from wordloom.errors import CheckpointError, DataError
from wordloom.models import TaskConfig, body_config, context_limit, family_of, skeleton
from wordloom.recipe import Recipe
from wordloom.recipe.training import HIGHER
from wordloom.run.checkpoint.kinds import KINDS, kind_of
from wordloom.run.checkpoint.loaders import Checkpoint, read_checkpoint
from wordloom.run.models.sentence_folder import pooling_of
from wordloom.run.models.tokenizers import folder_tokenizer
from wordloom.weights.formats import OWN
from wordloom.weights.tensors import read_json

NAME = "README.md"
FILL_IN = "_To be filled in: {}._"
# The task by which hubs sort models, by the name of the kind of checkpoint.
_PIPELINES = {
    "classification": "text-classification",
    "rnn_classifier": "text-classification",
    "bag_of_words": "text-classification",
    "regression": "text-classification",
    "multiple_choice": "multiple-choice",
    "token_classification": "token-classification",
    "question_answering": "question-answering",
    "translation": "translation",
    "language_model": "text-generation",
}


def model_card(
    folder: str | Path,
    *,
    licence: str | None = None,
    languages: Sequence[str] = (),
    scores: Sequence[str | Path] = (),
) -> str:
    """Return the text of the card.

    Args:
        folder: a checkpoint.
        licence: the identifier of a licence, such as ``apache-2.0``; None: to be filled in.
        languages: the codes of the languages of its text, such as ``en``.
        scores: files that ``wordloom evaluate --json`` wrote for this checkpoint.

    Raises CheckpointError for a folder without a model, DataError for a file that holds no scores, and
    CheckpointError without the package huggingface_hub.
    """
    checkpoint = read_checkpoint(folder)
    found = [*_scores_of_run(checkpoint), *_scores_of_files(checkpoint, scores)]
    parts = [
        _metadata(checkpoint, licence, languages, found),
        f"# {checkpoint.folder.resolve().name}",
        _about(checkpoint),
        "## Use",
        _use(checkpoint),
        "## Data",
        _data(checkpoint.recipe, checkpoint.folder),
        "## Training",
        _training(checkpoint),
        "## Evaluation",
        _evaluation(found),
        "## Limits",
        FILL_IN.format("what the model is for and not for, and what is known of its errors and biases"),
    ]
    return "\n\n".join(parts) + "\n"


# -- the metadata block ------------------------------------------------------------------------------------


def _metadata(
    checkpoint: Checkpoint, licence: str | None, languages: Sequence[str], scores: Sequence[Mapping[str, Any]]
) -> str:
    try:
        from huggingface_hub import EvalResult, ModelCardData
    except ImportError:
        raise CheckpointError("a card needs huggingface_hub: pip install huggingface_hub") from None
    pipeline = _pipeline(checkpoint)
    results = [
        EvalResult(
            task_type=pipeline,
            dataset_type=re.sub(r"[^\w./-]+", "-", each["data"]),
            dataset_name=each["data"],
            metric_type=each["name"],
            metric_value=each["value"],
            metric_args={"signature": each["signature"]},
        )
        for each in scores
        if each["value"] is not None
    ]
    recipe = checkpoint.recipe
    base = checkpoint.base or (recipe and recipe.start_from)
    data = ModelCardData(
        license=licence or "unknown",
        language=list(languages) or None,
        library_name="transformers" if _is_known(checkpoint) else "wordloom",
        pipeline_tag=pipeline,
        tags=["wordloom", family_of(body_config(checkpoint.config))],
        base_model=None if base is None else Path(str(base)).name,
        model_name=checkpoint.folder.resolve().name if results else None,
        eval_results=results or None,
    )
    return f"---\n{data.to_yaml()}\n---"


def _pipeline(checkpoint: Checkpoint) -> str:
    kind = kind_of(checkpoint)
    if kind is KINDS["encoder"]:
        if pooling_of(checkpoint.folder) is not None:
            return "sentence-similarity"
        return "fill-mask" if checkpoint.config.masked_lm_head else "feature-extraction"
    return next(task for name, task in _PIPELINES.items() if KINDS[name] is kind)


def _is_known(checkpoint: Checkpoint) -> bool:
    """Return whether transformers reads the folder."""
    config = read_json(checkpoint.model_folder / "config.json")
    return not str(config.get("model_type", OWN)).startswith(OWN)


# -- the text ----------------------------------------------------------------------------------------------


def _about(checkpoint: Checkpoint) -> str:
    config = body_config(checkpoint.config)
    parameters = sum(p.numel() for p in skeleton(checkpoint.config).parameters())
    description = kind_of(checkpoint).description
    by = ", trained with Wordloom" if checkpoint.recipe is not None else ""
    lines = [f"{description[0].upper()}{description[1:]}{by}."]
    facts = {"family": family_of(config), "parameters": f"{parameters:,}"}
    if (limit := context_limit(config)) is not None:
        facts["context"] = f"{limit:,} tokens"
    tokenizer = folder_tokenizer(checkpoint.model_folder, config.vocab_size)
    if tokenizer is not None:
        facts["tokenizer"] = f"{tokenizer.kind}, {tokenizer.vocab_size:,} tokens"
    if isinstance(checkpoint.config, TaskConfig) and checkpoint.config.classifies:
        facts["labels"] = ", ".join(map(str, checkpoint.config.labels))
    table = ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in facts.items())]
    return "\n".join([*lines, "", *table])


def _use(checkpoint: Checkpoint) -> str:
    name = checkpoint.folder.resolve().name
    command = kind_of(checkpoint).next_command(shlex.quote(name), checkpoint)
    lines = [f"    wordloom {command}"]
    lines += [
        "",
        "```python",
        "import wordloom",
        "",
        f"model = wordloom.load({json.dumps(name, ensure_ascii=False)})",
        "```",
    ]
    if _is_known(checkpoint) and checkpoint.base is None:
        lines += ["", "transformers reads the folder."]
    if pooling_of(checkpoint.folder) is not None:
        lines += ["", "sentence-transformers reads it: `SentenceTransformer(FOLDER)`."]
    return "\n".join(lines)


def _data(recipe: Recipe | None, folder: Path) -> str:
    if recipe is None:
        return FILL_IN.format("the data that the model was trained on, and their licence")
    described: dict[str, list[str]] = {}  # the names of the sources, by what is known of them
    for source in _sources(recipe):
        known = FILL_IN.format("what it is, and its licence")
        if names_dataset(source):
            info = files_of(source)[0]
            cited = f"; {info.citation}" if info.citation else ""
            known = f"{info.title}. Licence: {info.licence}. Source: {info.origin}{cited}."
        described.setdefault(known, []).append(f"`{source}`")
    lines = [f"- {', '.join(names)}: {known}" for known, names in described.items()]
    ledger = folder / "ledger.json"
    if ledger.exists():
        counts = [_counted(part) for part in read_json(ledger).values() if isinstance(part, dict)]
        lines += ["", *filter(None, counts)]
    return "\n".join(lines)


def _sources(recipe: Recipe) -> list[str]:
    """Return the files and data sets that a recipe reads, each once."""
    named = [recipe.data.train, recipe.data.validation]
    listed = [[part] if isinstance(part, str) else part or [] for part in named]
    return list(dict.fromkeys(str(each) for part in listed for each in part))


def _counted(part: Mapping[str, Any]) -> str:
    nouns = ("files", "documents", "rows", "pairs", "tokens", "bytes")
    counts = [
        f"{part[noun]:,} {noun.removesuffix('s') if part[noun] == 1 else noun}"
        for noun in nouns
        if isinstance(part.get(noun), int) and part[noun]
    ]
    dropped = sum(part["dropped"].values()) if isinstance(part.get("dropped"), dict) else 0
    counts += [f"{dropped:,} dropped"] if dropped else []
    return f"- {part.get('part', 'data')}: {', '.join(counts)}" if counts else ""


def _training(checkpoint: Checkpoint) -> str:
    lines = []
    last = _last_line(checkpoint, "train")
    if last is not None:
        best = _best_step(checkpoint)
        steps = f"{last['step']:,} steps" if best is None else f"the best weights of a run, of step {best:,}"
        seen = f", {last['tokens']:,} tokens" if isinstance(last.get("tokens"), int) and best is None else ""
        lines.append(
            f"{steps[0].upper()}{steps[1:]}{seen}. The recipe, with which `wordloom train` repeats the run:"
        )
    recipe = checkpoint.folder / "recipe.toml"
    if not recipe.exists():
        return FILL_IN.format("how the model was trained")
    tables = tomllib.loads(recipe.read_text(encoding="utf-8"))
    tables.pop("result", None)  # it is of the authors' run, not of this one
    if "path" in tables.get("tokenizer", {}):  # the folder of the model has the tokenizer
        tables["tokenizer"]["path"] = checkpoint.folder.resolve().name
    recipe_text = tomli_w.dumps(tables, multiline_strings=True).strip()
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", recipe_text)), default=0))
    return "\n".join([*lines, "", f"{fence}toml", recipe_text, fence])


def _evaluation(scores: Sequence[Mapping[str, Any]]) -> str:
    if not scores:
        return FILL_IN.format("scores, such as those of `wordloom evaluate FOLDER --json`")
    rows = []
    for each in scores:
        cells = (
            *(_cell(each["data"]), _cell(each["name"]), _number(each["value"])),
            *(_interval(each.get("interval")), f"`{_cell(each['signature'])}`"),
        )
        rows.append(f"| {' | '.join(cells)} |")
    headings = "| data | score | value | 95 % interval | signature |\n|---|---|---:|---|---|"
    return "\n".join([headings, *rows])


def _cell(text: str) -> str:
    """Return ``text`` for a cell of a table, which a bar or a line end would end."""
    return " ".join(text.split()).replace("|", "\\|")


def _number(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.4g}" if value < 1000 else f"{value:,.0f}"


def _interval(interval: Sequence[float] | None) -> str:
    return "" if interval is None else " to ".join(map(_number, interval))


# -- scores ------------------------------------------------------------------------------------------------


def _lines(checkpoint: Checkpoint, kind: str) -> list[dict[str, Any]]:
    """Return the lines of this ``kind`` in the log of a run."""
    path, found = checkpoint.folder / "metrics.jsonl", []
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []:
        with suppress(ValueError):  # a kill can cut a line
            line = json.loads(text)
            if isinstance(line, dict) and line.get("kind") == kind:
                found.append(line)
    return found


def _last_line(checkpoint: Checkpoint, kind: str) -> dict[str, Any] | None:
    return next(reversed(_lines(checkpoint, kind)), None)


def _best_step(checkpoint: Checkpoint) -> int | None:
    """Return the step whose weights a finished run with ``train.keep_best`` keeps; None without one."""
    settings = None if checkpoint.recipe is None else checkpoint.recipe.train
    if settings is None or not settings.keep_best:
        return None
    metric = settings.best_metric
    scores = {line["step"]: line[metric] for line in _lines(checkpoint, "evaluate") if metric in line}
    known = {step: score for step, score in scores.items() if not math.isnan(score)}
    if not known:
        return None
    return (max if metric in HIGHER else min)(known, key=lambda step: known[step])  # the first of equal ones


def _validation_of(checkpoint: Checkpoint) -> str:
    held_out = getattr(checkpoint.recipe and checkpoint.recipe.data, "validation", None)
    return held_out if isinstance(held_out, str) and names_dataset(held_out) else "validation part"


def _scores_of_run(checkpoint: Checkpoint) -> list[dict[str, Any]]:
    """Return the scores in training of the weights in the folder, which are of its validation part."""
    best = _best_step(checkpoint)
    lines = [line for line in _lines(checkpoint, "evaluate") if best in (None, line["step"])]
    if not lines:
        return []
    last, data = lines[-1], _validation_of(checkpoint)
    values = {
        name: value for name, value in last.items() if name not in ("kind", "step", "seconds", "signature")
    }
    return [
        {"name": name, "value": value, "signature": last.get("signature", ""), "data": data}
        for name, value in values.items()
        if isinstance(value, int | float) and math.isfinite(value)
    ]


def _check_score(score: Mapping[str, Any]) -> None:
    """Raise ValueError for values that are no score."""
    interval = [] if score["interval"] is None else list(score["interval"])
    numbers = [each for each in (score["value"], *interval) if each is not None]
    if any(isinstance(each, bool) or not isinstance(each, int | float) for each in numbers):
        raise ValueError(f"{score['name']!r} is no number")
    if not isinstance(score["name"], str) or not isinstance(score["signature"], str):
        raise ValueError("a name or a signature is no text")


def _scores_of_files(checkpoint: Checkpoint, paths: Sequence[str | Path]) -> list[dict[str, Any]]:
    """Return the scores in files of ``wordloom evaluate --json``."""
    found = []
    for path in paths:
        try:
            printed = json.loads(Path(path).read_text(encoding="utf-8"))
            data = ", ".join(map(str, printed["data"])) or _validation_of(checkpoint)
            for score in printed["scores"]:
                one = {key: score[key] for key in ("name", "value", "interval", "signature")}
                _check_score(one)
                found.append(one | {"data": data})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"'{path}' holds no scores ({error}); give a file that `wordloom evaluate --json` wrote"
            ) from None
    return found

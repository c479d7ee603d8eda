"""Compare assistants before and after tuning, in several seeds, with bootstrap intervals.

    wordloom train assistant-base
    wordloom train assistant-base-lstm
    python benchmarks/assistants.py --out runs/assistants [--seeds 1 2 3] [--jobs 2]

It trains each row of the table with each seed: the whole model with and without rehearsal, an adapter, an
adapter over 8 bits, the LSTM, and preferences after instructions.  All are scored on the same held-out
conversations and on the same questions that ask for a form.  An interval is the middle 95 % of 2,000
resamples of the conversations or questions, after the mean over seeds.

Runs and answers that are in the folder are not made again, so an interrupted call continues.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from entry import in_one_line
from numpy.typing import NDArray

from wordloom.data.rows.conversations import Conversation
from wordloom.errors import CheckpointError
from wordloom.recipe import load_recipe
from wordloom.run.tasks.conversing import with_template
from wordloom.run.tasks.instruction import conversations_of
from wordloom.text import Tokenizer
from wordloom.text.chat import encode_chat, template_of

RESAMPLES = 2000


@dataclass(frozen=True)
class Arm:
    """One row of the table: a recipe with settings, or a model that is not tuned.

    ``start`` is the folder of the model to begin with, or the name of the arm whose runs these are.
    """

    name: str
    start: str
    recipe: str | None = None
    settings: tuple[str, ...] = ()


def arms(base: str, lstm: str) -> list[Arm]:
    """Return all rows; an arm comes after the one that it starts from."""
    return [
        Arm("base", base),
        Arm("base, LSTM", lstm),
        Arm("whole model", base, "assistant-small"),
        Arm(
            "whole model, no rehearsal", base, "assistant-small",
            ("train.rehearsal_share=none", "old_task.train=none"),
        ),
        Arm("LoRA", base, "assistant-small-lora"),
        Arm("LoRA over 8 bits", base, "assistant-small-lora", ("lora.base=int8",)),
        Arm("whole model, LSTM", lstm, "assistant-lstm"),
        Arm("DPO after the whole model", "whole model", "assistant-small-dpo"),
    ]  # fmt: skip


def folder_of(out: Path, name: str, seed: int) -> Path:
    return out / f"{name.lower().replace(',', '').replace(' ', '-')}-seed{seed}"


def command(*arguments: str, log: Path) -> None:
    """Run ``wordloom`` with one thread; its output goes into the file ``log``."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with log.open("a") as file:
        subprocess.run(
            [sys.executable, "-m", "wordloom", *arguments],
            check=True,
            stdout=file,
            stderr=file,
            env=environment,
        )


def made(arm: Arm, seed: int, out: Path, held_out: Path) -> None:
    """Train one arm with one seed, and write its answers."""
    place = folder_of(out, arm.name, seed)
    place.mkdir(parents=True, exist_ok=True)
    model = arm.start
    if arm.recipe is not None:
        model = str(place / "run")
        start = arm.start if Path(arm.start).is_dir() else str(folder_of(out, arm.start, seed) / "run")
        if not any((place / "run" / name).exists() for name in ("config.json", "adapter_config.json")):
            more = ["--resume"] if (place / "run").exists() else []
            settings = [f"seed={seed}", "train.threads=1", *arm.settings]
            command("train", arm.recipe, *settings, "--from", start, "--out", model, *more, log=place / "log")
    template = [] if arm.recipe else ["--template", "plain"]
    for task, more in (("answers", [str(held_out), "--too-long", "drop"]), ("instructions", [])):
        if not (place / f"{task}.json").exists():
            lines = place / f"{task}.jsonl"
            arguments = [
                model,
                *more,
                "--task",
                task,
                *template,
                "--answers",
                str(lines),
                "--force",
                "--json",
            ]
            command("evaluate", *arguments, log=place / "log")
            (place / f"{task}.json").write_text(lines.read_text())


def rows_of(place: Path, task: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (place / f"{task}.json").read_text().splitlines()]


Matrix = NDArray[np.float64]  # [seeds, rows]


def interval(above: Matrix, below: Matrix | None = None) -> tuple[float, float, float]:
    """Return the ratio of sums, or the mean, and the middle 95 % of its resamples over rows."""
    x = above.mean(0)
    y = np.ones_like(x) if below is None else below.mean(0)
    drawn = np.random.default_rng(0).integers(0, len(x), (RESAMPLES, len(x)))
    low, high = np.quantile(x[drawn].sum(1) / y[drawn].sum(1), (0.025, 0.975))
    return float(x.sum() / y.sum()), float(low), float(high)


def measured(arm: Arm, seeds: Sequence[int], out: Path) -> dict[str, Any]:
    """Return the values of a row, each with its interval, and the values of each seed."""
    places = [folder_of(out, arm.name, seed) for seed in (seeds if arm.recipe else seeds[:1])]

    def values(task: str, key: str) -> Matrix:
        return np.array([[float(row[key]) for row in rows_of(place, task)] for place in places])

    nats, sizes = values("answers", "nats") / math.log(2), values("answers", "bytes")
    found: dict[str, Any] = {
        "name": arm.name,
        "bits_per_byte": interval(nats, sizes),
        "bits_per_byte_of_seeds": (nats.sum(1) / sizes.sum(1)).tolist(),
        "stop_rate": interval(values("answers", "stopped")),
        "repetition": interval(values("answers", "repetition")),
        "followed": interval(values("instructions", "followed")),
        "followed_of_seeds": values("instructions", "followed").mean(1).tolist(),
    }
    old = [place / "run" / "old_task.json" for place in places]
    if all(path.exists() for path in old):
        losses = [json.loads(path.read_text()) for path in old]
        found["old_loss"] = {side: [each[side] for each in losses] for side in ("before", "after")}
    return found


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as a Markdown table."""
    lines = [
        "| model | bits/byte of answers | stop rate | repetition | forms followed | base task's loss |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [
            "{:.{n}f} ({:.{n}f} to {:.{n}f})".format(*row[key], n=digits)
            for key, digits in (("bits_per_byte", 3), ("stop_rate", 2), ("repetition", 2), ("followed", 3))
        ]
        old = row.get("old_loss")
        cells.append("" if old is None else f"{np.mean(old['before']):.3f} to {np.mean(old['after']):.3f}")
        lines.append(f"| {row['name']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--base", default="runs/assistant-base")
    parser.add_argument("--lstm", default="runs/assistant-base-lstm")
    parser.add_argument("--out", type=Path, default=Path("runs/assistants"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    for folder in (asked.base, asked.lstm):
        if not (Path(folder) / "config.json").exists():
            raise CheckpointError(f"no model in {folder}; train it first: wordloom train {Path(folder).name}")
    asked.out.mkdir(parents=True, exist_ok=True)
    held_out = asked.out / "held-out.jsonl"
    found = read_by_all(asked.base)
    lines = ({"messages": [{"role": m.role, "content": whole(m)} for m in each.messages]} for each in found)
    held_out.write_text("".join(json.dumps(line) + "\n" for line in lines))
    all_arms = arms(asked.base, asked.lstm)
    first = [arm for arm in all_arms if Path(arm.start).is_dir()]
    for wave in (first, [arm for arm in all_arms if arm not in first]):  # that start from another arm
        with ThreadPoolExecutor(asked.jobs) as pool:
            jobs = [
                (arm, seed) for seed in asked.seeds for arm in wave if arm.recipe or seed == asked.seeds[0]
            ]
            list(pool.map(lambda job: made(*job, asked.out, held_out), jobs))
    rows = [measured(arm, asked.seeds, asked.out) for arm in all_arms]
    for row in rows:
        print(json.dumps(row))
    print(table(rows))


def read_by_all(base: str) -> list[Conversation]:
    """Return the held-out conversations that fit the windows of the recipe, which an LSTM would not need."""
    recipe = load_recipe("assistant-small")
    tokenizer, _ = with_template(Tokenizer.from_pretrained(base), "plain")
    template = template_of(tokenizer)
    return [
        each
        for each in conversations_of(recipe)["validation"]
        if len(encode_chat(tokenizer, template, each.messages).ids) - 1 <= recipe.train.seq_len
    ]


def whole(message: Any) -> str:
    """Return the text of a message with the text that it is about, as a template without a place for it."""
    return message.content + (f"\n\n{message.input}" if message.input else "")


if __name__ == "__main__":
    in_one_line(main)

"""Speculation on text that copies and on fresh text: tokens per second with it and without.

    python benchmarks/speculation.py [--steps 1200] [--new 200] [--prompts 8] [--batch 1 8] [--rounds 5]
                                     [--temperature 0] [--out runs/speculation]

The first call trains a LLaMA of 5 million weights, resumably, on three kinds of text in equal parts: passages
of Gutenberg's books followed by a long quotation, functions of Python's standard library followed by the same
function with one name changed, and plain passages.  Then it continues prompts from the validation books and
from modules that it has not read.  One JSON line for each kind of prompt: tokens per second without
speculation, with ``lookup`` and with ``corpus``, the tokens that a step made on average, and how much of the
copied text is right.  The texts of all three must be equal.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import re
import sysconfig
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from entry import in_one_line
from turns import in_turns

RECIPE = """
seed = 1337
[data]
train = "{folder}/train.jsonl"
validation = "{folder}/validation.jsonl"
document_mask = true
[tokenizer]
kind = "bpe"
vocab_size = 2048
[model]
family = "llama"
dim = 256
n_layers = 6
n_heads = 4
hidden_dim = 704
max_seq_len = 1024
norm_eps = 1e-5
tie_embeddings = true
[train]
steps = {steps}
seq_len = 512
batch_size = 8
optimizer = "muon"
learning_rate = 2e-3
muon_learning_rate = 0.02
schedule = "warmup_stable_decay"
decay_share = 0.3
warmup_steps = 20
evaluate_every = 300
evaluate_windows = 20
sample_every = 0
save_every = 100
"""
KINDS = ("quotation", "edit", "fresh")


def passages(part: str, words: int) -> Iterator[list[str]]:
    """Yield passages of about ``words`` words of the books, as their sentences."""
    from wordloom.data import Corpus

    for document in Corpus(sources=f"gutenberg/{part}", validation_fraction=0.0).documents("train"):
        passage: list[str] = []
        for sentence in re.split(r"(?<=[.!?])\s+", " ".join(str(document.text).split())):
            passage.append(sentence)
            if sum(len(each.split()) for each in passage) >= words:
                if max(map(len, passage)) < 500:
                    yield passage
                passage = []


def functions(*, held_out: bool) -> Iterator[str]:
    """Yield functions of Python's standard library; every tenth module is held out."""
    for i, file in enumerate(sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))):
        if (i % 10 == 0) != held_out:
            continue
        source = file.read_text(encoding="utf-8", errors="replace")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef):
                text = ast.get_source_segment(source, node) or ""
                if 200 < len(text) < 900:
                    yield text


def quotation(rng: random.Random, passage: list[str]) -> tuple[str, str]:
    """Return a passage with the first words of a quotation from its first half, and the rest of it."""
    first = rng.randrange(max(1, len(passage) // 2))
    quoted = " ".join(passage[first:]).split()
    return f"{' '.join(passage)}\nQUOTE: {' '.join(quoted[:4])}", " " + " ".join(quoted[4:])


def edit(rng: random.Random, function: str) -> tuple[str, str]:
    """Return a function with the order to change a name in it, and the changed function."""
    names = sorted(set(re.findall(r"\b[a-z_]{3,12}\b", function)) - {"def", "self", "return"})
    old, new = rng.choice(names), rng.choice(["value", "item", "result", "total", "entry", "buffer"])
    return f"{function}\nRENAME {old} TO {new}:\n", re.sub(rf"\b{old}\b", new, function)


def write_texts(folder: Path) -> None:
    """Write 45,000 texts, of which 300 are for validation, one JSON line each."""
    rng = random.Random(1337)
    code = list(functions(held_out=False))
    texts: list[str] = []
    for passage in passages("train", 90):
        texts.append("".join(quotation(rng, passage)))
        texts.append("".join(edit(rng, rng.choice(code))))
        texts.append(" ".join(passage))
        if len(texts) >= 45_000:
            break
    rng.shuffle(texts)
    lines = [json.dumps({"text": text}) + "\n" for text in texts]
    (folder / "train.jsonl").write_text("".join(lines[300:]))
    (folder / "validation.jsonl").write_text("".join(lines[:300]))


def trained(folder: Path, steps: int) -> Path:
    """Train the model, or go on with it, and return the folder of its run."""
    from wordloom.run import train

    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "validation.jsonl").exists():
        write_texts(folder)
    (folder / "speculation.toml").write_text(RECIPE.format(folder=folder, steps=steps))
    return Path(
        train(folder / "speculation.toml", out=folder / "run", resume=(folder / "run").exists()).folder
    )


def prompts(kind: str, n: int) -> list[tuple[str, str]]:
    """Return ``n`` prompts of a kind that the model has not read, and the text that they ask for."""
    rng = random.Random(kind)
    if kind == "edit":
        return [edit(rng, text) for text in rng.sample(list(functions(held_out=True)), n)]
    held_out = rng.sample(list(passages("valid", 90)), n)
    if kind == "quotation":
        return [quotation(rng, passage) for passage in held_out]
    return [(" ".join(passage), "") for passage in held_out]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--new", type=int, default=200)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--temperature", type=float, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/speculation"))
    asked = parser.parse_args()
    from wordloom import load

    lm = load(trained(asked.out.resolve(), asked.steps))
    drafters = {name: lm.drafter(name) for name in ("lookup", "corpus")}
    for kind in KINDS:
        for batch in asked.batch:
            line = measured(lm, drafters, prompts(kind, asked.prompts), batch, asked)
            print(json.dumps({"text": kind, "batch": batch, **line}), flush=True)


def measured(
    lm: Any, drafters: dict[str, Any], texts: list[tuple[str, str]], batch: int, asked: argparse.Namespace
) -> dict[str, Any]:
    """Return the medians of alternated rounds over all prompts, ``batch`` of them at a time."""
    from wordloom.generate import Sampling
    from wordloom.generate.engine import Engine

    ids = [lm.text_tokenizer.encode(prompt).ids for prompt, _ in texts]
    sampling = Sampling(temperature=asked.temperature, seed=1, max_new_tokens=asked.new)
    end = lm.text_tokenizer.encode("").ids[-1:] if lm.text_tokenizer.encode("").ids else []
    made: dict[str, list[list[int]]] = {}
    n_steps: dict[str, int] = {}

    def run(name: str, drafter: Any) -> float:
        rows: list[list[int]] = []
        count, began = 0, time.perf_counter()
        for first in range(0, len(ids), batch):
            engine = Engine(lm.model, speculate=drafter)
            some = ids[first : first + batch]
            engine.admit(some, sampling, eos_ids=end)
            here: list[list[int]] = [[] for _ in some]
            while engine.live:
                for step in engine.step():
                    here[step.row].append(step.id)
                count += 1
            rows += here
        spent = time.perf_counter() - began
        made[name], n_steps[name] = rows, count
        return spent

    sides: dict[str, Callable[[], float]] = {"plain": partial(run, "plain", None)}
    sides |= {name: partial(run, name, drafter) for name, drafter in drafters.items()}
    for call in sides.values():
        call()  # the warm-up
    median = in_turns(sides, asked.rounds)
    for name in drafters:
        if made[name] != made["plain"]:
            raise SystemExit(f"speculation {name!r} wrote another text")
    tokens = sum(map(len, made["plain"]))
    found: dict[str, Any] = {"tokens": tokens}
    for name in sides:
        found[f"{name}_tokens_per_s"] = round(tokens / median[name])
    for name in drafters:
        found[f"{name}_ratio"] = round(median["plain"] / median[name], 2)
        found[f"{name}_tokens_per_step"] = round(n_steps["plain"] / n_steps[name], 2)
    wanted = [lm.text_tokenizer.encode(answer).ids for _, answer in texts]
    if any(wanted):
        right = [
            sum(a == b for a, b in zip(row, answer, strict=False)) / min(len(answer), asked.new)
            for row, answer in zip(made["plain"], wanted, strict=True)
            if answer
        ]
        found["copied_right"] = round(sum(right) / len(right), 2)
    return found


if __name__ == "__main__":
    in_one_line(main)

"""Compare instruction tuning with trl's SFTTrainer and peft: tokens per second and peak memory.

    python benchmarks/tuning.py [--shape llama-6m ...] [--precision fp32 bf16] [--rounds 5] [--quick]

Both sides tune the same LLaMA with the same weights, on the same shuffled conversations in the same chat
template and order, with equal batches, fused AdamW and clipping to norm 1.  They train all weights ("full"),
or a LoRA adapter of rank 8 on all matrices of the blocks.  The loss covers the answers alone.  Gradient
checkpointing, which trl turns on by default, is off on both sides.

- "padded": batches of single conversations, padded to the longest.  Both sides read identical batches, so
  their losses must agree.
- "grouped": the same with conversations of similar length in a batch, which needs little padding.
- "packed": windows of several conversations, which do not see one another.  Each side packs by its own
  best-fit algorithm, so the batches hold other conversations.  trl joins the windows of a batch into one row.
  A side's "leak" is the difference between its first loss and that of the same conversations one by one.
- "own best": the fastest setting of each side.

Each side has its own process and runs its own training loop.  The processes take turns of --steps steps.
Tokens are those of conversations, without padding.  Peak memory is the peak of the process's resident memory
(VmHWM) less the resident memory before the data and the model are loaded, with the libraries imported.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from entry import in_one_line

from training import Contestant, compete, machine

HERE = Path(__file__).parent
SETTINGS = ["padded", "grouped", "packed"]
LIBRARIES = ("transformers", "datasets", "peft", "trl")
# the side and its allocator settings; the first is Wordloom as a user gets it
CONTESTANTS = {
    "wordloom": ("wordloom", "tuned"),
    "trl": ("trl", "system"),
    "wordloom, system allocator": ("wordloom", "system"),
    "trl, tuned allocator": ("trl", "tuned"),
}


class Tuner(Contestant):
    """A worker process that tunes with one library, and its measurements."""

    def __init__(self, name: str, settings: dict[str, Any], folder: Path):
        self.label = name
        self.side, self.allocator = CONTESTANTS[name]
        threads = str(settings["threads"])
        given = {**settings, "side": self.side, "allocator": self.allocator}
        self.log = (folder / "worker.log").open("ab")
        offline = {
            "HF_HUB_OFFLINE": "1",
            "HF_HOME": str(folder / "huggingface"),
            "TOKENIZERS_PARALLELISM": "0",
        }
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "tuning_worker.py"), json.dumps(given)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True,
            env={**os.environ, **offline, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
        )  # fmt: skip
        self.samples: list[dict[str, float]] = []
        self.start = self._answer()

    @property
    def name(self) -> str:
        return self.label

    def close(self) -> None:
        super().close()
        self.log.close()

    def rate(self, key: str) -> float:
        """Return the median of tokens per second of ``key``, "seconds" or "cpu"."""
        return statistics.median(s["tokens"] / s["steps"] / s[key] for s in self.samples)


def write_base(shape_name: str, folder: Path) -> None:
    """Write a base model with random weights and a new tokenizer, and the conversations that fit."""
    import torch
    from tuning_sides import DATA, SHAPES

    from wordloom.data.rows.conversations import conversations
    from wordloom.models import LlamaConfig, build
    from wordloom.run.tasks.conversing import with_template
    from wordloom.text import Tokenizer
    from wordloom.text.chat import encode_chat, template_of
    from wordloom.weights import save_model

    shape = SHAPES[shape_name]
    found = list(conversations(list(DATA)))
    texts = (message.content for each in found for message in each.messages)
    tokenizer = Tokenizer.train(texts, kind="bpe", vocab_size=min(shape.vocab, 8192))
    tokenizer, _ = with_template(tokenizer, "plain")
    template = template_of(tokenizer)
    random.Random(0).shuffle(found)
    lengths_of = {c.place: len(encode_chat(tokenizer, template, c.messages).ids) for c in found}
    fitting = [each for each in found if lengths_of[each.place] <= shape.longest]
    fitting = fitting[: len(fitting) // shape.conversations * shape.conversations]  # whole batches
    write_data(fitting, folder / "padded.jsonl")
    write_data(grouped(fitting, lengths_of, shape.conversations), folder / "grouped.jsonl")
    config = LlamaConfig(
        vocab_size=shape.vocab, max_seq_len=shape.longest, dim=shape.dim, n_layers=shape.layers,
        n_heads=shape.heads, n_kv_heads=shape.kv_heads, hidden_dim=shape.hidden, norm_eps=1e-5,
        tie_embeddings=shape.tied,
    )  # fmt: skip
    model = build(config, generator=torch.Generator().manual_seed(0))
    save_model(model, folder / "base", tokenizer=tokenizer)
    print(json.dumps({
        "shape": shape_name, "parameters": sum(p.numel() for p in model.parameters()),
        "conversations": len(fitting), "longer_left_out": len(found) - len(fitting),
        "mean_tokens": round(statistics.mean(lengths_of[each.place] for each in fitting), 1),
        "vocabulary": tokenizer.vocab_size,
    }), flush=True)  # fmt: skip


def write_data(rows: list[Any], path: Path) -> None:
    """Write conversations in the layout that both libraries read."""
    lines = (json.dumps({"messages": [m._asdict() for m in each.messages]}) + "\n" for each in rows)
    path.write_text("".join(lines), encoding="utf-8")


def grouped(rows: list[Any], lengths: dict[str, int], size: int) -> list[Any]:
    """Return ``rows`` in batches of ``size`` rows of similar length; the batches are shuffled."""
    ordered = sorted(rows, key=lambda each: lengths[each.place])
    batches = [ordered[start : start + size] for start in range(0, len(ordered), size)]
    random.Random(0).shuffle(batches)
    return [each for batch in batches for each in batch]


def measure(
    shape: str, precision: str, method: str, setting: str, folder: Path, given: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Return a flat record for each side of one comparison."""
    data = "grouped.jsonl" if setting == "grouped" else "padded.jsonl"
    settings = {
        "shape": shape, "precision": precision, "lora": method == "lora", "packed": setting == "packed",
        "base": str(folder / "base"), "data": str(folder / data), "threads": given.threads,
    }  # fmt: skip
    with ExitStack() as stack:
        tuners: list[Any] = []
        for name in given.sides:
            tuner = Tuner(name, settings, folder)
            stack.callback(tuner.close)
            if "missing" in tuner.start:
                log = (folder / "worker.log").read_text(encoding="utf-8", errors="replace")
                raise RuntimeError(f"{name}: {tuner.start['missing']}\n{log[-3000:]}")
            tuners.append(tuner)
        compete(tuners, rounds=given.rounds, steps=given.steps, settle=True)
        for tuner in sorted(tuners, key=lambda tuner: given.sides.index(tuner.name)):
            for sample in tuner.samples:
                sample["steps"] = given.steps
            yield {
                "shape": shape, "precision": precision, "method": method, "setting": setting,
                "side": tuner.name, "trained": tuner.start["trained"], "digest": tuner.start["digest"],
                "first_loss": round(tuner.start["loss"], 6),
                "separate_loss": round(tuner.start["separate_loss"], 6),
                "last_loss": round(tuner.samples[-1]["loss"], 6),
                "step_seconds": round(tuner.median("seconds"), 5),
                "cpu_seconds": round(tuner.median("cpu"), 5),
                "tokens_per_second": round(tuner.rate("seconds"), 1),
                "tokens_per_cpu_second": round(tuner.rate("cpu"), 1),
                "peak_mib": round(max(s["peak_bytes"] for s in tuner.samples) / 2**20, 1),
                "building_mib": round(tuner.start["building_bytes"] / 2**20, 1),
                "process_mib": round(max(s["process_bytes"] for s in tuner.samples) / 2**20, 1),
                "threads": given.threads, "rounds": given.rounds, "steps": given.steps,
            }  # fmt: skip


def own_best(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the fastest setting of each side, of the records of one shape, precision and method."""
    best: dict[str, dict[str, Any]] = {}
    for record in records:
        held = best.setdefault(record["side"], record)
        if record["tokens_per_second"] > held["tokens_per_second"]:
            best[record["side"]] = record
    return [{**record, "setting": f"own best ({record['setting']})"} for record in best.values()]


COLUMNS: dict[str, Callable[[dict[str, Any], dict[str, Any]], str]] = {
    "shape": lambda r, ours: r["shape"],
    "precision": lambda r, ours: r["precision"],
    "method": lambda r, ours: r["method"],
    "setting": lambda r, ours: r["setting"],
    "side": lambda r, ours: r["side"],
    "tokens/s": lambda r, ours: f"{r['tokens_per_second']:,.0f}",
    "wordloom is": lambda r, ours: f"{ours['tokens_per_second'] / r['tokens_per_second']:.2f}x",
    "by CPU time": lambda r, ours: f"{ours['tokens_per_cpu_second'] / r['tokens_per_cpu_second']:.2f}x",
    "peak MiB": lambda r, ours: f"{r['peak_mib']:,.0f}",
    "wordloom takes": lambda r, ours: f"{ours['peak_mib'] / r['peak_mib']:.2f}x",
    "process MiB": lambda r, ours: f"{r['process_mib']:,.0f}",
    "first loss": lambda r, ours: f"{r['first_loss']:.5f}",
    "leak": lambda r, ours: f"{r['first_loss'] - r['separate_loss']:+.5f}",
}


def table(groups: list[list[dict[str, Any]]]) -> str:
    """Return the table of all comparisons; ratios compare the first side with each of the others."""
    rows = [list(COLUMNS)]
    for group in groups:
        ours = group[0]
        for record in group:
            cells = [column(record, ours) for column in COLUMNS.values()]
            if record is ours:
                cells = ["" if name.startswith(("wordloom", "by")) else cell
                         for name, cell in zip(COLUMNS, cells, strict=True)]  # fmt: skip
            rows.append(cells)
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
    return "\n".join(lines)


def check_equal_work(group: list[dict[str, Any]]) -> str | None:
    """Return a warning if sides that read identical batches begin with unlike losses or ids."""
    if len({record["digest"] for record in group}) > 1:
        return f"the sides read unlike ids: {[record['digest'] for record in group]}"
    losses = [record["first_loss"] for record in group]
    allowed = 1e-3 if group[0]["precision"] == "fp32" else 3e-2
    if max(losses) - min(losses) > allowed:
        return f"the first losses differ by more than {allowed:g}: {losses}"
    return None


def compare(shape: str, given: argparse.Namespace, folder: Path) -> Iterator[list[dict[str, Any]]]:
    """Yield the records of each comparison of one shape, and print them."""
    write_base(shape, folder)
    for precision in given.precision:
        for method in given.method:
            every: list[dict[str, Any]] = []
            for setting in given.setting:
                group = list(measure(shape, precision, method, setting, folder, given))
                for record in group:
                    print(json.dumps(record), flush=True)
                if setting != "packed" and (warning := check_equal_work(group)):
                    print(f"NOT EQUAL WORK: {warning}", file=sys.stderr)
                every += group
                yield group
            if len(given.setting) > 1:
                yield own_best(every)


def main() -> None:
    sys.path.insert(0, str(HERE))
    from tuning_sides import SHAPES

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", nargs="+", choices=SHAPES, default=["llama-6m", "llama-30m"])
    parser.add_argument("--precision", nargs="+", choices=["fp32", "bf16"], default=["fp32", "bf16"])
    parser.add_argument("--method", nargs="+", choices=["full", "lora"], default=["full", "lora"])
    parser.add_argument("--setting", nargs="+", choices=SETTINGS, default=SETTINGS)
    parser.add_argument("--sides", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS)[:2])
    parser.add_argument("--rounds", type=int, default=7, help="turns of each side")
    parser.add_argument("--steps", type=int, default=3, help="optimizer steps in a turn")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--quick", action="store_true", help="a tiny model in fp32, to check that all runs")
    given = parser.parse_args()
    if given.quick:
        given.shape, given.precision, given.rounds, given.steps = ["tiny"], ["fp32"], 2, 1
    for library in LIBRARIES:
        if importlib.util.find_spec(library) is None:
            raise ModuleNotFoundError(name=library)
    versions = {name: importlib.metadata.version(name) for name in LIBRARIES}
    print(json.dumps({"benchmark": "tuning", **machine(), "threads": given.threads, **versions}), flush=True)
    groups = []
    for shape in given.shape:
        with tempfile.TemporaryDirectory(prefix="wordloom-tuning-") as folder:
            groups += list(compare(shape, given, Path(folder)))
    print(table(groups))


if __name__ == "__main__":
    in_one_line(main)

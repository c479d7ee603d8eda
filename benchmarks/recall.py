"""How far back a model recalls: accuracy by distance for full attention, a band, and both mixed.

Each document is a letter, then a number of dots, then a question mark and the letter again.  The letter after
the question mark can be predicted only from the first, ``distance`` tokens before.  A band of W in each of L
layers lets a token see at most L (W - 1) tokens back.  One JSON line for each model, then a picture.

    python benchmarks/recall.py [--attention full band:16 ...] [--layers 4] [--steps 1500] [--plot FILE]
"""

from __future__ import annotations

import argparse
import json
import math
import random
import string
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from entry import in_one_line

ATTENTION = ["full", "band:16", "band:16*3,full", "band:16+global:1", "dilated:16:4", "performer:64"]
LONGEST = 110
RECIPE = """
seed = {seed}
[data]
train = "{folder}/train.jsonl"
validation = "{folder}/validation.jsonl"
document_mask = true
[tokenizer]
kind = "char"
[model]
family = "llama"
dim = 64
n_layers = {layers}
n_heads = 4
max_seq_len = 512
norm_eps = 1e-5
attention = "{attention}"
[train]
steps = {steps}
seq_len = 512
batch_size = 8
optimizer = "adamw"
learning_rate = 2e-3
warmup_steps = 50
evaluate_every = {steps}
evaluate_windows = 8
sample_every = 0
"""


def document(letter: str, distance: int) -> str:
    """Return a text whose last letter stands ``distance`` tokens behind the first."""
    return letter + "." * (distance - 2) + "?" + letter


def documents(rng: random.Random, n: int) -> Iterator[str]:
    for _ in range(n):
        # as many of 2 to 4 as of 50 to 100: a narrow band must have something to learn from
        distance = round(2 ** rng.uniform(1, math.log2(LONGEST - 2)))
        yield document(rng.choice(string.ascii_uppercase), distance)


def accuracy(folder: Path) -> dict[int, float]:
    """Return by distance how many of the 26 letters the model recalls."""
    import torch

    from wordloom import load

    lm = load(folder)
    found = {}
    for distance in range(2, LONGEST - 1):
        ids = [lm.text_tokenizer.encode(document(letter, distance)).ids for letter in string.ascii_uppercase]
        tokens = torch.tensor(ids)  # [26, distance + 1]
        with torch.inference_mode():
            logits = lm.model(tokens[:, :-1])[:, -1]  # [26, V]
        found[distance] = float((logits.argmax(dim=-1) == tokens[:, -1]).float().mean())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--attention", nargs="+", default=ATTENTION, help="patterns; default: all of the table"
    )
    parser.add_argument("--layers", type=int, default=4, help="default: 4")
    parser.add_argument("--steps", type=int, default=1500, help="training steps; default: 1,500")
    parser.add_argument("--seed", type=int, default=1337, help="of texts and models; default: 1337")
    parser.add_argument("--plot", type=Path, help="draw into this .png, .svg or .pdf file")
    asked = parser.parse_args()
    from wordloom.run import train

    rng, found = random.Random(asked.seed), {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part, n in (("train", 40_000), ("validation", 500)):
            lines = [json.dumps({"text": text}) for text in documents(rng, n)]
            (folder / f"{part}.jsonl").write_text("\n".join(lines) + "\n")
        for attention in asked.attention:
            recipe = folder / "recall.toml"
            recipe.write_text(RECIPE.format(
                folder=folder, attention=attention, layers=asked.layers, steps=asked.steps,
                seed=asked.seed,
            ))  # fmt: skip
            run = train(recipe, out=folder / "run", force=True)
            found[attention] = accuracy(run.folder)
            line: dict[str, Any] = {"attention": attention, "layers": asked.layers, "steps": asked.steps}
            for first in range(1, LONGEST, 15):
                part = {d: share for d, share in found[attention].items() if first <= d < first + 15}
                line[f"{min(part)} to {max(part)}"] = round(sum(part.values()) / len(part), 3)
            print(json.dumps(line), flush=True)
    if asked.plot is not None:
        draw(asked.plot, found)


def draw(path: Path, found: dict[str, dict[int, float]]) -> None:
    """Draw a panel for each kind of attention: equal curves would hide one another."""
    from wordloom.inspect import figures

    def figure() -> Any:
        made = figures.new_figure((6.8, 0.75 * len(found) + 0.6))
        panels = made.subplots(len(found), 1, sharex=True, squeeze=False)[:, 0]
        for i, (panel, (attention, shares)) in enumerate(zip(panels, found.items(), strict=True)):
            panel.fill_between(list(shares), list(shares.values()), step="mid", color=figures.COLOURS[i])
            panel.axhline(1 / 26, color=figures.INK, linewidth=0.8, linestyle=":")
            panel.set_ylim(0, 1.05)
            panel.set_yticks([0, 1], ["0", "1"], fontsize=figures.FONT - 1)
            panel.set_title(attention, loc="left", pad=2, **figures.NAME)
            panel.tick_params(labelsize=figures.FONT - 1)
            figures.hide_frame(panel)
        panels[-1].set_xlabel("distance in tokens (dotted: by chance)", fontsize=figures.FONT)
        made.supylabel("share of letters recalled", fontsize=figures.FONT)
        return made

    figures.save_figure(figure, [], path)


if __name__ == "__main__":
    in_one_line(main)

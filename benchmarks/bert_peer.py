"""Train transformers' BertForPreTraining as a Wordloom recipe trains, as a baseline for its scores.

    python benchmarks/bert_peer.py [RECIPE] [SETTING=VALUE ...] --out FOLDER

The baseline starts from the same weights and reads the same batches in the same order for the same steps.
AdamW (``train.optimizer=adamw`` if the recipe uses another optimizer), learning rates, clipping, precision
and allocator have the same settings.  The forward pass, the loss (with the head on every token, as
transformers documents it) and dropout are those of transformers.

``--masked-only`` applies transformers' head to the masked tokens only, which takes about two thirds of the
time.  Without dropout, the benchmark checks at the first step and at each evaluation that the loss is equal.

Every ``train.evaluate_every`` steps and at the end, Wordloom loads the folder and scores it as it scores its
own runs, with a JSON line each.  The Wordloom side is ``wordloom train RECIPE ...``.  The last line reports
how far the gradients of both sides are from the gradients in float64.

The state is saved to FOLDER every ``train.save_every`` steps, and a stopped run continues from there.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from entry import in_one_line
from torch import nn

from wordloom.objectives import objective
from wordloom.progress import TrainingProgress
from wordloom.recipe import load_recipe
from wordloom.run.tasks.masked import masked_task
from wordloom.training.allocator import tune_allocator
from wordloom.training.precision import choose_device, choose_precision
from wordloom.training.schedules import learning_rate_share
from wordloom.weights import load_model, renaming_of


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe", nargs="?", default="bert-mini-gutenberg")
    parser.add_argument("settings", nargs="*", metavar="SETTING=VALUE")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--masked-only", action="store_true", help="apply their head to masked tokens only")
    given = parser.parse_args()
    recipe = load_recipe(given.recipe, given.settings)
    s = recipe.train
    if s.objective != "masked_lm+next_sentence" or s.steps is None or s.micro_batch_size is not None:
        parser.error(
            'the recipe needs train.objective "masked_lm+next_sentence", train.steps, no micro-batches'
        )
    if s.optimizer != "adamw":
        parser.error(f"it trains with AdamW, the recipe with {s.optimizer}: give train.optimizer=adamw")
    if s.allocator == "tuned":
        tune_allocator()  # as Wordloom's runs do
    task = masked_task(recipe, None, TrainingProgress())
    model = their_model(task, given.out)
    autocast = choose_precision(s, choose_device("cpu")).autocast
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": s.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
        lr=s.learning_rate, betas=(s.beta1, s.beta2), eps=s.epsilon, fused=True,
    )  # fmt: skip
    dropout = model.config.hidden_dropout_prob or model.config.attention_probs_dropout_prob
    state = given.out / "state.pt"
    done = 0
    if state.exists():
        kept = torch.load(state, weights_only=True)
        done = kept["step"]
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
    began, since = time.perf_counter(), done
    for step in range(done, s.steps):
        torch.manual_seed(step)  # for dropout: a resumed run equals one that was not stopped
        for group in optimizer.param_groups:
            group["lr"] = s.learning_rate * learning_rate_share(step, s.steps, s)
        batch: Any = task.batches.batch(step * s.batch_size, s.batch_size)
        with autocast():
            loss = loss_at_hidden(model, batch) if given.masked_only else their_loss(model, batch)
        held = step == done or (s.evaluate_every and step % s.evaluate_every == 0)
        if given.masked_only and held and not dropout:
            with torch.no_grad(), autocast():
                torch.testing.assert_close(loss.detach(), their_loss(model, batch), rtol=1e-4, atol=1e-4)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), s.clip)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % s.log_every == 0:
            print(f"step {step:,}/{s.steps:,}  loss {loss.item():.4f}  "
                  f"{(time.perf_counter() - began) / (step - since):.3f} s a step", flush=True)  # fmt: skip
        if (s.evaluate_every and step % s.evaluate_every == 0) or step == s.steps:
            scored = {"step": step, **scores(task, model, given.out / "model")}
            print(json.dumps(scored), flush=True)
        if (s.save_every and step % s.save_every == 0) or step == s.steps:
            fresh = state.with_suffix(".new")
            torch.save(
                {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, fresh
            )
            fresh.replace(state)
    if not dropout:
        batch = task.batches.batch(s.steps * s.batch_size, s.batch_size)
        print(json.dumps(gradient_errors(given.out / "model", batch)), flush=True)


def their_model(task: Any, folder: Path) -> Any:
    """Return BertForPreTraining with the initial weights of the Wordloom run."""
    import transformers

    begin = folder / "begin"
    if not begin.exists():
        task.save(task.build_model(), begin, False)
    return transformers.BertForPreTraining.from_pretrained(begin, attn_implementation="sdpa").train()


def their_loss(model: Any, batch: Any) -> torch.Tensor:
    """Return the loss [] of transformers, whose head reads every token; unmasked tokens are then ignored."""
    loss: torch.Tensor = model(
        input_ids=batch.tokens, token_type_ids=batch.segments, attention_mask=batch.attend,
        labels=batch.targets, next_sentence_label=(~batch.is_next).long(),
    ).loss  # fmt: skip
    return loss


def loss_at_hidden(model: Any, batch: Any) -> torch.Tensor:
    """Return the loss [] of transformers' modules with the head on masked tokens only."""
    hidden, pooled = model.bert(
        input_ids=batch.tokens, token_type_ids=batch.segments, attention_mask=batch.attend, return_dict=False
    )[:2]
    asked = batch.targets != -100
    logits, follows = model.cls(hidden[asked], pooled)
    cross_entropy = nn.functional.cross_entropy
    return cross_entropy(_full(logits), batch.targets[asked]) + cross_entropy(
        _full(follows), (~batch.is_next).long()
    )


def _full(logits: torch.Tensor) -> torch.Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()


def gradient_errors(folder: Path, batch: Any) -> dict[str, float]:
    """Return ``|gradient - exact| / |exact|`` over all parameters; ``exact`` is transformers' in float64."""
    import transformers

    ours = load_model(folder).train()
    loss = objective("masked_lm+next_sentence")(ours, batch)
    (loss.total / loss.count).sum().backward()
    made = {name: p.grad for name, p in ours.named_parameters() if p.grad is not None}
    made["lm_head.weight"] = made["token_embedding.weight"]
    renamed = renaming_of(ours.config).to_theirs(made)
    models = [
        transformers.BertForPreTraining.from_pretrained(folder, attn_implementation="sdpa").to(dtype).train()
        for dtype in (torch.float32, torch.float64)
    ]
    for model in models:
        loss_at_hidden(model, batch).backward()
    theirs, exact = (
        {name: p.grad for name, p in model.named_parameters() if p.grad is not None} for model in models
    )
    assert renamed.keys() >= exact.keys()

    def error(found: Any) -> float:
        squares = [((found[name].double() - g).square().sum(), g.square().sum()) for name, g in exact.items()]
        apart, whole = (torch.stack(some).sum().sqrt() for some in zip(*squares, strict=True))
        return float(apart / whole)

    return {"our_gradient_error": error(renamed), "their_gradient_error": error(theirs)}


def scores(task: Any, model: Any, folder: Path) -> dict[str, float]:
    """Return the scores on the recipe's validation text of ``model``, loaded from transformers' folder."""
    model.save_pretrained(folder)
    ours = load_model(folder)
    with torch.no_grad():
        found: dict[str, float] = task.evaluate(ours)
    return found


if __name__ == "__main__":
    in_one_line(main)

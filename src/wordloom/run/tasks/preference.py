"""Preference tuning in a training run: direct preference optimisation (Rafailov et al. 2023).

The reference is the model that the run starts from.  Its log-probabilities are computed once, before the
first step, so that training holds one model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wordloom.data.batches.causal import IGNORE, to_device
from wordloom.data.batches.conversations import ConversationRows, TooLong, conversation_rows, nothing_left
from wordloom.data.batches.preferences import PreferenceBatches
from wordloom.data.ledgers import RowDigest, RowLedger
from wordloom.data.rows.conversations import Conversation, Preference, preferences
from wordloom.errors import DataError, RecipeError
from wordloom.evaluate.reading import tokenizer_name
from wordloom.models.building.cost import flops_per_token
from wordloom.models.building.lora import adapter_names, choose_adapter
from wordloom.nn.evaluating import evaluating
from wordloom.objectives import Preference as PreferenceObjective
from wordloom.objectives import answer_logprobs
from wordloom.progress import TrainingProgress
from wordloom.recipe import Recipe
from wordloom.recipe.data import PreferenceData
from wordloom.run.prepare import divided, joined_fingerprint, ledger_json
from wordloom.run.tasks.building import new_model, set_up_causal
from wordloom.run.tasks.conversing import (
    chat_config,
    chat_tokenizer,
    end_ids,
    question_text,
    template_signature,
    with_system_message,
)
from wordloom.run.tasks.task import Task
from wordloom.text import Tokenizer
from wordloom.text.chat import ChatIds, ChatTemplate, encode_chat, end_of_turn, template_of
from wordloom.training import Trainer
from wordloom.training.plan import Costs
from wordloom.training.ranks import Ranks
from wordloom.weights import load_model, save_model


@dataclass(frozen=True)
class _Part:
    """The pairs of one part, as batches, and the report on them."""

    batches: PreferenceBatches
    ledger: RowLedger


def preference_task(recipe: Recipe, start: Path | None, progress: TrainingProgress) -> Task:
    """Return the task of preferring answers as the recipe's records do.

    ``start`` is the checkpoint to begin with, whose model is the reference.
    """
    s = recipe.train
    left_out = Counter[str]()
    read = preferences_of(recipe, left_out)
    progress.say(f"{count:,} {what}" for what, count in left_out.items())
    messages = (message for row in read["train"] for message in (*row.prompt, row.chosen))
    tokenizer = chat_tokenizer(recipe, start, messages, progress)
    template = template_of(tokenizer)
    parts = {part: _read(recipe, tokenizer, template, rows, part) for part, rows in read.items()}
    for each in parts.values():
        progress.say(each.ledger.lines())
    config = chat_config(recipe, tokenizer, start)
    generation = {"eos_token_id": end_ids(tokenizer, end_of_turn(tokenizer, template))}
    validation = parts.get("validation")
    goal = PreferenceObjective(s.beta)

    def set_up(trainer: Trainer) -> str:
        words = set_up_causal(trainer, s, masked=False)
        with _reference(trainer, Path(str(recipe.start_from)), tokenizer) as model:
            for part in parts.values():
                _fill(model, part.batches, trainer)
        return f"{words}; the reference is {recipe.start_from}"

    return Task(
        settings=s,
        batches=parts["train"].batches,
        fingerprints={
            "data": joined_fingerprint(part.batches.fingerprint for part in parts.values()),
            "tokenizer": tokenizer.fingerprint,
        },
        ledger=ledger_json(parts),
        build_model=lambda: new_model(recipe, config, start, progress, extra_tokens=True),
        set_up=set_up,
        evaluate=None if validation is None else partial(_metrics, goal=goal, batches=validation.batches),
        scored={} if validation is None else _signature(recipe, tokenizer, template, validation),
        objective=goal,
        save=partial(save_model, tokenizer=tokenizer, generation=generation),
        tokenizer=tokenizer,
        generation=generation,
        costs=_costs(config, parts["train"].batches),
    )


def preferences_of(recipe: Recipe, left_out: Counter[str]) -> dict[str, list[Preference]]:
    """Return the preferences of the recipe by part; ``left_out`` counts those with two equal answers."""

    def text(row: Preference) -> str:
        return question_text(row.prompt)

    reader = _reader(recipe.data_as(PreferenceData), left_out)
    return divided(recipe, reader, "preferences", text=text, left_out=left_out)


def _reader(d: PreferenceData, left_out: Counter[str]) -> Callable[[Any], list[Preference]]:
    """Return the function that reads the preferences of a source, with the recipe's system message."""
    return lambda sources: [
        each._replace(prompt=with_system_message(each.prompt, d.system))
        for each in preferences(sources, encoding_errors=d.row_errors, counts=left_out)
    ]


def last_answer(chat: ChatIds) -> ChatIds:
    """Return ``chat`` with its last answer scored alone: the earlier ones belong to both sides of a pair."""
    last = max((i for i, scored in enumerate(chat.scored) if scored), default=-1)
    before = max((i for i in range(last) if not chat.scored[i]), default=-1)
    return ChatIds(chat.ids, [before < i <= last for i in range(len(chat.ids))])


def _read(
    recipe: Recipe, tokenizer: Tokenizer, template: ChatTemplate, found: Sequence[Preference], part: str
) -> _Part:
    """Return a part as batches; those of the training part are permuted."""
    s, d = recipe.train, recipe.data_as(PreferenceData)

    @cache
    def encode(conversation: Conversation) -> ChatIds:
        return last_answer(encode_chat(tokenizer, template, conversation.messages, place=conversation.place))

    pairs, left_out = _different(encode, found, s.seq_len, d.too_long)
    if not pairs and left_out["equal"]:
        raise DataError(
            f"none of the {len(found):,} preferences of the {part} part is left: {left_out['equal']:,} have "
            "two answers that the template or the truncation makes equal, and "
            f"{left_out['left_out']:,} are longer than train.seq_len; give others"
        )
    if not pairs:
        raise nothing_left("preference", len(found), s.seq_len)
    settings: dict[str, Any] = {"longest": s.seq_len, "too_long": d.too_long, "unknown": tokenizer.unk_id}
    sides = [conversation_rows(encode, side, **settings) for side in zip(*pairs, strict=True)]
    batches = PreferenceBatches(
        *sides,
        pad_id=tokenizer.pad_id or 0,
        seed=recipe.seed,
        order="permutation" if part == "train" else "sequential",
        alike=s.batch_size if part == "train" else 1,
    )
    digest = RowDigest(
        [[list(message) for message in (*each.prompt, each.chosen, each.rejected)] for each in found]
    )
    return _Part(batches, _ledger(sides, part, left_out, str(digest)))


def _different(
    encode: Callable[[Conversation], ChatIds], found: Sequence[Preference], longest: int, too_long: TooLong
) -> tuple[list[tuple[Conversation, Conversation]], dict[str, int]]:
    """Return the pairs of conversations whose ids differ, and the numbers of those left out, by reason.

    Of a pair that is too long and truncated, the first ``longest`` inputs are compared.
    """
    pairs = []
    left_out = {"left_out": 0, "equal": 0}
    stop = longest + 1 if too_long == "cut" else None
    for each in found:
        chosen = Conversation((*each.prompt, each.chosen), each.place)
        rejected = Conversation((*each.prompt, each.rejected), each.place)
        one, other = encode(chosen), encode(rejected)
        if too_long == "drop" and max(len(one.ids), len(other.ids)) - 1 > longest:
            left_out["left_out"] += 1
        elif one.ids[:stop] == other.ids[:stop] and any(one.scored[1:stop]):
            left_out["equal"] += 1
        else:
            pairs.append((chosen, rejected))
    return pairs, left_out


def _ledger(
    sides: Sequence[ConversationRows], part: str, left_out: Mapping[str, int], digest: str
) -> RowLedger:
    return RowLedger(
        part=part,
        rows=len(sides[0].places),
        terms=sum(len(side.tokens.ids) for side in sides),
        unknown=sum(side.tokens.unknown for side in sides),
        cut=sum(side.tokens.cut for side in sides),
        text=digest,
        noun="preferences",
        counts={"scored": sum(int(side.scored.sum()) for side in sides), **left_out},
    )


@contextmanager
def _reference(trainer: Trainer, start: Path, tokenizer: Tokenizer) -> Iterator[Any]:
    """Yield the model that the run starts from: the base of an adapter, or a second model for a while."""
    names = adapter_names(trainer.model)
    if names:
        choose_adapter(trainer.model, None)
        try:
            with evaluating(trainer.model), trainer.gathered():
                yield trainer.model
        finally:
            choose_adapter(trainer.model, names[0])
        return
    model: Any = load_model(start, dtype=torch.float32).to(trainer.device)
    if model.config.vocab_size < tokenizer.vocab_size:
        raise RecipeError(
            f"the template adds tokens that the reference {start} does not have; tune it on instructions in "
            "this template first"
        )
    yield model.eval()


@torch.no_grad()
def _fill(model: Any, batches: PreferenceBatches, trainer: Trainer) -> None:
    """Compute the reference's log-probabilities of all answers."""
    for rows in batches.passes():
        batch = to_device(batches.pairs(rows), trainer.device)
        with trainer.precision.autocast():
            found = answer_logprobs(model, batch.tokens, batch.targets)
        batches.reference[rows] = found.view(2, -1).T.float().cpu().numpy()


@torch.no_grad()
def _metrics(
    model: Any, ranks: Ranks, goal: PreferenceObjective, batches: PreferenceBatches
) -> dict[str, float]:
    """Return the loss, the share of pairs whose preferred answer has the higher reward, the mean margin, and
    the loss of a token of the preferred answers."""
    device = next(model.parameters()).device

    def sums(rows: NDArray[np.int64]) -> Tensor:
        batch = to_device(batches.pairs(rows), device)
        logprobs = answer_logprobs(model, batch.tokens, batch.targets)
        margins = goal.margins(logprobs, batch)
        preferred = len(rows)
        return torch.tensor([
            float(-torch.nn.functional.logsigmoid(margins).sum()),
            float((margins > 0).sum()),
            float(margins.sum()),
            float(-logprobs[:preferred].sum()),
            float((batch.targets[:preferred] != IGNORE).sum()),
        ], dtype=torch.float64)  # fmt: skip

    own, others = ranks.divided(list(batches.passes()))
    for rows in others:
        sums(rows)
    total = ranks.summed(sum(map(sums, own), torch.zeros(5, dtype=torch.float64)))
    loss, right, margin, nats, tokens = total.tolist()
    pairs = batches.samples_per_epoch
    return {
        "loss": loss / pairs,
        "reward_accuracy": right / pairs,
        "reward_margin": margin / pairs,
        "answer_loss": nats / tokens,
    }


def _signature(
    recipe: Recipe, tokenizer: Tokenizer, template: ChatTemplate, validation: _Part
) -> dict[str, object]:
    return {
        "data": validation.batches.fingerprint[:8],
        "text": validation.ledger.text,
        "tok": tokenizer_name(tokenizer),
        **template_signature(template),
        "beta": recipe.train.beta,
        "max": recipe.train.seq_len,
    }


def _costs(config: Any, batches: PreferenceBatches) -> Costs:
    tokens = batches.tokens_per_sample
    flops = flops_per_token(config, context=max(1, round(tokens / 2))).training
    return Costs(flops_per_token=flops, tokens_per_sample=tokens, dense=True)

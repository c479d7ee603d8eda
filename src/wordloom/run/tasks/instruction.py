"""Instruction tuning in a training run: conversations in a chat template, with the loss on answers alone.

Ouyang et al. 2022, section 3.2 (arXiv:2203.02155); Taori et al. 2023 (Alpaca).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from wordloom.data.batches.conversations import ConversationBatches, ConversationRows, conversation_rows
from wordloom.data.ledgers import RowDigest, RowLedger, counted
from wordloom.data.rows.conversations import Conversation, conversations
from wordloom.evaluate.reading import tokenizer_name
from wordloom.generate import Sampling, complete
from wordloom.models.building.cost import flops_per_token
from wordloom.objectives import objective
from wordloom.progress import TrainingProgress
from wordloom.recipe import Recipe
from wordloom.recipe.data import InstructionData
from wordloom.run.prepare import divided, joined_fingerprint, ledger_json
from wordloom.run.tasks.building import (
    new_model,
    set_up_causal,
)
from wordloom.run.tasks.conversing import (
    chat_config,
    chat_tokenizer,
    end_ids,
    question_text,
    template_signature,
    with_system_message,
)
from wordloom.run.tasks.task import Task, mean_loss
from wordloom.text import Tokenizer
from wordloom.text.chat import (
    ChatIds,
    ChatTemplate,
    Message,
    encode_chat,
    end_of_turn,
    template_of,
)
from wordloom.training.plan import Costs
from wordloom.training.ranks import Ranks
from wordloom.weights import save_model


@dataclass(frozen=True)
class _Part:
    """The conversations of one part, as batches, and the report on them."""

    batches: ConversationBatches
    ledger: RowLedger
    conversations: Sequence[Conversation]

    @property
    def fingerprint(self) -> str:
        return self.batches.fingerprint


def instruction_task(recipe: Recipe, start: Path | None, progress: TrainingProgress) -> Task:
    """Return the task of answering as the recipe's conversations do; ``start`` is a checkpoint to begin with.

    The tokenizer gets the chat template, and the tokens of a shipped template that it lacks.
    """
    s, d = recipe.train, recipe.data_as(InstructionData)
    read = conversations_of(recipe)
    tokenizer = chat_tokenizer(recipe, start, _messages(read["train"]), progress)
    template = template_of(tokenizer)
    end = end_of_turn(tokenizer, template)
    parts = {part: _read(recipe, tokenizer, template, rows, part) for part, rows in read.items()}
    for each in parts.values():
        progress.say(each.ledger.lines())
    batches = parts["train"].batches
    if d.packing:
        progress.say(
            f"packing     {counted(len(batches.rows.places), 'conversations')} in "
            f"{counted(batches.samples_per_epoch, 'windows')} of {s.seq_len:,} tokens; "
            f"{batches.packed_share:.1%} of the positions hold tokens"
        )
    config = chat_config(recipe, tokenizer, start)
    validation = parts.get("validation")
    generation = {"eos_token_id": end_ids(tokenizer, end)}
    return Task(
        settings=s,
        batches=batches,
        fingerprints={
            "data": joined_fingerprint(part.fingerprint for part in parts.values()),
            "tokenizer": tokenizer.fingerprint,
        },
        ledger=ledger_json(parts),
        build_model=lambda: new_model(recipe, config, start, progress, extra_tokens=True),
        set_up=lambda trainer: set_up_causal(trainer, s, masked=d.packing),
        evaluate=None if validation is None else _evaluation(tokenizer, validation),
        scored={} if validation is None else _signature(recipe, tokenizer, template, validation),
        sample=_sampler(recipe, tokenizer, template, end, (validation or parts["train"]).conversations),
        save=partial(save_model, tokenizer=tokenizer, generation=generation),
        tokenizer=tokenizer,
        generation=generation,
        costs=_costs(config, batches, s.seq_len if d.packing else None),
    )


def conversations_of(recipe: Recipe) -> dict[str, list[Conversation]]:
    """Return the conversations of the recipe by part: "train", and "validation" if some are held out."""

    def text(row: Conversation) -> str:
        return question_text(row.messages)

    return divided(recipe, _reader(recipe.data_as(InstructionData)), "conversations", text=text)


def _messages(rows: Sequence[Conversation]) -> Iterator[Message]:
    return (message for row in rows for message in row.messages)


def _reader(d: InstructionData) -> Callable[[Any], list[Conversation]]:
    """Return the function that reads the conversations of a source, with the recipe's system message."""
    return lambda sources: [
        each._replace(messages=with_system_message(each.messages, d.system))
        for each in conversations(sources, encoding_errors=d.row_errors)
    ]


def _read(
    recipe: Recipe, tokenizer: Tokenizer, template: ChatTemplate, found: Sequence[Conversation], part: str
) -> _Part:
    """Return a part as batches; those of the training part are permuted."""
    s, d = recipe.train, recipe.data_as(InstructionData)

    def encode(conversation: Conversation) -> ChatIds:
        return encode_chat(tokenizer, template, conversation.messages, place=conversation.place)

    rows = conversation_rows(encode, found, longest=s.seq_len, too_long=d.too_long, unknown=tokenizer.unk_id)
    batches = ConversationBatches(
        rows,
        seq_len=s.seq_len if d.packing else None,
        pad_id=tokenizer.pad_id or 0,
        seed=recipe.seed,
        order="permutation" if part == "train" else "sequential",
        alike=s.batch_size if part == "train" else 1,
    )
    digest = RowDigest([[list(message) for message in each.messages] for each in found])
    return _Part(batches, _ledger(rows, part, str(digest)), found)


def _ledger(rows: ConversationRows, part: str, digest: str) -> RowLedger:
    return RowLedger(
        part=part,
        rows=len(rows.places),
        terms=len(rows.tokens.ids),
        unknown=rows.tokens.unknown,
        cut=rows.tokens.cut,
        text=digest,
        noun="conversations",
        counts={
            "scored": int(rows.scored.sum()),
            "left_out": rows.dropped,
            "empty_answers": rows.empty,
        },
    )


def _evaluation(tokenizer: Tokenizer, validation: _Part) -> Callable[[Any, Ranks], dict[str, float]]:
    """Return the function that scores the answers of the validation part."""
    rows, lengths = validation.batches.rows, tokenizer.byte_lengths()
    ids = rows.tokens.ids[rows.scored]

    def evaluate(model: Any, ranks: Ranks) -> dict[str, float]:
        spans = list(validation.batches.passes())
        loss = mean_loss(model, objective("instruction"), validation.batches, spans, ranks)
        metrics = {"loss": loss}
        if lengths is not None and (n_bytes := int(lengths[ids].sum())):
            metrics["bits_per_byte"] = loss * len(ids) / math.log(2) / n_bytes
        return metrics

    return evaluate


def _signature(
    recipe: Recipe, tokenizer: Tokenizer, template: ChatTemplate, validation: _Part
) -> dict[str, object]:
    return {
        "data": validation.fingerprint[:8],
        "text": validation.ledger.text,
        "tok": tokenizer_name(tokenizer),
        **template_signature(template),
        "max": recipe.train.seq_len,
        "too_long": recipe.data_as(InstructionData).too_long,
        "scored": "answers",
    }


def _sampler(
    recipe: Recipe, tokenizer: Tokenizer, template: ChatTemplate, end: int, rows: Sequence[Conversation]
) -> Callable[[Any], str]:
    """Return the function that answers train.sample_prompt, or else the first question of ``rows``."""
    s = recipe.train
    messages = rows[0].messages[:-1]
    if "sample_prompt" in s.model_fields_set:
        system = recipe.data_as(InstructionData).system
        messages = with_system_message((Message("user", s.sample_prompt),), system)
    ids = encode_chat(tokenizer, template, messages, prompt=True).ids
    sampling = Sampling(max_new_tokens=s.sample_tokens, seed=recipe.seed, past="slide")

    def sample(model: Any) -> str:
        (answer,) = complete(model, tokenizer, [ids], sampling, eos_ids=end_ids(tokenizer, end))
        return f"{messages[-1].content} -> {answer.text.strip()}"

    return sample


def _costs(config: Any, batches: ConversationBatches, seq_len: int | None) -> Costs:
    """Return the cost of a sample; attention reads half a conversation on average."""
    context = max(1, round(float(batches.rows.inputs.mean())))
    flops = flops_per_token(config, context=context).training
    tokens = batches.tokens_per_sample if seq_len is None else float(seq_len)
    return Costs(flops_per_token=flops, tokens_per_sample=tokens, dense=True)

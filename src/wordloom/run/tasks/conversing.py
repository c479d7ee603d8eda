"""The tokenizer, the config and the end of answers of a model that is trained on conversations."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from wordloom.data.ledgers import RowDigest
from wordloom.errors import ChatError
from wordloom.models import body_config, family_of
from wordloom.progress import TrainingProgress
from wordloom.recipe import Recipe
from wordloom.recipe.data import ChatData
from wordloom.run.prepare import recipe_tokenizer
from wordloom.run.tasks.building import (
    check_length,
    check_vocabulary_size,
    new_config,
    require_causal,
    takes_model_of_start,
    with_recipe_attention,
)
from wordloom.text import Tokenizer
from wordloom.text.chat import SHIPPED, ChatTemplate, Message, shipped_source
from wordloom.weights import load_config

_DEFAULT = "plain"  # the template of a tokenizer that has none


def chat_tokenizer(
    recipe: Recipe, start: Path | None, messages: Iterable[Message], progress: TrainingProgress
) -> Tokenizer:
    """Return the tokenizer of the checkpoint ``start`` or of the recipe, with the chat template."""
    name = recipe.data_as(ChatData).template
    if start is not None:
        tokenizer = Tokenizer.from_pretrained(start)
    else:
        texts = (message.content for message in messages)
        tokenizer = recipe_tokenizer(recipe, texts, progress, "conversations")
    if name is None and tokenizer.chat_template is not None:
        progress.say("template    that of the tokenizer")
        return tokenizer
    name = _DEFAULT if name is None else name
    tokenizer, further = with_template(tokenizer, name)
    progress.say(f"template    {name}" + (f", with new tokens {', '.join(further)}" if further else ""))
    return tokenizer


def with_template(tokenizer: Tokenizer, name: str) -> tuple[Tokenizer, list[str]]:
    """Return the tokenizer with the chat template ``name``, and the tokens that were added for it.

    ``name`` is one of :data:`~wordloom.text.chat.SHIPPED`, or a .jinja file.

    Raises ChatError for another name, and for a template that ends answers with a token that is missing.
    """
    source = shipped_source(name) if name in SHIPPED else _template_file(name)
    further = [token for token in SHIPPED.get(name, ()) if tokenizer.token_to_id(token) is None]
    tokenizer = tokenizer.with_chat_template(source, further)
    if tokenizer.eos_id is None and "eos_token" in source:
        raise ChatError(
            f"the chat template {name!r} ends answers with eos, and the tokenizer has no eos token; take "
            "chatml, whose tokens are added, or another tokenizer"
        )
    return tokenizer, further


def _template_file(name: str) -> str:
    path = Path(name).expanduser()
    if path.suffix != ".jinja" or not path.is_file():
        raise ChatError(
            f"the chat template {name!r} is neither one of Wordloom ({', '.join(SHIPPED)}) nor a .jinja "
            "file that exists"
        )
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ChatError(f"the chat template {name!r} cannot be read as UTF-8: {error}") from None


def template_signature(template: ChatTemplate) -> dict[str, object]:
    """Return a hash of the template, and the date that it writes if any, for the signature of a score."""
    found: dict[str, object] = {"template": str(RowDigest([template.source]))}
    if "strftime_now" in template.source:
        found["date"] = f"{template.now:%Y-%m-%d}"
    return found


def question_text(messages: Iterable[Message]) -> str:
    """Return the texts of the user, whose hash decides the part of a conversation (data.split)."""
    return "\x1f".join(message.content for message in messages if message.role == "user")


def chat_config(recipe: Recipe, tokenizer: Tokenizer, start: Path | None) -> Any:
    """Return the config of the model: that of ``start`` with room for further tokens, or a new one."""
    if takes_model_of_start(recipe, start):
        assert start is not None
        config = with_recipe_attention(recipe, body_config(load_config(start)))
        config = replace(config, vocab_size=max(config.vocab_size, tokenizer.vocab_size))
    else:
        config = new_config(recipe, tokenizer, recipe.train.seq_len)
    require_causal(config, recipe)
    recipe.check_family(family_of(config))
    check_length(config, recipe.train.seq_len)
    check_vocabulary_size(config, tokenizer)
    return config


def end_ids(tokenizer: Tokenizer, end: int) -> list[int]:
    """Return the ids that end generation: that of an answer, and eos."""
    return [end] if tokenizer.eos_id in (None, end) else [end, tokenizer.eos_id]


def with_system_message(messages: tuple[Message, ...], text: str | None) -> tuple[Message, ...]:
    """Return ``messages`` behind the system message ``text``, unless they have one or it is empty."""
    if not text or messages[0].role == "system":
        return messages
    return (Message("system", text), *messages)

"""Write into a folder's tokenizer files the special tokens that its model reads around texts."""

from __future__ import annotations

from typing import Any

from wordloom.data.batches.framed import Frame
from wordloom.errors import DataError
from wordloom.models import RobertaConfig, body_config, encodes
from wordloom.models.task_model import SUMMARIES, TaskConfig


def with_special_tokens(config: Any, tokenizer: Any) -> Any:
    """Return ``tokenizer``, with its ids, for the texts and pairs that the model of ``config`` reads.

    A tokenizer for an encoder that already states the special tokens around texts keeps them.  An encoder
    with one segment gets a tokenizer that puts both texts of a pair into it.  A causal model with a head
    reads special tokens between and after texts, which its original tokenizer does not add.
    """
    body = body_config(config)
    if not hasattr(tokenizer, "with_frame"):
        return tokenizer
    if encodes(body):
        roberta = isinstance(body, RobertaConfig)
        try:
            frame = Frame.of_encoder(tokenizer, doubled=roberta)
        except DataError:  # the tokenizer lacks special tokens that training would need
            pass
        else:
            segment = 0 if roberta or body.type_vocab_size == 1 else 1
            tokenizer = tokenizer.with_frame(frame.start, frame.between, frame.end, second_segment=segment)
        return tokenizer.with_one_segment() if body.type_vocab_size == 1 else tokenizer
    causal = _causal_frame(config, tokenizer)
    if causal is None:
        return tokenizer
    return tokenizer.with_frame(causal.start, causal.between, causal.end, instead=True)


def pads_with_end_token(config: Any, tokenizer: Any) -> bool:
    """Return whether a causal model's head reads a token that its tokenizer also pads with.

    Other tools look for the last token that is no padding, and would take the one before it.
    """
    frame = _causal_frame(config, tokenizer)
    return frame is not None and config.task in SUMMARIES and frame.end == (tokenizer.pad_id,)


def _causal_frame(config: Any, tokenizer: Any) -> Frame | None:
    """Return the special tokens around texts for a causal model with a head; None for any other model."""
    if not isinstance(config, TaskConfig) or config.encodes or not hasattr(tokenizer, "with_frame"):
        return None
    try:
        return Frame.of_causal(tokenizer)
    except DataError:  # the tokenizer has no end token
        return None

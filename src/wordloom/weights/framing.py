"""What a folder's tokenizer files tell other tools of the marks around texts: what the model here reads."""

from __future__ import annotations

from typing import Any

from wordloom.data.batches.framed_rows import Frame
from wordloom.errors import DataError
from wordloom.models import RobertaConfig, body_config, encodes
from wordloom.models.task_model import SUMMARIES, TaskConfig

__all__ = ["framed", "pads_with_its_end"]


def framed(config: Any, tokenizer: Any) -> Any:
    """``tokenizer``, with the same ids, as the model of ``config`` reads texts and pairs.

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
    marks = _marks_of_causal(config, tokenizer)
    if marks is None:
        return tokenizer
    return tokenizer.with_frame(marks.start, marks.between, marks.end, instead=True)


def pads_with_its_end(config: Any, tokenizer: Any) -> bool:
    """Whether a causal model of ``config`` answers on a token that its tokenizer also pads with: other tools,
    which look for the last token that is no padding, would take the one before it."""
    frame = _marks_of_causal(config, tokenizer)
    return frame is not None and config.task in SUMMARIES and frame.end == (tokenizer.pad_id,)


def _marks_of_causal(config: Any, tokenizer: Any) -> Frame | None:
    """What a causal model with a head reads around texts; None for any other model."""
    if not isinstance(config, TaskConfig) or config.encodes or not hasattr(tokenizer, "with_frame"):
        return None
    try:
        return Frame.of_causal(tokenizer)
    except DataError:  # one without an end
        return None

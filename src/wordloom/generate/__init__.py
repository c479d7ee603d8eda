"""Generation: from a trained model and a prompt to text, and the probabilities of given text.

decoder      rows that join, step and leave: one decoding loop for any model and cache
engine       sampling: ids in, ids out              beam      beam search
sampling     the settings, and functions on logits  settings  those asked for, the checkpoint's, the defaults
text         strings in and out, streamed           scoring   log-probabilities of ids
history      one row, turn after turn               speculation  drafts of the next tokens
conditioned  a SequenceToSequence with its sources read, which decodes as a CausalLM does
fast         compiled programs for CPUs
"""

from wordloom.generate.beam import Hypothesis, beam_search
from wordloom.generate.conditioned import Conditioned
from wordloom.generate.decoder import Decoder
from wordloom.generate.engine import Engine, Generation, Step, generate, steps
from wordloom.generate.history import History
from wordloom.generate.sampling import Sampling
from wordloom.generate.scoring import next_logprobs, score_ids, score_targets
from wordloom.generate.settings import Settings, settings
from wordloom.generate.text import (
    Completion,
    NextToken,
    Piece,
    Scored,
    complete,
    generate_text,
    next_tokens,
    score,
    stream,
    stream_ids,
    stream_text,
)

__all__ = [
    "Completion", "Conditioned", "Decoder", "Engine", "Generation", "History", "Hypothesis", "NextToken",
    "Piece", "Sampling", "Scored", "Settings", "Step", "beam_search", "complete", "generate", "generate_text",
    "next_logprobs", "next_tokens", "score", "score_ids", "score_targets", "settings", "steps", "stream",
    "stream_ids", "stream_text",
]  # fmt: skip

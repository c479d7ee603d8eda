"""Generation: from a trained model and a prompt to text, and what the model thinks of given text.

sampling  pure functions on logits, and the settings        engine   ids in, ids out, any model and cache
text      strings in and out, streamed, scored              scoring  log-probabilities of ids
settings  what was asked, the checkpoint's, our defaults    beam     beam search, any model and cache
conditioned  a SequenceToSequence with its sources read, as the engine and beam search take it
"""

from wordloom.generate.beam import Hypothesis, beam_search
from wordloom.generate.conditioned import Conditioned
from wordloom.generate.engine import Generation, Step, generate, steps
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
    "Completion",
    "Conditioned",
    "Generation",
    "Hypothesis",
    "NextToken",
    "Piece",
    "Sampling",
    "Scored",
    "Settings",
    "Step",
    "beam_search",
    "complete",
    "generate",
    "generate_text",
    "next_logprobs",
    "next_tokens",
    "score",
    "score_ids",
    "score_targets",
    "settings",
    "steps",
    "stream",
    "stream_ids",
    "stream_text",
]

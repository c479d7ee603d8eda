"""Caches of decoding: keys and values of attention models, and the state of recurrent ones.

A cache has one length per row.  Rows join and leave between any two passes, and none is padded to the length
of another.  Every generative family decodes through one protocol::

    cache.lengths                   tokens that each row has passed through the model, [B]
    cache.layer(i)                  what layer i stores: keys and values, or a state
    cache.advance(tokens, attend)   new tokens have passed through every layer
    cache.select(rows)              keep these rows in this order; a row may be repeated
    cache.empty(batch, length)      a new cache for the same model
    cache.join(other)               add the rows of another cache behind
    cache.truncate(lengths)         forget all but each row's first tokens; states refuse
"""

from wordloom.nn.cache.keys_values import DecoderCache, KeyValueCache
from wordloom.nn.cache.layers import SPARE_PLACES, LayerCache, LayerKeyValues, LayerState
from wordloom.nn.cache.lengths import Cache, RowLengths
from wordloom.nn.cache.recurrent import RecurrentCache

__all__ = [
    "SPARE_PLACES", "Cache", "DecoderCache", "KeyValueCache", "LayerCache", "LayerKeyValues",
    "LayerState", "RecurrentCache", "RowLengths",
]  # fmt: skip

"""Looking inside a model: where its parameters are, what a token costs, what its heads attend to."""

from wordloom.inspect.attention import AttentionMap, attention_map
from wordloom.inspect.parameters import Component, KvCache, ParameterTable, parameter_table

__all__ = ["AttentionMap", "Component", "KvCache", "ParameterTable", "attention_map", "parameter_table"]

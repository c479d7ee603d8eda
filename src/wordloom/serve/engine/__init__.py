"""The engine: one thread that continues the texts of all requests to a model, a token of each at a time."""

from wordloom.serve.engine.engine import Engine, QueueFullError, StoppingError
from wordloom.serve.engine.request import Alternative, Failure, Request, Stream, Token

__all__ = [
    "Alternative", "Engine", "Failure", "QueueFullError", "Request", "StoppingError", "Stream", "Token",
]  # fmt: skip

"""A message of a chat."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

Role: TypeAlias = Literal["system", "user", "assistant"]
ROLES: tuple[Role, ...] = ("system", "user", "assistant")


class Message(NamedTuple):
    """One message of a chat.

    Attributes:
        role: who writes it.
        content: the text.
        input: a text that the instruction in ``content`` is about, as in Alpaca's records; ``""`` for none.
            A template that has no place for it gets it after the content.
    """

    role: Role
    content: str
    input: str = ""

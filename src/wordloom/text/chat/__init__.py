"""Chats: messages, the Jinja templates that write them as one text, and the ids of that text."""

from wordloom.text.chat.encoding import ChatIds, encode_chat, end_of_turn, template_of
from wordloom.text.chat.message import Message
from wordloom.text.chat.template import SHIPPED, ChatTemplate, shipped_source

__all__ = [
    "SHIPPED",
    "ChatIds",
    "ChatTemplate",
    "Message",
    "encode_chat",
    "end_of_turn",
    "shipped_source",
    "template_of",
]

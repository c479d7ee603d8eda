"""The sandbox in which chat templates run: transformers' rules, with a limit on the work of a rendering.

A template may come with someone else's folder.  It reaches nothing but the messages.  So that it can neither
run for hours nor fill the memory, the environment counts loop steps, calls, and the characters of all texts
that a rendering makes, and stops at a limit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import wraps
from typing import Any

from jinja2 import Template, TemplateError, nodes, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from wordloom.errors import ChatError

MOST_STEPS = 1_000_000
MOST_CHARACTERS = 200_000_000  # of all texts that a rendering makes
_LARGE = 10_000_000  # a number that no chat needs, such as the width of a column
_WIDE = re.compile(r"[%:.][<>^=+#0 -]*\d{7}")  # the width of a format, such as %9999999d


class Generation(Extension):
    """``{% generation %}`` ... ``{% endgeneration %}``: puts the block between two marks, if any are set."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 reads a set of the class
    marks = ("", "")

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

    def _marked(self, caller: Callable[[], str]) -> str:
        first, last = self.marks
        return f"{first}{caller()}{last}"

    @classmethod
    def occurs_in(cls, tree: nodes.Template) -> bool:
        """Return True if the template has such a block."""
        called = (block.call.node for block in tree.find_all(nodes.CallBlock))
        return any(isinstance(each, nodes.ExtensionAttribute) for each in called)


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment of transformers (whitespace rules, extensions, filters, functions), with limits.

    Attributes:
        now: the time that ``strftime_now`` writes.
    """

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self, now: datetime) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
        self.now = now
        self.filters["tojson"] = _tojson
        self.filters = {name: self._limited(name, each) for name, each in self.filters.items()}
        self.filters["counted"] = pass_context(lambda _, items: self._counted(items))
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda form: self.now.strftime(form)
        self.begin()

    def begin(self) -> None:
        """Begin a rendering, which has all steps and characters to spend."""
        self._steps, self._characters = MOST_STEPS, MOST_CHARACTERS

    @property
    def generation(self) -> Generation:
        """The extension of generation blocks."""
        return next(each for each in self.iter_extensions() if isinstance(each, Generation))

    def compiled(self, tree: nodes.Template) -> Template:
        """Return the template of ``tree``, which is changed so that its work is counted."""
        return self.from_string(_Counting(self).visit(tree))

    # -- the work that is counted ------------------------------------------------------------------------

    def _spend(self, steps: int = 0, characters: int = 0) -> None:
        """Take a cost from what the rendering has left; raises ChatError if it has less."""
        self._steps -= steps
        self._characters -= characters
        if self._steps < 0 or self._characters < 0:
            raise ChatError(
                "the chat template does more work than a chat needs; a rendering has at most "
                f"{MOST_STEPS:,} loop steps and calls, and makes at most {MOST_CHARACTERS:,} characters; "
                "correct the template or take another one"
            )

    def _counted(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self._steps -= 1
            if self._steps < 0:
                self._spend()
            yield item

    def concat(self, pieces: Iterable[str]) -> str:
        """Return the text of ``pieces``, as compiled templates join them."""
        found = list(pieces)
        self._spend(characters=sum(map(len, found)))
        return "".join(found)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Return the result of an operator, whose size is counted before it is computed."""
        if operator == "%" and isinstance(left, str):
            self._check("format", [left, *(right if isinstance(right, tuple) else [right])])
        self._spend(characters=_result_size(operator, left, right))
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return a safe form of ``str.format``, with the text that it formats."""
        wrapper: Any = super().wrap_str_format(value)
        if wrapper is not None:
            wrapper.__self__ = value.__self__
        return wrapper

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a function or method of the template."""
        if isinstance(function, LoopContext):  # of a recursive loop
            args = (self._counted(args[0]), *args[1:])
        text = getattr(function, "__self__", None)
        given = self._check(getattr(function, "__name__", ""), [text, *args], kwargs.values())[1:]
        return self._made(super().call(context, function, *given, **kwargs))

    def _limited(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a filter whose calls are counted."""
        first = int(hasattr(function, "jinja_pass_arg"))  # the text follows the context

        @wraps(function)
        def limited(*args: Any, **kwargs: Any) -> Any:
            given = self._check(name, list(args[first:]), kwargs.values())
            return self._made(function(*args[:first], *given, **kwargs))

        return limited

    def _made(self, result: Any) -> Any:
        self._spend(characters=_size(result))
        return result

    def _check(self, name: str, args: list[Any], further: Iterable[Any] = ()) -> list[Any]:
        """Count a call with the text ``args[0]``, and what it makes of it; return the arguments to take."""
        self._spend(1)
        if any(isinstance(value, int) and abs(value) > _LARGE for value in (*args, *further)):
            self._spend(characters=MOST_CHARACTERS + 1)
        text, *others = args
        if name == "format" and isinstance(text, str) and _WIDE.search(text):
            self._spend(characters=MOST_CHARACTERS + 1)
        elif name == "replace" and len(others) > 1:
            self._spend(characters=str(text).count(str(others[0])) * len(str(others[1])))
        elif name == "join":
            # of the method, the text is the separator; the filter has its items first
            at = 1 if isinstance(text, str) and others and not isinstance(others[0], str) else 0
            args[at] = items = list(self._counted(args[at]))
            separator = len(str(args[1 - at])) if len(args) > 1 else 0
            self._spend(characters=sum(_size(item) + separator for item in items))
        return args


class _Counting(NodeTransformer):
    """Counts the steps of loops, and turns ``a ~ b`` into a call of the filter ``join``."""

    def __init__(self, environment: Sandbox) -> None:
        self._environment = environment

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - the name that jinja2 looks for
        self.generic_visit(node)
        node.iter = self._filtered(node.iter, "counted")
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return self._filtered(nodes.List(node.nodes), "join")

    def _filtered(self, node: nodes.Node, name: str) -> nodes.Node:
        made = nodes.Filter(node, name, [], [], None, None).set_environment(self._environment)
        return made.set_lineno(node.lineno or 1, override=True)


def _size(value: Any) -> int:
    """Return the characters of a text, the items of a list, or the bits of a number."""
    if isinstance(value, str | bytes | list | tuple | dict):
        return len(value)
    return value.bit_length() if isinstance(value, int) else 0


def _result_size(operator: str, left: Any, right: Any) -> int:
    """Return the size that ``left operator right`` has at most."""
    if operator == "**":
        whole = isinstance(left, int) and isinstance(right, int)
        return _size(left) * abs(right) if whole else 0
    if operator == "*":
        for number, other in ((left, right), (right, left)):
            if isinstance(number, int) and not isinstance(other, int):
                return _size(other) * max(0, number)
    return _size(left) + _size(right)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    settings: dict[str, Any] = {"indent": indent, "separators": separators, "sort_keys": sort_keys}
    return json.dumps(value, ensure_ascii=ensure_ascii, **settings)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)

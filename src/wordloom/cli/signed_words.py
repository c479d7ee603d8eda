"""Arguments that may begin with a minus sign: ``king -man +woman``."""

from __future__ import annotations

from typing import Any

from wordloom.cli.help import HelpCommand

__all__ = ["SignedWords"]

_MINUS = "\N{MINUS SIGN}"  # an argument that begins with it is no option


class SignedWords(HelpCommand):
    """A command that reads ``-man`` as a word with a sign; its options have two dashes, except ``-h``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        takes_value = {
            name
            for parameter in self.params
            if parameter.param_type_name == "option" and not getattr(parameter, "is_flag", False)
            for name in parameter.opts
        }
        flags = {*ctx.help_option_names}
        taken: list[str] = []
        for place, argument in enumerate(args):
            if argument == "--":
                return super().parse_args(ctx, [*taken, *args[place:]])
            is_value = place > 0 and args[place - 1] in takes_value
            signed = argument[:1] == "-" and argument[1:2] not in ("", "-") and argument not in flags
            taken.append(_MINUS + argument[1:] if signed and not is_value else argument)
        return super().parse_args(ctx, taken)

"""``wordloom translate CHECKPOINT [FILE|-]``."""

from __future__ import annotations

import json as json_module
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import typer

from wordloom.cli import options
from wordloom.cli.generate import given_settings, print_note
from wordloom.cli.options import argument, option
from wordloom.cli.usage import refuse

if TYPE_CHECKING:
    from wordloom.data import Document

_EARLY: dict[str, Any] = {"true": True, "false": False, "never": "never"}


def command(
    ctx: typer.Context,
    checkpoint: options.CHECKPOINT,
    source: str = argument(
        "-",
        "A file with one text a line, or a .jsonl file.  [default: stdin]",
        metavar="FILE",
        show_default=False,
    ),
    field: options.FIELD = "text",
    beams: options.BEAMS = 5,
    length_penalty: options.LENGTH_PENALTY = 1.0,
    early_stopping: Literal["true", "false", "never"] = option(
        "false",
        "When to stop the beam search. true: as soon as --beams translations end. false: when a "
        "better one is unlikely. never: when a better one is impossible.",
    ),
    n_best: int = option(1, "How many translations of each text to print.", min=1),
    max_new_tokens: options.TRANSLATION_TOKENS = None,
    temperature: float | None = option(
        None, "Sample translations at this temperature instead of searching; 0 is greedy."
    ),
    top_k: options.TOP_K = None,
    top_p: options.TOP_P = None,
    seed: options.SEED = None,
    too_long: Literal["error", "split"] = option(
        "error",
        "Texts with more tokens than the model reads: report an error, or translate their sentences "
        "one by one.",
    ),
    batch_size: int = option(32, "How many texts to translate at once.", min=1),
    encoding_errors: options.ENCODING_ERRORS = "strict",
    device: options.DEVICE = "auto",
    dtype: options.DTYPE = "auto",
    json: options.JSON_LINES = False,
) -> None:
    """Translate texts, one a line, in order.

    An empty line stays empty. With --n-best each text becomes that many lines; lines are empty if the search
    found fewer translations. Lines from standard input are translated as they arrive.
    """
    from wordloom.data import documents

    sampling = given_settings(ctx, "temperature", "top_k", "top_p", "seed")
    if temperature is None:
        refuse(ctx, "without --temperature nothing is sampled", *sampling)
        how: dict[str, Any] = {"beams": beams, "length_penalty": length_penalty, "n_best": n_best,
                               "early_stopping": _EARLY[early_stopping],
                               "max_new_tokens": max_new_tokens}  # fmt: skip
    else:
        search = ("beams", "length_penalty", "early_stopping")
        refuse(ctx, "--temperature samples translations without a beam search", *search)
        how = {"sampling": _sampling(sampling, n_best, max_new_tokens)}

    from wordloom.run import Translator, load_as

    translator = load_as(Translator, checkpoint, device=device, dtype=dtype)
    pending: deque[Document] = deque()  # read, but not yet translated
    printed = 0

    def texts() -> Iterator[str]:
        reading: dict[str, Any] = {"separator": "line", "encoding_errors": encoding_errors}
        for document in documents([source], field=field, bytes_allowed=False, **reading):
            pending.append(document)
            yield str(document.text)

    translated = translator.translate(
        texts(),
        **how,
        overlong=too_long,
        batch_size=batch_size,
        live=source == "-" or source.startswith("-."),
        place=lambda number: _place(pending[number - printed - 1]),
    )
    for translations in translated:
        text = str(pending.popleft().text)
        printed += 1
        if json:
            results = [one._asdict() for one in translations]
            facts = {"source": text, "translations": results}
            print(json_module.dumps(facts, ensure_ascii=False), flush=True)
        else:
            lines = [one.line for one in translations]
            print("\n".join(lines + [""] * (n_best - len(lines))), flush=True)


def _sampling(settings: dict[str, Any], samples: int, max_new_tokens: int | None) -> Any:
    from wordloom.generate import Sampling
    from wordloom.generate.sampling import new_seed

    if "seed" not in settings:
        settings["seed"] = new_seed()
        print_note(f"seed {settings['seed']}")
    return Sampling(**settings, samples=samples, max_new_tokens=max_new_tokens)


def _place(document: Document) -> str:
    """Return the position of a text for an error message."""
    from wordloom.data.files.source import describe
    from wordloom.errors import position

    file = "standard input" if document.source == "-" else document.source
    plain = describe(document.source).format == "text"
    return position(file, document.index + 1, unit="line" if plain else "text")

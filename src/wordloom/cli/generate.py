"""``wordloom generate CHECKPOINT --prompt ...``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from wordloom.cli.options import (
    CHECKPOINT,
    DEVICE,
    DTYPE,
    MAX_NEW_TOKENS,
    PAST,
    SEED,
    TEMPERATURE,
    TOP_K,
    TOP_P,
)

if TYPE_CHECKING:
    from wordloom.generate import Completion
    from wordloom.run import LanguageModel

__all__ = ["command", "given_settings", "print_note", "start_now"]

Piece = TypeVar("Piece")

_FLAGS = {"stop_ids": "--stop-id"}  # flags that differ from the name of their setting


def command(
    checkpoint: CHECKPOINT,
    prompt: Annotated[
        list[str] | None,
        typer.Option(
            help="The text to continue; - reads standard input, without its last line break. Repeatable."
        ),
    ] = None,
    ids: Annotated[
        list[str] | None,
        typer.Option(help="Token ids to continue instead of text, such as 1,2,3. Repeatable."),
    ] = None,
    max_new_tokens: MAX_NEW_TOKENS = None,
    temperature: TEMPERATURE = None,
    top_k: TOP_K = None,
    top_p: TOP_P = None,
    min_p: Annotated[
        float | None,
        typer.Option(help="Sample from tokens at least p times as probable as the most probable one."),
    ] = None,
    repetition_penalty: Annotated[
        float | None, typer.Option(help="Make tokens that occurred before less probable; 1 is off.")
    ] = None,
    no_repeat_ngram: Annotated[
        int | None, typer.Option(help="Never repeat an n-gram of this many tokens.")
    ] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(help="Stop in front of this text; \\n is a line break. Repeatable."),
    ] = None,
    stop_id: Annotated[list[int] | None, typer.Option(help="Stop at this token id. Repeatable.")] = None,
    seed: SEED = None,
    samples: Annotated[
        int | None, typer.Option(help="How many continuations of each prompt.  [default: 1]")
    ] = None,
    past: PAST = None,
    score: Annotated[
        list[str] | None,
        typer.Option(help="Print the log-probability of this continuation instead. Repeatable."),
    ] = None,
    next_: Annotated[
        int | None, typer.Option("--next", help="Print the K most probable next tokens instead.")
    ] = None,
    specials: Annotated[
        str | None,
        typer.Option(
            help="Special tokens that occur in a prompt: refuse, text or interpret.  [default: refuse]"
        ),
    ] = None,
    echo: Annotated[
        bool | None,
        typer.Option("--echo/--no-echo", help="Print the prompt before its continuation.  [default: echo]"),
    ] = None,
    device: DEVICE = "auto",
    dtype: DTYPE = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Generate text: continue a prompt, score given continuations, or show the most probable next tokens."""
    from wordloom.errors import GenerationError
    from wordloom.run import LanguageModel, load_as

    if prompt and ids:
        raise GenerationError("give --prompt or --ids, not both")
    if score and next_ is not None:
        raise GenerationError("give --score or --next, not both")
    given = given_settings(
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        no_repeat_ngram=no_repeat_ngram,
        stop=tuple(text.replace("\\n", "\n") for text in stop or ()) or None,
        stop_ids=tuple(stop_id or ()) or None,
        seed=seed,
        samples=samples,
        past=past,
    )
    flags = [_FLAGS.get(name, "--" + name.replace("_", "-")) for name in given]
    if echo is not None:
        flags.append("--echo" if echo else "--no-echo")
    if flags and (score or next_ is not None):
        raise GenerationError(f"--score and --next sample nothing: leave out {', '.join(flags)}")
    if ids and (specials is not None or echo is not None):
        unused = "--specials" if specials is not None else flags[-1]
        raise GenerationError(f"--ids are not text and are not echoed: leave out {unused}")
    specials = specials or "refuse"
    lm = load_as(LanguageModel, checkpoint, device=device, dtype=dtype)
    prompts: list[Any]
    if ids:
        prompts = [_parsed_ids(text) for text in ids]
    elif lm.tokenizer is None:
        raise GenerationError(f"{checkpoint} has no tokenizer: give token ids, such as --ids 1,2,3")
    else:
        prompts = [sys.stdin.read().removesuffix("\n") if text == "-" else text for text in prompt or [""]]
    if score:
        result = _score(lm, prompts, score, specials, quiet=as_json)
    elif next_ is not None:
        result = _next(lm, prompts, next_, specials, quiet=as_json)
    else:
        result = _generate(lm, prompts, given, specials, echo=echo is not False, quiet=as_json)
    if as_json:
        print(json.dumps(result, ensure_ascii=False))


def given_settings(**settings: Any) -> dict[str, Any]:
    """Return the settings that are not None."""
    return {name: value for name, value in settings.items() if value is not None}


def print_note(line: str) -> None:
    """Print a line on standard error, dimmed on a terminal."""
    on, off = ("\033[2m", "\033[0m") if sys.stderr.isatty() else ("", "")
    print(f"{on}{line}{off}", file=sys.stderr, flush=True)


def start_now(pieces: Iterator[Piece]) -> Iterator[Piece]:
    """Return ``pieces`` with the first one computed, so that messages of the compiler precede the text."""
    first = list(islice(pieces, 1))
    return chain(first, pieces)


def _parsed_ids(text: str) -> list[int]:
    from wordloom.errors import GenerationError

    try:
        return [int(part) for part in text.replace(",", " ").split()]
    except ValueError:
        raise GenerationError(f"--ids takes whole numbers with commas between, not {text!r}") from None


def _generate(
    lm: LanguageModel, prompts: list[Any], given: dict[str, Any], specials: Any, *, echo: bool, quiet: bool
) -> dict[str, Any]:
    """Print continuations of prompts, which are all text or all ids; a single one is streamed."""
    from wordloom.generate import complete, settings, stream

    chosen = settings(lm.generation_defaults, given, tokenizer=lm.tokenizer)
    print_note(chosen.line())
    if chosen.ignored_line is not None:
        print_note(chosen.ignored_line)
    tokenizer: Any = lm.tokenizer
    sampling, eos_ids = chosen.sampling, chosen.eos_ids
    done: list[Completion] = []
    text = isinstance(prompts[0], str)
    if text and len(prompts) == sampling.samples == 1 and not quiet:
        pieces = stream(lm.model, tokenizer, prompts, sampling, eos_ids=eos_ids, specials=specials)
        pieces = start_now(pieces)
        print(prompts[0] if echo else "", end="", flush=True)
        for piece in pieces:
            print(piece.text, end="", flush=True)
        print()
    else:
        done = complete(lm.model, tokenizer, prompts, sampling, eos_ids=eos_ids, specials=specials)
        if text and not quiet:
            print("\n---\n".join(f"{c.prompt if echo else ''}{c.text}" for c in done))
        elif not quiet:
            print("\n".join(",".join(map(str, c.ids)) for c in done))
    completions = [completion._asdict() for completion in done]
    if not text:
        completions = [{"prompt_ids": fields.pop("prompt"), **fields} for fields in completions]
    return {"completions": completions, "settings": chosen.as_dict()}


def _score(
    lm: LanguageModel, prompts: list[Any], continuations: list[str], specials: Any, *, quiet: bool
) -> dict[str, Any]:
    from wordloom.generate import score, score_ids

    tokenizer: Any = lm.tokenizer
    results: list[dict[str, Any]] = []
    for prompt in prompts:
        if isinstance(prompt, str):
            scores = score(lm.model, tokenizer, prompt, continuations, specials=specials)
            results += [{"prompt": prompt, **scored._asdict()} for scored in scores]
            continue
        ids = [_parsed_ids(text) for text in continuations]
        for row, (logprobs, greedy) in zip(ids, score_ids(lm.model, prompt, ids), strict=True):
            results.append(
                {
                    "prompt_ids": prompt,
                    "total": sum(logprobs),
                    "per_token": logprobs,
                    "ids": row,
                    "greedy": greedy,
                }
            )
    for result in [] if quiet else results:
        names = [repr(text) for text in result["tokens"]] if "tokens" in result else result["ids"]
        parts = [f"{name} {value:.4f}" for name, value in zip(names, result["per_token"], strict=True)]
        print(f"{result['total']:10.4f}  {'  '.join(parts)}")
    return {"scores": results}


def _next(lm: LanguageModel, prompts: list[Any], k: int, specials: Any, *, quiet: bool) -> dict[str, Any]:
    from wordloom.generate import next_tokens

    results = []
    for number, prompt in enumerate(prompts):
        best = next_tokens(lm.model, lm.tokenizer, prompt, k, specials=specials)
        key = "prompt" if isinstance(prompt, str) else "prompt_ids"
        results.append({key: prompt, "next": [token._asdict() for token in best]})
        if not quiet:
            print("---\n" if number else "", end="")
            for token in best:
                text = repr(token.text) if isinstance(prompt, str) else ""
                print(f"{token.probability:8.4f}  {token.logprob:9.4f}  {token.id:6d}  {text}".rstrip())
    return {"next": results}

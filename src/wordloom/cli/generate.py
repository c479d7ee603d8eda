"""``wordloom generate CHECKPOINT --prompt ...``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from wordloom.cli import options
from wordloom.cli.options import option
from wordloom.cli.usage import decoded_stdin, is_given, refuse

if TYPE_CHECKING:
    from wordloom.generate import Completion
    from wordloom.generate.text import StreamOptions
    from wordloom.run import LanguageModel

Piece = TypeVar("Piece")

_SETTINGS = (
    *("max_new_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "no_repeat_ngram"),
    *("stop", "stop_id", "seed", "samples", "past"),
)


def command(
    ctx: typer.Context,
    checkpoint: options.CHECKPOINT,
    prompt: list[str] | None = option(
        None, "The text to continue; - reads standard input, without its last line break. Repeatable."
    ),
    ids: list[str] | None = option(None, "Token ids to continue instead of text, such as 1,2,3. Repeatable."),
    max_new_tokens: options.MAX_NEW_TOKENS = None,
    temperature: options.TEMPERATURE = None,
    top_k: options.TOP_K = None,
    top_p: options.TOP_P = None,
    min_p: float | None = option(
        None, "Sample from tokens at least p times as probable as the most probable one."
    ),
    repetition_penalty: float | None = option(
        None, "Make tokens that occurred before less probable; 1 is off."
    ),
    no_repeat_ngram: int | None = option(None, "Never repeat an n-gram of this many tokens."),
    stop: list[str] | None = option(None, "Stop in front of this text; \\n is a line break. Repeatable."),
    stop_id: list[int] | None = option(None, "Stop at this token id. Repeatable."),
    seed: options.SEED = None,
    samples: int | None = option(None, "How many continuations of each prompt.  [default: 1]"),
    past: options.PAST = None,
    speculate: options.SPECULATE = None,
    score: list[str] | None = option(
        None, "Print the log-probability of this continuation instead. Repeatable."
    ),
    next_: int | None = option(None, "Print the K most probable next tokens instead.", "--next"),
    specials: options.SPECIALS = "refuse",
    echo: bool = option(True, "Print the prompt before its continuation.", "--echo/--no-echo"),
    device: options.DEVICE = "auto",
    dtype: options.DTYPE = "auto",
    as_json: bool = option(False, "Print one JSON object.", "--json"),
) -> None:
    """Generate text from a prompt.

    With --score, score given continuations instead; with --next, show the most probable next tokens.
    """
    from wordloom.errors import GenerationError
    from wordloom.run import LanguageModel, load_as

    if prompt and ids:
        raise GenerationError("give --prompt or --ids, not both")
    if score and next_ is not None:
        raise GenerationError("give --score or --next, not both")
    if score or next_ is not None:
        refuse(ctx, "--score and --next sample nothing", *_SETTINGS, "echo", "speculate")
    if ids:
        refuse(ctx, "--ids are not text and are not echoed", "specials", "echo")
    lm = load_as(LanguageModel, checkpoint, device=device, dtype=dtype)
    prompts: list[Any]
    if ids:
        prompts = [_parsed_ids(text) for text in ids]
    elif lm.tokenizer is None:
        raise GenerationError(f"{checkpoint} has no tokenizer: give token ids, such as --ids 1,2,3")
    else:
        with decoded_stdin():
            prompts = [
                sys.stdin.read().removesuffix("\n") if text == "-" else text for text in prompt or [""]
            ]
    if score:
        result = _score(lm, prompts, score, specials, quiet=as_json)
    elif next_ is not None:
        result = _next(lm, prompts, next_, specials, quiet=as_json)
    else:
        given = given_settings(ctx, *_SETTINGS)
        if stop:
            given["stop"] = tuple(text.replace("\\n", "\n") for text in stop)
        if stop_id:
            given["stop_ids"] = tuple(given.pop("stop_id"))
        if not ids and lm.tokenizer is not None and lm.tokenizer.chat_template is not None:
            print_note(f"this continues text; the model answers conversations: wordloom chat {checkpoint}")
        options: StreamOptions = {"specials": specials, "speculate": lm.drafter(speculate)}
        result = _generate(lm, prompts, given, options, echo=echo, quiet=as_json)
    if as_json:
        print(json.dumps(result, ensure_ascii=False))


def given_settings(ctx: typer.Context, *names: str) -> dict[str, Any]:
    """Return those of the named options that are on the command line."""
    return {name: ctx.params[name] for name in names if is_given(ctx, name)}


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
    lm: LanguageModel,
    prompts: list[Any],
    given: dict[str, Any],
    options: StreamOptions,
    *,
    echo: bool,
    quiet: bool,
) -> dict[str, Any]:
    """Print continuations of prompts, which are all text or all ids; a single one is streamed."""
    from wordloom.generate import complete, settings, stream

    chosen = settings(lm.generation_defaults, given, tokenizer=lm.tokenizer)
    print_note(chosen.line())
    if chosen.ignored_line is not None:
        print_note(chosen.ignored_line)
    tokenizer: Any = lm.tokenizer
    sampling, options["eos_ids"] = chosen.sampling, chosen.eos_ids
    options["fit_new_tokens"] = chosen.fit_new_tokens
    done: list[Completion] = []
    text = isinstance(prompts[0], str)
    if text and len(prompts) == sampling.samples == 1 and not quiet:
        pieces = start_now(stream(lm.model, tokenizer, prompts, sampling, **options))
        print(prompts[0] if echo else "", end="", flush=True)
        for piece in pieces:
            print(piece.text, end="", flush=True)
        print()
    else:
        done = complete(lm.model, tokenizer, prompts, sampling, **options)
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
            facts = {"prompt_ids": prompt, "total": sum(logprobs), "per_token": logprobs}
            results.append({**facts, "ids": row, "greedy": greedy})
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

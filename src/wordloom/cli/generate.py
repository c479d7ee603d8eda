"""``wordloom generate CHECKPOINT --prompt ...``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

if TYPE_CHECKING:
    from wordloom.generate import Completion
    from wordloom.run import LanguageModel

__all__ = ["command", "dim", "primed", "sampling_flags"]

Piece = TypeVar("Piece")

FLAGS = {"stop_ids": "--stop-id"}  # where a flag is not spelled as its setting


def command(
    checkpoint: Annotated[Path, typer.Argument(help="A folder with a trained model.")],
    prompt: Annotated[
        list[str] | None,
        typer.Option(help="Text to continue; - reads it from stdin, less one final line break. Repeatable."),
    ] = None,
    ids: Annotated[
        list[str] | None, typer.Option(help="Token ids to continue in place of text: 1,2,3. Repeatable.")
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(help="Stop after this many.  [default: 256, or what max_seq_len leaves]")
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.  [default: 0.8]")] = None,
    top_k: Annotated[
        int | None, typer.Option(help="Draw from the k likeliest; 0 is off.  [default: 50]")
    ] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Draw from the likeliest that reach probability p; 1 is off.")
    ] = None,
    min_p: Annotated[
        float | None, typer.Option(help="Draw from those at least p times as likely as the likeliest.")
    ] = None,
    repetition_penalty: Annotated[
        float | None, typer.Option(help="Above 1 makes tokens that occurred less likely.")
    ] = None,
    no_repeat_ngram: Annotated[
        int | None, typer.Option(help="Never repeat an n-gram of this many tokens.")
    ] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="End before this text; \\n is a line break. Repeatable.")
    ] = None,
    stop_id: Annotated[list[int] | None, typer.Option(help="End at this token id. Repeatable.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same text.")] = None,
    samples: Annotated[int | None, typer.Option(help="Continuations of each prompt.  [default: 1]")] = None,
    past: Annotated[
        str | None,
        typer.Option(help="Past max_seq_len: error, or slide the window (exact, slower).  [default: error]"),
    ] = None,
    score: Annotated[
        list[str] | None,
        typer.Option(help="Print the log-probability of this continuation instead. Repeatable."),
    ] = None,
    next_: Annotated[
        int | None, typer.Option("--next", help="Print the likeliest K next tokens instead.")
    ] = None,
    specials: Annotated[
        str | None,
        typer.Option(help="Special tokens in a prompt: refuse, text or interpret.  [default: refuse]"),
    ] = None,
    echo: Annotated[
        bool | None,
        typer.Option("--echo/--no-echo", help="Print the prompt before its continuation.  [default: echo]"),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto (as stored), fp32, bf16 or fp16.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Continue a prompt, streamed; or score given continuations, or show the next tokens."""
    from wordloom.errors import GenerationError
    from wordloom.run import LanguageModel, load_as

    if prompt and ids:
        raise GenerationError("give --prompt or --ids, not both")
    if score and next_ is not None:
        raise GenerationError("give --score or --next, not both")
    given = sampling_flags(
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
    flags = [FLAGS.get(name, "--" + name.replace("_", "-")) for name in given]
    if echo is not None:
        flags.append("--echo" if echo else "--no-echo")
    if flags and (score or next_ is not None):
        raise GenerationError(f"--score and --next draw nothing: leave out {', '.join(flags)}")
    if ids and (specials is not None or echo is not None):
        useless = "--specials" if specials is not None else flags[-1]
        raise GenerationError(f"--ids are not text and are not echoed: leave out {useless}")
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


def sampling_flags(**flags: Any) -> dict[str, Any]:
    """The flags that were given."""
    return {name: value for name, value in flags.items() if value is not None}


def dim(line: str) -> None:
    """One line on stderr that is not the result."""
    on, off = ("\033[2m", "\033[0m") if sys.stderr.isatty() else ("", "")
    print(f"{on}{line}{off}", file=sys.stderr, flush=True)


def primed(pieces: Iterator[Piece]) -> Iterator[Piece]:
    """``pieces``, the first already made: what is said while programs are compiled stands before the text."""
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
    """Print continuations of prompts that are all text or all ids, streamed when there is only one."""
    from wordloom.generate import complete, settings, stream

    settled = settings(lm.generation_defaults, given, tokenizer=lm.tokenizer)
    dim(settled.line())
    if settled.ignored_line is not None:
        dim(settled.ignored_line)
    tokenizer: Any = lm.tokenizer
    sampling, eos_ids = settled.sampling, settled.eos_ids
    done: list[Completion] = []
    text = isinstance(prompts[0], str)
    if text and len(prompts) == sampling.samples == 1 and not quiet:
        pieces = stream(lm.model, tokenizer, prompts, sampling, eos_ids=eos_ids, specials=specials)
        pieces = primed(pieces)
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
    return {"completions": completions, "settings": settled.as_dict()}


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

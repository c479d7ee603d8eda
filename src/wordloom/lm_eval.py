"""A model for EleutherAI's evaluation harness, lm-eval: any causal folder that :func:`wordloom.load` reads.

lm-eval finds only the models that it has, so this module stands in for its command::

    python -m wordloom.lm_eval --model wordloom --model_args pretrained=FOLDER --tasks TASKS

Everything else is lm-eval's.  Texts are tokenized and cut as lm-eval's own ``hf`` model does, so that both
give the same results for one folder.  The package comes with the extra ``lm-eval``.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from inspect import signature
from itertools import groupby
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from wordloom.errors import ChatError, EvaluationError, WordloomError, did_you_mean
from wordloom.evaluate.forward import dtype_name
from wordloom.evaluate.likelihood import BATCH_TOKENS, Stretch, likelihoods
from wordloom.generate import Sampling
from wordloom.models import context_limit
from wordloom.run.checkpoint.kinds import load_as
from wordloom.run.models.language_model import LanguageModel
from wordloom.text import Tokenizer
from wordloom.text.chat.encoding import MARK, template_of
from wordloom.text.chat.message import Message, Role

try:
    from lm_eval.__main__ import cli_evaluate
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import model_registry
    from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs, postprocess_generated_text
    from lm_eval.utils import get_rolling_token_windows
except ImportError:
    if __name__ == "__main__":
        print("wordloom: lm-eval is not installed: pip install lm-eval", file=sys.stderr)
        sys.exit(2)
    raise

log = logging.getLogger(__name__)

_UNLIMITED = 1 << 30  # tokens that a model without a limit reads
_ANSWERS = 32  # that are written in one batch
_OPEN = f"{MARK} "  # stands for the end of a message that stays open
_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")


class WordloomLM(TemplateLM):
    """A causal model with its tokenizer.

    Args:
        pretrained: the folder.
        adapter: the folder of an adapter of the model.
        dtype: "auto", "fp32", "bf16", "fp16" or "int8".
        device: "auto", "cpu", "cuda" ...
        batch_size: the texts of a forward pass; "auto", "auto:N": about 8,192 tokens, or 32 answers.
        max_length: the tokens that are read at once.  Default: the model's ``max_seq_len``.
        max_gen_toks: the tokens of an answer whose task names no number.
        max_batch_size: no effect; lm-eval's command gives it to every model.

    Raises WordloomError for a folder without a causal model or a tokenizer, and for other arguments.
    """

    def __init__(
        self,
        pretrained: str,
        *,
        adapter: str | None = None,
        dtype: str = "auto",
        device: str | None = None,
        batch_size: int | str | None = None,
        max_length: int | str | None = None,
        max_gen_toks: int | str = 256,
        max_batch_size: int | str | None = None,
        **unknown: Any,
    ) -> None:
        super().__init__()
        if unknown:
            name = next(iter(unknown))
            allowed = [each for each in signature(type(self)).parameters if each != "unknown"]
            raise EvaluationError(f"--model_args: no argument {name!r}; {did_you_mean(name, allowed)}")
        if (device or "").startswith("cuda") and not torch.cuda.is_available():
            device = None  # lm-eval's default is cuda:0
        self.folder = Path(pretrained)
        self.lm: LanguageModel = load_as(
            LanguageModel,
            pretrained,
            adapter=adapter,
            device=device or "auto",
            dtype=dtype,
            purpose="lm-eval",
        )
        self.tokens: Tokenizer = self.lm.text_tokenizer
        limit = context_limit(self.lm.model.config)
        longest = limit or _UNLIMITED
        self.max_length = longest if max_length is None else _count("max_length", max_length, longest)
        self.max_gen_toks = _count("max_gen_toks", max_gen_toks)
        is_auto = batch_size is None or str(batch_size).partition(":")[0] == "auto"
        self.rows = None if is_auto else _count("batch_size", batch_size)

    # -- what lm-eval asks of a model --------------------------------------------------------------------

    @property
    def eot_token_id(self) -> int:
        """The id that ends a text."""
        if self.tokens.eos_id is None:
            raise EvaluationError(f"the tokenizer of {self.folder} has no end-of-text token")
        return self.tokens.eos_id

    @property
    def prefix_token_id(self) -> int:
        """The id before a text without a context: that which begins prompts, else bos, else eos."""
        start = self.tokens.bos_id if self.tokens.start_id is None else self.tokens.start_id
        return self.eot_token_id if start is None else start

    @property
    def tokenizer_name(self) -> str:
        return str(self.folder).replace("/", "__")

    def get_model_info(self) -> dict[str, Any]:
        """Return facts that lm-eval records with its results."""
        parameters = sum(p.numel() for p in self.lm.model.parameters())
        return {"model_num_parameters": parameters, "model_dtype": dtype_name(self.lm.model)}

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Return the ids of a text, behind the token that begins prompts unless the text has it."""
        ids: list[int] = list(self.tokens.encode_ids(string, specials="interpret"))
        bos = None if add_special_tokens is False else self.tokens.start_id
        if bos is None or (add_special_tokens is None and ids[:1] == [bos]):
            return ids
        return [bos, *ids]

    def tok_decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids, without special tokens."""
        return self.tokens.decode(ids, skip_special_tokens=True)

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **_options: Any
    ) -> list[tuple[float, bool]]:
        scored = list(self._scored((context, continuation) for _, context, continuation in requests))
        for (key, *_ids), result in zip(requests, scored, strict=True):
            if key is not None:
                self.cache_hook.add_partial("loglikelihood", key, result)
        return scored

    def _scored(self, pairs: Iterable[tuple[list[int], list[int]]]) -> Iterator[tuple[float, bool]]:
        """Yield the log-probability of each continuation behind its context, and whether it is greedy."""

        def stretches() -> Iterator[tuple[None, Stretch]]:
            for context, continuation in pairs:
                if not 0 < len(continuation) <= self.max_length:
                    raise EvaluationError(
                        f"a continuation has {len(continuation)} tokens; allowed: 1 to {self.max_length}"
                    )
                # lm-eval gives the blanks that end a context to the continuation, which can leave no context
                context = context or [self.prefix_token_id]
                inputs = [*context, *continuation][-(self.max_length + 1) : -1]
                yield None, Stretch(np.array(inputs), np.array(continuation))

        rows = self.rows or max(1, BATCH_TOKENS // min(self.max_length, 256))
        for _, found in likelihoods(self.lm.model, stretches(), batch_size=rows, greedy=True):
            assert found.greedy is not None
            yield -float(found.nats.sum()), bool(found.greedy.all())

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Return the log-probability of each text, in windows that do not overlap."""
        numbers: list[int] = []

        def windows() -> Iterator[tuple[list[int], list[int]]]:
            for number, request in enumerate(requests):
                # hf puts bos before bos; an eos that begins texts stands there once, and is not predicted
                ids = self.tok_encode(request.args[0], None if self.tokens.adds_bos else False)
                for inputs, targets in get_rolling_token_windows(
                    ids, self.prefix_token_id, self.max_length, 1
                ):
                    numbers.append(number)
                    yield inputs[: len(inputs) - len(targets) + 1], targets

        totals = [0.0] * len(requests)
        for at, (total, _) in enumerate(self._scored(windows())):
            totals[numbers[at]] += total
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Return the answer to each prompt, up to the first of its stop strings."""
        answers = [""] * len(requests)
        order = sorted(range(len(requests)), key=lambda i: (str(requests[i].args[1]), i))
        for _, group in groupby(order, key=lambda i: str(requests[i].args[1])):
            numbers = list(group)
            given = normalize_gen_kwargs(requests[numbers[0]].args[1], self.max_gen_toks)
            end = self.tokens.id_to_token(self.eot_token_id)
            until = handle_stop_sequences(given.pop("until", None), eos=end)
            sampling = self._sampling(given, until)
            room = self.max_length - int(sampling.max_new_tokens or 0)
            if room < 1:
                raise EvaluationError(
                    f"an answer of {sampling.max_new_tokens} tokens leaves no room for a prompt in "
                    f"{self.max_length}; give max_gen_toks"
                )
            prompts = {
                i: self.tok_encode(requests[i].args[0])[-room:] or [self.prefix_token_id] for i in numbers
            }
            numbers.sort(key=lambda i: len(prompts[i]))
            rows = self.rows or _ANSWERS
            for some in (numbers[at : at + rows] for at in range(0, len(numbers), rows)):
                if sampling.temperature and "seed" not in given:  # from the seed of lm-eval's command
                    sampling = replace(sampling, seed=int(torch.randint(1 << 31, ())))
                written = self.lm.generate([prompts[i] for i in some], sampling)
                for number, ids in zip(some, written, strict=True):
                    text = postprocess_generated_text(self.tok_decode(ids), stop=until, think_end_token=None)
                    answers[number] = text
                    self.cache_hook.add_partial("generate_until", requests[number].args, text)
        return answers

    def _sampling(self, given: dict[str, Any], until: Sequence[str]) -> Sampling:
        """Return the settings that a task asks for; greedy unless it asks for samples."""
        given = dict(given)
        tokens, samples = given.pop("max_gen_toks"), given.pop("do_sample", False)
        known = {name: given.pop(name) for name in _SAMPLING if name in given}
        if given.get("num_beams") == 1:  # a search with one beam is greedy
            del given["num_beams"]
        if given:
            raise EvaluationError(
                f"a task asks for {', '.join(given)}; allowed: {', '.join(_SAMPLING)}, until, max_gen_toks"
            )
        if not samples:
            known = {name: known[name] for name in known if name == "repetition_penalty"} | {
                "temperature": 0.0
            }
        known.setdefault("top_k", None)
        known.setdefault("repetition_penalty", self.lm.generation_defaults.get("repetition_penalty") or 1.0)
        # a special token is no part of the text in which stop strings are looked for
        ends = [self.tokens.token_to_id(text) for text in until]
        stop_ids = {self.eot_token_id, *(each for each in ends if each in self.tokens.special_ids)}
        return Sampling(
            max_new_tokens=tokens, stop=tuple(filter(None, until)), stop_ids=tuple(sorted(stop_ids)), **known
        )

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Return the text of a conversation in the folder's chat template.

        Without ``add_generation_prompt``, the last message stays open, so that the model continues it.  A
        template that refuses a system message gets the others.
        """
        template = template_of(self.tokens)
        messages = [Message(cast(Role, each["role"]), each["content"]) for each in chat_history]
        if not add_generation_prompt:
            messages[-1] = messages[-1]._replace(content=f"{messages[-1].content}{_OPEN}")
        try:
            text = template.render(messages, prompt=add_generation_prompt).text
        except ChatError as error:
            others = [message for message in messages if message.role != "system"]
            if len(others) == len(messages):
                raise
            log.warning("the system messages are left out: %s", error)
            text = template.render(others, prompt=add_generation_prompt).text
        if add_generation_prompt:
            return text
        before, mark, after = text.rpartition(_OPEN.strip())
        if not mark:
            raise ChatError("the chat template does not write the last message, which a task continues")
        return before if after.startswith(" ") else before.rstrip()  # the template strips messages

    def chat_template(self, chat_template: bool | str = False) -> str:
        return (self.tokens.chat_template or "") if chat_template else ""


def _count(name: str, value: int | str | None, most: int = _UNLIMITED) -> int:
    """Return a number of lm-eval's command line, which gives numbers as text too."""
    allowed = "1 or more" if most == _UNLIMITED else f"1 to {most}"
    try:
        number = int(str(value))
    except ValueError:
        number = 0
    if not 1 <= number <= most:
        raise EvaluationError(f"{name} {value} is no number that the model takes; allowed: {allowed}")
    return number


def main() -> None:
    """Run lm-eval's command with the model ``wordloom``; print a user's mistake as one line, exit code 2."""
    model_registry.register("wordloom", target=WordloomLM)
    try:
        cli_evaluate()
    except WordloomError as error:
        print(f"wordloom: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()

"""Compare beam search with transformers' MarianMTModel.generate: one folder's weights, from text to text.

    python benchmarks/translation.py RUN [--data multi30k/test_2016_flickr] [--source de] [--target en]
                                     [--beams 5 1] [--batch 32] [--every 1] [--max-new-tokens 100]
                                     [--rounds 5] [--threads N] [--cpu-time]

Both sides get the same sentences in the same batches, sorted by length, in float32 on the same number of
threads, with one limit of new tokens.  The times include tokenizing and decoding.  Wordloom gets all batches
at once, as translate() reads a file, and translates several side by side, with one thread each.  transformers
gets one batch after another, as generate() takes them, each on all threads.

Rounds alternate.  Medians are printed, with a JSON line for each number of beams.  ``ratio`` is Wordloom's
sentences per second divided by transformers'.  ``limit`` is Wordloom's rate if only the decoder's matrix
products took time, at the speed of large products on this machine.

Then every translation is compared, id by id.  Different translations are printed with both scores, computed
again in float64; ``tie`` says whether the scores are closer than float32 can distinguish (1e-4).
``--cpu-time`` measures the process' CPU time instead, for a busy machine, with ``--threads 1``.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from entry import in_one_line
from turns import in_turns

from wordloom.data import PairCorpus
from wordloom.generate import Conditioned, Hypothesis, beam_search, score_targets
from wordloom.generate.fast import accelerate
from wordloom.run import Translator, load_as

TIE = 1e-4


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", metavar="RUN", help="a folder with a Transformer in Marian's layout")
    parser.add_argument("--data", default="multi30k/test_2016_flickr")
    parser.add_argument("--source", default="de")
    parser.add_argument("--target", default="en")
    parser.add_argument("--beams", type=int, nargs="+", default=[5, 1])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--every", type=int, default=1, help="use only every n-th batch")
    parser.add_argument("--max-new-tokens", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--cpu-time", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    clock = time.process_time if given.cpu_time else time.perf_counter

    ours, theirs = Ours(given), Theirs(given)
    corpus = PairCorpus(sources=given.data, source_column=given.source, target_column=given.target)
    texts = [pair.source for pair in corpus.pairs()]
    texts.sort(key=lambda text: len(ours.translator.source_tokenizer.encode(text).ids))
    batches = [texts[start : start + given.batch] for start in range(0, len(texts), given.batch)]
    batches = batches[:: given.every]
    sentences = sum(map(len, batches))
    products = speed_of_products(clock)
    report({"run": given.run, "sentences": sentences, "batch": given.batch, "threads": given.threads,
            "products_gflop_per_s": round(products / 1e9)})  # fmt: skip
    for beams in given.beams:
        pairs = [
            (ours.search(batch, beams), theirs.search(batch, beams)) for batch in batches
        ]  # this is the warm-up, too
        sides: dict[str, Any] = {"ours": ours, "theirs": theirs}
        calls = {name: partial(side.texts, batches, beams) for name, side in sides.items()}
        median = in_turns({name: partial(seconds, clock, call) for name, call in calls.items()}, given.rounds)
        report({
            "beams": beams,
            "ours_sentences_per_s": round(sentences / median["ours"], 1),
            "theirs_sentences_per_s": round(sentences / median["theirs"], 1),
            "ratio": round(median["theirs"] / median["ours"], 2),
            "limit": round(sentences / (ours.operations(batches, beams) / products), 1),
            "rounds": given.rounds,
        })  # fmt: skip
        compare(ours, batches, pairs, beams)


def report(line: dict[str, Any]) -> None:
    """Print one JSON line with the machine's load, because measurements on a busy machine mean nothing."""
    print(json.dumps({**line, "load": round(os.getloadavg()[0], 1)}, ensure_ascii=False), flush=True)


def seconds(clock: Callable[[], float], call: Callable[[], Any]) -> float:
    began = clock()
    call()
    return clock() - began


def speed_of_products(clock: Callable[[], float], size: int = 2048, rounds: int = 5) -> float:
    """Return the operations per second of large float32 products on all threads: the best of some rounds."""
    square = torch.ones(size, size)
    return 2 * size**3 / min(seconds(clock, lambda: square @ square) for _ in range(rounds))


class Ours:
    def __init__(self, given: argparse.Namespace) -> None:
        self.translator: Translator = load_as(Translator, given.run, device="cpu", dtype="fp32")
        self.limit = given.max_new_tokens

    def texts(self, batches: list[list[str]], beams: int) -> list[str]:
        texts = [text for batch in batches for text in batch]
        size = len(batches[0])
        made = self.translator.translate(texts, beams=beams, batch_size=size, max_new_tokens=self.limit)
        return [best.text for (best,) in made]

    def rows(self, batch: list[str]) -> list[list[int]]:
        t = self.translator
        return [[*ids, t.source_eos_id] for ids in t.source_tokenizer.encode_batch(batch, specials="text")]

    def search(self, batch: list[str], beams: int) -> list[Hypothesis]:
        """Return the ids and scores of the translations."""
        return self._search(Conditioned(self.translator.model, self.read(batch)), beams)

    @torch.inference_mode()
    def read(self, batch: list[str]) -> Any:
        return self.translator.read(self.rows(batch))

    def _search(self, reader: Any, beams: int) -> list[Hypothesis]:
        t = self.translator
        found = beam_search(
            reader, [[t.pad_id]] * len(reader.memory.values), beams=beams, eos_ids=[t.eos_id],
            forbidden_ids=[t.pad_id], vocab_size=t.tokenizer.vocab_size, max_new_tokens=self.limit,
        )  # fmt: skip
        return [best for (best,) in found]

    def operations(self, batches: list[list[str]], beams: int) -> float:
        """Return the multiplications and additions of the decoder's and head's products for all batches."""
        model, rows = self.translator.model, 0
        blocks = model.decoder_blocks
        weights = sum(p.numel() for p in blocks.parameters() if p.dim() == 2) + model.lm_head.weight.numel()
        for block in blocks:  # keys and values of a source are computed once
            weights -= (
                block.cross_attention.k_proj.weight.numel() + block.cross_attention.v_proj.weight.numel()
            )
        for batch in batches:
            reader = accelerate(Conditioned(model, self.read(batch)))
            write = reader.hidden

            def counted(tokens: Any, *, cache: Any, attend: Any = None, write: Any = write) -> Any:
                nonlocal rows
                rows += len(tokens)
                return write(tokens, cache=cache)

            reader.hidden = counted
            self._search(reader, beams)
        return 2.0 * weights * rows

    def scores(self, batch: list[str], targets: list[list[int]]) -> list[float]:
        """Return the log-probability of each target divided by its length, in float64."""
        t = copy.copy(self.translator)
        t.model = copy.deepcopy(t.model).double()
        with torch.inference_mode():
            scored = score_targets(t.model, t.read(self.rows(batch)), targets, start_id=t.pad_id)
        return [sum(logprobs) / len(logprobs) for logprobs, _ in scored]


class Theirs:
    def __init__(self, given: argparse.Namespace) -> None:
        from transformers import AutoTokenizer, MarianMTModel

        self.tokenizer = AutoTokenizer.from_pretrained(given.run)
        self.model = MarianMTModel.from_pretrained(given.run, dtype=torch.float32).eval()
        self.model.generation_config.forced_eos_token_id = None
        self.limit = given.max_new_tokens

    @torch.inference_mode()
    def _generate(self, batch: list[str], beams: int) -> Any:
        end, pad = self.tokenizer.eos_token, self.model.config.pad_token_id
        given = self.tokenizer([text + end for text in batch], return_tensors="pt", padding=True)
        return self.model.generate(
            given.input_ids, attention_mask=given.attention_mask, num_beams=beams, do_sample=False,
            max_new_tokens=self.limit, bad_words_ids=[[pad]],
        )  # fmt: skip

    def texts(self, batches: list[list[str]], beams: int) -> list[str]:
        made = (self._generate(batch, beams) for batch in batches)
        return [text for some in made for text in self.tokenizer.batch_decode(some, skip_special_tokens=True)]

    def search(self, batch: list[str], beams: int) -> list[list[int]]:
        """Return the ids of the translations, including the end token."""
        end = self.model.config.eos_token_id
        rows = self._generate(batch, beams)[:, 1:].tolist()
        return [row[: row.index(end) + 1] if end in row else row for row in rows]


def compare(ours: Ours, batches: list[list[str]], pairs: list[Any], beams: int) -> None:
    """Print each translation that differs, with both scores, and their number."""
    differ = ties = 0
    for batch, (found, rows) in zip(batches, pairs, strict=True):
        unlike = [i for i, ids in enumerate(rows) if found[i].ids != ids]
        for i in unlike:
            mine, other = ours.scores([batch[i]] * 2, [found[i].ids, rows[i]])
            tie = abs(mine - other) < TIE
            differ, ties = differ + 1, ties + tie
            decode = ours.translator.tokenizer.decode
            report({"source": batch[i], "ours": decode(found[i].ids), "theirs": decode(rows[i]),
                    "our_score": round(mine, 6), "their_score": round(other, 6), "tie": tie})  # fmt: skip
    total = sum(map(len, batches))
    report({"beams": beams, "same_translations": total - differ, "different": differ, "ties": ties})


if __name__ == "__main__":
    in_one_line(main)

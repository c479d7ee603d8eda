"""The n-gram reference against a slow exact twin in fractions; lzma against its definition."""

from __future__ import annotations

import lzma
import math
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wordloom.errors import DataError
from wordloom.evaluate import baselines
from wordloom.evaluate.baselines import KneserNey, join_documents, lzma_bits_per_byte

SMALL = b"the cat sat on the mat; the cat ate the rat and the bat. abracadabra, a cat on a mat sat. " * 2


class Twin:
    """Chen and Goodman's modified Kneser-Ney, written from the definitions, in exact fractions."""

    def __init__(self, train: bytes, order: int) -> None:
        self.order = order
        occurrences = {
            k: Counter(train[i : i + k] for i in range(len(train) - k + 1)) for k in range(1, order + 1)
        }
        self.counts = {order: occurrences[order]}
        for k in range(1, order):
            self.counts[k] = Counter(gram[1:] for gram in occurrences[k + 1])  # N1+(. gram)
        self.after: dict[bytes, Counter[bytes]] = {}  # by context: the n-grams that begin with it
        for counts in self.counts.values():
            for gram, count in counts.items():
                self.after.setdefault(gram[:-1], Counter())[gram] = count
        self.discounts = {k: self.discounts_of(counts) for k, counts in self.counts.items()}

    @staticmethod
    def discounts_of(counts: Counter[bytes]) -> tuple[Fraction, Fraction, Fraction]:
        n = Counter(counts.values())
        if all(n[i] for i in (1, 2, 3, 4)):
            y = Fraction(n[1], n[1] + 2 * n[2])
            d1 = 1 - 2 * y * Fraction(n[2], n[1])
            d2 = 2 - 3 * y * Fraction(n[3], n[2])
            d3 = 3 - 4 * y * Fraction(n[4], n[3])
            if 0 < d1 <= 1 and 0 < d2 <= 2 and 0 < d3 <= 3:
                return d1, d2, d3
        return Fraction(1, 2), Fraction(1), Fraction(3, 2)

    def discount(self, k: int, count: int) -> Fraction:
        return self.discounts[k][min(count, 3) - 1] if count else Fraction(0)

    def p(self, byte: int, context: bytes) -> Fraction:
        context = context[len(context) - min(len(context), self.order - 1) :]
        shorter = self.p(byte, context[1:]) if context else Fraction(1, 256)
        k = len(context) + 1
        after = self.after.get(context, Counter())
        total = sum(after.values())
        if not total:
            return shorter
        count = after.get(context + bytes([byte]), 0)
        gamma = sum((self.discount(k, c) for c in after.values()), Fraction(0)) / total
        return (count - self.discount(k, count)) / total + gamma * shorter

    def distribution(self, context: bytes) -> list[Fraction]:
        unseen = self.p(0, context)  # alike for every byte that the training text does not hold
        seen = {gram[0] for gram in self.counts[1]} | {0}
        return [self.p(byte, context) if byte in seen else unseen for byte in range(256)]


def contexts(train: bytes, longest: int) -> Iterator[bytes]:
    """All contexts of up to ``longest`` bytes in ``train``, and some that it does not hold."""
    seen = {train[i : i + k] for k in range(longest + 1) for i in range(len(train) - k + 1)}
    yield from sorted(seen)
    yield from (b"zzzz", b"\0", b"\xff\xfe", b" tha", b"qqqqt", b"zz th", train[:12])


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_distributions_are_the_twins_and_sum_to_one_after_every_context(order: int) -> None:
    train = SMALL[:60]
    fast, twin = KneserNey(order).fit(train), Twin(train, order)
    for context in contexts(train, order - 1):
        exact = twin.distribution(context)
        assert sum(exact) == 1
        got = fast.distribution(context)
        np.testing.assert_allclose(got, [float(p) for p in exact], rtol=1e-12, atol=0)
        assert abs(got.sum() - 1) < 1e-12
        assert got.min() > 0


def test_estimated_discounts_and_the_fallback_both_agree_with_the_twin() -> None:
    # Words drawn with Zipf-like weights have many counts of one, two, three and four.
    generator = random.Random(7)
    words = [bytes(generator.choices(b"abcdefghijklmnopqrst", k=generator.randint(1, 6))) for _ in range(80)]
    train = b" ".join(generator.choices(words, weights=[1 / (i + 1) for i in range(80)], k=400))
    order = 3
    fast, twin = KneserNey(order).fit(train), Twin(train, order)
    fallback = (Fraction(1, 2), Fraction(1), Fraction(3, 2))
    assert {twin.discounts[k] == fallback for k in twin.discounts} == {True, False}
    for context in (b"", b"a", b"ab", train[5:7], train[100:102], b"zz"):
        exact = [float(p) for p in twin.distribution(context)]
        np.testing.assert_allclose(fast.distribution(context), exact, rtol=1e-12, atol=0)


def test_a_bigram_model_worked_out_by_hand() -> None:
    # "abab": bigrams ab 2, ba 1.  Continuation counts: b after a, a after b: 1 each.  Counts of
    # counts are too few, so D = 0.5, 1, 1.5.
    model = KneserNey(2).fit(b"abab")
    unigram_a = (1 - 0.5) / 2 + (0.5 + 0.5) / 2 / 256
    unigram_z = (0.5 + 0.5) / 2 / 256
    after_a = model.distribution(b"a")
    assert after_a[ord("b")] == pytest.approx((2 - 1) / 2 + 1 / 2 * unigram_a, rel=1e-14)
    assert after_a[ord("a")] == pytest.approx(1 / 2 * unigram_a, rel=1e-14)
    assert after_a[ord("z")] == pytest.approx(1 / 2 * unigram_z, rel=1e-14)
    assert model.distribution(b"z")[ord("a")] == pytest.approx(unigram_a, rel=1e-14)


@pytest.mark.parametrize("order", [1, 2, 5])
def test_bits_per_byte_is_the_mean_over_the_bytes_each_after_its_own_past(order: int) -> None:
    train, heldout = SMALL[:80], b"the bat sat\xff on a catz"
    twin = Twin(train, order)
    bits = [-math.log2(twin.p(heldout[i], heldout[:i])) for i in range(len(heldout))]
    got = KneserNey(order).fit(train).bits_per_byte(heldout)
    assert got == pytest.approx(sum(bits) / len(bits), rel=1e-12)


@settings(max_examples=40, deadline=None)
@given(st.binary(min_size=8, max_size=80), st.binary(min_size=1, max_size=12), st.integers(1, 8))
def test_any_bytes_at_any_order(train: bytes, heldout: bytes, order: int) -> None:
    model, twin = KneserNey(order).fit(train), Twin(train, order)
    bits = [-math.log2(twin.p(heldout[i], heldout[:i])) for i in range(len(heldout))]
    assert model.bits_per_byte(heldout) == pytest.approx(sum(bits) / len(bits), rel=1e-11)
    assert abs(model.distribution(heldout).sum() - 1) < 1e-12


def test_more_context_helps_on_text_and_fitting_again_forgets() -> None:
    generator = random.Random(3)
    words = [bytes(generator.choices(b"etaoinshrdlu", k=5)) for _ in range(50)]
    text = b" ".join(generator.choices(words, k=4000))
    train, heldout = text[:-2000], text[-2000:]
    bits = [KneserNey(order).fit(train).bits_per_byte(heldout) for order in (1, 3, 5)]
    assert bits[0] > bits[1] > bits[2]
    # The source has log2(50) bits per word of six bytes with its space.
    assert math.log2(50) / 6 < bits[2] < 1.15 * math.log2(50) / 6
    again = KneserNey(5).fit(SMALL).fit(train)
    assert again.bits_per_byte(heldout) == bits[2]


def test_lzma_counts_only_what_the_heldout_bytes_add() -> None:
    generator = random.Random(5)
    noise = generator.randbytes(20_000)
    assert lzma_bits_per_byte(b"", noise) == pytest.approx(8, rel=0.02)
    assert lzma_bits_per_byte(noise, noise) < 0.05
    unrelated = lzma_bits_per_byte(noise, SMALL)
    assert lzma_bits_per_byte(SMALL, SMALL) < lzma_bits_per_byte(b"", SMALL) < unrelated * 1.2


def test_lzma_is_the_difference_of_two_raw_streams_of_the_strongest_preset() -> None:
    # The .xz container of the whole and of the part differ by the same stream, give or take the
    # padding to four bytes and the variable-length sizes in its index.
    words = (b" ".join(random.Random(1).choices(SMALL.split(), k=6000)), b" ".join(reversed(SMALL.split())))
    train, heldout = words
    sizes = [len(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)) for data in (train + heldout, train)]
    bits = lzma_bits_per_byte(train, heldout) * len(heldout)
    assert abs(bits / 8 - (sizes[0] - sizes[1])) <= 12


def test_lzma_looks_back_over_the_whole_training_text() -> None:
    # What repeats lies a megabyte back, behind noise: a dictionary of less would not see it.
    generator = random.Random(11)
    early, noise = generator.randbytes(4_000), generator.randbytes(1_200_000)
    assert lzma_bits_per_byte(early + noise, early) < 0.2


def test_documents_are_joined_by_a_byte_that_no_text_holds() -> None:
    assert join_documents(["añ", "", "b"]) == "añ".encode() + b"\0" + b"\0" + b"b\0"
    assert join_documents([]) == b""


@pytest.mark.parametrize("order", [0, -1, 9])
def test_an_impossible_order_names_the_possible_ones(order: int) -> None:
    with pytest.raises(DataError, match=rf"order of {order} .*allowed: 1 to 8"):
        KneserNey(order)


def test_what_cannot_be_measured_is_said() -> None:
    with pytest.raises(DataError, match="4 bytes; an n-gram model of order 5 takes at least 5"):
        KneserNey(5).fit(b"abcd")
    with pytest.raises(DataError, match="call fit"):
        KneserNey(5).bits_per_byte(b"abc")
    for measure in (KneserNey(2).fit(b"abcd").bits_per_byte, lambda data: lzma_bits_per_byte(b"a", data)):
        with pytest.raises(DataError, match="held-out text is empty"):
            measure(b"")


def test_the_baselines_need_no_torch() -> None:
    # Run by its path: the package around it may hold what does need torch.
    code = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='m'); print('torch' in sys.modules)"
    command = [sys.executable, "-c", code, baselines.__file__]
    assert subprocess.run(command, capture_output=True, check=True).stdout == b"False\n"

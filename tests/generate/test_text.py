"""Text in and out: streaming whole characters, stop strings, scores, next tokens."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.generate.tiny_models import tiny_model

import wordloom
from wordloom.errors import CheckpointError, GenerationError, TokenizerError
from wordloom.generate import Sampling, complete, generate_text, next_tokens, score, stream, stream_text
from wordloom.generate.text import StopWatch, continuation_ids, prompt_ids, stream_ids
from wordloom.text import Tokenizer
from wordloom.weights import save_model

TEXT = "Ein Mädchen namens Zoë aß heiße Würstchen. — 日本語の文章。 🙂🙃 She said: naïve café, déjà vu!\n" * 3
DRAWN = Sampling(temperature=1.0, top_k=None, seed=3, max_new_tokens=40)


@pytest.fixture(scope="module", params=["byte", "bpe", "char"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return Tokenizer.train([TEXT], kind=request.param, vocab_size=300 if request.param == "bpe" else None)


@pytest.fixture
def model(tokenizer: Tokenizer) -> Any:
    return tiny_model("llama", vocab_size=tokenizer.vocab_size, max_seq_len=96)


def utf8_model(tokenizer: Tokenizer, text: str) -> Any:
    """A stand-in that says ``text``, prompted with its first token: position decides the next."""
    ids = tokenizer.encode_ids(text)
    model = tiny_model(
        "gpt2", vocab_size=tokenizer.vocab_size, max_seq_len=len(ids) + 8, dim=len(ids) + 8, n_heads=1
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        for module in model.modules():
            if hasattr(module, "eps"):
                module.weight.fill_(1.0)
        model.position_embedding.weight.copy_(20 * torch.eye(len(ids) + 8))
        model.lm_head.weight = torch.nn.Parameter(torch.zeros(tokenizer.vocab_size, len(ids) + 8))
        for position, token in enumerate(ids[1:]):
            model.lm_head.weight[token, position] = 1.0
    return model


def test_the_stream_adds_up_to_the_text_and_never_holds_half_a_character(
    model: Any, tokenizer: Tokenizer
) -> None:
    for row in range(6):
        pieces = list(stream_text(model, tokenizer, "Mäd", DRAWN, first_row=row))
        assert "".join(pieces) == generate_text(model, tokenizer, "Mäd", DRAWN, first_row=row)
        assert all(pieces)


def test_multi_byte_characters_stream_whole() -> None:
    tokenizer = Tokenizer.train([], kind="byte")
    text = "aé—日🙂b"
    model = utf8_model(tokenizer, "x" + text)
    pieces = list(stream(model, tokenizer, ["x"], Sampling(temperature=0, max_new_tokens=len(text.encode()))))
    assert [piece.text for piece in pieces if piece.text] == list("aé—日🙂b")
    assert len(pieces) == len(text.encode())


def test_a_character_cut_by_the_limit_is_said_to_be_cut() -> None:
    tokenizer = Tokenizer.train([], kind="byte")
    model = utf8_model(tokenizer, "x" + "a🙂")
    assert generate_text(model, tokenizer, "x", Sampling(temperature=0, max_new_tokens=3)) == "a\ufffd"


@pytest.mark.parametrize(
    ("stop", "said", "reason"),
    [
        (("cde",), "ab", "stop"),
        (("g", "def"), "abc", "stop"),  # complete first, not first in the list
        (("ef", "def"), "abc", "stop"),  # complete at once: the longest
        (("abx", "ghi"), "abcdef", "stop"),
        (("zz", "hix"), "abcdefghi", "length"),  # held back, then given out
        (("🙂",), "abcdefghi", "length"),
    ],
)
def test_stop_strings_across_token_boundaries(stop: tuple[str, ...], said: str, reason: str) -> None:
    tokenizer = Tokenizer.train([], kind="byte")
    model = utf8_model(tokenizer, "xabcdefghi")
    sampling = Sampling(temperature=0, max_new_tokens=9, stop=stop)
    done = complete(model, tokenizer, ["x"], sampling)[0]
    assert (done.text, done.finish_reason) == (said, reason)
    assert "".join(stream_text(model, tokenizer, "x", sampling)) == said
    if reason == "stop":
        assert tokenizer.decode(done.ids).endswith(stop)


def test_a_stop_string_inside_a_token() -> None:
    tokenizer = Tokenizer.train(["hello world " * 50], kind="bpe", vocab_size=270)
    ids = tokenizer.encode_ids("hello world")
    assert len(ids) < 6
    model = utf8_model(tokenizer, "hello world hello world")
    first = tokenizer.decode(tokenizer.encode_ids("hello world hello world")[:1])
    text = generate_text(model, tokenizer, first, Sampling(temperature=0, max_new_tokens=4, stop=("or",)))
    assert (first + text) == "hello w"


def test_a_prompt_of_ids_stops_where_its_text_stops() -> None:
    tokenizer = Tokenizer.train([], kind="byte")
    model = utf8_model(tokenizer, "xabcdefghi")
    sampling = Sampling(temperature=0, max_new_tokens=9, stop=("cde",))
    done = complete(model, tokenizer, ["x", [ord("x")]], sampling)
    assert done[1].prompt == [ord("x")]
    assert done[1][2:] == done[0][2:]
    assert (done[1].text, tokenizer.decode(done[1].ids)) == ("ab", "abcde")
    assert list(stream_ids(model, tokenizer, [ord("x")], sampling)) == done[1].ids
    with pytest.raises(GenerationError, match=r"stop 'cde' is text, .* needs a tokenizer; leave it out"):
        stream_ids(model, None, [ord("x")], sampling)


def test_ends_may_come_from_an_iterator() -> None:
    tokenizer = Tokenizer.train([], kind="byte")
    model = utf8_model(tokenizer, "xabcdefghi")
    sampling = Sampling(temperature=0, max_new_tokens=9)
    for ends in ([ord("d")], iter([ord("d")])):
        assert generate_text(model, tokenizer, "x", sampling, eos_ids=ends) == "abc"


def test_a_prompt_of_ids_needs_no_tokenizer(model: Any, tokenizer: Tokenizer) -> None:
    prompt = tokenizer.prompt_ids("Mäd")
    known, bare = (complete(model, t, [prompt], DRAWN, eos_ids=())[0] for t in (tokenizer, None))
    assert known == complete(model, tokenizer, ["Mäd"], DRAWN, eos_ids=())[0]._replace(prompt=prompt)
    assert bare == known._replace(text="")
    assert list(stream_ids(model, None, prompt, DRAWN)) == known.ids
    with pytest.raises(GenerationError, match="a prompt of text needs a tokenizer; give token ids"):
        complete(model, None, ["Mäd"], DRAWN)


@pytest.mark.parametrize("with_tokenizer", [True, False])
def test_a_loaded_model_takes_ids(
    tmp_path: Path, model: Any, tokenizer: Tokenizer, with_tokenizer: bool
) -> None:
    save_model(model, tmp_path / "saved", tokenizer=tokenizer if with_tokenizer else None)
    lm = wordloom.load(tmp_path / "saved", device="cpu")
    drawn: dict[str, Any] = {"seed": 3, "max_new_tokens": 8}
    ids = lm.generate([1, 2], **drawn)
    assert list(lm.stream([1, 2], **drawn)) == ids
    assert [token.id for token in lm.next_tokens([1, 2], 3)] == [
        token.id for token in next_tokens(model, None, [1, 2], 3)
    ]
    assert [s.ids for s in lm.score([1, 2], [[3], [4, 5]])] == [[3], [4, 5]]
    assert lm.generate([[1, 2], [3]], **drawn)[0] == ids
    array = np.array([9, 2, 9, 1])[::-2][::-1][::-1]  # 1, 2, not contiguous
    kinds = (torch.tensor([1, 2]), torch.tensor([1, 2], dtype=torch.uint8), array, array.astype(np.uint16))
    for one in (*kinds, list(array), [torch.tensor(1), np.int8(2)], range(1, 3), iter([1, 2]), (1, 2)):
        assert lm.generate(one, **drawn) == ids, one
    for prompt in kinds:
        assert list(lm.stream(prompt, **drawn)) == ids
        assert lm.next_tokens(prompt, 3) == lm.next_tokens([1, 2], 3)
        assert lm.score(prompt, torch.tensor([[3], [4]])) == lm.score([1, 2], [[3], [4]])
        assert lm.generate([prompt, np.array([3])], **drawn)[0] == ids
    assert lm.generate(torch.tensor([[1, 2], [3, 4]]), **drawn)[0] == ids
    assert lm.generate(array, **drawn, stop_ids=np.array([ids[3]])) == ids[: ids.index(ids[3]) + 1]
    for wrong in (b"ab", bytearray(b"ab"), [b"ab"], [1.0], np.array([1.0]), torch.tensor([1.0, 2]), [True], 1,
                  [torch.tensor(1.5)], torch.tensor(1), np.int64(1), torch.tensor([True]), None, [None],
                  torch.zeros(1, 1, 2, dtype=int)):  # fmt: skip
        with pytest.raises(GenerationError, match=r"whole numbers") as caught:
            lm.generate(wrong)
        assert "\n" not in str(caught.value)
        with pytest.raises(GenerationError, match=r"whole numbers|give lists of ids"):
            lm.score([1], wrong if isinstance(wrong, bytes) else [wrong])
    with pytest.raises(GenerationError, match=r"stop_ids \(--stop-id\) has 9999, and the vocabulary is 0 to"):
        lm.generate([1, 2], stop_ids=9999)
    if with_tokenizer:
        end = tokenizer.decode(ids)[3]
        cut = lm.generate([1, 2], **drawn, stop=end)
        assert tokenizer.decode(cut) == tokenizer.decode(ids).partition(end)[0] + end
        return
    with pytest.raises(GenerationError, match="stop 'a' is text"):
        lm.generate([1, 2], stop="a")
    with pytest.raises(CheckpointError, match="has no tokenizer, which text needs; give token ids, or put"):
        lm.next_tokens("abc", 3)


def test_a_loaded_model_reads_special_tokens_as_chosen(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train([], kind="byte", special_tokens=("<|end|>",))
    model = tiny_model("llama", vocab_size=tokenizer.vocab_size, max_seq_len=96)
    save_model(model, tmp_path / "saved", tokenizer=tokenizer)
    lm = wordloom.load(tmp_path / "saved", device="cpu")
    text, drawn, lengths = "a<|end|>", Sampling(seed=3, max_new_tokens=8), []
    for specials in ("text", "interpret"):
        ids = list(tokenizer.prompt_ids(text, specials=specials))
        lengths.append(len(ids))
        pieces = lm.stream(text, drawn, specials=specials)
        assert "".join(pieces) == lm.generate(text, drawn, specials=specials)
        ours, theirs = lm.next_tokens(text, 3, specials=specials), lm.next_tokens(ids, 3)
        assert [token.logprob for token in ours] == [token.logprob for token in theirs]
        scored = lm.score(text, ["b"], specials=specials)[0]
        assert scored.total == pytest.approx(lm.score(ids, [scored.ids])[0].total, abs=1e-6)
    assert lengths == [8, 2]
    for ask in (lm.stream, lm.next_tokens, lambda prompt: lm.score(prompt, ["b"])):
        with pytest.raises(TokenizerError, match=r"<\|end\|>"):
            ask(text)


def test_the_checkpoints_max_new_tokens_is_lowered_to_fit(
    tmp_path: Path, model: Any, tokenizer: Tokenizer
) -> None:
    save_model(model, tmp_path / "saved", tokenizer=tokenizer, generation={"max_new_tokens": 96})
    lm = wordloom.load(tmp_path / "saved", device="cpu")
    expected = lm.generate([1, 2, 3], seed=3, max_new_tokens=93)
    assert lm.generate([1, 2, 3], seed=3) == list(lm.stream([1, 2, 3], seed=3)) == expected
    with pytest.raises(GenerationError, match="ask for at most 93 new tokens"):
        lm.generate([1, 2, 3], max_new_tokens=96)


def test_ids_that_no_token_has_are_not_drawn(tokenizer: Tokenizer) -> None:
    wide = tiny_model("llama", vocab_size=2 * tokenizer.vocab_size, max_seq_len=96)
    ids = list(stream_ids(wide, tokenizer, [1, 2], DRAWN, eos_ids=()))
    assert max(ids) < tokenizer.vocab_size <= max(stream_ids(wide, None, [1, 2], DRAWN))


def test_what_stops_is_in_ids_and_not_in_text(model: Any, tokenizer: Tokenizer) -> None:
    free = complete(model, tokenizer, ["Mäd"], DRAWN)[0]
    token = free.ids[5]
    cut = free.ids.index(token)
    for options, sampling in (
        ({"eos_ids": (token,)}, DRAWN),
        ({}, Sampling(temperature=1.0, top_k=None, seed=3, max_new_tokens=40, stop_ids=(token,))),
    ):
        done = complete(model, tokenizer, ["Mäd"], sampling, **options)[0]
        assert done.ids == free.ids[: cut + 1]
        assert done.finish_reason == ("eos" if options else "stop")
        decoder = tokenizer.stream_decoder(tokenizer.prompt_ids("Mäd"), skip_special_tokens=True)
        assert done.text == "".join(map(decoder.push, free.ids[:cut])) + decoder.flush()


def test_prompts_and_samples_make_rows(model: Any, tokenizer: Tokenizer) -> None:
    sampling = Sampling(temperature=1.0, seed=3, max_new_tokens=6, samples=2)
    done = complete(model, tokenizer, ["Zoë", "She said"], sampling)
    assert [(c.row, c.prompt) for c in done] == [(0, "Zoë"), (1, "Zoë"), (2, "She said"), (3, "She said")]
    assert [c.text for c in done] == generate_text(model, tokenizer, ["Zoë", "She said"], sampling)
    one = Sampling(temperature=1.0, seed=3, max_new_tokens=6)
    assert generate_text(model, tokenizer, "She said", one, first_row=3) == done[3].text
    with pytest.raises(GenerationError, match="one sample streams, not 2"):
        stream_text(model, tokenizer, "Zoë", sampling)


def test_mistakes_are_told_when_asked_not_when_read(model: Any, tokenizer: Tokenizer) -> None:
    with pytest.raises(GenerationError, match="more than max_seq_len 96 holds"):
        stream_text(model, tokenizer, "Mäd", Sampling(max_new_tokens=1000))


@pytest.mark.parametrize("with_tokenizer", [True, False])
@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ([], "prompt 0 has no tokens"),
        (["Once", "Lily"], "prompt 0 has 'Once', not a token id"),
        ([[1, 2]], r"prompt 0 has \[1, 2\], not a token id"),
        ([1.0], "prompt 0 has 1.0, not a token id"),
        ([1, 9999], "prompt 0 has id 9999, but the model's vocabulary is 0 to"),
    ],
    ids=str,
)
def test_what_are_no_ids_is_one_clear_line(
    model: Any, tokenizer: Tokenizer, prompt: Any, said: str, with_tokenizer: bool
) -> None:
    reader = tokenizer if with_tokenizer else None
    for ask in (
        lambda: stream_ids(model, reader, prompt),
        lambda: score(model, reader, prompt, [[1]]),
        lambda: next_tokens(model, reader, prompt, 3),
    ):
        with pytest.raises(GenerationError, match=said):
            ask()


def test_an_empty_prompt_begins_a_text(model: Any) -> None:
    tokenizer = Tokenizer.train([], kind="byte")
    assert prompt_ids(tokenizer, "") == [tokenizer.eos_id]
    bare = Tokenizer.train(["abc"], kind="char", special_tokens=())
    with pytest.raises(GenerationError, match="an empty prompt needs a tokenizer with a bos or eos token"):
        prompt_ids(bare, "")


def test_scores_are_sums_of_log_probabilities(model: Any, tokenizer: Tokenizer) -> None:
    continuations = ["chen", "chen namens Zoë", "", "x"[:0] + "aß"]
    for scored in score(model, tokenizer, "Ein Mäd", continuations):
        prompt, ids = continuation_ids(tokenizer, "Ein Mäd", str(scored.continuation))
        assert scored.ids == ids
        with torch.no_grad():
            logprobs = model(torch.tensor([prompt + ids])).log_softmax(-1)[0, len(prompt) - 1 : -1]
        expected = [float(logprobs[i, token]) for i, token in enumerate(ids)]
        assert scored.per_token == pytest.approx(expected, abs=1e-5)
        assert scored.total == pytest.approx(sum(expected), abs=1e-4)
        assert scored.greedy == all(int(logprobs[i].argmax()) == token for i, token in enumerate(ids))
        assert len(scored.tokens) == len(ids)


def test_ids_score_as_the_text_they_stand_for(model: Any, tokenizer: Tokenizer) -> None:
    texts = score(model, tokenizer, "Ein Mäd", ["chen", "", "chen namens"])
    prompt, ids = tokenizer.prompt_ids("Ein Mäd"), [scored.ids for scored in texts]
    assert score(model, tokenizer, prompt, ids) == [s._replace(continuation=None) for s in texts]
    assert score(model, None, prompt, ids) == [
        s._replace(continuation=None, tokens=[""] * len(s.ids)) for s in texts
    ]


@pytest.mark.parametrize(
    ("prompt", "continuations", "said"),
    [
        ("Ein", "aß", r"after a prompt of text give a list of texts, such as \[' yes'\], not 'aß'"),
        ("Ein", ["aß", [3]], r"give a list of texts, .*, not \[3\]"),
        ([1, 2], "aß", r"after a prompt of ids give lists of ids, such as \[\[3\]\], not 'aß'"),
        ([1, 2], ["aß"], "give lists of ids, .*, not 'aß'"),
        ([1, 2], [3, 4], "give lists of ids, .*, not 3"),
        ([1, 2], [[3], [9999]], "continuation 1 has id 9999, but the model's vocabulary is 0 to"),
    ],
    ids=str,
)
def test_continuations_of_another_kind_than_the_prompt_are_an_error(
    model: Any, tokenizer: Tokenizer, prompt: Any, continuations: Any, said: str
) -> None:
    with pytest.raises(GenerationError, match=said):
        score(model, tokenizer, prompt, continuations)


def test_greedy_text_scores_as_greedy(model: Any, tokenizer: Tokenizer) -> None:
    from wordloom.generate.scoring import score_ids

    prompt = tokenizer.prompt_ids("Ein")
    ids = complete(model, tokenizer, ["Ein"], Sampling(temperature=0, max_new_tokens=8))[0].ids
    other = [*ids[:-1], (ids[-1] + 1) % tokenizer.vocab_size]
    assert [greedy for _, greedy in score_ids(model, prompt, [ids, other, []])] == [True, False, True]


def test_many_continuations_score_as_each_alone(model: Any, tokenizer: Tokenizer, monkeypatch: Any) -> None:
    from wordloom.generate import scoring

    continuations = ["chen", "chen namens Zoë aß", "n", " café, déjà vu", "!"]
    alone = [score(model, tokenizer, "Ein Mäd", [text])[0] for text in continuations]
    for budget in (4096, 60, 1):
        monkeypatch.setattr(scoring, "BATCH_TOKENS", budget)
        together = score(model, tokenizer, "Ein Mäd", continuations)
        for a, b in zip(alone, together, strict=True):
            assert a.per_token == pytest.approx(b.per_token, abs=1e-5)
            assert a[3:] == b[3:]


def test_a_score_that_does_not_fit_is_an_error(model: Any, tokenizer: Tokenizer) -> None:
    with pytest.raises(GenerationError, match=r"more than max_seq_len 96 holds; shorten the prompt"):
        score(model, tokenizer, "Ein Mäd", ["e" * 300])


def test_damaged_weights_score_nothing(tokenizer: Tokenizer) -> None:
    model = tiny_model("llama", vocab_size=tokenizer.vocab_size, max_seq_len=96)
    with torch.no_grad():
        model.lm_head.weight[3] = torch.nan
    for asked in (lambda: score(model, tokenizer, "a", ["b"]), lambda: next_tokens(model, tokenizer, "a", 2)):
        with pytest.raises(GenerationError, match="NaN"):
            asked()


def test_next_tokens_are_the_likeliest_in_order(model: Any, tokenizer: Tokenizer) -> None:
    ids = tokenizer.prompt_ids("Mäd")
    with torch.no_grad():
        expected = model(torch.tensor([ids]))[0, -1].log_softmax(-1)
    best = next_tokens(model, tokenizer, "Mäd", 7)
    assert [token.id for token in best] == expected.topk(7).indices.tolist()
    for token in best:
        assert token.logprob == pytest.approx(float(expected[token.id]), abs=1e-5)
        assert token.probability == pytest.approx(float(expected[token.id].exp()), abs=1e-6)
        assert token.text
    assert [t[0] for t in next_tokens(model, None, ids, 7)] == [t.id for t in best]
    whole = next_tokens(model, tokenizer, "Mäd", tokenizer.vocab_size)
    assert sum(token.probability for token in whole) == pytest.approx(1.0, abs=1e-5)


def test_next_tokens_put_the_lower_id_first_among_equals(model: Any, tokenizer: Tokenizer) -> None:
    with torch.no_grad():
        model.lm_head.weight.zero_()
    assert [token.id for token in next_tokens(model, tokenizer, "Mäd", 5)] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("k", [0, 10_000])
def test_next_tokens_outside_the_vocabulary_are_an_error(model: Any, tokenizer: Tokenizer, k: int) -> None:
    with pytest.raises(GenerationError, match="k is a whole number from 1 to the vocabulary's"):
        next_tokens(model, tokenizer, "Mäd", k)


def test_half_a_character_shows_by_its_name() -> None:
    tokenizer = Tokenizer.train([], kind="byte")
    model = utf8_model(tokenizer, "x🙂")
    best = next_tokens(model, tokenizer, "x", 1)[0]
    assert best.id == 0xF0
    assert best.text == tokenizer.id_to_token(0xF0)


class Echo:
    """A decoder whose tokens are characters' code points."""

    def push(self, token: int) -> str:
        return chr(token)

    def flush(self) -> str:
        return ""


def test_text_given_out_is_never_a_beginning_of_a_stop_string() -> None:
    watch = StopWatch(Echo(), ["aab"])  # type: ignore[arg-type]
    assert [watch.push(ord(c)) for c in "aaaab"] == ["", "", "a", "a", ""]
    assert watch.stopped


@pytest.mark.skipif("WORDLOOM_DATA" not in os.environ, reason="WORDLOOM_DATA is not set")
@pytest.mark.parametrize(
    ("prompt", "continuation", "pieces"),
    [
        ("Once upon a time", ", there", None),
        ("Once upon a ", "time", None),  # the prompt's own last token is the space
        ("Once upo", "n a time", None),
        ("", "Once upon", ["▁Once", "▁upon"]),
        ("Once", "", []),
    ],
)
def test_llama_continuations_decode_to_both_texts(prompt: str, continuation: str, pieces: Any) -> None:
    tokenizer = Tokenizer.from_pretrained(
        Path(os.environ["WORDLOOM_DATA"]) / "weights" / "stories260K" / "hf"
    )
    given, ids = continuation_ids(tokenizer, prompt, continuation)
    assert given == tokenizer.prompt_ids(prompt)
    assert tokenizer.decode([*given, *ids], skip_special_tokens=True) == prompt + continuation
    if pieces is not None:
        assert [tokenizer.id_to_token(token) for token in ids] == pieces

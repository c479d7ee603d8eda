"""Texts translated as they come, by a search or by draws; what is too long, and what is refused."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE

import pytest
import torch
from tests.run.translators import PAIRS, write_translator
from typer.testing import CliRunner

import wordloom
from wordloom.cli import app
from wordloom.errors import DataError, GenerationError, TokenizerError
from wordloom.generate import Sampling
from wordloom.run import Translation, Translator, load_as
from wordloom.run.models.text_stream import available_batches

SOURCES = [source for source, _ in PAIRS[:9]]
LONG = "eins zwei drei " * 20  # 60 tokens and the end, of 16 that the model takes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("translating") / "joint"
    write_translator(folder, separate=False)
    return folder


@pytest.fixture(scope="module")
def translator(folder: Path) -> Translator:
    return load_as(Translator, folder)


def run(*arguments: object, text: str = "", code: int = 0):
    done = CliRunner().invoke(app, ["translate", *map(str, arguments)], input=text)
    assert done.exit_code == code, done.output
    return done


def refused(*arguments: object, text: str = "") -> str:
    return str(run(*arguments, text=text, code=1).exception)


# -- as they come ----------------------------------------------------------------------------------------


def test_what_is_there_is_taken_together():
    go, full = threading.Event(), threading.Event()

    def items():
        yield 0
        go.wait()
        for number in range(1, 20):
            if number == 9:  # asked for when eight are there
                full.set()
            yield number
        raise ValueError("behind all others")

    pools = available_batches(items(), 8)
    assert next(pools) == [0]
    go.set()
    assert full.wait(60)
    assert next(pools) == list(range(1, 9))
    rest = []
    while len(rest) < 11:
        rest += next(pools)
    assert rest == list(range(9, 20))
    with pytest.raises(ValueError, match="behind all others"):
        next(pools)


def test_nothing_is_taken_for_one_who_has_left():
    given = threading.Event()

    def items():
        try:
            while True:
                yield 1
        finally:
            given.set()

    pools = available_batches(items(), 2)
    next(pools)
    pools.close()
    assert given.wait(60)


def test_a_program_ends_while_its_standard_input_is_waited_for():
    code = f"""
import runpy, sys
available_batches = runpy.run_path({available_batches.__code__.co_filename!r})["available_batches"]
print(next(available_batches(iter(sys.stdin.buffer.readline, b""), 4)))
sys.exit(3)
"""
    command = [sys.executable, "-S", "-c", code]
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=PIPE) as process:
        process.stdin.write(b"one\n")
        process.stdin.flush()
        assert process.stdout.read() == b"[b'one\\n']\n"
        assert (process.wait(), process.stderr.read()) == (3, b"")


@pytest.mark.parametrize("json_lines", [False, True])
def test_a_line_in_a_pipe_is_answered_before_the_next(folder, translator, forked, tmp_path, json_lines):
    ends = [str(tmp_path / "in"), str(tmp_path / "out")]
    for end in ends:
        os.mkfifo(end)
    code = f"""
import os
os.dup2(os.open({ends[0]!r}, os.O_RDONLY), 0)
os.dup2(os.open({ends[1]!r}, os.O_WRONLY), 1)
from wordloom.cli import main; main()
"""
    process = forked("translate", folder, *["--json"] * json_lines, code=code)
    with open(ends[0], "wb", buffering=0) as asking, open(ends[1], "rb", buffering=0) as answers:
        expected = [best[0].text for best in translator.translate(SOURCES[2:4])]
        for source, text in zip(SOURCES[2:4], expected, strict=True):
            asking.write(source.encode() + b"\n")
            assert select.select([answers], [], [], 60)[0], "no answer"
            answer = answers.readline().decode().removesuffix("\n")
            if json_lines:
                assert json.loads(answer)["source"] == source
                answer = json.loads(answer)["translations"][0]["text"]
            assert answer == text
        asking.write(f"{LONG}\n".encode())  # it ends while its standard input is read
        assert answers.read() == b""
        done = process.completed()
    assert done.returncode == 2
    errors = [line for line in done.stderr.splitlines() if not line.startswith("compiling the decoding")]
    assert len(errors) == 1
    assert "standard input:3 has 61 tokens and the model takes 16; divide it" in done.stderr


def test_many_texts_in_a_pipe_are_those_in_a_file(folder, tmp_path):
    texts = [source for source, _ in PAIRS] * 3 + ["", "Fünf"]
    (tmp_path / "in.txt").write_text("\n".join(texts))  # the last line without its end
    options = (folder, "--beams", 2, "--max-new-tokens", 4, "--batch-size", 7)
    piped = run(*options, text="\n".join(texts)).stdout
    assert piped == run(*options, tmp_path / "in.txt").stdout
    assert piped.count("\n") == len(texts)


# -- as many as asked for --------------------------------------------------------------------------------


def test_each_text_becomes_n_lines(folder, translator):
    texts = [SOURCES[3], "", "  ", SOURCES[4]]
    asked = (folder, "--beams", 3, "--n-best", 3, "--max-new-tokens", 5)
    lines = run(*asked, text="\n".join(texts)).stdout.split("\n")
    found = list(translator.translate(texts, beams=3, n_best=3, max_new_tokens=5))
    assert lines == [*(one.text for some in found for one in some), ""]
    assert found[1] == found[2] == [Translation("", 0.0)] * 3
    # the end is forced on the only token, so there is one translation
    alone = [len(some) for some in translator.translate(texts, beams=3, n_best=3, max_new_tokens=1)]
    assert alone == [1, 3, 3, 1]
    assert run(*asked[:-1], 1, text="\n".join(texts)).stdout == "\n" * 12
    objects = run(*asked[:-1], 1, "--json", text="\n".join(texts)).stdout.splitlines()
    assert [len(json.loads(line)["translations"]) for line in objects] == alone


def test_a_translation_is_one_line():
    assert Translation("a\nb\r\nc\rd\u2028e\u2029f\x85g", 0.0).line == "a b c d e f g"


@pytest.mark.parametrize("name", ["joint", "two"])
def test_at_the_limit_hypotheses_are_transformers(folder, tmp_path, name):
    transformers = pytest.importorskip("transformers")
    if name == "two":
        write_translator(folder := tmp_path / "two", seed=3)
    translator = load_as(Translator, folder)
    theirs = transformers.MarianMTModel.from_pretrained(folder).eval()
    settings = {"beams": 3, "n_best": 3, "max_new_tokens": 5}
    for row in translator.source_rows(SOURCES[:4]):
        made = theirs.generate(
            torch.tensor([row]), num_beams=3, num_return_sequences=3, max_new_tokens=5, do_sample=False,
            bad_words_ids=[[translator.pad_id]], return_dict_in_generate=True, output_scores=True,
        )  # fmt: skip
        expected = [[i for i in ids if i != translator.pad_id] for ids in made.sequences.tolist()]
        for fast in (True, False):
            found = translator.search([row], **settings, fast=fast)[0]
            assert [one.ids for one in found] == expected
            torch.testing.assert_close(torch.tensor([one.score for one in found]), made.sequences_scores)
        assert all(ids[-1] == translator.eos_id for ids in expected)


def test_a_folder_that_forces_no_end_is_searched_without(folder, tmp_path):
    write_translator(tmp_path / "free", separate=False)
    path = tmp_path / "free/generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"forced_eos_token_id": None}))
    free, forced = load_as(Translator, tmp_path / "free"), load_as(Translator, folder)
    row = free.source_rows(["eins"])
    assert free.search(row, beams=1, max_new_tokens=2)[0][0].ids[-1] != free.eos_id
    assert forced.search(row, beams=1, max_new_tokens=2)[0][0].ids[-1] == free.eos_id
    path.unlink()  # then config.json is asked
    assert load_as(Translator, tmp_path / "free").forced_eos_id == free.eos_id


# -- what is too long ------------------------------------------------------------------------------------


def test_what_came_before_an_overlong_line_is_told(folder, tmp_path):
    path = tmp_path / "in.txt"
    path.write_text(f"eins\n\n{LONG}\nzwei\n")
    done = run(folder, path, "--beams", 1, code=1)
    assert done.stdout.count("\n") == 2
    assert str(done.exception).startswith(f"{path}:3 has 61 tokens and the model takes 16; divide it")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("eins zwei. Drei " + "vier " * 12, ["eins zwei.", "Drei " + "vier " * 12]),
        ("eins " * 40, ["eins " * 10] * 4),
        (" \u3000zwei\teins\n " + "drei " * 18, ["zwei\teins\n " + "drei " * 8, "drei " * 10]),
    ],
)
def test_an_overlong_text_is_cut_where_it_may_be(translator, text, parts):
    whole = next(translator.translate([text], overlong="split", beams=2, max_new_tokens=4))
    some = [best[0] for best in translator.translate(parts, beams=2, max_new_tokens=4)]
    assert [one.text for one in whole] == [" ".join(filter(None, (one.text for one in some)))]
    assert [sum(map(len, translator._divided(text)))] == [
        sum(len(row) for row in translator.source_rows(parts))
    ]
    apart = translator.search(translator.source_rows(parts), beams=2, max_new_tokens=4)
    logprobs, lengths = zip(*((found[0].logprob, len(found[0].ids)) for found in apart), strict=True)
    assert whole[0].score == pytest.approx(sum(logprobs) / sum(lengths))


def test_a_word_that_is_too_long_is_cut_between_tokens(tmp_path):
    from wordloom.models import build, config_from
    from wordloom.text import Tokenizer
    from wordloom.weights import save_model

    tokenizer = Tokenizer.train(["abcdefgh"], kind="char")
    shape = {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 16, "max_seq_len": 6}
    model = build(config_from("transformer", vocab_size=tokenizer.vocab_size, **shape))
    save_model(model, tmp_path, tokenizer=tokenizer)
    translator = load_as(Translator, tmp_path)
    rows = translator._divided("abcdefghabcdefg")
    assert [tokenizer.decode(row[:-1]) for row in rows] == ["abcde", "fghab", "cdefg"]
    assert {row[-1] for row in rows} == {translator.source_eos_id}


def test_split_at_the_command(folder, translator):
    texts = ["eins", LONG, "zwei"]
    options = (folder, "--too-long", "split", "--beams", 2, "--max-new-tokens", 3)
    found = translator.translate(texts, overlong="split", beams=2, max_new_tokens=3)
    assert run(*options, text="\n".join(texts)).stdout.splitlines() == [best[0].text for best in found]
    assert "joins one translation of each part; leave it out" in refused(*options, "--n-best", 2, text="a")
    with pytest.raises(GenerationError, match="overlong is 'spilt'; did you mean 'split'"):
        translator.translate(["a"], overlong="spilt")


# -- draws -----------------------------------------------------------------------------------------------


def test_what_is_drawn_for_a_text_depends_on_no_other(translator):
    sampling = Sampling(seed=5, samples=2, max_new_tokens=6, temperature=1.2, top_k=None)

    def drawn(texts, **changes):
        found = list(
            translator.translate(texts, sampling=replace(sampling, **changes.pop("how", {})), **changes)
        )
        assert all(some[0].score >= some[1].score for some in found)
        return [[one.text for one in some] for some in found]

    found = drawn(SOURCES)
    assert drawn(SOURCES, batch_size=2, read_ahead=3) == found
    again = drawn(["", "null", *SOURCES[2:4], "", *SOURCES[5:]])
    assert [again[i] for i in (0, 2, 3, 5, 8)] == [["", ""], *(found[i] for i in (2, 3, 5, 8))]
    assert drawn(SOURCES, how={"seed": 6}) != found
    assert drawn(SOURCES, how={"seed": None}) != drawn(SOURCES, how={"seed": None})


def test_parts_of_a_text_are_drawn_apart(translator):
    sampling = Sampling(seed=1, max_new_tokens=8, temperature=9.0)
    rows = translator._divided("eins " * 28)
    assert rows[0] == rows[1]
    whole = next(translator.translate(["eins " * 28], overlong="split", sampling=sampling))[0].text
    apart = [translator.sample(rows[:1], sampling, numbers=[number])[0][0] for number in (0, 1 << 32)]
    assert whole == " ".join(translator._text(one) for one in apart)
    assert apart[0].ids != apart[1].ids


def test_draws_end_and_never_begin_anew(translator):
    rows = translator.source_rows(SOURCES)
    sampling = Sampling(seed=2, samples=20, max_new_tokens=5, temperature=1e3, top_k=None)
    drawn = [one for some in translator.sample(rows, sampling) for one in some]
    assert {one.ids[-1] for one in drawn} == {translator.eos_id}
    assert max(len(one.ids) for one in drawn) == 5
    assert translator.pad_id not in {token for one in drawn for token in one.ids}
    assert len({token for one in drawn for token in one.ids}) == translator.tokenizer.vocab_size - 1
    greedy = [some[0] for some in translator.search(rows, beams=1, max_new_tokens=5)]
    cold = [some[0] for some in translator.sample(rows, Sampling(temperature=0, max_new_tokens=5))]
    assert [one.ids for one in cold] == [one.ids for one in greedy]
    assert [one.score for one in cold] == pytest.approx([one.score for one in greedy], abs=1e-5)


def test_draws_at_the_command(folder, translator):
    drawing = ("--temperature", 1.3, "--top-k", 9, "--top-p", 0.9, "--max-new-tokens", 5, "--n-best", 2)
    text = "\n".join(SOURCES)
    lines = run(folder, *drawing, "--seed", 4, text=text).stdout.splitlines()
    sampling = Sampling(temperature=1.3, top_k=9, top_p=0.9, max_new_tokens=5, samples=2, seed=4)
    assert lines == [one.text for some in translator.translate(SOURCES, sampling=sampling) for one in some]
    fresh = run(folder, *drawing, text=text)
    seed = fresh.stderr.removeprefix("seed ").strip()
    assert run(folder, *drawing, "--seed", seed, text=text).stdout == fresh.stdout


# -- settings --------------------------------------------------------------------------------------------


def test_early_stopping_and_dtype_at_the_command(folder, translator):
    for given, meant in (("true", True), ("false", False), ("never", "never")):
        options = ("--beams", 4, "--length-penalty", 3, "--json", "--early-stopping", given)
        objects = run(folder, *options, text="\n".join(SOURCES[:3])).stdout.splitlines()
        scores = [json.loads(line)["translations"][0]["score"] for line in objects]
        found = translator.translate(SOURCES[:3], beams=4, length_penalty=3, early_stopping=meant)
        assert scores == pytest.approx([best[0].score for best in found], rel=1e-5)
    low = json.loads(run(folder, "--dtype", "bf16", "--json", text="eins").stdout)["translations"][0]
    half = load_as(Translator, folder, dtype="bf16")
    assert low["score"] == next(half.translate(["eins"]))[0].score
    assert low["score"] != next(translator.translate(["eins"]))[0].score
    assert "[default: stdin]" in (said := " ".join(run("--help").stdout.split()))
    assert "[default: -]" not in said


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            ["--top-k", "3", "--seed", "1"],
            "without --temperature nothing is sampled: leave out --top-k, --seed",
        ),
        (["--temperature", "1", "--beams", "5"], "without a beam search: leave out --beams"),
        (["--max-new-tokens", "300"], "max_new_tokens 300: this model writes at most 15, as its max_seq_len"),
        (["--max-new-tokens", "16", "--temperature", "1"], "max_new_tokens 16: this model writes at most 15"),
        (["--dtype", "int4"], "unknown dtype 'int4'"),
    ],
)
def test_options_that_do_nothing_here_are_refused(folder, options, says):
    message = refused(folder, *options, text="eins")
    assert says in message
    assert "\n" not in message


def test_what_is_no_list_of_texts_is_refused(translator):
    with pytest.raises(DataError, match="texts is one string"):
        translator.translate("Ein Hund.")
    with pytest.raises(DataError, match="texts must be a list of strings, not None"):
        translator.translate(None)
    for wrong in (None, 7, ["eins"], b"eins"):
        with pytest.raises(DataError, match=r"text 2 is not text but .*; give each as a str"):
            list(translator.translate(["eins", wrong], max_new_tokens=1))
    for given in ({"read_ahead": -1}, {"read_ahead": 0}, {"batch_size": 0}):
        with pytest.raises(GenerationError, match=f"{next(iter(given))} is a number of texts above 0, not"):
            translator.translate(["eins"], **given)
    with pytest.raises(GenerationError, match=r"instead of a search: leave out beams, n_best; Sampling has"):
        translator.translate(["eins"], beams=3, n_best=2, sampling=Sampling())


def test_a_row_of_a_file_is_named_in_every_format(folder, tmp_path):
    rows = [{"de": "eins"}, {"de": LONG}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "--field" in refused(folder, tmp_path / "in.jsonl")
    message = refused(folder, tmp_path / "in.jsonl", "--field", "de")
    assert message.startswith(f"{tmp_path / 'in.jsonl'}, text 2 has 61 tokens")


def test_advice_is_what_may_be_done(folder, translator, tmp_path):
    (tmp_path / "in.txt").write_bytes(b"eins\n\xff\n")
    told = refused(folder, tmp_path / "in.txt")
    assert "--encoding-errors replace" in told
    assert "bytes" not in told.partition("UTF-8")[2]  # translate does not take it
    tokenizer = translator.tokenizer
    with pytest.raises(TokenizerError, match=r'to take it as text, or "interpret" to get its id'):
        tokenizer.encode(f"eins {tokenizer.id_to_token(tokenizer.eos_id)}")


def test_a_translator_saves_itself(translator, tmp_path):
    translator.save_pretrained(tmp_path / "again")
    again = wordloom.load(tmp_path / "again")
    assert list(again.translate(SOURCES[:2])) == list(translator.translate(SOURCES[:2]))
    with pytest.raises(wordloom.WordloomError, match="already holds files of a checkpoint"):
        again.save_pretrained(tmp_path / "again")
    again.save_pretrained(tmp_path / "again", overwrite=True)

"""Numbers, choices and labels of words at the command (questions: tests/run/tasks)."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import wordloom
from wordloom.cli import app
from wordloom.errors import CheckpointError, ConfigError, DataError, NonFiniteError, WordloomError
from wordloom.models import BertConfig, TaskConfig, build
from wordloom.models.task_model import SUMMARIES, TASKS, TaskModel
from wordloom.text import Tokenizer
from wordloom.weights import save_model

TEXTS = ["the cat sat on a mat", "a dog ran", "dogs slept"]
LABELS = {"token_classification": {"0": "O", "1": "B-PET"}, "classification": {"0": "no", "1": "yes"}}
QUESTION = {"query": "the cat", "choices": ["sat", "on a mat"], "gold": 1}
LONG = "the cat sat " * 10


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each task, of weights that know nothing."""
    place = tmp_path_factory.mktemp("headed")
    tokenizer = Tokenizer.train(TEXTS * 4, kind="wordpiece", vocab_size=80)
    for task in TASKS:
        body = BertConfig(
            vocab_size=tokenizer.vocab_size,
            dim=16,
            n_layers=1,
            n_heads=2,
            max_seq_len=24,
            pooler=task in SUMMARIES,
        )
        config = TaskConfig(body=body, task=task, id2label=LABELS.get(task, {}))
        model = build(config, generator=torch.Generator().manual_seed(0))
        save_model(model, place / task, tokenizer=tokenizer)
    (place / "texts.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    return place


def ran(*arguments: Any, text: str = "") -> str:
    return both(*arguments, text=text)[0]


def both(*arguments: Any, text: str = "") -> tuple[str, str]:
    """What goes to stdout and to stderr."""
    done = CliRunner().invoke(app, list(map(str, arguments)), input=text)
    if done.exit_code:
        raise done.exception
    return done.stdout, done.stderr


def test_numbers(place, tmp_path):
    scorer = wordloom.load(place / "regression")
    lines = ran("predict", place / "regression", place / "texts.txt").splitlines()
    assert lines == [f"{number:.4f}" for number in scorer.score(TEXTS)]
    (tmp_path / "pairs.tsv").write_text("a dog ran\tdogs slept\nthe cat\ta mat\n")
    columns = ("--text-column", 1, "--text-column", 2)
    told = ran("predict", place / "regression", tmp_path / "pairs.tsv", *columns, "--json").splitlines()
    pairs = [("a dog ran", "dogs slept"), ("the cat", "a mat")]
    assert [json.loads(line)["score"] for line in told] == pytest.approx(
        scorer.score(pairs).tolist(), abs=1e-6
    )
    assert ran("predict", place / "regression", text="a dog ran\n").splitlines() == lines[1:2]
    rows = "".join(f"{a}\t{b}\t{i}.5\n" for i, (a, b) in enumerate(pairs * 2))
    (tmp_path / "scored.tsv").write_text("text\tother\tscore\n" + rows)
    given = ("--text-column", "text,other", "--label-column", "score", "--json")
    told = json.loads(ran("evaluate", place / "regression", tmp_path / "scored.tsv", *given))
    assert (told["task"], told["counts"]["rows"]) == ("regression", 4)
    with pytest.raises(CheckpointError, match=r"has no recipe\.toml that names validation data"):
        ran("evaluate", place / "regression")
    with pytest.raises(WordloomError, match="leave out --top-k"):
        ran("predict", place / "regression", place / "texts.txt", "--top-k", 2)


def test_choices(place, tmp_path):
    (tmp_path / "q.csv").write_text("the cat,sat,ran,slept,B\nwhat ran,a dog,a mat,dogs,A\n")
    lines = [
        line.split("\t")
        for line in ran("predict", place / "multiple_choice", tmp_path / "q.csv").splitlines()
    ]
    assert [choices[int(number) - 1] for (number, _, _), choices in
            zip(lines, (["sat", "ran", "slept"], ["a dog", "a mat", "dogs"]), strict=True)] == [
        text for *_, text in lines
    ]  # fmt: skip
    fact = json.loads(ran("predict", place / "multiple_choice", tmp_path / "q.csv", "--json").splitlines()[0])
    assert sum(fact["probabilities"]) == pytest.approx(1, abs=1e-5)
    assert fact["choice"] == int(lines[0][0]) - 1
    scores = json.loads(ran("evaluate", place / "multiple_choice", tmp_path / "q.csv", "--json"))["scores"]
    assert {score["name"] for score in scores} == {"accuracy", "loss"}
    with pytest.raises(DataError, match="give a FILE of questions with choices"):
        ran("predict", place / "multiple_choice")


def test_longer_texts_are_windows_for_labels_of_words_alone(place):
    words = " ".join(["a dog ran"] * 20)
    told = ran("predict", place / "token_classification", "--too-long", "window", text=f"{words}\n")
    assert [line.split("\t")[0] for line in told.strip().splitlines()] == words.split()
    for task in ("classification", "regression", "multiple_choice"):
        done = CliRunner().invoke(
            app, ["predict", str(place / task), "-", "--too-long", "window"], input=words
        )
        assert done.exit_code == 2
        assert "allowed: error, cut" in done.stderr


def test_labels_of_words(place, tmp_path):
    told = ran("predict", place / "token_classification", place / "texts.txt")
    blocks = [block.splitlines() for block in told.strip().split("\n\n")]
    assert [[line.split("\t")[0] for line in block] for block in blocks] == [text.split() for text in TEXTS]
    assert {line.split("\t")[1] for block in blocks for line in block} <= {"O", "B-PET"}
    fact = json.loads(
        ran("predict", place / "token_classification", place / "texts.txt", "--json").splitlines()[0]
    )
    assert all(TEXTS[0][word["start"] : word["end"]] == word["word"] for word in fact["words"])
    (tmp_path / "some.conll").write_text("the O\ncat B-PET\n\nmat O\n")
    scores = json.loads(ran("evaluate", place / "token_classification", tmp_path / "some.conll", "--json"))
    assert "accuracy" in {score["name"] for score in scores["scores"]}
    told = ran("predict", place / "token_classification", tmp_path / "some.conll")  # its labels are not words
    blocks = [block.splitlines() for block in told.strip().split("\n\n")]
    assert [[line.split("\t")[0] for line in block] for block in blocks] == [["the", "cat"], ["mat"]]


@pytest.mark.parametrize("task", ["classification", "regression", "token_classification"])
def test_a_text_in_error_is_named_by_file_line_and_field(place, tmp_path, task):
    (tmp_path / "1.txt").write_text("a dog ran\ndogs slept\n")
    (tmp_path / "2.txt").write_text("a dog ran\n\n")
    (tmp_path / "2.jsonl").write_text('{"text": "a dog ran"}\n\n{"text": " "}\n')  # the second line is blank
    (tmp_path / "said.jsonl").write_text('{"said": null}\n')
    (tmp_path / "2.json").write_text('["a dog ran", ""]')
    (tmp_path / "2.tsv").write_text("said\ta\na dog ran\tb\n\tc\n")
    (tmp_path / "long.tsv").write_text(f"said\ta\na dog ran\tb\n{LONG}\tc\n")
    (tmp_path / "long.jsonl").write_text(json.dumps({"text": LONG}))
    (tmp_path / "bad.jsonl").write_text('{"text": "a dog ran"}\n{"text": "a\n')
    empty = "holds no word" if task == "token_classification" else "the text is empty; give one"
    long = "has (32|30) tokens"
    for name, options, where, what in (
        ("2.txt", (), "2.txt:2", empty),
        ("2.jsonl", (), "2.jsonl:3, field 'text'", empty),
        ("said.jsonl", ("--field", "said"), "said.jsonl:1, field 'said'", empty),
        ("2.json", (), "2.json, item 2", empty),
        ("2.tsv", ("--text-column", "said"), "2.tsv:3, column 'said'", empty),
        ("2.tsv", ("--text-column", "1"), "2.tsv:3, column 1", empty),
        ("long.tsv", ("--text-column", "said"), "long.tsv:3, column 'said'", long),
        ("long.jsonl", (), "long.jsonl:1, field 'text'", long),
        ("bad.jsonl", (), "bad.jsonl:2", r"not valid JSON \(\w+ string starting at column 10\)"),
        ("2.jsonl", ("--field", "x"), "2.jsonl:1", "no field 'x'; the fields there are: text"),
        ("2.tsv", (), "'2.tsv' is a table", "say which column holds its texts: --text-column"),
    ):
        first = () if "--text-column" in options else (tmp_path / "1.txt",)
        with pytest.raises(DataError) as raised:
            ran("predict", place / task, *first, tmp_path / name, *options)
        told = str(raised.value).replace(f"{tmp_path}/", "")
        assert told.startswith(where), told
        assert re.search(what, told), told


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_of_a_pair_in_error_the_column_is_named(place, tmp_path, task):
    (tmp_path / "2.tsv").write_text("one\ttwo\na dog ran\tdogs slept\na dog ran\t \n")
    (tmp_path / "long.tsv").write_text(f"one\ttwo\na dog ran\t{LONG}\n")
    columns = ("--text-column", "one", "--text-column", "two")
    for name, says in (
        ("2.tsv", "2.tsv:3, column 'two': the text is empty; give one, or leave the row out$"),
        ("long.tsv", "long.tsv:2: has 36 tokens and the model reads 24"),
    ):
        with pytest.raises(DataError, match=says):
            ran("predict", place / task, tmp_path / name, *columns)


@pytest.mark.parametrize("task", ["classification", "regression", "token_classification"])
def test_texts_that_are_too_long_are_refused_or_cut_and_named(place, task):
    texts = f"a dog ran\n{LONG}\n"
    with pytest.raises(DataError, match=r"^standard input:2: .*(the model reads 24|has room for 22).*cut"):
        ran("predict", place / task, text=texts)
    told, said = both("predict", place / task, "--too-long", "cut", text=texts)
    assert said == "note: 1 text is longer than the model reads and was truncated: 2\n"
    assert told
    first, second = map(
        json.loads, ran("predict", place / task, "--too-long", "cut", "--json", text=texts).splitlines()
    )
    if task == "token_classification":
        assert [word["label"] is None for word in second["words"]] == [False] * 22 + [True] * 8
    assert ("cut" in first, second["cut"]) == (False, True)
    assert both("predict", place / task, "--too-long", "cut", text="a dog ran\n")[1] == ""


def test_choices_that_are_too_long_are_refused_or_cut_and_named(place):
    lines = "".join(json.dumps({**QUESTION, "query": query}) + "\n" for query in ("the cat", LONG, "a dog"))
    where = r"standard input:2, choice 1: has 34 tokens .*\(at the command --too-long cut\)"
    with pytest.raises(DataError, match=where):
        ran("predict", place / "multiple_choice", "-", text=lines)
    told, said = both("predict", place / "multiple_choice", "-", "--too-long", "cut", "--json", text=lines)
    assert ["cut" in json.loads(line) for line in told.splitlines()] == [False, True, False]
    assert said == "note: 1 question is longer than the model reads and was truncated: 2\n"
    chooser = wordloom.load(place / "multiple_choice")
    chooser.too_long = "cut"
    assert [chooser.ask(query, QUESTION["choices"]).truncated for query in ("the cat", LONG)] == [False, True]


ROWS = {
    "regression": ("rows.tsv", "text\tscore\n{}\t1.5\na dog\t2.5\ndogs\t1\n", ("--label-column", "score")),
    "classification": ("rows.tsv", "text\tlabel\n{}\tno\na dog\tyes\n", ("--label-column", "label")),
    "token_classification": ("rows.conll", "{}\n\na O\ndog B-PET\n", ()),
    "multiple_choice": ("rows.jsonl", json.dumps({**QUESTION, "query": "{}"}) + "\n", ()),
}


@pytest.mark.parametrize("task", ROWS)
def test_what_is_scored_and_too_long_is_refused_or_read_as_asked(place, tmp_path, task):
    """``evaluate`` names an option that it has."""
    name, rows, columns = ROWS[task]
    long = "\n".join(f"{word} O" for word in LONG.split()) if task == "token_classification" else LONG
    (tmp_path / name).write_text(rows.replace("{}", long))
    given = ("evaluate", place / task, tmp_path / name, *columns, "--json")
    with pytest.raises(DataError, match=r"at the command --too-long"):
        ran(*given)
    assert json.loads(ran(*given, "--too-long", "cut"))["scores"]
    if task == "token_classification":
        counts = [json.loads(ran(*given, "--too-long", how))["counts"]["words"] for how in ("cut", "window")]
        assert counts[0] < counts[1] == len(LONG.split()) + 2
    else:
        done = CliRunner().invoke(app, [*map(str, given), "--too-long", "window"])
        assert done.exit_code == 2
        assert "allowed: error, cut" in " ".join(done.stderr.replace("│", " ").split())


def test_rows_are_scored_as_they_were_learnt_from(place, tmp_path):
    """By the recipe's train.seq_len and data.too_long, where the folder has one; of a file as without one."""
    shutil.copytree(place / "token_classification", tmp_path / "run")
    text = "\n".join(f"{word} O" for word in LONG.split())
    (tmp_path / "dev.conll").write_text(f"{text}\n\na O\ndog B-PET\n")
    (tmp_path / "run/recipe.toml").write_text(
        f"""description = "tests"
[data]
train = "{tmp_path}/train.conll"
validation = "{tmp_path}/dev.conll"
too_long = "window"
[train]
objective = "token_classification"
epochs = 1
seq_len = 12
"""
    )
    shutil.copy(tmp_path / "dev.conll", tmp_path / "train.conll")
    own, of_file = (
        json.loads(ran("evaluate", tmp_path / "run", *given, "--json"))["scores"]
        for given in ((), (tmp_path / "dev.conll",))
    )
    assert own == of_file


def test_a_classifier_cuts_as_asked(place):
    classifier = wordloom.load(place / "classification")
    with pytest.raises(DataError, match='too_long="cut"'):
        classifier.predict([LONG])
    classifier.too_long = "cut"
    assert [found.truncated for found in classifier.predict([LONG, "a dog"])] == [True, False]
    with pytest.raises(ConfigError, match="allowed: 'error', 'cut'"):
        classifier.too_long = "window"


def test_a_scorer_says_what_it_cut(place, caplog):
    scorer = wordloom.load(place / "regression")
    scorer.too_long = "cut"
    assert [one.truncated for one in scorer.predict(["a dog", LONG, "mat"])] == [False, True, False]
    assert not caplog.records
    scorer.score(["a dog", LONG, "mat"])
    assert "1 of 3 texts are longer than a row and were truncated" in caplog.text
    classifier = wordloom.load(place / "classification")
    assert [one.truncated for one in classifier.predict(["a dog", "mat"])] == [False, False]
    caplog.clear()
    classifier.too_long = "cut"
    assert classifier.probabilities(["a dog", LONG]).shape == (2, 2)
    assert "1 of 2 texts are longer than a row and were truncated" in caplog.text


def test_options_that_would_do_nothing_are_refused(place, tmp_path):
    (tmp_path / "scored.tsv").write_bytes("text\tscore\nna\xefve\t1\ncat\t2\n".encode("latin-1"))
    scored = ("evaluate", place / "regression", tmp_path / "scored.tsv")
    with pytest.raises(WordloomError, match="leave out --first"):
        ran(*scored, "--first", 1)
    columns = ("--text-column", "text", "--label-column", "score")
    with pytest.raises(WordloomError, match="not valid UTF-8"):
        ran(*scored, *columns)
    assert "2 rows" in ran(*scored, *columns, "--encoding-errors", "replace")
    (tmp_path / "some.conll").write_text("the O\n")
    with pytest.raises(WordloomError, match="leave out --header"):
        ran("evaluate", place / "token_classification", tmp_path / "some.conll", "--header")
    columns = ("--text-column", "1", "--text-column", "2")
    told = [str(place / "token_classification"), str(tmp_path / "scored.tsv"), *columns]
    done = CliRunner().invoke(app, ["predict", *told])
    assert done.exit_code == 2
    assert "reads rows of one text" in " ".join(done.stderr.split())
    with pytest.raises(WordloomError, match="leave out --threshold"):
        ran("predict", place / "classification", tmp_path / "scored.tsv", "--threshold", 1)


def test_standard_input_is_read(place):
    line = json.dumps(QUESTION) + "\n"
    assert ran("predict", place / "multiple_choice", "-", text=line).count("\n") == 1
    assert json.loads(ran("evaluate", place / "multiple_choice", "-", "--json", text=line))["scores"]
    words = ran("evaluate", place / "token_classification", "-", "--json", text="the O\ncat B-PET\n")
    assert json.loads(words)["counts"]["words"] == 2
    asked = json.dumps({"question": "what sat", "context": "the naïve 🙂 cat"}) + "\n\n"
    number, text, start, end, _ = ran("predict", place / "question_answering", "-", text=asked).split("\t")
    assert (number, "the naïve 🙂 cat"[int(start) : int(end)]) == ("1", text)
    with pytest.raises(DataError, match="'-' is given twice"):
        ran("predict", place / "multiple_choice", "-", "-", text=line)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b'{"question": "who"}', r":1: context: is missing; expected text"),
        (b'{"question": 3, "context": "a"}', r":1: question: is a number \(3\); expected text"),
        (b"[1]", r":1: holds a list; each line must be a JSON object"),
        (b'{"question": "\xff", "context": "b"}', r"q\.jsonl: byte 14 \(0xff\) is not valid UTF-8"),
    ],
)
def test_a_question_that_is_none_is_one_clear_line(place, tmp_path, line, says):
    (tmp_path / "q.jsonl").write_bytes(line + b"\n")
    with pytest.raises(DataError, match=says):
        ran("predict", place / "question_answering", tmp_path / "q.jsonl")
    with pytest.raises(DataError, match=r"no file or named data set '.*none\.jsonl'"):
        ran("predict", place / "question_answering", tmp_path / "none.jsonl")


@pytest.mark.parametrize("task", TASKS)
def test_a_head_is_no_embedder(place, task):
    with pytest.raises(CheckpointError, match="embeds no texts"):
        ran("embed", place / task, place / "texts.txt")


def test_a_damaged_model_gives_no_class(place):
    classifier = wordloom.load(place / "classification")
    with torch.no_grad():
        classifier.model.classifier.weight.fill_(torch.nan)
    with pytest.raises(NonFiniteError, match="no finite probability; its weights are damaged"):
        classifier.predict(["a dog"])


@pytest.mark.parametrize("task", TASKS)
def test_its_parameters_are_counted(place, task):
    model = wordloom.load(place / task).model
    told = json.loads(ran("inspect", place / task, "--json"))
    assert told["total"] == sum(p.numel() for p in model.parameters())
    assert (told["config"]["task"], told["config"]["body"]["dim"]) == (task, 16)
    people = ran("inspect", place / task)
    assert f"Bert for {task}, 1 layers, dim 16, 2 heads" in " ".join(people.split())
    assert f"{told['total']:,}" in people


def test_predict_takes_a_batch_size_and_a_dtype(place, tmp_path, monkeypatch):
    """Batches of any size give the same lines; a question that lost its end keeps its number."""
    (tmp_path / "t.txt").write_text("".join(f"{text}\n" for text in [*TEXTS, LONG, "dogs"]))
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(QUESTION) + "\n" for _ in range(5)))
    questions = [{"id": str(n), "question": "who", "context": TEXTS[n % 3]} for n in range(5)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(one) + "\n" for one in questions))
    for task in TASKS:
        files = {"multiple_choice": "q.jsonl", "question_answering": "a.jsonl"}
        given = ("predict", place / task, tmp_path / files.get(task, "t.txt"), "--too-long", "cut")
        sizes = [both(*given, *size) for size in ((), *(("--batch-size", n) for n in (1, 2, 7)))]
        assert len(set(sizes)) == 1
        if task not in files:
            assert sizes[0][1] == "note: 1 text is longer than the model reads and was truncated: 4\n"
        assert ran(*given, "--dtype", "fp32") == sizes[0][0]
        assert len(ran(*given, "--dtype", "bf16").splitlines()) == len(sizes[0][0].splitlines())
        with pytest.raises(WordloomError, match="fp64"):
            ran(*given, "--dtype", "fp64")
    # the weights are loaded as asked, and no pass has more texts than asked
    seen = []
    forward = TaskModel.forward

    def watched(self, tokens, *more, **named):
        seen.append((tokens.shape[0], next(self.parameters()).dtype))
        return forward(self, tokens, *more, **named)

    monkeypatch.setattr(TaskModel, "forward", watched)
    given = ("predict", place / "classification", tmp_path / "t.txt", "--too-long", "cut")
    ran(*given, "--batch-size", 2, "--dtype", "bf16")
    assert max(rows for rows, _ in seen) == 2
    assert {dtype for _, dtype in seen} == {torch.bfloat16}

"""A head that answers questions out of texts: trained, resumed, asked, scored."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.run.bodies import write_body as write_a_body
from tests.run.tasks.test_fine_tuning import write_body
from torch.nn import functional as F
from typer.testing import CliRunner

import wordloom
from wordloom.cli import app
from wordloom.data import questions
from wordloom.data.batches.causal import IGNORE
from wordloom.data.batches.framed import MarkedInputs
from wordloom.data.batches.labelled import LabelBatch
from wordloom.data.rows.squad import Answer, Question
from wordloom.errors import CheckpointError, DataError, RecipeError
from wordloom.evaluate.question_answering import Found, Span
from wordloom.objectives import question_answering
from wordloom.run import TextClassifier, load_as, train
from wordloom.run.models.heads.question_answering import QuestionAnswerer
from wordloom.weights import load_config

CONTEXTS = ["the cat sat on a mat", "a dog ran far and slept", "dogs run far", "a cat sits"]
RECIPE = """
name = "asked"
seed = 3
[data]
train = "{place}/train.json"
doc_stride = 3
max_query = 6
validation_fraction = 0.25
[train]
objective = "question_answering"
steps = 6
seq_len = 16
batch_size = 4
learning_rate = 3e-3
precision = "fp32"
evaluate_every = 3
save_every = 3
keep_last = 9
"""


def squad(answers: list[str]) -> dict:
    paragraphs = [
        {
            "context": context,
            "qas": [
                {
                    "id": f"q{i}-{j}",
                    "question": "who ran",
                    "answers": [{"text": answer, "answer_start": context.index(answer)}],
                }
                for j, answer in enumerate(a for a in answers if a in context)
            ],
        }
        for i, context in enumerate(CONTEXTS)
    ]
    return {"version": "1.1", "data": [{"title": "pets", "paragraphs": paragraphs}]}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("asked")
    write_body(place / "body")
    (place / "train.json").write_text(json.dumps(squad(["cat", "dog", "far"])))
    (place / "recipe.toml").write_text(RECIPE.format(place=place))
    train(str(place / "recipe.toml"), out=place / "run", start_from=place / "body")
    return place


def test_a_run_leaves_a_model_that_answers(place):
    config = load_config(place / "run")
    assert (config.task, config.body.pooler, config.outputs) == ("question_answering", False, 2)
    answerer = wordloom.load(place / "run")
    assert isinstance(answerer, QuestionAnswerer)
    assert (answerer.max_seq_len, answerer.doc_stride, answerer.max_query) == (16, 3, 6)
    found = answerer.ask("who ran", "a dog ran far and slept and sat on a mat on a mat", n_best=3)
    assert 1 <= len(found.spans) <= 3
    assert all(
        "a dog ran far and slept and sat on a mat on a mat"[s.start : s.end] == s.text for s in found.spans
    )
    assert sum(span.probability for span in found.spans) == pytest.approx(1)
    scores = answerer.evaluate(list(questions(place / "train.json")))
    assert set(scores) == {"exact_match", "f1"}
    ledger = json.loads((place / "run/ledger.json").read_text())
    assert ledger["train"]["rows"] + ledger["validation"]["rows"] == 6
    with pytest.raises(CheckpointError, match="holds a model for question answering"):
        load_as(TextClassifier, place / "run")


def test_signatures_name_the_questions_and_all_their_answers(place):
    """Two scores may be compared when their signatures are equal."""
    answerer = wordloom.load(place / "run")
    text, oslo = "Anna went to Oslo by train.", (Answer("Oslo", 13),)
    asked = [Question(str(n), "", text, f"where to {n}?", oslo, False, "here") for n in range(2)]
    others = [asked[0], asked[1]._replace(answers=(Answer("Oslo", 13), Answer("train", 21)))]
    first, again, second = (answerer.evaluate(some)["f1"].signature for some in (asked, list(asked), others))
    assert first == again != second


def test_answers_that_stand_elsewhere_are_moved_where_asked(place, capsys):
    rows = squad(["cat"])
    moved = sum(len(q["answers"]) for p in rows["data"][0]["paragraphs"] for q in p["qas"])
    for paragraph in rows["data"][0]["paragraphs"]:
        for question in paragraph["qas"]:
            for answer in question["answers"]:
                answer["answer_start"] += 1
    (place / "moved.json").write_text(json.dumps(rows))
    changes = [f"data.train={place / 'moved.json'}", "data.validation_fraction=0", "train.steps=1"]
    changes.append("train.evaluate_every=0")
    with pytest.raises(DataError, match=r"answer_start: is .*data\.misplaced"):
        train(str(place / "recipe.toml"), changes, out=place / "not", start_from=place / "body")
    changes.append("data.misplaced=nearest")
    train(str(place / "recipe.toml"), changes, out=place / "moved", start_from=place / "body")
    assert f"{moved} answer(s) moved to their nearest place" in capsys.readouterr().err


def test_a_causal_body_reads_them_too_with_a_token_before_texts_or_without(place, tmp_path):
    write_a_body(tmp_path / "gpt", CONTEXTS, "gpt2", max_seq_len=48)
    told = ["train.seq_len=48", "data.max_query=12", "train.steps=2", "train.save_every=0"]
    train(str(place / "recipe.toml"), told, out=tmp_path / "run", start_from=tmp_path / "gpt")
    answerer = wordloom.load(tmp_path / "run")
    assert answerer.tokenizer.bos_id is None
    context = CONTEXTS[1]
    assert all(context[s.start : s.end] == s.text for s in answerer.ask("who ran", context, n_best=3).spans)


def test_what_was_learnt_by_heart_is_found(place):
    train(
        str(place / "recipe.toml"),
        ["train.steps=150", "data.validation_fraction=0", "train.evaluate_every=0"],
        out=place / "learnt",
        start_from=place / "body",
    )
    asked = list(questions(place / "train.json"))
    scores = wordloom.load(place / "learnt").evaluate(asked)
    assert scores["exact_match"].value >= 50  # two of its texts have two answers to one question


def test_a_run_cut_short_ends_with_the_same_bits(place, tmp_path):
    shutil.copytree(place / "run", tmp_path / "cut")
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "cut" / name).unlink()
    shutil.rmtree(tmp_path / "cut/checkpoints/step-6")
    train(str(place / "recipe.toml"), out=tmp_path / "cut", start_from=place / "body", resume=True)
    whole, cut = (load_file(folder / "model.safetensors") for folder in (place / "run", tmp_path / "cut"))
    assert all(torch.equal(whole[name], cut[name]) for name in whole)


def test_padding_takes_no_part_in_the_loss():
    logits = torch.randn(2, 4, 2, generator=torch.Generator().manual_seed(0))
    attend = torch.tensor([[True] * 4, [True, True, False, False]])
    targets = torch.tensor([[1, 3], [0, IGNORE]])
    batch = LabelBatch(MarkedInputs(torch.zeros(2, 4, dtype=torch.long), None, attend), targets)
    loss = question_answering(lambda *_: logits, batch)
    wanted = [
        F.cross_entropy(logits[0, :, 0], targets[0, 0]),
        F.cross_entropy(logits[0, :, 1], targets[0, 1]),
        F.cross_entropy(logits[1, :2, 0], targets[1, 0]),
    ]
    torch.testing.assert_close(loss.total, torch.stack(wanted).sum())
    assert int(loss.count) == 3


def test_questions_without_answers_are_asked_for(place, tmp_path):
    rows = squad(["cat"])
    rows["data"][0]["paragraphs"][1]["qas"] = [
        {"id": "none", "question": "who flew", "is_impossible": True, "answers": []}
    ]
    (tmp_path / "train.json").write_text(json.dumps(rows))
    (tmp_path / "recipe.toml").write_text(RECIPE.format(place=tmp_path))
    recipe = str(tmp_path / "recipe.toml")
    with pytest.raises(RecipeError, match=r"has no answer, and data\.no_answer is false"):
        train(recipe, out=tmp_path / "no", start_from=place / "body")
    alone = ["data.no_answer=true", "train.steps=2"]
    with pytest.raises(RecipeError, match=r"validation_fraction 0\.25 of 3 questions .* is none"):
        train(recipe, alone, out=tmp_path / "run", start_from=place / "body")
    twice = Path(recipe).read_text()
    twice = twice.replace("validation_fraction = 0.25", f'validation = "{tmp_path}/train.json"')
    (tmp_path / "twice.toml").write_text(twice)
    with pytest.raises(RecipeError, match="is both a training and a validation file"):
        train(str(tmp_path / "twice.toml"), alone, out=tmp_path / "run", start_from=place / "body")
    alone += ["data.validation_fraction=0", "train.evaluate_every=0"]
    train(recipe, alone, out=tmp_path / "run", start_from=place / "body")
    answerer = wordloom.load(tmp_path / "run")
    assert answerer.no_answer
    found = answerer.ask("who flew", CONTEXTS[1])
    assert found.no_answer is not None
    never = replace(answerer, threshold=-1e9)
    assert never.predict(questions(tmp_path / "train.json"))[0].text == ""
    asked = list(questions(tmp_path / "train.json"))
    assert "best_f1" in answerer.evaluate(asked)
    sure = replace(answerer, threshold=1e9).evaluate(asked)  # always an answer
    none = never.evaluate(asked)
    assert (sure.counts["said_none"], none.counts["said_none"]) == (0, len(asked))
    assert none["exact_match_impossible"].value == 100
    assert replace(never, n_best=1).evaluate(asked)["exact_match"].value == none["exact_match"].value
    answerer.no_answer = False
    assert "always gives one" in answerer.evaluate(asked).notes[0]


def test_the_best_threshold_may_lie_above_zero(place, monkeypatch):
    """The answers that a threshold of 0 would withhold are weighed, too."""
    context = "A cat ran. A dog sat."
    asked = [
        Question("one", "", context, "what ran", (Answer("cat", 2),), False, "here"),
        Question("none", "", context, "what flew", (), True, "here"),
    ]
    answerer = replace(wordloom.load(place / "run"), no_answer=True)
    span = Span("cat", 2, 5, 1.0, 0.5)
    nothing = Span("", 0, 0, 3.0, 0.5)
    made = [
        Found("one", "", (nothing, span), 2.0),
        Found("none", "", (nothing, span), 18.0),
    ]
    monkeypatch.setattr(QuestionAnswerer, "_found", lambda *_: made)
    scores = answerer.evaluate(asked)
    assert scores["exact_match"].value == 50
    assert scores["best_exact_match"].value == scores["best_f1"].value == 100
    assert scores.details["thresholds"] == {"best_exact_match": 2.0, "best_f1": 2.0}
    assert replace(answerer, threshold=2.0).evaluate(asked)["exact_match"].value == 100


def test_at_the_command(place, tmp_path):
    def ran(*arguments: object) -> str:
        done = CliRunner().invoke(app, list(map(str, arguments)))
        if done.exit_code:
            raise done.exception
        return done.stdout

    lines = ran("predict", place / "run", place / "train.json").splitlines()
    asked = list(questions(place / "train.json"))
    assert [line.split("\t")[0] for line in lines] == [one.id for one in asked]
    for line, one in zip(lines, asked, strict=True):
        _, text, start, end, probability = line.split("\t")
        assert one.context[int(start) : int(end)] == text
        assert 0 < float(probability) <= 1
    row = {"question": "who ran", "context": CONTEXTS[0]}
    (tmp_path / "some.jsonl").write_text(json.dumps(row) + "\n")
    fact = json.loads(ran("predict", place / "run", tmp_path / "some.jsonl", "--json", "--top-k", 2))
    assert len(fact["spans"]) == 2
    assert fact["id"] == f"{tmp_path / 'some.jsonl'}#1"
    for top in (1, 2, 5):  # how many are shown says nothing of how likely each is
        arguments = ["predict", place / "run", tmp_path / "some.jsonl", "--top-k", top]
        assert ran(*arguments).split("\t")[-1].strip() == f"{fact['spans'][0]['probability']:.4f}"
        assert json.loads(ran(*arguments, "--json"))["spans"][:2] == fact["spans"][:top]
    scores = json.loads(ran("evaluate", place / "run", place / "train.json", "--json"))["scores"]
    assert [score["name"] for score in scores] == ["exact_match", "f1"]
    assert ran("evaluate", place / "run")  # what the recipe holds out
    fact = json.loads(ran("predict", place / "run", tmp_path / "some.jsonl", "--json", "--threshold=-1e9"))
    assert fact["answer"] == ""
    some = json.loads(ran("evaluate", place / "run", place / "train.json", "--threshold=-1e9", "--json"))
    assert some["counts"]["said_none"] == len(asked)
    (tmp_path / "long.jsonl").write_text(json.dumps({**row, "question": "who " * 40}) + "\n")
    arguments = ["predict", str(place / "run"), str(tmp_path / "long.jsonl"), "--too-long", "cut", "--json"]
    done = CliRunner().invoke(app, arguments)
    assert json.loads(done.stdout)["cut"]
    assert done.stderr == "note: 1 question is longer than the model reads and was truncated: 1\n"
    (tmp_path / "some.jsonl").write_text('{"question": "who", "context": " "}\n')
    with pytest.raises(DataError, match=r"some\.jsonl:1: context: is empty; expected text"):
        ran("predict", place / "run", tmp_path / "some.jsonl")
    with pytest.raises(
        wordloom.errors.WordloomError, match=r"a model for question answering, .*: leave out --beams"
    ):
        ran("evaluate", place / "run", place / "train.json", "--beams", 3)


def test_transformers_reads_the_folder(place):
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(place / "run").eval()
    answerer = wordloom.load(place / "run")
    windows = answerer.windows(questions(place / "train.json"))
    inputs, _ = windows.batches(order="sequential").batch(0, len(windows.windows))
    with torch.no_grad():
        theirs = model(
            input_ids=inputs.tokens, token_type_ids=inputs.segments, attention_mask=inputs.attend.long()
        )
        ours = answerer.model(*inputs)[inputs.attend]
    both = torch.stack([theirs.start_logits, theirs.end_logits], -1)[inputs.attend]
    torch.testing.assert_close(ours, both, rtol=1e-4, atol=1e-5)

"""``wordloom inspect CHECKPOINT VIEW``: each view as text, JSON, picture and page, and its refusals."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.run.bodies import write_body
from typer.testing import CliRunner

from wordloom.cli import app
from wordloom.cli.inspect.texts import token_of, windows_to_read
from wordloom.data.text import documents as documents_module
from wordloom.errors import GenerationError, WordloomError
from wordloom.models import GPT2Config, LlamaConfig, RNNConfig, build
from wordloom.models.building.lora import add_adapter, matching_layers
from wordloom.nn.lora import LoraSettings
from wordloom.run import LanguageModel, TextEncoder, load_as
from wordloom.run.views import words as words_module
from wordloom.text import Tokenizer
from wordloom.weights import load_model, save_model
from wordloom.weights.adapters import save_adapter

TEXT = "the mole dug a hole and the mole sat on a mole rat. "
VIEWS = {
    "lens of a text": ["lens", "--prompt", "the mole"],
    "lens": ["lens", "--file", "{text}", "--tokens", "50"],
    "contributions": ["contributions", "--prompt", "the mole", "--target", "a", "--against", "b"],
    "attribution": ["attribution", "--prompt", "the mole", "--most-steps", "64"],
    "memories": ["memories", "--file", "{text}", "--tokens", "60", "--most", "2"],
    "ablate": ["ablate", "--file", "{text}", "--tokens", "40", "--value", "mean"],
    "patch": ["patch", "--clean", "the mole", "--corrupt", "the hole", "--target", "a", "--foil", "b"],
    "heads": ["heads", "--length", "7"],
    "words": ["words", "the mole dug", "a mole", "--word", "mole"],
    "probe": ["probe", "--file", "{rows}"],
    "geometry": ["geometry"],
    "knowledge": ["knowledge", "--facts", "{facts}"],
}
OF_RECURRENT_MODELS = {"knowledge", "attribution", "patch", "words", "probe", "geometry"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("views")
    (folder / "text.txt").write_text(TEXT * 3)
    rows = [
        f"{json.dumps({'text': 'a mole' if i % 2 else 'the rat', 'label': str(i % 2)})}\n" for i in range(40)
    ]
    (folder / "rows.jsonl").write_text("".join(rows))
    (folder / "facts.jsonl").write_text('{"prompt": "the", "answer": " mole", "alternatives": [" rat"]}\n')
    tokenizer = Tokenizer.train([TEXT], kind="byte")
    size = {"vocab_size": tokenizer.vocab_size, "dim": 20}
    for name, config in {
        "llama": LlamaConfig(max_seq_len=32, n_layers=2, n_heads=2, n_kv_heads=1, hidden_dim=11, **size),
        "gpt2": GPT2Config(max_seq_len=32, n_layers=2, n_heads=5, **size),
        "rnn": RNNConfig(cell="lstm", n_layers=2, **size),
    }.items():
        model = build(config, generator=torch.Generator().manual_seed(3))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(4)) / 3)
        save_model(model, folder / name, tokenizer=tokenizer)
    return folder


def run(folder: Path, model: str, arguments: list[str], *more: object) -> str:
    given = [
        each.format(facts=folder / "facts.jsonl", text=folder / "text.txt", rows=folder / "rows.jsonl")
        for each in arguments
    ]
    done = CliRunner().invoke(app, ["inspect", str(folder / model), *given, *map(str, more)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", VIEWS)
def test_each_view_in_each_form(name: str, folder: Path, tmp_path: Path) -> None:
    for model in ("llama", "gpt2"):
        plot, html = tmp_path / f"{model}.png", tmp_path / f"{model}.html"
        text = run(folder, model, VIEWS[name], "--plot", plot, "--html", html)
        assert "─" in text
        assert plot.read_bytes().startswith(b"\x89PNG")
        page = html.read_text()
        assert page.startswith("<!doctype html>")
        assert "http://www.w3.org" in page or "http" not in page  # the name space of an .svg, no address
        assert " src=" not in page
        json.loads(run(folder, model, VIEWS[name], "--json"))


@pytest.mark.parametrize("name", VIEWS)
def test_recurrent_models_have_the_views_that_are_defined_for_them(name: str, folder: Path) -> None:
    if name in OF_RECURRENT_MODELS:
        json.loads(run(folder, "rnn", VIEWS[name], "--json"))
    else:
        with pytest.raises(WordloomError, match=r"RNN"):
            run(folder, "rnn", VIEWS[name])


def test_a_store_and_a_picture_are_two_files(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "a.png"
    with pytest.raises(WordloomError, match="is named for two files"):
        run(folder, "gpt2", VIEWS["memories"], "--store", place, "--png", place)
    assert not place.exists()


def test_the_flags_of_formats_are_one_option(folder: Path, tmp_path: Path) -> None:
    run(folder, "gpt2", VIEWS["heads"], "--png", tmp_path / "a.png")
    run(folder, "gpt2", VIEWS["heads"], "--svg", tmp_path / "a.svg")
    assert (tmp_path / "a.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize(("arguments", "says"), [
    (["lens", "--prompt", "a", "--file", "{text}"], "both --prompt and --file name a text"),
    (["lens", "--prompt", "a", "--tokens", "5"], "--prompt shows one text: leave out --tokens"),
    (["lens", "--file", "{text}", "--top-k", "5"], "--top-k is for one text"),
    (["contributions", "--prompt", "a", "--target", "the mole"], "name one token"),
    (["attribution", "--prompt", "a", "--method", "gradient", "--most-steps", "50"], "computes one point"),
    (["memories", "--neuron", "3"], "--neuron is a layer and a number"),
    (["memories", "--file", "{text}", "--neuron", "9.0"], "neuron 9.0 does not exist"),
    (["words", "a mole", "a rat", "--word", "mole"], "the word 'mole' does not occur in 'a rat'"),
    (["heads", "--length", "17"], "length 17 does not fit the model; allowed: 2 to 16"),
    (["heads", "--history"], "views/heads holds no scores; train with train.inspect"),
    (["heads", "--history", "--rows", "3"], "training measured: leave out --rows"),
    (["lens", "--file", "{text}", "--window", "33"], "--window is 33, and the model takes 32 tokens"),
    (["lens", "--file", "{text}", "--html", "{text}", "--force"], "would be read and written"),
    (["heads", "--png", "a.png", "--svg", "a.svg"], "--png and --svg are one option"),
    (["attention", "--prompt", "a", "--layer", "2", "--html", "a.html"], "layer 2 does not exist"),
    (["heads", "--force"], "without --plot and --html no file is written"),
    (["heads", "--plot", "a.jpg"], "no ending that names a picture format"),
    (["patch", "--clean", "a", "--corrupt", "ab"], "1 and 2 tokens"),
    (["lens", "--prompt", "a" * 40], "40 tokens and the model takes 32"),
])  # fmt: skip
def test_mistakes_get_one_line(folder: Path, arguments: list[str], says: str) -> None:
    with pytest.raises((WordloomError, AssertionError), match=says.replace("(", "").replace("'", ".")):
        run(folder, "gpt2", arguments)


def test_the_history_of_heads_is_drawn_from_the_views_of_a_run(folder: Path, tmp_path: Path) -> None:
    save_model(load_model(folder / "gpt2"), tmp_path / "run")
    views = tmp_path / "run" / "views" / "heads"
    views.mkdir(parents=True)
    scores = json.loads(run(folder, "gpt2", VIEWS["heads"], "--json"))
    for step in (11, 3, 200):
        (views / f"step-{step:08d}.json").write_text(json.dumps({"step": step, **scores}))
    picture, page = tmp_path / "a.png", tmp_path / "a.html"
    seen = json.loads(
        run(tmp_path, "run", ["heads", "--history"], "--json", "--png", picture, "--html", page)
    )
    assert seen["steps"] == [3, 11, 200]
    assert torch.allclose(torch.tensor(seen["induction"]), torch.tensor([scores["induction"]] * 3))
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "(0." in run(tmp_path, "run", ["heads", "--history"])


def test_long_files_are_read_in_pieces_with_the_windows_of_the_whole(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: random.Random
) -> None:
    words = ["mole", "rat", "dug", "Zürich", "a", "\n"]
    texts = [" ".join(rng.choice(words) for _ in range(rng.randint(0, 400))) for _ in range(3)]
    (tmp_path / "long.txt").write_text("\n===\n".join(texts), encoding="utf-8")
    lm = load_as(LanguageModel, folder / "gpt2")
    file, tokens, window = str(tmp_path / "long.txt"), rng.randint(1, 3000), rng.randint(1, 32)

    def read() -> list[list[int]]:
        return list(map(list, windows_to_read(lm, str(folder / "gpt2"), file, tokens=tokens, window=window)))

    whole = read()
    pieces = documents_module.pieces

    def small(sources: Any, **more: Any) -> Any:
        for piece in pieces(sources, **more):
            cuts = [0, *sorted(rng.sample(range(len(piece.text) + 1), 9)), len(piece.text)]
            parts = [piece.text[first:stop] for first, stop in itertools.pairwise(cuts)]
            for part in parts:
                yield piece._replace(text=part, last=False)
            yield piece._replace(text="", last=True)

    monkeypatch.setattr(documents_module, "pieces", small)
    assert read() == whole
    assert sum(len(ids) - 1 for ids in whole) <= tokens
    assert all(len(ids) <= window + 1 for ids in whole)


def test_a_word_of_an_encoder_is_read_between_two_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RoBERTa's tokenizer adds its marks to prompts; a text has each of them once."""
    write_body(tmp_path / "body", ["the mole dug a hole", "a mole sat"] * 20, "roberta")
    encoder = load_as(TextEncoder, tmp_path / "body")
    seen = []
    monkeypatch.setattr(words_module, "word_in_texts", lambda model, rows, *_: seen.extend(rows))
    words_module.compare_word(encoder, "mole", ["the mole dug", "a mole"])
    for row, text in zip(seen, ("the mole dug", "a mole"), strict=True):
        assert row == encoder.framed(encoder.text_tokenizer.encode_ids(text))
        assert row.count(row[0]) == row.count(row[-1]) == 1


def test_a_page_that_exists_is_kept(folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "a.html"
    page.write_text("mine")
    with pytest.raises(WordloomError, match="exists; choose another name"):
        run(folder, "gpt2", VIEWS["heads"], "--html", page)
    assert page.read_text() == "mine"
    run(folder, "gpt2", VIEWS["heads"], "--html", page, "--force")
    assert page.read_text() != "mine"


def test_contexts_of_neurons_are_kept(folder: Path, tmp_path: Path) -> None:
    store = tmp_path / "contexts"
    first = run(folder, "llama", VIEWS["memories"], "--store", store)
    assert store.stat().st_size > 1000
    assert run(folder, "llama", VIEWS["memories"], "--store", store) == first
    with pytest.raises(WordloomError, match="another model, text or setting"):
        run(folder, "gpt2", VIEWS["memories"], "--store", store)


def test_a_word_whose_token_has_a_space_is_named_with_it(data: Path) -> None:
    tokenizer = Tokenizer.from_pretrained(data / "tokenizers" / "llama-tokenizer.model")
    texts = {tokenizer.token_text(i): i for i in range(tokenizer.vocab_size)}
    word = next(text for text in texts if len(text) > 5 and text[0] == " " and text[1:] not in texts)
    assert token_of(tokenizer, word, "--target") == texts[word]
    with pytest.raises(GenerationError, match=f"'{word[1:]}' is no token, and '{word}' is; write its space"):
        token_of(tokenizer, word[1:], "--target")


def test_a_preset_has_no_weights_to_look_into(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = CliRunner().invoke(app, ["inspect", "llama-7b", "lens", "--prompt", "x"])
    assert "llama-7b is a preset, which has no weights" in str(asked.exception)
    assert "training" in CliRunner().invoke(app, ["inspect", "llama-7b"]).stdout


def test_a_page_is_not_written_into_a_picture(folder, tmp_path):
    with pytest.raises(WordloomError, match=r"names a picture; name a file that ends in \.html"):
        run(folder, "llama", ["heads"], "--html", tmp_path / "page.png")


def test_contexts_of_an_adapter_are_kept(folder: Path, tmp_path: Path) -> None:
    model = load_model(folder / "llama")
    add_adapter(model, LoraSettings(rank=2), matching_layers(model, ["up_proj"]))
    for seed in range(2):
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.copy_(
                        torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed))
                    )
        save_adapter(model, tmp_path / str(seed), base=folder / "llama")
    store = tmp_path / "contexts"
    first = run(tmp_path, "0", [*VIEWS["memories"][:2], str(folder / "text.txt")], "--store", store)
    assert run(tmp_path, "0", ["memories", "--file", str(folder / "text.txt")], "--store", store) == first
    for other in (tmp_path / "1", folder / "llama"):
        with pytest.raises(WordloomError, match="another model, text or setting"):
            run(other.parent, other.name, ["memories", "--file", str(folder / "text.txt")], "--store", store)


def test_windows_of_different_lengths_have_rows_of_their_own(folder: Path, tmp_path: Path) -> None:
    short = GPT2Config(
        max_seq_len=24,
        n_layers=1,
        n_heads=5,
        vocab_size=load_model(folder / "gpt2").config.vocab_size,
        dim=20,
    )
    save_model(build(short), tmp_path / "short", tokenizer=Tokenizer.from_pretrained(folder / "gpt2"))
    given = ["positions", "--file", "{text}", "--beside", str(tmp_path / "short")]
    found = json.loads(run(folder, "gpt2", given, "--json"))
    bits = {
        name: {(g["first"], g["stop"]): f"{g['bits_per_byte']:.4f}" for g in each}
        for name, each in found.items()
    }
    assert [list(each) for each in bits.values()] == [[(1, 17), (17, 33)], [(1, 17), (17, 25)]]
    printed = [line.split() for line in run(folder, "gpt2", given).splitlines() if " to " in line]
    long, other = bits.values()
    assert printed == [
        ["1", "to", "16", long[1, 17], other[1, 17]],
        ["17", "to", "24", other[17, 25]],
        ["17", "to", "32", long[17, 33]],
    ]

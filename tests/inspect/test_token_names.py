"""Tokens as they are shown: no character of a token acts on a terminal, a picture or a file."""

import json
import random
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from tests.inspect.layers.random_models import random_model

from wordloom.cli.inspect.texts import token_of
from wordloom.errors import GenerationError
from wordloom.inspect import attention_map, attribution, contributions, lens, patching
from wordloom.inspect.figures import new_figure, save_figure
from wordloom.inspect.token_names import namer, visible
from wordloom.text import Tokenizer


def test_white_space_and_control_characters_are_visible() -> None:
    assert visible(" a\tb\n") == "␣a⇥b↵"
    assert visible("\x1b[2J\x07\x9b\x7f\x00") == "\\x1b[2J\\x07\\x9b\\x7f\\x00"
    assert visible("") == "∅"
    assert visible("mañana \U0001f600") == "mañana␣\U0001f600"


def test_pictures_of_views_take_any_tokens(rng: random.Random, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="drawing is the plots extra")
    ugly = ["$x$", "$\\frac{", "\x1b[2J", "\ufffe", "a\nb", "\x00"]
    model = random_model("llama", rng)
    ids = [rng.randrange(model.config.vocab_size) for _ in range(6)]
    others = [*ids[:-1], (ids[-1] + 1) % model.config.vocab_size]

    def name(index: int) -> str:
        return ugly[index % len(ugly)]

    for view in (
        attention_map(model, ids, list(map(name, ids))),
        lens(model, ids, name),
        contributions(model, ids, name),
        attribution(model, ids, lambda tokens: model(tokens)[:, -1, 0], name, method="gradient"),
        patching(model, ids, others, name, target=0, foil=1),
    ):
        for suffix in ("png", "svg"):
            view.save(tmp_path / f"view.{suffix}")
        ElementTree.fromstring((tmp_path / "view.svg").read_bytes())


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_pictures_can_have_any_characters(suffix: str, tmp_path: Path) -> None:
    """Dollar signs begin no formula, and an .svg has no character that XML forbids."""
    names = ["$x$", "$\\frac", "a\x1bb\ufffe", "<&>", "\x00"]
    pytest.importorskip("matplotlib", reason="drawing is the plots extra")

    def figure() -> object:
        made = new_figure((4, 4))
        panel = made.subplots()
        panel.set_xticks(range(5), labels=names, parse_math=False)
        panel.text(0.5, 0.5, names[2], parse_math=False)
        return made

    path = tmp_path / f"figure.{suffix}"
    save_figure(figure, names, path)
    assert path.stat().st_size > 1_000
    if suffix == "svg":
        texts = list(ElementTree.fromstring(path.read_bytes()).itertext())
        assert {"$x$", "$\\frac", "a\\x1bb\\xfffe", "<&>", "\\x00"} <= {text.strip() for text in texts}


def test_unused_ids_have_a_number_for_a_name(tmp_path: Path) -> None:
    Tokenizer.train(["the mole"], kind="byte").save_pretrained(tmp_path)
    path = tmp_path / "tokenizer.json"
    definition = json.loads(path.read_text())
    pad = definition["added_tokens"][-1]
    pad["id"] = definition["model"]["vocab"][pad["content"]] = 260
    path.write_text(json.dumps(definition))
    tokenizer = Tokenizer.from_pretrained(tmp_path)
    name = namer(tokenizer)
    assert [name(i) for i in (97, 257, 259, 260, 261)] == ["a", "#257", "#259", "<|pad|>", "#261"]
    assert token_of(tokenizer, "<|pad|>", "--target") == 260
    with pytest.raises(GenerationError, match="--target '#259' is not one token"):
        token_of(tokenizer, "#259", "--target")

"""The card of a model, and the headers of the page's files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.serve.kinds import write_head
from tests.serve.tiny import save_tiny, serving

TASKS = ("classification", "regression", "token_classification")
RECIPE = """
name = "tiny"
[data]
train = "chat.json"
[train]
objective = "instruction"
steps = 2
seq_len = 64
batch_size = 3
"""


def test_the_card_says_how_a_model_was_trained(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path / "chat")
    (folder / "recipe.toml").write_text(RECIPE)
    lines = [{"kind": "train", "step": 1, "loss": 3.0}, {"kind": "train", "step": 2, "loss": 2.0}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"kind": "tr')
    (folder / "generation_config.json").write_text('{"temperature": 0.5}')
    with serving({"team/chat": folder}) as client:
        card = client.get("/v1/models/team/chat/card").json()
        assert client.get("/v1/models/team/chat").json()["kind"] == card["kind"]
        assert client.get("/v1/models/nobody/card").status_code == 404
    assert card["id"] == "team/chat"
    assert card["family"] == "llama"
    assert card["chat"] is True
    assert card["context"] == 512
    assert card["parameters"] > 10_000
    assert card["tokenizer"]["vocab_size"] >= 260
    assert card["metrics"] == {"train": {"step": 2, "loss": 2.0}}
    assert card["recipe"] == RECIPE
    assert card["sampling"]["temperature"] == {"value": 0.5, "from": "generation_config.json"}
    assert "seed" not in card["sampling"]


def test_a_folder_without_a_recipe(tmp_path: Path) -> None:
    with serving({"rnn": save_tiny(tmp_path / "rnn", "rnn", template=None)}) as client:
        card = client.get("/v1/models/rnn/card").json()
    assert card["chat"] is False
    assert card["recipe"] is None
    assert card["metrics"] == {}


@pytest.mark.parametrize(
    ("data", "texts"),
    [
        ('train = "glue-stsb/train"', 2),
        ('train = ["sst2/train"]', 1),
        ('train = "mine.csv"', 1),
        ('train = "mine.csv"\ntext_column = ["one", "other"]', 2),
        (None, None),
    ],
)
def test_the_card_says_how_many_texts_are_read_at_once(
    tmp_path: Path, data: str | None, texts: int | None
) -> None:
    for task in TASKS:
        write_head(tmp_path / task, task)
        if data is not None:
            text = f'description = "It\\nreads."\n[data]\n{data}\n[train]\nsample_prompt = "The"'
            (tmp_path / task / "recipe.toml").write_text(text)
    with serving({path.name: path for path in tmp_path.iterdir()}) as client:
        cards = {name: client.get(f"/v1/models/{name}/card").json() for name in TASKS}
    assert cards["token_classification"]["texts"] == 1
    assert cards["classification"]["texts"] == cards["regression"]["texts"] == texts
    if data is not None:
        assert cards["regression"]["description"] == "It reads."
        assert cards["regression"]["example"] == "The"


@pytest.mark.parametrize("path", ["/", "/index.html"])
def test_the_page_refuses_other_origins(tmp_path: Path, path: str) -> None:
    with serving({"chat": save_tiny(tmp_path / "chat")}, keys=("secret",)) as client:
        answer = client.get(path)
        assert client.get("/v1/models").status_code == 401
    assert answer.status_code == 200
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"

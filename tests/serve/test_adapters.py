"""An adapter is served with what its folder says: chat template, system message and settings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.serve.kinds import write_adapter
from tests.serve.servers import Running, assistant, running

import wordloom
from wordloom.serve.models import Source
from wordloom.text import Tokenizer
from wordloom.text.chat import shipped_source

RECIPE = """
name = "tuned"
[data]
train = "chat.json"
system = "Be brief."
[train]
objective = "instruction"
steps = 2
seq_len = 64
batch_size = 3
"""
QUESTION = [{"role": "user", "content": "Name the colour."}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, Path, Path]]:
    place = tmp_path_factory.mktemp("adapters")
    base, tuned = assistant(place / "base", template=None), place / "tuned"
    write_adapter(tuned, base)
    tokenizer = Tokenizer.from_pretrained(base).with_chat_template(shipped_source("plain"))
    tokenizer.save_pretrained(tuned)
    (tuned / "recipe.toml").write_text(RECIPE)
    (tuned / "generation_config.json").write_text('{"temperature": 0.0, "max_new_tokens": 9}')
    with running({"base": Source(base, {"tuned": tuned})}) as found:
        yield found, base, tuned


def test_an_adapter_chats_as_its_folder_says(server: tuple[Running, Path, Path]) -> None:
    found, base, tuned = server
    lm = wordloom.load(base, adapter=tuned)
    assert lm.system == "Be brief."
    wanted = "".join(lm.chat().ask("Name the colour."))
    client = found.openai_client()
    answer = client.chat.completions.create(
        model="tuned", messages=QUESTION, extra_body={"return_settings": True}
    )
    assert answer.choices[0].message.content == wanted.lstrip()
    assert answer.model_extra is not None
    assert answer.model_extra["settings"][0]["max_new_tokens"] == {
        "value": 9,
        "from": "generation_config.json",
    }
    response = client.responses.create(model="tuned", input="Name the colour.")
    assert response.output_text == wanted.lstrip()
    ids = found.post("/tokenize", {"model": "tuned", "messages": QUESTION}).json()["ids"]
    assert "Be brief." in lm.tokenizer.decode(ids)
    card = found.get("/v1/models/tuned/card").json()
    assert (card["chat"], card["system"]) == (True, "Be brief.")
    assert card["sampling"]["max_new_tokens"]["value"] == 9


def test_the_base_stays_without_a_template(server: tuple[Running, Path, Path]) -> None:
    found, _, _ = server
    answer = found.post("/v1/chat/completions", {"model": "base", "messages": QUESTION})
    assert answer.status_code == 400
    assert "has no chat template" in answer.json()["error"]["message"]
    assert found.get("/v1/models/base/card").json()["chat"] is False
    text = found.post("/v1/completions", {"model": "base", "prompt": "a", "max_tokens": 3})
    assert text.status_code == 200

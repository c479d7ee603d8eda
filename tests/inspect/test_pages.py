"""The pages of views in a real browser: no request, no error, and they answer the pointer and the keys."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.inspect.layers.random_models import random_model

from wordloom.errors import WordloomError
from wordloom.inspect import attention_map, attribution, lens
from wordloom.inspect.attention import AttentionMap
from wordloom.inspect.view import pages as module

Opened = Callable[[Any], Any]


@pytest.fixture
def opened(chromium: Any, tmp_path: Path) -> Iterator[Opened]:
    """A function that opens the page of a view; errors and requests to other places fail the test."""
    context = chromium.new_context()
    wrong: list[str] = []

    def show(view: Any) -> Any:
        view.save_html(tmp_path / "view.html")
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
        page.on(
            "request", lambda request: wrong.append(request.url) if "view.html" not in request.url else None
        )
        page.goto(f"file://{tmp_path / 'view.html'}")
        page.wait_for_selector("#view *")
        return page

    yield show
    context.close()
    assert not wrong


def test_attention_of_512_tokens_in_many_heads(opened: Opened) -> None:
    """The weights that the page tells are those of the map; drawing waits until a map is in view."""
    T, layers, heads = 512, 6, 8
    draw = torch.Generator().manual_seed(3)
    weights = torch.rand(layers, heads, T, T, generator=draw).pow(40).tril()
    weights /= weights.sum(-1, keepdim=True)
    tokens = tuple(f" t{i}<b>" for i in range(T))
    page = opened(AttentionMap(tokens, weights))
    assert page.locator(".token").count() == T
    page.locator(".token").nth(300).hover()
    best = int(weights[-1].mean(0)[300].argmax())
    said = page.locator("p[role=status]").inner_text()
    assert said.startswith("Layer 5, mean of all heads: “␣t300<b>” (300) attends to ")
    assert f"␣t{best}<b> ({best})" in said
    page.get_by_role("button", name="layer 2, head 3").click()
    page.locator(".token").nth(300).hover()
    best = int(weights[2, 3, 300].argmax())
    said = page.locator("p[role=status]").inner_text()
    assert "Layer 2, head 3" in said
    share = float(weights[2, 3, 300, best])
    told = said.split(f"({best}) ")[1].split(" %")[0]
    assert float(told) == pytest.approx(100 * share, abs=1)
    page.locator(".token").nth(300).click()
    page.keyboard.press("ArrowLeft")
    assert "(299) attends to" in page.locator("p[role=status]").inner_text()
    page.get_by_role("button", name="Show who attends to it").click()
    assert "is attended to by" in page.locator("p[role=status]").inner_text()
    drawn = page.evaluate(
        "() => [...document.querySelectorAll('canvas')].filter((each) => each.width === 72).length"
    )
    assert drawn > 0


def test_the_lens_answers_the_keys(opened: Opened, rng: random.Random) -> None:
    model = random_model("gpt2", rng, n_layers=3)
    view = lens(model, [1, 2, 3, 4], lambda i: f"<i>{i}")
    page = opened(view)
    assert page.locator("td[data-layer]").count() == 16
    page.locator('td[tabindex="0"]').focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    said = page.locator("#detail").inner_text()
    assert said.startswith("layer 1, after “<i>2”: the target “<i>3” has rank ")
    assert f"rank {int(view.ranks[2, 1])} " in said
    assert page.locator('td[tabindex="0"]').count() == 1
    page.locator("td[data-layer]").first.hover()
    assert page.locator("#detail").inner_text().startswith("layer 2, after “<i>1”")


def test_the_pages_of_a_small_map_and_of_an_attribution(opened: Opened, rng: random.Random) -> None:
    model = random_model("llama", rng)
    page = opened(attention_map(model, [3]))
    assert "attends to 3 (0) 100 %" in page.locator("p[role=status]").inner_text()
    seen = attribution(model, [1, 2], lambda tokens: model(tokens)[:, -1, 0], method="gradient")
    assert opened(seen).locator("tbody tr").count() == 2


def test_a_page_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch, rng: random.Random) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 1 << 20)
    view = attention_map(random_model("gpt", rng), [1, 2])
    assert len(view.html()) < 1 << 20
    large = AttentionMap(("x" * 2_000_000,), view.weights[:, :, :1, :1])
    with pytest.raises(WordloomError, match="the page would have 2 MiB, and 1 are allowed"):
        large.html()


def test_a_picture_of_too_many_tokens_is_refused(rng: random.Random, tmp_path: Path) -> None:
    model = random_model("gpt2", rng, max_seq_len=200)
    view = lens(model, [1] * 129)
    with pytest.raises(WordloomError, match="129 tokens are too many; draw a text of at most 128"):
        view.save(tmp_path / "lens.png")
    assert not list(tmp_path.iterdir())
    assert len(view.html()) > 1000

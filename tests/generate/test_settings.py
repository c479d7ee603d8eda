"""Which settings run, and where each came from."""

from __future__ import annotations

from typing import Any

import pytest

from wordloom.errors import CheckpointError, GenerationError
from wordloom.generate import settings
from wordloom.text import Tokenizer


def test_what_is_asked_for_goes_before_the_checkpoint_and_that_before_the_defaults() -> None:
    checkpoint = {"temperature": 0.6, "top_p": 0.9, "no_repeat_ngram_size": 3, "stop_strings": ["\n\n"]}
    settled = settings(checkpoint, {"temperature": 0.2, "seed": 4})
    sampling = settled.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed) == (0.2, 0.9, 50, 4)
    assert (sampling.no_repeat_ngram, sampling.stop) == (3, ("\n\n",))
    assert settled.sources["temperature"] == settled.sources["seed"] == "given"
    assert settled.sources["top_p"] == settled.sources["stop"] == "generation_config.json"
    assert settled.sources["top_k"] == "default"
    assert settled.line() == (
        "given: temperature 0.2, seed 4 | generation_config.json: top_p 0.9, no_repeat_ngram 3, "
        "stop '\\n\\n' | default: max_new_tokens up to 256, top_k 50"
    )


def test_a_seed_nobody_gave_is_drawn_and_said() -> None:
    first, second = settings({}, {}), settings({}, {})
    assert first.sampling.seed != second.sampling.seed
    assert f"fresh: seed {first.sampling.seed}" in first.line()


@pytest.mark.parametrize(("says", "temperature"), [(False, 0.0), (True, 0.8), (None, 0.8)])
def test_a_checkpoint_that_does_not_sample_is_greedy(says: bool | None, temperature: float) -> None:
    assert settings({"do_sample": says}, {}).sampling.temperature == temperature


def test_ends_are_the_checkpoints_and_the_tokenizers() -> None:
    tokenizer = Tokenizer.train([], kind="byte")
    assert settings({}, {}, tokenizer=tokenizer).eos_ids == (tokenizer.eos_id,)
    assert settings({"eos_token_id": 7}, {}, tokenizer=tokenizer).eos_ids == (7, tokenizer.eos_id)
    assert settings({"eos_token_id": [7, 9]}, {}).eos_ids == (7, 9)


def test_what_is_not_offered_is_named() -> None:
    checkpoint = {
        "num_beams": 4, "typical_p": 0.2, "length_penalty": 1.0, "max_length": 20, "use_cache": True,
        "transformers_version": "5.0", "_from_model_config": True, "pad_token_id": 0, "bad_words_ids": [[3]],
        "early_stopping": False,
    }  # fmt: skip
    assert settings(checkpoint, {}).ignored == ("num_beams", "typical_p", "bad_words_ids")
    assert settings({"max_length": 50}, {}).ignored == ("max_length",)


@pytest.mark.parametrize(
    ("checkpoint", "says"),
    [
        ([], r"generation_config.json holds \[\], not a table"),
        ("greedy", "holds 'greedy', not a table"),
        ({"eos_token_id": "</s>"}, "eos_token_id is '</s>', not a token id or a list"),
        ({"eos_token_id": [1, None]}, r"eos_token_id is \[1, None\]"),
        ({"eos_token_id": -5}, "eos_token_id is -5, not a token id"),
        ({"do_sample": "no"}, "do_sample is 'no', not true or false"),
        ({"do_sample": [True]}, r"do_sample is \[True\], not true or false"),
        ({"stop_strings": 1.5}, "stop_strings is 1.5, not a text or a list"),
        (
            {"top_p": 0},
            r"^generation_config.json: top_p is a number above 0 and .*, not 0; correct or remove",
        ),
        ({"temperature": "hot"}, "generation_config.json: temperature is a number from 0"),
    ],
)
def test_a_generation_config_of_another_form_is_one_clear_line(checkpoint: Any, says: str) -> None:
    with pytest.raises(CheckpointError, match=says):
        settings(checkpoint, {})


def test_an_unknown_setting_is_one_clear_line() -> None:
    with pytest.raises(
        GenerationError, match="unknown sampling setting 'temprature'; did you mean 'temperature'"
    ):
        settings({}, {"temprature": 1.0})
    with pytest.raises(GenerationError, match=r"^top_p is a number above 0"):
        settings({}, {"top_p": 3.0})


def test_a_given_value_replaces_one_out_of_range() -> None:
    assert settings({"top_p": 0}, {"top_p": 0.9}).sampling.top_p == 0.9


def test_a_setting_without_a_value_is_off() -> None:
    line = settings({}, {"top_k": None, "stop": None, "seed": 4}).line()
    assert line == "given: top_k off, stop off, seed 4 | default: max_new_tokens up to 256, temperature 0.8"
    filling = settings({}, {}).line(fills_context=True)
    assert "default: max_new_tokens up to the end of the context, temperature 0.8" in filling


def test_only_the_checkpoints_max_new_tokens_is_lowered_to_fit() -> None:
    assert settings({"max_new_tokens": 9}, {}).fit_new_tokens
    assert not settings({"max_new_tokens": 9}, {"max_new_tokens": 8}).fit_new_tokens
    assert not settings({}, {}).fit_new_tokens

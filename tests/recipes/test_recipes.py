"""Every shipped recipe: read back equal, honest about its result, and trains a few steps."""

from __future__ import annotations

import json
import math
import os
from typing import Any

import pytest

from wordloom.errors import RecipeError
from wordloom.models import PRESETS, BertConfig, LlamaConfig, build
from wordloom.recipe import DATA, Recipe, load_recipe, shipped_recipes
from wordloom.recipe.data import TranslationData
from wordloom.recipe.table import Table, descriptions, table_of
from wordloom.recipe.vectors import VectorRecipe, load_vector_recipe
from wordloom.run import train
from wordloom.run.tasks.building import model_settings
from wordloom.text import Tokenizer
from wordloom.weights import save_model

PTB = ["data.train=ptb/valid", "train.schedule=constant"]  # its own counts epochs
SMALL = {  # what keeps a few steps of a large recipe within seconds
    **{name: PTB for name in shipped_recipes() if "-ptb-" in name},
    # six steps at its rate of 20 overshoot where one matrix is both embedding and output
    "lstm-ptb-small-better": [*PTB, "train.learning_rate=5.0"],
    "gpt2-shakespeare-char": ["model.n_layers=2"],
    "llama-shakespeare-char": ["model.n_layers=2"],
    "forgetting-old-task": ["data.train=ptb/valid", "tokenizer.vocab_size=1000"],
    "assistant-base": ["data.train=gutenberg/valid", "tokenizer.vocab_size=1000"],
    "assistant-base-lstm": [
        *("data.train=gutenberg/valid", "tokenizer.kind=bpe", "tokenizer.vocab_size=1000"),
    ],
    "llama-gutenberg": ["data.train=gutenberg/valid", "tokenizer.vocab_size=1000"],
    "llama-gutenberg-2k": ["data.train=gutenberg/valid", "tokenizer.vocab_size=1000"],
    "llama-gutenberg-gpu": [
        *("data.train=gutenberg/valid", "tokenizer.vocab_size=1000", "model.n_layers=2"),
        *("model.dim=192", "model.hidden_dim=512", "train.precision=fp32", "train.device=cpu"),
    ],
}


@pytest.mark.parametrize("name", sorted(shipped_recipes()))
def test_it_reads_back_equal_and_states_its_result(name, tmp_path):
    recipe = load_recipe(name)
    path = tmp_path / f"{name}.toml"
    path.write_text(recipe.to_toml(), encoding="utf-8")
    assert load_recipe(path) == recipe
    assert recipe.result is not None
    assert recipe.result.source
    assert recipe.result.command.startswith(f"wordloom train {name}")
    if recipe.result.measured is None:
        assert "not yet run" in recipe.result.note
    else:
        assert recipe.result.machine


OBJECTIVES = {name: load_recipe(name).train.objective for name in sorted(shipped_recipes())}
OF_TEXT = [name for name, what in OBJECTIVES.items() if what in ("causal_lm", "truncated_bptt")]


@pytest.mark.parametrize("name", [name for name, what in OBJECTIVES.items() if what == "translation"])
def test_a_translator_trains(name, tmp_path):
    if "WORDLOOM_DATA" not in os.environ:
        pytest.skip("WORDLOOM_DATA is not set: this recipe's pairs are not here")
    overrides = [
        *("train.steps=6", "train.log_every=1", "train.evaluate_every=0", "train.save_every=0"),
        *("train.batch_tokens=200", "train.warmup_steps=0", "data.train=multi30k/val"),
        *("data.split=hash", "data.source_column=de", "data.target_column=en", "tokenizer.vocab_size=1000"),
    ]
    run = train(name, overrides, out=tmp_path / "run").folder
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [row["loss"] for row in rows if row["kind"] == "train"]
    assert losses[-1] < losses[0]


TUNED = [name for name, what in OBJECTIVES.items() if what in ("instruction", "preference")]
WITH_A_HEAD = [  # on what --from gives
    name for name in OBJECTIVES if load_recipe(name).tokenizer.kind is None and name not in (*TUNED, *OF_TEXT)
]
CLASSIFIERS = [name for name, what in OBJECTIVES.items() if what == "classification"]


@pytest.mark.parametrize("name", sorted(set(CLASSIFIERS) - set(WITH_A_HEAD)))
def test_a_classifier_trains(name, tmp_path):
    if "WORDLOOM_DATA" not in os.environ:
        pytest.skip("WORDLOOM_DATA is not set: this recipe's rows are not here")
    run = train(name, ["train.steps=6", "train.log_every=1"], out=tmp_path / "run").folder
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [row["loss"] for row in rows if row["kind"] == "train"]
    labels = json.loads((run / "config.json").read_text())["id2label"]
    assert losses[0] == pytest.approx(math.log(len(labels)))
    assert losses[-1] < losses[0]


@pytest.fixture(scope="module")
def body(tmp_path_factory):
    """A tiny BERT that knows nothing, with the released vocabulary."""
    folder = tmp_path_factory.mktemp("body")
    tokenizer = Tokenizer.train(
        ["a film that is good", "who did what to whom"] * 4, kind="wordpiece", vocab_size=99
    )
    shape = {"dim": 32, "n_layers": 1, "n_heads": 2, "max_seq_len": 512}
    model = build(BertConfig(vocab_size=tokenizer.vocab_size, masked_lm_head=True, **shape))
    save_model(model, folder, tokenizer=tokenizer)
    return folder


@pytest.mark.parametrize("name", WITH_A_HEAD)
def test_a_head_trains(name, body, tmp_path):
    if "WORDLOOM_DATA" not in os.environ:
        pytest.skip("WORDLOOM_DATA is not set: this recipe's rows are not here")
    overrides = [
        *("train.steps=3", "train.batch_size=4", "train.log_every=1", "train.evaluate_every=0"),
        *("train.keep_best=false", "train.save_every=0", "train.warmup_steps=0"),
    ]
    recipe = load_recipe(name)
    if recipe.data.validation is not None and recipe.train.objective != "question_answering":
        overrides.append(f"data.train={recipe.data.validation}")  # the smaller part
    if recipe.old_task is not None:
        overrides += ["old_task.train=ptb/valid", "old_task.evaluate_windows=8", "train.rehearsal_share=0.5"]
    result = train(name, overrides, out=tmp_path / "run", start_from=body)
    assert result.step == 3
    assert (result.folder / "model.safetensors").exists()


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A tiny LLaMA that knows nothing."""
    folder = tmp_path_factory.mktemp("base")
    tokenizer = Tokenizer.train(["what is it", "a film that is good"] * 4, kind="bpe", vocab_size=280)
    config = LlamaConfig(vocab_size=280, dim=36, n_layers=1, n_heads=3, n_kv_heads=1, max_seq_len=512)
    save_model(build(config), folder, tokenizer=tokenizer)
    return folder


@pytest.mark.parametrize("name", TUNED)
def test_an_assistant_trains(name, base, tmp_path):
    if "WORDLOOM_DATA" not in os.environ:
        pytest.skip("WORDLOOM_DATA is not set: this recipe's conversations are not here")
    overrides = [
        *("train.steps=3", "train.epochs=none", "train.batch_size=2", "train.micro_batch_size=1"),
        *("train.warmup_steps=0", "train.log_every=1", "train.precision=fp32", "train.sample_every=0"),
        *("train.evaluate_every=0", "train.save_every=0", "train.seq_len=512"),
    ]
    recipe = load_recipe(name)
    data = "preference-1100" if recipe.train.objective == "preference" else "instruction-1100"
    overrides += [f"data.train={data}", "data.too_long=drop"]
    if recipe.old_task is not None:
        overrides += ["old_task.validation=ptb/valid", "old_task.evaluate_windows=4"]
        overrides += ["old_task.train=ptb/test"] if recipe.train.rehearsal_share else []
    run = train(name, overrides, out=tmp_path / "run", start_from=base)
    assert run.step == 3
    assert load_recipe(name).data.template in (None, "plain", "alpaca")
    assert (run.folder / "chat_template.jinja").exists()


@pytest.mark.parametrize("name", [name for name, what in OBJECTIVES.items() if what.startswith("masked")])
def test_an_encoder_trains(name, tmp_path):
    if "WORDLOOM_DATA" not in os.environ:
        pytest.skip("WORDLOOM_DATA is not set: this recipe's text is not here")
    overrides = [
        *("train.steps=8", "train.log_every=1", "train.evaluate_every=0", "train.save_every=0"),
        *("train.seq_len=32", "train.batch_size=8", "train.micro_batch_size=4", "train.warmup_steps=0"),
        *("train.learning_rate=1e-2", "train.compile=off", "data.train=gutenberg/valid"),
        *("data.validation_fraction=0.0", "tokenizer.vocab_size=1000", "model.preset=bert-tiny"),
    ]
    longer = load_recipe(name).train.long_seq_len
    run = train(
        name, [*overrides, *(["train.long_seq_len=48"] if longer else [])], out=tmp_path / "run"
    ).folder
    losses = [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert losses[0] == pytest.approx(math.log(1000) + math.log(2), abs=0.5)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("name", OF_TEXT)
def test_it_trains(name, tmp_path):
    if name != "quickstart" and "WORDLOOM_DATA" not in os.environ:
        pytest.skip("WORDLOOM_DATA is not set: this recipe's text is not here")
    overrides = [
        *("train.steps=6", "train.log_every=1", "train.evaluate_every=0", "train.keep_best=false"),
        *("train.sample_every=0", "train.compile=off", "train.seq_len=32", "train.batch_size=8"),
        *("train.micro_batch_size=4", "train.warmup_steps=0", "data.validation=none"),
        *("data.validation_fraction=0.0",),
    ]
    run = train(name, [*overrides, *SMALL.get(name, [])], out=tmp_path / "run").folder
    losses = [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    vocabulary = json.loads((run / "config.json").read_text())["vocab_size"]
    assert len(losses) == 6
    assert losses[0] == pytest.approx(math.log(vocabulary), abs=0.3)
    assert losses[-1] < losses[0]


def test_bert_base_is_as_published():
    """Devlin et al. 2018, section 3, table 6 and appendix A.2."""
    recipe = load_recipe("bert-base")
    t, c = recipe.train, PRESETS[recipe.model["preset"]]
    assert (c.n_layers, c.dim, c.n_heads, c.ffn_dim, c.max_seq_len) == (12, 768, 12, 3072, 512)
    assert (recipe.tokenizer.vocab_size, c.dropout, c.activation) == (30522, 0.1, "gelu")
    assert c.attention_dropout in (None, c.dropout)
    assert (t.batch_size, t.learning_rate, t.beta1, t.beta2, t.weight_decay) == (256, 1e-4, 0.9, 0.999, 0.01)
    assert (t.warmup_steps, t.steps, t.schedule, t.final_share) == (10_000, 1_000_000, "linear", 0.0)
    assert (t.seq_len, t.long_seq_len, t.long_share) == (128, 512, 0.1)
    m = recipe.masking
    assert (m.kind, m.share, m.mask_share, m.random_share) == ("bert", 0.15, 0.8, 0.1)
    assert t.objective == "masked_lm+next_sentence"


def test_overrides_make_room_for_themselves():
    recipe = load_recipe("quickstart", ["train.tokens=5000", "tokenizer.path=somewhere"])
    assert recipe.train.minutes is None
    assert recipe.tokenizer.kind is None
    own = load_recipe("quickstart", ["data.train=my.txt"])
    assert own.data.validation is None  # what belonged to the text that was replaced
    assert own.data.validation_fraction == 0.1
    assert load_recipe("quickstart", ["model.preset=llama-15m"]).model == {"preset": "llama-15m"}


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("train.max_iters=5", "'train.max_iters'; it is called 'train.steps' here"),
        ("train.lr=5", "'train.lr'; it is called 'train.learning_rate' here"),
        (
            "train.per_gpu_batch_size=8",
            "'train.batch_size' here, and counts all devices together; 'train.micro_batch_size' is the "
            "size of one pass",
        ),
        ("train.per_device_train_batch_size=8", "'train.batch_size' here, and counts all devices together"),
        ("per_gpu_batch_size=8", "'train.batch_size' here, and counts all devices together"),
        (
            "train.num_epochs=2",
            "'train.epochs' here, and counts steps of 'train.batch_size', which counts",
        ),
        ("train.num_train_epochs=2", "'train.epochs' here, and counts"),
        ("train.stpes=5", "did you mean 'steps'"),
        ("learning_rate=1", "did you mean 'train.learning_rate'"),
        ("train.steps=0", "greater than or equal to 1"),
        ("train.steps=ten", "'ten'"),
        ("train.steps=5.5", "valid integer"),
        ("train.dropout", "table.key=value"),
        ("train.micro_batch_size=5000", "above train.batch_size"),
        ("seed.x=1", "is a value, not a table"),
        ("train.seed=3", "it is called 'seed' here"),
        ("data.validation_fraction=0.3", "data.validation_fraction has no effect beside data.validation"),
    ],
)
def test_a_wrong_override_is_one_clear_line(override, says):
    with pytest.raises(RecipeError) as caught:
        load_recipe("quickstart", [override])
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


MISSPELT = """
name = "x"
[dta]
train = "a.txt"
[train]
steps = 1
"""


def test_what_is_wrong_in_a_file_is_one_clear_line(tmp_path):
    path = tmp_path / "recipe.toml"

    def error(text: str, *overrides: str) -> str:
        path.write_text(text)
        with pytest.raises(RecipeError) as caught:
            load_recipe(path, overrides)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 300
        return str(caught.value)

    assert "unknown table [dta]; did you mean 'data'?" in error(MISSPELT)
    assert "unknown table [modle]; did you mean 'model'?" in error(MISSPELT.replace("dta", "modle"))
    right = MISSPELT.replace("dta", "data")
    for name in ("../x", "/x", "a/b", "..", ".", "", "a\\\\b"):
        assert "is not a folder name" in error(right.replace('"x"', f'"{name}"')), name
    assert "is not a folder name" in error(right, "name=../../etc")
    long = "9" * 5001
    assert "is not a TOML file: Exceeds the limit" in error(right.replace("= 1", f"= {long}"))
    assert "99999999999999999999... is an integer beyond" in error(right, f"train.steps={long}")
    assert "train.steps is an integer beyond" in error(right, f"train.steps=0x{long}")
    deep = "[" * 5000 + "]" * 5000
    assert "is not a TOML file: maximum recursion depth" in error(right.replace("= 1", f"= {deep}"))
    assert "has too many lists or tables in each other" in error(right, f"train.steps={deep}")
    assert "'train.objective' cannot be [1, 2]; allowed: causal_lm, " in error(
        right, "train.objective=[1, 2]"
    )
    assert "'causal-lm'; did you mean 'causal_lm'?" in error(right, "train.objective=causal-lm")
    assert "seed is an integer beyond" in error(right, "seed=-9223372036854775808")
    assert "'train.threads' cannot be 100000: input should be less than" in error(
        right, "train.threads=100000"
    )
    with pytest.raises(RecipeError, match=r"'vectors.threads' cannot be 100000: input should be less than"):
        load_vector_recipe("word2vec-gutenberg", ["vectors.threads=100000"])


@pytest.mark.parametrize(
    ("objective", "key"),
    [
        ("preference", "train.beta"),
        ("contrastive", "train.similarity_scale"),
        ("causal_lm", "train.weight_decay"),
        ("classification", "train.l2"),
        ("instruction", "lora.alpha"),
    ],
)
def test_a_factor_that_would_overflow_is_refused(objective: str, key: str):
    recipe = {
        "name": "x",
        "data": {"train": "a.jsonl"},
        "train": {"objective": objective, "steps": 1, "batch_size": 2},
    }
    if key == "train.l2":
        recipe["train"] = {"objective": objective, "steps": 1, "optimizer": "lbfgs"}
    with pytest.raises(RecipeError, match=f"'{key}' cannot be 1e\\+300: input should be less than or equal"):
        load_recipe(recipe, [f"{key}=1e300"])


def test_settings_of_a_text_that_is_replaced_are_reported():
    def said(recipe: object, *overrides: str) -> tuple[Any, list[str]]:
        lines: list[str] = []
        return load_recipe(recipe, overrides, say=lines.append).data, lines

    rehearsing = load_recipe("assistant-small", ["old_task.train=none", "train.rehearsal_share=none"])
    assert rehearsing.old_task.validation == "gutenberg/valid", "no text is not another text"
    _, lines = said("quickstart", "data.train=my.txt")
    assert len(lines) == 1
    assert "because data.train is another text: data.validation = " in lines[0]
    assert lines[0].endswith("a share of 0.1 of the text is for validation (data.validation_fraction)")
    assert said("quickstart", "data.train=my.txt", "data.validation=yours.txt")[1] == []
    assert said("quickstart", "train.steps=5")[1] == []
    pairs = load_recipe("transformer-multi30k").model_copy(
        update={
            "data": TranslationData(
                train="a.en", targets="a.de", validation="b.en", validation_targets="b.de"
            )
        }
    )
    data, lines = said(pairs, "data.train=c.en")
    assert (data.targets, data.validation, data.validation_targets) == (None, None, None)
    assert all(f"data.{name} = " in lines[0] for name in ("targets", "validation", "validation_targets"))
    data, lines = said(pairs, "data.train=c.en", "data.targets=c.de", "data.validation=d.en")
    assert data.targets == "c.de"
    assert "data.validation_targets = 'b.de'" in lines[0]
    assert "for validation" not in lines[0]


def test_settings_without_effect_are_refused():
    with pytest.raises(RecipeError, match=r"tokenizer\.vocab_size has no effect without tokenizer\.kind"):
        load_recipe("quickstart", ["tokenizer.path=somewhere", "tokenizer.vocab_size=5"])
    nothing = ["data.train=my.txt", "data.validation_fraction=0.0"]
    with pytest.raises(RecipeError, match="need validation text"):
        load_recipe("quickstart", nothing)
    load_recipe("quickstart", [*nothing, "train.evaluate_every=0"])


def test_keys_that_an_override_makes_useless_are_reported():
    lines: list[str] = []
    recipe = load_recipe("quickstart", ["train.schedule=constant", "train.optimizer=adamw"], say=lines.append)
    assert recipe.train.final_share == 0.1
    assert lines == [
        "the recipe's train.decay_share = 0.4 is left out: it is not a setting of train.schedule 'constant'",
        "the recipe's train.final_share = 0.02 is left out: it is not a setting of train.schedule 'constant'",
    ]


UNUSED = [
    (
        "data.targets=a.de",
        "data.targets is not a setting of train.objective 'causal_lm'; it is for 'transl",
    ),
    ("data.text_column=a", "data.text_column has no effect without data.label_prefix; set data.label_prefix"),
    (
        "data.sentences=line",
        "data.sentences is not a setting of train.objective 'causal_lm'; it is for",
    ),
    ("data.split=hash", "data.split has no effect beside data.validation; leave one of them out"),
    ("train.momentum=0.9", "train.momentum is not a setting of train.optimizer 'muon'; it is for 'sgd'"),
    ("train.l2=0.5", "train.l2 is not a setting of train.optimizer 'muon'; it is for 'lbfgs'; leave it out"),
    ("train.flat_epochs=2", "train.flat_epochs is not a setting of train.schedule 'warmup_stable_decay'"),
    ("train.sample_tokens=9", "train.sample_tokens has no effect without train.sample_every"),
    ("train.best_metric=f1", "train.best_metric has no effect without train.keep_best"),
    ("train.batch_tokens=9", "train.batch_tokens is not a setting of train.objective 'causal_lm'"),
    ("train.language_model_weight=0.5", "train.language_model_weight is not a setting of train.objective"),
    (
        "masking.share=0.3",
        "masking.share is not a setting of train.objective 'causal_lm'; it is for",
    ),
    ("tokenizer.separate=true", "tokenizer.separate is not a setting of train.objective 'causal_lm'"),
]


@pytest.mark.parametrize(("override", "says"), UNUSED)
def test_a_key_without_effect_is_refused(override, says):
    with pytest.raises(RecipeError) as caught:
        load_recipe("quickstart", [override])
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_masking_keys_of_the_other_kind_are_refused():
    with pytest.raises(RecipeError, match=r"masking\.share is not a setting of masking\.kind 'replace'"):
        load_recipe("bert-base", ["masking.kind=replace", "masking.share=0.3"])


def test_every_key_has_a_description():
    def missing(kind: type[Table], path: str) -> list[str]:
        names, meanings = [], descriptions(kind)
        for name, field in kind.model_fields.items():
            if not meanings.get(name):
                names.append(path + name)
            if (inner := table_of(field)) is not None:
                names += missing(inner, f"{path}{name}.")
        return names

    for kind in (Recipe, VectorRecipe, *DATA.values()):
        assert missing(kind, "") == []


def test_a_preset_that_is_no_name_is_one_clear_line():
    recipe = load_recipe("quickstart", ["model.preset=[1, 2]"])
    with pytest.raises(RecipeError, match=r"unknown model.preset \[1, 2\]; allowed: gpt, "):
        model_settings(recipe)


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path):
    path = shipped_recipes()["quickstart"]
    (tmp_path / "quickstart.toml").write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert load_recipe(tmp_path / "quickstart.toml") == load_recipe("quickstart")


def test_two_budgets_are_refused():
    with pytest.raises(RecipeError, match=r"exactly one budget.*given: train.steps and train.tokens"):
        load_recipe("quickstart", ["train.steps=5", "train.tokens=500"])


def test_a_foreign_file_is_refused(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text("steps: 5")
    with pytest.raises(RecipeError, match="is not a TOML file"):
        load_recipe(path)
    with pytest.raises(RecipeError, match="no recipe file"):
        load_recipe(tmp_path / "other.toml")


def test_a_recipe_is_frozen():
    recipe = load_recipe("quickstart")
    with pytest.raises(Exception, match="frozen"):
        recipe.seed = 3
    assert isinstance(recipe, Recipe)

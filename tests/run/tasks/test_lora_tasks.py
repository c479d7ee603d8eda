"""Adapters for every objective: the base stays, a head is trained; runs resume, and folders are merged."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.run import bodies
from tests.run.tasks import (
    test_fine_tuning,
    test_multiple_choice,
    test_question_answering,
    test_rnn_classifier,
    test_sentence_embeddings,
    test_token_classification,
)
from tests.run.translators import PAIRS, write_pairs, write_translator
from typer.testing import CliRunner

import wordloom
from wordloom.cli import app
from wordloom.errors import CheckpointError, ConfigError, RecipeError
from wordloom.models import BagOfWordsConfig, BertConfig, GPTConfig, LlamaConfig, RNNConfig, build
from wordloom.models.building.lora import head_modules, lora_layers
from wordloom.run import train
from wordloom.text import Tokenizer
from wordloom.weights import load_config, load_model, save_model
from wordloom.weights.adapted import load_adapted_model
from wordloom.weights.adapters import load_adapter

TEXTS = test_fine_tuning.TEXTS
TRAIN = """
steps = 6
seq_len = 16
batch_size = 4
learning_rate = 3e-2
precision = "fp32"
evaluate_every = 3
save_every = 3
keep_last = 9
"""


class Case(NamedTuple):
    """How to write the recipe and the base of a run, settings of its adapter, and a use of the result."""

    write: Callable[[Path], str]
    settings: tuple[str, ...] = ()
    use: Callable[[Any], Any] = lambda loaded: loaded.predict(TEXTS[:3])


def _body(place: Path, kind: str, texts: list[str] = TEXTS, **shape: Any) -> None:
    shape = {"dim": 15, "n_heads": 3, **shape}
    if kind in ("gpt", "llama"):
        tokenizer = bodies.tokenizer_of(texts, "gpt2")
        sizes: dict[str, Any] = {"vocab_size": tokenizer.vocab_size, **bodies.SHAPE, **shape}
        if kind == "llama":
            sizes |= {"n_kv_heads": 1, "hidden_dim": 7, "dim": 18, "tie_embeddings": False}
        config: Any = LlamaConfig(**sizes) if kind == "llama" else GPTConfig(**sizes)
        model = build(config, generator=torch.Generator().manual_seed(1))
        save_model(model, place / "body", tokenizer=tokenizer)
    else:
        bodies.write_body(place / "body", texts, kind, **shape)


def _recipe(place: Path, data: str, objective: str) -> str:
    (place / "recipe.toml").write_text(
        f'name = "adapted"\nseed = 3\n[data]\n{data}\n[train]\nobjective = "{objective}"\n{TRAIN}'
    )
    return str(place / "recipe.toml")


def masked(kind: str, **shape: Any) -> Callable[[Path], str]:
    def write(place: Path) -> str:
        _body(place, kind, **shape)
        (place / "text.txt").write_text("\n".join(TEXTS * 8))
        data = f'train = "{place}/text.txt"\nseparator = "line"\nvalidation_fraction = 0.2'
        return _recipe(place, data, "masked_lm")

    return write


def sentences(objective: str, kind: str) -> Callable[[Path], str]:
    def write(place: Path) -> str:
        _body(place, kind, test_sentence_embeddings.TEXTS)
        rows = zip(test_sentence_embeddings.TRIPLES, test_sentence_embeddings.SCORES, strict=True)
        lines = [("one", "two", "score"), *((*row[:2], str(score)) for row, score in rows)]
        (place / "train.tsv").write_text("".join("\t".join(line) + "\n" for line in [*lines, *lines[1:]]))
        data = f'train = "{place}/train.tsv"\ntext_column = ["one", "two"]\nvalidation_fraction = 0.5'
        if objective == "cosine_similarity":
            data += '\nlabel_column = "score"'
        return _recipe(place, data, objective)

    return write


def translation(family: str, *, separate: bool) -> Callable[[Path], str]:
    def write(place: Path) -> str:
        write_pairs(place)
        write_translator(place / "body", family, separate=separate)
        data = f'train = "{place}/train.tsv"\nvalidation = "{place}/val.tsv"\nsource_column = "de"\n'
        recipe = _recipe(place, data + 'target_column = "en"', "translation")
        text = (
            Path(recipe).read_text().replace("batch_size = 4", "batch_size = 1").replace("seq_len = 16\n", "")
        )
        Path(recipe).write_text(text)
        return recipe

    return write


def bert_generation(place: Path) -> str:
    recipe = translation("transformer", separate=False)(place)
    shutil.rmtree(place / "body")
    (place / "encoder").mkdir()
    _body(place / "encoder", "bert", [text for pair in PAIRS for text in pair])
    train(recipe, ["train.steps=1"], out=place / "body", start_from=place / "encoder/body")
    return recipe


def classification(kind: str, **shape: Any) -> Callable[[Path], str]:
    def write(place: Path) -> str:
        _body(place, kind, **shape)
        return test_fine_tuning.recipe_in(place)

    return write


def regression(place: Path) -> str:
    _body(place, "bert", n_heads=1, dim=11)
    rows = [(text, str(number % 5 / 2)) for number, text in enumerate(TEXTS)]
    (place / "train.tsv").write_text("text\tscore\n" + "".join("\t".join(row) + "\n" for row in rows))
    data = f'train = "{place}/train.tsv"\nlabel_column = "score"\nvalidation_fraction = 0.25'
    return _recipe(place, data, "regression")


def multiple_choice(kind: str) -> Callable[[Path], str]:
    def write(place: Path) -> str:
        _body(place, kind, test_multiple_choice.TEXTS)
        return test_multiple_choice.recipe_in(place)

    return write


def token_classification(kind: str) -> Callable[[Path], str]:
    def write(place: Path) -> str:
        _body(place, kind, test_token_classification.TEXTS)
        return test_token_classification.recipe_in(place)

    return write


def question_answering(kind: str) -> Callable[[Path], str]:
    def write(place: Path) -> str:
        _body(place, kind)
        squad = test_question_answering.squad(["cat", "dog", "far"])
        (place / "train.json").write_text(json.dumps(squad))
        recipe = place / "recipe.toml"
        recipe.write_text(test_question_answering.RECIPE.format(place=place))
        return str(recipe)

    return write


def rnn_classifier(place: Path) -> str:
    words = {label: [f"{a}k{b}" for b in "aiop"] * 4 for label, (a, b) in {"x": "ai", "y": "op"}.items()}
    (place / "words").mkdir()
    for label, lines in words.items():
        rows = [f"{label}{n % 7}{line}" for n, line in enumerate(lines)]
        (place / "words" / f"{label}.txt").write_text("\n".join(rows) + "\n")
    recipe = test_rnn_classifier.RECIPE.format(folder=place / "words")
    (place / "scratch.toml").write_text(recipe.replace("steps = 45", "steps = 2"))
    train(str(place / "scratch.toml"), out=place / "body")
    tuned = re.sub(r"\[tokenizer\].*?(?=\[train\])", "", recipe, flags=re.DOTALL)
    tuned = tuned.replace("steps = 45", "steps = 6").replace("save_every = 5", "save_every = 3")
    (place / "recipe.toml").write_text(tuned)
    return str(place / "recipe.toml")


def truncated_bptt(place: Path) -> str:
    tokenizer = bodies.tokenizer_of(TEXTS, "gpt2")
    config = RNNConfig(vocab_size=tokenizer.vocab_size, dim=9, hidden_dim=11, n_layers=1, cell="gru")
    save_model(build(config, generator=torch.Generator().manual_seed(1)), place / "body", tokenizer=tokenizer)
    (place / "text.txt").write_text("\n".join(TEXTS * 20))
    data = f'train = "{place}/text.txt"\nseparator = "line"\nvalidation_fraction = 0.2'
    return _recipe(place, data, "truncated_bptt")


def _ask(loaded: Any) -> Any:
    return loaded.ask("who ran", "a dog ran far and slept")


def _choose(loaded: Any) -> Any:
    return [list(loaded.ask("the cat sat", ["on a mat", "under rain"]).probabilities)]


def _translated(loaded: Any) -> Any:
    return [[one.text for one in found] for found in loaded.translate(["eins zwei", "drei"], beams=2)]


CASES = {
    "masked_lm, BERT": Case(masked("bert"), ("lora.rank=20",), lambda m: m.embed(TEXTS[:3])),
    "masked_lm, RoBERTa with one head": Case(
        masked("roberta", n_heads=1, dim=13), ("lora.rank=1", "lora.dora=true"), lambda m: m.embed(TEXTS[:3])
    ),
    "contrastive": Case(sentences("contrastive", "bert"), (), lambda m: m.embed(TEXTS[:3])),
    "cosine_similarity": Case(
        sentences("cosine_similarity", "roberta"), ("lora.dropout=0.3",), lambda m: m.embed(TEXTS[:3])
    ),
    "translation, Transformer": Case(translation("transformer", separate=False), (), _translated),
    "translation, two tokenizers": Case(
        translation("transformer", separate=True), ("lora.rank=40", "lora.rank_stabilised=true"), _translated
    ),
    "translation, Transformer in 8 bits": Case(
        translation("transformer", separate=True), ("lora.base=int8", "lora.dora=true"), _translated
    ),
    "translation, BertGeneration": Case(bert_generation, ("lora.rank=1",), _translated),
    "translation, recurrent": Case(translation("seq2seq", separate=True), ("lora.rank=3",), _translated),
    "classification, BERT": Case(classification("bert"), ("lora.dropout=0.2",)),
    "classification, RoBERTa": Case(classification("roberta"), ("lora.rank=1",)),
    "classification, GPT": Case(classification("gpt"), ("lora.dora=true",)),
    "classification, GPT-2": Case(classification("gpt2"), ("lora.rank=17",)),
    "classification, GPT-2 with another attention": Case(
        classification("gpt2"), ("model.family=gpt2", "model.attention=band:4")
    ),
    "classification, LLaMA": Case(classification("llama"), ()),
    "classification, LLaMA in 8 bits": Case(classification("llama"), ("lora.base=int8",)),
    "regression": Case(regression, ("lora.rank=1",)),
    "multiple_choice, BERT": Case(multiple_choice("bert"), (), _choose),
    "multiple_choice, GPT-2": Case(multiple_choice("gpt2"), (), _choose),
    "token_classification, RoBERTa": Case(token_classification("roberta"), ()),
    "token_classification, LLaMA": Case(token_classification("llama"), ()),
    "question_answering, BERT": Case(question_answering("bert"), (), _ask),
    "question_answering, GPT-2": Case(question_answering("gpt2"), (), _ask),
    "classification, recurrent": Case(rnn_classifier, ("lora.rank=3",), lambda m: m.predict(["aka", "oko"])),
    "truncated_bptt": Case(truncated_bptt, ("lora.rank=2",), lambda m: None),
}


@pytest.mark.parametrize("name", CASES)
def test_an_adapter_is_trained_resumed_loaded_and_merged(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    recipe, body = case.write(tmp_path), tmp_path / "body"
    given = ["lora.rank=2", "lora.alpha=4", "train.keep_last=9", *case.settings]
    before = {path.name: path.read_bytes() for path in body.glob("*.*") if path.is_file()}
    whole = train(recipe, given, out=tmp_path / "whole", start_from=body).folder
    assert {path.name: path.read_bytes() for path in body.glob("*.*") if path.is_file()} == before
    assert not {"config.json", "model.safetensors"} & {path.name for path in whole.iterdir()}

    cut = tmp_path / "cut"
    train(recipe, given, out=cut, start_from=body)
    (cut / "adapter_model.safetensors").unlink()
    last = max((cut / "checkpoints").iterdir(), key=lambda path: int(path.name.removeprefix("step-")))
    shutil.rmtree(last)
    train(recipe, given, out=cut, resume=True)
    one, other = (load_file(folder / "adapter_model.safetensors") for folder in (whole, cut))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)

    model, _ = load_adapted_model(body, whole)
    stored = load_model(body).state_dict()
    heads = tuple(f"{head}." for head in head_modules(model.config))
    for key, parameter in model.named_parameters():
        if ".adapters." in key or key.startswith(heads):
            continue
        key = key.replace(".base.", ".")
        assert torch.equal(parameter, stored[key if key in stored else key.removeprefix("body.")]), key
    moved = [layer.adapters["default"].B.abs().max() > 0 for layer in lora_layers(model).values()]
    assert all(moved)
    first = load_file(whole / "checkpoints/step-3/adapter_model.safetensors")
    stored_heads = [key for key in one if ".lora_" not in key]
    assert bool(stored_heads) == bool(heads)
    assert all(not torch.equal(first[key], one[key]) for key in stored_heads if key.endswith("weight"))

    adapted = wordloom.load(whole)
    done = CliRunner().invoke(
        app, ["merge", str(body), "--adapter", str(whole), "--out", str(tmp_path / "merged")]
    )
    assert done.exit_code == 0, done.exception
    change = re.search(r"largest change of a logit by merging: (\S+) in fp32", done.stdout)
    assert change is not None
    assert float(change[1]) < 1e-3
    merged = wordloom.load(tmp_path / "merged")
    assert type(merged) is type(adapted)
    for key, value in merged.model.state_dict().items():
        torch.testing.assert_close(value, adapted.model.state_dict()[key], msg=key)
    expected, found = _plain(case.use(adapted)), _plain(case.use(merged))
    assert found == (expected if isinstance(expected, str) else pytest.approx(expected, abs=1e-4))


def _plain(answers: Any) -> Any:
    """Return the numbers in ``answers``, or their text if there is none."""
    if hasattr(answers, "vectors"):
        return answers.vectors
    found = re.findall(r"-?\d+\.\d+(?:e-?\d+)?", repr(answers))
    return [float(number) for number in found] or repr(answers)


@pytest.mark.parametrize(
    "name",
    ["masked_lm, BERT", "contrastive", "translation, two tokenizers", "classification, BERT", "regression",
     "multiple_choice, GPT-2", "token_classification, LLaMA", "question_answering, BERT",
     "classification, recurrent"],
)  # fmt: skip
def test_the_commands_use_the_folder_of_an_adapter(name: str, tmp_path: Path) -> None:
    recipe, body = CASES[name].write(tmp_path), tmp_path / "body"
    done = train(recipe, ["lora.rank=2"], out=tmp_path / "run", start_from=body)
    (tmp_path / "in.txt").write_text("the cat sat\na dog ran far\n")
    tried: list[list[str]] = []
    kind = name.partition(",")[0]
    if kind == "translation":
        (tmp_path / "in.txt").write_text("eins zwei\n")
        columns = ["--source-column", "de", "--target-column", "en"]
        tried += [["evaluate", str(done.folder), str(tmp_path / "val.tsv"), *columns]]
        tried += [["translate", str(done.folder), str(tmp_path / "in.txt")]]
    elif kind != "contrastive":
        tried += [["evaluate", str(done.folder)]]
    if kind in ("masked_lm", "contrastive"):
        tried += [["embed", str(done.folder), str(tmp_path / "in.txt")]]
    if kind in ("classification", "regression", "token_classification"):
        tried += [["predict", str(done.folder), str(tmp_path / "in.txt")]]
    for arguments in tried:
        said = CliRunner().invoke(app, arguments)
        assert said.exit_code == 0, (arguments, said.exception)
        assert said.stdout


def test_the_best_adapter_and_head_are_kept(tmp_path: Path) -> None:
    recipe = classification("bert")(tmp_path)
    given = ["lora.rank=2", "train.keep_best=true", "train.learning_rate=0.3", "train.keep_last=9"]
    done = train(recipe, given, out=tmp_path / "run", start_from=tmp_path / "body")
    kept = load_file(done.folder / "adapter_model.safetensors")
    steps = [
        load_file(path / "adapter_model.safetensors") for path in (done.folder / "checkpoints").iterdir()
    ]
    assert any(all(torch.equal(kept[key], step[key]) for key in kept) for step in steps)


def test_a_head_goes_on_from_a_tuned_base(tmp_path: Path) -> None:
    recipe = classification("bert")(tmp_path)
    train(recipe, out=tmp_path / "tuned", start_from=tmp_path / "body")
    done = train(recipe, ["lora.rank=2", "train.learning_rate=1e-9"], out=tmp_path / "run",
                 start_from=tmp_path / "tuned")  # fmt: skip
    assert not (done.folder / "model_config.json").exists()  # the base has the head
    tuned, adapted = wordloom.load(tmp_path / "tuned"), wordloom.load(done.folder)
    before, after = tuned.model.classifier.weight, adapted.model.classifier.weight
    torch.testing.assert_close(after, before, rtol=0, atol=1e-6)
    given = wordloom.load(tmp_path / "tuned", adapter=done.folder)
    assert torch.equal(given.model.classifier.weight, adapted.model.classifier.weight)


def test_an_old_task_is_rehearsed_through_the_adapter(tmp_path: Path) -> None:
    recipe = classification("bert")(tmp_path)
    (tmp_path / "old.txt").write_text("\n".join(TEXTS * 8))
    old = f'\n[old_task]\ntrain = "{tmp_path}/old.txt"\nseparator = "line"\nvalidation_fraction = 0.5\n'
    Path(recipe).write_text(Path(recipe).read_text() + "rehearsal_share = 0.5\n" + old)
    done = train(recipe, ["lora.rank=2"], out=tmp_path / "run", start_from=tmp_path / "body")
    assert set(json.loads((done.folder / "old_task.json").read_text())) >= {"before", "after"}
    assert wordloom.load(done.folder).config.language_model


def test_a_base_of_another_task_in_8_bits(tmp_path: Path) -> None:
    recipe = classification("llama")(tmp_path)
    train(recipe, ["train.steps=1"], out=tmp_path / "tuned", start_from=tmp_path / "body")
    given = ["lora.rank=2", "lora.base=int8"]
    done = train(recipe, given, out=tmp_path / "run", start_from=tmp_path / "tuned")
    assert wordloom.load(done.folder).predict(TEXTS[:2])
    (tmp_path / "text.txt").write_text("\n".join(TEXTS * 8))
    data = f'train = "{tmp_path}/text.txt"\nseparator = "line"\nvalidation_fraction = 0.2'
    says = r"tuned lacks lm_head, which this run needs; \[lora\] trains no new parts"
    with pytest.raises(RecipeError, match=says):
        train(_recipe(tmp_path, data, "causal_lm"), ["lora.rank=2"], out=tmp_path / "lm",
              start_from=tmp_path / "tuned")  # fmt: skip


def test_sentence_transformers_reads_the_folder_of_an_adapter(tmp_path: Path) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    recipe = sentences("contrastive", "bert")(tmp_path)
    done = train(recipe, ["lora.rank=2"], out=tmp_path / "run", start_from=tmp_path / "body")
    theirs = sentence_transformers.SentenceTransformer(str(done.folder), device="cpu")
    ours = wordloom.load(done.folder).embed(TEXTS[:5]).vectors
    np.testing.assert_allclose(theirs.encode(TEXTS[:5]), ours, rtol=1e-4, atol=1e-6)
    base = wordloom.load(tmp_path / "body").embed(TEXTS[:5], normalize=True).vectors
    assert abs(base - ours).max() > 1e-2


def test_mistakes_are_named(tmp_path: Path) -> None:
    recipe = classification("bert")(tmp_path)
    body, out = tmp_path / "body", tmp_path / "run"

    def refused(
        says: str, *settings: str, start: Path = body, of: str = recipe, kind: Any = RecipeError
    ) -> None:
        with pytest.raises(kind, match=says) as caught:
            train(of, ["lora.rank=2", *settings], out=out, start_from=start)
        assert "\n" not in str(caught.value)

    with pytest.raises(RecipeError, match=r"\[lora\] adapts a trained model; name it with --from"):
        train(recipe, ["lora.rank=2", "tokenizer.kind=wordpiece", "model.family=bert"], out=out)
    refused(r"lora\.base int8 is for models of these families: .*; this is a bert; leave lora\.base out",
            "lora.base=int8")  # fmt: skip
    (tmp_path / "lm").mkdir()
    masked_recipe = masked("bert")(tmp_path / "lm")
    refused(r"lora\.base int8 is for .*; this is a bert; leave lora\.base out", "lora.base=int8",
            of=masked_recipe, start=tmp_path / "lm/body")  # fmt: skip
    refused("classifier belongs to the head, which is trained whole", "lora.targets=['classifier']",
            kind=ConfigError)  # fmt: skip
    refused(
        "lora target 'query' matches no linear layer; allowed: ", "lora.targets=['query']", kind=ConfigError
    )

    tokenizer = Tokenizer.from_pretrained(body)
    bare = BertConfig(vocab_size=tokenizer.vocab_size, dim=6, n_layers=1, n_heads=1, max_seq_len=16)
    save_model(build(bare), tmp_path / "bare", tokenizer=tokenizer)
    (tmp_path / "text.txt").write_text("\n".join(TEXTS * 8))
    data = f'train = "{tmp_path}/text.txt"\nseparator = "line"\nvalidation_fraction = 0.2'
    (tmp_path / "masked").mkdir()
    refused(r"bare lacks lm_head, mlm_norm, mlm_transform, which this run needs; \[lora\] trains no new ",
            of=_recipe(tmp_path / "masked", data, "masked_lm"), start=tmp_path / "bare")  # fmt: skip

    (tmp_path / "bags").mkdir()
    bags = ['model.family="bag_of_words"', "tokenizer.kind=word", "train.learning_rate=0.1"]
    text = Path(recipe).read_text().replace('precision = "fp32"\n', "").replace("seq_len = 16\n", "")
    (tmp_path / "bags.toml").write_text(text)
    train(str(tmp_path / "bags.toml"), bags, out=tmp_path / "bag")
    assert isinstance(load_config(tmp_path / "bag"), BagOfWordsConfig)
    refused("holds a bag of words, whose only matrix is its head", of=str(tmp_path / "bags.toml"),
            start=tmp_path / "bag")  # fmt: skip


def test_translation_from_an_encoder_and_new_tokens_are_refused(tmp_path: Path) -> None:
    recipe = translation("transformer", separate=False)(tmp_path)
    (tmp_path / "encoder").mkdir()
    _body(tmp_path / "encoder", "bert", [text for pair in PAIRS for text in pair])
    with pytest.raises(
        RecipeError, match=r"holds a bert, and the run trains a bert_generation; \[lora\] trains no"
    ):
        train(recipe, ["lora.rank=2"], out=tmp_path / "run", start_from=tmp_path / "encoder/body")
    (tmp_path / "gpt").mkdir()
    labelled = classification("gpt2")(tmp_path / "gpt")
    with pytest.raises(
        RecipeError, match=r"data\.task_tokens adds tokens to the vocabulary of \d+, and \[lora\]"
    ):
        train(labelled, ["lora.rank=2", "data.task_tokens=true"], out=tmp_path / "run",
              start_from=tmp_path / "gpt/body")  # fmt: skip


def test_folders_that_do_not_fit_are_named(tmp_path: Path) -> None:
    recipe = classification("bert")(tmp_path)
    done = train(recipe, ["lora.rank=2"], out=tmp_path / "run", start_from=tmp_path / "body").folder
    with pytest.raises(CheckpointError, match=r"no place for: .*; the head needs a base that has it"):
        load_adapter(load_model(tmp_path / "body"), done)
    model, _ = load_adapted_model(tmp_path / "body", done)
    with pytest.raises(
        CheckpointError, match="holds a head, and the model has that of the adapter 'default'"
    ):
        load_adapter(model, done, name="second")
    settings = json.loads((done / "model_config.json").read_text())
    settings["head"]["id2label"]["2"] = "maybe"
    (done / "model_config.json").write_text(json.dumps(settings))
    with pytest.raises(
        CheckpointError, match=r"classifier.weight of \[2, 15\] where the model's has \[3, 15\]"
    ):
        wordloom.load(done)
    (done / "model_config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"model_config\.json"):
        wordloom.load(done)

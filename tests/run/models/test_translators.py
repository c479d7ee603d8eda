"""What one does with a translator that is trained: scored, averaged, looked into; two vocabularies."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from sacrebleu import corpus_bleu, corpus_chrf
from tests.run.translators import GERMAN, PAIRS, RECIPE, tokenizers, write_pairs, write_translator
from typer.testing import CliRunner

import wordloom
from wordloom.cli import app
from wordloom.data import PairBatches, PairCorpus, prepare_pairs
from wordloom.errors import CheckpointError, ConfigError, DataError, EvaluationError, GenerationError
from wordloom.models import build, config_from
from wordloom.progress import TrainingProgress
from wordloom.recipe import load_recipe
from wordloom.run import Translator, load_as, translation_scores
from wordloom.run.checkpoint.kinds import next_command
from wordloom.run.models.tokenizers import Vocabularies
from wordloom.run.tasks.translation.scores import align, pairs_to_score
from wordloom.run.tasks.translation.task import _evaluate, pair_corpus, recipe_vocabularies
from wordloom.text import Tokenizer
from wordloom.training.ranks import ALONE
from wordloom.weights import load_model, save_model

FAMILIES = ("transformer", "seq2seq")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs; runs ``transformer`` and ``seq2seq`` of two vocabularies, and ``joint`` of one."""
    place = tmp_path_factory.mktemp("translators")
    write_pairs(place)
    for name in (*FAMILIES, "joint"):
        family = "transformer" if name == "joint" else name
        write_translator(place / name, family, separate=name != "joint")
        recipe = RECIPE.format(place=place, family=family, separate=str(name != "joint").lower())
        (place / name / "recipe.toml").write_text(recipe)
    return place


def run(*arguments: object) -> str:
    done = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False, env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    return done.stdout


def values(printed: str) -> dict[str, float]:
    return {score["name"]: score["value"] for score in json.loads(printed)["scores"]}


# -- scores ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*FAMILIES, "joint"])
def test_scores_are_sacrebleus_and_the_loss_is_that_of_training(place, tmp_path, name):
    out = tmp_path / "made.en"
    printed = run(
        "evaluate", place / name, "--beams", 2, "--max-new-tokens", 6, "--translations", out, "--json"
    )
    made, references = out.read_text().splitlines(), [target for _, target in PAIRS]
    found = values(printed)
    assert found["bleu"] == corpus_bleu(made, [references]).score
    assert found["bleu_lowercase"] == corpus_bleu(made, [references], lowercase=True).score
    assert found["chrf"] == corpus_chrf(made, [references]).score
    translator = load_as(Translator, place / name)
    assert made == [
        best[0].text
        for best in translator.translate([source for source, _ in PAIRS], beams=2, max_new_tokens=6)
    ]

    corpus = PairCorpus(sources=str(place / "val.tsv"), source_column="de", target_column="en")
    shards = prepare_pairs(
        corpus, translator.source_tokenizer, translator.tokenizer, part="all", cache=tmp_path
    )
    trained = _evaluate(translator.model, ALONE, PairBatches(shards, batch_tokens=50, order="sequential"))
    assert found["loss"] == pytest.approx(trained["loss"], rel=1e-5)
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]))
    scores = {score["name"]: score for score in json.loads(printed)["scores"]}
    low, high = scores["loss"]["interval"]
    assert low < found["loss"] < high
    assert "|pairs:30|dtype:fp32|ci:30-pairs|" in scores["loss"]["signature"]
    assert "|case:lc|" in scores["bleu_lowercase"]["signature"]
    assert "|tok:13a|" in scores["bleu"]["signature"]
    assert "|beams:2|length_penalty:1.0|max_new_tokens:6|data:" in scores["bleu"]["signature"]
    both = scores["loss"]["signature"].split("|tok:")[1].split("|")[0].split(">")
    assert len(both) == (1 if name == "joint" else 2)


def test_pairs_are_named_in_every_way(place, tmp_path):
    search = ("--beams", 1, "--max-new-tokens", 3, "--first", 9, "--json")
    by_recipe = values(run("evaluate", place / "seq2seq", *search))
    table, german, english = place / "val.tsv", place / "val.de", place / "val.en"
    assert values(run("evaluate", place / "seq2seq", table, *search)) == by_recipe
    assert values(run("evaluate", place / "seq2seq", german, "--targets", english, *search)) == by_recipe
    plain = tmp_path / "plain"
    shutil.copytree(place / "seq2seq", plain)
    (plain / "recipe.toml").unlink()
    columns = ("--source-column", "de", "--target-column", "en")
    assert values(run("evaluate", plain, table, *columns, *search)) == by_recipe
    first = values(run("evaluate", plain, german, "--targets", english, *search, "--first", 3))
    assert first["loss"] != by_recipe["loss"]
    with pytest.raises(CheckpointError, match="names validation pairs; give files"):
        run("evaluate", plain)
    with pytest.raises(DataError, match="no column 'source'"):
        run("evaluate", plain, table)


def test_what_is_left_out_of_the_loss_is_told(place):
    translator = load_as(Translator, place / "joint")
    odd = [("eins", ""), ("", "one"), ("eins", "one " * 20), ("eins zwei", "one two")]
    pairs = [pair._replace(source=a, target=b) for pair, (a, b) in zip(some(place), odd, strict=False)]
    scores, found = translation_scores(translator, pairs, beams=1, max_new_tokens=2)
    alone, _ = translation_scores(translator, pairs[3:], beams=1, max_new_tokens=2)
    assert scores["loss"].value == alone["loss"].value
    assert scores["loss"].interval is None
    assert scores.counts["pairs"] == 4
    assert (len(found), found[1]) == (4, "")
    assert scores.notes == (
        "2 pairs with an empty side: not in loss and perplexity",
        "1 pair whose target has more than 16 tokens with its end: not in loss and perplexity",
    )
    assert translation_scores(translator, pairs[:1], beams=1)[0]["loss"].value is None
    with pytest.raises(GenerationError, match=r"val\.tsv:2 has 21 tokens and the model takes 16"):
        translation_scores(translator, [pairs[0]._replace(source="eins " * 20)])
    with pytest.raises(EvaluationError, match="no pair to score"):
        translation_scores(translator, [])


def some(place: Path):
    return list(pairs_to_score(place / "joint", [str(place / "val.tsv")]))


def test_what_a_translator_refuses(place, tmp_path):
    translator = load_as(Translator, place / "joint")
    with pytest.raises(GenerationError, match="text 2 has 41 tokens and the model takes 16"):
        list(translator.translate(["eins", "eins " * 40]))
    with pytest.raises(GenerationError, match="batch_size is a number"):
        list(translator.translate(["eins"], batch_size=0))
    with pytest.raises(CheckpointError, match="try `wordloom translate"):
        run("generate", place / "joint", "--prompt", "eins")
    shutil.copytree(place / "joint", tmp_path / "run")
    (tmp_path / "run/tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match="has no tokenizer"):
        list(wordloom.load(tmp_path / "run").translate(["eins"]))


def test_options_of_others_are_refused(place, tmp_path):
    for options, says in (
        (("--window", 4), "is scored on pairs of texts: leave out --window; allowed: --targets, "),
        (("--source-column", "de"), "says what to read and how: leave out --source-column$"),
    ):
        with pytest.raises(wordloom.WordloomError, match=says):
            run("evaluate", place / "joint", *options)
    (tmp_path / "there").write_text("")
    with pytest.raises(wordloom.WordloomError, match="there' exists; choose another name"):
        run("evaluate", place / "joint", "--translations", tmp_path / "there")
    write_llama(tmp_path / "llama", 0)
    with pytest.raises(
        wordloom.WordloomError, match=r"is scored on running text: leave out --targets, --beams; allowed: "
    ):
        run("evaluate", tmp_path / "llama", "a", "--targets", "b", "--beams", 2)


# -- averages --------------------------------------------------------------------------------------------


def write_llama(folder: Path, seed: int, dim: int = 16, text: str = "ab") -> None:
    tokenizer = Tokenizer.train([text], kind="char")
    config = config_from("llama", vocab_size=8, dim=dim, n_layers=1, n_heads=2, hidden_dim=16, max_seq_len=8)
    model = build(config, generator=torch.Generator().manual_seed(seed))
    save_model(model.to(torch.bfloat16), folder, tokenizer=tokenizer)


def test_the_mean_of_checkpoints_is_a_model_like_them(place, tmp_path):
    steps = [7, 14, 21]
    for step in steps:
        write_translator(tmp_path / f"run/checkpoints/step-{step}", seed=step)
    shutil.copy(place / "transformer/recipe.toml", tmp_path / "run/recipe.toml")
    said = run("average", tmp_path / "run", "--last", 2, "--out", tmp_path / "mean")
    assert said.startswith("mean of 2 checkpoints: ")
    assert f"wordloom translate {tmp_path / 'mean'} FILE" in said
    states = [load_model(tmp_path / f"run/checkpoints/step-{step}").state_dict() for step in steps[1:]]
    for name, tensor in load_model(tmp_path / "mean").state_dict().items():
        torch.testing.assert_close(tensor, (states[0][name] + states[1][name]) / 2)
    mean, newest = (
        load_as(Translator, tmp_path / "mean"),
        load_as(Translator, tmp_path / "run/checkpoints/step-21"),
    )
    assert mean.source_tokenizer.fingerprint == newest.source_tokenizer.fingerprint
    assert mean.tokenizer.fingerprint == newest.tokenizer.fingerprint
    for name in ("config.json", "generation_config.json"):
        assert (tmp_path / "mean" / name).read_bytes() == (newest.folder / name).read_bytes()
    facts = json.loads((tmp_path / "mean/average.json").read_text())
    assert facts["steps"] == [14, 21]
    assert values(run("evaluate", tmp_path / "mean", "--beams", 1, "--max-new-tokens", 2, "--json"))
    three = wordloom.run.average([tmp_path / "run"], tmp_path / "three")
    assert [path.name for path in three] == ["step-7", "step-14", "step-21"]


def test_a_mean_is_rounded_once_and_keeps_the_type(tmp_path):
    folders = [tmp_path / str(seed) for seed in range(3)]
    for seed, folder in enumerate(folders):
        write_llama(folder, seed)
    wordloom.run.average(folders, tmp_path / "mean")
    states = [load_model(folder).state_dict() for folder in folders]
    for name, tensor in load_model(tmp_path / "mean").state_dict().items():
        wide = torch.stack([state[name].float() for state in states]).sum(0) / 3
        assert torch.equal(tensor, wide.bfloat16())
    assert wordloom.load(tmp_path / "mean").generate("a", max_new_tokens=2, seed=0).startswith("")
    with pytest.raises(CheckpointError, match="mean already holds files of a checkpoint"):
        wordloom.run.average(folders, tmp_path / "mean")


def test_what_has_no_mean(place, tmp_path):
    for name, settings in {"a": {}, "b": {}, "wide": {"dim": 32}, "other": {"text": "xy"}}.items():
        write_llama(tmp_path / name, 0, **settings)
    a = tmp_path / "a"
    for others, says in (
        ([tmp_path / "wide"], "wide has dim 32 and .*a 16; only checkpoints of one model and one vocabulary"),
        ([tmp_path / "other"], "other has another tokenizer.json than .*a; only checkpoints of one model"),
        ([place / "joint"], "joint holds a transformer and .*a a llama; only"),
        ([], "at least two different checkpoints, not .*a; name more, or train with train.save_every"),
        ([a], "at least two different checkpoints"),
        ([tmp_path / "none"], "none does not exist"),
    ):
        with pytest.raises(CheckpointError, match=says):
            wordloom.run.average([a, *others], tmp_path / "out")
    (tmp_path / "run/checkpoints/step-5").mkdir(parents=True)
    with pytest.raises(CheckpointError, match=r"run keeps 1 checkpoints, and --last asks for 3.*keep_last=3"):
        wordloom.run.average([tmp_path / "run"], tmp_path / "out", last=3)
    assert not (tmp_path / "out").exists()


# -- views -----------------------------------------------------------------------------------------------


def test_an_alignment_at_the_command(place, tmp_path):
    pytest.importorskip("matplotlib", reason="drawing is the plots extra")
    png = tmp_path / "a.png"
    command = ("inspect", place / "transformer", "alignment", "eins zwei")
    seen = json.loads(run(*command, "--target", "one two three", "--plot", png, "--json"))
    assert seen["source"] == ["eins", "zwei", "</s>"]
    assert seen["target"] == ["one", "two", "three", "</s>"]
    weights = torch.tensor(seen["weights"])
    assert weights.shape == (2, 2, 4, 3)
    assert png.read_bytes().startswith(b"\x89PNG")
    shown = run(*command, "--target", "one two three", "--layer", 1, "--head", 0).splitlines()
    assert shown[0].startswith("layer 1, head 0: target tokens (down), source tokens (across), █ up to 0.")
    assert [line.split()[0] for line in shown[-4:]] == ["one", "two", "three", "</s>"]
    own = align(load_as(Translator, place / "seq2seq"), "eins zwei", beams=2)
    assert own.weights.shape == (1, 1, len(own.target), 3)
    with pytest.raises(AssertionError, match="Missing argument 'TEXT'"):
        run("inspect", place / "joint", "alignment")
    with pytest.raises(GenerationError, match="the source is empty"):
        run("inspect", place / "joint", "alignment", " ")
    with pytest.raises(AssertionError, match="Missing option '--prompt'"):
        run("inspect", place / "joint", "attention", "eins")


def test_lengths_at_the_command(place, tmp_path):
    pytest.importorskip("matplotlib", reason="drawing is the plots extra")
    command = (
        "inspect",
        place / "seq2seq",
        "lengths",
        "--beside",
        place / "joint",
        "--beams",
        1,
        "--width",
        4,
    )
    printed = json.loads(run(*command, "--json"))
    assert list(printed) == ["seq2seq", "joint"]
    bins = [(part["first"], part["last"], part["pairs"]) for part in printed["joint"]]
    assert bins == [(1, 9, 30)]  # 16 pairs up to 4 words, joined with the others
    assert "|beams:1|data:" in printed["joint"][0]["score"]["signature"]
    shown = run(*command, "--plot", tmp_path / "l.svg")
    assert "1–9" in shown
    assert "source length in words" in (tmp_path / "l.svg").read_text()
    with pytest.raises(DataError, match="have different validation pairs; give --file"):
        run("inspect", place / "joint", "lengths", "--beside", other(place, tmp_path))
    with pytest.raises(DataError, match="--targets are the translations of --file"):
        run(*command, "--targets", place / "val.en")


def other(place: Path, folder: Path) -> Path:
    """The same run, whose recipe validates on other pairs."""
    shutil.copytree(place / "joint", folder / "other")
    recipe = folder / "other/recipe.toml"
    recipe.write_text(recipe.read_text().replace("val.tsv", "train.tsv").replace("train.tsv", "val.tsv", 1))
    return folder / "other"


# -- two vocabularies ------------------------------------------------------------------------------------


def test_each_side_has_its_tokenizer_on_disk(place, tmp_path):
    german, english = tokenizers()
    for name in FAMILIES:
        translator = load_as(Translator, place / name)
        assert translator.source_tokenizer.fingerprint == german.fingerprint
        assert translator.tokenizer.fingerprint == english.fingerprint
        assert translator.config.source_vocab_size == german.vocab_size > english.vocab_size
        assert len(list(translator.translate(GERMAN[:3], beams=2, max_new_tokens=3))) == 3
    wordloom.save(translator, tmp_path / "again")
    assert load_as(Translator, tmp_path / "again").source_tokenizer.fingerprint == german.fingerprint
    joint = load_as(Translator, place / "joint")
    wordloom.save(joint, tmp_path / "again", overwrite=True)
    assert not (tmp_path / "again/source_tokenizer").exists()
    loaded = load_as(Translator, tmp_path / "again")
    assert loaded.source_tokenizer is loaded.tokenizer


def test_two_tokenizers_are_trained_or_read(place):
    def made(*overrides: str) -> Vocabularies:
        recipe = load_recipe(place / "seq2seq/recipe.toml", overrides)
        return recipe_vocabularies(recipe, pair_corpus(recipe), TrainingProgress())

    sizes = ("tokenizer.kind=bpe", "tokenizer.vocab_size=262", "tokenizer.source_vocab_size=265")
    two = made(*sizes)
    assert (two.source.vocab_size, two.target.vocab_size) == (265, 262)
    folder = place / "seq2seq"
    read = made(f"tokenizer.path={folder}", f"tokenizer.source_path={folder / 'source_tokenizer'}")
    german, english = tokenizers()
    assert (read.source.fingerprint, read.target.fingerprint) == (german.fingerprint, english.fingerprint)
    joint = made("tokenizer.separate=false")
    assert joint.beside is None
    assert joint.fingerprint == joint.target.fingerprint != read.fingerprint


def test_a_tokenizer_of_another_model_is_refused_on_either_side(place, tmp_path):
    german, english = tokenizers()
    large = Tokenizer.train([" ".join(map(str, range(300)))], kind="word")
    cases = [
        ("", large, "the target tokenizer has 303 tokens and the model 9 target tokens; they do not belong"),
        ("source_tokenizer", large, "the source tokenizer has 303 tokens and the model 10 source tokens"),
        ("", german, "the target tokenizer has 10 tokens and the model 9 target tokens"),
    ]
    for number, (below, tokenizer, says) in enumerate(cases):
        folder = tmp_path / str(number)
        shutil.copytree(place / "transformer", folder)
        tokenizer.save_pretrained(folder / below)
        with pytest.raises(CheckpointError, match=says) as caught:
            load_as(Translator, folder)
        assert "\n" not in str(caught.value)
    shutil.rmtree(folder / "source_tokenizer")
    english.save_pretrained(folder)
    with pytest.raises(CheckpointError, match="no tokenizer of its sources; put back its source_tokenizer/"):
        load_as(Translator, folder)
    facts = json.loads((place / "joint/config.json").read_text())
    shutil.copytree(place / "joint", tmp_path / "ends")
    (tmp_path / "ends/config.json").write_text(json.dumps(facts | {"eos_token_id": 5}))
    with pytest.raises(CheckpointError, match="the eos token is 1 in the tokenizer and 5 in the model"):
        load_as(Translator, tmp_path / "ends")
    model = build(config_from("seq2seq", vocab_size=9, dim=8))
    with pytest.raises(
        CheckpointError, match="the source tokenizer has 10 ids, the model a source_vocab of 9"
    ):
        save_model(model, tmp_path / "no", tokenizer=english, source_tokenizer=german)


def test_every_kind_of_model_has_its_own_command(place, tmp_path):
    assert next_command(place / "joint") == f"wordloom translate {place / 'joint'} FILE"
    write_llama(tmp_path / "a b", 0)
    assert next_command(tmp_path / "a b") == f"wordloom generate '{tmp_path / 'a b'}' --prompt \"...\""
    recipe = RECIPE.replace("translation", "causal_lm").format(place="x", separate="false", family="llama")
    recipe = recipe.replace("source_column", "label_column").replace("target_column", "text_column")
    (tmp_path / "a b/recipe.toml").write_text(recipe.replace("[tok", "label_prefix = true\n[tok"))
    assert next_command(tmp_path / "a b").endswith(' --prompt "<LABEL>" --specials interpret')
    config = config_from("rnn_classifier", vocab_size=5, dim=4, id2label={"0": "x", "1": "y"})
    save_model(build(config), tmp_path / "c")
    assert next_command(tmp_path / "c") == f"wordloom predict {tmp_path / 'c'} FILE"


def test_without_attention_nothing_is_aligned(tmp_path):
    german, english = tokenizers()
    sizes = {"vocab_size": english.vocab_size, "source_vocab_size": german.vocab_size}
    save_model(build(config_from("seq2seq", dim=8, **sizes)), tmp_path, tokenizer=english,
               source_tokenizer=german)  # fmt: skip
    with pytest.raises(ConfigError, match="attention is 'none'"):
        align(load_as(Translator, tmp_path), "eins")

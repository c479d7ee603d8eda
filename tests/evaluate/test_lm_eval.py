"""lm-eval with Wordloom's model: the results of lm-eval's own ``hf`` model on the same folder."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lm_eval
import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from tests.evaluate.conftest import sharpened

from wordloom.errors import EvaluationError
from wordloom.generate import Sampling
from wordloom.lm_eval import WordloomLM, main
from wordloom.models import GPT2Config, LlamaConfig, RNNConfig
from wordloom.text import Tokenizer
from wordloom.weights import save_model

WORDS = ["Once", "upon", "a", "time", "there", "was", "little", "girl", "named", "she", "loved", "to", "the"]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", params=["stories260K", "gpt2", "llama"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LLaMA whose prompts begin with BOS, and models with a byte-level tokenizer."""
    if request.param == "stories260K":
        data: Path = request.getfixturevalue("data")
        return data / "weights" / "stories260K" / "hf"
    path = tmp_path_factory.mktemp(request.param)
    tokenizer = Tokenizer.train([" ".join(WORDS)] * 3, kind="bpe", vocab_size=300)
    shape = {"vocab_size": tokenizer.vocab_size, "max_seq_len": 48, "dim": 24, "n_layers": 2, "n_heads": 3}
    config = GPT2Config(**shape) if request.param == "gpt2" else LlamaConfig(hidden_dim=40, **shape)
    save_model(sharpened(config, seed=random.randrange(1 << 20)), path, tokenizer=tokenizer)
    return path


@pytest.fixture(scope="module")
def both(folder: Path) -> tuple[WordloomLM, Any]:
    ours = WordloomLM(str(folder), device="cpu")
    theirs = HFLM(pretrained=str(folder), device="cpu", batch_size=4, dtype="float32")
    assert (ours.max_length, ours.prefix_token_id, ours.eot_token_id) == (
        theirs.max_length, theirs.prefix_token_id, theirs.eot_token_id,
    )  # fmt: skip
    return ours, theirs


def text(rng: random.Random, longest: int) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(1, longest)))


def requests_of(kind: str, arguments: list[tuple[Any, ...]]) -> list[Instance]:
    return [Instance(kind, {}, each, i) for i, each in enumerate(arguments)]


def test_loglikelihoods(both: tuple[WordloomLM, Any], rng: random.Random) -> None:
    """With and without a context, a space at either side, and contexts that exceed the window."""
    ours, theirs = both
    pairs = [(text(rng, 9), f" {text(rng, 3)}") for _ in range(12)]
    pairs += [("", text(rng, 5)), (f"{text(rng, 3)} ", text(rng, 2)), (f"{text(rng, 3)}\n", text(rng, 2))]
    pairs += [(text(rng, 700 if ours.max_length > 100 else 60), f" {text(rng, 2)}")]
    requests = requests_of("loglikelihood", pairs)
    for mine, expected in zip(ours.loglikelihood(requests), theirs.loglikelihood(requests), strict=True):
        assert mine[0] == pytest.approx(expected[0], rel=1e-4, abs=1e-4)
        assert mine[1] == expected[1]


def test_rolling(both: tuple[WordloomLM, Any], rng: random.Random) -> None:
    ours, theirs = both
    long = 900 if ours.max_length > 100 else 90
    requests = requests_of("loglikelihood_rolling", [(text(rng, n),) for n in (1, 7, long, 20)])
    mine, expected = ours.loglikelihood_rolling(requests), theirs.loglikelihood_rolling(requests)
    assert mine == pytest.approx(expected, rel=1e-4)


def test_generation(both: tuple[WordloomLM, Any], rng: random.Random) -> None:
    """Greedy answers of several lengths, with and without stop strings, and prompts that are cut."""
    ours, theirs = both
    stops = [[], ["."], ["\n", " she"], ["e"]]
    arguments: list[tuple[Any, ...]] = [
        (text(rng, 6), {"until": rng.choice(stops), "max_gen_toks": rng.choice([1, 5, 12])})
        for _ in range(10)
    ]
    if ours.max_length < 100:
        arguments.append((text(rng, 60), {"until": [], "max_gen_toks": 9}))
    requests = requests_of("generate_until", arguments)
    assert ours.generate_until(requests) == theirs.generate_until(requests_of("generate_until", arguments))


@pytest.mark.parametrize("rows", [1, 3])
def test_answers_come_in_batches(folder: Path, rows: int, rng: random.Random) -> None:
    arguments = [(text(rng, 6), {"until": ["."], "max_gen_toks": 4}) for _ in range(7)]
    all_at_once, some = (
        WordloomLM(str(folder), device="cpu"),
        WordloomLM(str(folder), device="cpu", batch_size=rows),
    )
    sizes: list[int] = []
    write = some.lm.generate

    def generate(prompts: list[list[int]], sampling: Sampling) -> Any:
        sizes.append(len(prompts))
        return write(prompts, sampling)

    some.lm.generate = generate  # type: ignore[method-assign]
    expected = all_at_once.generate_until(requests_of("generate_until", arguments))
    assert some.generate_until(requests_of("generate_until", arguments)) == expected
    assert sizes == {1: [1] * 7, 3: [3, 3, 1]}[rows]


def test_samples_follow_the_seed_of_the_command(folder: Path) -> None:
    model = WordloomLM(str(folder), device="cpu", batch_size=2)
    asked = ("Once", {"until": [], "max_gen_toks": 20, "do_sample": True, "temperature": 1.5})

    def answers(seed: int) -> list[str]:
        torch.manual_seed(seed)
        return model.generate_until(requests_of("generate_until", [asked] * 4))

    first = answers(1)
    assert answers(1) == first
    assert answers(2) != first
    assert len(set(first)) > 2  # also in different batches


def test_a_special_token_ends_an_answer(folder: Path) -> None:
    model = WordloomLM(str(folder), device="cpu")
    special = model.tokens.id_to_token(min(model.tokens.special_ids - {model.eot_token_id}))
    sampling = model._sampling({"max_gen_toks": 3}, [special, "a", "no token"])
    assert set(sampling.stop_ids) == {model.eot_token_id, model.tokens.token_to_id(special)}
    model.lm.generation_defaults["repetition_penalty"] = 1.3
    assert model._sampling({"max_gen_toks": 3}, []).repetition_penalty == 1.3
    assert model._sampling({"max_gen_toks": 3, "repetition_penalty": 1.1}, []).repetition_penalty == 1.1


_PLAIN = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}[end]{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
_STRICT = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system message') }}{% endif %}"
    "<{{ m.role }}> {{ m.content | trim }}</{{ m.role }}>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.mark.parametrize("template", [_PLAIN, _STRICT])
@pytest.mark.parametrize("ending", ["", " ", "\n", "  \n "])
def test_conversations_end_as_those_of_hf(
    tmp_path: Path, template: str, ending: str, rng: random.Random
) -> None:
    """With the beginning of an answer, or open at the end of the last message."""
    tokenizer = Tokenizer.train([" ".join(WORDS)] * 3, kind="bpe", vocab_size=300)
    config = GPT2Config(vocab_size=tokenizer.vocab_size, max_seq_len=48, dim=24, n_layers=1, n_heads=3)
    save_model(sharpened(config), tmp_path / "chat", tokenizer=tokenizer)
    (tmp_path / "chat" / "chat_template.jinja").write_text(template)
    ours = WordloomLM(str(tmp_path / "chat"), device="cpu")
    theirs = HFLM(pretrained=str(tmp_path / "chat"), device="cpu", dtype="float32")
    history = [
        {"role": "system", "content": text(rng, 4)},
        {"role": "user", "content": text(rng, 6)},
        {"role": "assistant", "content": text(rng, 6) + ending},
    ]
    for count, prompt in ((2, True), (3, False)):
        expected = theirs.apply_chat_template(history[:count], add_generation_prompt=prompt)
        assert ours.apply_chat_template(history[:count], add_generation_prompt=prompt) == expected


def test_an_empty_prompt_is_the_token_before_texts(folder: Path) -> None:
    ours = WordloomLM(str(folder), device="cpu")
    (answer,) = ours.generate_until(requests_of("generate_until", [("", {"until": [], "max_gen_toks": 5})]))
    greedy = Sampling(max_new_tokens=5, temperature=0.0, top_k=None, stop_ids=(ours.eot_token_id,))
    (expected,) = ours.lm.generate([[ours.prefix_token_id]], greedy)
    assert answer == ours.tok_decode(expected)


def test_blanks_before_a_continuation_are_its_own(folder: Path) -> None:
    ours = WordloomLM(str(folder), device="cpu")
    (blank,), (none,) = (
        ours.loglikelihood(requests_of("loglikelihood", [pair])) for pair in ((" ", "the"), ("", " the"))
    )
    assert blank == pytest.approx(none)
    greedy = [("Once", {"until": [], "max_gen_toks": 3, **more}) for more in ({}, {"num_beams": 1})]
    first, second = ours.generate_until(requests_of("generate_until", greedy))
    assert first == second


@pytest.fixture
def tasks(tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tasks of one's own: minimal pairs, choices, perplexity and answers, on local files."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    rows = [
        {"question": text(rng, 5), "choices": [text(rng, n) for n in (2, 3, 4)], "answer": rng.randrange(3),
         "good": text(rng, 6), "bad": text(rng, 6), "page": text(rng, 30)} for _ in range(14)
    ]  # fmt: skip
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    common = f'dataset_path: json\ndataset_kwargs: {{data_files: {{test: "{data}"}}}}\ntest_split: test\n'
    (tmp_path / "own").mkdir()
    for name, body in {
        "own_choices": 'output_type: multiple_choice\ndoc_to_text: "{{question}}"\ndoc_to_target: answer\n'
        "doc_to_choice: choices\nmetric_list: [{metric: acc}, {metric: acc_norm}]\n",
        "own_pairs": 'output_type: multiple_choice\ndoc_to_text: ""\ndoc_to_target: 0\n'
        'doc_to_choice: "{{[good, bad]}}"\nmetric_list: [{metric: acc}]\n',
        "own_pages": 'output_type: loglikelihood_rolling\ndoc_to_text: ""\ndoc_to_target: "{{page}}"\n'
        "metric_list: [{metric: word_perplexity}, {metric: bits_per_byte}]\n",
        "own_answers": 'output_type: generate_until\ndoc_to_text: "{{question}}"\ndoc_to_target: "{{good}}"\n'
        'generation_kwargs: {until: ["."], max_gen_toks: 6}\nmetric_list: [{metric: exact_match}]\n',
    }.items():
        (tmp_path / "own" / f"{name}.yaml").write_text(f"task: {name}\n{common}{body}")
    return tmp_path / "own"


def test_tasks_of_ones_own(both: tuple[WordloomLM, Any], tasks: Path) -> None:
    names = ["own_choices", "own_pairs", "own_pages", "own_answers"]
    found = [
        lm_eval.simple_evaluate(
            model, tasks=names, task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
            bootstrap_iters=0,
        )["results"]
        for model in both
    ]  # fmt: skip
    for name in names:
        for metric, value in found[1][name].items():
            if isinstance(value, float):
                assert found[0][name][metric] == pytest.approx(value, rel=1e-4), (name, metric)


def test_the_command(
    tasks: Path, data: Path, tmp_path: Path, printed: Callable, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    model = f"pretrained={data / 'weights' / 'stories260K' / 'hf'}"
    arguments = ["--model", "wordloom", "--model_args", model, "--tasks", "own_pairs",
                 "--include_path", str(tasks), "--output_path", str(tmp_path / "out")]  # fmt: skip
    code = "import runpy; runpy.run_module('wordloom.lm_eval', run_name='__main__')"
    done = printed(*arguments, code=code, HF_DATASETS_CACHE=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stderr[-3000:]
    assert "|own_pairs|" in done.stdout.replace(" ", "")
    (results,) = (tmp_path / "out").rglob("results_*.json")
    assert json.loads(results.read_text())["results"]["own_pairs"]["acc,none"] is not None
    monkeypatch.setattr(sys, "argv", ["lm_eval", *arguments[:3], "pretrained=nowhere", *arguments[4:]])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("wordloom: nowhere")


@pytest.mark.parametrize("starts", [False, True])
def test_a_recurrent_model_has_no_limit(tmp_path: Path, rng: random.Random, starts: bool) -> None:
    """One end token stands before a text, whether the model was trained to read it there or not."""
    tokenizer = Tokenizer.train([" ".join(WORDS)], kind="byte")
    tokenizer = tokenizer.with_start(eos=True) if starts else tokenizer
    config = RNNConfig(vocab_size=tokenizer.vocab_size, dim=9, hidden_dim=11, n_layers=1, cell="gru")
    save_model(sharpened(config), tmp_path / "rnn", tokenizer=tokenizer)
    model = WordloomLM(str(tmp_path / "rnn"), device="cpu")
    words = text(rng, 40)
    (total,) = model.loglikelihood_rolling(requests_of("loglikelihood_rolling", [(words,)]))
    ids = [tokenizer.eos_id, *tokenizer.encode_ids(words)]
    with torch.no_grad():
        rows = model.lm.model(torch.tensor([ids]))[0].double().log_softmax(-1)
    assert total == pytest.approx(float(rows[:-1].gather(1, torch.tensor(ids[1:])[:, None]).sum()), rel=1e-5)


def test_refusals(both: tuple[WordloomLM, Any], folder: Path) -> None:
    ours, _ = both
    with pytest.raises(EvaluationError, match="a task asks for num_beams; allowed: temperature"):
        ours.generate_until(requests_of("generate_until", [("Once", {"until": [], "num_beams": 4})]))
    with pytest.raises(EvaluationError, match="leaves no room for a prompt"):
        ours.generate_until(requests_of("generate_until", [("Once", {"max_gen_toks": 9999})]))
    for given, says in (
        ({"max_length": 99999}, "max_length 99999 is no number that the model takes; allowed: 1 to"),
        ({"max_length": "abc"}, "max_length abc is no number"),
        ({"max_length": 0}, "max_length 0 is no number"),
        ({"max_gen_toks": "-5"}, "max_gen_toks -5 is no number that the model takes; allowed: 1 or more"),
        ({"batch_size": "abc"}, "batch_size abc is no number"),
        ({"max_len": 9}, "--model_args: no argument 'max_len'; did you mean 'max_length'"),
    ):
        with pytest.raises(EvaluationError, match=says):
            WordloomLM(str(folder), device="cpu", **given)
    assert WordloomLM(str(folder), device="cpu", batch_size="auto:4").rows is None
    with pytest.raises(EvaluationError, match="a continuation has 0 tokens"):
        ours._loglikelihood_tokens([(None, [1], [])])

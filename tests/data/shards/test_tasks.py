"""Tasks: their shares together are the corpus in one piece, each is whole or absent, others are refused."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from wordloom.data import CausalBatches, Corpus, TokenShards, prepare
from wordloom.data.files.source import Source
from wordloom.data.shards.folders import LocalFolder
from wordloom.data.shards.index import Index
from wordloom.data.shards.joined import JoinedShards
from wordloom.data.shards.merge import merge_shares, ranges
from wordloom.data.shards.tasks import prepare_share, share_folder
from wordloom.data.text.shares import ShareNumber, share_of
from wordloom.errors import DataError, TokenizerError
from wordloom.text import Tokenizer

SEED = secrets.randbits(32)
WORDS = ["fox", "Zoë", "  ", "naïve café", "日本語 🙂", "\t12345", "don't", ".\\n", '"', ""]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train([" ".join(WORDS) * 20], kind="bpe", vocab_size=300)


def texts(rng: np.random.Generator, count: int) -> list[str]:
    """Draw documents without a line break, some of them empty and some of one letter."""
    lengths = np.where(rng.random(count) < 0.3, rng.integers(0, 2, count), rng.integers(1, 30, count))
    return [" ".join(rng.choice(WORDS, n).tolist()) for n in lengths]


def write_files(folder: Path, rng: np.random.Generator) -> Path:
    """Write files of all kinds, some of them empty, with and without a line break at the end."""
    folder.mkdir()
    for n in range(int(rng.integers(1, 7))):
        lines = texts(rng, int(rng.choice([0, 1, 3, 40])))
        mark = "\ufeff" if rng.random() < 0.2 else ""
        end = "\n" if rng.random() < 0.5 else ""
        if rng.random() < 0.5:
            rows = [json.dumps({"text": t}) if rng.random() < 0.9 else " " for t in lines]
            content = mark + "\n".join(rows) + end
            (folder / f"{n}.jsonl").write_text(content, encoding="utf-8")
        else:
            content = mark + "\n".join(lines).replace("\\n", "\r") + end
            (folder / f"{n}.txt").write_text(content, encoding="utf-8")
    (folder / "z.txt").write_text("the last one\nhas two lines\n")
    return folder


def run_all(corpus: Corpus, tokenizer: Tokenizer, out: Path, count: int, parts, order=None) -> Index:
    for number in order if order is not None else range(1, count + 1):
        prepare_share(corpus, tokenizer, ShareNumber(number, count), out=out, parts=parts)
    return merge_shares(out)


def opened(out: Path, part: str) -> JoinedShards:
    index = Index.from_json((out / "shards.json").read_text(), "index")
    return JoinedShards(LocalFolder(out), index, index.parts[part])


def assert_equal(joined: JoinedShards, whole: TokenShards) -> None:
    assert joined.ids[:].tolist() == whole.tokens().tolist()
    assert joined.ends[:].tolist() == whole.ends[:].tolist()
    assert joined.document_bytes[:].tolist() == whole.document_bytes[:].tolist()
    assert joined.origins.tolist() == whole.origins.tolist()
    assert joined.sources == whole.sources
    assert joined.ledger == whole.ledger
    some = {0, whole.ends.size - 1, whole.ends.size // 2}
    assert [joined.document_name(n) for n in some] == [whole.document_name(n) for n in some]
    assert (joined.vocab_size, joined.eos_id, joined.pad_id, joined.tokenizer) == (
        whole.vocab_size,
        whole.eos_id,
        whole.pad_id,
        whole.tokenizer,
    )


@pytest.mark.parametrize("trial", range(8))
def test_shares_are_the_corpus_in_one_piece(tmp_path: Path, tokenizer: Tokenizer, trial: int) -> None:
    rng = np.random.default_rng([SEED, trial])
    print("seed", SEED)
    folder = write_files(tmp_path / "text", rng)
    settings: dict = {"separator": "line", "split": "hash", "validation_fraction": 0.3}
    if trial % 3 == 1:
        held_out = write_files(tmp_path / "held out", rng)
        settings = {"separator": str(rng.choice(["line", "blank-line"])), "split": "files"}
        settings["validation_sources"] = held_out
    corpus = Corpus(sources=folder, **settings)
    parts = ("train", "validation") if trial % 3 < 2 else ("all",)
    whole = {}
    for part in parts:
        try:
            whole[part] = prepare(corpus, tokenizer, part=part, cache=tmp_path / "cache")
        except DataError as failure:
            whole[part] = str(failure)
    empty = [part for part in parts if isinstance(whole[part], str)]
    if empty:
        assert all("is empty" in whole[part] for part in empty)
        with pytest.raises(DataError, match=f"the {empty[0]} part of all .* tasks together is empty"):
            run_all(corpus, tokenizer, tmp_path / "out", 2, parts)
        return
    count = int(rng.integers(1, 12))
    order = rng.permutation(np.arange(1, count + 1)).tolist()
    run_all(corpus, tokenizer, tmp_path / "out", count, parts, order)
    for part in parts:
        assert_equal(opened(tmp_path / "out", part), whole[part])


def test_more_tasks_than_bytes(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "a.txt").write_text("a\nb")
    (tmp_path / "b.txt").write_text("")
    corpus = Corpus(sources=[tmp_path / "a.txt", tmp_path / "b.txt"], separator="line", split="hash")
    run_all(corpus, tokenizer, tmp_path / "out", 9, ("all",))
    assert_equal(opened(tmp_path / "out", "all"), prepare(corpus, tokenizer, part="all"))


@pytest.mark.parametrize("trial", range(20))
def test_every_line_is_in_one_share_and_shares_are_equal(tmp_path: Path, trial: int) -> None:
    rng = np.random.default_rng([SEED, 1, trial])
    size, count = int(rng.integers(0, 3000)), int(rng.integers(1, 20))
    path = tmp_path / "a.jsonl"
    path.write_bytes(rng.choice([10, 97, 98], size, p=[0.1, 0.5, 0.4]).astype(np.uint8).tobytes())
    source = Source(path=str(path), name="a", format="jsonl")
    spans = [
        file.span or (0, size)
        for n in range(1, count + 1)
        for file in share_of([source], ShareNumber(n, count), None)
    ]
    edges = [0, *(stop for _, stop in spans)]
    assert edges[-1] == size
    if size:
        assert [start for start, _ in spans] == edges[:-1]
    assert max((stop - start for start, stop in spans), default=0) <= size / count + 1


def test_files_that_are_not_divided_are_balanced(tmp_path: Path) -> None:
    files = []
    for n, size in enumerate([9, 10, 11, 30, 30]):
        (tmp_path / f"{n}.json").write_bytes(b" " * size)
        files.append(Source(path=str(tmp_path / f"{n}.json"), name=str(n), format="json"))
    shares = [[file.name for file in share_of(files, ShareNumber(n, 3), None)] for n in (1, 2, 3)]
    assert shares == [["0", "1", "2"], ["3"], ["4"]]


def test_a_task_twice_does_nothing_and_an_incomplete_one_is_done_again(tmp_path: Path, tokenizer) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\nfour\n")
    corpus = Corpus(sources=tmp_path / "a.txt", separator="line", validation_fraction=0)
    out, task = tmp_path / "out", ShareNumber(1, 2)
    first = prepare_share(corpus, tokenizer, task, out=out, parts=("train",))
    files = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    again = prepare_share(corpus, tokenizer, task, out=out, parts=("train",))
    assert (first.reused, again.reused) == (False, True)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*") if ".lock" not in path.name} == {
        path: time_ns for path, time_ns in files.items() if ".lock" not in path.name
    }
    for damaged in ("complete.json", "train/tokens.bin", "train/meta.json"):
        (share_folder(out, task) / damaged).unlink()
        with pytest.raises(DataError, match=r"2 of 2 tasks are not complete: 1-2; .* --task 1/2 "):
            merge_shares(out)
        assert not prepare_share(corpus, tokenizer, task, out=out, parts=("train",)).reused
    with pytest.raises(DataError, match=r"1 of 2 tasks is not complete: 2; run .* --task 2/2 --out "):
        merge_shares(out)
    prepare_share(corpus, tokenizer, ShareNumber(2, 2), out=out, parts=("train",))
    merged = merge_shares(out)
    index = (out / "shards.json").read_bytes()
    assert merge_shares(out) == merged
    assert (out / "shards.json").read_bytes() == index
    assert len(index) < 4000


def test_other_settings_in_one_folder_are_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\nfour\n")
    corpus = Corpus(sources=tmp_path / "a.txt", separator="line", validation_fraction=0)
    out, task = tmp_path / "out", ShareNumber(1, 2)
    prepare_share(corpus, tokenizer, task, out=out, parts=("train",))
    other = Tokenizer.train([], kind="byte")
    for name, arguments in {
        "tokenizer;": (corpus, other, task),
        "number of tasks: 2, not 3": (corpus, tokenizer, ShareNumber(1, 3)),
        "separator: 'line', not None": (
            Corpus(sources=tmp_path / "a.txt", validation_fraction=0),
            tokenizer,
            task,
        ),
        "split: 'tail', not 'hash'": (
            Corpus(sources=tmp_path / "a.txt", separator="line", split="hash", validation_fraction=0),
            tokenizer,
            task,
        ),
    }.items():
        with pytest.raises(DataError, match=f"was begun with another {name}.*choose another --out"):
            prepare_share(*arguments, out=out, parts=("train",))
    with pytest.raises(DataError, match="begun with another end of a document"):
        prepare_share(corpus, tokenizer, task, out=out, parts=("train",), end="none")
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\nfour\nfive")
    with pytest.raises(DataError, match="begun with another corpus"):
        prepare_share(corpus, tokenizer, task, out=out, parts=("train",))


def test_a_file_that_changed_behind_a_completed_task_is_refused(tmp_path: Path, tokenizer) -> None:
    path, out, task = tmp_path / "a.txt", tmp_path / "out", ShareNumber(1, 2)
    path.write_text("one\ntwo\nthree\nfour\n")
    corpus = Corpus(sources=path, separator="line", validation_fraction=0)
    prepare_share(corpus, tokenizer, task, out=out, parts=("train",))
    os.utime(path, ns=(1, 1))  # copied to another machine
    assert prepare_share(corpus, tokenizer, task, out=out, parts=("train",)).reused
    path.write_text("owe\ntwo\nthree\nfour\n")  # of equal size
    changed = Corpus(sources=path, separator="line", validation_fraction=0)
    with pytest.raises(DataError, match="have changed since the task was completed"):
        prepare_share(changed, tokenizer, task, out=out, parts=("train",))


def test_tasks_may_see_the_files_in_different_folders(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """Files that are divided between tasks are counted once, and equal names of whole files twice."""
    rng = np.random.default_rng()
    texts = {name: "".join(f"line {rng.integers(1000)}\n" for _ in range(40)) for name in ("a.txt", "b.txt")}
    for folder in ("one", "two", "three"):
        (tmp_path / folder).mkdir()
        for name, text in texts.items():
            (tmp_path / folder / name).write_text(text)
    settings = {"separator": "line", "split": "hash", "validation_fraction": 0}
    whole = prepare(Corpus(sources=tmp_path / "one", **settings), tokenizer, part="train", cache=tmp_path)
    for number, folder in enumerate(("one", "two", "three"), 1):
        corpus = Corpus(sources=tmp_path / folder, **settings)
        prepare_share(corpus, tokenizer, ShareNumber(number, 3), out=tmp_path / "out", parts=("train",))
    merge_shares(tmp_path / "out")
    joined = opened(tmp_path / "out", "train")
    assert joined.origins.tolist() == whole.origins.tolist()
    assert joined.ledger == whole.ledger
    (tmp_path / "one" / "sub").mkdir()
    (tmp_path / "one" / "sub" / "a.txt").write_text(texts["a.txt"])  # a whole file behind a whole file
    same = Corpus(sources=[tmp_path / "one" / "a.txt", tmp_path / "one" / "sub" / "a.txt"], **settings)
    run_all(same, tokenizer, tmp_path / "same", 2, ("train",))
    assert opened(tmp_path / "same", "train").ledger.files == 2


def test_a_damaged_or_foreign_share_is_not_merged(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "a.txt").write_text("".join(f"line {i}\n" for i in range(3000)))
    corpus = Corpus(sources=tmp_path / "a.txt", separator="line", split="hash", validation_fraction=0)
    out, parts = tmp_path / "out", ("train",)
    run_all(corpus, tokenizer, out, 3, parts)
    merge_shares(out, verified=True)

    def fresh() -> Path:
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(out, copy)
        return copy

    copy = fresh()  # the share of another task
    shutil.rmtree(share_folder(copy, ShareNumber(2, 3)))
    shutil.copytree(share_folder(copy, ShareNumber(1, 3)), share_folder(copy, ShareNumber(2, 3)))
    with pytest.raises(DataError, match="1 of 3 tasks is not complete: 2;"):
        merge_shares(copy)
    prepare_share(corpus, tokenizer, ShareNumber(2, 3), out=copy, parts=parts)
    merge_shares(copy)
    assert (copy / "shards.json").read_bytes() == (out / "shards.json").read_bytes()

    copy = fresh()  # of other settings
    path = share_folder(copy, ShareNumber(3, 3)) / "complete.json"
    values = json.loads(path.read_text())
    values["identity"]["separator"] = None
    path.write_text(json.dumps(values))
    with pytest.raises(DataError, match="was begun with another separator"):
        merge_shares(copy)

    copy = fresh()  # ids within the vocabulary
    path = share_folder(copy, ShareNumber(1, 3)) / "train" / "tokens.bin"
    damaged = bytearray(path.read_bytes())
    damaged[40:44] = damaged[44:48]
    path.write_bytes(damaged)
    merge_shares(copy)
    with pytest.raises(DataError, match=r"train/tokens\.bin' is damaged"):
        merge_shares(copy, verified=True)

    copy = fresh()
    (share_folder(copy, ShareNumber(1, 3)) / "train" / "meta.json").write_text("[]")
    with pytest.raises(DataError, match="1 of 3 tasks is not complete: 1;"):
        merge_shares(copy)
    assert not prepare_share(corpus, tokenizer, ShareNumber(1, 3), out=copy, parts=parts).reused

    copy = fresh()
    tasks = json.loads((copy / "tasks.json").read_text())
    tasks["settings"]["number of tasks"] = "x"
    (copy / "tasks.json").write_text(json.dumps(tasks))
    with pytest.raises(DataError, match="its settings are damaged"):
        merge_shares(copy)
    for bad in (tmp_path / "a.txt", tmp_path / "a.txt" / "x"):
        with pytest.raises(DataError, match=r"\(--out\) cannot be made"):
            prepare_share(corpus, tokenizer, ShareNumber(1, 3), out=bad, parts=parts)


def test_mistakes_name_what_is_allowed(tmp_path: Path, tokenizer: Tokenizer) -> None:
    for text in ("", "3", "0/4", "5/4", "-1/4", "1/4/2", "a/b", "1/0", "\u0661/4"):
        with pytest.raises(DataError, match=r"task \(--task\) .* is not allowed; .* from 1/64 to 64/64"):
            ShareNumber.parse(text)
    assert ShareNumber.parse("3/64") == (3, 64)
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    task, out = ShareNumber(1, 2), tmp_path / "out"
    with pytest.raises(DataError, match=r"split='tail' .* take 'hash', or name files"):
        prepare_share(Corpus(sources=tmp_path / "a.txt"), tokenizer, task, out=out, parts=("train",))
    twice = Corpus(sources=[tmp_path / "a.txt"] * 2, split="hash")
    with pytest.raises(DataError, match="named more than once"):
        prepare_share(twice, tokenizer, task, out=out, parts=("train",))
    with pytest.raises(DataError, match="holds no tasks of preparing; start with wordloom data prepare"):
        merge_shares(tmp_path / "elsewhere")
    assert ranges([1, 2, 3, 7, 9, 10]) == "1-3, 7, 9-10"


def test_errors_within_a_share_name_their_place(tmp_path: Path, tokenizer: Tokenizer) -> None:
    lines = [json.dumps({"text": "fox " * 9})] * 20
    lines[15] = '{"text": '
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    begin = sum(len(line) + 1 for line in lines[:10])
    corpus = Corpus(sources=tmp_path / "a.jsonl", split="hash", validation_fraction=0)
    with pytest.raises(DataError, match=rf"a\.jsonl:6: not valid JSON .*from byte {begin}, where this share"):
        prepare_share(corpus, tokenizer, ShareNumber(2, 2), out=tmp_path / "out", parts=("train",))
    assert not list((tmp_path / "out" / "shares").glob("0*"))
    lines[15] = json.dumps({"text": tokenizer.id_to_token(tokenizer.eos_id)})
    (tmp_path / "b.jsonl").write_text("\n".join(lines))
    at = (tmp_path / "b.jsonl").stat().st_size // 2
    corpus = Corpus(sources=tmp_path / "b.jsonl", split="hash", validation_fraction=0)
    with pytest.raises(TokenizerError, match=rf"b\.jsonl, document 5 from byte {at:,} on: "):
        prepare_share(corpus, tokenizer, ShareNumber(2, 2), out=tmp_path / "other", parts=("train",))
    (tmp_path / "c.jsonl").write_bytes(b'{"text": "a"}\n' * 9 + b'{"text": "\xff"}\n')
    corpus = Corpus(sources=tmp_path / "c.jsonl", split="hash", validation_fraction=0)
    with pytest.raises(DataError, match=r"c\.jsonl: byte 136 "):
        prepare_share(corpus, tokenizer, ShareNumber(2, 2), out=tmp_path / "third", parts=("train",))


def test_all_files_of_a_split_by_files_are_sources(tmp_path: Path, tokenizer: Tokenizer) -> None:
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(name)
    corpus = Corpus(sources=tmp_path / "a.txt", split="files", validation_sources=tmp_path / "b.txt")
    with pytest.raises(DataError, match="name all of them as sources"):
        prepare_share(corpus, tokenizer, ShareNumber(1, 2), out=tmp_path / "out", parts=("all",))


def test_windows_of_a_merged_corpus_are_those_of_one_piece(tmp_path: Path, tokenizer: Tokenizer) -> None:
    rng = np.random.default_rng([SEED, 3])
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": t}) for t in texts(rng, 400)))
    corpus = Corpus(sources=tmp_path / "a.jsonl", split="hash", validation_fraction=0.2)
    run_all(corpus, tokenizer, tmp_path / "out", 7, ("train", "validation"))
    one, other = (
        CausalBatches(shards, seq_len=16, seed=3, document_mask=True)
        for shards in (prepare(corpus, tokenizer, part="train"), opened(tmp_path / "out", "train"))
    )
    for start in range(0, 2 * one.samples_per_epoch, 5):
        for mine, theirs in zip(one.batch(start, 5), other.batch(start, 5), strict=True):
            assert mine.tolist() == theirs.tolist()


SCRIPT = textwrap.dedent(
    """
    import sys, time
    import wordloom.data.shards.prepare as module
    from wordloom.data import Corpus
    from wordloom.data.shards.tasks import prepare_share
    from wordloom.data.text.shares import ShareNumber
    from wordloom.text import Tokenizer
    module.BATCH = 2000
    encode = module._encode
    def slowly(*arguments):
        time.sleep(0.02)
        print("encoding", flush=True)
        return encode(*arguments)
    module._encode = slowly
    corpus = Corpus(sources=sys.argv[1], split="hash", validation_fraction=0.5)
    tokenizer = Tokenizer.train([], kind="byte")
    prepare_share(corpus, tokenizer, ShareNumber(1, 2), out=__import__("pathlib").Path(sys.argv[2]),
                  parts=("train", "validation"))
    print("done", flush=True)
    """
)


@pytest.mark.parametrize("trial", range(3))
def test_a_killed_task_leaves_nothing_that_counts(tmp_path: Path, trial: int) -> None:
    """The process is killed at a random time: the share is absent or whole, and the next one completes it."""
    rng = np.random.default_rng([SEED, 4, trial])
    print("seed", SEED)
    (tmp_path / "a.jsonl").write_text('{"text": "' + "fox " * 100 + '"}\n' * 1)
    with (tmp_path / "a.jsonl").open("a") as file:
        file.writelines(json.dumps({"text": f"{n} fox " * 50}) + "\n" for n in range(400))
    out = tmp_path / "out"
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "a.jsonl"), str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "encoding\n"
    time.sleep(float(rng.uniform(0, 1.0)))
    process.send_signal(signal.SIGKILL)
    ended = "done" in process.stdout.read()
    process.wait()
    folder = share_folder(out, ShareNumber(1, 2))
    assert folder.exists() or not ended
    with pytest.raises(DataError, match="not complete: 2;" if folder.exists() else "not complete: 1-2;"):
        merge_shares(out)
    corpus = Corpus(sources=tmp_path / "a.jsonl", split="hash", validation_fraction=0.5)
    tokenizer, parts = Tokenizer.train([], kind="byte"), ("train", "validation")
    run_all(corpus, tokenizer, out, 2, parts)
    assert not list(out.rglob("*.tmp*"))
    for part in parts:
        assert_equal(opened(out, part), prepare(corpus, tokenizer, part=part, cache=tmp_path / "cache"))


def test_a_half_written_share_under_its_name_is_not_taken(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """Copied by another program, or on a disk that lost the end of a file."""
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\nfour\n")
    corpus = Corpus(sources=tmp_path / "a.txt", separator="line", validation_fraction=0)
    out = tmp_path / "out"
    run_all(corpus, tokenizer, out, 2, ("train",))
    tokens = share_folder(out, ShareNumber(2, 2)) / "train/tokens.bin"
    tokens.write_bytes(tokens.read_bytes()[:-1])
    with pytest.raises(DataError, match="1 of 2 tasks is not complete: 2;"):
        merge_shares(out)
    with pytest.raises(DataError, match=r"tokens\.bin' is damaged"):
        opened(out, "train")
    shutil.rmtree(share_folder(out, ShareNumber(1, 2)))
    (tmp_path / "a.txt").write_text("eno\nowt\nthree\nfour\n")  # of equal sizes
    changed = Corpus(sources=tmp_path / "a.txt", separator="line", validation_fraction=0)
    for number in (1, 2):
        prepare_share(changed, tokenizer, ShareNumber(number, 2), out=out, parts=("train",))
    with pytest.raises(DataError, match=r"differs from the index of its folder: .*; merge the folder again"):
        opened(out, "train")
    corpus = changed
    run_all(corpus, tokenizer, out, 2, ("train",))
    assert_equal(opened(out, "train"), prepare(corpus, tokenizer, part="train"))

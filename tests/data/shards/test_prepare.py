"""Preparing: the ids are the tokenizer's own, the folder is whole or absent, mistakes name their place."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import wordloom.data.shards.prepare as shards_module
from wordloom.data import Corpus, Progress, TokenShards, prepare
from wordloom.data.shards.segments import Cutter, cut_rule
from wordloom.data.text.corpus import EMPTY
from wordloom.errors import DataError, TokenizerError
from wordloom.text import Tokenizer

TEXT = [
    "The quick brown fox, it's quick!\n\nJumps over 12345 lazy dogs.\n",
    "",
    "Zoë — “naïve”  café\t\tŒuvre\n" * 40,
    "  leading spaces\n \n and trailing  \n\n",
    "one line without an end " * 50,
    "日本語 🙂\r\nmore\r\n\r\n\x0b odd \u2028 spaces\u00a0here\n",
]


@pytest.fixture(scope="session")
def tokenizers() -> dict[str, Tokenizer]:
    made = {"byte": Tokenizer.train([], kind="byte"), "char": Tokenizer.train(TEXT, kind="char")}
    for kind in ("word", "bpe", "wordpiece", "unigram"):
        made[kind] = Tokenizer.train(TEXT, kind=kind, vocab_size=400)
    made["llama3"] = Tokenizer.train(TEXT, kind="bpe", vocab_size=400, split="llama3")
    made["lower"] = Tokenizer.train(TEXT, kind="bpe", vocab_size=400, lower=True)
    return made


def corpus_of(folder: Path, documents: list[str] = TEXT, **settings) -> Corpus:
    path = folder / "a.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    return Corpus(sources=path, **{"validation_fraction": 0, **settings})


KINDS = ["byte", "char", "word", "bpe", "llama3", "lower", "wordpiece", "unigram"]


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_those_of_each_document_and_its_end(
    tmp_path: Path, tokenizers, kind: str, monkeypatch
) -> None:
    monkeypatch.setattr(shards_module, "SEGMENT", 37)
    monkeypatch.setattr(shards_module, "BATCH", 300)
    tokenizer = tokenizers[kind]
    documents = [*TEXT, "\n".join(TEXT) * 3]
    shards = prepare(corpus_of(tmp_path, documents), tokenizer, part="train")
    end = [] if tokenizer.eos_id is None else [tokenizer.eos_id]
    expected = [[*tokenizer.encode_ids(text), *end] for text in documents if text]
    assert shards.tokens().tolist() == [i for ids in expected for i in ids]
    assert shards.ends.tolist() == np.cumsum([len(ids) for ids in expected]).tolist()
    assert shards.document_bytes.tolist() == [len(text.encode()) for text in documents if text]
    assert shards.ledger.documents == len(expected)
    assert (shards.ledger.tokens, shards.ledger.bytes) == (len(shards), shards.document_bytes.sum())
    assert shards.ledger.dropped == {EMPTY: 1}
    assert shards.document_name(1) == f"{tmp_path / 'a.jsonl'}#2"
    assert shards.document_of(int(shards.ends[0]) - 1) == 0
    assert shards.document_of(int(shards.ends[0])) == 1
    assert shards.document_span(1) == (shards.ends[0], shards.ends[1])
    assert (shards.vocab_size, shards.eos_id, shards.pad_id) == (
        tokenizer.vocab_size,
        tokenizer.eos_id,
        tokenizer.pad_id,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_long_documents_are_cut_only_where_ids_do_not_change(tokenizers, kind: str) -> None:
    tokenizer = tokenizers[kind]
    rule = cut_rule(tokenizer)
    assert rule == ("llama3" if kind == "llama3" else "words")
    text = "".join(TEXT) * 5
    for size in (1, 20, 111):
        cutter = Cutter(size, rule)
        segments = [s for n in range(0, len(text), 97) for s in cutter.push(text[n : n + 97], last=False)]
        segments += cutter.push("", last=True)
        assert "".join(segments) == text
        assert len(segments) > 20
        assert [i for s in segments for i in tokenizer.encode_ids(s)] == tokenizer.encode_ids(text)


def test_llamas_documents_are_cut_at_line_breaks_alone(
    tmp_path: Path, data_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pieces reach across spaces, and every text given to it gets a mark in front."""
    monkeypatch.setattr(shards_module, "SEGMENT", 50)
    for name in ("tokenizers/llama-tokenizer.model", "weights/stories260K/hf/tokenizer.json"):
        tokenizer = Tokenizer.from_pretrained(data_folder / name)
        assert cut_rule(tokenizer) == "lines"
        documents = [*TEXT, "\n", "\n\nbegins with breaks", "".join(TEXT) * 4, "no break " * 30]
        shards = prepare(corpus_of(tmp_path, documents), tokenizer, part="train")
        whole = [[*tokenizer.encode_ids(text), tokenizer.eos_id] for text in documents if text]
        assert shards.tokens().tolist() == [i for ids in whole for i in ids]


def test_tokenizers_without_a_rule_are_never_cut() -> None:
    cutter = Cutter(5, None)
    assert [*cutter.push("one two\nthree", last=False)] == []
    assert [*cutter.push(" four", last=True)] == ["one two\nthree four"]
    assert [*cutter.push("next", last=True)] == ["next"]


def test_text_without_a_safe_place_stays_whole_at_linear_cost() -> None:
    cutter = Cutter(1000, "words")
    pieces = ["語" * 10_000] * 400
    begun = time.process_time()
    assert [s for piece in pieces for s in cutter.push(piece, last=False)] == []
    assert [*cutter.push("!", last=True)] == ["語" * 4_000_000 + "!"]
    assert time.process_time() - begun < 5  # a quadratic one takes minutes


@pytest.mark.parametrize(("vocab_size", "dtype"), [(1 << 16, np.uint16), ((1 << 16) + 1, np.uint32)])
def test_ids_take_two_bytes_where_the_vocabulary_allows(make_shards, vocab_size: int, dtype) -> None:
    shards = make_shards([0, vocab_size - 1, 7], vocab_size=vocab_size)
    assert shards.tokens().dtype == dtype
    assert shards.tokens().tolist() == [0, vocab_size - 1, 7]
    with pytest.raises(ValueError, match="read-only"):
        shards.tokens()[0] = 1
    with pytest.raises(DataError, match=r"outside 0..3"):
        shards.tokens(2, 4)


@pytest.mark.parametrize("split", ["tail", "hash"])
def test_both_parts_are_the_whole(tmp_path: Path, byte_tokenizer: Tokenizer, split: str) -> None:
    corpus = corpus_of(tmp_path, TEXT * 9, split=split, validation_fraction=0.3)
    train, validation, whole = (
        prepare(corpus, byte_tokenizer, part=part) for part in ("train", "validation", "all")
    )
    assert (
        train.ledger.bytes + validation.ledger.bytes == whole.ledger.bytes == len("".join(TEXT * 9).encode())
    )
    assert min(train.ledger.bytes, validation.ledger.bytes) > 0
    if split == "tail":  # the half before the cut has no end of its own
        assert train.tokens()[-1] != byte_tokenizer.eos_id
        assert np.concatenate([train.tokens(), validation.tokens()]).tolist() == whole.tokens().tolist()
    assert split in train.ledger.split


def test_any_bytes_round_trip(tmp_path: Path, byte_tokenizer: Tokenizer) -> None:
    raw = bytes(range(256)) * 1000
    (tmp_path / "a.txt").write_bytes(raw)
    corpus = Corpus(sources=tmp_path / "a.txt", encoding_errors="bytes", validation_fraction=0)
    shards = prepare(corpus, byte_tokenizer, part="train")
    assert byte_tokenizer.decode_bytes(shards.tokens()[:-1].tolist()) == raw


def test_raw_bytes_need_a_byte_tokenizer(tmp_path: Path, tokenizers) -> None:
    with pytest.raises(DataError, match="only a byte tokenizer takes, not a bpe one"):
        prepare(corpus_of(tmp_path, encoding_errors="bytes"), tokenizers["bpe"], part="train")


# -------------------------------------------------------------------------------- reuse and identity


def test_a_second_run_reuses_and_a_changed_one_does_not(tmp_path: Path, tokenizers, own_cache: Path) -> None:
    corpus = corpus_of(tmp_path)
    first = prepare(corpus, tokenizers["bpe"], part="train")
    calls: list[Progress] = []
    second = prepare(corpus, tokenizers["bpe"], part="train", progress=calls.append)
    assert (first.reused, second.reused, calls) == (False, True, [])
    assert first.folder == second.folder
    assert first.folder.is_relative_to(own_cache)
    assert first.ledger == second.ledger
    others = [
        prepare(corpus, tokenizers["word"], part="train"),
        prepare(corpus, tokenizers["bpe"], part="all"),
        prepare(corpus, tokenizers["bpe"], part="train", specials="text"),
        prepare(corpus_of(tmp_path, [*TEXT, "more"]), tokenizers["bpe"], part="train"),
    ]
    assert not any(shards.reused for shards in others)
    assert len({first.folder, *(shards.folder for shards in others)}) == 5


def test_equal_content_under_another_name_is_reused_with_the_present_names(
    tmp_path: Path, byte_tokenizer: Tokenizer
) -> None:
    corpus = corpus_of(tmp_path)
    prepare(corpus, byte_tokenizer, part="train")
    (tmp_path / "a.jsonl").rename(tmp_path / "b.jsonl")
    moved = Corpus(sources=tmp_path / "b.jsonl", validation_fraction=0)
    again = prepare(moved, byte_tokenizer, part="train")
    assert again.reused
    assert again.document_name(0) == f"{tmp_path / 'b.jsonl'}#0"


def test_a_reused_ledger_tells_the_present_split_and_notes(tmp_path: Path, byte_tokenizer: Tokenizer) -> None:
    for name in "abc":
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.txt").write_text(name)
    ledgers = []
    for name in "bc":
        validation = tmp_path / name
        (validation / f"{name}.png").write_bytes(b"\x89PNG")
        corpus = Corpus(sources=tmp_path / "a", split="files", validation_sources=validation)
        shards = prepare(corpus, byte_tokenizer, part="train")
        ledgers.append((shards.reused, shards.ledger.split, shards.ledger.notes[-1].endswith(f"{name}.png")))
    told = [f"files: validation is {tmp_path / name}" for name in "bc"]
    assert ledgers == [(False, told[0], True), (True, told[1], True)]


@pytest.mark.parametrize("damage", ["tokens.bin", "an id", "ends.bin", "meta.json"])
def test_damaged_shards_are_refused_on_opening_and_made_again_by_prepare(
    tmp_path: Path, byte_tokenizer: Tokenizer, damage: str
) -> None:
    corpus = corpus_of(tmp_path)
    shards = prepare(corpus, byte_tokenizer, part="train")
    expected = shards.tokens().tolist()
    file = shards.folder / ("tokens.bin" if damage == "an id" else damage)
    content = file.read_bytes()
    file.write_bytes(content[:-2] + b"\xff\xff" if damage == "an id" else content[:-3])
    with pytest.raises(DataError, match=r"prepare (it|them) again"):
        TokenShards(shards.folder)
    mended = prepare(corpus, byte_tokenizer, part="train")
    assert not mended.reused
    assert mended.tokens().tolist() == expected


def test_progress_ends_at_the_end(tmp_path: Path, byte_tokenizer: Tokenizer, monkeypatch) -> None:
    monkeypatch.setattr(shards_module, "BATCH", 100)
    seen: list[Progress] = []
    shards = prepare(corpus_of(tmp_path, TEXT * 20), byte_tokenizer, part="train", progress=seen.append)
    assert len(seen) > 10
    assert all(a.tokens <= b.tokens and a.bytes_read <= b.bytes_read for a, b in pairwise(seen))
    size = (tmp_path / "a.jsonl").stat().st_size
    assert seen[-1] == Progress(size, size, shards.ledger.documents, len(shards))


@pytest.mark.parametrize("workers", [1, 5])
def test_workers_change_nothing(tmp_path: Path, tokenizers, monkeypatch, workers: int) -> None:
    monkeypatch.setattr(shards_module, "BATCH", 200)
    corpus = corpus_of(tmp_path, TEXT * 9)
    shards = prepare(corpus, tokenizers["bpe"], part="train", workers=workers, cache=tmp_path / "one")
    plain = prepare(corpus, tokenizers["bpe"], part="train", cache=tmp_path / "two")
    assert shards.tokens().tolist() == plain.tokens().tolist()


# ------------------------------------------------------------------------------------------ mistakes


def test_a_special_token_in_the_text_names_its_document(tmp_path: Path, tokenizers, monkeypatch) -> None:
    monkeypatch.setattr(shards_module, "SEGMENT", 100)
    tokenizer = tokenizers["bpe"]
    special = tokenizer.id_to_token(tokenizer.eos_id)
    corpus = corpus_of(tmp_path, ["fine", "x y z\n" * 200 + special, "fine too"])
    with pytest.raises(
        TokenizerError, match=r"a\.jsonl, document 1, in the text from character 1,"
    ) as raised:
        prepare(corpus, tokenizer, part="train")
    assert special in str(raised.value)
    shards = prepare(corpus, tokenizer, part="train", specials="text")
    assert (shards.tokens() == tokenizer.eos_id).sum() == 3
    with pytest.raises(
        DataError, match=r"specials \(--specials\) 'interpret' is not for a corpus; allowed: refuse, text"
    ):
        prepare(corpus, tokenizer, part="train", specials="interpret")


@pytest.mark.parametrize(
    ("documents", "settings", "part", "named"),
    [
        ([], {}, "train", "train part of the corpus is empty .*files are empty"),
        (["", ""], {}, "train", "empty .*2 empty document"),
        (["", ""], {"validation_fraction": 0.1}, "train", "empty .*2 empty document"),
        (["", ""], {"validation_fraction": 0.1, "split": "hash"}, "validation", "empty .*2 empty document"),
        (["abc"], {}, "validation", "validation part .*validation_fraction=0 leaves it nothing"),
        (["a"], {"validation_fraction": 0.5}, "train", "train part .* leaves it nothing"),
        (["a"], {}, "tset", "part='tset' is not known"),
    ],
)
def test_nothing_to_prepare(
    tmp_path: Path, byte_tokenizer: Tokenizer, own_cache: Path, documents, settings, part, named: str
) -> None:
    with pytest.raises(DataError, match=named):
        prepare(corpus_of(tmp_path, documents, **settings), byte_tokenizer, part=part)
    assert not [p for p in own_cache.glob("tokens/*") if p.is_dir()]


def test_documents_without_a_token_are_dropped_and_counted(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(["a b c"], kind="wordpiece", vocab_size=50)
    assert len(tokenizer.encode_ids(" \n")) == 0
    shards = prepare(corpus_of(tmp_path, ["a", " \n", "b"]), tokenizer, part="train")
    assert shards.ledger.dropped == {"document(s) without a single token": 1}
    assert [shards.document_name(n)[-2:] for n in (0, 1)] == ["#0", "#2"]


def test_a_folder_that_cannot_be_written(tmp_path: Path, byte_tokenizer: Tokenizer) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match=r"cannot write token shards .*WORDLOOM_CACHE"):
        prepare(corpus_of(tmp_path), byte_tokenizer, part="train", cache=tmp_path / "file")


def test_a_full_disk_leaves_nothing(tmp_path: Path, byte_tokenizer, own_cache: Path, monkeypatch) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match="No space left on device; free space there"):
        prepare(corpus_of(tmp_path), byte_tokenizer, part="train")
    assert not [p for p in (own_cache / "tokens").iterdir() if p.is_dir()]


# ------------------------------------------------------------------------- interruption, concurrency

SLOW = """
    import sys, time
    from wordloom.data import Corpus, prepare
    import wordloom.data.shards.prepare as shards
    from wordloom.text import Tokenizer

    shards.BATCH = shards.SEGMENT = 2000
    def slowly(progress):
        print(progress.tokens, flush=True)
        time.sleep(float(sys.argv[3]))
    made = prepare(Corpus(sources=sys.argv[1], validation_fraction=0), Tokenizer.train([], kind="byte"),
                   part="train", cache=sys.argv[2], progress=slowly)
    print("reused" if made.reused else "written", flush=True)
"""


def start(source: Path, cache: Path, delay: float) -> subprocess.Popen[str]:
    code = textwrap.dedent(SLOW)
    command = [sys.executable, "-c", code, str(source), str(cache), str(delay)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_killed_run_leaves_nothing_half_valid_and_is_swept(
    tmp_path: Path, byte_tokenizer: Tokenizer
) -> None:
    (tmp_path / "a.txt").write_text("some text\n" * 5000)
    cache = tmp_path / "cache"
    process = start(tmp_path / "a.txt", cache, 0.2)
    for _ in range(3):
        assert process.stdout.readline().strip().isdigit()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    (left,) = [p for p in (cache / "tokens").iterdir() if p.is_dir()]
    assert left.name.endswith(".tmp")
    assert not (left / "meta.json").exists()

    # Another corpus sweeps it too, as nobody holds its lock.
    (tmp_path / "b.txt").write_text("other")
    prepare(
        Corpus(sources=tmp_path / "b.txt", validation_fraction=0), byte_tokenizer, part="train", cache=cache
    )
    assert not left.exists()
    corpus = Corpus(sources=tmp_path / "a.txt", validation_fraction=0)
    shards = prepare(corpus, byte_tokenizer, part="train", cache=cache)
    assert not shards.reused
    assert byte_tokenizer.decode(shards.tokens()[:-1].tolist()) == "some text\n" * 5000


def test_runs_at_the_same_time_do_the_work_once(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some text\n" * 2000)
    runs = [start(tmp_path / "a.txt", tmp_path / "cache", 0.1) for _ in range(3)]
    ended = [run.communicate(timeout=120) for run in runs]
    assert [run.returncode for run in runs] == [0, 0, 0], ended
    last = sorted(out.splitlines()[-1] for out, _ in ended)
    assert last == ["reused", "reused", "written"]
    folders = [p.name for p in (tmp_path / "cache" / "tokens").iterdir() if p.is_dir()]
    assert len(folders) == 1
    assert not folders[0].endswith(".tmp")


def test_a_run_under_way_is_not_swept(tmp_path: Path, byte_tokenizer: Tokenizer) -> None:
    (tmp_path / "a.txt").write_text("some text\n" * 2000)
    (tmp_path / "b.txt").write_text("other")
    cache = tmp_path / "cache"
    process = start(tmp_path / "a.txt", cache, 0.3)
    process.stdout.readline()
    prepare(
        Corpus(sources=tmp_path / "b.txt", validation_fraction=0), byte_tokenizer, part="train", cache=cache
    )
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out.split()[-1]) == (0, "written"), err


def test_threads_of_one_process(tmp_path: Path, byte_tokenizer: Tokenizer) -> None:
    corpus = corpus_of(tmp_path, TEXT * 50)
    made: list[TokenShards] = []
    threads = [
        threading.Thread(target=lambda: made.append(prepare(corpus, byte_tokenizer, part="train")))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({shards.folder for shards in made}) == 1
    assert len(made) == 4


MEMORY = """
    import resource, sys
    import wordloom.data.shards.prepare
    from wordloom.data import Corpus, prepare
    from wordloom.text import Tokenizer

    wordloom.data.shards.prepare.BATCH = 1 << 18
    tokenizer = Tokenizer.from_pretrained(sys.argv[3])
    prepare(Corpus(sources=sys.argv[4], validation_fraction=0), tokenizer, part="train", cache=sys.argv[2])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    shards = prepare(Corpus(sources=sys.argv[1], validation_fraction=0), tokenizer, part="train",
                     cache=sys.argv[2])
    print(len(shards), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in kilobytes on Linux only")
@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("bpe", "It's one of many lines, quick and lazy; number 12345 of them.\n"),
        ("bpe", "Одна из многих строк, быстрая и ленивая.\n\n"),
        ("bpe", "많은,줄,가운데,하나다.\r\n"),
        ("llama3", "Одна из многих строк, быстрая и ленивая.\r\n"),
        ("llama3", "많은,줄,가운데,하나다。\r\n\r\n\u3000\u3000"),
    ],
    ids=["ascii", "blank lines", "line breaks alone", "crlf", "indents"],
)
def test_memory_does_not_grow_with_the_corpus(tmp_path: Path, tokenizers, kind: str, line: str) -> None:
    tokenizers[kind].save_pretrained(tmp_path / "tokenizer")
    size = len(line.encode())
    (tmp_path / "small.txt").write_bytes(line.encode() * (3_000_000 // size))
    (tmp_path / "big.txt").write_bytes(line.encode() * (16_000_000 // size))
    command = [
        sys.executable,
        "-c",
        textwrap.dedent(MEMORY),
        str(tmp_path / "big.txt"),
        str(tmp_path / "cache"),
    ]
    out = subprocess.run(
        [*command, str(tmp_path / "tokenizer"), str(tmp_path / "small.txt")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    tokens, grown = map(int, out.split())
    assert tokens > 1_000_000
    assert grown < 12  # MB; the file alone is 16, its ids as Python lists some 40

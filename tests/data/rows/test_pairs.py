"""Pairs: read side by side, divided, prepared once; what is not kept is counted, what is wrong is named."""

from __future__ import annotations

import gzip
import json
import lzma
from pathlib import Path

import numpy as np
import pytest

from wordloom.data import Ledger, Pair, PairCorpus, PairShards, Progress, prepare_pairs
from wordloom.data.files.stream import Meter
from wordloom.errors import DataError, TokenizerError
from wordloom.text import Tokenizer

DE = ["Ein Hund läuft.", "Zwei Katzen schlafen.", "", "  ", "Der Mann\u2028singt laut.", "Ja."]
EN = ["A dog runs.", "Two cats sleep.", "Nothing here.", "", "The man sings loudly.", " \t"]
WHOLE = [(DE[n], EN[n]) for n in (0, 1, 4)]  # pairs with two sides


@pytest.fixture(scope="session")
def bpe() -> Tokenizer:
    return Tokenizer.train([*DE, *EN], kind="bpe", vocab_size=300)


def write(path: Path, lines: list[str]) -> Path:
    text = "".join(line + "\n" for line in lines).encode()
    packed = {".gz": gzip.compress, ".xz": lzma.compress}.get(path.suffix, bytes)
    path.write_bytes(packed(text))
    return path


def parallel(folder: Path, source: list[str] = DE, target: list[str] = EN, **settings) -> PairCorpus:
    a, b = write(folder / "a.de", source), write(folder / "a.en", target)
    return PairCorpus(sources=a, targets=b, **{"validation_fraction": 0, **settings})


def texts(corpus: PairCorpus, part: str = "all") -> list[tuple[str, str]]:
    return [pair[:2] for pair in corpus.pairs(part)]


# -------------------------------------------------------------------------------------------- reading


@pytest.mark.parametrize("packed", ["", ".gz", ".xz"])
def test_parallel_files_are_read_line_by_line(tmp_path: Path, packed: str) -> None:
    a, b = write(tmp_path / f"a.de{packed}", DE), write(tmp_path / f"a.en{packed}", EN)
    found = list(PairCorpus(sources=a, targets=b).pairs())
    assert found == [Pair(DE[n], EN[n], str(a), n + 1) for n in range(6)]
    assert found[3].place == f"{a}:4"


def test_windows_line_ends_and_a_missing_last_one(tmp_path: Path) -> None:
    (tmp_path / "a.de").write_bytes(b"eins\r\nzwei\r\n")
    (tmp_path / "a.en").write_bytes(b"\xef\xbb\xbfone\ntwo")
    corpus = PairCorpus(sources=tmp_path / "a.de", targets=tmp_path / "a.en")
    assert texts(corpus) == [("eins", "one"), ("zwei", "two")]


def test_several_files_stand_beside_each_other_in_order(tmp_path: Path) -> None:
    for name, lines in (("a.de", "12"), ("b.de", "3"), ("a.en", "xy"), ("b.en", "z")):
        write(tmp_path / name, list(lines))
    corpus = PairCorpus(sources=[tmp_path / "a.de", tmp_path / "b.de"], targets=tmp_path / "*.en")
    assert texts(corpus) == [("1", "x"), ("2", "y"), ("3", "z")]
    with pytest.raises(DataError, match=r"1 source file\(s\) .* have 2 target file\(s\) .*give one for each"):
        texts(PairCorpus(sources=tmp_path / "a.de", targets=tmp_path / "*.en"))


@pytest.mark.parametrize(
    ("name", "content", "settings"),
    [
        ("p.tsv", "id\tde\ten\n1\teins\tone\n2\tzwei\ttwo\n", {"source_column": "de", "target_column": "en"}),
        ("p.tsv", "eins\tone\nzwei\ttwo\n", {"source_column": 1, "target_column": 2}),
        ("p.csv", 'source,target\neins,"one"\nzwei,two\n', {}),
        ("p.jsonl", '{"source": "eins", "target": "one"}\n\n{"target": "two", "source": "zwei"}\n', {}),
        ("p.json", '[{"a": "eins", "b": "one"}, {"a": "zwei", "b": "two"}]', {"source_column": "a",
                                                                            "target_column": "b"}),
    ],
)  # fmt: skip
def test_tables_hold_both_sides(tmp_path: Path, name: str, content: str, settings: dict) -> None:
    (tmp_path / name).write_text(content)
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content.encode()))
    for path in (tmp_path / name, tmp_path / f"{name}.gz"):
        corpus = PairCorpus(sources=path, **settings)
        assert texts(corpus) == [("eins", "one"), ("zwei", "two")]
        meter = Meter()
        assert len(list(corpus.pairs(meter=meter))) == 2
        assert meter.read == path.stat().st_size


def test_a_named_set_by_its_languages(data_folder: Path) -> None:
    corpus = PairCorpus(
        sources="multi30k/train", source_column="de", target_column="en",
        split="files", validation_sources="multi30k/val",
    )  # fmt: skip
    assert sum(1 for _ in corpus.pairs("train")) == 29_000
    validation = list(corpus.pairs("validation"))
    assert len(validation) == 1014
    assert validation[0][:2] == (
        "Eine Gruppe von Männern lädt Baumwolle auf einen Lastwagen",
        "A group of men are loading cotton onto a truck",
    )
    test = PairCorpus(sources="multi30k/test_2016_flickr.en", targets="multi30k/test_2016_flickr.de")
    assert sum(1 for _ in test.pairs()) == 1000


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"sources": "multi30k/train"}, r"holds the languages en, de, not 'source'; name the language"),
        ({"sources": "multi30k/train.de"}, r"one side of the pairs; give the other as targets, or name"),
        ({"sources": "multi30k"}, r"'multi30k' has not both sides; name one of multi30k/train, multi30k/val"),
        ({"sources": "a.de"}, r"'a\.de' holds one side of the pairs; give the other as targets"),
        ({"sources": "p.jsonl", "targets": "a.en"}, r"p\.jsonl: is not a file of one text per line"),
        ({"sources": "p.jsonl", "source_column": "src"}, r":1: no column 'src'.* holds the source and"
                                                         r" which the target .*data\.source_column"),
        ({"sources": "-", "targets": "a.en"}, r"standard input can be read once"),
        ({"sources": "a.de", "targets": "b.en"}, r"no file or named data set 'b\.en'"),
    ],
)  # fmt: skip
def test_sources_that_are_no_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.de", DE)
    write(tmp_path / "a.en", EN)
    (tmp_path / "p.jsonl").write_text('{"source": "eins", "target": "one"}\n')
    with pytest.raises(DataError, match=says) as caught:
        texts(PairCorpus(**given))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"sources": ()}, "no source of pairs given"),
        ({"split": "tail"}, "split='tail' is not known; allowed: hash, files"),
        ({"validation_fraction": 1.0}, "0 <= fraction < 1"),
        ({"split": "files"}, "needs validation_sources"),
        ({"validation_sources": "c.de"}, "need split='files'"),
        ({"encoding_errors": "bytes"}, "pairs take 'strict' or 'replace'"),
        ({"source_column": "de"}, "leave them out with separate target files"),
    ],
)
def test_settings_that_contradict(settings: dict, says: str) -> None:
    with pytest.raises(DataError, match=says):
        PairCorpus(**{"sources": "a.de", "targets": "a.en", **settings})


@pytest.mark.parametrize(("n", "m"), [(6, 5), (5, 6), (0, 3), (9000, 9001)])
def test_unequal_line_counts_name_both_counts_and_files(
    tmp_path: Path, bpe: Tokenizer, own_cache: Path, n: int, m: int
) -> None:
    corpus = parallel(tmp_path, ["Ein Hund."] * n, ["A dog."] * m)
    says = rf"a\.de has {n:,} lines and .*a\.en has {m:,}; "
    with pytest.raises(DataError, match=says):
        texts(corpus)
    with pytest.raises(DataError, match=says):
        prepare_pairs(corpus, bpe, bpe, part="train")
    assert [path.name for path in own_cache.rglob("*") if not path.name.endswith(".lock")] == ["pairs"]


# --------------------------------------------------------------------------------- splits and identity


def test_a_hash_splits_by_the_source_alone(tmp_path: Path) -> None:
    source = [f"Satz {n % 1500}" for n in range(3000)]  # each twice, with another target
    target = [f"sentence {n}" for n in range(3000)]
    corpus = parallel(tmp_path, source, target, validation_fraction=0.2)
    train, validation = texts(corpus, "train"), texts(corpus, "validation")
    assert sorted(train + validation) == sorted(zip(source, target, strict=True))
    assert not {a for a, _ in train} & {a for a, _ in validation}
    assert abs(len(validation) / 3000 - 0.2) < 5 * (0.2 * 0.8 / 1500) ** 0.5


def test_validation_of_its_own(tmp_path: Path) -> None:
    for name, lines in (("a.de", "12"), ("b.de", "3"), ("a.en", "xy"), ("b.en", "z")):
        write(tmp_path / name, list(lines))
    a, b = ({"sources": tmp_path / f"{name}.de", "targets": tmp_path / f"{name}.en"} for name in "ab")
    corpus = PairCorpus(**a, split="files", validation_sources=b["sources"], validation_targets=b["targets"])
    assert [texts(corpus, part) for part in ("train", "validation", "all")] == [
        [("1", "x"), ("2", "y")], [("3", "z")], [("1", "x"), ("2", "y"), ("3", "z")],
    ]  # fmt: skip
    (tmp_path / "link.en").symlink_to("a.en")
    shared = PairCorpus(
        **a, split="files", validation_sources=b["sources"], validation_targets=tmp_path / "link.en"
    )
    with pytest.raises(DataError, match=r"link\.en: is both a training and a validation file"):
        texts(shared, "train")


def test_fingerprint_follows_content_and_settings_not_names(tmp_path: Path) -> None:
    for name in ("a", "copy"):
        (tmp_path / name).mkdir()
    first = parallel(tmp_path / "a").part_fingerprint("all")
    assert first == parallel(tmp_path / "copy").part_fingerprint("all")
    table = tmp_path / "p.tsv"
    table.write_text("a\tb\tc\n")
    others = [
        parallel(tmp_path, EN, DE),
        parallel(tmp_path, DE, [*EN[:-1], "x"]),
        parallel(tmp_path, validation_fraction=0.2),
        parallel(tmp_path, encoding_errors="replace"),
        *(PairCorpus(sources=table, source_column=1, target_column=n) for n in (2, 3)),
    ]
    prints = []
    for n, corpus in enumerate(others):
        if n < 4:  # these share their files' names: written anew before each is read
            source, target = (EN, DE) if n == 0 else (DE, [*EN[:-1], "x"] if n == 1 else EN)
            parallel(tmp_path, source, target)
        prints.append(corpus.part_fingerprint("all"))
    assert len({first, *prints}) == 7


# ------------------------------------------------------------------------------------------ preparing


@pytest.mark.parametrize("joint", [True, False])
def test_ids_are_the_tokenizers_own_of_both_sides(tmp_path: Path, bpe: Tokenizer, joint: bool) -> None:
    other = bpe if joint else Tokenizer.train(EN, kind="char")
    calls: list[Progress] = []
    shards = prepare_pairs(parallel(tmp_path), bpe, other, part="train", progress=calls.append)
    assert len(shards) == 3
    for n, (source, target) in enumerate(WHOLE):
        assert shards.source_ids(n).tolist() == bpe.encode_ids(source)
        assert shards.target_ids(n).tolist() == other.encode_ids(target)
    assert shards.lengths.tolist() == [
        [len(bpe.encode_ids(source)) for source, _ in WHOLE],
        [len(other.encode_ids(target)) for _, target in WHOLE],
    ]
    assert (shards.source.vocab_size, shards.target.vocab_size) == (bpe.vocab_size, other.vocab_size)
    assert (shards.target.eos_id, shards.target.pad_id) == (other.eos_id, other.pad_id)
    assert shards.pair_name(2) == f"{tmp_path / 'a.de'}#4"
    assert shards.target.document_name(2) == f"{tmp_path / 'a.en'}#4"
    assert (calls[-1].documents, calls[-1].tokens) == (3, int(shards.lengths.sum()))
    assert calls[-1].bytes_read == calls[-1].bytes_total


def test_what_is_dropped_is_counted(tmp_path: Path, bpe: Tokenizer) -> None:
    ledger = prepare_pairs(parallel(tmp_path), bpe, bpe, part="train").ledger
    assert ledger.dropped == {
        "pair(s) with an empty source": 1,
        "pair(s) with an empty target": 1,
        "pair(s) empty on both sides": 1,
    }
    assert (ledger.documents, ledger.files) == (3, 2)
    assert ledger.bytes == sum(len(text.encode()) for pair in WHOLE for text in pair)
    assert ledger.lines()[0].startswith("train: 3 pairs in 2 files, ")
    assert Ledger.from_dict(ledger.as_dict()) == ledger


def test_long_pairs_are_dropped_or_cut_and_counted(tmp_path: Path, byte_tokenizer: Tokenizer) -> None:
    source, target = ["a" * n for n in (3, 9, 10, 11, 30)], ["b" * n for n in (30, 4, 5, 5, 30)]
    corpus = parallel(tmp_path, source, target)
    limits = {"max_source_tokens": 11, "max_target_tokens": 21, "part": "train"}
    dropped = prepare_pairs(corpus, byte_tokenizer, byte_tokenizer, **limits)
    assert dropped.lengths.tolist() == [[9, 10], [4, 5]]
    assert dropped.ledger.dropped == {
        "pair(s) of more than 21 target tokens": 1,
        "pair(s) of more than 11 source tokens": 1,
        "pair(s) of more than 11 source tokens and 21 target tokens": 1,
    }
    assert not dropped.ledger.cut
    cut = prepare_pairs(corpus, byte_tokenizer, byte_tokenizer, overlong="cut", **limits)
    assert cut.lengths.tolist() == [[3, 9, 10, 10, 10], [20, 4, 5, 5, 20]]
    assert cut.ledger.cut == {"text(s) to 21 target tokens": 2, "text(s) to 11 source tokens": 2}
    assert not cut.ledger.dropped
    assert cut.source_ids(4).tolist() == byte_tokenizer.encode_ids("a" * 10)


def test_a_second_run_reuses_and_a_changed_one_does_not(tmp_path: Path, bpe: Tokenizer) -> None:
    corpus = parallel(tmp_path)
    first = prepare_pairs(corpus, bpe, bpe, part="train")
    again = prepare_pairs(corpus, bpe, bpe, part="train", overlong="cut")  # of no effect without a limit
    assert (first.reused, again.reused) == (False, True)
    assert (again.folder, again.ledger) == (first.folder, first.ledger)
    char = Tokenizer.train([*DE, *EN], kind="char")
    others = [
        prepare_pairs(corpus, bpe, char, part="train"),
        prepare_pairs(corpus, char, bpe, part="train"),
        prepare_pairs(corpus, bpe, bpe, part="all"),
        prepare_pairs(corpus, bpe, bpe, part="train", specials="text"),
        prepare_pairs(corpus, bpe, bpe, part="train", max_source_tokens=100),
        prepare_pairs(corpus, bpe, bpe, part="train", max_source_tokens=100, overlong="cut"),
    ]
    assert not any(shards.reused for shards in others)
    assert len({first.folder, *(shards.folder for shards in others)}) == 7
    moved = write(tmp_path / "b.de", DE), write(tmp_path / "b.en", EN)
    renamed = PairCorpus(sources=moved[0], targets=moved[1], validation_fraction=0)
    named = prepare_pairs(renamed, bpe, bpe, part="train")
    assert named.reused
    assert named.pair_name(0) == f"{moved[0]}#0"


def test_damaged_pairs_are_made_again(tmp_path: Path, bpe: Tokenizer) -> None:
    corpus = parallel(tmp_path)
    whole = prepare_pairs(corpus, bpe, bpe, part="train")
    ids = [whole.target_ids(n).tolist() for n in range(3)]
    (whole.folder / "target" / "tokens.bin").write_bytes(b"x")
    with pytest.raises(DataError, match="is damaged"):
        PairShards(whole.folder)
    again = prepare_pairs(corpus, bpe, bpe, part="train")
    assert not again.reused
    assert [again.target_ids(n).tolist() for n in range(3)] == ids
    (whole.folder / "pairs.json").write_text(json.dumps({"version": 0}))
    with pytest.raises(DataError, match="pairs of version 0, not 1; prepare them again"):
        PairShards(whole.folder)


def test_a_text_that_cannot_be_taken_is_named(tmp_path: Path, bpe: Tokenizer, own_cache: Path) -> None:
    eos = bpe.id_to_token(bpe.eos_id)
    corpus = parallel(tmp_path, DE, [*EN[:4], f"The man {eos}", "Yes."])
    with pytest.raises(TokenizerError, match=r"a\.de:5, target: .*"):
        prepare_pairs(corpus, bpe, bpe, part="train")
    assert not list((own_cache / "pairs").glob(".*.tmp"))
    taken = prepare_pairs(corpus, bpe, bpe, part="train", specials="text")
    assert bpe.decode(taken.target_ids(2).tolist()) == f"The man {eos}"


@pytest.mark.parametrize(
    ("source", "target", "settings", "says"),
    [
        ([], [], {}, r"train part of the pairs is empty .*: the files are empty"),
        (
            ["", "a"],
            ["b", " "],
            {},
            r"dropped: 1 pair\(s\) with an empty source; 1 pair\(s\) with an empty t",
        ),
        (["a"], ["b"], {"part": "validation"}, r"split 'hash' with validation_fraction=0 leaves it nothing"),
        (["a"], ["b"], {"max_target_tokens": 1}, r"max_target_tokens=1 is not allowed; at least 2"),
        (["a"], ["b"], {"overlong": "keep"}, r"overlong='keep' is not known; allowed: drop, cut"),
        (["a"], ["b"], {"specials": "interpret"}, r"allowed: refuse, text"),
    ],
)
def test_nothing_to_prepare(
    tmp_path: Path, byte_tokenizer: Tokenizer, source: list, target: list, settings: dict, says: str
) -> None:
    corpus = parallel(tmp_path, source, target)
    with pytest.raises(DataError, match=says):
        prepare_pairs(corpus, byte_tokenizer, byte_tokenizer, **{"part": "train", **settings})


def test_many_pairs_come_back_by_number(tmp_path: Path, byte_tokenizer: Tokenizer) -> None:
    rng = np.random.default_rng(0)
    source, target = (["x" * n for n in rng.integers(1, 40, 20_000)] for _ in range(2))
    shards = prepare_pairs(parallel(tmp_path, source, target), byte_tokenizer, byte_tokenizer, part="train")
    assert shards.lengths.tolist() == [[len(t) for t in side] for side in (source, target)]
    for n in (0, 8191, 8192, 19_999):
        assert byte_tokenizer.decode(shards.target_ids(n).tolist()) == target[n]

"""Every format, compression and separator, and every way a file can be wrong."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import sys
from collections import Counter
from pathlib import Path

import pytest

from wordloom.data import documents, pieces, records
from wordloom.data.files.stream import BLOCK
from wordloom.data.sets.expand import expand
from wordloom.errors import DataError

zstandard = pytest.importorskip("zstandard")
COMPRESS = {
    "": lambda raw: raw,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".zst": lambda raw: zstandard.ZstdCompressor().compress(raw),
}
TEXT = "Zoë said: “one”\r\nTwo\n\n日本語 🙂\n"


def texts(*args, **kwargs) -> list[str | bytes]:
    return [document.text for document in documents(*args, **kwargs)]


def parquet(rows: dict[str, list]) -> bytes:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    out = io.BytesIO()
    pq.write_table(pa.table(rows), out, row_group_size=2)
    return out.getvalue()


FORMATS = {
    "a.txt": (lambda: TEXT.encode(), [TEXT]),
    "a.jsonl": (
        lambda: "\n".join(json.dumps({"text": t, "id": 1}) for t in (TEXT, "", "b")).encode() + b"\n\n",
        [TEXT, "", "b"],
    ),
    "a.json": (lambda: json.dumps([{"text": TEXT}, {"text": "b"}]).encode(), [TEXT, "b"]),
    "b.json": (lambda: json.dumps([TEXT, "b"], ensure_ascii=False).encode(), [TEXT, "b"]),
    "a.parquet": (lambda: parquet({"text": [TEXT, "b", None, "d", "e"]}), [TEXT, "b", "", "d", "e"]),
}


@pytest.mark.parametrize("compression", COMPRESS)
@pytest.mark.parametrize("name", FORMATS)
def test_every_format_in_every_compression(tmp_path: Path, name: str, compression: str) -> None:
    make, expected = FORMATS[name]
    path = tmp_path / (name + compression)
    path.write_bytes(COMPRESS[compression](make()))
    found = list(documents(path))
    assert [document.text for document in found] == expected
    assert [document.index for document in found] == list(range(len(expected)))
    assert {document.source for document in found} == {str(path)}


@pytest.mark.parametrize(
    ("separator", "text", "expected"),
    [
        (None, "a\n\nb\n", ["a\n\nb\n"]),
        (None, "", [""]),
        ("file", "a\nfile\n\nb\n", ["a\nfile\n\nb\n"]),
        ("line", "a\nb\n\nc", ["a", "b", "", "c"]),
        ("line", "a\r\nb\r\n", ["a", "b"]),
        ("blank-line", "\n\na\nb\n \n\nc\n", ["a\nb", "c"]),
        ("blank-line", "a\r\n\r\nb", ["a", "b"]),
        ("<|end|>", "a\n\n<|end|>\nb\n", ["a\n", "b\n"]),
        ("<|end|>", "a\n<|end|>\r\nb <|end|>\n<|end|> c", ["a", "b <|end|>\n<|end|> c"]),
        ("<|end|>", "<|end|>\na\n<|end|>\n<|end|>\nb\n<|end|>\n", ["", "a", "", "b"]),
        ("<|end|>", "a\n<|end|>", ["a"]),
        ("<|end|>", "", [""]),
    ],
)
def test_separators(tmp_path: Path, separator: str | None, text: str, expected: list[str]) -> None:
    (tmp_path / "a.txt").write_bytes(text.encode())
    assert texts(tmp_path / "a.txt", separator=separator) == expected
    as_bytes = texts(tmp_path / "a.txt", separator=separator, encoding_errors="bytes")
    assert as_bytes == [e.encode() for e in expected]


@pytest.mark.parametrize("separator", [None, "@@"])
def test_long_documents_come_in_pieces_that_join_to_the_whole(tmp_path: Path, separator: str | None) -> None:
    long = "".join(f"line {n} é\n" + "\n" * (n % 3) for n in range(400_000))
    (tmp_path / "a.txt").write_text(long + "@@\nshort\n" if separator else long, newline="")
    found = list(pieces(tmp_path / "a.txt", separator=separator))
    assert len(found) > 3
    assert all(piece.text and len(piece.text) < 2 * BLOCK for piece in found)
    expected = [long[:-1], "short\n"] if separator else [long]
    assert texts(tmp_path / "a.txt", separator=separator) == expected
    assert [p.index for p in found if p.last] == list(range(len(expected)))


@pytest.mark.parametrize("given", ["", "  ", "a\nb"])
def test_a_separator_that_cannot_be_one_is_refused(tmp_path: Path, given: str) -> None:
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(DataError, match="separator"):
        texts(tmp_path / "a.txt", separator=given)


# ------------------------------------------------------------------------------------------ encodings


@pytest.mark.parametrize("at", [0, 5, BLOCK - 1, BLOCK, BLOCK + 7])
@pytest.mark.parametrize("compression", ["", ".gz"])
def test_invalid_utf8_names_file_and_byte_offset(tmp_path: Path, at: int, compression: str) -> None:
    path = tmp_path / f"a.txt{compression}"
    path.write_bytes(COMPRESS[compression](b"x" * at + b"\xe9" + b"y" * 10))
    with pytest.raises(
        DataError, match=rf"a\.txt.*byte {at}\b.*0xe9.*\(--encoding-errors replace, in a recipe data\."
    ):
        texts(path)
    assert texts(path, encoding_errors="replace") == ["x" * at + "�" + "y" * 10]
    assert texts(path, encoding_errors="bytes") == [b"x" * at + b"\xe9" + b"y" * 10]


def test_characters_across_block_edges_survive(tmp_path: Path) -> None:
    text = "x" * (BLOCK - 2) + "日本語🙂" * 10
    (tmp_path / "a.txt").write_text(text)
    assert texts(tmp_path / "a.txt") == [text]


def test_a_file_that_ends_inside_a_character(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"abc" + "日".encode()[:2])
    with pytest.raises(DataError, match="byte 3"):
        texts(tmp_path / "a.txt")


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfab\xff")
    with pytest.raises(DataError, match="byte 5"):
        texts(tmp_path / "a.txt")
    assert texts(tmp_path / "a.txt", encoding_errors="replace") == ["ab�"]
    assert texts(tmp_path / "a.txt", encoding_errors="bytes") == [b"\xef\xbb\xbfab\xff"]


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        (b"ab\0cd", r"binary file.*NUL at byte 2.*\(--encoding-errors bytes, in a recipe data\."),
        (gzip.compress(b"hello", mtime=0), "gzip data: name it .gz"),
        ("hello".encode("utf-16"), "UTF-16.*iconv"),
        (b"PK\x03\x04\x00\x00", "zip archive"),
        (b"\x89PNG\r\n\x1a\n\0", "PNG"),
    ],
)
@pytest.mark.parametrize("errors", ["strict", "replace"])
def test_binary_files_are_refused_by_name(tmp_path: Path, raw: bytes, named: str, errors: str) -> None:
    (tmp_path / "a.txt").write_bytes(raw)
    with pytest.raises(DataError, match=named):
        texts(tmp_path / "a.txt", encoding_errors=errors)
    assert texts(tmp_path / "a.txt", encoding_errors="bytes") == [raw]


def test_text_that_begins_like_a_format_is_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("BZhang wrote this, and PAR1 is a word")
    assert texts(tmp_path / "a.txt") == ["BZhang wrote this, and PAR1 is a word"]


@pytest.mark.parametrize("compression", [".gz", ".xz", ".bz2", ".zst"])
@pytest.mark.parametrize("damage", ["cut", "cut header", "none of it", "flipped"])
def test_damaged_compression_is_told(tmp_path: Path, compression: str, damage: str) -> None:
    packed = COMPRESS[compression](bytes(range(32, 127)) * 3000 + b"\n" * 50_000)
    path = tmp_path / f"a.txt{compression}"
    middle = len(packed) // 2
    path.write_bytes(
        {
            "cut": packed[:-5],
            "cut header": packed[:3],
            "none of it": b"this is plain text",
            "flipped": packed[:middle] + bytes(b ^ 0xFF for b in packed[middle:]),
        }[damage]
    )
    with pytest.raises(DataError, match=r"a\.txt.*truncated or corrupt"):
        texts(path)


@pytest.mark.parametrize("suffix", [suffix for suffix in COMPRESS if suffix])
def test_truncated_compressed_parquet(tmp_path: Path, suffix: str) -> None:
    packed = COMPRESS[suffix](parquet({"text": [TEXT] * 50}))
    (tmp_path / f"a.parquet{suffix}").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(DataError, match=r"a\.parquet.*(truncated or corrupt|not a readable Parquet file)"):
        texts(tmp_path / f"a.parquet{suffix}")


def test_compressed_files_in_several_frames(tmp_path: Path) -> None:
    for name, compress in COMPRESS.items():
        if name:
            (tmp_path / f"a.txt{name}").write_bytes(
                compress(b"one ") + compress(b"two ") + compress(b"three")
            )
            assert texts(tmp_path / f"a.txt{name}") == ["one two three"]


# ----------------------------------------------------------------------------------------------- JSON


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        (b'{"text": "a"}\n{"text": b}\n', r":2: not valid JSON .*column 10"),
        (b'{"text": "a"}\n["b"]\n', ":2: holds a list"),
        (b'{"text": "a"}\n\n{"body": "b", "title": "c"}\n', ":3: no field 'text'.*body, title"),
        (b'{"texts": "b"}\n', "did you mean 'texts'"),
        (b'{"text": 3}\n', ":1: field 'text' holds a number"),
        (b'{"text": "ok"}\n{"text": "\xff"}\n', "byte 25 .*0xff"),
        (b'{"text": "\\ud800 alone"}\n', ":1: character 0 is half of a surrogate"),
    ],
)
def test_wrong_json_lines_name_file_and_line(tmp_path: Path, raw: bytes, named: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(raw)
    with pytest.raises(DataError, match=rf"a\.jsonl.*{named}"):
        texts(tmp_path / "a.jsonl")


def test_json_surrogates(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "\\ud83d\\ude42 \\ud800"}\n')
    assert texts(tmp_path / "a.jsonl", encoding_errors="replace") == ["🙂 �"]


def test_a_json_file_must_be_a_list(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"text": "a"}')
    with pytest.raises(DataError, match="one list of objects or texts"):
        texts(tmp_path / "a.json")
    (tmp_path / "a.json").write_text('{"text": "a"}\n{"text": "b"}')
    with pytest.raises(DataError, match=r":2:\d+: not valid JSON.*belongs in a \.jsonl"):
        texts(tmp_path / "a.json")


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
@pytest.mark.parametrize(
    ("value", "named"),
    [("9" * 5000, "holds an integer of more than 4,300 digits"), ("[" * 100_000, "nested too deeply")],
    ids=["digits", "depth"],
)
def test_json_that_python_cannot_hold(tmp_path: Path, name: str, value: str, named: str) -> None:
    text = '{"text": "a", "n": ' + value + "}"
    (tmp_path / name).write_text(text if name == "a.jsonl" else f"[{text}]")
    place = r"a\.jsonl:1: " if name == "a.jsonl" else r"a\.json: "
    with pytest.raises(DataError, match=place + ".*" + named):
        texts(tmp_path / name)


def test_several_fields_are_joined_by_a_space(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": "one", "b": "two"}')
    assert texts(tmp_path / "a.jsonl", field=["a", "b"]) == ["one two"]
    (tmp_path / "a.parquet").write_bytes(parquet({"a": ["one"], "b": ["two"]}))
    assert texts(tmp_path / "a.parquet", field=("a", "b")) == ["one two"]


def test_parquet_texts_that_are_not_utf8_are_named_or_replaced(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    cells = pa.array([b"a", None, b"b\xff"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": cells}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a.parquet, row 3: column 'text' is not valid UTF-8"):
        texts(tmp_path / "a.parquet")
    assert texts(tmp_path / "a.parquet", encoding_errors="replace") == ["a", "", "b\ufffd"]


def test_parquet_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(parquet({"body": ["x"], "n": [1]}))
    with pytest.raises(DataError, match=r"no field 'text'; the fields there are: body, n.*\(--field, "):
        texts(path)
    with pytest.raises(DataError, match="column 'n' holds int64"):
        texts(path, field="n")
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(DataError, match="not a readable Parquet"):
        texts(path)


def test_records(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"q": 1}\n\n{"q": 2}\n')
    (tmp_path / "b.json").write_text('[{"q": 3}]')
    found = [(r.value["q"], r.line) for r in records([tmp_path / "a.jsonl", tmp_path / "b.json"])]
    assert found == [(1, 1), (2, 3), (3, 1)]
    (tmp_path / "c.txt").write_text("x")
    with pytest.raises(DataError, match="no JSON objects"):
        list(records(tmp_path / "c.txt"))


# -------------------------------------------------------------------------------------------- sources


def test_folders_globs_and_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("b.txt", "a.md", "sub/c.txt", "sub/.hidden.txt"):
        (tmp_path / name).write_text(name)
    (tmp_path / "sub" / "picture.png").write_bytes(b"\x89PNG")
    assert texts(tmp_path) == ["a.md", "b.txt", "sub/c.txt"]
    assert texts(str(tmp_path / "*.txt")) == ["b.txt"]
    assert texts(str(tmp_path / "**" / "*.txt")) == ["b.txt", "sub/c.txt"]
    assert texts([tmp_path / "b.txt", tmp_path / "a.md"]) == ["b.txt", "a.md"]
    odd = tmp_path / "x[1].txt"
    odd.write_text("odd")
    assert texts(odd) == ["odd"]
    monkeypatch.chdir(tmp_path)
    assert texts("sub") == ["sub/c.txt"]


def test_files_that_were_expanded_stand_beside_paths(tmp_path: Path) -> None:
    for name in ("one.txt", "two.txt", "three.txt"):
        (tmp_path / name).write_text(name)
    files = expand([tmp_path / "two.txt"])
    read = pieces([tmp_path / "one.txt", *files, str(tmp_path / "three.txt")])
    assert [piece.text for piece in read] == ["one.txt", "two.txt", "three.txt"]
    with pytest.raises(DataError, match="no source given"):
        list(pieces([]))


def test_links_lead_to_no_folder_twice(tmp_path: Path) -> None:
    (tmp_path / "here" / "sub").mkdir(parents=True)
    (tmp_path / "there").mkdir()
    for name in ("here/a.txt", "here/sub/b.txt", "there/c.txt"):
        (tmp_path / name).write_text(name)
    (tmp_path / "here" / "sub" / "back").symlink_to(tmp_path / "here")
    (tmp_path / "here" / "other").symlink_to(tmp_path / "there")
    (tmp_path / "here" / "same").symlink_to(tmp_path / "there")
    assert texts(tmp_path / "here") == ["here/a.txt", "there/c.txt", "here/sub/b.txt"]
    assert sorted(texts(str(tmp_path / "here" / "**"))) == ["here/a.txt", "here/sub/b.txt", "there/c.txt"]


def test_a_link_to_nothing_is_named_with_its_target(tmp_path: Path) -> None:
    (tmp_path / "lost.txt").symlink_to("gone.txt")
    (tmp_path / "one.txt").symlink_to("two.txt")
    (tmp_path / "two.txt").symlink_to("one.txt")
    for name, target in (("lost.txt", "gone.txt"), ("one.txt", "two.txt")):
        with pytest.raises(DataError, match=rf"{name}' is a link to '{target}', where no file is; give the"):
            texts(tmp_path / name)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ([], "no source given"),
        ("nothing*.txt", "no file matches 'nothing"),
        ("missing.txt", "no file or named data set 'missing.txt'"),
        ("tiny-shakspeare", "did you mean 'tiny-shakespeare'"),
        ("ptb", "has parts; say which: ptb/train, ptb/valid, ptb/test"),
        ("ptb/dev", "no part 'dev'"),
        ("sst2/train", "is not running text"),
        ("bookscorpus", "not distributable: point to your copy"),
        ("here/aa.txt", "did you mean 'a.txt'"),
        ("nowhere/a.txt", "the folder 'nowhere' does not exist"),
        ("here/empty", "holds no file to read"),
        ("here/t.csv", "a table; write it as .jsonl"),
        ("here/t.zip", "an archive"),
        (["-", "-"], "given twice"),
    ],
)
def test_sources_that_are_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given, named: str
) -> None:
    (tmp_path / "here" / "empty").mkdir(parents=True)
    for name in ("a.txt", "t.csv", "t.zip"):
        (tmp_path / "here" / name).write_text("x")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=named):
        texts(given)


def test_a_path_named_like_a_data_set_is_not_guessed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "names").mkdir()
    (tmp_path / "names" / "a.txt").write_text("x")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"write './names' for the path"):
        texts("names")
    assert texts("./names") == ["x"]


@pytest.mark.parametrize(
    ("given", "raw", "expected"),
    [
        ("-", b"hello\n", ["hello\n"]),
        ("-.jsonl", b'{"text": "a"}\n{"text": "b"}\n', ["a", "b"]),
        ("-.txt.gz", gzip.compress(b"packed", mtime=0), ["packed"]),
        ("-.json", b'[{"text": "a"}, {"text": "b"}]', ["a", "b"]),
        ("-.json", b'["a", "b"]', ["a", "b"]),
    ],
)
def test_standard_input(monkeypatch: pytest.MonkeyPatch, given: str, raw: bytes, expected: list[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))
    assert texts(given) == expected


def test_standard_input_is_read_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Trickle(io.BytesIO):
        def readinto1(self, buffer: memoryview) -> int:
            return super().readinto1(memoryview(buffer)[:1])

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(raw := Trickle("\ufeffä\r\n\nöü".encode())))
    lines = documents("-", separator="line")
    assert (next(lines).text, raw.tell()) == ("ä", 7)
    assert [document.text for document in lines] == ["", "öü"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(Trickle(b"ab\0")))
    with pytest.raises(DataError, match="a NUL at byte 2"):
        texts("-")


def test_an_unknown_choice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="did you mean 'strict'"):
        texts(tmp_path, encoding_errors="strickt")


# --------------------------------------------------------------------------------------- public data


def test_gutenberg_documents_are_the_books_of_its_index(data_folder: Path) -> None:
    index = [
        line.split("\t") for line in (data_folder / "gutenberg" / "index.tsv").read_text().splitlines()[1:]
    ]
    listed = [int(row[3]) for row in index if row[0] == "valid.txt.xz"]
    assert [len(d.text.encode()) for d in documents("gutenberg/valid")] == listed


def test_brown(data_folder: Path) -> None:
    found = texts("brown")
    assert len(found) == 500
    assert sum(len(text.split()) for text in found) == 1_161_192
    assert found[0].startswith("The Fulton County Grand Jury said Friday an investigation")


def test_named_sets_bring_their_own_settings(data_folder: Path) -> None:
    assert texts("names")[:3] == ["emma", "olivia", "ava"]
    assert len(texts("surnames")) == 20_050
    assert next(documents("lambada")).text.endswith(" signs")
    assert Counter(type(d.text) for d in documents("ptb/test")) == {str: 1}

"""The one expander of files, folders, globs and named data sets, seen through every reader that uses it."""

from __future__ import annotations

import glob
import json
import logging
import os
import threading
from pathlib import Path

import pytest

from wordloom.data import (
    Corpus,
    LabelledCorpus,
    PairCorpus,
    choice_rows,
    documents,
    labelled_rows,
    questions,
    scored_rows,
    tagged_texts,
    texts_of,
)
from wordloom.data.files.source import Columns
from wordloom.data.rows import labelled as labels_module
from wordloom.data.sets import expand as expanding
from wordloom.data.sets.expand import expand
from wordloom.data.sets.info import DatasetInfo
from wordloom.errors import DataError

ASKED = {"id": "1", "question": "b?", "answers": [{"text": "b", "answer_start": 2}]}
SQUAD = {"context": "a b", "qas": [ASKED]}
READERS = {
    "documents": ("x.txt", "one", documents),
    "labels": ("x.tsv", "text\tlabel\nab\tc\n", labelled_rows),
    "scores": ("x.tsv", "text\tscore\nab\t1\n", scored_rows),
    "tags": ("x.conll", "a B\n", tagged_texts),
    "choices": ("x.jsonl", '{"query": "a", "choices": ["b", "c"], "gold": 0}\n', choice_rows),
    "questions": ("x.json", json.dumps({"data": [{"title": "t", "paragraphs": [SQUAD]}]}), questions),
    "tables": ("x.tsv", "text\na\n", texts_of),
    "pairs": (
        "x.tsv",
        "source\ttarget\na\tb\n",
        lambda sources: PairCorpus(sources=sources, validation_fraction=0).pairs(),
    ),
}


@pytest.fixture(params=READERS)
def folder(request: pytest.FixtureRequest, tmp_path: Path):
    """A folder with one file, two links that lead back to it, and a hidden copy; its reader; the file."""
    name, content, read = READERS[request.param]
    inside = tmp_path / "top" / "inside"
    hidden = tmp_path / "top" / ".ipynb_checkpoints"
    for place in (inside, hidden):
        place.mkdir(parents=True)
        (place / name).write_text(content)
    (inside / "up").symlink_to(tmp_path / "top")
    (inside / "here").symlink_to(inside)
    (inside / f".{name}").write_text(content)
    return tmp_path / "top", read, inside / name


def test_links_in_circles_and_hidden_folders_are_left_out(folder) -> None:
    top, read, _ = folder
    assert len(list(read(str(top)))) == 1


@pytest.mark.parametrize("folder", sorted(READERS.keys() - {"tables"}), indirect=True)
def test_a_deep_glob_does_not_follow_links_in_circles(folder) -> None:
    top, read, file = folder
    assert len(list(read(f"{top}/**/{file.name}"))) == 1


@pytest.mark.parametrize("folder", sorted(READERS.keys() - {"tables", "questions"}), indirect=True)
def test_a_file_that_is_named_twice_is_reported_in_one_line(folder, caplog) -> None:
    top, read, file = folder
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert len(list(read([str(file), str(top)]))) == 2
    assert [record.getMessage().partition(";")[0] for record in caplog.records] == [
        f"named more than once, and read as often: '{file}'"
    ]


def test_globs_match_what_the_standard_library_matches(tmp_path: Path, monkeypatch) -> None:
    for name in ("a.txt", "b/a.txt", "b/c/d.txt", "b/c/a.md", "b[1]/a.txt", ".h/a.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text("x")
    monkeypatch.chdir(tmp_path)
    for top in ("", f"{tmp_path}/"):
        for pattern in ("**/*.txt", "**/a.txt", "b/**/c/*.md", "*/**/*.txt", "b*/*.txt", "**/b/**/*.md"):
            files = sorted(glob.glob(top + pattern, recursive=True))
            assert [source.path for source in expand(top + pattern)] == files
    assert {source.path for source in expand("**")} == {
        "a.txt",
        "b/a.txt",
        "b/c/d.txt",
        "b/c/a.md",
        "b[1]/a.txt",
    }


@pytest.mark.parametrize("given", ["top", "top/**/*.txt", "top/*/*.txt", "top/*"])
def test_a_folder_that_cannot_be_read_is_an_error(tmp_path: Path, monkeypatch, given: str) -> None:
    """Its files would be missing from the text without a word."""
    for name in ("top/a.txt", "top/closed/b.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    real = os.scandir

    def scandir(path: str = ".") -> object:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(DataError, match=r"closed' cannot be read: Permission denied; allow it, or name"):
        expand(str(tmp_path / given))


@pytest.mark.parametrize("given", ["top", "top/*.txt", "top/gone.txt"])
def test_a_link_to_nothing_is_an_error(tmp_path: Path, given: str) -> None:
    (tmp_path / "top").mkdir()
    (tmp_path / "top" / "a.txt").write_text("x")
    (tmp_path / "top" / "gone.txt").symlink_to("/nowhere")
    with pytest.raises(DataError, match=r"gone\.txt' is a link to '/nowhere', where no file is"):
        expand(str(tmp_path / given))


def test_a_link_to_a_file_of_the_same_folder_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "b.txt").symlink_to(tmp_path / "a.txt")
    assert [source.name for source in expand(tmp_path)] == [f"{tmp_path}/a.txt"]


def test_a_named_set_does_not_change_how_later_sources_are_read(tmp_path: Path, monkeypatch) -> None:
    known = DatasetInfo(
        title="", task="", licence="", origin="", parts={}, format=None, layout="",
        columns=Columns(("text",), labels_module.FILE),
    )  # fmt: skip
    for name in ("pos.txt", "notes.txt"):
        (tmp_path / name).write_text("a\n")
    monkeypatch.setattr(expanding, "names_dataset", lambda item: item == "known")
    monkeypatch.setattr(labels_module, "files_of", lambda item: (known, "", ()))
    monkeypatch.setattr(labels_module, "local_files", lambda item: [tmp_path / "pos.txt"])
    assert [row.label for row in labelled_rows("known")] == ["pos"]
    with pytest.raises(DataError, match="has a suffix that is not read here"):
        list(labelled_rows(["known", tmp_path / "notes.txt"]))


def _fed(path: str, content: bytes) -> threading.Thread:
    """A writer that feeds a named pipe once."""
    writer = threading.Thread(target=Path(path).write_bytes, args=(content,), daemon=True)
    writer.start()
    return writer


@pytest.mark.parametrize("kind", ["named pipe", "process substitution"])
def test_a_pipe_can_be_read_as_often_as_a_file(tmp_path: Path, kind: str) -> None:
    """Also by name in a folder; a corpus reads its files for their hash, their length and their text."""
    content, table = b"one\ntwo\n" * 9, b"text\tlabel\n" + b"a\tx\nb\ty\n" * 9
    if kind == "named pipe":
        pipe, rows = str(tmp_path / "corpus"), str(tmp_path / "rows.tsv")
        for path, fed in ((pipe, content), (rows, table)):
            os.mkfifo(path)
            _fed(path, fed)
    else:
        ends = [os.pipe() for _ in range(2)]
        for (_, end), fed in zip(ends, (content, table), strict=True):
            os.write(end, fed)
            os.close(end)
        pipe, rows = f"/dev/fd/{ends[0][0]}", str(tmp_path / "rows.tsv")
        os.symlink(f"/dev/fd/{ends[1][0]}", rows)
    corpus = Corpus(sources=[pipe], separator="line", split="tail", validation_fraction=0.5)
    assert len(corpus.part_fingerprint("all")) == 64
    found = [len(list(corpus.documents(part))) for part in ("train", "validation", "all")]
    assert (found, corpus.files()[0].name) == ([9, 9, 18], pipe)
    assert len(list(documents([pipe], separator="line"))) == 18
    labelled = LabelledCorpus(sources=[rows], validation_fraction=0.5)
    assert [len(list(labelled.rows(part))) for part in ("train", "validation")] == [9, 9]

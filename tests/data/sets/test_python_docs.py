"""The embedded corpus: this Python's own documentation, and small libraries made for one rule each."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from wordloom.data.files.source import Document
from wordloom.data.sets import python_docs as embedded
from wordloom.data.sets.python_docs import embedded_documents, write_embedded
from wordloom.errors import DataError


@pytest.fixture(scope="module")
def parts() -> dict[str, list[Document]]:
    return {
        "train": list(embedded_documents("train")),
        "validation": list(embedded_documents("validation")),
        "all": list(embedded_documents("all")),
    }


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty standard library in which a test writes its own files."""
    folder = tmp_path / "library"
    (folder / "pydoc_data").mkdir(parents=True)
    (folder / "pydoc_data" / "topics.py").write_text("topics = {}\n")
    monkeypatch.setattr("sysconfig.get_path", lambda name: {"stdlib": str(folder)}[name])
    monkeypatch.setattr(embedded, "_corpus", embedded._corpus.__wrapped__)  # this Python's stays cached
    return folder


def words(text: str | bytes) -> list[str]:
    assert isinstance(text, str)
    return re.findall(r"[^\W\d_]+", text.lower())


def texts() -> dict[str, str | bytes]:
    return {document.source: document.text for document in embedded_documents("all")}


# ------------------------------------------------------------------ the corpus of this Python


def test_it_is_about_two_megabytes_of_english(parts: dict[str, list[Document]]) -> None:
    text = "\n\n".join(str(document.text) for document in parts["all"])
    # Systems differ in what they install (tkinter and idlelib may be packages of their own).
    assert 1.3e6 < len(text.encode()) < 2.5e6
    function_words = {"the", "a", "of", "to", "is", "in", "and", "that", "if", "for", "be", "or", "this"}
    found = words(text)
    assert sum(word in function_words for word in found) / len(found) > 0.2  # the code itself: 0.09
    assert not re.search(r"^\s*>>> ", text, re.MULTILINE)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]|[ \t]\n", text)


def test_sources_are_topics_and_files_once_each(parts: dict[str, list[Document]]) -> None:
    sources = [document.source for document in parts["all"]]
    assert len(set(sources)) == len(sources)
    assert "pydoc_data/topics.py:assert" in sources
    assert "argparse.py" in sources
    assert "asyncio/tasks.py" in sources
    assert not [s for s in sources if re.search(r"(^|/)(tests?|idle_test|site-packages|dist-packages)/", s)]
    assert all(document.text and document.index == 0 for document in parts["all"])


def test_about_a_tenth_is_held_out_and_nothing_is_in_both(parts: dict[str, list[Document]]) -> None:
    size = {part: sum(len(document.text) for document in documents) for part, documents in parts.items()}
    assert size["train"] + size["validation"] == size["all"]
    assert 0.07 < size["validation"] / size["all"] < 0.14
    assert {d.source for d in parts["train"]}.isdisjoint(d.source for d in parts["validation"])
    for kind in (lambda s: ":" in s, lambda s: ":" not in s):  # topics, docstrings
        assert any(kind(d.source) for d in parts["validation"])


def test_held_out_text_is_not_copied_from_training_text(parts: dict[str, list[Document]]) -> None:
    def runs(documents: list[Document], length: int) -> list[tuple[str, ...]]:
        found = []
        for document in documents:
            w = words(document.text)
            found += [tuple(w[i : i + length]) for i in range(len(w) - length + 1)]
        return found

    train, heldout = set(runs(parts["train"], 13)), runs(parts["validation"], 13)
    assert sum(run in train for run in heldout) / len(heldout) < 0.002
    paragraphs = {
        part: {" ".join(words(p)) for d in parts[part] for p in str(d.text).split("\n\n")}
        for part in ("train", "validation")
    }
    assert not paragraphs["train"] & paragraphs["validation"]


def test_two_processes_agree(parts: dict[str, list[Document]]) -> None:
    code = (
        "import hashlib; from wordloom.data.sets.python_docs import embedded_documents\n"
        "print(hashlib.sha256(repr([tuple(d) for d in embedded_documents('all')]).encode()).hexdigest())"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "123", "PYTHONOPTIMIZE": "2"}
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment, check=True)
    here = hashlib.sha256(repr([tuple(d) for d in parts["all"]]).encode()).hexdigest()
    assert there.stdout.decode().strip() == here


def test_written_files_hold_the_parts(tmp_path: Path, parts: dict[str, list[Document]]) -> None:
    paths = write_embedded(tmp_path / "new" / "python-docs")
    assert [path.name for path in paths] == ["train.jsonl", "validation.jsonl"]
    for path, part in zip(paths, ("train", "validation"), strict=True):
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
        assert rows == [{"text": d.text, "source": d.source} for d in parts[part]]
    assert sorted(path.name for path in paths[0].parent.iterdir()) == ["train.jsonl", "validation.jsonl"]


def test_it_is_a_named_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from wordloom.data import Corpus

    monkeypatch.setenv("WORDLOOM_CACHE", str(tmp_path))
    corpus = Corpus(sources="python-docs/train", split="files", validation_sources="python-docs/validation")
    for part in ("train", "validation"):
        named = [document.text for document in corpus.documents(part)]
        assert named == [document.text for document in embedded_documents(part)]
    written = sorted(path.name for path in tmp_path.rglob("*.jsonl"))
    assert written == ["train.jsonl", "validation.jsonl"]


# ------------------------------------------------------------------ the rules, one by one


def test_docstrings_are_found_wherever_they_stand_and_dedented(library: Path) -> None:
    (library / "shop.py").write_text(
        '''"""Module of a shop."""
x = """A string that documents nothing."""
if x:
    class Shop:
        """A class under a condition.

            Indented within it.
        And back.
        """
        try:
            def sell(self):
                """A method in a try."""
                def inner():
                    r"""A nested function with a \\backslash."""
        except ValueError:
            async def refund(self):
                """Asynchronous, in a handler."""
match x:
    case "a":
        def lend():
            """In a case."""
def silent(): return """Returned, so no docstring."""
'''
    )
    assert texts() == {
        "shop.py": "Module of a shop.\n\nA class under a condition.\n\n    Indented within it.\nAnd back.\n\n"
        "A method in a try.\n\nA nested function with a \\backslash.\n\nAsynchronous, in a handler.\n\n"
        "In a case."
    }


def test_topics_come_first_by_name_and_keep_their_text_from_later_copies(library: Path) -> None:
    (library / "pydoc_data" / "topics.py").write_text(
        "# generated\n"
        "topics = {'while': 'About loops.\\n\\nShared words.', 'assert': r'''Shared\n   words.\n'''}\n"
    )
    (library / "abc.py").write_text('"""Shared words.\n\nOf its own."""\n')
    assert list(texts().items()) == [
        ("pydoc_data/topics.py:assert", "Shared\n   words."),
        ("pydoc_data/topics.py:while", "About loops."),
        ("abc.py", "Of its own."),
    ]


def test_near_copies_go_and_what_merely_resembles_stays(library: Path) -> None:
    first = "Return the distance of the widget in pixels, measured from the left border of its parent window."
    copied = first.replace("left", "upper")
    resembling = "Return the distance of the widget in pixels from another one that nobody has measured yet."
    codec = "Codec 1250 for Windows."
    other = codec.replace("1250", "1251")
    for name, text in zip("abcde", (first, copied, resembling, codec, other), strict=True):
        (library / f"{name}.py").write_text(f'"""{text}"""\n')
    assert texts() == {"a.py": first, "c.py": resembling, "d.py": codec}


def test_doctests_end_at_a_blank_line_and_prose_around_them_stays(library: Path) -> None:
    (library / "a.py").write_text(
        '"""Doubles a number, for example:\n    >>> double(2)\n    4\n\n'
        '>>> double(3)\n6\n\nSee also halve.\n\n----\n"""\n'
    )
    assert texts() == {"a.py": "Doubles a number, for example:\n\nSee also halve."}


def test_tests_and_installed_packages_are_no_prose(library: Path) -> None:
    for folder in ("test", "lib/tests", "idlelib/idle_test", "site-packages/x", "json"):
        (library / folder).mkdir(parents=True)
        (library / folder / "m.py").write_text(f'"""The module in {folder}."""\n')
    assert list(texts()) == ["json/m.py"]


def test_control_characters_lone_surrogates_and_trailing_blanks_go(library: Path) -> None:
    (library / "a.py").write_text('"""One\\x01 two\\ufeff three\\ud800 \\t four.   \n \t \nFive."""\n')
    assert texts() == {"a.py": "One two three         four.\n\nFive."}


def test_a_name_keeps_its_part(library: Path) -> None:
    # Fixed, so that a change of seed or hash (and of every figure measured on it) is noticed.
    held_out = {"configparser", "os", "xml/etree/ElementTree"}
    for name in ("argparse", "typing", "json/decoder", *held_out):
        (library / name).parent.mkdir(parents=True, exist_ok=True)
        (library / f"{name}.py").write_text(f'"""The module {name}."""\n')
    assert {document.source.removesuffix(".py") for document in embedded_documents("validation")} == held_out


# ------------------------------------------------------------------ errors


def test_an_unknown_part_is_refused_before_anything_is_read() -> None:
    with pytest.raises(DataError, match="no part 'valid'; did you mean 'validation'"):
        embedded_documents("valid")  # type: ignore[arg-type]


def test_a_python_without_sources_says_so(library: Path) -> None:
    (library / "pydoc_data" / "topics.py").unlink()
    with pytest.raises(DataError, match=r"carries no library sources with pydoc_data/topics\.py"):
        list(embedded_documents())


@pytest.mark.parametrize("content", ["topics = []\n", "def f(: pass\n"])
def test_unreadable_sources_name_the_file(library: Path, content: str) -> None:
    (library / "pydoc_data" / "topics.py").write_text(content)
    with pytest.raises(DataError, match=r"topics\.py"):
        list(embedded_documents())


# ------------------------------------------------------------------ files


def test_writing_again_changes_nothing_and_overwrites_nothing(library: Path, tmp_path: Path) -> None:
    (library / "a.py").write_text('"""First words."""\n')
    train, validation = write_embedded(tmp_path)
    times = [path.stat().st_mtime_ns for path in (train, validation)]
    assert write_embedded(tmp_path) == [train, validation]
    assert [path.stat().st_mtime_ns for path in (train, validation)] == times

    validation.unlink()  # as if an earlier call had been killed between the two
    train.write_text('{"text": "mine"}\n')
    with pytest.raises(DataError, match="exists and differs"):
        write_embedded(tmp_path)
    assert train.read_text() == '{"text": "mine"}\n'
    assert not validation.exists()


def test_a_failed_write_leaves_no_trace(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (library / "a.py").write_text('"""First words."""\n')

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(embedded.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_embedded(tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []

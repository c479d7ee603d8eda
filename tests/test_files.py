"""One file whole, or not at all."""

import os
import stat
from pathlib import Path

from wordloom.files import finish_replacement, replacement, whole_file, write_text


def test_a_file_is_whole_or_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "one\r\n")
    assert path.read_bytes() == b"one\r\n"
    umask = os.umask(0o022)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask  # others may read it
    writing = whole_file(path)
    writing.__enter__().write(b"half")
    assert writing.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None) is False
    assert path.read_bytes() == b"one\r\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.txt"]


def test_an_error_while_new_files_are_made_leaves_the_old_ones(tmp_path: Path) -> None:
    (tmp_path / ".wordloom-writing-x").mkdir()  # by a kill
    write_text(tmp_path / "a", "old")
    making = replacement(tmp_path, last="a")
    write_text(making.__enter__() / "a", "new")
    assert making.__exit__(OSError, OSError(), None) is False
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "old"}
    with replacement(tmp_path, last="b", stale=["a"]) as new:
        write_text(new / "b", "new")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"b": "new"}


def test_what_is_left_of_a_replacement_without_its_plan_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".wordloom-ready").mkdir()
    finish_replacement(tmp_path)
    assert not list(tmp_path.iterdir())

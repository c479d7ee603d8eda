"""``wordloom tokenize``, run as a user runs it."""

import json

import pytest


@pytest.fixture(scope="module")
def run(command):
    """A function that gives exit code, standard output and standard error."""

    def run(*arguments, stdin=b""):
        done = command("tokenize", *arguments, stdin=stdin)
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.fixture(scope="module")
def text_file(corpus, tmp_path_factory):
    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text("\n".join(corpus), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def folder(run, text_file):
    out = text_file.parent / "bpe"
    code, shown, errors = run("train", text_file, "--out", out, "--vocab-size", 600)
    assert (code, errors) == (0, "")
    assert shown.startswith(
        b"bpe tokenizer of 600 entries from 0.1 MB\nspecial tokens: <|endoftext|> <|pad|>\n"
    )
    return out


def test_text_survives_encode_and_decode_byte_for_byte(run, folder, text_file):
    text = text_file.read_bytes() + "é😀\r\n \0".encode()
    code, ids, _ = run("encode", folder, "-", stdin=text)
    assert code == 0
    assert len(ids.split()) < len(text) / 2
    assert run("decode", folder, "-", stdin=ids)[1] == text


def test_any_bytes_survive_the_byte_kind(run, text_file):
    out = text_file.parent / "byte"
    assert run("train", text_file, "--kind", "byte", "--out", out)[0] == 0
    data = bytes(range(256)) * 2
    ids = run("encode", out, "-", stdin=data)[1]
    assert run("decode", out, "-", stdin=ids)[1] == data


def test_encode_shows_tokens_and_json(run, folder):
    ids = [int(i) for i in run("encode", folder, "the class")[1].split()]
    lines = run("encode", folder, "the class", "--tokens")[1].decode().splitlines()
    assert [int(line.split()[0]) for line in lines] == ids
    assert lines[0].endswith("'the'")
    result = json.loads(run("encode", folder, "the class", "--json")[1])
    assert result["ids"] == ids
    assert result["offsets"][0] == [0, 3]
    assert "".join(result["tokens"]) == "theĠclass"
    assert run("decode", folder, *ids)[1] == b"the class"
    assert run("decode", folder, ",".join(map(str, ids)))[1] == b"the class"
    assert json.loads(run("decode", folder, 0, *ids, "--skip-special-tokens", "--json")[1]) == {
        "text": "the class"
    }


def test_special_tokens_take_a_choice(run, folder):
    code, shown, errors = run("encode", folder, "a<|pad|>")
    assert (code, shown) == (2, b"")
    assert "special token '<|pad|>' at character 1" in errors
    assert run("encode", folder, "a<|pad|>", "--specials", "interpret")[1].split()[-1] == b"1"
    assert len(run("encode", folder, "a<|pad|>", "--specials", "text")[1].split()) > 2


def test_report_side_by_side(run, folder, text_file):
    word = text_file.parent / "word"
    code, shown, _ = run(
        *("train", text_file, "--kind", "word", "--out", word, "--lower", "--vocab-size", 99_999, "--json")
    )
    made = json.loads(shown)
    assert code == 0
    assert made["vocab_size"] < 99_999 == made["requested_vocab_size"]
    assert "entries instead of 99,999" in made["notes"][0]
    code, table, _ = run("report", text_file, folder, word)
    assert code == 0
    shown = table.decode()
    headings = ("tokenizer", "kind", "entries", "bytes/token", "tokens/word", "unknown", "unused", "lost")
    for words in (*headings, "bpe*", "word", "600", "0.00%", "100.0%"):
        assert words in shown
    assert max(map(len, shown.splitlines())) <= 80
    bpe, lower = json.loads(run("report", text_file, folder, word, "--json")[1])
    assert (bpe["name"], bpe["vocab_size"], bpe["round_trip_failures"]) == ("bpe", 600, 0)
    assert bpe["bytes_per_token"] == pytest.approx(len(text_file.read_bytes()) / bpe["tokens"])
    assert (lower["kind"], lower["unknown_rate"], lower["unused_share"]) == ("word", 0, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "{text}", "--out", "{folder}"], "has a tokenizer already"),
        (["train", "{text}", "--out", "{config}"], "has a tokenizer already (tokenizer_config.json)"),
        (["train", "{text}", "--out", "{folder}x", "--kind", "bpa"], "did you mean 'bpe'"),
        (["train", "{text}x", "--out", "{folder}x"], "text.txtx"),
        (
            ["train", "{text}", "--out", "{folder}x", "--no-special-tokens", "--special-token", "<s>"],
            "not both",
        ),
        (["train", "{text}", "--out", "{folder}x", "--vocab-size", "99999999999"], "1 to 10,000,000"),
        (["encode", "{folder}x", "a"], "no tokenizer at"),
        (["decode", "{folder}", "1", "two"], "'two' is not an id"),
        (["decode", "{folder}", "600"], "id 600 is not in the vocabulary"),
        (["encode", "{folder}", "-"], "standard input is not UTF-8 (byte 1)"),
    ],
)
def test_mistakes_are_one_line(run, arguments, message, folder, text_file, tmp_path):
    (tmp_path / "tokenizer_config.json").write_text("{}")
    filled = [argument.format(folder=folder, text=text_file, config=tmp_path) for argument in arguments]
    code, shown, errors = run(*filled, stdin=b"a\xff")
    assert (code, shown) == (2, b"")
    assert message in errors
    assert errors.startswith("wordloom: ")
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (b"1 --5", "'--5' is not an id"),
        (b"1 5_0", "'5_0' is not an id"),
        (b"9" * 5000, "'" + "9" * 40 + "...' is not an id"),
        (b"9" * 23, "is not in the vocabulary"),
        (b"\xff", "is not an id"),
    ],
)
def test_what_is_no_id_is_one_line(run, ids, message, folder):
    code, shown, errors = run("decode", folder, "-", stdin=ids)
    assert (code, shown, errors.count("\n")) == (2, b"", 1)
    assert message in errors


def test_a_merge_of_no_token_is_one_line(run, folder, tmp_path):
    definition = json.loads((folder / "tokenizer.json").read_text())
    definition["model"]["merges"].append(["the", "zebra"])
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    code, shown, errors = run("encode", tmp_path, "the zebra")
    assert (code, shown, errors.count("\n")) == (2, b"", 1)
    assert "needs the token 'zebra', which is not in the vocabulary" in errors


def test_force_replaces(run, folder, text_file):
    before = (folder / "tokenizer.json").read_bytes()
    arguments = ("train", text_file, "--out", folder, "--vocab-size", 600, "--force")
    assert run(*arguments)[0] == 0
    assert (folder / "tokenizer.json").read_bytes() == before  # training repeats itself

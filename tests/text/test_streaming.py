"""Streaming: the same text as decoding at once, never half a character, never taken back."""

import pytest

from wordloom.text import TOKENIZERS, Tokenizer

TEXT = "The class 😀 of naïve objects\n\n中文  ends"


@pytest.mark.parametrize("kind", [*TOKENIZERS, "llama"])
@pytest.mark.parametrize("prompt", [0, 1, 3])
def test_pushed_text_adds_up(kind, prompt, trained, request):
    if kind == "llama":
        file = request.getfixturevalue("data") / "tokenizers" / "llama-tokenizer.model"
        tokenizer = Tokenizer.from_pretrained(file)
    else:
        tokenizer = trained[kind]
    ids = tokenizer.encode_ids(TEXT)
    stream = tokenizer.stream_decoder(ids[:prompt])
    pushed = [stream.push(i) for i in ids[prompt:]]
    assert not any("\ufffd" in text for text in pushed)
    assert tokenizer.decode(ids[:prompt]) + "".join(pushed) + stream.flush() == tokenizer.decode(ids)
    assert sum(map(bool, pushed)) > len(pushed) / 2 or kind == "byte"  # it does stream


def test_half_a_character_waits(trained):
    stream = trained["byte"].stream_decoder()
    assert [stream.push(b) for b in "é😀".encode()] == ["", "é", "", "", "", "😀"]
    assert stream.push(0xE4) == ""
    assert stream.push(0xB8) == ""
    assert stream.push(ord("a")) == "\ufffda"  # what waited can no longer become a character
    assert stream.push(0xF0) == ""
    assert stream.flush() == "\ufffd"
    with pytest.raises(ValueError, match="after flush"):
        stream.push(1)


def test_half_a_character_in_the_prompt(trained):
    stream = trained["byte"].stream_decoder("é".encode()[:1])
    assert stream.push("é".encode()[1]) == "é"


@pytest.mark.parametrize("kind", ["byte", "bpe", "unigram"])
def test_invalid_bytes_stream_as_they_decode(kind, trained):
    tokenizer = trained[kind]
    ids = [i for i in range(tokenizer.vocab_size) if i not in tokenizer.special_ids][:400]
    ids = ids[::-1] + ids[::3]
    stream = tokenizer.stream_decoder()
    assert "".join(map(stream.push, ids)) + stream.flush() == tokenizer.decode(ids)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_special_tokens_are_skipped_on_request(kind, trained):
    tokenizer = trained[kind]
    special = min(tokenizer.special_ids - {tokenizer.unk_id})
    ids = [special, *tokenizer.encode_ids("The class"), special, *tokenizer.encode_ids(" of"), special]
    for skip in (True, False):
        stream = tokenizer.stream_decoder(skip_special_tokens=skip)
        text = "".join(map(stream.push, ids)) + stream.flush()
        assert text == tokenizer.decode(ids, skip_special_tokens=skip)
        assert (tokenizer.id_to_token(special) in text) is not skip


def test_llamas_first_space_is_dropped_only_at_the_start(data):
    tokenizer = Tokenizer.from_pretrained(data / "weights" / "stories260K" / "hf")
    ids = tokenizer.prompt_ids("Once upon")
    stream = tokenizer.stream_decoder(skip_special_tokens=True)
    assert "".join(map(stream.push, ids)) == "Once upon"
    stream = tokenizer.stream_decoder(ids, skip_special_tokens=True)
    assert "".join(map(stream.push, tokenizer.encode_ids("a time"))) == " a time"

"""What we write, transformers reads with equal ids; and we read back the same tokenizer."""

import json
import os

import pytest

from wordloom.errors import TokenizerError
from wordloom.text import TOKENIZERS, Tokenizer
from wordloom.text.definition import PATTERNS

TEXTS = ["", "The class of objects", "  Two  spaces\n\tand 'quotes' it's 2024!", "naïve café 中文 😀\r\n"]


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("model_type", [None, "gpt2", "llama", "bert", "wordloom-rnn"])
def test_transformers_gives_equal_ids(kind, model_type, trained, tmp_path):
    from transformers import AutoTokenizer

    ours = trained[kind]
    ours.save_pretrained(tmp_path)
    if model_type:  # as in a checkpoint folder
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        ids = ours.encode_ids(text)
        assert theirs.encode(text, add_special_tokens=False) == ids
        assert theirs.decode(ids, clean_up_tokenization_spaces=False) == ours.decode(ids)
        special = text + ours.id_to_token(min(ours.special_ids))  # transformers interprets, always
        assert theirs.encode(special, add_special_tokens=False) == ours.encode_ids(
            special, specials="interpret"
        )
    assert len(theirs) == ours.vocab_size
    for role in ("bos", "eos", "pad", "mask", "cls", "sep"):
        assert getattr(theirs, f"{role}_token_id") == getattr(ours, f"{role}_id")


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_read_back_it_is_the_same(kind, trained, tmp_path):
    trained[kind].save_pretrained(tmp_path)
    again = Tokenizer.from_pretrained(tmp_path)
    assert again.fingerprint == trained[kind].fingerprint
    assert again.kind == kind
    assert again.lossless == trained[kind].lossless
    assert again.training_report is None
    again.save_pretrained(tmp_path / "twice")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / name).read_bytes() == (tmp_path / "twice" / name).read_bytes()


def test_fingerprints_tell_tokenizers_apart(trained, corpus):
    assert len({tokenizer.fingerprint for tokenizer in trained.values()}) == len(trained)
    base = {"kind": "word", "special_tokens": {"eos": "<e>", "unk": "<u>"}}
    fingerprint = Tokenizer.train(corpus, **base).fingerprint
    assert Tokenizer.train(corpus, **base | {"lower": True}).fingerprint != fingerprint
    assert Tokenizer.train(corpus, **base | {"split": "whitespace"}).fingerprint != fingerprint
    other_roles = {"special_tokens": {"bos": "<e>", "unk": "<u>"}}  # the same tokens and ids
    assert Tokenizer.train(corpus, **base | other_roles).fingerprint != fingerprint


def test_llama_model_saved_is_read_by_transformers(data, tmp_path):
    from transformers import AutoTokenizer

    ours = Tokenizer.from_pretrained(data / "tokenizers" / "llama-tokenizer.model")
    ours.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXTS[1:]:
        assert theirs.encode(text) == ours.prompt_ids(text)
        assert theirs.decode(theirs.encode(text), skip_special_tokens=True) == text
    assert Tokenizer.from_pretrained(tmp_path).fingerprint == ours.fingerprint


def test_pre_tokenizers_are_the_well_known_ones(trained, gpt2_folder, corpus):
    """Converters to other formats recognise a BPE by these definitions."""
    from transformers import GPT2Tokenizer

    theirs = json.loads(GPT2Tokenizer()._tokenizer.to_str())
    ours = trained["bpe"]._definition
    assert ours["pre_tokenizer"] == theirs["pre_tokenizer"]
    assert ours["decoder"] == theirs["decoder"]
    assert Tokenizer.from_pretrained(gpt2_folder)._definition["pre_tokenizer"] == theirs["pre_tokenizer"]
    # as meta-llama/Meta-Llama-3-8B's tokenizer.json has it
    llama3 = Tokenizer.train(corpus, kind="bpe", vocab_size=300, split="llama3")._definition
    assert llama3["pre_tokenizer"] == {
        "type": "Sequence",
        "pretokenizers": [
            {
                "type": "Split",
                "pattern": {"Regex": PATTERNS["llama3"]},
                "behavior": "Isolated",
                "invert": False,
            },
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        ],
    }


def test_bert_template_is_berts(trained, tmp_path):
    from transformers import AutoTokenizer

    ours = trained["wordpiece"]
    ours.save_pretrained(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    pair = theirs("the class", "of objects", return_token_type_ids=True)
    a, b = ours.encode_ids("the class"), ours.encode_ids("of objects")
    assert pair["input_ids"] == [ours.cls_id, *a, ours.sep_id, *b, ours.sep_id]
    assert pair["token_type_ids"] == [0] * (len(a) + 2) + [1] * (len(b) + 1)


def test_what_came_along_is_kept(trained, tmp_path):
    trained["bpe"].save_pretrained(tmp_path / "a")
    config = json.loads((tmp_path / "a" / "tokenizer_config.json").read_text())
    config |= {"model_max_length": 512, "mine": {"x": 1}}
    (tmp_path / "a" / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "a" / "chat_template.jinja").write_text("{{ messages }}")
    tokenizer = Tokenizer.from_pretrained(tmp_path / "a")
    assert tokenizer.chat_template == "{{ messages }}"
    tokenizer.save_pretrained(tmp_path / "b")
    assert json.loads((tmp_path / "b" / "tokenizer_config.json").read_text()) == config
    assert (tmp_path / "b" / "chat_template.jinja").read_text() == "{{ messages }}"


def test_a_role_whose_token_is_missing_is_added_as_transformers_does(trained, tmp_path):
    from transformers import AutoTokenizer

    trained["bpe"].save_pretrained(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"bos_token": "<new>"}))
    ours, theirs = Tokenizer.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert ours.bos_id == theirs.bos_token_id == 700
    assert ours.vocab_size == len(theirs) == 701
    assert ours.encode_ids("a<new>", specials="interpret") == theirs.encode("a<new>")


def test_a_failing_write_leaves_the_old_file(trained, tmp_path, monkeypatch):
    trained["bpe"].save_pretrained(tmp_path)
    before = (tmp_path / "tokenizer.json").read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(TokenizerError, match="No space left on device; choose another folder"):
        trained["char"].save_pretrained(tmp_path)
    assert (tmp_path / "tokenizer.json").read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["tokenizer.json", "tokenizer_config.json"]

"""Tokenizers that others wrote, read as they are."""

import base64
import gzip
import json
import shutil

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from wordloom.errors import TokenizerError
from wordloom.text import Tokenizer

TEXTS = [
    "",
    "Hello, world!",
    "It's   héllo\n\n 中文 😀 naïve",
    " x\u00a0y\r\n\t",
    "don't STOP 12345 ---",
    "a" * 300,
]


def edit(folder, change):
    definition = json.loads((folder / "tokenizer.json").read_text())
    change(definition)
    (folder / "tokenizer.json").write_text(json.dumps(definition))


def test_gpt2_files(data, gpt2_folder, shakespeare):
    import tiktoken
    from tiktoken_ext.openai_public import r50k_pat_str

    tokenizer = Tokenizer.from_pretrained(gpt2_folder)
    assert (tokenizer.kind, tokenizer.vocab_size, tokenizer.lossless) == ("bpe", 50257, True)
    assert tokenizer.bos_id == tokenizer.eos_id == 50256
    assert tokenizer.unk_id is tokenizer.pad_id is None
    assert tokenizer.prompt_ids("Hello world") == [15496, 995]
    lines = gzip.decompress((data / "tokenizers" / "gpt2.tiktoken.gz").read_bytes()).splitlines()
    ranks = {base64.b64decode(piece): int(rank) for piece, rank in map(bytes.split, lines)}
    reference = tiktoken.Encoding("gpt2", pat_str=r50k_pat_str, mergeable_ranks=ranks, special_tokens={})
    for text in [*TEXTS, shakespeare[:100_000]]:
        assert tokenizer.encode_ids(text) == reference.encode_ordinary(text)
        assert tokenizer.decode(tokenizer.encode_ids(text)) == text
    by_name = Tokenizer.from_pretrained(gpt2_folder / "encoder.json")
    assert by_name.fingerprint == tokenizer.fingerprint


def test_gpt2_files_under_hugging_face_names(gpt2_folder, tmp_path):
    from transformers import GPT2TokenizerFast

    shutil.copy(gpt2_folder / "encoder.json", tmp_path / "vocab.json")
    shutil.copy(gpt2_folder / "vocab.bpe", tmp_path / "merges.txt")
    ours, theirs = Tokenizer.from_pretrained(tmp_path), GPT2TokenizerFast.from_pretrained(tmp_path)
    assert ours.fingerprint == Tokenizer.from_pretrained(gpt2_folder).fingerprint
    for text in TEXTS:
        assert ours.encode_ids(text) == theirs.encode(text)


def older_folder(gpt2_folder, folder, config, **files):
    """A folder as older versions of transformers wrote it, without a tokenizer.json."""
    folder.mkdir(exist_ok=True)
    shutil.copy(gpt2_folder / "encoder.json", folder / "vocab.json")
    shutil.copy(gpt2_folder / "vocab.bpe", folder / "merges.txt")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer", **config}))
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return folder


@pytest.mark.parametrize("in_config", [True, False])
def test_added_tokens_of_older_folders(gpt2_folder, tmp_path, in_config):
    """Each keeps its id, also those without a role, and its flags."""
    from transformers import AutoTokenizer

    added = {"<y>": 50257, "<x>": 50258, "<|im_end|>": 50259}
    flags = {"lstrip": True, "rstrip": False, "single_word": False, "normalized": False, "special": True}
    decoder = {str(index): {"content": name, **flags} for name, index in added.items()}
    config = {"bos_token": "<x>", "eos_token": "<y>", "pad_token": "<|im_end|>"}
    if in_config:
        folder = older_folder(gpt2_folder, tmp_path / "folder", {**config, "added_tokens_decoder": decoder})
    else:
        folder = older_folder(gpt2_folder, tmp_path / "folder", config, added_tokens=added)
    ours, theirs = Tokenizer.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert (ours.bos_id, ours.eos_id, ours.pad_id) == (50258, 50257, 50259)
    for text in ("a <x> b<|im_end|>c", "<y><y> <|im_end|>", *TEXTS):
        assert ours.encode_ids(text, specials="interpret") == theirs.encode(text, add_special_tokens=False)
    ours.save_pretrained(tmp_path / "saved")
    again = Tokenizer.from_pretrained(tmp_path / "saved")
    assert again.encode_ids("a <x>", specials="interpret") == ours.encode_ids("a <x>", specials="interpret")


def test_added_tokens_with_other_ids_are_refused(gpt2_folder, tmp_path):
    for added, says in (
        ({"<x>": 50300}, "gives '<x>' the id 50300, and it has 50257 here; use a tokenizer.json"),
        ({"Hello": 50257}, "gives 'Hello' the id 50257, and it has 15496 here"),
        ({"<x>": "a"}, "added_tokens.json is no object of ids and tokens"),
    ):
        folder = older_folder(gpt2_folder, tmp_path / "folder", {}, added_tokens=added)
        with pytest.raises(TokenizerError, match=says):
            Tokenizer.from_pretrained(folder)


def test_new_tokens_of_roles_get_the_ids_of_transformers(gpt2_folder, tmp_path):
    from transformers import AutoTokenizer

    roles = {f"{role}_token": f"<{role}>" for role in ("mask", "cls", "pad", "sep", "unk", "eos", "bos")}
    roles["mask_token"] = {"content": "<mask>", "lstrip": True, "__type": "AddedToken"}
    folder = older_folder(gpt2_folder, tmp_path / "folder", {**roles, "add_prefix_space": True})
    ours, theirs = Tokenizer.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"):
        assert ours.token_to_id(f"<{role}>") == theirs.convert_tokens_to_ids(f"<{role}>"), role
    for text in ("a <mask> b", "the <eos> of it", "Hello"):
        assert ours.encode_ids(text, specials="interpret") == theirs.encode(text, add_special_tokens=False)


def test_settings_of_a_vocab_txt(tmp_path):
    from transformers import AutoTokenizer

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "中文", "中", "##文", "Ab", "ab", "##c"]
    (tmp_path / "vocab.txt").write_text("".join(f"{word}\n" for word in words))
    config = {"tokenizer_class": "BertTokenizer", "tokenize_chinese_chars": False}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    ours = Tokenizer.from_pretrained(tmp_path)
    assert ours.encode_ids("中文 Abc") == [5, 8, 10]  # in whole words and cased, as the vocabulary says
    ours.save_pretrained(tmp_path / "saved")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert theirs.encode("中文 Abc", add_special_tokens=False) == [5, 8, 10]


def test_bert_vocab_txt(data, tmp_path):
    from transformers import BertTokenizerFast

    packed = (data / "tokenizers" / "bert-base-uncased-vocab.txt.gz").read_bytes()
    (tmp_path / "vocab.txt").write_bytes(gzip.decompress(packed))
    ours, theirs = Tokenizer.from_pretrained(tmp_path), BertTokenizerFast(vocab=str(tmp_path / "vocab.txt"))
    assert (ours.kind, ours.vocab_size, ours.lossless) == ("wordpiece", 30522, False)
    assert (ours.pad_id, ours.unk_id, ours.cls_id, ours.sep_id, ours.mask_id) == (0, 100, 101, 102, 103)
    assert ours.prompt_ids("hello") == [7592]
    for text in TEXTS:
        assert ours.encode_ids(text) == theirs.encode(text, add_special_tokens=False)
        assert ours.decode(ours.encode_ids(text)) == theirs.decode(ours.encode_ids(text))


def test_vocab_txt_says_its_case_by_itself(tmp_path):
    tokens = ["[PAD]", "[UNK]", "the", "##s", "cat"]
    (tmp_path / "vocab.txt").write_text("\n".join(tokens) + "\n")
    assert Tokenizer.from_pretrained(tmp_path).encode_ids("The Cats") == [2, 4, 3]
    (tmp_path / "vocab.txt").write_text("\r\n".join([*tokens, "The"]))
    assert Tokenizer.from_pretrained(tmp_path / "vocab.txt").encode_ids("The Cats") == [5, 1]
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    assert Tokenizer.from_pretrained(tmp_path).encode_ids("The Cats") == [2, 4, 3]


def test_first_gpt_files(tmp_path):
    from transformers import OpenAIGPTTokenizerFast

    vocab = ["<unk>", "l", "o", "w", "w</w>", "e", "r</w>", ".</w>", "lo", "low</w>", "low", "er</w>"]
    (tmp_path / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(vocab)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\nl o\nlo w</w>\nlo w\ne r</w>\n")
    ours, theirs = Tokenizer.from_pretrained(tmp_path), OpenAIGPTTokenizerFast.from_pretrained(tmp_path)
    assert ours.kind == "other"
    for text in ("Low lower.", "low q low", "lowlow er"):
        assert ours.encode_ids(text) == theirs.encode(text)
        assert ours.decode(ours.encode_ids(text)) == theirs.decode(theirs.encode(text))


def test_llama_model_gives_sentencepieces_ids_on_tiny_shakespeare(data, shakespeare):
    sentencepiece = pytest.importorskip("sentencepiece")
    file = data / "tokenizers" / "llama-tokenizer.model"
    ours = Tokenizer.from_pretrained(file)
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(file))
    assert (ours.kind, ours.vocab_size, ours.lossless) == ("llama", 32000, True)
    assert (ours.unk_id, ours.bos_id, ours.eos_id, ours.pad_id) == (0, 1, 2, None)
    ids = ours.encode_ids(shakespeare)
    assert ids == theirs.encode(shakespeare)
    assert ours.decode(ids) == shakespeare
    assert ours.prompt_ids("Hello") == theirs.encode("Hello", add_bos=True)
    lengths = ours.byte_lengths()
    assert lengths[ids].sum() == len(shakespeare.encode()) + 1  # the space put before the text
    assert [ours.id_to_token(i) for i in range(32000)] == [theirs.id_to_piece(i) for i in range(32000)]


@pytest.fixture(scope="session")
def llama_pair(data):
    sentencepiece = pytest.importorskip("sentencepiece")
    file = data / "tokenizers" / "llama-tokenizer.model"
    return Tokenizer.from_pretrained(file), sentencepiece.SentencePieceProcessor(model_file=str(file))


@settings(max_examples=150, deadline=None)
@given(text=st.text() | st.text(st.sampled_from("ab the\n\t.01=-_▁é\u0301中😀\0<s>/unkx")))
@example(text="=" * 67 + " " * 35 + "x")
def test_llama_model_gives_sentencepieces_ids_on_any_text(text, llama_pair):
    ours, theirs = llama_pair
    ids = ours.encode_ids(text, specials="text")
    assert ids == theirs.encode(text)
    assert ours.decode(ids) == theirs.decode(ids) == text.replace("▁", " ")


def test_stories_tokenizer_json(data):
    tokenizer = Tokenizer.from_pretrained(data / "weights" / "stories260K" / "hf")
    assert (tokenizer.kind, tokenizer.vocab_size, tokenizer.lossless) == ("llama", 512, True)
    assert tokenizer.prompt_ids("Once upon a time") == [1, 403, 407, 261, 378]
    bos_and_text = tokenizer.prompt_ids("<s>Once", specials="interpret")
    assert bos_and_text.count(1) == 1
    assert tokenizer.decode([403, 407, 261, 378]) == "Once upon a time"


def test_bos_is_added_where_the_tokenizer_does(data, tmp_path):
    folder = data / "weights" / "stories260K" / "hf"
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    edit(tmp_path, lambda definition: definition.update(post_processor=None))
    assert not Tokenizer.from_pretrained(tmp_path).adds_bos
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"add_bos_token": True}))
    assert Tokenizer.from_pretrained(tmp_path).prompt_ids("Once")[0] == 1
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"add_bos_token": False}))
    shutil.copy(folder / "tokenizer.json", tmp_path / "tokenizer.json")
    assert Tokenizer.from_pretrained(tmp_path).prompt_ids("Once")[0] != 1


def test_nothing_in_a_file_cuts_pads_or_randomises(trained, tmp_path):
    trained["bpe"].save_pretrained(tmp_path)

    def spoil(definition):
        definition["truncation"] = {
            "direction": "Right",
            "max_length": 2,
            "strategy": "LongestFirst",
            "stride": 0,
        }
        definition["padding"] = {
            "strategy": {"Fixed": 99},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 1,
            "pad_type_id": 0,
            "pad_token": "<|pad|>",
        }
        definition["model"]["dropout"] = 0.9

    edit(tmp_path, spoil)
    tokenizer = Tokenizer.from_pretrained(tmp_path)
    text = "The class of objects and the functions"
    assert tokenizer.encode_ids(text) == trained["bpe"].encode_ids(text) == tokenizer.encode(text).ids
    assert tokenizer.fingerprint == trained["bpe"].fingerprint


def test_older_spellings_of_the_same_file(trained, tmp_path):
    trained["bpe"].save_pretrained(tmp_path)
    edit(
        tmp_path,
        lambda d: d["model"].update(merges=[" ".join(pair) for pair in d["model"]["merges"]]),
    )
    (tmp_path / "tokenizer_config.json").unlink()
    eos = {"content": "<|pad|>", "lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"eos_token": eos}))
    tokenizer = Tokenizer.from_pretrained(tmp_path)
    assert tokenizer.eos_id == trained["bpe"].pad_id
    (tmp_path / "special_tokens_map.json").unlink()
    tokenizer = Tokenizer.from_pretrained(tmp_path)  # names tell the roles
    assert tokenizer.fingerprint == trained["bpe"].fingerprint


def test_what_makes_a_tokenizer_lossy(trained, tmp_path):
    trained["bpe"].save_pretrained(tmp_path)
    edit(tmp_path, lambda d: d.update(normalizer={"type": "NFC"}))
    assert not Tokenizer.from_pretrained(tmp_path).lossless
    edit(tmp_path, lambda d: d.update(normalizer=None) or d["pre_tokenizer"].update(add_prefix_space=True))
    tokenizer = Tokenizer.from_pretrained(tmp_path)
    assert not tokenizer.lossless
    assert tokenizer.decode(tokenizer.encode_ids("a")) == " a"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "no tokenizer in .*expected tokenizer.json"),
        ({"tokenizer.json": "{"}, "not valid JSON"),
        ({"tokenizer.json": "[]"}, "does not hold a JSON object"),
        ({"tokenizer.json": "{}"}, "it has no 'model'"),
        (
            {"tokenizer.json": '{"model": {"type": "BPE", "vocab": {}, "merges": [["a", "b"]]}}'},
            "needs the token 'a', which is not in the vocabulary",
        ),
        (
            {"tokenizer.json": '{"model": {"type": "BPE", "vocab": {"a": 0}}}'},
            "cannot read",
        ),
        (
            {"tokenizer.json": '{"model": {"type": "WordPiece", "vocab": {"a": 0}}, "normalizer": ["x"]}'},
            "its normalizer has a step without a 'type'",
        ),
        ({"tokenizer.json": "[" * 100_000}, "not valid JSON"),
        ({"tokenizer.json": b"\xff\xfe"}, r"not UTF-8 \(byte 0\)"),
        ({"tokenizer.model": b"\x0a\xff\xff"}, "not a SentencePiece model: it is truncated"),
        ({"tokenizer.model": b"hello"}, "not a SentencePiece model"),
        ({"tokenizer.model": b""}, "not a SentencePiece model: it has no pieces"),
        ({"vocab.txt": "the\ncat\n"}, r"no line '\[UNK\]'"),
        ({"vocab.txt": "[UNK]\na\na\n"}, "'a' twice"),
        ({"vocab.json": "{}"}, "cannot read .*merges.txt"),
        ({"merges.txt": ""}, "cannot read .*vocab.json"),
        ({"vocab.json": '{"a": 0}', "merges.txt": ""}, "neither byte-level BPE"),
        ({"vocab.json": '{"a": 0}', "merges.txt": "a b c"}, "merge 1 is not two tokens"),
    ],
)
def test_what_cannot_be_read(files, message, tmp_path):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(TokenizerError, match=message) as caught:
        Tokenizer.from_pretrained(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"merges": [["a", "x"]]}, r"merge 1 \('a' and 'x'\) needs the token 'x'"),
        ({"merges": [["a", "b"], ["ab", "b"]]}, r"merge 2 \('ab' and 'b'\) needs the token 'abb'"),
        ({"merges": ["a b", "b a"]}, "needs the token 'ba'"),
        ({"merges": [["a", "b", "a"]]}, "merge 1 is not two tokens"),
        ({"merges": [[["a"], "b"]]}, "merge 1 is not two tokens"),
        ({"merges": ["ab"]}, "merge 1 is not two tokens: 'ab'"),
        ({"merges": [["a", "b"]], "continuing_subword_prefix": "##"}, "'b', which does not begin with '##'"),
        (
            {"merges": [["a", "é"]], "continuing_subword_prefix": "#"},
            "joins 'é', which does not begin with '#'",
        ),
        ({"vocab": {"a": 0, "b": 10**9}}, "'b' has the id 1,000,000,000: ids must be below 10,000,000"),
    ],
)
def test_what_the_library_would_break_off_at(model, message, tmp_path, capfd):
    vocabulary = {"a": 0, "b": 1, "ab": 2, "é": 3}
    definition = {"model": {"type": "BPE", "vocab": vocabulary, "merges": []} | model}
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    with pytest.raises(TokenizerError, match=message):
        Tokenizer.from_pretrained(tmp_path)
    assert capfd.readouterr() == ("", "")  # no panic of Rust's


def test_continuing_merges_are_read(tmp_path):
    model = {"type": "BPE", "vocab": {"a": 0, "#b": 1, "ab": 2}, "merges": [["a", "#b"]]}
    definition = {"model": model | {"continuing_subword_prefix": "#"}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    assert Tokenizer.from_pretrained(tmp_path).encode_ids("ab") == [2]


def test_a_damaged_normaliser_breaks_off_in_one_line(trained, tmp_path):
    trained["bpe"].save_pretrained(tmp_path)
    nowhere = base64.b64encode(bytes([4, 0, 0, 0, 255, 255, 255, 255])).decode()
    edit(tmp_path, lambda d: d.update(normalizer={"type": "Precompiled", "precompiled_charsmap": nowhere}))
    tokenizer = Tokenizer.from_pretrained(tmp_path)
    with pytest.raises(TokenizerError, match=r"fails on this tokenizer .* its file is damaged"):
        tokenizer.encode_ids("a")


def test_an_empty_added_token_is_none(trained, tmp_path):
    trained["bpe"].save_pretrained(tmp_path)
    edit(tmp_path, lambda d: d["added_tokens"][1].update(content=""))
    (tmp_path / "tokenizer_config.json").unlink()
    assert Tokenizer.from_pretrained(tmp_path).special_ids == {0}  # as the library has it


def test_no_such_folder(tmp_path):
    with pytest.raises(TokenizerError, match="no tokenizer at"):
        Tokenizer.from_pretrained(tmp_path / "nonesuch")


def test_ids_outside_the_vocabulary(trained):
    for kind, tokenizer in trained.items():
        for bad in (-1, tokenizer.vocab_size):
            for call in (tokenizer.decode, tokenizer.decode_bytes, tokenizer.stream_decoder):
                if kind in ("word", "char", "wordpiece") and call == tokenizer.decode_bytes:
                    continue
                with pytest.raises(TokenizerError, match=f"id {bad} "):
                    call([bad])
            with pytest.raises(TokenizerError, match=f"id {bad} "):
                tokenizer.id_to_token(bad)
    with pytest.raises(TokenizerError, match="do not stand for exact bytes"):
        trained["word"].decode_bytes([1])

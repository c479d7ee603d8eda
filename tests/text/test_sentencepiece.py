"""SentencePiece models trained here by SentencePiece itself: our reading gives its ids."""

import io
import struct
from itertools import product
from random import Random
from unicodedata import combining, normalize

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wordloom.errors import TokenizerError
from wordloom.text import Tokenizer
from wordloom.text.formats.charsmap import parse_rules
from wordloom.text.formats.sentencepiece import parse

sentencepiece = pytest.importorskip("sentencepiece")

LIKE_LLAMA = {
    "model_type": "bpe",
    "byte_fallback": True,
    "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
    "split_digits": True,
    "allow_whitespace_only_pieces": True,
}
MODELS = {
    "bpe like LLaMA's": LIKE_LLAMA,
    "bpe without fallback": {"model_type": "bpe", "normalization_rule_name": "identity"},
    "bpe without prefixed space": LIKE_LLAMA | {"add_dummy_prefix": False},
    "unigram with fallback": LIKE_LLAMA | {"model_type": "unigram"},
    "unigram with defaults": {"model_type": "unigram"},
}


def train(corpus, **options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(line for text in corpus for line in text.splitlines() if line.strip()),
        model_writer=model,
        **{"vocab_size": 700, "character_coverage": 0.999, "minloglevel": 2, "hard_vocab_limit": False}
        | options,
    )
    return model.getvalue()


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_ends_with_other_names(corpus, tmp_path, model_type):
    names = {"bos_piece": "<bos>", "eos_piece": "<eos>", "pad_piece": "<pad>", "pad_id": 3}
    options = {**LIKE_LLAMA, "model_type": model_type}
    (tmp_path / "tokenizer.model").write_bytes(train(corpus, **options, **names))
    tokenizer = Tokenizer.from_pretrained(tmp_path)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id) == (1, 2, 3)
    assert (tokenizer.prompt_ids("a")[0] == 1) == (model_type == "bpe")


@pytest.fixture(scope="session", params=MODELS)
def pair(request, corpus, tmp_path_factory):
    """A reading of ours and SentencePiece's own, of one model."""
    file = tmp_path_factory.mktemp("spm") / "tokenizer.model"
    file.write_bytes(train(corpus, **MODELS[request.param]))
    return Tokenizer.from_pretrained(file), sentencepiece.SentencePieceProcessor(model_file=str(file))


def assert_same(ours, theirs, text):
    """Equal ids; for Unigram, also two ways of cutting the same pieces that are exactly as likely."""
    ids, expected = ours.encode_ids(text, specials="text"), theirs.encode(text)
    if ids != expected:
        assert ours.kind == "unigram"
        assert "".join(map(theirs.id_to_piece, ids)) == "".join(map(theirs.id_to_piece, expected))
        difference = sum(map(theirs.get_score, ids)) - sum(map(theirs.get_score, expected))
        assert abs(difference) < 1e-4 * len(ids)


def test_equal_ids_on_the_corpus(pair, corpus):
    ours, theirs = pair
    for text in corpus:
        assert_same(ours, theirs, text)
        for line in text.splitlines():
            assert_same(ours, theirs, line)
            ids = theirs.encode(line)
            if ours.unk_id not in ids:
                assert ours.decode(ids) == theirs.decode(ids)


def test_roles_and_vocabulary(pair):
    ours, theirs = pair
    assert ours.kind in ("llama", "unigram", "other")
    assert ours.vocab_size == theirs.vocab_size()
    assert [ours.id_to_token(i) for i in range(ours.vocab_size)] == [
        theirs.id_to_piece(i) for i in range(ours.vocab_size)
    ]
    assert (ours.unk_id, ours.bos_id, ours.eos_id) == (theirs.unk_id(), theirs.bos_id(), theirs.eos_id())


@settings(max_examples=100, deadline=None)
@given(text=st.text(st.sampled_from("ab the\n\t.,0123(=-_▁é\u0301中😀\0<sx>/kunA4"), max_size=60))
def test_equal_ids_on_awkward_text(pair, text):
    assert_same(*pair, text)


# Custom rules, as SentencePiece reads them: code points in hexadecimal, a tab, the replacement.
RULES = [
    *("61 62\t78", "61 62 63\t79 7A", "62\t42", "E9\t65", "65 301\t45", "200B\t", "9\t20", "1F600\t3A 29"),
    *("41 300 301\t42", "300\t", "20 20\t20", "AA\t61", "AA 300\tE0"),
]
AWKWARD = [
    *(
        "",
        " ",
        "   ",
        "\t",
        "\0",
        "a\0b",
        "a\tb\r\nc\n",
        "  two  spaces  ",
        " the\u3000",
        "\u2028x",
        "class\u00a0is ",
    ),
    *("▁", "▁ ▁", "x▁y▁", "▁the", "\u200bzero\u200b", "\ufeffbom", "\x01\x02", "\x01the", "object" * 20),
    *("<mine>", "<mine> the <mine>class<mine>", "＜mine＞", "<mine>\u0338 x", "ab <min e>", ".\u0338<\u0338"),
    *(
        "Tiếng Việt rất đẹp",
        normalize("NFD", "Tiếng Việt rất đẹp và khó"),
        "\u0301a",
        "q\u0301\u0323",
        "Å\u030a",
    ),
    *(
        "한국어",
        normalize("NFD", "한국어"),
        "ㄱ\u1161",
        "ＫＡﾞｶﾞ",
        "ｆｕｌｌ　ｗｉｄｔｈ",
        "ﬁne oﬃce",
        "´accent´",
        "1½2…",
        "กำ",
    ),
    *(
        "straße ΑΣ İI",
        "ᾳ α\u0314\u0345",
        "👩‍👩‍👧‍👦 family 👍🏽 🇻🇳",
        "<0x41><s></s><unk>",
        "the class of objects",
    ),
    *("\U000f0000\U000f0001x\U000f0002\U000f0005", "abc\u0300 abcab e\u0301", "A\u0300\u0301 ª\u0300ab"),
]
OPTIONS = [
    {},
    {"byte_fallback": True},
    {"add_dummy_prefix": False},
    {"remove_extra_whitespaces": False},
    {"remove_extra_whitespaces": False, "add_dummy_prefix": False, "byte_fallback": True},
    {"user_defined_symbols": ["<mine>", "ab"]},
    {"user_defined_symbols": ["<mine>"], "remove_extra_whitespaces": False, "add_dummy_prefix": False},
]


def rule_settings(rules, folder):
    if rules != "custom":
        return {"normalization_rule_name": rules}
    (folder / "rules.tsv").write_text("\n".join(RULES))
    return {"normalization_rule_tsv": str(folder / "rules.tsv")}


@pytest.mark.parametrize("rules", ["identity", "nfkc", "nmt_nfkc", "nfkc_cf", "custom"])
def test_models_with_any_options_give_equal_ids_or_are_refused(rules, corpus, tmp_path):
    refused = []
    for model_type, options in product(("unigram", "bpe", "char"), OPTIONS):
        # without user-defined symbols, '<' is an unknown character
        trained = train(
            [*corpus[:4], "a < b > c\n" * 20] if "user_defined_symbols" in options else corpus[:4],
            model_type=model_type,
            vocab_size=400,
            **options,
            **rule_settings(rules, tmp_path),
        )
        (tmp_path / "tokenizer.model").write_bytes(trained)
        theirs = sentencepiece.SentencePieceProcessor(model_proto=trained)
        try:
            ours = Tokenizer.from_pretrained(tmp_path)
        except TokenizerError:
            refused.append((model_type, options))
            continue
        for text in AWKWARD:
            assert_same(ours, theirs, text)
    assert all("user_defined_symbols" in options for _, options in refused)
    assert len(refused) == {"identity": 2, "custom": 5}.get(rules, 4)


@pytest.mark.parametrize("rules", ["nfkc", "nmt_nfkc", "nfkc_cf", "custom"])
def test_rules_are_applied_as_sentencepiece_applies_them(rules, corpus, tmp_path):
    """Random texts of the rules' own characters, combining marks and others that form graphemes."""
    options = {"remove_extra_whitespaces": False, "add_dummy_prefix": False, "vocab_size": 400}
    data = train(corpus[:4], **options, **rule_settings(rules, tmp_path))
    (tmp_path / "tokenizer.model").write_bytes(data)
    ours = Tokenizer.from_pretrained(tmp_path)._encoder.interpreting.normalizer.normalize_str
    theirs = sentencepiece.SentencePieceProcessor(model_proto=data).normalize
    keys = sorted(parse_rules(parse(data).charsmap))
    sources = [
        keys,
        sorted({character for key in keys for character in key}),
        [chr(c) for c in range(0x250, 0x11000) if combining(chr(c))],
        list("aeiouAEIOU kK <>=qαι\r\n\0▁\u200d\u0600") + [chr(0xF0000 + i) for i in range(11)],
        [chr(c) for c in range(0x80, 0x30000, 7) if not 0xD800 <= c < 0xE000],
    ]
    random = Random(0)
    texts = [
        "".join(random.choice(random.choice(sources)) for _ in range(random.randint(1, 8)))
        for _ in range(3000)
    ]
    texts += ["".join(map(chr, range(0xD800))), "".join(map(chr, range(0xE000, 0x30000)))]
    assert [text for text in texts if ours(text) != theirs(text)] == []


def test_equal_ids_once_saved_and_in_transformers(corpus, tmp_path):
    transformers = pytest.importorskip("transformers")
    file = tmp_path / "tokenizer.model"
    file.write_bytes(train(corpus[:4], vocab_size=400, model_type="unigram"))
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(file))
    Tokenizer.from_pretrained(file).save_pretrained(tmp_path / "saved")
    fast = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved", local_files_only=True)
    again = Tokenizer.from_pretrained(tmp_path / "saved")
    for text in (text for text in AWKWARD if "<s>" not in text):
        assert_same(again, theirs, text)
        assert fast.encode(text, add_special_tokens=False) == again.encode_ids(text)


def test_offsets_are_places_in_the_text(corpus, tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(train(corpus[:4], vocab_size=400, model_type="unigram"))
    tokenizer = Tokenizer.from_pretrained(tmp_path)
    text = " the ﬁne  object" + normalize("NFD", "é")
    encoding = tokenizer.encode(text)
    assert len(encoding.ids) == len(encoding.offsets)
    for index, (start, end) in zip(*encoding, strict=True):
        piece = tokenizer.id_to_token(index).strip("▁")
        if piece.isascii() and piece in text:
            assert text[start:end].strip() == piece


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=40))
def test_lossless_ones_are(pair, text):
    ours, _ = pair
    if ours.lossless:
        assert ours.decode(ours.encode_ids(text, specials="text")) == text.replace("▁", " ")


def test_like_llama_is_lossless_and_adds_bos(corpus, tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(train(corpus, **LIKE_LLAMA))
    tokenizer = Tokenizer.from_pretrained(tmp_path)
    assert (tokenizer.kind, tokenizer.lossless, tokenizer.adds_bos) == ("llama", True, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model_type": "word", "vocab_size": 60}, "is of type word"),
        ({"model_type": "bpe", "treat_whitespace_as_suffix": True}, "treat_whitespace_as_suffix"),
        ({"model_type": "bpe", "user_defined_symbols": ["<mine>"]}, "beside a prefixed space"),
        (
            {"model_type": "char", "add_dummy_prefix": False, "user_defined_symbols": ["<mine>"]},
            "normalisation",
        ),
        ({"user_defined_symbols": ["a▁b"]}, "user-defined pieces with spaces"),
        ({"user_defined_symbols": ["ﬁ"]}, "change characters of the user-defined piece"),
        (
            {"model_type": "char", "vocab_size": 60, "control_symbols": ["@"]},
            "special pieces of one character",
        ),
    ],
)
def test_what_cannot_be_read_exactly_is_refused(options, message, corpus, tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(train(corpus, **options))
    with pytest.raises(TokenizerError, match=message):
        Tokenizer.from_pretrained(tmp_path)


def test_pieces_of_equal_score(data, corpus, tmp_path):
    """LLaMA's runs of spaces share a score; other pieces that do are refused."""
    file = data / "tokenizers" / "llama-tokenizer.model"
    ours = Tokenizer.from_pretrained(file)
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(file))
    for length in range(80):
        text = "a" + " " * length + "b"
        assert ours.encode_ids(text) == theirs.encode(text)
    trained = train(corpus, **LIKE_LLAMA)
    one, two = (b"\x15" + struct.pack("<f", score) for score in (-1, -2))  # the field, and its number
    assert trained.count(one) == trained.count(two) == 1
    (tmp_path / "tokenizer.model").write_bytes(trained.replace(two, one))
    with pytest.raises(TokenizerError, match="gives several pieces the same score"):
        Tokenizer.from_pretrained(tmp_path)


def test_user_defined_pieces_without_prefixed_space(corpus, tmp_path):
    options = LIKE_LLAMA | {"add_dummy_prefix": False, "user_defined_symbols": ["<mine>"]}
    file = tmp_path / "tokenizer.model"
    file.write_bytes(train(corpus, **options))
    ours, theirs = Tokenizer.from_pretrained(file), sentencepiece.SentencePieceProcessor(model_file=str(file))
    for text in ("a<mine>b", "<mine> the class <mine>", "mine>"):
        assert ours.encode_ids(text) == theirs.encode(text)


def test_a_cut_file_is_noticed_wherever_it_is_cut(corpus):
    data = train(corpus, **LIKE_LLAMA)
    assert len(parse(data).pieces) > 600
    for length in range(0, len(data), 7):
        with pytest.raises(ValueError, match=r"truncated|no pieces"):
            parse(data[:length])


def test_a_file_cut_between_two_pieces_is_no_other_tokenizer(corpus, tmp_path):
    data = train(corpus, **LIKE_LLAMA)
    end = 0
    for _ in range(500):  # a piece: its tag, its length, and as many bytes
        end += 2 + data[end + 1]
    (tmp_path / "tokenizer.model").write_bytes(data[:end])
    with pytest.raises(TokenizerError, match="ends after its pieces, before their type and normalisation"):
        Tokenizer.from_pretrained(tmp_path)


def test_a_damaged_normaliser_is_refused(corpus, tmp_path):
    data = bytearray(train(corpus, model_type="unigram"))
    charsmap = parse(bytes(data)).charsmap
    place = data.index(charsmap)
    data[place : place + 4] = b"\xff" * 4  # the length of its table
    (tmp_path / "tokenizer.model").write_bytes(data)
    with pytest.raises(TokenizerError, match="its normaliser is truncated"):
        Tokenizer.from_pretrained(tmp_path)

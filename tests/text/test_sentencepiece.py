"""SentencePiece models trained here by SentencePiece itself: our reading gives its ids."""

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wordloom.errors import TokenizerError
from wordloom.text import Tokenizer
from wordloom.text.formats.sentencepiece import parse

sentencepiece = pytest.importorskip("sentencepiece")

COMMON = {"vocab_size": 700, "character_coverage": 0.999, "minloglevel": 2, "hard_vocab_limit": False}
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
    ours, theirs = pair
    if theirs.id_to_piece(3) != "<0x00>" and any(piece in text for piece in ("\0", "\u0301")):
        return  # its default normaliser treats these by rules that the tokenizers library has differently
    assert_same(ours, theirs, text)


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
        ({"user_defined_symbols": ["<mine>"]}, "user-defined pieces"),
        ({"model_type": "char", "vocab_size": 60}, "type word or char"),
        ({"model_type": "bpe", "treat_whitespace_as_suffix": True}, "treat_whitespace_as_suffix"),
    ],
)
def test_what_cannot_be_read_exactly_is_refused(options, message, corpus, tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(train(corpus, **options))
    with pytest.raises(TokenizerError, match=message):
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
    with pytest.raises(TokenizerError, match="cannot read this tokenizer"):
        Tokenizer.from_pretrained(tmp_path)

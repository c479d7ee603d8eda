"""Strided perplexity against transformers' recipe, a recomputation per token, and arithmetic by hand."""

from __future__ import annotations

import math
import os
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from wordloom.data import Document, documents
from wordloom.errors import EvaluationError, NonFiniteError, TokenizerError
from wordloom.evaluate import Passage, lambada, likelihood, perplexity, strided_windows
from wordloom.evaluate.reading import Reader
from wordloom.evaluate.score import perplexity_score
from wordloom.models import LlamaConfig, RNNConfig, build
from wordloom.text import Tokenizer

TEXT = "The dog sat on the mat: the cat did not mind.\nWhy? Nobody knew, and nobody asked the cat.\n"


def sequence_of(tokenizer, text):
    """What a document is read as: end-of-text, tokens, end-of-text."""
    return [tokenizer.eos_id, *tokenizer.encode_ids(text), tokenizer.eos_id]


@torch.no_grad()
def recomputed_nats(model, sequence, window):
    """Each token predicted alone from the last ``window`` tokens before it."""
    nats = []
    for i in range(1, len(sequence)):
        context = torch.tensor([sequence[max(0, i - window) : i]])
        logits = model(context)[0, -1]
        nats.append(float(F.cross_entropy(logits, torch.tensor(sequence[i]))))
    return nats


# ------------------------------------------------------------------------------------ windows


@given(st.integers(0, 60), st.integers(1, 20), st.data())
def test_every_token_is_scored_once_with_enough_context(n, window, data):
    stride = data.draw(st.integers(1, window))
    windows = list(strided_windows(n, window=window, stride=stride))
    scored = [i for w in windows for i in range(w.scored, w.end)]
    assert scored == list(range(n))
    for w in windows:
        assert w.end - w.begin <= window
        for i in range(w.scored, w.end):
            before = i + 1 - w.begin  # inputs that successor i + 1 is predicted from
            assert before >= min(i + 1, window - stride)


# ------------------------------------------------------------------------------------ oracles


@pytest.fixture(scope="module")
def their_model_and_ours(tmp_path_factory):
    transformers = pytest.importorskip("transformers", reason="the reference library")
    from wordloom.weights import load_model

    config = transformers.LlamaConfig(
        vocab_size=258, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.4,
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = transformers.LlamaForCausalLM(config).eval()
    folder = tmp_path_factory.mktemp("theirs")
    theirs.save_pretrained(folder)
    return theirs, load_model(folder)


@pytest.mark.parametrize(("max_length", "stride"), [(17, 8), (17, 16), (33, 5), (64, 32), (9, 1)])
def test_transformers_strided_perplexity(their_model_and_ours, byte_tokenizer, max_length, stride):
    """The loop of transformers' page 'Perplexity of fixed-length models'.

    Its windows hold max_length tokens, of which all but the first are predicted: they read max_length - 1.
    """
    theirs, ours = their_model_and_ours
    ids = torch.tensor([sequence_of(byte_tokenizer, TEXT)])
    seq_len = ids.size(1)
    nll_sum, n_tokens, prev_end_loc = 0.0, 0, 0
    for begin_loc in range(0, seq_len, stride):
        end_loc = min(begin_loc + max_length, seq_len)
        trg_len = end_loc - prev_end_loc
        input_ids = ids[:, begin_loc:end_loc]
        target_ids = input_ids.clone()
        target_ids[:, :-trg_len] = -100
        with torch.no_grad():
            loss = theirs(input_ids, labels=target_ids).loss
        num_loss_tokens = (target_ids != -100).sum().item() - (target_ids[:, 0] != -100).sum().item()
        nll_sum += loss.item() * num_loss_tokens
        n_tokens += num_loss_tokens
        prev_end_loc = end_loc
        if end_loc == seq_len:
            break
    scores = perplexity(ours, byte_tokenizer, [TEXT], window=max_length - 1, stride=stride)
    assert scores.counts["tokens"] == n_tokens
    assert scores["loss"].value == pytest.approx(nll_sum / n_tokens, rel=1e-5)
    assert scores["perplexity"].value == pytest.approx(math.exp(nll_sum / n_tokens), rel=1e-5)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("window", [1, 7, 32])
def test_stride_one_is_recomputation_with_the_full_context(request, byte_tokenizer, family, window):
    model = request.getfixturevalue(family)
    nats = recomputed_nats(model, sequence_of(byte_tokenizer, TEXT), window)
    scores = perplexity(model, byte_tokenizer, [TEXT], window=window, stride=1)
    assert scores["loss"].value == pytest.approx(np.mean(nats), rel=1e-5)


def test_a_window_over_everything_is_one_pass(llama, byte_tokenizer):
    text = TEXT[:30]
    sequence = torch.tensor([sequence_of(byte_tokenizer, text)])
    with torch.no_grad():
        one_pass = F.cross_entropy(llama(sequence[:, :-1])[0], sequence[0, 1:])
    for stride in (1, 9, 32):
        scores = perplexity(llama, byte_tokenizer, [text], stride=stride)
        assert scores["loss"].value == pytest.approx(float(one_pass), rel=1e-6)


def test_more_context_changes_the_score(llama, byte_tokenizer):
    """The oracles above could not fail on a model that ignores its context; this one does not ignore it."""
    losses = [perplexity(llama, byte_tokenizer, [TEXT], window=w)["loss"].value for w in (1, 4, 32)]
    assert min(abs(a - b) for a, b in [(losses[0], losses[1]), (losses[1], losses[2])]) > 0.01


def test_batching_changes_nothing(llama, byte_tokenizer):
    groups = [[TEXT], ["a"], [TEXT[5:40], ""], ["What?\n" * 9]]  # "" has no score of its own
    alone = [perplexity(llama, byte_tokenizer, group, window=8, batch_size=1) for group in groups]
    documents = [document for group in groups for document in group]
    for batch_size in (1, 3, 64):
        together = perplexity(llama, byte_tokenizer, documents, window=8, batch_size=batch_size)
        assert together.counts["nats"] == pytest.approx(sum(s.counts["nats"] for s in alone), rel=1e-6)
        assert together.counts["tokens"] == sum(s.counts["tokens"] for s in alone)


def test_logits_are_never_whole(llama, byte_tokenizer, monkeypatch):
    whole = perplexity(llama, byte_tokenizer, [TEXT])
    rows = []
    handle = llama.lm_head.register_forward_hook(lambda _m, args, _out: rows.append(args[0].shape[0]))
    monkeypatch.setattr(likelihood, "CHUNK_ELEMENTS", 7 * 258 + 5)
    chunked = perplexity(llama, byte_tokenizer, [TEXT])
    handle.remove()
    assert max(rows) == 7
    assert sum(rows) == whole.counts["tokens"]  # and tokens that are context only never meet the head
    assert chunked["loss"].value == pytest.approx(whole["loss"].value, rel=1e-6)


# --------------------------------------------------------------------------------- bits per byte


def uniform(vocab_size):
    """A model that knows nothing: log2(vocab_size) bits for every token."""
    model = build(
        LlamaConfig(vocab_size=vocab_size, max_seq_len=16, dim=8, n_layers=1, n_heads=2, hidden_dim=8)
    )
    torch.nn.init.zeros_(model.lm_head.weight)
    return model


def test_bits_per_byte_counts_the_raw_text_once_whatever_the_tokenizer():
    text = "Zażółć gęślą jaźń – it is late, 遅い.\n" * 3
    n_bytes = len(text.encode())
    assert n_bytes != len(text)
    for kind, size in [("byte", None), ("bpe", 300), ("unigram", 400), ("char", None)]:
        tokenizer = Tokenizer.train([text], kind=kind, vocab_size=size)
        scores = perplexity(uniform(tokenizer.vocab_size), tokenizer, [text])
        n_tokens = len(tokenizer.encode_ids(text)) + 1  # and the end of the text
        assert scores.counts["bytes"] == n_bytes
        assert scores["loss"].value == pytest.approx(math.log(tokenizer.vocab_size), rel=1e-6)
        expected = n_tokens * math.log2(tokenizer.vocab_size) / n_bytes
        assert scores["bits_per_byte"].value == pytest.approx(expected, rel=1e-6)


def test_the_end_is_paid_for_unless_left_out(llama, byte_tokenizer):
    sequence = sequence_of(byte_tokenizer, TEXT)
    nats = recomputed_nats(llama, sequence, 32)
    with_end = perplexity(llama, byte_tokenizer, [TEXT], stride=1)
    without = perplexity(llama, byte_tokenizer, [TEXT], stride=1, end="none")
    bits = 1 / math.log(2) / len(TEXT.encode())
    assert with_end["bits_per_byte"].value == pytest.approx(sum(nats) * bits, rel=1e-5)
    assert without["bits_per_byte"].value == pytest.approx(sum(nats[:-1]) * bits, rel=1e-5)
    assert "|end:eos|" in with_end["loss"].signature
    assert "|end:no|" in without["loss"].signature


def test_a_first_token_without_context_is_not_free(char_model, char_tokenizer):
    """Nothing predicts the first character, and a code for the text still has to send it."""
    ids = char_tokenizer.encode_ids("The cat sat.")
    nats = recomputed_nats(char_model, ids, 32)
    scores = perplexity(char_model, char_tokenizer, ["The cat sat."])
    assert scores.counts["tokens"] == 11
    assert scores.counts["tokens_not_predicted"] == 1
    assert scores["loss"].value == pytest.approx(np.mean(nats), rel=1e-5)
    bits = (sum(nats) + math.log(char_tokenizer.vocab_size)) / math.log(2)
    assert scores["bits_per_byte"].value == pytest.approx(bits / 12, rel=1e-5)
    assert "|start:no|end:no|" in scores["loss"].signature
    assert any("first tokens have nothing before them" in note for note in scores.notes)
    # a document of one character has nothing to predict, and counts all the same
    more = perplexity(char_model, char_tokenizer, ["The cat sat.", "T"])
    assert more.counts["tokens"] == 11
    assert more.counts["nats"] == pytest.approx(scores.counts["nats"] + math.log(char_tokenizer.vocab_size))


def test_start_follows_the_tokenizer_and_can_be_chosen(llama, byte_tokenizer):
    ids = byte_tokenizer.encode_ids(TEXT)
    eos = byte_tokenizer.eos_id
    for start, sequence in [("auto", [eos, *ids, eos]), ("eos", [eos, *ids, eos]), ("none", [*ids, eos])]:
        scores = perplexity(llama, byte_tokenizer, [TEXT], stride=1, start=start)
        assert scores["loss"].value == pytest.approx(np.mean(recomputed_nats(llama, sequence, 32)), rel=1e-5)
    with pytest.raises(EvaluationError, match="the tokenizer has no bos token; allowed: auto, none"):
        perplexity(llama, byte_tokenizer, [TEXT], start="bos")


def test_bos_stands_first_where_the_tokenizer_begins_prompts_with_it():
    tokenizer = Tokenizer.train([TEXT], kind="byte", special_tokens=("<s>", "</s>"))
    definition = {**tokenizer._definition}
    begun = Tokenizer(definition, {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True})
    model = uniform(begun.vocab_size)
    assert "|start:bos|end:eos|" in perplexity(model, begun, [TEXT])["loss"].signature
    plain = Tokenizer(definition, {"bos_token": "<s>", "eos_token": "</s>"})
    assert "|start:eos|end:eos|" in perplexity(model, plain, [TEXT])["loss"].signature


@pytest.mark.parametrize(
    ("settings", "text", "why"),
    [
        ({"kind": "char"}, "The cat sat on a zebra.\n", r"1 of 1 documents .* \(3 tokens are unknown\)"),
        (
            {"kind": "char", "lower": True},
            "The Cat",
            "1 of 1 documents do not decode to their text$",
        ),
        ({"kind": "word"}, "the  cat sat", "do not decode to their text"),
    ],
)
def test_what_tokens_lose_is_not_scored_as_free(settings, text, why):
    """A flattering number is refused, and the reason given."""
    tokenizer = Tokenizer.train(["the cat sat on a mat The Cat.\n"], **settings)
    score = perplexity(uniform(tokenizer.vocab_size), tokenizer, [text])["bits_per_byte"]
    assert score.value is None
    assert score.interval is None
    assert re.search(why, score.note)


def test_unknown_tokens_are_counted_and_noted():
    tokenizer = Tokenizer.train(["the cat"], kind="char")
    scores = perplexity(uniform(tokenizer.vocab_size), tokenizer, ["the zebra", "the cat"])
    assert scores.counts["unknown_tokens"] == 3  # z, b, r
    assert scores["bits_per_byte"].value is None  # whichever document comes last
    assert any(note.startswith("3 tokens (16.67%) are unknown") for note in scores.notes)
    assert scores["perplexity"].value == pytest.approx(tokenizer.vocab_size, rel=1e-5)


def test_bytes_that_are_no_text(llama, byte_tokenizer):
    raw = bytes(range(256))
    scores = perplexity(llama, byte_tokenizer, [raw])
    assert scores.counts["bytes"] == 256
    assert scores["bits_per_byte"].value == pytest.approx(scores.counts["nats"] / math.log(2) / 256)


# ------------------------------------------------------------------------------------- per word


def test_word_perplexity_counts_words_and_line_ends(llama, byte_tokenizer):
    text = " no it was n't black monday \n but while <unk> \n"
    scores = perplexity(llama, byte_tokenizer, [text], per_word=True)
    assert (scores.counts["words"], scores.counts["lines"]) == (9, 2)
    assert scores["word_perplexity"].value == pytest.approx(math.exp(scores.counts["nats"] / 11))
    assert "|per:words+lines|" in scores["word_perplexity"].signature


def test_bytes_of_tokens_stand_beside_their_tokens():
    """What intervals over blocks divide by: each token's own bytes, none for what stands before and after."""
    tokenizer = Tokenizer.train([TEXT * 3], kind="bpe", vocab_size=300)
    text = Reader(tokenizer, start="auto", end="auto", specials="refuse").read("The cat – did not mind.")
    spelled = [len(tokenizer.decode_bytes([i])) for i in text.sequence[1:-1]]
    assert text.token_bytes.tolist() == [0, *spelled, 0]
    assert text.token_bytes.sum() == text.bytes == len("The cat – did not mind.".encode())


@pytest.mark.skipif("WORDLOOM_DATA" not in os.environ, reason="WORDLOOM_DATA is not set")
@pytest.mark.parametrize(("name", "published"), [("ptb/test", 82_430), ("wikitext-2/test", 245_569)])
def test_words_and_lines_are_the_published_counts(byte_tokenizer, name, published):
    reader = Reader(byte_tokenizer, start="auto", end="auto", specials="text")
    texts = [reader.read(document) for document in documents(name)]
    assert sum(text.words + text.lines for text in texts) == published


def test_line_ends_that_tokens_drop_are_not_counted_as_words():
    text = "the cat sat\nthe dog sat\n"
    tokenizer = Tokenizer.train([text], kind="word", split="whitespace")
    scores = perplexity(uniform(tokenizer.vocab_size), tokenizer, [text], per_word=True)
    assert scores["bits_per_byte"].value is None
    keeps_lines = "\n" in tokenizer.decode(tokenizer.encode_ids(text))
    n = 8 if keeps_lines else 6
    assert f"|per:{'words+lines' if keeps_lines else 'words'}|" in scores["word_perplexity"].signature
    assert scores["word_perplexity"].value == pytest.approx(math.exp(scores.counts["nats"] / n))


def test_word_perplexity_is_refused_where_words_are_lost():
    tokenizer = Tokenizer.train(["the cat"], kind="word")
    scores = perplexity(uniform(tokenizer.vocab_size), tokenizer, ["the zebra"], per_word=True)
    for name in ("word_perplexity", "word_bits_per_byte"):
        assert scores[name].value is None
        assert "1 tokens are unknown" in scores[name].note


def test_words_whose_white_space_is_lost_still_have_bits_per_byte():
    """The bytes are those of the words set one space apart; a text's own <unk> is one of them."""
    text = "  the  <unk> sat\n ein Käse  "
    tokenizer = Tokenizer.train([text], kind="word", split="whitespace", special_tokens=["<unk>", "<eos>"])
    scores = perplexity(uniform(tokenizer.vocab_size), tokenizer, [text], per_word=True, specials="text")
    assert scores["bits_per_byte"].value is None
    size = len("the <unk> sat\nein Käse\n".encode())
    assert scores["word_bits_per_byte"].value == pytest.approx(scores.counts["nats"] / math.log(2) / size)
    assert scores.counts["tokens"] == 6


# ------------------------------------------------------------------- signatures and intervals


def test_signature_states_what_decides_the_number(llama, byte_tokenizer):
    scores = perplexity(llama, byte_tokenizer, [TEXT], window=16, stride=4)
    name, text, tok, *rest = scores["bits_per_byte"].signature.split("|")
    assert name == "bits_per_byte"
    assert text.startswith("text:")
    assert tok == f"tok:byte-258-{byte_tokenizer.fingerprint[:6]}"
    assert rest[:5] == ["window:16", "stride:4", "start:eos", "end:eos", "dtype:fp32"]
    assert rest[-1].startswith("v:")
    half = perplexity(build(LlamaConfig(
        vocab_size=258, max_seq_len=16, dim=8, n_layers=1, n_heads=2, hidden_dim=8
    )).bfloat16(), byte_tokenizer, [TEXT])  # fmt: skip
    assert "|dtype:bf16|" in half["loss"].signature


def test_signature_names_the_text_not_the_tokens(llama, byte_tokenizer, char_model, char_tokenizer):
    def text_of(model, tokenizer, documents):
        return perplexity(model, tokenizer, documents)["loss"].signature.split("|")[1]

    documents = ["The cat sat.", "A dog, too."]
    assert text_of(llama, byte_tokenizer, documents) == text_of(char_model, char_tokenizer, documents)
    others = [["The cat sat."], ["The cat sat.A", " dog, too."], ["The cat sat.", "A dog, too?"]]
    seen = {text_of(llama, byte_tokenizer, d) for d in [documents, *others]}
    assert len(seen) == 4


def test_interval_is_over_documents_or_blocks(llama, byte_tokenizer):
    documents = [TEXT[i : i + 20] for i in range(25)]
    scores = perplexity(llama, byte_tokenizer, documents)
    assert "|ci:25-documents|" in scores["loss"].signature
    for score in scores.scores:
        low, high = score.interval
        assert low < score.value < high
    assert scores["perplexity"].interval == pytest.approx([math.exp(x) for x in scores["loss"].interval])
    few = perplexity(llama, byte_tokenizer, documents[:3])
    assert "|ci:no|" in few["loss"].signature
    assert few["loss"].interval is None
    long = perplexity(llama, byte_tokenizer, [TEXT * 60], stride=32)
    blocks = -(-(len(TEXT) * 60 + 1) // 256)
    assert f"|ci:{blocks}-blocks|" in long["loss"].signature
    low, high = long["bits_per_byte"].interval
    assert low < long["bits_per_byte"].value < high


# ---------------------------------------------------------------------------------- behaviour


def test_the_model_is_left_as_it_was(llama, byte_tokenizer):
    """Dropout is off while scoring, and training goes on after it."""
    llama.train()
    try:
        first, second = (perplexity(llama, byte_tokenizer, [TEXT])["loss"].value for _ in range(2))
        assert first == second
        assert llama.training
        assert all(p.requires_grad and p.grad is None for p in llama.parameters())
    finally:
        llama.eval()
    assert perplexity(llama, byte_tokenizer, [TEXT])["loss"].value == first


def test_progress_adds_up(llama, byte_tokenizer):
    steps = []
    scores = perplexity(llama, byte_tokenizer, [TEXT, "a"], window=8, progress=lambda *s: steps.append(s))
    n_bytes, n_tokens, nats = (sum(column) for column in zip(*steps, strict=True))
    assert n_bytes == pytest.approx(scores.counts["bytes"])
    assert n_tokens == scores.counts["tokens"]
    assert nats == pytest.approx(scores.counts["nats"])


def test_documents_are_read_as_they_are_needed(llama, byte_tokenizer):
    """Ten thousand documents are never all held: the last is read long after the first is scored."""
    ahead = read = done = 0

    def documents():
        nonlocal read
        for _ in range(10_000):
            read += 1
            yield "cat"

    class EnoughError(Exception):
        pass

    def progress(_bytes, _tokens, _nats):
        nonlocal done, ahead
        done += 1
        ahead = max(ahead, read - done)
        if done == 200:
            raise EnoughError

    with pytest.raises(EnoughError):
        perplexity(llama, byte_tokenizer, documents(), batch_size=2, progress=progress)
    assert ahead <= likelihood.POOL_BATCHES * 2


def test_mistakes(llama, byte_tokenizer):
    def scored(documents=(TEXT,), model=llama, **settings):
        return perplexity(model, byte_tokenizer, documents, **settings)

    for settings, message in [
        ({"window": 33}, "window 33 does not fit the model; allowed: 1 to its max_seq_len 32"),
        ({"window": 0}, "window 0 does not fit"),
        ({"stride": 33}, "stride 33 would leave tokens out; allowed: 1 to the window, 32"),
        ({"stride": 0}, "stride 0 would leave tokens out"),
        ({"batch_size": 0}, "batch_size is a number of windows above 0, not 0"),
        ({"start": "eod"}, "unknown start 'eod'; allowed: auto, bos, eos, none"),
        ({"end": "bos"}, "unknown end 'bos'; allowed: auto, eos, none"),
        ({"documents": []}, "there is no token to score"),
        ({"documents": ["", ""]}, "the text is empty"),
        ({"model": uniform(200)}, "the tokenizer has 258 tokens and the model 200"),
    ]:
        with pytest.raises(EvaluationError, match=message):
            scored(**settings)
    eos = byte_tokenizer.id_to_token(byte_tokenizer.eos_id)
    with pytest.raises(TokenizerError, match=r"^books\.txt, document 3: .*" + eos.replace("|", r"\|")):
        scored([Document(f"text with {eos} in it", "books.txt", 2)])
    assert "|specials:text|" in scored([f"with {eos}"], specials="text")["loss"].signature


def test_a_broken_model_is_named_not_averaged(byte_tokenizer):
    model = uniform(258)
    with torch.no_grad():
        model.lm_head.weight[3] = float("nan")
    with pytest.raises(NonFiniteError, match=r"document 1, token 1: the model gives no finite probability"):
        perplexity(model, byte_tokenizer, [TEXT])


def test_a_loss_beyond_the_largest_float_has_an_infinite_perplexity(char_tokenizer):
    """Above 709 nats e^loss is no float: per token, per word, per passage, and for masked tokens."""
    sizes = {"max_seq_len": 32, "dim": 24, "n_layers": 1, "n_heads": 4}
    model = build(LlamaConfig(vocab_size=char_tokenizer.vocab_size, **sizes)).eval()
    wordy = perplexity(model, char_tokenizer, ["dog" * 400], per_word=True)
    assert math.isfinite(wordy["perplexity"].value)
    assert wordy["word_perplexity"].value == math.inf
    passage = Passage("The cat ", "sat" * 10)
    with torch.no_grad():
        model.lm_head.weight.mul_(1e6)
    assert perplexity(model, char_tokenizer, ["dog cat"] * 25)["perplexity"].value == math.inf
    assert lambada(model, char_tokenizer, [passage])["perplexity"].value == math.inf
    assert perplexity_score("perplexity", 1.0, (1.0, 800.0), "").interval == (math.e, math.inf)
    assert perplexity_score("perplexity", 1.0, None, "").interval is None


@pytest.mark.parametrize("joined", [False, True])
def test_empty_documents_are_left_out_and_counted(llama, byte_tokenizer, joined):
    """As by wordloom.data.prepare: a model never sees one in training."""
    full = [Document("The cat", "a", 0), "sat", b"down"]
    empty = [Document("", "a", 1), "", b""]
    with_empty = [empty[0], full[0], empty[1], *full[1:], empty[2]]
    expected = perplexity(llama, byte_tokenizer, full, joined=joined, per_word=True)
    scores = perplexity(llama, byte_tokenizer, iter(with_empty), joined=joined, per_word=True)
    assert scores.scores == expected.scores
    assert scores.counts == expected.counts
    assert scores.notes == (*expected.notes, "3 empty documents are left out, as in training")
    assert perplexity(llama, byte_tokenizer, ["", "cat"]).notes[-1].startswith("1 empty document is left")


def test_one_token_without_a_start_is_guessed_by_a_model_without_a_limit():
    tokenizer = Tokenizer.train(["ab"], kind="char", special_tokens=[])
    model = build(RNNConfig(vocab_size=2, dim=3)).eval()
    scores = perplexity(model, tokenizer, ["a", "ab", "b"])
    assert scores.counts["tokens"] == 1
    assert scores.counts["tokens_not_predicted"] == 3

"""Documents as bags of words: scikit-learn's numbers, the nearest by its cosines, the same from disk."""

from __future__ import annotations

import json
import os
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.metrics.pairwise import cosine_similarity

from wordloom.data import BagVectorizer, DocumentBags, texts_of
from wordloom.errors import CheckpointError, DataError
from wordloom.text import Tokenizer

TEXTS = ["The cat sat on the mat.", "a dog sat here", "", "stocks fell, stocks rose", "the CAT, the cat"]
FEATURES = ["tfidf", "binary", "counts"]


@pytest.fixture(scope="module")
def sentences() -> list[str]:
    """Real text: SST-2's training sentences, else the standard library's documentation."""
    if os.environ.get("WORDLOOM_DATA"):
        return list(texts_of("sst2/train"))
    return [line for text in texts_of("python-docs/validation") for line in text.splitlines()][:5000]


@pytest.mark.parametrize("max_ngram", [1, 2])
@pytest.mark.parametrize("features", FEATURES)
def test_rows_and_nearest_documents_are_scikit_learns(sentences, features, max_ngram):
    kept, queries = sentences[:-200], sentences[-200:]
    bags = DocumentBags.fit(iter(kept), features=features, split="whitespace", max_ngram=max_ngram)
    kind = TfidfVectorizer if features == "tfidf" else CountVectorizer
    binary = {"binary": True} if features == "binary" else {}
    peer = kind(token_pattern=r"\S+", ngram_range=(1, max_ngram), **binary)
    theirs = peer.fit_transform(kept)
    order = [peer.vocabulary_[term] for term in bags.vectorizer.terms]
    assert len(order) == theirs.shape[1]
    assert abs(bags.rows - theirs[:, order]).max() < 1e-6
    assert abs(bags.vectorize(queries) - peer.transform(queries)[:, order]).max() < 1e-6
    cosines = cosine_similarity(peer.transform(queries[:20]), theirs)
    for query, row in zip(queries[:20], cosines, strict=True):
        found = bags.nearest(query, topn=7)
        best = np.sort(row)[::-1][:7]
        assert [near.similarity for near in found] == pytest.approx(best[best > 0], abs=1e-6)
        assert [row[near.index] for near in found] == pytest.approx([near.similarity for near in found])
    assert bags.nearest(kept[3], topn=1)[0].similarity == pytest.approx(1.0)


@pytest.mark.parametrize("features", FEATURES)
@given(texts=st.lists(st.text("ab cD.", max_size=12), min_size=1, max_size=6), max_ngram=st.integers(1, 2))
def test_it_comes_back_from_disk_as_it_was(tmp_path_factory, features, texts, max_ngram):
    texts.append("A word.")
    bags = DocumentBags.fit(texts, features=features, max_ngram=max_ngram, lower=len(texts) % 2 == 0)
    bags.about = {"from": "hypothesis"}
    folder = tmp_path_factory.mktemp("bags")
    bags.save_pretrained(folder)
    again = DocumentBags.from_pretrained(folder)
    assert (len(again), again.features, again.about) == (len(texts), features, bags.about)
    assert again.vectorizer.fingerprint == bags.vectorizer.fingerprint
    for mine, theirs in ((bags.rows, again.rows), (bags.vectorize(texts), again.vectorize(texts))):
        assert (mine != theirs).nnz == 0
    assert again.nearest("a word", 3) == bags.nearest("a word", 3)
    assert sorted(path.name for path in folder.iterdir()) == [
        "bags.json",
        "bags.safetensors",
        "vocabulary.json",
    ]


def test_who_is_nearest():
    bags = DocumentBags.fit(TEXTS)
    assert bags.vectorizer.lower
    assert [near.index for near in bags.nearest("Cat")] == [4, 0]
    assert [near.index for near in bags.nearest("sat", topn=1)] == [1]  # the shorter of two
    assert bags.nearest("zebra") == bags.nearest("") == []
    assert DocumentBags.fit(TEXTS, lower=False).nearest("Cat") == []
    assert bags.counts.dtype == np.int32
    assert isinstance(bags.rows, csr_matrix)


def test_texts_are_read_once_and_not_held():
    class Text(str):
        pass

    alive: weakref.WeakSet[Text] = weakref.WeakSet()

    def stream():
        for number in range(3000):
            text = Text(f"text number {number}")
            alive.add(text)
            yield text
            assert len(alive) < 1000

    assert len(DocumentBags.fit(stream())) == 3000


def test_a_tokenizers_tokens_can_be_the_words(tmp_path):
    tokenizer = Tokenizer.train(TEXTS * 20, kind="bpe", vocab_size=280)
    bags = DocumentBags.fit(TEXTS, tokenizer=tokenizer)
    bags.save_pretrained(tmp_path)
    again = DocumentBags.from_pretrained(tmp_path)
    assert again.nearest("the cat sat") == bags.nearest("the cat sat") != []
    assert again.vectorizer.tokenizer.fingerprint == tokenizer.fingerprint


def test_a_folder_is_replaced_on_purpose_alone(tmp_path, monkeypatch):
    bags = DocumentBags.fit(TEXTS)
    bags.save_pretrained(tmp_path / "bags")
    other = DocumentBags.fit(TEXTS[:2], features="counts")
    with pytest.raises(CheckpointError, match="holds bags of words already"):
        other.save_pretrained(tmp_path / "bags")
    other.save_pretrained(tmp_path / "bags", overwrite=True)
    assert (DocumentBags.from_pretrained(tmp_path / "bags").rows != other.rows).nnz == 0
    (tmp_path / "model").mkdir()
    BagVectorizer(["a"]).save_pretrained(tmp_path / "model")
    for overwrite in (False, True):
        with pytest.raises(CheckpointError, match=r"something else, of which vocabulary\.json is a part"):
            bags.save_pretrained(tmp_path / "model", overwrite=overwrite)
    tokenizer = Tokenizer.train(TEXTS, kind="char")
    tokenizer.save_pretrained(tmp_path / "tokens")
    before = (tmp_path / "tokens" / "tokenizer.json").read_bytes()
    with pytest.raises(CheckpointError, match=r"of which tokenizer\.json is a part"):
        DocumentBags.fit(TEXTS, tokenizer=tokenizer).save_pretrained(tmp_path / "tokens", overwrite=True)
    assert (tmp_path / "tokens" / "tokenizer.json").read_bytes() == before
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="is a file; name a folder"):
        bags.save_pretrained(tmp_path / "file")
    with pytest.raises(CheckpointError, match="cannot write bags of words"):
        bags.save_pretrained(tmp_path / "file" / "bags")

    def full(*_, **__):
        raise SafetensorError("No space left on device")

    monkeypatch.setattr("safetensors.numpy.save_file", full)
    with pytest.raises(CheckpointError, match=r"cannot write bags of words.*No space left"):
        bags.save_pretrained(tmp_path / "full")


def test_damaged_bags_are_told(tmp_path):
    bags = DocumentBags.fit(TEXTS)
    bags.save_pretrained(tmp_path)
    described = json.loads((tmp_path / "bags.json").read_text())
    parts = load_file(tmp_path / "bags.safetensors")

    def damaged(says, *, description=described, **changed):
        (tmp_path / "bags.json").write_text(json.dumps(description))
        save_file({name: part for name, part in {**parts, **changed}.items() if part is not None},
                  tmp_path / "bags.safetensors")  # fmt: skip
        with pytest.raises(CheckpointError, match=says) as caught:
            DocumentBags.from_pretrained(tmp_path)
        assert "\n" not in str(caught.value)

    damaged("version 2, not 1", description={**described, "version": 2})
    damaged("are damaged", description={**described, "documents": 4})
    damaged("terms, the bags 3", description={**described, "terms": 3})
    damaged("are damaged", description={**described, "features": "tf-idf"}, idf=None)
    damaged("do not go with", description={**described, "features": "counts"})
    damaged("do not go with", idf=None)
    damaged("not one number for each term", idf=parts["idf"][:-1])
    damaged("not one number for each term", idf=parts["idf"] * np.nan)
    damaged("are damaged", indices=parts["indices"] + 1000)
    damaged("are damaged", counts=None)
    (tmp_path / "bags.safetensors").write_bytes(b"cut")
    with pytest.raises(CheckpointError, match="are damaged"):
        DocumentBags.from_pretrained(tmp_path)
    (tmp_path / "bags.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"it has no bags\.safetensors"):
        DocumentBags.from_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"holds no bags of words: it has no bags\.json"):
        DocumentBags.from_pretrained(tmp_path / "nowhere")


def test_mistakes():
    read = []
    with pytest.raises(DataError, match="did you mean 'tfidf'"):
        DocumentBags.fit((read.append(text) or text for text in TEXTS), features="tf-idf")
    assert not read
    bags = DocumentBags.fit(TEXTS)
    for use in (DocumentBags.fit, bags.vectorize):
        with pytest.raises(DataError, match="texts is one string"):
            use("one text")
    with pytest.raises(DataError, match="topn 0"):
        bags.nearest("cat", 0)
    with pytest.raises(DataError, match="hold no words"):
        DocumentBags.fit(["", " "])


# -- the texts of documents --------------------------------------------------------------------------------


def test_the_texts_of_files_of_any_kind(tmp_path):
    (tmp_path / "t.txt").write_text("one\ntwo\n\nthree\n")
    (tmp_path / "t.tsv").write_text("label\ttext\n1\tfirst row\n0\tsecond\n")
    (tmp_path / "bare.csv").write_text('"first, row",1\nsecond,0\n')
    (tmp_path / "t.jsonl").write_text('{"text": "a", "body": "b"}\n')
    assert list(texts_of(tmp_path / "t.txt")) == ["one", "two", "", "three"]
    assert list(texts_of(tmp_path / "t.txt", separator="blank-line")) == ["one\ntwo", "three"]
    assert list(texts_of(tmp_path / "t.txt", separator="file")) == ["one\ntwo\n\nthree\n"]
    assert list(texts_of(tmp_path / "t.tsv")) == ["first row", "second"]
    assert list(texts_of(tmp_path / "t.tsv", field="label")) == ["1", "0"]
    assert list(texts_of(tmp_path / "bare.csv", field=1)) == ["first, row", "second"]
    assert list(texts_of(tmp_path / "t.jsonl")) == ["a"]
    assert list(texts_of(tmp_path / "t.jsonl", field="body")) == ["b"]
    with pytest.raises(DataError, match="holds rows, which nothing separates"):
        next(texts_of(tmp_path / "t.tsv", separator="line"))
    with pytest.raises(DataError, match="no file"):
        next(texts_of(tmp_path / "none.txt"))
    with pytest.raises(DataError, match="is plain text, which has no fields"):
        next(texts_of(tmp_path / "t.txt", field="body"))
    with pytest.raises(DataError, match="holds rows, which nothing separates"):
        next(texts_of(tmp_path / "t.jsonl", separator="line"))
    with pytest.raises(DataError, match=r"holds tables such as .* beside other files"):
        next(texts_of(tmp_path))
    for name in ("t.txt", "t.jsonl", "bare.csv"):
        (tmp_path / name).unlink()
    assert list(texts_of(tmp_path)) == ["first row", "second"]  # a folder of tables alone


def test_the_texts_of_named_sets():
    docs = list(texts_of("python-docs/validation"))
    assert any("\n" in text for text in docs)
    with pytest.raises(DataError, match="holds rows, which nothing separates"):
        next(texts_of("python-docs/validation", separator="file"))
    if os.environ.get("WORDLOOM_DATA"):
        assert len(list(texts_of("gutenberg/valid"))) == 9
        assert len(list(texts_of("gutenberg/valid", separator="file"))) == 1
        assert len(list(texts_of("sst2/dev"))) == 872

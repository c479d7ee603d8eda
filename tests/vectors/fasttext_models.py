"""fastText models to test with: the C++ tool's own, and made-up ones."""

import base64
import json
import tempfile
import warnings
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from wordloom.vectors import (
    FastTextArgs,
    FastTextModel,
    load_fasttext,
)

# Models of fastText 0.9.2 (the C++ tool, through its Python module, one thread) and what it answered, by
# getWordVector, getSubwords and predict.  Trained on 120 made-up lines, three of them in Latin-1.
REAL = json.loads(Path(__file__).with_name("fasttext_models.json").read_text())
SUPERVISED = [name for name, real in REAL["models"].items() if "predictions" in real]

ODD = ["naïve", "日本語", "🙂", "\u00a0", "</s>", "a b", "\n", "", "caf\udce9", "__label__x", "<a>"]
raw_bytes = st.binary(max_size=8).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
names = (st.sampled_from(ODD) | raw_bytes | text).filter(lambda name: "\0" not in name)
numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)


def real_model(name):
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # café in Latin-1
        path = Path(folder, "m.bin")
        path.write_bytes(base64.b64decode(REAL["models"][name]["file"]))
        return load_fasttext(path)


@st.composite
def models(draw, model=None, words=names, least=0):
    found = draw(st.lists(words, min_size=max(1, least), max_size=6, unique=True))
    model = model or draw(st.sampled_from(["cbow", "skipgram", "supervised"]))
    split = draw(st.integers(least, len(found))) if model == "supervised" else len(found)
    buckets, dim = draw(st.integers(0, 9)), draw(st.integers(1, 4))
    args = FastTextArgs(
        model=model,
        loss=draw(st.sampled_from(["hs", "ns", "softmax", "ova"])),
        dim=dim,
        buckets=buckets,
        min_n=draw(st.integers(0, 4)),
        max_n=draw(st.integers(0, 6)) if buckets else 0,
        word_ngrams=draw(st.integers(1, 3)) if buckets else 1,
        window=draw(st.integers(1, 9)),
        sample=draw(st.floats(0, 1)),
    )
    counts = np.sort(draw(arrays(np.int64, len(found), elements=st.integers(1, 2**40))))[::-1]
    classes = len(found) - split if model == "supervised" else split
    return FastTextModel(
        args=args,
        words=found[:split],
        counts=counts[:split],
        labels=found[split:],
        label_counts=counts[split:],
        input_matrix=draw(arrays(np.float32, (split + buckets, dim), elements=numbers)),
        output_matrix=draw(arrays(np.float32, (classes, dim), elements=numbers)),
        n_tokens=draw(st.integers(0, 2**50)),
    )


def small(V=5, L=0, seed=0, **settings):
    """A model with random rows."""
    settings = {"dim": 4, "buckets": 30, "model": "supervised" if L else "skipgram", **settings}
    args = FastTextArgs(**settings)
    rng = np.random.default_rng(seed)
    rows = V + args.buckets, L if L else V
    matrices = [rng.normal(size=(n, args.dim)).astype(np.float32) for n in rows]
    return FastTextModel(
        args=args,
        words=["the", "naïve", "日本語", "</s>", *(f"word{n}" for n in range(4, V))][:V],
        counts=np.arange(V, 0, -1),
        labels=[f"__label__{n}" for n in range(L)],
        label_counts=np.arange(L, 0, -1),
        input_matrix=matrices[0],
        output_matrix=matrices[1],
        n_tokens=1000,
    )


def equal(a, b):
    assert asdict(a.args) == asdict(b.args)
    assert (list(a.words), list(a.labels), a.n_tokens) == (list(b.words), list(b.labels), b.n_tokens)
    assert a.counts.tolist() == b.counts.tolist()
    assert a.label_counts.tolist() == b.label_counts.tolist()
    for name in ("input_matrix", "output_matrix"):
        assert getattr(a, name).tobytes() == getattr(b, name).tobytes()  # -0.0 too


def gensims_files():
    return Path(pytest.importorskip("gensim").__file__).parent / "test/test_data"

"""GloVe's kernel takes the twin's steps; its blocks give the same bits for any number of threads."""

import json
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.vectors.glove.twin import GloVeTwin, loss_and_gradients, weighting
from tests.vectors.made_shards import make_shards, zipf_documents

from wordloom.data import Corpus, prepare
from wordloom.errors import NonFiniteError, VectorError
from wordloom.vectors import Cooccurrences, GloVe, WordVocabulary, count_cooccurrences
from wordloom.vectors.glove.model import sorted_into_blocks

V = 60
PORTION = 900  # several portions to an epoch


@pytest.fixture(scope="module")
def counts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("counts")
    return count_cooccurrences(make_shards(folder, zipf_documents(400, V), V), window=6, cache=folder)


def make(**how):
    return GloVe(V, **{"dim": 13, "portion": PORTION, "parts": 4, "workers": 1, **how})


def twin_of(model, **how):
    arrays, _ = model.state()
    words, contexts = arrays["word_rows"], arrays["context_rows"]
    return GloVeTwin(words[:, :-1], words[:, -1], contexts[:, :-1], contexts[:, -1], **how)


def parameters(model):
    if isinstance(model, GloVeTwin):
        squares = model.squares
        return {
            "word_rows": np.column_stack([model.w, model.b]),
            "context_rows": np.column_stack([model.w_context, model.b_context]),
            "word_squares": np.column_stack([squares["w"], squares["b"]]),
            "context_squares": np.column_stack([squares["w_context"], squares["b_context"]]),
        }
    return model.state()[0]


def as_trained(records, parts=4, portion=PORTION):
    """The records in the order that deterministic mode has, portion by portion, by its definition."""
    trained = []
    for start in range(0, len(records), portion):
        part = records[start : start + portion]
        for distance in range(parts):
            for row in range(parts):
                mine = (part["i"] % parts == row) & (part["j"] % parts == (row + distance) % parts)
                trained.append(part[mine])
    return np.concatenate(trained)


def same_bits(one, two):
    ours, theirs = one.state()[0], two.state()[0]
    return all(ours[name].tobytes() == theirs[name].tobytes() for name in ours)


# -- the twin ------------------------------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1), st.floats(0.1, 1000))
def test_the_twins_gradients_are_finite_differences(seed, x):
    rng = np.random.default_rng(seed)
    f = weighting(x)
    values = rng.normal(size=12)  # w [5], b, w~ [5], b~

    def loss(v):
        return loss_and_gradients(v[:5], v[5], v[6:11], v[11], x, f)[0]

    _, w, b, context, b_context = loss_and_gradients(values[:5], values[5], values[6:11], values[11], x, f)
    numeric = [(loss(values + h) - loss(values - h)) / 2e-5 for h in 1e-5 * np.eye(12)]
    np.testing.assert_allclose(np.concatenate([w, [b], context, [b_context]]), numeric, rtol=1e-5, atol=1e-7)


def test_the_weighting_is_equation_9():
    assert weighting(100.0) == weighting(1e6) == 1.0
    assert weighting(10.0) == pytest.approx(0.1**0.75)
    assert weighting(4.0, x_max=16.0, alpha=0.5) == pytest.approx(0.5)


# -- the kernel ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [{}, {"x_max": 10.0, "alpha": 0.5, "learning_rate": 0.1}])
@pytest.mark.parametrize("dim", [1, 6, 14, 33])
def test_the_kernel_takes_the_twins_steps(counts, dim, how):
    """In the records' order, one thread: parameters and sums of squares, after each of five epochs."""
    model = make(dim=dim, deterministic=False, **how)
    twin = twin_of(model, **how)
    for epoch in range(1, 6):
        model.train(counts, epochs=epoch)
        loss = twin.train(counts.records)
        assert model.losses[-1] == pytest.approx(loss, rel=1e-6)
        for name, expected in parameters(twin).items():
            found = parameters(model)[name]
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6, err_msg=name)


def test_deterministic_mode_takes_the_twins_steps_in_its_order(counts):
    model = make(deterministic=True, workers=2)
    twin = twin_of(model)
    order = as_trained(counts.records)
    assert np.array_equal(np.sort(order), np.sort(counts.records))
    for epoch in range(1, 6):
        model.train(counts, epochs=epoch)
        assert model.losses[-1] == pytest.approx(twin.train(order), rel=1e-6)
    for name, expected in parameters(twin).items():
        np.testing.assert_allclose(parameters(model)[name], expected, rtol=1e-5, atol=1e-6, err_msg=name)


def test_the_kernels_steps_are_finite_differences(tmp_path):
    """One record: what each parameter moved by, over the learning rate, is the slope of equation 8 / 2."""
    counts = count_cooccurrences(make_shards(tmp_path, [[2, 5]], 7), symmetric=False, cache=tmp_path)
    assert counts.records.tolist() == [(5, 2, 1.0)]
    model = GloVe(7, dim=9, learning_rate=1e-3, workers=1)
    before = {name: array.astype(np.float64) for name, array in parameters(model).items()}
    rows = np.concatenate([before["word_rows"][5], before["context_rows"][2]])
    rows[9] += 2.0  # a bias large enough for slopes to stand out of the rounding
    arrays, numbers = model.state()
    arrays["word_rows"][5, 9] += 2.0
    model.restore(arrays, numbers)
    model.train(counts, epochs=1)
    after = parameters(model)
    moved = np.concatenate([after["word_rows"][5], after["context_rows"][2]]) - rows

    def loss(v):
        w, b, context, b_context = v[:9], v[9], v[10:19], v[19]
        return weighting(1.0) * (w @ context + b + b_context - np.log(1.0)) ** 2 / 2

    slopes = np.array([(loss(rows + h) - loss(rows - h)) / 2e-5 for h in 1e-5 * np.eye(20)])
    np.testing.assert_allclose(moved, -1e-3 * slopes, rtol=1e-3, atol=2e-7)
    assert abs(slopes[9]) > 0.05
    others = np.delete(np.arange(7), 5)
    assert np.array_equal(after["word_rows"][others], before["word_rows"][others].astype(np.float32))


def test_the_first_vectors_are_drawn_as_the_authors_draw_them():
    arrays, numbers = make(dim=50, seed=3).state()
    for name in ("word_rows", "context_rows"):
        assert np.abs(arrays[name]).max() <= 0.5 / 50
        assert arrays[name].std() == pytest.approx(1 / np.sqrt(12) / 50, rel=0.05)
    assert np.all(arrays["word_squares"] == 1)
    assert np.all(arrays["context_squares"] == 1)
    assert numbers["epoch"] == 0
    again, other = make(dim=50, seed=3).state()[0], make(dim=50, seed=4).state()[0]
    assert np.array_equal(again["word_rows"], arrays["word_rows"])
    assert not np.array_equal(other["word_rows"], arrays["word_rows"])
    assert not np.array_equal(arrays["word_rows"], arrays["context_rows"])


def test_it_learns_what_it_is_to_learn(counts):
    """Products come near the logarithms of the counts, the frequent ones' most: those deviate by 0.75."""
    model = make(dim=30, workers=1)
    model.train(counts, epochs=400)
    assert model.losses[-1] < 0.02 * model.losses[0]
    frequent = counts.records[counts.records["x"] > 20]
    b, b_context = model.biases()
    products = (model.vectors("words")[frequent["i"]] * model.vectors("contexts")[frequent["j"]]).sum(axis=1)
    error = products + b[frequent["i"]] + b_context[frequent["j"]] - np.log(frequent["x"])
    assert np.sqrt(np.mean(error**2)) < 0.05


# -- threads -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [4, 16])
def test_the_same_bits_for_any_number_of_threads(counts, parts):
    models = [make(workers=workers, parts=parts) for workers in (1, 2, 3, 4, 20)]
    for model in models:
        model.train(counts, epochs=3)
    assert all(same_bits(model, models[0]) for model in models)
    assert all(model.losses == models[0].losses for model in models)


def test_hogwild_comes_as_near(counts):
    """Two threads that write over one another's steps reach the loss of one."""
    one, two = (make(deterministic=False, workers=workers) for workers in (1, 2))
    one.train(counts, epochs=20)
    two.train(counts, epochs=20)
    assert two.losses[-1] == pytest.approx(one.losses[-1], rel=0.1)
    again = make(deterministic=False, workers=1)
    again.train(counts, epochs=20)
    assert same_bits(one, again)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 300), st.sampled_from([1, 2, 8]), st.integers(0, 2**32 - 1))
def test_blocks_of_a_diagonal_share_no_part(n, parts, seed):
    rng = np.random.default_rng(seed)
    cells = rng.integers(0, 40, size=(n, 3)).astype(np.uint32)
    cells[:, 2] = np.arange(n)
    out, blocks = sorted_into_blocks(cells, parts, 2)
    assert sorted(out[:, 2].tolist()) == list(range(n))
    covered = []
    for diagonal in blocks:
        mine = [out[begin:end] for begin, end in diagonal]
        for block in mine:
            assert np.all(np.diff(block[:, 2].astype(np.int64)) > 0)  # their order is kept
        for side in (0, 1):
            owners = [set((block[:, side] % parts).tolist()) for block in mine]
            assert all(len(owner) <= 1 for owner in owners)
            assert len(set().union(*owners)) == sum(map(len, owners))
        covered += [(int(begin), int(end)) for begin, end in diagonal]
    assert covered[0][0] == 0
    assert covered[-1][1] == n
    assert all(a[1] == b[0] for a, b in pairwise(covered))


# -- stopping and going on -----------------------------------------------------------------------------


@pytest.mark.parametrize("deterministic", [True, False])
def test_going_on_is_as_if_never_stopped(counts, deterministic):
    """Stopped after every portion, each time taken up by a new object from what JSON and arrays keep."""
    straight = make(deterministic=deterministic)
    assert straight.train(counts, epochs=3)
    arrays, numbers = make(deterministic=deterministic).state()
    stops = 0
    while True:
        model = make(deterministic=deterministic, workers=2 if deterministic else 1, seed=99)
        model.restore(arrays, json.loads(json.dumps(numbers)))
        asked = iter([False, True])
        if model.train(counts, epochs=3, stop=lambda asked=asked: next(asked)):
            break
        stops += 1
        arrays, numbers = model.state()
    portions = -(-len(counts) // PORTION)
    assert stops == 3 * portions - 1
    assert same_bits(model, straight)
    assert model.losses == straight.losses
    assert (model.epoch, model.position, model.seed) == (3, 0, 1)


def test_a_portion_broken_off_is_not_taken_for_whole(counts, monkeypatch):
    model, straight = make(), make()
    saved = model.state()
    monkeypatch.setattr(model, "_descend", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        model.train(counts, epochs=1)
    for go_on in (model.state, lambda: model.train(counts, epochs=1)):
        with pytest.raises(VectorError, match="interrupted within a portion; restore the last saved state"):
            go_on()
    monkeypatch.undo()
    model.restore(*saved)
    model.train(counts, epochs=1)
    straight.train(counts, epochs=1)
    assert same_bits(model, straight)


def test_more_epochs_go_on_from_the_last(counts):
    straight, twice = make(), make()
    straight.train(counts, epochs=4)
    twice.train(counts, epochs=1)
    twice.train(counts, epochs=4)
    assert same_bits(straight, twice)
    assert twice.train(counts, epochs=4)  # nothing left to do
    assert same_bits(straight, twice)


def test_progress_is_told_after_each_portion(counts):
    told = []
    model = make()
    model.train(counts, epochs=2, progress=told.append)
    assert [(step.epoch, step.records) for step in told] == [
        (epoch, min(end, len(counts)))
        for epoch in (1, 2)
        for end in range(PORTION, len(counts) + PORTION, PORTION)
    ]
    assert [step.loss for step in told if step.records == len(counts)] == model.losses


def test_a_state_of_other_settings_is_refused(counts):
    arrays, numbers = make().state()
    for other in ({"dim": 14}, {"alpha": 0.5}, {"portion": 5}, {"parts": 8}, {"deterministic": False}):
        with pytest.raises(VectorError, match=f"the saved state has {next(iter(other))} "):
            make(**other).restore(arrays, numbers)
    with pytest.raises(VectorError, match="damaged: word_rows is missing and"):
        make().restore({}, numbers)
    with pytest.raises(VectorError, match=r"damaged: word_squares is \[59, 14\] and must be \[60, 14\]"):
        make().restore({**arrays, "word_squares": arrays["word_squares"][1:]}, numbers)


def test_an_epoch_is_of_one_corpus(tmp_path, counts):
    other = count_cooccurrences(make_shards(tmp_path, zipf_documents(9, V), V), cache=tmp_path)
    model = make()
    asked = iter([False, True])
    assert not model.train(counts, stop=lambda: next(asked))
    with pytest.raises(VectorError, match="epoch 1 started with other co-occurrences"):
        model.train(other)
    with pytest.raises(VectorError, match="the co-occurrences have 60 words and the vectors 5"):
        GloVe(5).train(counts)


def test_records_beyond_the_vocabulary_are_refused(tmp_path):
    counts = count_cooccurrences(make_shards(tmp_path, zipf_documents(9, V), V), cache=tmp_path)
    path = counts.folder / "records.bin"
    path.write_bytes(b"\xff" * 8 + path.read_bytes()[8:])
    with pytest.raises(VectorError, match=r"is damaged: it has a word beyond the 60 of the vocabulary"):
        make().train(Cooccurrences(counts.folder), epochs=1)


def test_records_are_checked_in_every_epoch(tmp_path):
    """A call that starts in mid-epoch meets the first records only in the epoch after."""
    counts = count_cooccurrences(make_shards(tmp_path, zipf_documents(9, V), V), cache=tmp_path)
    model = make()
    asked = iter([False, True])
    assert not model.train(counts, stop=lambda: next(asked))
    assert 0 < model.position < len(counts)
    path = counts.folder / "records.bin"
    path.write_bytes((V).to_bytes(4, "little") + path.read_bytes()[4:])  # one word beyond the last
    with pytest.raises(VectorError, match=r"is damaged: it has a word beyond the 60 of the vocabulary"):
        model.train(Cooccurrences(counts.folder), epochs=2)
    assert (model.epoch, model.position) == (1, 0)


def test_a_loss_that_is_no_number_ends_training(counts):
    model = make(learning_rate=1e30)
    with pytest.raises(NonFiniteError, match=r"the loss became (inf|nan) in epoch 1.*lower learning_rate"):
        model.train(counts, epochs=3)
    with pytest.raises(VectorError, match="interrupted within a portion; restore the last saved state"):
        model.state()


# -- on text -------------------------------------------------------------------------------------------


def test_shakespeare_from_text_to_neighbours(data, tmp_path):
    """Through all that a user calls; kings go with their names, verbs with their other forms."""
    corpus = Corpus(sources=str(data / "tiny-shakespeare" / "input.txt.gz"), validation_fraction=0.0)
    vocabulary = WordVocabulary.count((piece.text for piece in corpus.pieces("train")), min_count=5)
    shards = prepare(corpus, vocabulary, part="train", cache=tmp_path)
    counts = count_cooccurrences(shards, cache=tmp_path)
    model = GloVe(len(vocabulary), dim=50, x_max=10)
    model.train(counts, epochs=15)
    assert model.losses == sorted(model.losses, reverse=True)
    vectors = model.keyed_vectors(vocabulary)

    def near(word):
        return {other for other, _ in vectors.most_similar(word, topn=10)}

    assert len(near("king") & {"richard", "edward", "henry", "warwick", "bolingbroke"}) >= 2
    assert len(near("hath") & {"been", "made", "have", "had", "has"}) >= 2
    assert near("brother") & {"father", "son", "sister", "clarence", "gloucester"}


# -- what comes out ------------------------------------------------------------------------------------


def test_vectors_are_sums_or_either_side(counts):
    model = make()
    model.train(counts, epochs=1)
    words, contexts = model.vectors("words"), model.vectors("contexts")
    assert words.shape == contexts.shape == (V, 13)
    assert not np.array_equal(words, contexts)
    assert np.array_equal(model.vectors(), words + contexts)
    assert np.array_equal(model.vectors("both"), np.hstack([words, contexts]))
    arrays, _ = model.state()
    assert np.array_equal(arrays["word_rows"], np.column_stack([words, model.biases()[0]]))
    assert np.array_equal(arrays["context_rows"], np.column_stack([contexts, model.biases()[1]]))
    with pytest.raises(VectorError, match="unknown output 'word'; did you mean 'words'"):
        model.vectors("word")


def test_keyed_vectors_carry_words_and_counts(counts):
    vocabulary = WordVocabulary([f"w{n}" for n in range(V)], range(2 * V, V, -1))
    model = make()
    keyed = model.keyed_vectors(vocabulary)
    assert keyed.index_to_key == vocabulary.words
    assert np.array_equal(keyed.vectors, model.vectors())
    assert np.array_equal(keyed.counts, vocabulary.counts)
    with pytest.raises(VectorError, match="the vocabulary has 2 words and the vectors 60"):
        model.keyed_vectors(WordVocabulary(["a", "b"], [2, 1]))


def test_training_needs_no_torch():
    """Importing it takes longer than counting a small corpus."""
    code = (
        "import sys, wordloom.vectors as v, wordloom.vectors.glove.cooccurrence_counting\n"
        "v.GloVe(5)\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "numba" in loaded
    assert "torch" not in loaded


def test_it_says_what_trains():
    assert "4 threads, deterministic, 4 x 4 blocks" in make(workers=4).describe()
    assert "2 threads, Hogwild" in make(workers=2, deterministic=False).describe()
    assert "1 thread, in order" in make(workers=1, deterministic=False).describe()


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"dim": 0}, "dim 0 is not allowed"),
        ({"workers": 0}, "workers 0 is not allowed"),
        ({"portion": 0}, "portion 0 is not allowed"),
        ({"parts": 12}, "parts 12 is not allowed; give a power of two"),
        ({"x_max": 0}, "x_max 0 is not allowed"),
        ({"alpha": -1}, "alpha -1 is not allowed"),
        ({"learning_rate": float("nan")}, "learning_rate nan is not allowed"),
    ],
)
def test_settings_out_of_range(how, says):
    with pytest.raises(VectorError, match=says):
        make(**how)


def test_epochs_out_of_range(counts):
    with pytest.raises(VectorError, match="epochs 0 is not allowed"):
        make().train(counts, epochs=0)

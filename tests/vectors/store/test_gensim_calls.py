"""Code written for gensim's KeyedVectors: one table of calls, made of both on the same vectors.

``wv`` is the vectors, ``w`` their words, ``v`` a copy of the numbers, ``at`` an empty folder.
"""

import warnings

import numpy as np
import pytest
from tests.vectors.conftest import as_gensim

from wordloom.errors import VectorError
from wordloom.vectors import KeyedVectors

ANSWERED_ALIKE = """
    len(wv)
    wv.vector_size
    wv.key_to_index
    wv.index_to_key[7]
    w[3] in wv
    5 in wv
    np.int64(5) in wv
    500 in wv
    -1 in wv
    None in wv
    2.5 in wv
    'unheard' in wv
    wv[w[3]]
    wv[3]
    wv[np.int64(3)]
    wv[[w[3], 4, w[3]]]
    wv[np.array([2, 4])]
    wv[w[3]].flags.writeable
    wv.get_vector(w[3], True).flags.writeable
    wv[[w[3]]].flags.writeable
    wv.get_index(w[3])
    wv.get_index(3)
    wv.get_index('unheard', -1)
    wv.get_index('unheard', default=0)
    wv.get_index(500, 7)
    wv.has_index_for(w[3])
    wv.has_index_for('unheard')
    wv.get_vector(w[3], True)
    wv.get_vector(3, norm=True)
    wv.word_vec(w[3], norm=True)
    wv.get_normed_vectors()
    wv.fill_norms() or wv.norms
    wv.fill_norms(True) or wv.norms
    wv.init_sims() or wv.norms
    wv.init_sims(replace=True) or wv.vectors
    wv.unit_normalize_all() or wv.most_similar(w[3])
    wv.get_mean_vector([w[1], 2, v[3]])
    wv.get_mean_vector([w[1], w[2]], [1, -3])
    wv.get_mean_vector([w[1], w[2]], np.array([0.5, 2]), False, True)
    wv.get_mean_vector([w[1], 'unheard', w[2]])
    wv.get_mean_vector([w[1], 'unheard', w[2]], [1, 2, 3], True, True, True)
    wv.get_mean_vector(['unheard'])
    wv.get_mean_vector(['unheard', 500], post_normalize=True)
    wv.get_mean_vector([w[1], w[2]], None, True, False, False)
    wv.get_mean_vector(v[:5], pre_normalize=False)
    wv.most_similar(w[0])
    wv.most_similar(7)
    wv.most_similar(v[0])
    wv.most_similar(v[:3])
    wv.most_similar([v[0], v[1]], [v[2]])
    wv.most_similar([w[0], w[1]], w[2])
    wv.most_similar([w[0], 4], [w[2]], 5)
    wv.most_similar(positive=[(w[0], 2.0), (4, 0.5), (v[3], -1)], negative=[(w[5], -0.1)])
    wv.most_similar(negative=[w[2]])
    wv.most_similar([w[0], w[0], w[1]])
    wv.most_similar(w[0], topn=None)
    wv.most_similar(w[0], topn=np.int64(4))
    wv.most_similar(w[0], topn=True)
    wv.most_similar(w[0], topn=0)
    wv.most_similar('unheard', topn=-3)
    wv.most_similar(w[0], [], 1000)
    wv.most_similar(w[0], [], 5, 100)
    wv.most_similar(w[0], [], 5, 100, 110)
    wv.most_similar(w[105], [], 20, 100, 110)
    wv.most_similar(w[0], [], None, 100, 110)
    wv.most_similar(w[0], clip_start=490, clip_end=2000)
    wv.most_similar(w[0], clip_start=20, clip_end=10)
    wv.most_similar(w[0], clip_end=-450)
    wv.most_similar(w[0], [], 5, 100, 110, 50)
    wv.most_similar(w[0], restrict_vocab=2000)
    wv.most_similar(w[0], [], 5, 0, None, None, Indexer())
    wv.most_similar([w[0], w[1]], w[2], topn=None, indexer=Indexer())
    wv.similar_by_word(w[0], 5, 100)
    wv.similar_by_key(w[0], 5, restrict_vocab=100)
    wv.similar_by_key(9)
    wv.similar_by_vector(v[0], 5, 100)
    wv.similar_by_vector(v[0], topn=None)
    wv.most_similar_cosmul(w[0])
    wv.most_similar_cosmul(w[0], w[1])
    wv.most_similar_cosmul([w[0], w[1]], [w[2]], 5)
    wv.most_similar_cosmul(v[0])
    wv.most_similar_cosmul([v[0], w[1]], v[2])
    wv.most_similar_cosmul(v[:2])
    wv.most_similar_cosmul(w[0], topn=None)
    wv.most_similar_cosmul('unheard', topn=0)
    wv.most_similar_to_given(w[0], w[10:20])
    wv.rank_by_centrality(w[:5])
    wv.rank_by_centrality(w[:5], False)
    wv.rank_by_centrality([*w[:5], 'unheard', 7], use_norm=False)
    wv.doesnt_match(w[:5])
    wv.doesnt_match([*w[:5], 'unheard'])
    wv.doesnt_match([1, 2, 3])
    wv.cosine_similarities(v[0], v[1:5])
    wv.distances(w[0])
    wv.distances(v[0], [w[1], 2])
    wv.distances(3, w[5:8])
    wv.distances(w[0], None)
    wv.distance(w[0], w[1])
    wv.similarity(w[0], 1)
    wv.n_similarity(w[:3], w[3:5])
    wv.n_similarity([*w[:3], 'unheard'], [w[4], v[5]])
    wv.n_similarity(['unheard'], w[:2])
    wv.relative_cosine_similarity(w[0], w[1])
    wv.relative_cosine_similarity(w[0], w[1], 3)
    wv.rank(w[0], w[1])
    wv.closer_than(w[0], w[1])[:20]
    wv.words_closer_than(w[0], w[1])[:20]
    wv.get_vecattr(w[5], 'count')
    wv.set_vecattr(w[5], 'count', 7) or wv.get_vecattr(5, 'count')
    wv.set_vecattr(w[5], 'color', 'red') or [wv.get_vecattr(w[5], 'color'), wv.get_vecattr(w[6], 'color')]
    wv.set_vecattr(w[5], 'x', 1.5) or wv.expandos['x']
    wv.sort_by_descending_frequency() or [wv.index_to_key, wv.vectors, wv.expandos['count']]
    wv.add_vector('new', v[0] * 2) and wv['new']
    wv.add_vector('new', v[0] * 2)
    wv.add_vectors('new', v[0]) or wv.most_similar('new', topn=3)
    wv.add_vectors(['new', w[0]], [v[5], v[6]]) or wv[['new', w[0]]]
    wv.add_vectors(['new', w[0]], v[5:7], None, True) or [wv.index_to_key[-1], wv[['new', w[0]]]]
    wv.__setitem__('new', v[0] + v[1]) or wv.most_similar('new')
    wv.__setitem__([w[3], 'new'], v[:2]) or wv[['new', w[3]]]
    wv.vectors_for_all(['unheard', w[5], w[2], w[5]]).index_to_key
    wv.vectors_for_all(['unheard', w[5], w[2]], False).vectors
    wv.vectors_for_all(w[:9], copy_vecattrs=True).get_vecattr(w[3], 'count')
    len(wv.vectors_for_all(['unheard']))
    type(wv)(4).add_vectors(['a', 'b'], np.eye(4)[:2])
    type(wv)(vector_size=4).vector_size
    len(type(wv)(4))
    filled(type(wv)(vector_size=4), ['a', 'b', 'c'], np.eye(4)[:3] + 1).most_similar('a', topn=1)
    wv.evaluate_word_analogies(questions)
    wv.evaluate_word_analogies(questions, 300)
    wv.evaluate_word_analogies(questions, 300, False, True)
    wv.evaluate_word_analogies(questions, dummy4unknown=True, similarity_function='most_similar')
    wv.evaluate_word_analogies(questions)[1][-1]['section']
    [(s['section'], len(s['correct']), len(s['incorrect'])) for s in wv.evaluate_word_analogies(questions)[1]]
    wv.evaluate_word_pairs(pairs)
    wv.evaluate_word_pairs(pairs, dummy4unknown=True)
    wv.evaluate_word_pairs(pairs, '\\t', 'utf8', 300, False, True)
    wv.evaluate_word_pairs(latin, ';', 'latin-1')
    wv.evaluate_word_pairs(pairs)[0][0]
    wv.evaluate_word_pairs(pairs)[1][1]
    wv.evaluate_word_pairs(pairs)[0].pvalue
    wv.evaluate_word_pairs(pairs)[-1]
    wv.save_word2vec_format(at / 'x.txt') or (at / 'x.txt').read_text()
    wv.save_word2vec_format(at / 'x', at / 'n', False, None, False, '*') or (at / 'x').read_text()
    wv.save_word2vec_format(at / 'x', fvocab=at / 'n') or (at / 'n').read_text()
    wv.save_word2vec_format(at / 'x', sort_attr='none') or (at / 'x').read_text()
    reread(wv, at / 'x', {'binary': True}, {'binary': True}).vectors
    reread(wv, at / 'x', {}, {'limit': 9, 'encoding': 'UTF-8'}).index_to_key
    reread(wv, at / 'x', {'write_header': False}, {'no_header': True}).vectors
    reread(wv, at / 'x', {'fvocab': at / 'n'}, {'fvocab': at / 'n'}).get_vecattr(w[9], 'count')
    wv.save(str(at / 'x.kv')) or wv.load(str(at / 'x.kv')).most_similar(w[0])
    wv.save(str(at / 'x.kv')) or wv.load(str(at / 'x.kv'), mmap='r').get_vecattr(w[0], 'count')
    wv.save(str(at / 'x.kv')) or wv.load(str(at / 'x.kv')).vectors.flags.writeable
    wv.save(str(at / 'x.kv')) or wv.load(str(at / 'x.kv'), 'r')[0].flags.writeable
"""

REFUSED_ALIKE = """
    wv['unheard']
    wv[[w[0], 'unheard']]
    wv[500]
    wv.get_vector(-1)
    wv.get_index('unheard')
    wv.get_index('unheard', None)
    wv.get_index(None)
    wv.get_vecattr('unheard', 'count')
    wv.get_vecattr(w[0], 'none')
    wv.most_similar('unheard')
    wv.most_similar([w[0]], [500])
    wv.most_similar([])
    wv.most_similar()
    wv.most_similar(v[0, :3])
    wv.most_similar([('unheard', 2.0)])
    wv.most_similar([(w[0], 'much')])
    wv.most_similar_cosmul('unheard')
    wv.most_similar_cosmul([])
    wv.most_similar_cosmul(negative=[w[0]])
    wv.most_similar_cosmul(v[0, :3])
    wv.similar_by_word('unheard')
    wv.similarity(w[0], 'unheard')
    wv.distance('unheard', w[0])
    wv.distances('unheard')
    wv.distances(w[0], [w[1], 'unheard'])
    wv.distances(v[0, :3])
    wv.cosine_similarities(v[0, :3], v)
    wv.closer_than(w[0], 'unheard')
    wv.rank('unheard', w[0])
    wv.most_similar_to_given(w[0], [])
    wv.most_similar_to_given(w[0], ['unheard'])
    wv.rank_by_centrality([])
    wv.doesnt_match(['unheard'])
    wv.get_mean_vector([])
    wv.get_mean_vector([w[0]], [1.0, 2.0])
    wv.get_mean_vector(['unheard'], ignore_missing=False)
    wv.relative_cosine_similarity(w[0], w[1], 0)
    wv.relative_cosine_similarity(w[0], 'unheard')
    wv.add_vectors(['a', 'b'], v[:2, :3])
    wv.evaluate_word_pairs(strangers)
    wv.evaluate_word_analogies(headless)
    wv.save_word2vec_format(at / 'x', fvocab=at / 'n', sort_attr='none')
    wv.vocab
    wv.index2word
    wv.index2entity
    wv.vectors_norm
    wv.no_such_thing
"""

# What the two do not do alike, as the module keyed lists it: what becomes of gensim, and our line.
REFUSED = {
    "wv[2.5]": (TypeError, "2.5 is not in the vocabulary of 500 words; give a word or the number of a row"),
    "wv[1:3]": (TypeError, "a slice is not in the vocabulary"),
    "wv.get_vector([w[0]])": (TypeError, "a list is not in the vocabulary of 500 words; give a word"),
    "wv.most_similar(2.5)": (TypeError, "2.5 is not in the vocabulary"),
    "wv.most_similar([None])": (TypeError, "None is not in the vocabulary"),
    "wv.most_similar([v[0].tolist(), ['x']])": (IndexError, "a vector must be numbers"),
    "wv.most_similar(w[0], topn=3.5)": (TypeError, "topn 3.5 is not a whole number"),
    "wv.most_similar(w[0], topn='3')": (TypeError, "topn '3' is not a whole number"),
    "wv.most_similar_cosmul(w[0], topn=3.5)": (TypeError, "topn 3.5 is not a whole number"),
    "wv.most_similar(w[0], restrict_vocab=2.5)": (TypeError, "restrict_vocab 2.5 is not a whole number"),
    "wv.most_similar(w[0], clip_start=2.5)": (TypeError, "2.5 is not a whole number"),
    "wv.most_similar(w[0], restrict_vocab=0)": (None, "restrict_vocab 0 leaves no words"),
    "wv.most_similar(w[0], indexer=3)": (AttributeError, r"indexer is a int without most_similar"),
    "wv.most_similar([(w[0], np.nan)])": (None, "a word or vector and its finite weight"),
    "wv.most_similar([(w[0],)])": (IndexError, "a word or vector and its finite weight"),
    "wv.most_similar(v[0] * np.nan)": (None, "not finite"),
    "wv.most_similar(v[None, :3])": (ValueError, r"shape \(3, 20\) was given where \[20\]"),
    "wv.most_similar_cosmul([(w[0], 2.0)])": ((TypeError, ValueError), "without weights"),
    "wv.n_similarity([], w[:2])": (ZeroDivisionError, "the mean of no words"),
    "wv.set_vecattr(w[0], 'count', 'many')": (TypeError, "'count' holds int64 and 'many' is object"),
    "wv.add_vectors([3], v[:1])": (None, "a word must be a str, and 3 is a int"),
    "wv.add_vectors(['a', 'a'], v[:2])": (None, "only 1 of 2 words are distinct"),
    "wv.add_vectors(['a'], v[:1] * np.inf)": (None, "not finite"),
    "wv.evaluate_word_analogies(questions, similarity_function='cosmul')": (None, "unknown similarity"),
    "wv.evaluate_word_analogies(one_broken)": (None, ":6: an analogy has four words"),
    "wv.evaluate_word_pairs(pair_broken)": (None, ":5: no two words and a number"),
    "wv.evaluate_word_pairs(pairs, encoding='klingon')": (LookupError, "unknown encoding: klingon"),
    "wv.save_word2vec_format(at / 'x', append=True)": (None, "a file of vectors is written completely"),
    "wv.save_word2vec_format(at / 'x', total_vec=900)": (None, "a file of vectors is written completely"),
    "wv.load_word2vec_format(text, encoding='latin-1')": (None, "must be UTF-8"),
    "wv.load_word2vec_format(text, unicode_errors='backslash')": (None, "unicode_errors is 'backslash'"),
    "wv.load_word2vec_format(text, datatype=np.float16)": (None, "vectors are float32, not"),
    "wv.load_word2vec_format(twice)": (None, "occurs twice"),
    "wv.load_word2vec_format(pairs, binary=True, no_header=True)": (NotImplementedError, "has a first line"),
    "(wv.save(str(at / 'x')), wv.load(str(at / 'x'), mmap='r+'))": (None, "would write to the folder"),
    "type(wv)(20, 5)": (None, "give words with their vectors, or only a number of components"),
    "type(wv)(vector_size=20, count=3)": (None, "add_vectors allocates"),
    "type(wv)(20, 0, np.float16)": (None, "vectors are float32"),
    "type(wv)(w[:3])": (TypeError, "give words with their vectors, or the number of components"),
    "type(wv)(0)": (None, "give words with their vectors, or the number of components"),
}


class Indexer:
    def most_similar(self, vector, num_neighbors):
        return [("given", float(vector.sum())), ("number", num_neighbors)]


def filled(wv, words, vectors):
    wv.add_vectors(words, vectors)
    return wv


def reread(wv, path, writing, reading):
    wv.save_word2vec_format(path, **writing)
    return wv.load_word2vec_format(path, **reading)


def rows(table):
    return [line.strip() for line in table.strip().splitlines()]


@pytest.fixture(scope="module")
def files(vectors, tmp_path_factory):
    """Questions about words whose vectors answer some of them, and pairs."""
    folder = tmp_path_factory.mktemp("files")
    rng = np.random.default_rng(4)
    w, unit = vectors.index_to_key, vectors.get_normed_vectors()
    lines = []
    for number in range(60):
        a, b, c, d = rng.choice(len(w), 4, replace=False)
        order = np.argsort(-(unit @ (unit[b] - unit[a] + unit[c])))
        best = next(row for row in order if row not in (a, b, c))
        lines.append(" ".join([w[a], w[b].upper(), w[c], w[d if number % 3 else best]]))
    lines[20:20] = [": second part", f"{w[0]} {w[1]} {w[2]} unheard"]
    scored = [(*rng.choice(w, 2, replace=False), round(rng.uniform(0, 10), 2)) for _ in range(60)]
    texts = {
        "questions": ": first\n" + "\n".join(lines) + "\n: third\n",
        "headless": "\n".join(lines[:5]) + "\n",
        "one_broken": ": x\n" + "\n".join([*lines[:4], f"{w[0]} {w[1]} {w[2]}", *lines[4:8]]) + "\n",
        "pair_broken": "".join(f"{a}\t{b}\t{s}\n" for a, b, s in scored[:4]) + f"{w[0]} {w[1]}\n",
        "text": f"3 2\n{w[0]} 1 2\n{w[1]} 3 4\n{w[2]} 5 6\n",
        "twice": f"3 2\n{w[0]} 1 2\n{w[1]} 3 4\n{w[0]} 5 6\n",
        "pairs": "# people\n" + "".join(f"{a}\t{b}\t{s}\n" for a, b, s in [*scored, (w[0], "unheard", 3.0)]),
        "strangers": "unheard\tof\t1\nof\tunheard\t2\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    latin = "".join(f"{a};{b};{s}\n" for a, b, s in scored) + "naïve;x;2\n"
    (folder / "latin").write_bytes(latin.encode("latin-1"))
    return {path.name: path for path in folder.iterdir()}


@pytest.fixture
def outcomes(vectors, files, tmp_path):
    """What becomes of a call of ours and of gensim's: an answer, or an exception."""
    counts = np.random.default_rng(3).integers(1, 60, len(vectors))
    theirs = as_gensim(vectors)
    for word, count in zip(vectors.index_to_key, counts.tolist(), strict=True):
        theirs.set_vecattr(word, "count", count)
    ours = KeyedVectors(vectors.index_to_key, vectors.vectors.copy(), counts=counts)

    def outcome(wv, call):
        at = tmp_path / type(wv).__module__
        at.mkdir(exist_ok=True)
        names = {"wv": wv, "w": vectors.index_to_key, "v": vectors.vectors.copy(), "at": at, "np": np}
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            try:
                return eval(call, {**names, **files, "Indexer": Indexer, "filled": filled, "reread": reread})
            except Exception as error:
                return error

    return lambda call: (outcome(ours, call), outcome(theirs, call))


def assert_same(ours, theirs):
    assert not isinstance(theirs, Exception), theirs
    assert not isinstance(ours, Exception), ours
    if isinstance(theirs, np.ndarray):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=2e-6)
    elif isinstance(theirs, dict):
        assert dict(ours).keys() == theirs.keys()
        assert_same(list(dict(ours).values()), list(theirs.values()))
    elif isinstance(theirs, list | tuple):
        assert isinstance(ours, list | tuple)
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_same(one, other)
    elif isinstance(theirs, float | np.floating):
        assert ours == pytest.approx(float(theirs), rel=1e-5, abs=2e-6)
    else:
        assert ours == theirs


@pytest.mark.parametrize("call", rows(ANSWERED_ALIKE))
def test_the_answer_is_gensims(outcomes, call):
    assert_same(*outcomes(call))


@pytest.mark.parametrize("call", rows(REFUSED_ALIKE))
def test_what_gensim_refuses_is_refused_with_the_same_kind_of_error(outcomes, call):
    ours, theirs = outcomes(call)
    assert isinstance(theirs, KeyError | ValueError | AttributeError), theirs
    assert isinstance(ours, type(theirs)), ours
    assert isinstance(ours, VectorError | AttributeError)
    assert "\n" not in str(ours)


@pytest.mark.parametrize("call", REFUSED)
def test_what_is_refused_otherwise_has_one_clear_line(outcomes, call):
    kind, says = REFUSED[call]
    ours, theirs = outcomes(call)
    assert isinstance(theirs, kind) if kind else not isinstance(theirs, Exception), theirs
    assert isinstance(ours, VectorError), ours
    assert "\n" not in str(ours)
    with pytest.raises(VectorError, match=says):
        raise ours


def test_what_is_answered_otherwise(outcomes, vectors):
    """The differences that the module lists and that are no refusals."""
    w = vectors.index_to_key
    ours, theirs = outcomes("wv[[]]")
    assert ours.shape == (0, 20)
    assert isinstance(theirs, ValueError)
    ours, theirs = outcomes("wv.most_similar_cosmul(w[0], restrict_vocab=50)")
    assert {word for word, _ in ours} <= set(w[:50])
    assert not {word for word, _ in theirs} <= set(w[:50])


def test_what_only_we_answer(outcomes, vectors):
    """Where gensim stumbles, or takes an argument and passes over it."""
    w = vectors.index_to_key
    ours, theirs = outcomes("wv.most_similar_cosmul(3)")
    assert ours == vectors.most_similar_cosmul(w[3])
    assert isinstance(theirs, Exception)


def test_vectors_may_be_lists(outcomes, vectors):
    ours, theirs = outcomes("wv.most_similar([v[0].tolist()])")
    assert ours == vectors.most_similar([vectors.vectors[0]])
    assert isinstance(theirs, Exception)


def test_a_vector_of_length_zero_is_near_nothing_and_equals_keep_their_order():
    words, values = ["none", "a", "b", "c"], np.array([[0, 0], [1, 0], [0, 2], [0, 1]], np.float32)
    ours, theirs = KeyedVectors(words, values), as_gensim(KeyedVectors(words, values))
    assert ours.similarity("none", "a") == theirs.similarity("none", "a") == 0
    with np.errstate(all="ignore"):
        assert np.isnan(dict(theirs.most_similar("a"))["none"])
    assert ours.most_similar("a") == [("none", 0), ("b", 0), ("c", 0)]

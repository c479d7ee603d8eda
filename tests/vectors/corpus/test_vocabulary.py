"""Counting: what is kept, what is pruned and said so, and a vocabulary as the tokenizer of a corpus."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wordloom.errors import VectorError
from wordloom.vectors import WordVocabulary, split_words
from wordloom.vectors.corpus import vocabulary as module
from wordloom.vectors.corpus.phrases import Phrases

texts = st.lists(st.text("abc ,.'", max_size=60), max_size=8)


def test_words_and_white_space():
    text = "That's a CUTE dog,\nisn’t it? 3.5 über_x"
    assert split_words(text) == ["that's", "a", "cute", "dog", "isn’t", "it", "3", "5", "über_x"]
    assert split_words(text, split="whitespace", lower=False) == text.split()
    marked = "_The_ snake_case _ __init__ _don’t_ हिन्दी cafe\u0301"
    assert split_words(marked) == ["the", "snake_case", "init", "don’t", "हिन्दी", "cafe\u0301"]


@given(st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"]), max_size=40))
def test_characters_beyond_the_first_plane_change_nothing_else(text):
    """Such texts have a pattern of their own, with the marks of their scripts."""
    adlam = "\U0001e900\U0001e922\U0001e944\U0001e922\U0001e923"
    assert split_words(adlam) == [adlam.lower()]
    assert split_words(f"{text} {adlam}") == [*split_words(text), adlam.lower()]


def test_a_vocabulary_is_complete_once_its_words_are_there(tmp_path, monkeypatch):
    """A resumed run takes vocabulary.tsv for the whole."""
    phrases = [Phrases({("new", "york"): 9.0})]
    vocabulary = WordVocabulary(["new_york"], [3], split="words", lower=True, phrases=phrases)
    monkeypatch.setattr(module, "write_text", interrupted)
    with pytest.raises(KeyboardInterrupt):
        vocabulary.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["phrases.json"]
    monkeypatch.undo()
    vocabulary.save(tmp_path)
    assert len(WordVocabulary.load(tmp_path, split="words", lower=True).phrases) == 1


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


@given(texts, st.integers(1, 4), st.sampled_from(["words", "whitespace"]))
def test_counting_is_counters(texts, min_count, split):
    seen = Counter(word for text in texts for word in split_words(text, split=split))
    kept = {word: n for word, n in seen.items() if n >= min_count}
    if not kept:
        with pytest.raises(
            VectorError, match="holds no words" if not seen else f"min_count {min_count} leaves"
        ):
            WordVocabulary.count(texts, min_count=min_count, split=split)
        return
    vocabulary = WordVocabulary.count(texts, min_count=min_count, split=split)
    assert vocabulary.words == sorted(kept, key=lambda word: (-kept[word], word))
    assert vocabulary.counts.tolist() == [kept[word] for word in vocabulary.words]
    assert vocabulary.report == (len(texts), seen.total(), len(seen), sum(kept.values()), 0)


def test_counting_takes_bounded_memory_and_says_so():
    """3 words are frequent, 1,000 occur twice, far apart: those are pruned and do not come back."""
    texts = [f"red green blue rare{i}" for i in range(1000)] * 2
    vocabulary = WordVocabulary.count(texts, min_count=2, most_words=50)
    assert vocabulary.words[:3] == ["blue", "green", "red"]
    assert vocabulary.counts[:3].tolist() == [2000] * 3
    assert len(vocabulary) == 3
    assert vocabulary.report.pruned_below >= 1
    assert vocabulary.report.distinct <= 50
    assert len(WordVocabulary.count(texts, min_count=2)) == 1003


def test_one_long_text_is_counted_in_bounded_memory_too(monkeypatch):
    monkeypatch.setattr("wordloom.vectors.corpus.vocabulary._AT_ONCE", 10)
    text = " ".join(f"red rare{i}" for i in range(500))
    vocabulary = WordVocabulary.count([text], min_count=1, most_words=20)
    assert vocabulary.words[0] == "red"
    assert vocabulary.counts[0] == 500
    assert len(vocabulary) <= 20


def test_pruning_raises_its_bar_by_one_as_the_c_tool_does():
    """The second time, what occurs twice goes as well."""
    once = WordVocabulary.count(["a a a b b c", "d"], min_count=1, most_words=3)
    assert (once.words, once.report.pruned_below) == (["a", "b"], 1)
    twice = WordVocabulary.count(["a a a b b c", "d", "e f"], min_count=1, most_words=3)
    assert (twice.words, twice.report.pruned_below) == (["a"], 2)


def test_the_most_frequent_are_kept():
    vocabulary = WordVocabulary.count(["a a a b b c c d"], min_count=1, max_words=2)
    assert vocabulary.words == ["a", "b"]
    assert vocabulary.report.kept == 5


def test_words_are_joined_to_phrases_and_progress_is_told():
    told = []
    vocabulary = WordVocabulary.count(
        ["new york is new", "new york"],
        min_count=1,
        phrases=[Phrases({("new", "york"): 20.0})],
        progress=told.append,
    )
    assert vocabulary.words == ["new_york", "is", "new"]
    assert told == [3, 4]
    assert vocabulary.encode_ids("New York is york") == [0, 1]
    assert vocabulary.kind == "phrases"  # so no text is cut where one may lie


def test_phrases_are_part_of_what_a_vocabulary_is():
    plain = WordVocabulary(["a", "b"], [2, 1])
    joining = WordVocabulary(["a", "b"], [2, 1], phrases=[Phrases({("a", "b"): 20.0})])
    assert plain.fingerprint != joining.fingerprint


@pytest.mark.parametrize("passes", [0, 2])
def test_a_vocabulary_comes_back_from_disk(tmp_path, passes):
    phrases = [Phrases({("a", "b"): 2.5}), Phrases({("a_b", "c"): 7.0})][:passes]
    saved = WordVocabulary.count(["a b c été ünïq x", "a b c d"], min_count=1, phrases=phrases)
    saved.save(tmp_path)
    loaded = WordVocabulary.load(tmp_path, split="words", lower=True)
    assert (loaded.words, loaded.counts.tolist()) == (saved.words, saved.counts.tolist())
    assert loaded.fingerprint == saved.fingerprint
    assert loaded.encode_ids("a b c") == saved.encode_ids("a b c")


def test_a_damaged_vocabulary_is_refused(tmp_path):
    (tmp_path / "vocabulary.tsv").write_text("a\t2\nb\n")
    with pytest.raises(VectorError, match="cannot read the vocabulary"):
        WordVocabulary.load(tmp_path, split="words", lower=True)


@pytest.mark.parametrize(
    ("texts", "settings", "says"),
    [
        ([], {}, "the corpus holds no words"),
        (["", " \n"], {}, "the corpus holds no words"),
        (["a a b"], {"min_count": 3}, "min_count 3 leaves no word of 2: the most frequent occurs 2 times"),
        (["a"], {"split": "word"}, "unknown split 'word'; did you mean 'words'"),
        (["a"], {"min_count": 0}, "min_count 0 makes no vocabulary"),
        (["a"], {"max_words": 0}, "max_words 0 makes no vocabulary"),
        (["a"], {"most_words": 0}, "most_words 0 makes no vocabulary"),
        (["a b c d"], {"most_words": 2, "min_count": 1}, "most_words 2 leaves no word"),
    ],
)
def test_corpora_without_a_vocabulary(texts, settings, says):
    with pytest.raises(VectorError, match=says):
        WordVocabulary.count(texts, **settings)


def test_a_vocabulary_is_a_list_of_words_once_each():
    with pytest.raises(VectorError, match="'a' occurs twice in the vocabulary"):
        WordVocabulary(["a", "b", "a"], [3, 2, 1])
    with pytest.raises(VectorError, match="2 words have 1 counts"):
        WordVocabulary(["a", "b"], [3])


def test_ids_leave_out_what_is_not_in_it():
    vocabulary = WordVocabulary(["the", "cat"], [5, 2])
    assert vocabulary.encode_ids("The black cat, the!") == [0, 1, 0]
    assert vocabulary.encode_batch(["cat", "dog", ""]) == [[1], [], []]
    assert (vocabulary.id_to_token(1), vocabulary.id_to_token(2), vocabulary.vocab_size) == ("cat", None, 2)
    assert "cat" in vocabulary
    assert "dog" not in vocabulary


def test_the_fingerprint_is_of_what_decides_ids():
    made = [
        WordVocabulary(["a", "b"], [2, 1]),
        WordVocabulary(["b", "a"], [2, 1]),
        WordVocabulary(["a", "b"], [2, 1], lower=False),
        WordVocabulary(["a", "b"], [2, 1], split="whitespace"),
    ]
    assert len({vocabulary.fingerprint for vocabulary in made}) == 4
    assert WordVocabulary(["a", "b"], [9, 8]).fingerprint == made[0].fingerprint


def test_a_corpus_is_prepared_with_it(tmp_path):
    from wordloom.data import Corpus, prepare

    path = tmp_path / "text.txt"
    path.write_text("The cat sat on the mat.\n\nThe dog sat.\n")
    vocabulary = WordVocabulary.count(["the cat sat on the mat the dog sat"], min_count=2)
    assert vocabulary.words == ["the", "sat"]
    shards = prepare(Corpus(sources=str(path), validation_fraction=0.0), vocabulary, part="train")
    assert shards.tokens().tolist() == [0, 1, 0, 0, 1]

"""Names and signatures are those of gensim's KeyedVectors, or it is said what to use instead."""

import inspect

import pytest

from wordloom.vectors import KeyedVectors
from wordloom.vectors.store.refusals import NOT_HERE


def signature(method):
    return [
        (p.name, p.default, p.kind)
        for p in inspect.signature(method).parameters.values()
        if p.name not in ("self", "cls", "vectors")
    ]


def public(kind):
    return {name for name in dir(kind) if not name.startswith("_")}


def test_every_public_name_of_gensims_is_here_or_says_what_to_use(vectors):
    models = pytest.importorskip("gensim.models")
    assert public(models.KeyedVectors) - public(KeyedVectors) == NOT_HERE.keys()
    for name, advice in NOT_HERE.items():
        with pytest.raises(AttributeError, match=f"KeyedVectors has no '{name}': ") as caught:
            getattr(vectors, name)
        assert str(caught.value).endswith(advice)


@pytest.mark.parametrize("name", sorted(public(KeyedVectors)))
def test_signatures_are_gensims(name):
    """Positional calls mean the same; what is ours alone is asked for by its name."""
    models = pytest.importorskip("gensim.models")
    theirs = getattr(models.KeyedVectors, name, None)
    if not callable(theirs):
        return
    asked, given = signature(theirs), signature(getattr(KeyedVectors, name))
    if name == "save":  # further arguments say how to pickle
        asked = [("fname_or_handle", inspect.Parameter.empty, inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    assert given[: len(asked)] == asked
    assert all(kind is inspect.Parameter.KEYWORD_ONLY for _, _, kind in given[len(asked) :])

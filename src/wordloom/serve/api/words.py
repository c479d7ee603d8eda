"""``/analogy``, ``/neighbours`` and ``/map``: queries of word vectors, or of the token vectors of a model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from fastapi.responses import Response
from pydantic import Field

from wordloom.errors import WordloomError
from wordloom.serve.api.computing import ChosenModel, compute, field_errors
from wordloom.serve.api.fields import Body, Text, Word
from wordloom.serve.errors import ApiError
from wordloom.serve.worker import Job
from wordloom.vectors import FastTextClassifier, KeyedVectors, open_vectors, word_map
from wordloom.vectors.store.terms import Term, refuse_zero

router = APIRouter()

_NEEDED = "word vectors, an encoder, a language model or a translation model"


class Analogy(Body):
    """Words to be near and words to be far from: positive king and woman, negative man.

    ``cosmul`` multiplies and divides cosines (3CosMul) instead of adding vectors.
    """

    model: Text
    positive: Annotated[list[Word], Field(min_length=1, max_length=64)]
    negative: Annotated[list[Word], Field(max_length=64)] | None = None
    top_k: int = Field(10, ge=1, le=1000)
    cosmul: bool = False


class Neighbours(Body):
    model: Text
    word: Word
    top_k: int = Field(10, ge=1, le=1000)


class Map(Body):
    """Words to map to two dimensions, with the nearest ``neighbours`` of each."""

    model: Text
    words: Annotated[list[Word], Field(min_length=1, max_length=100)]
    neighbours: int = Field(8, ge=0, le=20)
    method: Literal["pca", "tsne"] = "pca"
    seed: int = Field(0, ge=0, lt=2**32)


@router.post("/analogy")
async def analogy(body: Analogy, http: HttpRequest) -> Response:
    """Return the words nearest to the sum of ``positive`` minus ``negative``."""

    def call(chosen: ChosenModel, _: Job) -> dict[str, Any]:
        wv = vectors_of(chosen)
        check_words(wv, "positive", body.positive)
        check_words(wv, "negative", body.negative or ())
        find = wv.most_similar_cosmul if body.cosmul else wv.most_similar
        with field_errors("positive"):
            if not body.cosmul:
                signed = [(1.0, body.positive), (-1.0, body.negative or [])]
                refuse_zero(wv, [Term(word, sign, True) for sign, words in signed for word in words])
            found = find(body.positive, body.negative, topn=body.top_k)
        return _ranked(body.model, found)

    return await compute(http, body.model, object, _NEEDED, call)


@router.post("/neighbours")
async def neighbours(body: Neighbours, http: HttpRequest) -> Response:
    """Return the words nearest to a word, by cosine."""

    def call(chosen: ChosenModel, _: Job) -> dict[str, Any]:
        wv = vectors_of(chosen)
        with field_errors("word"):
            return _ranked(body.model, wv.most_similar(body.word, topn=body.top_k))

    return await compute(http, body.model, object, _NEEDED, call)


@router.post("/map")
async def positions(body: Map, http: HttpRequest) -> Response:
    """Return the positions of words and their neighbours on a map of two dimensions.

    ``group`` is the number of the nearest word that was asked for.
    """

    def call(chosen: ChosenModel, _: Job) -> dict[str, Any]:
        wv = vectors_of(chosen)
        check_words(wv, "words", body.words)
        with field_errors("words"):
            made = word_map(wv, body.words, topn=body.neighbours, method=body.method, seed=body.seed)
        rows = zip(made.words, made.points.tolist(), made.groups.tolist(), strict=True)
        asked = set(made.asked)
        data = [
            {"word": word, "x": x, "y": y, "group": group, "asked": word in asked}
            for word, (x, y), group in rows
        ]
        return {
            "object": "map", "model": body.model, "data": data, "method": made.method,
            "explained": made.explained,
        }  # fmt: skip

    return await compute(http, body.model, object, _NEEDED, call)


def _ranked(model: str, found: Iterable[tuple[str, float]]) -> dict[str, Any]:
    data = [{"word": word, "score": score} for word, score in found]
    return {"object": "list", "model": model, "data": data}


def vectors_of(chosen: ChosenModel) -> KeyedVectors:
    """Return the word vectors, or those of the model's tokens, which are read once; called by the worker.

    Raises ApiError for a model that has neither.
    """
    served = chosen.served
    if chosen.adapter is not None:
        raise ApiError(
            400, f"an adapter has the token vectors of its model; name {served.name!r} instead", param="model"
        )
    if isinstance(served.model, KeyedVectors):
        return served.model
    if isinstance(served.model, FastTextClassifier):
        raise chosen.unsupported(_NEEDED)
    if "token_vectors" not in served.derived:
        try:
            vectors = open_vectors(served.source.folder)
        except WordloomError:
            raise chosen.unsupported(_NEEDED) from None
        served.derived["token_vectors"] = vectors
        served.n_bytes += vectors.vectors.nbytes
    found: KeyedVectors = served.derived["token_vectors"]
    return found


def check_words(wv: KeyedVectors, field: str, words: Iterable[str]) -> None:
    """Raise ApiError for a word that has no vector."""
    for number, word in enumerate(words):
        with field_errors(f"{field}[{number}]"):
            wv.get_vector(word)

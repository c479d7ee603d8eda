"""``/v1/embeddings``: the vectors of texts."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter
from fastapi import Request as HttpRequest
from fastapi.responses import Response
from numpy.typing import NDArray
from pydantic import Field

from wordloom.run.models.embedder import Embedder, Pooling, TooLong
from wordloom.run.models.language_model import LanguageModel
from wordloom.run.models.text_encoder import TextEncoder
from wordloom.serve.api.computing import ChosenModel, as_list, compute, field_errors, item_name
from wordloom.serve.api.fields import Body, Ids, Passage, Text
from wordloom.serve.errors import ApiError
from wordloom.serve.models import Served
from wordloom.serve.worker import Job
from wordloom.vectors import KeyedVectors, TextEmbedder, WordRule, word_rule

router = APIRouter()

MOST_TEXTS = 2048
_CLASSES = (TextEncoder, LanguageModel, KeyedVectors)

Texts = Annotated[list[Passage], Field(min_length=1, max_length=MOST_TEXTS)]
Rows = Annotated[list[Annotated[Ids, Field(max_length=100_000)]], Field(min_length=1, max_length=MOST_TEXTS)]


class Embeddings(Body):
    """Texts to embed; ``input`` is a text, several texts, token ids, or several lists of token ids.

    ``dimensions`` keeps the first components of each vector and scales the rest to length 1.  ``pooling``,
    ``normalize`` and ``too_long`` are the settings of :class:`~wordloom.run.models.embedder.Embedder`.
    """

    model: Text
    input: Passage | Texts | Ids | Rows
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = Field(None, ge=1)
    pooling: Pooling | None = None
    normalize: bool | None = None
    too_long: TooLong = "error"
    user: Text | None = None

    @property
    def several(self) -> bool:
        """Whether ``input`` is a list of texts, or of lists of ids."""
        return isinstance(self.input, list) and not isinstance(self.input[0], int)

    @property
    def items(self) -> Sequence[str | list[int]]:
        """The texts, each as a text or as token ids."""
        given: Any = self.input
        return given if self.several else [given]


class EmbeddingReport:
    """Counts of all texts of a request, and the numbers of texts to look at."""

    def __init__(self) -> None:
        self.tokens = self.unknown = 0
        self.empty: list[int] = []
        self.truncated: list[int] = []
        self.windowed: list[int] = []


class ModelEmbedder:
    """Embeds texts by an encoder or a language model."""

    def __init__(self, model: TextEncoder | LanguageModel, room: int | None) -> None:
        self.model, self.room = model, room

    def check(self, body: Embeddings) -> None:
        """Raise ApiError for fields that do not fit the model."""
        if body.dimensions is not None and isinstance(self.model, LanguageModel):
            raise ApiError(
                400, "'dimensions': the vectors of a language model cannot be shortened; leave it out",
                param="dimensions", code="unsupported_parameter",
            )  # fmt: skip
        check_dimensions(body, int(self.model.config.dim))

    def embed(self, body: Embeddings, job: Job) -> tuple[list[NDArray[np.float32]], EmbeddingReport]:
        """Return the vectors of each text, which is embedded alone, and counts."""
        embedder, report = self._embedder(body), EmbeddingReport()
        vectors = []
        for number, item in enumerate(job.each(body.items)):
            place = partial(_place, item_name("input", body.several, number))
            with field_errors("input"):
                if isinstance(item, str):
                    (vector,), ledger = embedder([item], place=place)
                else:
                    (vector,), ledger = embedder.embed_ids([item], place=place)
            vectors.append(vector)
            report.tokens += ledger.tokens
            report.unknown += ledger.unknown
            report.empty += [number] * len(ledger.empty)
            report.truncated += [number] * len(ledger.cut)
            report.windowed += [number] * len(ledger.windowed)
        return vectors, report

    def _embedder(self, body: Embeddings) -> Embedder:
        settings: dict[str, Any] = {"pooling": body.pooling, "normalize": body.normalize, "limit": self.room}
        given = {name: value for name, value in settings.items() if value is not None}
        with field_errors("model", setting="pooling"):
            return self.model.embedder(**given, too_long=body.too_long)


def _place(name: str, _: int) -> str:
    return name


class WordEmbedder:
    """Embeds texts by the mean of their words' vectors."""

    def __init__(self, served: Served) -> None:
        self.served = served

    def check(self, body: Embeddings) -> None:
        """Raise ApiError for fields that only a network has."""
        if not isinstance(body.items[0], str):
            raise ApiError(400, "'input': word vectors read texts, not token ids", param="input")
        for name in ("pooling", "too_long"):
            if getattr(body, name) not in (None, "error"):
                raise ApiError(
                    400, f"'{name}': word vectors read texts of any length by their mean; leave it out",
                    param=name, code="unsupported_parameter",
                )  # fmt: skip
        check_dimensions(body, self.served.model.vector_size)

    def embed(self, body: Embeddings, job: Job) -> tuple[list[NDArray[np.float32]], EmbeddingReport]:
        """Return the vectors of each text and counts; a text without a known word has the vector 0."""
        embedder, report = self._embedder(), EmbeddingReport()
        vectors = []
        for number, text in enumerate(job.each(body.items)):
            assert isinstance(text, str)
            with field_errors("input"):
                rows, words = embedder.encode_batch([text], bool(body.normalize))
            vectors.append(rows[0])
            report.tokens += words.words
            report.unknown += words.unknown
            report.empty += [number] * len(words.empty)
        return vectors, report

    def _embedder(self) -> TextEmbedder:
        """Return the embedder with the rule of the run, which is kept for later requests."""
        derived = self.served.derived
        if "text_embedder" not in derived:
            with field_errors("model"):
                rule = word_rule(self.served.source.folder) or WordRule()
                derived["text_embedder"] = TextEmbedder(self.served.model, split=rule)
        embedder: TextEmbedder = derived["text_embedder"]
        return embedder


@router.post("/v1/embeddings")
async def embeddings(body: Embeddings, http: HttpRequest) -> Response:
    """Embed texts, as OpenAI's API does."""

    def call(chosen: ChosenModel, job: Job) -> dict[str, Any]:
        embedder = _embedder_of(chosen)
        embedder.check(body)
        vectors, report = embedder.embed(body, job)
        if body.dimensions is not None:
            vectors = [shortened(vector, body.dimensions) for vector in vectors]
        data = [{"object": "embedding", "embedding": _encoded(vector, body)} for vector in vectors]
        usage = {"prompt_tokens": report.tokens, "total_tokens": report.tokens}
        return as_list(body.model, data, usage=usage, report=vars(report))

    return await compute(http, body.model, _CLASSES, "an encoder, a language model or word vectors", call)


def _embedder_of(chosen: ChosenModel) -> ModelEmbedder | WordEmbedder:
    served = chosen.served
    if isinstance(served.model, KeyedVectors):
        return WordEmbedder(served)
    return ModelEmbedder(chosen.model, None if served.engine is None else served.engine.room)


def check_dimensions(body: Embeddings, D: int) -> None:
    """Raise ApiError if ``body`` asks for more dimensions than vectors [D] have."""
    if body.dimensions is not None and body.dimensions > D:
        raise ApiError(
            400, f"'dimensions' is {body.dimensions:,}, and the vectors of this model have {D:,} components",
            param="dimensions", code="invalid_value",
        )  # fmt: skip


def shortened(vector: NDArray[np.float32], dimensions: int) -> NDArray[np.float32]:
    """Return the first ``dimensions`` components of a vector [D], scaled to length 1."""
    first = vector[:dimensions]
    length = np.linalg.norm(first)
    return first / length if length > 0 else first


def _encoded(vector: NDArray[np.float32], body: Embeddings) -> str | list[float]:
    if body.encoding_format == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
    numbers: list[float] = vector.tolist()
    return numbers

"""``wordloom embed`` with a model: vectors of texts or of their tokens, in context."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from wordloom.cli.embed.output import Output, output_file
from wordloom.errors import CheckpointError

if TYPE_CHECKING:
    from wordloom.data.rows.texts import PlacedText
    from wordloom.run import Embedder
    from wordloom.run.models.embedder import EmbedLedger, TokenVectors

Level = Literal["text", "token"]


def holds_model(folder: Path) -> bool:
    """Return whether ``folder`` holds a model, rather than word vectors or a bag of words."""
    others = ("vectors.json", "vocabulary.json")
    models = ("config.json", "adapter_config.json")
    holds_one = any((folder / name).exists() for name in models)
    return holds_one and not any((folder / name).exists() for name in others)


def embed_model(
    folder: Path,
    texts: Iterator[PlacedText],
    *,
    output: Output,
    level: Level,
    batch_size: int,
    device: str,
    dtype: str,
    **settings: Any,
) -> None:
    """Write the vectors of ``texts`` or of their tokens, or cluster the texts.

    ``settings`` are those of :meth:`wordloom.run.TextEncoder.embedder`.
    """
    from wordloom.run.models.embedder import EmbedLedger
    from wordloom.vectors.files.embedded_texts import FORMATS, write_embeddings

    if level == "token":
        output.check_ending((".jsonl", ".parquet"), "tokens and vectors")
    output.check_ending(FORMATS, "vectors")
    embedder, ledger = _text_embedder(folder, device, dtype, settings), EmbedLedger()
    if level == "token":
        tokens = (
            list(zip(batch, embedder.tokens(batch, ledger, place=place), strict=True))
            for batch, place in _placed(texts, batch_size, ledger)
        )
        output.take(tokens, _write_tokens, f"vectors of tokens of {embedder.dim} components", ledger.lines)
        return

    def batches() -> Iterator[tuple[list[str], Any]]:
        for batch, place in _placed(texts, batch_size, ledger):
            at = 0
            for vectors in embedder.stream(batch, ledger, place=place):
                yield batch[at : at + len(vectors)], vectors
                at += len(vectors)

    def write(out: Path | None, vectors: Iterable[tuple[list[str], Any]]) -> int:
        return write_embeddings(out or "-", vectors, embedder.dim)

    output.take(batches(), write, f"vectors of {embedder.dim} components", ledger.lines)


def _text_embedder(folder: Path, device: str, dtype: str, settings: dict[str, Any]) -> Embedder:
    """Load the model in ``folder`` as an embedder; raises CheckpointError if it embeds no texts."""
    from wordloom.run.checkpoint.kinds import kind_of
    from wordloom.run.checkpoint.loaders import read_checkpoint

    checkpoint = read_checkpoint(folder)
    kind = kind_of(checkpoint)
    if not kind.embeds:
        raise CheckpointError(
            f"{folder} holds {kind.description}, which embeds no texts: give an encoder or a language model, "
            "or --method for the vectors of its tokens"
        )
    embedder: Embedder = kind.load(checkpoint, device, dtype).embedder(**settings)
    return embedder


def _placed(
    texts: Iterator[PlacedText], batch_size: int, ledger: EmbedLedger
) -> Iterator[tuple[list[str], Callable[[int], str]]]:
    """Yield batches of texts, each with a function that names a text by its number in ``ledger``."""
    while batch := list(islice(texts, batch_size)):
        first = ledger.texts
        yield (
            [str(text.text) for text in batch],
            lambda number, batch=batch, first=first: batch[number - first].place,  # type: ignore[misc]
        )


def _write_tokens(out: Path | None, batches: Iterable[list[tuple[str, TokenVectors]]]) -> int:
    """Write the vectors of tokens and return their number.

    JSON lines hold ``text`` and ``tokens``.  Parquet rows hold the number of the ``text`` from 1, and
    ``token``, ``id`` and ``embedding``.
    """
    if out is not None and out.suffix == ".parquet":
        return _write_token_rows(out, batches)
    written = 0
    with output_file(out) as file:
        for batch in batches:
            for text, token_vectors in batch:
                rows = zip(
                    token_vectors.tokens, token_vectors.ids.tolist(), token_vectors.vectors, strict=True
                )
                tokens = [
                    {"token": token, "id": index, "embedding": vector.tolist()}
                    for token, index, vector in rows
                ]
                file.write((json.dumps({"text": text, "tokens": tokens}, ensure_ascii=False) + "\n").encode())
                written += len(tokens)
    return written


def _write_token_rows(out: Path, batches: Iterable[list[tuple[str, TokenVectors]]]) -> int:
    import pyarrow as pa

    from wordloom.vectors.files.embedded_texts import parquet_file

    columns = {"text": pa.int64(), "token": pa.string(), "id": pa.int64()}
    schema = pa.schema({**columns, "embedding": pa.list_(pa.float32())})
    number = written = 0
    with parquet_file(out, schema) as add:
        for batch in batches:
            for _, token_vectors in batch:
                number += 1
                n = len(token_vectors.ids)
                add(
                    [
                        [number] * n,
                        token_vectors.tokens,
                        token_vectors.ids.tolist(),
                        list(token_vectors.vectors),
                    ]
                )
                written += n
    return written

"""``wordloom vectors``: train word vectors, and query them or the token vectors of any model."""

from __future__ import annotations

import typer

from wordloom.cli.help import SignedWords
from wordloom.cli.vectors import convert as vectors_convert
from wordloom.cli.vectors import documents as vectors_documents
from wordloom.cli.vectors import evaluate as vectors_evaluate
from wordloom.cli.vectors import predict as vectors_predict
from wordloom.cli.vectors import queries as vectors_queries
from wordloom.cli.vectors import train as vectors_train

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)
app.command("train")(vectors_train.command)
app.command("similar", cls=SignedWords)(vectors_queries.similar)
app.command("analogy", cls=SignedWords)(vectors_queries.analogy)
app.command("evaluate")(vectors_evaluate.evaluate)
app.command("neighbours")(vectors_queries.neighbours)
app.command("documents")(vectors_documents.documents)
app.command("dot")(vectors_queries.dot)
app.command("axis")(vectors_queries.axis)
app.command("predict")(vectors_predict.predict)
app.command("convert")(vectors_convert.convert)

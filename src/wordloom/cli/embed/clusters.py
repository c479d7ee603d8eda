"""``wordloom embed --cluster K``: clusters of texts by their vectors."""

from __future__ import annotations

import json as json_module
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rich.console import Console
from rich.text import Text
from typer import Option

from wordloom.cli import options
from wordloom.cli.vectors.output import new_table, print_json, print_notes
from wordloom.errors import DataError, did_you_mean

if TYPE_CHECKING:
    from wordloom.data.rows.texts import PlacedText
    from wordloom.run.models.clusters import Clusters

COUNT = Annotated[
    int | None,
    Option(
        metavar="K",
        help="Group the texts into K clusters by their vectors and show the clusters. FILE may be a data "
        "set, such as sst2/dev.",
    ),
]
METHOD = Annotated[
    Literal["kmeans", "agglomerative"],
    Option(help="The algorithm; agglomerative uses Ward's criterion."),
]
SEED = Annotated[int, Option(help="The random seed of k-means and t-SNE.", min=0)]
LABEL_COLUMN = Annotated[
    str | None,
    Option(
        help="Compare the clusters with the labels in this column of a table.",
        metavar="COLUMN",
        callback=options.parse_column,
    ),
]
PROJECTION = Annotated[
    Literal["pca", "tsne"], Option(help="How the plot projects vectors to two dimensions.")
]
OPTIONS = ("cluster_method", "plot", "projection", "seed", "label_column", "json")  # need --cluster
FORMATS = (".tsv", ".jsonl")

_MOST_DENSE = 1 << 27  # numbers: 512 MB
_WORDS_SHOWN, _WORDS_DRAWN = 8, 5
_TEXT_SHOWN = 100  # characters
_LABELS_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class Grouping:
    """A clustering of the texts ``given`` into ``k`` clusters, with the ``labels`` of the texts, if any.

    The assignments are written to ``out`` and the picture to ``plot``.
    """

    given: list[PlacedText]
    labels: list[str] | None
    k: int
    method: Literal["kmeans", "agglomerative"]
    seed: int
    out: Path | None
    plot: Path | None
    projection: Literal["pca", "tsne"]
    json: bool

    @classmethod
    def of(
        cls, source: str, *, label_column: str | int | None, reading: dict[str, Any], **asked: Any
    ) -> Grouping:
        """Read the texts and check them before any vector is computed.

        ``reading`` are settings of :func:`wordloom.data.rows.texts.placed_texts`.  Raises DataError as
        :func:`wordloom.run.models.clusters.check_texts` does.
        """
        from wordloom.inspect.figures import check_format
        from wordloom.inspect.vector_plots import check_plane
        from wordloom.run.models.clusters import check_texts

        given, labels = _read(source, label_column, reading)
        grouping = cls(given=given, labels=labels, **asked)
        out, plot = grouping.out, grouping.plot
        if out is not None and out.suffix not in FORMATS:
            raise DataError(
                f"'{out}' has an ending that cannot hold clusters; {did_you_mean(out.suffix, FORMATS)}"
            )
        check_texts(grouping.texts, grouping.k, grouping.method, place=lambda row: given[row].place)
        if plot is not None:
            check_format(plot)
            check_plane(grouping.projection, len(given))
        return grouping

    @cached_property
    def texts(self) -> list[str]:
        return [str(one.text) for one in self.given]

    def take(self, batches: Iterable[tuple[list[str], Any]]) -> None:
        """Cluster the texts by their vectors, dense or sparse, and print the clusters."""
        import numpy as np

        from wordloom.run.models.clusters import cluster_texts

        vectors = np.concatenate([self._dense(rows) for _, rows in batches])
        clusters = cluster_texts(
            self.texts, vectors, self.k, method=self.method, seed=self.seed, labels=self.labels
        )
        if self.out is not None:
            self._write(self.out, clusters)
        if self.plot is not None:
            from wordloom.inspect.vector_plots import draw_clusters

            words = [[word for word, _ in weighted[:_WORDS_DRAWN]] for weighted in clusters.words]
            draw_clusters(vectors, clusters.assigned, words, self.plot, plane=self.projection, seed=self.seed)
        if self.json:
            print_json(**self._facts(clusters))
        else:
            self._show(clusters)
        print_notes(f"wrote {path}" for path in (self.out, self.plot) if path is not None)

    def _dense(self, rows: Any) -> Any:
        if not hasattr(rows, "toarray"):
            return rows
        numbers = len(self.texts) * rows.shape[1]
        if numbers > _MOST_DENSE:
            raise DataError(
                f"{len(self.texts):,} rows of {rows.shape[1]:,} words are {numbers:,} numbers, and clusters "
                f"take {_MOST_DENSE:,}; give fewer texts, or bags of fewer words"
            )
        return rows.toarray().astype("float32")

    def _write(self, out: Path, clusters: Clusters) -> None:
        """Write a row for each text: its number and its cluster, both from 1, and its distance."""
        from wordloom.vectors.whole_files import new_file

        rows = zip(clusters.assigned.tolist(), clusters.distances.tolist(), strict=True)
        with new_file(out) as file:
            if out.suffix == ".tsv":
                file.write(b"number\tcluster\tdistance\n")
            for i, (cluster, distance) in enumerate(rows):
                if out.suffix == ".tsv":
                    file.write(f"{i + 1}\t{cluster + 1}\t{distance:.6f}\n".encode())
                    continue
                fact: dict[str, Any] = {"number": i + 1, "cluster": cluster + 1, "distance": distance}
                fact |= {"text": self.texts[i]} | ({"label": self.labels[i]} if self.labels else {})
                file.write((json_module.dumps(fact, ensure_ascii=False) + "\n").encode())

    def _facts(self, clusters: Clusters) -> dict[str, Any]:
        facts = []
        for cluster, size in enumerate(clusters.sizes.tolist()):
            nearest = [
                {"number": i + 1, "text": self.texts[i], "distance": float(clusters.distances[i])}
                for i in clusters.nearest[cluster]
            ]
            words = [{"word": word, "weight": weight} for word, weight in clusters.words[cluster]]
            fact = {"cluster": cluster + 1, "size": size, "words": words, "nearest": nearest}
            facts.append(fact | ({"labels": clusters.labels[cluster]} if clusters.labels else {}))
        return {
            "texts": len(self.texts),
            "method": clusters.method,
            "seed": clusters.seed,
            "silhouette": clusters.silhouette,
            "silhouette_texts": clusters.compared,
            "nmi": clusters.nmi,
            "adjusted_rand": clusters.adjusted_rand,
            "clusters": facts,
        }

    def _show(self, clusters: Clusters) -> None:
        console = Console(highlight=False)
        labelled = bool(clusters.labels)
        table = new_table("cluster", "words", *(["labels"] if labelled else []), "texts", left=2 + labelled)
        for cluster, size in enumerate(clusters.sizes.tolist()):
            words = " ".join(word for word, _ in clusters.words[cluster][:_WORDS_SHOWN])
            cells = [str(cluster + 1), words]
            if labelled:
                counts = list(clusters.labels[cluster].items())
                shown = ", ".join(f"{label} {n / size:.0%}" for label, n in counts[:_LABELS_SHOWN])
                cells.append(shown + (" ..." if len(counts) > _LABELS_SHOWN else ""))
            table.add_row(*map(Text, cells), f"{size:,}")
        console.print(table)
        for cluster, nearest in enumerate(clusters.nearest):
            console.print(f"\nnearest to the centre of {cluster + 1}:", markup=False)
            for i in nearest:
                line = f"  {clusters.distances[i]:.3f}  {i + 1}: {_short(self.texts[i])}"
                console.print(line, markup=False, soft_wrap=True)
        facts, some = [], clusters.compared < len(self.texts)
        if clusters.silhouette is not None:
            of = f" (of {clusters.compared:,} texts drawn by the seed)" if some else ""
            facts.append(f"silhouette {clusters.silhouette:.4f}{of}")
        if clusters.nmi is not None:
            rand = f"adjusted Rand index {clusters.adjusted_rand:.4f} with the labels"
            facts.append(f"NMI {clusters.nmi:.4f}, {rand}")
        if not facts and some:
            facts = [f"no silhouette: the {clusters.compared:,} texts drawn by the seed are of one cluster"]
        line = "; ".join(facts) or "every text is its own cluster"
        console.print(f"\n{line}", markup=False)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _TEXT_SHOWN else line[: _TEXT_SHOWN - 3] + "..."


def _read(
    source: str, label_column: str | int | None, reading: dict[str, Any]
) -> tuple[list[PlacedText], list[str] | None]:
    """Return the texts, and the labels if a label column or a named set is given."""
    from wordloom.data import labelled_rows
    from wordloom.data.rows.texts import PlacedText, placed_texts
    from wordloom.data.sets.fetch import names_dataset

    named = names_dataset(source) and not Path(source).exists()
    if not named and label_column is None:
        return list(placed_texts([source], **reading)), None
    how: dict[str, Any] = {name: reading.get(name) for name in ("header", "encoding_errors", "default")}
    texts = reading["columns"] or reading.get("field")
    rows = list(labelled_rows(source, text=texts, label=label_column, **how))
    if rows and len(rows[0].texts) > 1:
        raise DataError(
            f"the rows of '{source}' hold {len(rows[0].texts)} texts each; name one: --text-column"
        )
    given = [PlacedText(row.texts[0], f"{row.place}, column {row.columns[0]!r}") for row in rows]
    return given, [str(row.label) for row in rows]

"""The result of looking inside a model: tables for a terminal, JSON, a figure, and a page of HTML."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from wordloom.inspect.figures import save_figure
from wordloom.inspect.view.pages import figure_as_html, page, table_as_html, write_page


class Table(NamedTuple):
    """A table of texts; the first column names the rows."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


class View(ABC):
    """The result of looking inside a model.

    A notebook shows it as a page of HTML.
    """

    @property
    @abstractmethod
    def title(self) -> str:
        """The heading of the view."""

    @abstractmethod
    def as_dict(self) -> dict[str, Any]:
        """Return all values, as JSON can hold them."""

    def tables(self) -> Sequence[Table]:
        """Return the tables that a terminal shows."""
        return ()

    def notes(self) -> Sequence[str]:
        """Return the lines below the tables."""
        return ()

    @abstractmethod
    def figure(self) -> Any:
        """Return the figure that :meth:`save` saves."""

    def words(self) -> Sequence[str]:
        """Return the texts of the figure that come from the model, for which fonts are chosen."""
        return ()

    def save(self, path: str | Path) -> None:
        """Draw the figure into a .png, .svg or .pdf file; raises as :func:`wordloom.inspect.draw_map`."""
        save_figure(self.figure, self.words(), path)

    def body(self) -> str:
        """Return the inside of the page of HTML: by default the figure and the tables."""
        drawn = figure_as_html(self.figure, self.words(), self.title)
        return drawn + "".join(table_as_html(*table) for table in self.tables())

    def script(self) -> str:
        """Return the JavaScript of the page; "" if it needs none."""
        return ""

    def html(self) -> str:
        """Return a page of HTML, which needs nothing else.

        Raises WordloomError for a page above 32 MiB.
        """
        notes = "".join(f"<p>{escape(note)}</p>" for note in self.notes())
        return page(self.title, self.body() + notes, self.script())

    def save_html(self, path: str | Path) -> None:
        """Write :meth:`html` into a file; raises WordloomError as it does."""
        write_page(self.html(), path)

    def _repr_html_(self) -> str:
        """Return the page in a frame, so that its styles and a notebook's do not meet."""
        frame = 'style="width:100%;height:36rem;border:1px solid #8886" loading="lazy"'
        return f'<iframe {frame} title="{escape(self.title)}" srcdoc="{escape(self.html())}"></iframe>'

"""The texts that a view reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

from wordloom.errors import GenerationError, TokenizerError

if TYPE_CHECKING:
    from wordloom.data import Document
    from wordloom.data.text.documents import Piece
    from wordloom.run import LanguageModel, TextEncoder
    from wordloom.text import Specials, Tokenizer


def load_reader(folder: str, view: str) -> LanguageModel | TextEncoder:
    """Load a model that reads running text; raise CheckpointError for another one."""
    from wordloom.run import LanguageModel, TextEncoder
    from wordloom.run.checkpoint.kinds import require_kind
    from wordloom.run.checkpoint.loaders import read_checkpoint

    checkpoint = read_checkpoint(folder)
    kind = require_kind(checkpoint, [LanguageModel, TextEncoder], f"the view '{view}'")
    reader: LanguageModel | TextEncoder = kind.load(checkpoint, "auto", "auto")
    return reader


def ids_to_read(loaded: LanguageModel | TextEncoder, text: str, specials: Specials = "text") -> list[int]:
    """Return the ids of ``text`` as the model reads them: a prompt, or between the marks of an encoder."""
    from wordloom.run import TextEncoder

    tokenizer = loaded.text_tokenizer
    if isinstance(loaded, TextEncoder):
        return loaded.framed(tokenizer.encode_ids(text, specials=specials))
    return tokenizer.prompt_ids(text, specials=specials)


def texts_to_read(
    folder: str, file: str | None, first: int | None = None, *, specials: Specials | None = None
) -> tuple[Iterable[Document], Specials]:
    """Return the ``first`` documents of ``file``, or of the validation data of the recipe in ``folder``.

    The second value says how to read special tokens in them: as ``specials`` if it is given.
    """
    from wordloom.data import documents as read
    from wordloom.recipe.data import TextData
    from wordloom.run.checkpoint.loaders import read_checkpoint
    from wordloom.run.prepare import recipe_corpus

    if file is not None:
        return islice(read([file]), first), specials or "refuse"
    recipe = read_checkpoint(folder).validation_recipe
    documents = islice(recipe_corpus(recipe).documents("validation"), first)
    return documents, specials or recipe.data_as(TextData).specials


def windows_to_read(
    lm: LanguageModel,
    folder: str,
    file: str | None,
    *,
    tokens: int,
    window: int | None,
    specials: Specials | None = None,
) -> Iterator[Sequence[int]]:
    """Yield windows over the documents of :func:`texts_to_read`, until they predict ``tokens`` tokens.

    Each is a list of up to ``window`` + 1 ids, whose last is predicted only.  A window begins with the last
    token of the one before; the first of a document begins with its start token.
    """
    from wordloom.evaluate.reading import Reader
    from wordloom.models import context_limit

    limit = context_limit(lm.model.config)
    if window is not None and limit is not None and window > limit:
        raise GenerationError(f"--window is {window:,}, and the model takes {limit:,} tokens at once")
    width = window or limit or 512
    texts, chosen = _pieces_to_read(folder, file, specials)
    reader = Reader(lm.text_tokenizer, start="auto", end="auto", specials=chosen)
    left, unread = tokens, list[int]()
    for piece, begins, ends in texts:
        unread += [*(reader.before if begins else ()), *reader.ids(piece), *(reader.after if ends else ())]
        start = 0
        while len(unread) - start > (1 if ends else width):
            ids = unread[start : start + min(width, left) + 1]
            start, left = start + width, left - len(ids) + 1
            yield ids
            if not left:
                return
        unread = [] if ends else unread[start:]


def _pieces_to_read(
    folder: str, file: str | None, specials: Specials | None
) -> tuple[Iterator[tuple[Document | Piece, bool, bool]], Specials]:
    """Return :func:`texts_to_read` in pieces, each with whether it begins and whether it ends a document.

    A long document of a ``file`` comes in several pieces, so that memory need not hold it.
    """
    from wordloom.data.text.documents import pieces

    if file is None:
        documents, chosen = texts_to_read(folder, None, specials=specials)
        return ((document, True, True) for document in documents if document.text), chosen

    def parts() -> Iterator[tuple[Document | Piece, bool, bool]]:
        begins = True
        for piece in pieces([file]):
            if piece.text or not begins:  # an empty document has no tokens to read
                yield piece, begins, piece.last
                begins = piece.last

    return parts(), specials or "refuse"


def token_of(tokenizer: Tokenizer, text: str, option: str) -> int:
    """Return the id of the token whose text is ``text``, or whose name in the vocabulary.

    A token that begins a word has its space.  Raises GenerationError for a text of several tokens; ``option``
    is the name in the message.
    """
    for index in range(tokenizer.vocab_size):
        with suppress(TokenizerError):  # an unused id
            if tokenizer.token_text(index) == text:
                return index
    found = tokenizer.token_to_id(text)
    if found is not None:
        return found
    pieces = [tokenizer.token_text(i) for i in tokenizer.encode_ids(text, specials="text")]
    if pieces == [f" {text}"]:
        raise GenerationError(f"{option} {text!r} is no token, and {pieces[0]!r} is; write its space too")
    shown = " ".join(map(repr, pieces)) or "none"
    raise GenerationError(f"{option} {text!r} is not one token, but {shown}; name one token")

"""A trained encoder: embed texts and tokens, fill in masked tokens, compute pseudo-perplexity."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from wordloom.data.batches.masked import Marks
from wordloom.errors import CheckpointError, ConfigError, DataError, NonFiniteError
from wordloom.evaluate.masked import mask_id_of, pseudo_perplexity
from wordloom.evaluate.score import Scores
from wordloom.nn.evaluating import evaluating
from wordloom.run.models.embedder import Embedded, Embedder, EmbedLedger, TokenVectors
from wordloom.run.models.sentence_folder import pooling_files, pooling_of
from wordloom.run.models.tokenizers import ReadsText
from wordloom.weights import save_model


class Filling(NamedTuple):
    """A token for a mask, and its probability."""

    token: str
    probability: float


@dataclass(kw_only=True)
class TextEncoder(ReadsText):
    """An encoder and its tokenizer, as :func:`wordloom.load` returns them."""

    # -- embeddings --------------------------------------------------------------------------------------

    def embedder(self, **settings: Any) -> Embedder:
        """Return an :class:`~wordloom.run.models.embedder.Embedder` with these settings.

        The defaults are those of a sentence-transformers folder, if the model comes from one.
        """
        defaults = None if self.folder is None else pooling_of(self.folder)
        if defaults is not None:
            settings = {**defaults._asdict(), **settings}
        return Embedder(self.model, self.text_tokenizer, **settings)

    def embed(self, texts: Iterable[str], **settings: Any) -> Embedded:
        """Embed N texts: vectors [N, D] float32 and a ledger; see :meth:`embedder`."""
        return self.embedder(**settings)(texts)

    def embed_tokens(
        self, texts: Sequence[str], ledger: EmbedLedger | None = None, **settings: Any
    ) -> list[TokenVectors]:
        """Embed the tokens of each text; see :meth:`embedder`.

        Truncated texts are counted in ``ledger``; without one, the log reports them.
        """
        return self.embedder(**settings).tokens(texts, ledger)

    # -- masked tokens -----------------------------------------------------------------------------------

    def fill(self, text: str, k: int = 5) -> list[list[Filling]]:
        """Return the ``k`` most probable tokens for each mask in ``text``.

        The mask is the mask token of the tokenizer, or [EMPTY] if the model was trained with it.  Raises
        CheckpointError for a model without a masked-LM head, DataError for a text without a mask or too long
        for the model, ConfigError for a ``k`` out of range.
        """
        if not self.config.masked_lm_head:
            raise CheckpointError(
                f"{self.folder or 'the model'} has no head to fill in masked tokens: it was saved without it"
            )
        if not 1 <= k <= self.text_tokenizer.vocab_size:
            raise ConfigError(
                f"k is {k}; allowed: 1 to {self.text_tokenizer.vocab_size}, the size of the vocabulary"
            )
        mask = mask_id_of(self.model, self.text_tokenizer)
        ids = self.text_tokenizer.encode_ids(text, specials="interpret")
        if mask is None or mask not in ids:
            spelled = "a mask token" if mask is None else self.text_tokenizer.id_to_token(mask)
            raise DataError(f"the text has no {spelled} to fill in: {text!r}")
        row = self.framed(ids)
        if len(row) > self.config.max_seq_len:
            raise DataError(
                f"the text has {len(ids):,} tokens and the model reads {self.config.max_seq_len - 2:,} at "
                "once; shorten it"
            )
        tokens = torch.tensor([row], device=next(self.model.parameters()).device)  # [1, T]
        with evaluating(self.model):
            states = self.model.hidden(tokens)[tokens == mask]  # [masks, D]
            logits = self.model.lm_head(self.model.mlm_hidden(states)).float()
            logits = logits[:, : self.text_tokenizer.vocab_size]  # padding of the vocabulary
        values, best = logits.softmax(-1).topk(k, dim=-1)
        if not values.isfinite().all():
            raise NonFiniteError("the model gives no finite probability; its weights are damaged")
        return [
            [Filling(self.text_tokenizer.id_to_token(i), p) for i, p in zip(row, shares, strict=True)]
            for row, shares in zip(best.tolist(), values.tolist(), strict=True)
        ]

    def framed(self, ids: Sequence[int]) -> list[int]:
        """Return the ids of a text between the marks that the model reads, such as [CLS] and [SEP]."""
        marks = Marks.of(self.text_tokenizer)
        return [marks.cls, *ids, marks.sep]

    def pseudo_perplexity(self, texts: Iterable[Any], **settings: Any) -> Scores:
        """Return the score of :func:`wordloom.evaluate.masked.pseudo_perplexity`."""
        return pseudo_perplexity(self.model, self.text_tokenizer, texts, **settings)

    def save_pretrained(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write a folder that transformers, sentence-transformers and :func:`wordloom.load` read."""
        pooling = None if self.folder is None else pooling_of(self.folder)
        save_model(
            self.model,
            Path(folder),
            tokenizer=self.tokenizer,
            files=None if pooling is None else pooling_files(self.config.dim, pooling),
            overwrite=overwrite,
        )

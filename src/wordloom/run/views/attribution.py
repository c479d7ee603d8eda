"""Attribute a score of a loaded model to the tokens of a text: a next token, a class, or a masked token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from wordloom.errors import CheckpointError, GenerationError, WordloomError, did_you_mean
from wordloom.evaluate.masked import mask_id_of
from wordloom.inspect.causes.attribution import MOST_STEPS, Attribution, Method, Scorer, attribution
from wordloom.inspect.layers.states import row_of
from wordloom.inspect.token_names import namer, visible
from wordloom.models import family_of
from wordloom.nn.evaluating import evaluating
from wordloom.run.models.heads.classification import TextClassifier
from wordloom.run.models.language_model import LanguageModel
from wordloom.run.models.text_encoder import TextEncoder


class _Scored(NamedTuple):
    """The ids of a text, the function that scores them, and the score's name."""

    ids: Sequence[int]
    scorer: Scorer
    what: str


def attribute(
    loaded: Any,
    text: str,
    *,
    target: str | int | None = None,
    method: Method = "integrated-gradients",
    most_steps: int = MOST_STEPS,
) -> Attribution:
    """Return how much each token of ``text`` adds to a logit of a model that :func:`wordloom.load` returned.

    A language model is scored by the logit of the next token, an encoder by that of its one masked token, a
    classifier by that of a label.  ``target`` is the id of the token, or the label; None: the most probable.
    A bag of words is linear: its values are the weights of its words times their features, by every method.

    Raises:
        WordloomError: a model without such a score.
        GenerationError: a text that is empty or too long, or a target that does not exist.
    """
    if isinstance(loaded, TextClassifier):
        if family_of(loaded.config) == "bag_of_words":
            return _of_words(loaded, text, _label(loaded, target), method)
        scored, name = _classified(loaded, text, target), namer(loaded.tokenizer)
    elif isinstance(loaded, LanguageModel | TextEncoder):
        scored, name = _predicted(loaded, text, target), namer(loaded.text_tokenizer)
    else:
        raise WordloomError(
            f"the view 'attribution' reads language models, encoders and classifiers, not a "
            f"{type(loaded).__name__}"
        )
    settings: dict[str, Any] = {"what": scored.what, "method": method, "most_steps": most_steps}
    return attribution(loaded.model, scored.ids, scored.scorer, name, **settings)


def _predicted(loaded: LanguageModel | TextEncoder, text: str, target: str | int | None) -> _Scored:
    """Score the token after the text, or in the place of its one mask."""
    tokenizer, model = loaded.text_tokenizer, loaded.model
    if isinstance(loaded, LanguageModel):
        ids, at = tokenizer.prompt_ids(text, specials="text"), -1
    else:
        ids, at = _masked(loaded, text)

    def logits_of(tokens: Tensor) -> Tensor:
        hidden = model.hidden(tokens)[:, at]  # [B, D]
        return model.lm_head(hidden if isinstance(loaded, LanguageModel) else model.mlm_hidden(hidden))

    row = row_of(model, ids)
    if target is None:
        with evaluating(model):
            target = int(logits_of(row)[0].argmax())
    if not isinstance(target, int) or not 0 <= target < model.config.vocab_size:
        raise GenerationError(f"token {target!r} does not exist; allowed: 0 to {model.config.vocab_size - 1}")
    goal = target
    what = f"logit of {visible(namer(tokenizer)(goal))}"
    return _Scored(ids, lambda tokens: logits_of(tokens)[:, goal].float(), what)


def _masked(loaded: TextEncoder, text: str) -> tuple[list[int], int]:
    """Return the ids of a text with one mask, and where it stands."""
    if not loaded.config.masked_lm_head:
        raise CheckpointError("the model has no head to fill in masked tokens, so there is no logit")
    mask = mask_id_of(loaded.model, loaded.text_tokenizer)
    ids = loaded.framed(loaded.text_tokenizer.encode_ids(text, specials="interpret"))
    places = [at for at, index in enumerate(ids) if index == mask]
    if len(places) != 1:
        name = "a mask" if mask is None else loaded.text_tokenizer.token_text(mask)
        raise GenerationError(f"the text has {len(places)} masks; give it one, {name}")
    return ids, places[0]


def _label(loaded: TextClassifier, target: str | int | None) -> int | None:
    if target is None or (isinstance(target, int) and 0 <= target < len(loaded.labels)):
        return target
    if target not in loaded.labels:
        raise GenerationError(f"unknown label {target!r}; {did_you_mean(str(target), loaded.labels)}")
    return loaded.labels.index(str(target))


def _classified(loaded: TextClassifier, text: str, target: str | int | None) -> _Scored:
    read = loaded.read_inputs([text], lambda number: "the text")
    tokens, *others = read.batches.batch(0, 1).inputs
    if tokens is None or tokens.dim() != 2:
        raise WordloomError("the view 'attribution' reads classifiers of one text in one order")

    def logits_of(rows: Tensor) -> Tensor:
        more = [None if other is None else other.to(rows.device).expand(len(rows), -1) for other in others]
        return loaded.model(rows, *more)

    model, chosen = loaded.model, _label(loaded, target)
    if chosen is None:
        with evaluating(model):
            chosen = int(logits_of(tokens.to(next(model.parameters()).device))[0].argmax())
    goal = chosen
    what = f"logit of {loaded.labels[goal]}"
    return _Scored(tokens[0].tolist(), lambda rows: logits_of(rows)[:, goal].float(), what)


def _of_words(loaded: TextClassifier, text: str, target: int | None, method: Method) -> Attribution:
    """Return the exact parts of the logit of a bag of words."""
    features = loaded.vectorize([text]).tocsr()  # [1, V]
    if not features.nnz:
        raise GenerationError("the model knows no word of the text, so there is nothing to attribute")
    weight = loaded.model.classifier.weight.detach().cpu().double()  # [C, V]
    bias = loaded.model.classifier.bias.detach().cpu().double()
    ids = torch.from_numpy(features.indices.astype("int64"))
    values = torch.from_numpy(features.data) * weight[:, ids]  # [C, n]
    logits = values.sum(1) + bias
    goal = int(logits.argmax()) if target is None else target
    return Attribution(
        tokens=tuple(loaded.vectorizer.terms[i] for i in ids.tolist()),
        values=tuple(values[goal].tolist()),
        what=f"logit of {loaded.labels[goal]}",
        method=method,
        score=float(logits[goal]),
        baseline=float(bias[goal]),
        residual=0.0,
        is_exact=True,
    )

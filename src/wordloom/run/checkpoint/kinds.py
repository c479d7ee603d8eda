"""Load and save checkpoints, and the table of their kinds: how each is recognised, loaded and used.

:data:`KINDS` lists them.  ``wordloom.load`` and the commands look up a checkpoint in it with :func:`kind_of`;
no other code decides what a folder holds.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from wordloom.data.sets.fetch import files_of, names_dataset
from wordloom.errors import CheckpointError
from wordloom.models import TaskConfig, encodes, family_of, translates
from wordloom.recipe.data import CausalData, ChatData
from wordloom.run.checkpoint import evaluate, evaluate_chat, evaluate_likelihood, predict
from wordloom.run.checkpoint.loaders import (
    Checkpoint,
    Loader,
    load_bag_of_words,
    load_classifier,
    load_language_model,
    load_translator,
    loader_of,
    read_checkpoint,
    with_adapter,
)
from wordloom.run.checkpoint.predict import PredictedRow
from wordloom.run.models.heads import Head
from wordloom.run.models.heads.classification import TextClassifier
from wordloom.run.models.heads.multiple_choice import MultipleChoice
from wordloom.run.models.heads.question_answering import QuestionAnswerer
from wordloom.run.models.heads.regression import TextRegressor
from wordloom.run.models.heads.token_classification import TokenClassifier
from wordloom.run.models.language_model import LanguageModel
from wordloom.run.models.text_encoder import TextEncoder
from wordloom.run.models.translator import Translator
from wordloom.text.formats.folders import read_chat_template

Loaded = TypeVar("Loaded")


@dataclass(frozen=True, kw_only=True)
class Use:
    """How a command uses a kind of checkpoint.

    Attributes:
        reads: a verb phrase for messages: "is scored on labelled rows".
        options: the options of the command that always have an effect, by parameter name.
        file_options: further options, which say how a FILE is read and have no effect without one.
        too_long: the allowed values of ``too_long``.
        most_texts: the largest number of texts in a row, and of columns in ``text_column``.
    """

    reads: str
    options: tuple[str, ...] = ()
    file_options: tuple[str, ...] = ()
    too_long: tuple[str, ...] = ("error", "cut")
    most_texts: int = 1

    @property
    def all_options(self) -> tuple[str, ...]:
        """All options of the command that have an effect."""
        return (*self.file_options, *self.options)


@dataclass(frozen=True, kw_only=True)
class Evaluation(Use):
    """A use by ``wordloom evaluate``.

    ``run(request, model, **options)`` returns scores; ``name`` names them in JSON.
    """

    name: str
    run: Callable[..., Any] = evaluate.evaluate_head


@dataclass(frozen=True, kw_only=True)
class Prediction(Use):
    """A use by ``wordloom predict``: ``run(request, model, **options)`` yields rows.

    Attributes:
        rows: the inputs, in the plural: "texts".
        files: what a FILE holds, for kinds that do not read texts from standard input by default.
    """

    run: Callable[..., Iterator[PredictedRow]] = predict.predict_head
    rows: str = "texts"
    files: str | None = None


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of checkpoint.

    Attributes:
        description: what a folder of this kind holds: "a classifier".
        recognises: returns True for a config of this kind; the first match in :data:`KINDS` counts.
        result: the class that :func:`wordloom.load` returns.
        load: its loader.
        next_command: returns the arguments of a command to try next.
        evaluations: by ``--task``.
        own_task: returns the key in ``evaluations`` of the task that a checkpoint was trained on.
        prediction: None if ``wordloom predict`` does not support the kind.
        embeds: True if the loaded model has an ``embedder`` of texts.
    """

    description: str
    recognises: Callable[[Any], bool]
    result: type[Any]
    load: Loader
    next_command: Callable[[str, Checkpoint], str] = lambda folder, _: f"predict {folder} FILE"
    evaluations: Mapping[str, Evaluation] = field(default_factory=dict)
    own_task: Callable[[Checkpoint], str] = lambda checkpoint: "text"
    prediction: Prediction | None = None
    embeds: bool = False

    def task_of(self, checkpoint: Checkpoint, sources: Sequence[str]) -> str:
        """Return the task of ``sources`` if they are data sets of one, else that of the checkpoint."""
        made_for = {files_of(each)[0].task if names_dataset(each) else "" for each in sources}
        task = OF_SETS.get(made_for.pop(), "") if len(made_for) == 1 else ""
        return task if task in self.evaluations else self.own_task(checkpoint)

    def command_for(self, checkpoint: Checkpoint) -> str:
        """Return a command to try next with ``checkpoint``."""
        return f"wordloom {self.next_command(shlex.quote(str(checkpoint.folder)), checkpoint)}"


def _has_head(task: str) -> Callable[[Any], bool]:
    return lambda config: isinstance(config, TaskConfig) and config.task == task


def _is_family(family: str) -> Callable[[Any], bool]:
    return lambda config: not isinstance(config, TaskConfig) and family_of(config) == family


def _answers(checkpoint: Checkpoint) -> bool:
    """Return whether the checkpoint was trained on conversations."""
    return checkpoint.recipe is not None and isinstance(checkpoint.recipe.data, ChatData)


def _try_language_model(folder: str, checkpoint: Checkpoint) -> str:
    data = None if checkpoint.recipe is None else checkpoint.recipe.data
    if _answers(checkpoint) or isinstance(read_chat_template(checkpoint.folder), str):
        return f"chat {folder}"
    if isinstance(data, CausalData) and data.label_prefix:
        return f'generate {folder} --prompt "<LABEL>" --specials interpret'
    return f'generate {folder} --prompt "..."'


_COLUMNS = ("text_column", "label_column", "header")
_TEXTS = ("text_column", "header", "field", "encoding_errors")
_DOCUMENTS = ("field", "separator", "encoding_errors", "specials")

_CHAT = ("template", "first", "max_new_tokens", "batch_size", "answers")

_SIMILARITY = Evaluation(
    name="similarity",
    run=evaluate.evaluate_similarity,
    reads="compares the sentence embeddings of pairs of texts",
    options=(*_COLUMNS, "encoding_errors", "too_long"),
    too_long=("error", "cut", "window"),
    most_texts=2,
)

_MINIMAL_PAIRS = Evaluation(
    name="minimal_pairs",
    run=evaluate_likelihood.evaluate_minimal_pairs,
    reads="compares the likelihoods of an acceptable and another sentence",
    options=("first", "batch_size", "encoding_errors"),
)

#: The --task of data sets that language models are scored on, by the task that the set was made for.
OF_SETS = {
    "last-word prediction": "lambada",
    "minimal pairs": "minimal_pairs",
    "multiple choice": "choices",
}


def _head(result: type[Head[Any]], description: str, evaluation: Evaluation, prediction: Prediction) -> Kind:
    """Return the kind of a pretrained body with the head ``result``."""
    return Kind(
        description=description,
        recognises=_has_head(result.task),
        result=result,
        load=loader_of(result),
        evaluations={"text": evaluation},
        prediction=prediction,
    )


def _classifier(
    description: str,
    recognises: Callable[[Any], bool],
    load: Loader,
    *options: str,
    predict_options: tuple[str, ...] = (),
    most_texts: int = 1,
) -> Kind:
    """Return a kind of classifier; ``options`` and ``predict_options`` are for rows that are too long."""
    evaluation = Evaluation(
        name="classification",
        reads="is scored on labelled rows",
        options=("plot",),
        file_options=(*_COLUMNS, "encoding_errors", *options),
        most_texts=most_texts,
    )
    return Kind(
        description=description,
        recognises=recognises,
        result=TextClassifier,
        load=load,
        evaluations={"text": evaluation},
        prediction=Prediction(
            reads="predicts the labels of texts",
            options=(*_TEXTS, "batch_size", *predict_options),
            most_texts=most_texts,
        ),
    )


KINDS: dict[str, Kind] = {
    "classification": _classifier(
        "a classifier",
        _has_head("classification"),
        load_classifier,
        "too_long",
        predict_options=("too_long",),
        most_texts=2,
    ),
    # evaluate applies the row length of training, and predict reads whole texts
    "rnn_classifier": _classifier(
        "a recurrent classifier", _is_family("rnn_classifier"), load_classifier, "too_long"
    ),
    "bag_of_words": _classifier("a bag-of-words classifier", _is_family("bag_of_words"), load_bag_of_words),
    "regression": _head(
        TextRegressor,
        "a model for regression",
        Evaluation(
            name="regression",
            reads="is scored on rows with scores",
            file_options=(*_COLUMNS, "encoding_errors", "too_long"),
            most_texts=2,
        ),
        Prediction(
            reads="predicts a number for each text", options=(*_TEXTS, "batch_size", "too_long"), most_texts=2
        ),
    ),
    "multiple_choice": _head(
        MultipleChoice,
        "a model for multiple choice",
        Evaluation(
            name="multiple_choice",
            reads="is scored on questions with choices",
            file_options=("encoding_errors", "too_long"),
        ),
        Prediction(
            reads="reads questions with choices",
            options=("batch_size", "too_long"),
            rows="questions",
            files="questions with choices: SWAG's .csv, .csv with letters, or .jsonl",
        ),
    ),
    "token_classification": _head(
        TokenClassifier,
        "a model for token classification",
        Evaluation(
            name="token_classification",
            reads="is scored on words with labels",
            file_options=("text_column", "label_column", "encoding_errors", "too_long"),
            too_long=("error", "cut", "window"),
        ),
        Prediction(
            reads="predicts the labels of words",
            options=(*_TEXTS, "batch_size", "too_long"),
            too_long=("error", "cut", "window"),
        ),
    ),
    "question_answering": _head(
        QuestionAnswerer,
        "a model for question answering",
        Evaluation(
            name="question_answering",
            reads="is scored on questions with answers",
            options=("threshold",),
            file_options=("encoding_errors",),
        ),
        Prediction(
            reads="reads questions and the texts that answer them",
            options=("batch_size", "too_long", "top_k", "threshold"),
            rows="questions",
            files="questions: SQuAD's .json, or .jsonl with question and context",
        ),
    ),
    "translation": Kind(
        description="a translation model",
        recognises=translates,
        result=Translator,
        load=load_translator,
        next_command=lambda folder, _: f"translate {folder} FILE",
        evaluations={
            "text": Evaluation(
                name="translation",
                run=evaluate.evaluate_translation,
                reads="is scored on pairs of texts",
                options=(
                    *("first", "beams", "length_penalty", "max_new_tokens", "batch_size", "tokenize"),
                    "translations",
                ),
                file_options=("targets", "source_column", "target_column", "header", "encoding_errors"),
            )
        },
    ),
    "encoder": Kind(
        description="an encoder",
        recognises=encodes,
        result=TextEncoder,
        load=loader_of(TextEncoder),
        next_command=lambda folder, checkpoint: (
            f"{'predict' if checkpoint.config.masked_lm_head else 'embed'} {folder} FILE"
        ),
        embeds=True,
        evaluations={
            "text": Evaluation(
                name="masked",
                run=evaluate.evaluate_masked,
                reads=f"predicts masked tokens of running text{evaluate.PAIRS_HINT}",
                file_options=(*_DOCUMENTS, "window", "first", "batch_size"),
            ),
            "minimal_pairs": _MINIMAL_PAIRS,
            "similarity": _SIMILARITY,
        },
        prediction=Prediction(
            run=predict.predict_masked_tokens,
            reads="predicts the masked tokens of texts, one text a line",
            options=("field", "encoding_errors", "top_k"),
        ),
    ),
    "language_model": Kind(
        description="a causal language model",
        recognises=lambda config: True,
        result=LanguageModel,
        load=load_language_model,
        next_command=_try_language_model,
        embeds=True,
        own_task=lambda checkpoint: "answers" if _answers(checkpoint) else "text",
        evaluations={
            "text": Evaluation(
                name="text",
                run=evaluate.evaluate_text,
                reads="is scored on running text",
                options=("window", "stride", "start", "end", "per_word", "joined", "first", "batch_size"),
                file_options=_DOCUMENTS,
            ),
            "lambada": Evaluation(
                name="lambada",
                run=evaluate_likelihood.evaluate_lambada,
                reads="predicts the last words of passages",
                options=("first", "batch_size"),
            ),
            "minimal_pairs": _MINIMAL_PAIRS,
            "choices": Evaluation(
                name="choices",
                run=evaluate_likelihood.evaluate_choices,
                reads="answers multiple-choice questions by likelihood",
                options=("first", "batch_size", "encoding_errors"),
            ),
            "answers": Evaluation(
                name="answers",
                run=evaluate_chat.evaluate_answers,
                reads="is scored on conversations; running text takes --task text",
                options=(*_CHAT, "too_long"),
                file_options=("encoding_errors",),
                too_long=("error", "drop", "cut"),
            ),
            "instructions": Evaluation(
                name="instructions",
                run=evaluate_chat.evaluate_instructions,
                reads="answers questions that ask for a form",
                options=_CHAT,
            ),
            "similarity": _SIMILARITY,
        },
    ),
}


def kind_of(checkpoint: Checkpoint) -> Kind:
    """Return the kind of ``checkpoint``."""
    return next(kind for kind in KINDS.values() if kind.recognises(checkpoint.config))


def require_kind(checkpoint: Checkpoint, results: Sequence[type[Any]], purpose: str) -> Kind:
    """Return the kind of ``checkpoint``; raises CheckpointError if loading it gives none of ``results``.

    ``purpose`` says in the message what needs it: "this command".
    """
    kind = kind_of(checkpoint)
    if kind.result not in results:
        wanted = " or ".join(one.description for one in KINDS.values() if one.result in results)
        raise CheckpointError(
            f"{checkpoint.folder} holds {kind.description}, and {purpose} needs {wanted}; try "
            f"`{kind.command_for(checkpoint)}`"
        )
    return kind


# -- loading and saving ------------------------------------------------------------------------------------


def load(
    folder: str | Path, *, adapter: str | Path | None = None, device: str = "auto", dtype: str = "auto"
) -> Any:
    """Load the model in ``folder``: one of Wordloom's, or a Hugging Face folder of a supported family.

    Returns a :class:`LanguageModel`, :class:`TextClassifier`, :class:`TextEncoder` or :class:`Translator`, or
    the class of another fine-tuning task; see :data:`KINDS`.  ``dtype`` is auto
    (as stored), fp32, bf16, fp16 or int8.  ``adapter`` is the folder of an adapter of the model, which is
    merged into its weights; the folder of an adapter alone names its model.

    Raises CheckpointError for a folder without a model, DeviceError for a device that does not exist.
    """
    checkpoint = read_checkpoint(folder)
    if adapter is not None:
        checkpoint = with_adapter(checkpoint, adapter)
    return kind_of(checkpoint).load(checkpoint, device, dtype)


def load_as(
    result: type[Loaded],
    folder: str | Path,
    *,
    adapter: str | Path | None = None,
    device: str = "auto",
    dtype: str = "auto",
    purpose: str = "this command",
) -> Loaded:
    """Load the model in ``folder`` as a ``result``, such as :class:`LanguageModel`, perhaps with an adapter.

    Raises CheckpointError for a folder of another kind; ``purpose`` says in the message what needs a
    ``result``.
    """
    checkpoint = read_checkpoint(folder)
    if adapter is not None:
        checkpoint = with_adapter(checkpoint, adapter)
    model: Loaded = require_kind(checkpoint, [result], purpose).load(checkpoint, device, dtype)
    return model


def next_command(folder: str | Path) -> str:
    """Return a command that tries the model in ``folder``; raises CheckpointError as :func:`load` does."""
    checkpoint = read_checkpoint(folder)
    return kind_of(checkpoint).command_for(checkpoint)


def save(
    lm: LanguageModel | TextClassifier | Translator | TextEncoder,
    folder: str | Path,
    *,
    overwrite: bool = False,
) -> None:
    """Write ``lm`` to ``folder``; raises CheckpointError for an existing checkpoint unless ``overwrite``."""
    lm.save_pretrained(folder, overwrite=overwrite)

"""Upload a checkpoint to a hub, with huggingface_hub."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from wordloom.errors import CheckpointError, WordloomError
from wordloom.run.checkpoint.loaders import read_checkpoint
from wordloom.run.share.card import FILL_IN, NAME

# The names of the files of a model.  Others, such as a text beside it, stay here.
_OF_A_MODEL = (
    *("config.json", "generation_config.json", "recipe.toml", "vocabulary.json", "average.json"),
    *("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin", "pytorch_model.bin.index.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("tokenizer.model", "spiece.model", "spm.model", "sentencepiece.bpe.model", "vocab.json", "vocab.txt"),
    *("merges.txt", "encoder.json", "vocab.bpe", "chat_template.jinja"),
    *("adapter_config.json", "adapter_model.bin", "model_config.json"),
    *("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"),
    *("*.gguf", "*.onnx", "*.onnx.data", NAME, "LICENSE*", "LICENCE*", "NOTICE*"),
)
_LOGS = ("metrics.jsonl", "ledger.json")
_FOLDERS_KEPT_BACK = {"checkpoints", "trainer", "tensorboard", "views"}  # at any depth


class Upload(NamedTuple):
    """A file to upload, and its bytes."""

    name: str
    bytes: int


def files_to_push(folder: str | Path, also: Sequence[str] = ()) -> tuple[list[Upload], list[str]]:
    """Return the files of a checkpoint that :func:`push` uploads, and the names of the others.

    The files are those of a model and its card, and those that match a pattern in ``also``.  Checkpoints and
    logs of a run, and what begins with a dot, are in neither list.

    Raises CheckpointError for a folder without a model or without a model card, and for a pattern that
    matches no file.
    """
    folder = Path(folder)
    read_checkpoint(folder)
    if not (folder / NAME).is_file():
        raise CheckpointError(
            f"{folder} has no {NAME}; write one with `wordloom card {folder}`, and fill it in"
        )
    uploads, others, matched = list[Upload](), list[str](), set[str]()
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if not path.is_file() or _FOLDERS_KEPT_BACK.intersection(inside.parts[:-1]):
            continue
        name = inside.as_posix()
        asked = [pattern for pattern in also if fnmatch.fnmatchcase(name, pattern)]
        matched.update(asked)
        is_hidden = any(part.startswith(".") for part in inside.parts)  # as are files that a kill left
        of_model = any(fnmatch.fnmatchcase(path.name, pattern) for pattern in _OF_A_MODEL)
        if asked or (of_model and not is_hidden):
            uploads.append(Upload(name, path.stat().st_size))
        elif name not in _LOGS and not name.endswith(".lock") and not is_hidden:
            others.append(name)
    if missing := [pattern for pattern in also if pattern not in matched]:
        raise CheckpointError(
            f"--also: no file of {folder} beside its checkpoints and logs is '{missing[0]}'"
        )
    return uploads, others


def left_open(folder: str | Path) -> list[str]:
    """Return what the card of a checkpoint still has to say."""
    before, after = FILL_IN.split("{}")
    try:
        text = (Path(folder) / NAME).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(
            f"{Path(folder) / NAME} is not UTF-8 ({error.reason}); save it as UTF-8"
        ) from None
    found = [part.split(after)[0] for part in text.split(before)[1:]]
    return [*(["the licence (license: unknown)"] if "\nlicense: unknown\n" in text else []), *found]


def push(
    folder: str | Path,
    repository: str,
    *,
    also: Sequence[str] = (),
    private: bool = False,
    message: str | None = None,
    endpoint: str | None = None,
    token: str | None = None,
) -> str:
    """Upload a checkpoint, and return its address.

    Args:
        folder: a checkpoint with its model card.
        repository: ``OWNER/NAME``; it is made if it does not exist.
        also: patterns of further files to upload.
        private: of a new repository; False leaves it to the hub, which knows the default of an organisation.
        message: of the commit.
        endpoint: the address of the hub; None: ``$HF_ENDPOINT``, or https://huggingface.co.
        token: None: ``$HF_TOKEN``, or the one that `hf auth login` kept.

    Raises CheckpointError as :func:`files_to_push`, and WordloomError if the hub refuses or is not there.
    """
    files, _ = files_to_push(folder, also)
    check_repository(repository)
    try:
        from huggingface_hub import CommitOperationAdd, HfApi
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError
    except ImportError:
        raise CheckpointError("pushing needs huggingface_hub: pip install huggingface_hub") from None
    if not (token or os.environ.get("HF_TOKEN", "")).isascii():
        raise WordloomError("$HF_TOKEN is no token: it has a character that is not ASCII")
    api: Any = HfApi(endpoint=endpoint, token=token, library_name="wordloom")
    try:
        refusal: HfHubHTTPError | None = None
        try:
            api.create_repo(repository, private=True if private else None)
        except HfHubHTTPError as error:
            status = getattr(error.response, "status_code", None)
            if status in (401, 402, 403):  # a token may write a repository, and not make one
                refusal = error
            elif status != 409:  # it exists
                raise
        try:
            done = api.create_commit(
                repository,
                [CommitOperationAdd(each.name, Path(folder) / each.name) for each in files],
                commit_message=message or f"Upload {Path(folder).resolve().name}",
            )
        except HfHubHTTPError as error:
            raise refusal or error from None
    except HFValidationError as error:
        raise WordloomError(f"'{repository}' is no name of a repository: {_line(error)}") from None
    except HfHubHTTPError as error:
        status = getattr(error.response, "status_code", None)
        advice = "; give a token: `hf auth login`, or $HF_TOKEN" if status in (401, 403) else ""
        raise WordloomError(f"{api.endpoint} refuses the upload: {_line(error)}{advice}") from None
    except OSError as error:
        raise WordloomError(f"{api.endpoint} cannot be reached: {_line(error)}") from None
    except (RuntimeError, ValueError) as error:  # an upload broke off, the card is refused, no JSON came
        raise WordloomError(f"the upload to {api.endpoint} failed: {_line(error)}") from None
    except Exception as error:  # versions of huggingface_hub raise the errors of different HTTP clients
        if not type(error).__module__.startswith(("httpx", "httpcore", "huggingface_hub")):
            raise
        raise WordloomError(f"{api.endpoint} cannot be reached: {_line(error)}") from None
    return str(done.repo_url) if getattr(done, "repo_url", None) else f"{api.endpoint}/{repository}"


def check_repository(repository: str) -> None:
    """Raise WordloomError for a name that no repository of a hub can have."""
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", repository, re.ASCII):
        raise WordloomError(
            f"'{repository}' is no name of a repository; give OWNER/NAME of letters, digits, '-', '_' and '.'"
        )


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__

"""Upload a checkpoint to a hub, with huggingface_hub."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from wordloom.errors import CheckpointError, WordloomError
from wordloom.run.checkpoint.loaders import read_checkpoint
from wordloom.run.share.card import FILL_IN, NAME

# What a run keeps for itself: its checkpoints, logs and locks, and what begins with a dot.
_KEPT_BACK = ("*.lock", ".*", "*/.*", "metrics.jsonl*", "ledger.json")
_FOLDERS_KEPT_BACK = {"checkpoints", "trainer", "tensorboard", "views"}  # at any depth


class Upload(NamedTuple):
    """A file to upload, and its bytes."""

    name: str
    bytes: int


def files_to_push(folder: str | Path) -> list[Upload]:
    """Return the files of a checkpoint that :func:`push` uploads.

    These are all but the checkpoints and logs of a run.  Raises CheckpointError for a folder without a model
    or without a model card.
    """
    folder = Path(folder)
    read_checkpoint(folder)
    if not (folder / NAME).is_file():
        raise CheckpointError(
            f"{folder} has no {NAME}; write one with `wordloom card {folder}`, and fill it in"
        )
    return list(_files(folder))


def _files(folder: Path) -> Iterator[Upload]:
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        name = inside.as_posix()
        if _FOLDERS_KEPT_BACK.intersection(inside.parts[:-1]):
            continue
        if path.is_file() and not any(fnmatch.fnmatch(name, pattern) for pattern in _KEPT_BACK):
            yield Upload(name, path.stat().st_size)


def left_open(folder: str | Path) -> list[str]:
    """Return what the card of a checkpoint still has to say."""
    before, after = FILL_IN.split("{}")
    text = (Path(folder) / NAME).read_text(encoding="utf-8")
    found = [part.split(after)[0] for part in text.split(before)[1:]]
    return [*(["the licence (license: unknown)"] if "\nlicense: unknown\n" in text else []), *found]


def push(
    folder: str | Path,
    repository: str,
    *,
    private: bool = False,
    message: str | None = None,
    endpoint: str | None = None,
    token: str | None = None,
) -> str:
    """Upload a checkpoint, and return its address.

    Args:
        folder: a checkpoint with its model card.
        repository: ``OWNER/NAME``; it is made if it does not exist.
        private: of a new repository.
        message: of the commit.
        endpoint: the address of the hub; None: ``$HF_ENDPOINT``, or https://huggingface.co.
        token: None: ``$HF_TOKEN``, or the one that `hf auth login` kept.

    Raises CheckpointError as :func:`files_to_push`, and WordloomError if the hub refuses or is not there.
    """
    files = files_to_push(folder)
    try:
        from huggingface_hub import CommitOperationAdd, HfApi
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError
    except ImportError:
        raise CheckpointError("pushing needs huggingface_hub: pip install 'wordloom[hub]'") from None
    api: Any = HfApi(endpoint=endpoint, token=token, library_name="wordloom")
    try:
        try:
            api.create_repo(repository, private=private)
        except HfHubHTTPError as error:
            if getattr(error.response, "status_code", None) != 409:  # it exists
                raise
        done = api.create_commit(
            repository,
            [CommitOperationAdd(each.name, Path(folder) / each.name) for each in files],
            commit_message=message or f"Upload {Path(folder).resolve().name}",
        )
    except HFValidationError as error:
        raise WordloomError(f"'{repository}' is no name of a repository: {_line(error)}") from None
    except HfHubHTTPError as error:
        status = getattr(error.response, "status_code", None)
        advice = "; give a token: `hf auth login`, or $HF_TOKEN" if status in (401, 403) else ""
        raise WordloomError(f"{api.endpoint} refuses the upload: {_line(error)}{advice}") from None
    except OSError as error:
        raise WordloomError(f"{api.endpoint} cannot be reached: {_line(error)}") from None
    except Exception as error:  # versions of huggingface_hub raise the errors of different HTTP clients
        if not type(error).__module__.startswith(("httpx", "httpcore", "huggingface_hub")):
            raise
        raise WordloomError(f"{api.endpoint} cannot be reached: {_line(error)}") from None
    return str(done.repo_url) if getattr(done, "repo_url", None) else f"{api.endpoint}/{repository}"


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__

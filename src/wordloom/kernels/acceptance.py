"""The tensors that a kernel accepts, and the log line that says why a caller falls back to modules."""

from __future__ import annotations

import functools
import logging

import torch
from torch import Tensor, nn

log = logging.getLogger(__name__)
_log_once = functools.cache(log.debug)

_PLAIN = (Tensor, nn.Parameter)


def plain(*tensors: Tensor | None) -> bool:
    """Return whether each tensor is an ordinary dense one, no subclass; None counts as plain."""
    for t in tensors:  # noqa: SIM110  a generator takes twice as long, and layers ask at every call
        if t is not None and (type(t) not in _PLAIN or t.layout != torch.strided):
            return False
    return True


def fall_back(path: str, reason: str) -> None:
    """Log once, at debug level, that ``path`` calls the modules and why."""
    if not torch.compiler.is_compiling():
        _log_once("%s calls the modules: %s", path, reason)

"""The table of named data sets.

The URLs name the commits that the files were taken from.  A set marked derived was cut or assembled from its
origin and has no public URL.
"""

from __future__ import annotations

from wordloom.data.sets.corpora import CORPORA
from wordloom.data.sets.info import DatasetInfo
from wordloom.data.sets.models import MODELS
from wordloom.data.sets.tasks import TASKS

DATASETS: dict[str, DatasetInfo] = {**CORPORA, **TASKS, **MODELS}

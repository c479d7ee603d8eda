"""The named data sets, literally.

Commits in the URLs are the ones the files were taken from.  A set marked derived was cut or assembled from
its origin and has no public URL of its own.
"""

from __future__ import annotations

from wordloom.data.catalogue_corpora import CORPORA
from wordloom.data.catalogue_models import MODELS
from wordloom.data.catalogue_tasks import TASKS
from wordloom.data.datasets import DatasetInfo

DATASETS: dict[str, DatasetInfo] = {**CORPORA, **TASKS, **MODELS}

"""Datasets: records from a file, a folder, the hub, a callable or a list, each traceable to where it stands."""

from __future__ import annotations

from pytest_areal_eval.datasets.base import LoadedDataset
from pytest_areal_eval.datasets.items import item_ids, select
from pytest_areal_eval.datasets.load import load_dataset
from pytest_areal_eval.datasets.prompts import messages_of, prepare, require_columns

__all__ = [
    "LoadedDataset",
    "item_ids",
    "load_dataset",
    "messages_of",
    "prepare",
    "require_columns",
    "select",
]

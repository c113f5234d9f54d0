"""What elastic trials take of a `DataLoader`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Collate = Callable[[list[Any]], Any]


def of_loader(data: Any, collate_fn: Collate | None, num_workers: int) -> tuple[Any, Collate | None, int]:
    """Dataset, `collate_fn` and `num_workers`, of a `DataLoader` or as given. What else it has is not for it to choose."""
    if isinstance(data, torch.utils.data.DataLoader):
        data, collate_fn, num_workers = data.dataset, collate_fn or data.collate_fn, num_workers or data.num_workers
    if isinstance(data, torch.utils.data.IterableDataset) or not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        raise TypeError(
            f"elastic trials need a dataset with a length and an example for each place, or a DataLoader over one, and not {type(data).__name__}: "
            "which worker takes which example changes while they train"
        )
    return data, collate_fn, num_workers

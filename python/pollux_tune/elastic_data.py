"""Batches of the positions that a worker has in a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch


def collate(examples: list[Any]) -> Any:
    return torch.utils.data.default_collate(examples)


class Loader:
    """Loads the passes of steps, with processes that load ahead if there are any."""

    def __init__(self, dataset: Any, num_workers: int, collate_fn: Callable[[list[Any]], Any], training: Any) -> None:
        self.dataset, self._collate, self._training = dataset, collate_fn, training
        self._coming: Iterator[Any] | None = None
        self._processes = None
        if num_workers > 0:
            self._processes = torch.utils.data.DataLoader(
                dataset, batch_sampler=_Ahead(training), num_workers=num_workers, collate_fn=collate_fn, persistent_workers=True
            )

    @staticmethod
    def load(dataset: Any, places: Sequence[int]) -> list[Any]:
        many = getattr(dataset, "__getitems__", None)
        return many(list(places)) if many is not None else [dataset[place] for place in places]

    def restart(self) -> None:
        """Group, batch or position have changed."""
        self._coming = None

    def step(self, plan: Any) -> Iterator[Any]:
        for places in plan[0]:
            if not places:
                raise RuntimeError("a step has fewer examples than workers and passes: make the batch larger")
            if self._processes is None:
                yield self._collate(self.load(self.dataset, places))
                continue
            if self._coming is None:
                self._coming = iter(self._processes)
            yield next(self._coming)


class _Ahead:
    """The passes of all steps from now on, as if nothing changed."""

    def __init__(self, training: Any) -> None:
        self._training = training

    def __iter__(self) -> Iterator[list[int]]:
        first = self._training.steps
        ahead = 0
        while True:
            # Steps may have been taken since.
            done = self._training.steps - first
            yield from self._training.plan(ahead - done)[0] if ahead >= done else []
            ahead += 1

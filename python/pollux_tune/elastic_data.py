"""Batches of the positions that a worker has in a step."""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch


def collate(examples: list[Any]) -> Any:
    return torch.utils.data.default_collate(examples)


def move(batch: Any, device: torch.device) -> Any:
    """All tensors of a batch, on the device of the model."""
    if device.type == "cpu":
        return batch
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return type(batch)({key: move(value, device) for key, value in batch.items()})
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(move(value, device) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(move(value, device) for value in batch)
    return batch


def end_with_parent(_: int) -> None:
    """A process that loads ends when its worker is killed: it has inherited the worker's connections, and would hold them open."""
    set_death_signal = 1
    ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)


def _processes(dataset: Any, num_workers: int, collate_fn: Callable[[list[Any]], Any], places: Any) -> Any:
    return torch.utils.data.DataLoader(
        dataset, batch_sampler=places, num_workers=num_workers, collate_fn=collate_fn, persistent_workers=True,
        worker_init_fn=end_with_parent,
    )


class Loader:
    """Loads the passes of steps, with processes that load ahead if there are any."""

    def __init__(self, dataset: Any, num_workers: int, collate_fn: Callable[[list[Any]], Any], training: Any) -> None:
        self.dataset, self._collate, self._training = dataset, collate_fn, training
        self._coming: Iterator[Any] | None = None
        self._processes = None
        if num_workers > 0:
            self._processes = _processes(dataset, num_workers, collate_fn, _Ahead(training))

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


class Parts:
    """Loads a dataset in order, with processes that load ahead if there are any."""

    def __init__(self, dataset: Any, num_workers: int, collate_fn: Callable[[list[Any]], Any]) -> None:
        self.dataset, self.num_workers, self.collate_fn = dataset, num_workers, collate_fn
        self._places = _Places()
        self._processes = _processes(dataset, num_workers, collate_fn, self._places) if num_workers > 0 else None

    def batches(self, start: int, end: int, size: int) -> Iterator[tuple[int, Any]]:
        """Batches of at most so many examples, each with the place behind its last one."""
        ends = [min(first + size, end) for first in range(start, end, size)]
        self._places.all = [range(first, last) for first, last in zip([start, *ends], ends)]
        if self._processes is not None:
            yield from zip(ends, self._processes)
            return
        for last, places in zip(ends, self._places.all):
            yield last, self.collate_fn(Loader.load(self.dataset, places))


class _Places:
    """What is to be loaded next, in a list that changes."""

    def __init__(self) -> None:
        self.all: list[range] = []

    def __iter__(self) -> Iterator[list[int]]:
        return iter([list(places) for places in self.all])

    def __len__(self) -> int:
        return len(self.all)

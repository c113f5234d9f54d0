"""Elastic trials: an ordinary PyTorch loop that changes its number of workers and its batch while it trains."""

from __future__ import annotations

import gc
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from . import _core
from .elastic_data import Loader, Parts, collate, move
from .elastic_group import Group
from .elastic_loader import of_loader
from .elastic_state import from_file, pack, seal, to_file, unpack
from .elastic_step import ElasticModel, GradScaler, Stepper

# How many examples are evaluated at once.
EVALUATION_BATCH = 256
_GROUP_ERRORS = (RuntimeError, OSError, TimeoutError)


class Released(BaseException):
    """The trial is over for this worker. Unwinds the trial's function."""


class Finished(BaseException):
    """Another worker has the result of the trial. Unwinds the trial's function."""


class _Overtaken(BaseException):
    """The state that a new group has brought is of a later epoch than the one that the function is in. Unwinds the function."""


class _Given(dict[str, Any]):
    """Parameters that a study has given. Says what there is instead of one that is missing."""

    def __missing__(self, name: str) -> Any:
        raise KeyError(f"the space of the study has no parameter `{name}`: it has {', '.join(self)}")


class Trial:
    """A trial, for the function that trains it."""

    def __init__(self, worker: Any, task: dict[str, Any], training: Any) -> None:
        self._worker, self._task, self._training = worker, task, training
        self._asked: tuple[Any, ...] = ("prepare",) if worker else ("train", False, False)
        self._stepper: Stepper | None = None
        self._kept: dict[str, Any] = {}
        self._reports: list[tuple[float, dict[str, float]]] = []
        self._last: dict[str, float] = {}
        self._evaluation: dict[str, float] = {}
        self._result: dict[str, float] | None = None
        self._by_epoch = False
        # The epoch that the function is in, if it is in one, and whether the state is of a later one.
        self._epoch: int | None = None
        self._is_overtaken = False
        # The loop over batches of this epoch: none yet, begun, or run to its end.
        self._loop: bool | None = None
        self._loader: Loader | None = None
        # How many examples the training data have, and whether a batch may be halved.
        self._data: tuple[int, bool] | None = None
        self._parts: list[Parts] = []
        self._evaluation_batch: int | None = None
        # What an earlier call of the function has learned, and why it has left its group if it was in one.
        self._resumed: tuple[dict[str, Any], str | None] | None = None
        params: dict[str, Any] = task["params"]
        #: Hyper-parameters by name.
        self.params: dict[str, Any] = _Given(params) if type(params) is dict else params
        #: The number of the trial.
        self.number: int = task["trial"]
        #: Where this worker computes.
        self.device = torch.device("cuda", 0) if worker and worker.is_gpu else torch.device("cpu")
        torch.manual_seed(task["seed"])

    # --- for users ---------------------------------------------------------------------------------------------------------------
    def elastic(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, *, find_unused_parameters: bool = False
    ) -> tuple[ElasticModel, torch.optim.Optimizer]:
        """Makes model and optimizer elastic, in place of `init_process_group` and `DistributedDataParallel`."""
        if self._stepper is not None:
            raise RuntimeError("trial.elastic was called before; a trial has one model and one optimizer")
        model.to(self.device)
        self._stepper = Stepper(self._training, model, optimizer, find_unused_parameters)
        self._stepper.seed = self._task["seed"]
        return ElasticModel(model, self._stepper), optimizer

    def keep(self, name: str, thing: Any) -> Any:
        """Makes something with `state_dict` and `load_state_dict` part of the trial's state: a scheduler, an average, a scaler."""
        if not (hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")):
            raise TypeError(f"`{name}` has no state_dict and load_state_dict, so that it cannot be kept")
        self._kept[name] = thing
        return thing

    def scaler(self, **settings: Any) -> GradScaler:
        """A `torch.amp.GradScaler` for this trial, which is part of its state."""
        return self.keep("scaler", GradScaler(self._must_be_elastic(), self.device.type, **settings))

    def epochs(self) -> Iterator[int]:
        """The epochs that are left, each a statistical epoch: `for epoch in trial.epochs(): for x, y in trial.batches(data): ...`."""
        self._by_epoch = True
        # Which epoch it is belongs to the state, which comes with the first group.
        self._begin()
        while True:
            self._between()
            if self._asked[0] == "evaluate" or self._training.is_finished:
                return
            self._loop = None
            self._epoch = self._training.evaluations
            yield self._epoch
            self._epoch = None
            if self._loop is None:
                raise RuntimeError("every epoch has to loop over trial.batches(...)")
            if not self._loop:
                raise RuntimeError(
                    "the loop over trial.batches(...) was left before its end: the epoch is not over, and the next one would repeat it; "
                    "for a short trial give fewer epochs, or a smaller dataset"
                )

    def batches(
        self, dataset: Any, *, num_workers: int = 0, collate_fn: Callable[[list[Any]], Any] | None = None, halves: bool = True
    ) -> Iterator[Any]:
        """This worker's part of each step, until the trial has had its statistical epochs, or the one of `epochs()`.

        Say `halves=False` if the loss compares examples of a batch with each other.
        """
        self._loop = False
        dataset, collate_fn, num_workers = of_loader(dataset, collate_fn, num_workers)
        stepper = self._must_be_elastic()
        self._data = (len(dataset), halves)
        self._training.open(*self._data)
        self._begin()
        if self._loader is None or self._loader.dataset is not dataset:
            self._loader = Loader(dataset, num_workers, collate_fn or collate, self._training)
        while True:
            self._between()
            if self._is_overtaken:
                raise _Overtaken
            if self._asked[0] == "evaluate" or self._training.is_finished:
                self._loop = True
                return
            plan = self._training.plan(0)
            stepper.begin(plan, self._asked[1], self._asked[2])
            for batch in self._loader.step(plan):
                stepper.next_pass()
                yield move(batch, self.device)
            stepper.leave_loop()
            if stepper.broken is not None:
                self._loader.restart()
            elif self._by_epoch and self._training.wants_evaluation:
                self._loop = True
                return

    @property
    def progress(self) -> float:
        """Statistical epochs so far: what learning-rate schedules should follow."""
        return self._training.epochs

    @property
    def total_epochs(self) -> float:
        """Statistical epochs of the whole trial."""
        return self._training.total_epochs

    @property
    def should_evaluate(self) -> bool:
        """Whether the step that was just taken has completed an epoch; then all workers say so."""
        return self._training.wants_evaluation

    @property
    def rank(self) -> int:
        """This worker's number in its group; it may change from step to step."""
        return self._training.group[0]

    @property
    def size(self) -> int:
        """The workers of the group; it may change from step to step."""
        return self._training.group[1]

    @property
    def batch_size(self) -> int:
        """Examples of a step over all workers."""
        return self._training.group[3]

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor | None:
        """Clips the gradient of the whole batch; call it before `optimizer.step`, on every pass."""
        stepper = self._must_be_elastic()
        if not stepper.is_last or stepper.is_done:
            return None
        stepper.settle()
        if stepper.broken is not None:
            return None
        return torch.nn.utils.clip_grad_norm_(stepper.parameters, max_norm, norm_type)

    def report(self, metrics: Mapping[str, float] | None = None, **more: float) -> None:
        """Reports metrics of now, the objective among them: early stopping follows them. All workers call it."""
        values = _numbers({**(metrics or {}), **more})
        self._last = values
        if self._asked[0] == "evaluate":
            self._evaluation.update(values)
        else:
            self._reports.append((self._training.epochs, values))

    def evaluate(
        self, dataset: Any, fn: Callable[[Any], Mapping[str, Any]], *, batch_size: int = EVALUATION_BATCH, num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
    ) -> dict[str, float]:
        """Means over a dataset, of which every worker takes a part. `fn(batch)` gives sums over the examples of a batch."""
        dataset, collate_fn, num_workers = of_loader(dataset, collate_fn, num_workers)
        stepper = self._must_be_elastic()
        self._evaluating()
        sums: dict[str, float] = {}
        count, group = len(dataset), stepper.group
        parts = self._parts_of(dataset, num_workers, collate_fn or collate)
        is_together = group is not None and stepper.broken is None and not self._is_before_steps
        rank, size = (group.rank, group.size) if is_together else (0, 1)

        def add(part: int, of: int) -> None:
            start, end = count * part // of, count * (part + 1) // of
            while start < end:
                most = min(batch_size, self._evaluation_batch or batch_size)
                try:
                    for start_of_next, batch in parts.batches(start, end, most):
                        values = {name: float(value) for name, value in fn(move(batch, self.device)).items()}
                        start = start_of_next
                        for name, value in values.items():
                            sums[name] = sums.get(name, 0.0) + value
                except Exception as error:
                    if most == 1 or not _is_exhausted(error):
                        raise
                    self._evaluation_batch = most // 2

        was_training = stepper.module.training
        stepper.module.eval()
        try:
            with torch.no_grad():
                if is_together:
                    self._average_buffers()
                add(rank, size)
                if size > 1 and not self._sum(sums, group):
                    # Whoever is left has the whole dataset, and needs nobody.
                    sums.clear()
                    add(0, 1)
        finally:
            stepper.module.train(was_training)
        return {name: value / count for name, value in sums.items()}

    def _parts_of(self, dataset: Any, num_workers: int, collate_fn: Callable[[list[Any]], Any]) -> Parts:
        for parts in self._parts:
            if parts.dataset is dataset and parts.num_workers == num_workers and parts.collate_fn is collate_fn:
                return parts
        self._parts.append(Parts(dataset, num_workers, collate_fn))
        return self._parts[-1]

    # --- the protocol ------------------------------------------------------------------------------------------------------------
    def _must_be_elastic(self) -> Stepper:
        if self._stepper is None:
            raise RuntimeError("call `model, optimizer = trial.elastic(model, optimizer)` first")
        return self._stepper

    def _begin(self) -> None:
        """The model is made, and all that is kept is known: the head may form a group, which brings the state."""
        self._must_be_elastic()
        if self._asked[0] == "prepare" or (self._worker is None and self._training.state_steps is None):
            self._check_schedules()
        if self._worker is None:
            if self._training.state_steps is None:
                self._training.form_alone(self._task["initial_batch"], 0)
            self._resume()
        elif self._resumed is not None:
            why_left = self._resume()
            if why_left is not None:
                self._worker.failed("group", why_left)
                self._next()
        elif self._asked[0] == "prepare":
            self._worker.done()
            self._next()
        if self._result is not None:
            raise Finished

    def _check_schedules(self) -> None:
        """A schedule that is not kept would begin anew on each worker that joins."""
        is_kept = any(isinstance(thing, torch.optim.lr_scheduler.LRScheduler) for thing in self._kept.values())
        if getattr(self._must_be_elastic().optimizer.step, "_wrapped_by_lr_sched", False) and not is_kept:
            warnings.warn(
                "the schedule of the learning rate is no part of the trial, and begins anew on each worker that joins: "
                'write `scheduler = trial.keep("scheduler", scheduler)`',
                stacklevel=4,
            )

    def _resume(self) -> str | None:
        """Goes on where an earlier call of the function was; why it has left its group, if it was in one."""
        if self._resumed is None:
            return None
        (state, why_left), self._resumed = self._resumed, None
        self._restore(state)
        return why_left

    def _next(self) -> None:
        """Waits until the head wants steps or an evaluation; does what else it wants before that."""
        while True:
            asked = self._worker.next()
            if asked is None:
                os._exit(0)
            kind = asked[0]
            if kind == "form":
                self._form(asked[1])
            elif kind == "save":
                self._save()
            elif kind == "leave":
                self._drop_group()
                self._worker.done()
            elif kind == "forget":
                self._drop_group()
                self._worker.done()
                raise Released
            else:
                self._asked = asked
                return

    def _between(self) -> None:
        """After the body of the loop: tells the head what it should know, and hears what it wants."""
        stepper = self._must_be_elastic()
        if self._training.wants_evaluation and stepper.is_done:
            self._training.evaluated()
        if self._worker is None:
            self._reports.clear()
            return
        if self._asked[0] == "evaluate":
            if self._training.is_finished and not self._is_mid_evaluation:
                return
            self._is_mid_evaluation = False
            values, self._evaluation = self._evaluation, {}
            self._worker.evaluated(values)
            self._next()
        if self._asked[0] == "train" and stepper.at >= 0:
            if stepper.broken is not None:
                reason = stepper.broken
                stepper.begin_nothing()
                self._worker.failed("group", reason)
                self._next()
            elif stepper.left or stepper.retuned or self._reports or self._training.is_finished or not self._worker.may_continue():
                self._answer_trained(False)
                self._next()

    _is_mid_evaluation = False

    def _answer_trained(self, evaluates: bool) -> None:
        stepper = self._must_be_elastic()
        if stepper.retuned and self._loader is not None:
            self._loader.restart()
        reports, self._reports = self._reports, []
        left, retuned = stepper.left, stepper.retuned
        stepper.begin_nothing()
        stepper.left = stepper.retuned = False
        self._worker.trained(left, retuned, evaluates, reports)

    def _evaluating(self) -> None:
        stepper = self._must_be_elastic()
        if self._worker and self._asked[0] == "train" and stepper.at >= 0 and stepper.broken is None:
            self._answer_trained(True)
            self._next()
            self._is_mid_evaluation = True

    @property
    def _is_before_steps(self) -> bool:
        """In an epoch, before its batches: the others are perhaps in the middle of it, if this worker has just joined."""
        return self._by_epoch and self._loop is None and self._asked[0] != "evaluate"

    def _average_buffers(self) -> None:
        """Each worker's batches have moved its own running statistics: from here on all have the mean of them."""
        stepper = self._must_be_elastic()
        group = stepper.group
        moved = [b for b in stepper.module.buffers() if b.is_floating_point()]
        if not moved:
            return
        try:
            flat = torch.cat([b.reshape(-1).double() for b in moved])
            group.all_reduce(flat).div_(group.size)
            for buffer, part in zip(moved, flat.split([b.numel() for b in moved])):
                buffer.copy_(part.reshape(buffer.shape))
        except _GROUP_ERRORS:
            pass  # The next step tells.

    def _sum(self, sums: dict[str, float], group: Group) -> bool:
        try:
            sums.update(group.sum_by_name(sums))
            return True
        except _GROUP_ERRORS:
            return False

    # --- groups and state --------------------------------------------------------------------------------------------------------
    def _form(self, request: Any) -> None:
        try:
            form_s, hand_over_s = self._join(request)
        except _Unfit as error:
            self._worker.failed("trial", str(error))
        except _GROUP_ERRORS as error:
            self._drop_group()
            self._worker.failed("group", str(error).splitlines()[0] if str(error) else type(error).__name__)
        else:
            self._worker.formed(form_s, hand_over_s)

    def _join(self, request: Any) -> tuple[float, float]:
        self._drop_group()
        began = time.perf_counter()
        group = None
        formed = began
        if request.everybody > 1:
            group = Group(self._worker, request.room, "all", request.place, request.everybody)
            self._worker.on_abort(request, group.abort)
            mine = self._training.state_steps
            steps = group.gather(-1 if mine is None else mine)
            formed = time.perf_counter()
            source = steps.index(max(steps))
            if max(steps) < 0 and request.place == source:
                self._load()
            if max(steps) < 0 or min(steps) != max(steps):
                received = group.hand_over(source, self._state() if request.place == source else None)
                if received is not None:
                    self._restore(received)
        elif self._training.state_steps is None:
            self._load()
        if group is not None and (request.is_donor or request.members == 1 or request.members < request.everybody):
            group.close()
            group = None
        if request.is_donor:
            return 0.0, 0.0
        if 1 < request.members < request.everybody:
            group = Group(self._worker, request.room, "members", request.place, request.members)
            self._worker.on_abort(request, group.abort)
            group.gather(0)
        request.enter(self._training)
        stepper = self._must_be_elastic()
        stepper.begin_nothing()
        stepper.join(group)
        if self._loader is not None:
            self._loader.restart()
        return formed - began, time.perf_counter() - formed

    def _drop_group(self) -> None:
        if self._stepper is not None:
            self._stepper.drop()

    def _state(self) -> dict[str, Any]:
        stepper = self._must_be_elastic()
        return {
            "model": stepper.module.state_dict(),
            "optimizer": stepper.optimizer.state_dict(),
            "kept": {name: thing.state_dict() for name, thing in self._kept.items()},
            "books": self._training.state(),
            "data": self._data,
            "last": self._last,
            "result": self._result,
        }

    def _restore(self, state: dict[str, Any]) -> None:
        stepper = self._must_be_elastic()
        try:
            stepper.module.load_state_dict(state["model"])
            stepper.optimizer.load_state_dict(state["optimizer"])
            for name, thing in self._kept.items():
                if name in state["kept"]:
                    thing.load_state_dict(state["kept"][name])
            self._training.restore(state["books"])
            # How far it is, and whether it is at its end, counts in examples of the data, which a newcomer has not opened yet.
            # Checkpoints of earlier versions do not have it.
            if state.get("data") is not None:
                self._data = state["data"]
                self._training.open(*self._data)
            self._last, self._result = state["last"], state["result"]
            # Others have completed a step that was lost here, and it was the last one of the epoch.
            self._is_overtaken = self._epoch is not None and self._training.evaluations > self._epoch
        except (RuntimeError, ValueError, KeyError) as error:
            raise _Unfit(f"the state of the trial does not fit the model: {error}") from error
        if self._result is not None:
            self._training.finish()

    def _load(self) -> None:
        found = self._training.load()
        if found is not None:
            self._restore(from_file(found[1]))

    def _save(self) -> None:
        try:
            rest, tensors = pack(self._state())
            self._worker.saved(to_file(seal(rest, tensors), tensors))
        except Exception as error:
            self._worker.failed("environment", f"the state cannot be copied: {error}")

    def _can_shrink(self, error: BaseException) -> bool:
        """Whether it was a pass that did not fit into memory, and smaller ones may."""
        stepper = self._stepper
        is_in_pass = stepper is not None and self._asked[0] == "train" and stepper.at >= 0 and not (stepper.is_done or stepper.is_updating)
        if not (is_in_pass and _is_exhausted(error)):
            return False
        if not self._training.exhausted():
            raise MemoryError("not even one example at a time fits into the memory of the device") from error
        return True

    def _start_again(self, why: str) -> None:
        """For another call of the function: keeps the state of now, and none of the memory."""
        stepper = self._must_be_elastic()
        why_left = None if stepper.group is None else why
        if not stepper.is_done:
            stepper.roll_back()
        rest, tensors = pack(self._state())
        state = unpack(rest, [tensor.to("cpu", copy=True) for _, tensor in tensors])
        self._drop_group()
        self._resumed = (state, why_left)
        self._epoch, self._is_overtaken = None, False
        self._stepper, self._loader, self._kept, self._parts = None, None, {}, []
        del stepper, tensors
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        torch.manual_seed(self._task["seed"])

    # --- the end -----------------------------------------------------------------------------------------------------------------
    def _returned(self, result: Any) -> None:
        if result is not None and not isinstance(result, Mapping):
            raise TypeError(f"the function of a trial returns its metrics as a dict, and not {type(result).__name__}")
        values = _numbers(result) if result else self._last
        if not values:
            raise ValueError("the function has neither returned nor reported any metrics")
        if self._worker is None:
            return
        if self._asked[0] == "prepare":
            raise RuntimeError("the function has returned without training: loop over trial.batches(...)")
        self._result = values
        self._training.finish()
        stepper = self._must_be_elastic()
        while True:
            if self._asked[0] == "train":
                if stepper.broken is not None:
                    self._worker.failed("group", stepper.broken)
                else:
                    self._answer_trained(False)
            elif self._is_mid_evaluation:
                self._is_mid_evaluation = False
                self._worker.evaluated(self._evaluation)
            else:
                self._worker.evaluated(values)
            self._next()

    def _failed(self, reason: str) -> None:
        if self._worker is None:
            return
        was = self._asked[0]
        self._worker.failed("trial", reason)
        if was != "prepare":
            self._next()
            self._worker.failed("trial", reason)


class _Unfit(Exception):
    """A state that is not that of the model."""


def _is_exhausted(error: BaseException) -> bool:
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or _core.is_out_of_memory(str(error))


def call(trial: Trial, function: Callable[[Trial], Any]) -> Any:
    """Calls the function of a trial, and again with smaller passes if one does not fit into memory, or if it has missed the end of an epoch."""
    while True:
        try:
            return function(trial)
        except _Overtaken:
            why = "a worker has missed the end of an epoch"
        except Exception as error:
            if not trial._can_shrink(error):
                raise
            why = "a pass did not fit into the memory of a worker"
        # After the error is gone, and with it what the call has held.
        trial._start_again(why)


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    values = {str(name): float(value) for name, value in metrics.items()}
    for name, value in values.items():
        if value != value or value in (float("inf"), float("-inf")):
            raise FloatingPointError(f"the metric `{name}` is {value}; the training has diverged")
    return values

"""Lightning: an ordinary `LightningModule` as an elastic trial.

::

    import pollux_tune as pt
    from pollux_tune.lightning import ElasticTrainer

    @pt.trial
    def train(trial):
        return ElasticTrainer(trial).fit(LitNet(trial.params["lr"]), datamodule=Images())

    pt.main()

Lightning's own `Trainer` owns its processes and its loop, so that it cannot be rescaled. `ElasticTrainer` has a loop of its own over `trial`, and
calls the module as `Trainer` does, with one optimizer that it steps itself.
"""

from __future__ import annotations

import itertools
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from .elastic import EVALUATION_BATCH, Trial

__all__ = ["ElasticTrainer"]


class _Step(torch.nn.Module):
    """The training step of a module as a forward pass, since gradients are reduced for those. Its state is that of the module."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module

    def forward(self, batch: Any, index: int) -> torch.Tensor:
        loss = self.module.training_step(batch, index)
        loss = loss["loss"] if isinstance(loss, Mapping) else loss
        if loss is None:
            raise TypeError("training_step has returned no loss; elastic trials cannot skip a batch")
        return loss

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.module.load_state_dict(*args, **kwargs)


class ElasticTrainer:
    """Trains a `LightningModule` by `trial`: with as many workers and as large a batch as the head wants, for the epochs of the study file.

    Args:
        trial: The trial.
        gradient_clip_val: The largest norm of a gradient; none clips nothing.
        find_unused_parameters: Whether some parameters may have no part in a loss.
    """

    def __init__(
        self, trial: Trial, *, gradient_clip_val: float | None = None, find_unused_parameters: bool = False
    ) -> None:
        self._trial = trial
        self._clip = gradient_clip_val
        self._unused = find_unused_parameters
        self._logs: dict[str, float] | None = None
        self._batch: Any = None
        #: The last means of all that was logged in validation, by name.
        self.callback_metrics: dict[str, float] = {}
        #: For modules: statistical epochs that are complete. From `on_train_start` on, those of the whole trial.
        self.current_epoch = 0

    # --- what modules ask their trainer ------------------------------------------------------------------------------------------
    @property
    def global_step(self) -> int:
        """Updates of the optimizer in the whole trial, whichever workers made them. A step of several passes counts when it is complete."""
        return self._trial._training.steps

    @property
    def world_size(self) -> int:
        """Workers of the trial; it may change from step to step."""
        return self._trial.size

    @property
    def global_rank(self) -> int:
        """This worker's number in its group; it may change from step to step."""
        return self._trial.rank

    @property
    def is_global_zero(self) -> bool:
        """Whether this worker is the first one."""
        return self._trial.rank == 0

    @property
    def max_epochs(self) -> float:
        """Statistical epochs of the whole trial."""
        return self._trial.total_epochs

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"`{name}` of a Lightning Trainer is not there in elastic trials; what is: callback_metrics, current_epoch, global_rank, "
            "global_step, is_global_zero, max_epochs, world_size"
        )

    # --- training ----------------------------------------------------------------------------------------------------------------
    def fit(self, model: Any, train_dataloaders: Any = None, val_dataloaders: Any = None, datamodule: Any = None) -> dict[str, float]:
        """Trains to the end of the trial, reports what was logged in validation after each epoch, and returns the last of it.

        Loaders give their dataset, `collate_fn` and `num_workers`. Their batch size counts in validation only: that of training is the
        head's to choose.
        """
        if not model.automatic_optimization:
            raise TypeError("modules with manual optimization cannot be elastic: use trial.elastic and trial.batches in a loop of your own")
        _prepare(model, datamodule)
        source = datamodule if datamodule is not None else model
        training = _one(train_dataloaders if train_dataloaders is not None else source.train_dataloader(), "training")
        validation = _one(val_dataloaders if val_dataloaders is not None else source.val_dataloader(), "validation")
        self._attach(model)
        optimizer, schedules = _optimizer(model.configure_optimizers())
        step, optimizer = self._trial.elastic(_Step(model), optimizer, find_unused_parameters=self._unused)
        for number, schedule in enumerate(schedules):
            self._trial.keep(f"lr_scheduler.{number}", schedule["scheduler"])
        model.on_fit_start()
        epochs = self._trial.epochs()
        # The state comes before the first epoch, so that modules see from the start where the trial is.
        begun = list(itertools.islice(epochs, 1))
        self.current_epoch = self._trial._training.evaluations
        model.on_train_start()
        for epoch in itertools.chain(begun, epochs):
            self.current_epoch = epoch
            self._train_epoch(model, step, optimizer, training)
            self._validate(model, validation)
            model.on_train_epoch_end()
            self._trial.report(self.callback_metrics)
            for schedule in schedules:
                _advance(schedule, self.callback_metrics)
        model.on_train_end()
        model.on_fit_end()
        if not self.callback_metrics:
            # All epochs were behind the checkpoint that it began with.
            self._validate(model, validation)
        return self.callback_metrics

    def _train_epoch(self, model: Any, step: Any, optimizer: torch.optim.Optimizer, loader: Any) -> None:
        model.on_train_epoch_start()
        batches = self._trial.batches(loader.dataset, num_workers=loader.num_workers, collate_fn=_collate(loader))
        for index, batch in enumerate(batches):
            batch = model.transfer_batch_to_device(batch, self._trial.device, 0)
            model.on_train_batch_start(batch, index)
            optimizer.zero_grad()
            loss = step(batch, index)
            loss.backward()
            if self._clip is not None:
                self._trial.clip_grad_norm_(self._clip)
            optimizer.step()
            model.on_train_batch_end(loss, batch, index)

    def _validate(self, model: Any, loader: Any) -> None:
        index = itertools.count()

        def sums(batch: Any) -> dict[str, float]:
            self._batch = batch = model.transfer_batch_to_device(batch, self._trial.device, 0)
            self._logs = {}
            model.validation_step(batch, next(index))
            logs, self._logs = self._logs, None
            return logs

        model.on_validation_epoch_start()
        size = loader.batch_size or EVALUATION_BATCH
        how = {"batch_size": size, "num_workers": loader.num_workers, "collate_fn": _collate(loader)}
        self.callback_metrics = self._trial.evaluate(loader.dataset, sums, **how)
        model.on_validation_epoch_end()
        if not self.callback_metrics:
            raise RuntimeError("validation_step has logged nothing: self.log(name, value) of the objective is what the study goes by")

    # --- logs --------------------------------------------------------------------------------------------------------------------
    def _attach(self, model: Any) -> None:
        model.trainer = self

        def log(_: Any, name: str, value: Any, *_args: Any, batch_size: int | None = None, **_options: Any) -> None:
            self._log(name, value, batch_size)

        def log_dict(_: Any, values: Mapping[str, Any], *_args: Any, batch_size: int | None = None, **_options: Any) -> None:
            for name, value in values.items():
                self._log(name, value, batch_size)

        for one in model.modules():
            if hasattr(one, "training_step"):
                one.log, one.log_dict = types.MethodType(log, one), types.MethodType(log_dict, one)

    def _log(self, name: str, value: Any, batch_size: int | None) -> None:
        if self._logs is None:
            return  # What is logged in training is this worker's alone; the head measures speed and noise itself.
        if hasattr(value, "compute"):
            raise TypeError(f"`{name}` is a Metric, whose state would be that of one worker: log the value of the batch, self.log(\"{name}\", metric(y, target))")
        size = batch_size if batch_size is not None else _size(self._batch)
        self._logs[name] = self._logs.get(name, 0.0) + float(value) * size


def _prepare(model: Any, datamodule: Any) -> None:
    for one in (datamodule, model):
        if one is not None:
            one.prepare_data()
            one.setup("fit")


def _one(loader: Any, what: str) -> Any:
    loader = loader[0] if isinstance(loader, Sequence) and len(loader) == 1 else loader
    if not isinstance(loader, torch.utils.data.DataLoader):
        raise TypeError(f"the {what} data of an elastic trial have to be one DataLoader over a dataset with a length, and not {type(loader).__name__}")
    return loader


def _collate(loader: Any) -> Any:
    return None if loader.collate_fn is torch.utils.data.default_collate else loader.collate_fn


def _optimizer(configured: Any) -> tuple[torch.optim.Optimizer, list[dict[str, Any]]]:
    """Whatever `configure_optimizers` may return, if it is one optimizer."""
    schedules: Any = []
    if isinstance(configured, Mapping):
        configured, schedules = configured["optimizer"], configured.get("lr_scheduler") or []
    elif isinstance(configured, Sequence) and len(configured) == 2 and isinstance(configured[0], Sequence):
        configured, schedules = configured
    if isinstance(configured, Sequence) and len(configured) == 1:
        configured = configured[0]
        if isinstance(configured, Mapping):
            return _optimizer(configured)
    if not isinstance(configured, torch.optim.Optimizer):
        raise TypeError("configure_optimizers has to return one optimizer, with or without learning-rate schedules")
    schedules = schedules if isinstance(schedules, Sequence) else [schedules]
    schedules = [dict(one) if isinstance(one, Mapping) else {"scheduler": one} for one in schedules]
    for schedule in schedules:
        if schedule.get("interval", "epoch") != "epoch":
            raise ValueError("a learning-rate schedule of an elastic trial steps once per epoch: how many steps there are is not known before")
    return configured, schedules


def _advance(schedule: dict[str, Any], metrics: Mapping[str, float]) -> None:
    scheduler = schedule["scheduler"]
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        scheduler.step(metrics[schedule["monitor"]])
    else:
        scheduler.step()


def _tensors(batch: Any) -> Iterator[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from _tensors(value)
    elif isinstance(batch, Sequence) and not isinstance(batch, str):
        for value in batch:
            yield from _tensors(value)


def _size(batch: Any) -> int:
    for tensor in _tensors(batch):
        if tensor.ndim > 0:
            return tensor.shape[0]
    raise ValueError("the number of examples in a batch cannot be seen: say self.log(..., batch_size=...)")

"""Hugging Face: a `transformers.Trainer` reports its evaluations, and is stopped early.

::

    import pollux_tune as pt
    from pollux_tune.huggingface import ReportCallback

    def train(trial):
        arguments = TrainingArguments(learning_rate=trial.params["lr"], eval_strategy="epoch", ...)
        trainer = Trainer(model, arguments, ..., callbacks=[ReportCallback(trial)])
        trainer.train()

    study = pt.optimize(train, {"lr": pt.log(1e-5, 1e-3)}, {"minimize": "eval_loss"}, early_stopping="asha", epochs=3)

In a program of `trial.command`, `ReportCallback()` tells the head by `POLLUX_TUNE_METRICS`. Such trials are not elastic.
"""

from __future__ import annotations

import json
import math
import numbers
import os
from typing import Any

from transformers import TrainerCallback

from .study import SearchTrial

__all__ = ["ReportCallback"]


class ReportCallback(TrainerCallback):
    """Reports the numbers of each evaluation, and ends the training if the trial is to be stopped.

    Args:
        trial: That of `pollux_tune.optimize` or `Study.ask`; none in a program that `pollux-tune run` has started.
    """

    def __init__(self, trial: SearchTrial | None = None) -> None:
        self._trial = trial
        self._file = os.environ.get("POLLUX_TUNE_METRICS") if trial is None else None

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: dict[str, Any] | None = None, **_: Any) -> None:
        """Called by `Trainer` after each evaluation."""
        values = {
            name: float(value) for name, value in (metrics or {}).items() if name != "epoch" and isinstance(value, numbers.Real)
        }
        if self._trial is not None:
            if not self._trial.report(values, epochs=state.epoch):
                control.should_training_stop = True
        elif self._file is not None and state.is_world_process_zero:
            finite = {name: value for name, value in values.items() if math.isfinite(value)}
            with open(self._file, "a") as out:
                out.write(json.dumps({**finite, "epoch": state.epoch}) + "\n")

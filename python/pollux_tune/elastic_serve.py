"""A worker process that trains whatever trials its head wants."""

from __future__ import annotations

import gc
import json
import os
import traceback
from collections.abc import Callable
from typing import Any

import torch

from .elastic import Finished, Released, Trial, call


def run(worker: Any, function: Callable[[Trial], Any], task: dict[str, Any], training: Any) -> None:
    """One trial on this worker, from its preparation until it is forgotten."""
    trial = Trial(worker, task, training)
    try:
        try:
            trial._returned(call(trial, function))
        except Exception:
            trial._failed(traceback.format_exc().strip())
        except Finished:
            trial._returned(trial._result)
        except SystemExit as error:
            trial._failed(f"the function has called sys.exit({error.code!r})\n{traceback.format_exc().strip()}")
    except Released:
        pass
    trial._drop_group()
    del trial
    gc.collect()


def serve(worker: Any, function: Callable[[Trial], Any], first: tuple[Any, ...] | None = None) -> None:
    """Trains whatever the head wants, until it is gone."""
    torch.set_num_threads(worker.threads)
    asked = first or worker.next()
    while asked is not None:
        if asked[0] == "prepare":
            task = json.loads(asked[1])
            # A worker serves one trial after the other, and all print into its log.
            print(f"== trial {task['trial']}", flush=True)
            run(worker, function, task, asked[2])
        else:
            worker.done()
        asked = worker.next()
    os._exit(0)

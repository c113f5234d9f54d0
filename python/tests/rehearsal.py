"""Rehearsals of `rehearsed_script.py`: real workers under a real head, which a test holds at events."""

import fcntl
import json
import os
import signal
import sys
from pathlib import Path

import torch
from rehearsed_script import BATCH, EXAMPLES

from pollux_tune import _core
from pollux_tune.elastic_state import from_file

SCRIPT = Path(__file__).with_name("rehearsed_script.py")
# For what comes sooner or later, also on a busy machine.
PATIENCE_S = 300
EPOCHS = 4
STEPS = EPOCHS * EXAMPLES // BATCH


class Gate:
    """A step that a training does not get past until it is opened: workers that come there wait for a lock."""

    def __init__(self, folder, name):
        self.path = folder / f"gate-{name}"
        self._lock = open(self.path, "w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def open(self):
        fcntl.flock(self._lock, fcntl.LOCK_UN)

    def after(self, steps, slot=None):
        """For the parameter `gates`: the worker of a slot, or all, wait in the step after so many."""
        return f"{steps};{'' if slot is None else slot};{self.path}|"


def task(folder, name, /, *, epochs=EPOCHS, initial_batch=BATCH, checkpoint_every_s=1e9, measure_noise=True, **params):
    """The trial of a test; `name` is that of its checkpoint."""
    return {
        "study": "0" * 32, "trial": 0, "trainable": str(SCRIPT), "params": {"lr": 0.05, **params}, "seed": 11, "epochs": float(epochs),
        "initial_batch": initial_batch, "lr_rule": "adascale", "checkpoint": str(folder / name), "checkpoint_every_s": checkpoint_every_s,
        "report_every_s": 1e-6, "evaluate_every": 1.0, "measure_noise": measure_noise, "mixed_precision": False,
    }


class Run:
    """Tasks that train one after the other."""

    def __init__(self, tasks, start, arguments=(str(SCRIPT),), **settings):
        self.number = 0
        environment = {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
        self._rehearsal = _core.Rehearsal(
            json.dumps(tasks), list(arguments), interpreter=sys.executable, start=start, env=environment, **settings
        )
        self.rescale, self.use_batch, self.close = self._rehearsal.rescale, self._rehearsal.use_batch, self._rehearsal.close

    def next(self):
        event = self._rehearsal.next(PATIENCE_S)
        assert event is not None, "nothing happens"
        return json.loads(event)

    def pid(self, slot):
        """The worker process on a slot."""
        mine, wanted = str(os.getpid()), f"POLLUX_TUNE_WORKER_NODE={slot}".encode()
        for process in Path("/proc").iterdir():
            try:
                parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
                if parent == mine and wanted in (process / "environ").read_bytes().split(b"\0"):
                    return int(process.name)
            except (OSError, IndexError):
                continue  # It has ended, or is no process.
        raise AssertionError(f"there is no worker on slot {slot}")

    def kill(self, slot):
        os.kill(self.pid(slot), signal.SIGKILL)


def train(tasks, start, look=lambda run, event: None, **settings):
    """Trains tasks to their ends, and shows everything that happens to `look`. Gives what has happened to each."""
    run = Run(tasks, start, **settings)
    try:
        everything = [[] for _ in tasks]
        while run.number < len(tasks):
            event = run.next()
            look(run, event)
            everything[run.number].append(event)
            run.number += event["event"] in ("finished", "failed")
        return everything
    finally:
        run.close()


def steps(events):
    """The steps of the last report."""
    return [event["report"]["steps"] for event in events if event["event"] == "reported"][-1]


def finished(events):
    """The metrics of a training that has come to its end."""
    assert events[-1]["event"] == "finished", events[-1]
    return events[-1]["metrics"]


def checkpoint(tasks, number):
    """The last one of a task, and the books of it."""
    books = _core.Training(json.dumps({**tasks[number], "trial": number}))
    found = books.load()
    assert found is not None, f"there is no checkpoint of task {number}"
    return from_file(found[1]), books


def statistics(tasks, number):
    """The squared norm of the gradient and its variance, as the last checkpoint of a task has them."""
    whole, books = checkpoint(tasks, number)
    books.restore(whole["books"])
    return books.statistics


def state(tasks, number):
    """All tensors of the last checkpoint of a task."""
    whole, _ = checkpoint(tasks, number)
    tensors = {f"model.{name}": tensor for name, tensor in whole["model"].items()}
    for place, moments in whole["optimizer"]["state"].items():
        tensors.update({f"{place}.{name}": value for name, value in moments.items() if isinstance(value, torch.Tensor)})
    return tensors


def assert_same(ours, theirs, what):
    """To within what the order of sums explains."""
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        other = theirs[name].double()
        difference = (tensor.double() - other).norm() / other.norm().clamp_min(1e-12)
        assert difference < 1e-6, f"{what}: {name} differs by {difference:.2e}"


class Rescales:
    """Changes of the workers of a training, each after so many steps. It waits there until its workers were told to form the next group."""

    def __init__(self, folder, plan):
        self._plan, self._done, self.groups = plan, 0, []
        self._pending = folder / "pending"
        self._gates = [Gate(folder, at) for at, _ in plan]

    @property
    def params(self):
        gates = "".join(gate.after(at) for gate, (at, _) in zip(self._gates, self._plan))
        return {"gates": gates, "pending": str(self._pending)}

    def follow(self, run, event):
        if event["event"] == "forming" and event["group"] >= 2:
            self._gates[self._done - 1].open()
        elif event["event"] == "formed":
            self.groups.append(event["slots"])
            self._pending.unlink(missing_ok=True)
        elif event["event"] == "reported" and self._done < len(self._plan) and event["report"]["steps"] == self._plan[self._done][0]:
            assert len(self.groups) == self._done + 1, "the last change takes longer than that"
            self._pending.touch()
            run.rescale(self._plan[self._done][1])
            self._done += 1

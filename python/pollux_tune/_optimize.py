"""Runs the trials of a study: a function, in this process or in several."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import multiprocessing.reduction
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ._core import StudyFinished
from .space import Space
from .study import Objective, Result, SearchTrial, Study, values_of

#: What is called with each trial. Without a result, the last reported value counts.
Function = Callable[[SearchTrial], "Result | None"]

#: How long a process may take to end by itself.
_GRACE_S = 10.0

_NO_START = """\
a worker process ended before its first trial ({end}), see above. Worker processes import the script that started them:
- a script that calls pt.optimize does so below `if __name__ == "__main__":`,
- the function is at the top level of a file, not of a notebook or an interactive session (or use parallel=1)."""


def optimize(
    function: Function,
    space: Space | str | os.PathLike[str] | Study,
    objective: Objective | None = None,
    *,
    trials: int | None = None,
    parallel: int = 1,
    algorithm: str | None = None,
    seed: int | None = None,
    early_stopping: str | Mapping[str, Any] | None = None,
    epochs: float | None = None,
    constraints: Sequence[str] = (),
    folder: str | os.PathLike[str] | None = None,
    start_method: str = "spawn",
    progress: bool | None = None,
) -> Study:
    """Calls a function with one trial after the other, and returns the study with all results.

    ::

        def train(trial):
            for epoch in range(10):
                loss = ...
                if not trial.report(loss=loss):
                    break
            return {"loss": loss}

        if __name__ == "__main__":
            study = pt.optimize(train, {"lr": pt.log(1e-4, 1e-1)}, {"minimize": "loss"}, trials=100, parallel=4)
            print(study.best)

    An exception in the function fails the trial, with its traceback as the reason; so does the death of its process. With a
    ``folder`` the same call resumes a study after Ctrl-C or any crash, beginning with the trials that ran then.

    Args:
        function: Gets a :class:`SearchTrial`; returns a number, one for each objective, metrics by name, or nothing if
            the last reported value counts.
        space: As for :class:`Study`, or a study that is open already: then only ``parallel``, ``start_method`` and ``progress``
            can be given beside it.
        parallel: How many trials run at a time. 1: in this process; more: in so many processes.
        start_method: How processes start: ``"spawn"``, ``"forkserver"`` or ``"fork"`` (not with CUDA or threads).
        progress: Whether to print a line for each trial to stderr; by default if that is a terminal.
        objective, trials, algorithm, seed, early_stopping, epochs, constraints, folder: As for :class:`Study`.

    Raises:
        ValueError: For settings that are wrong, and when all trials fail: with the last traceback.
    """
    if parallel < 1:
        raise ValueError(f"parallel: found {parallel}; expected 1 or more")
    settings: dict[str, Any] = dict(algorithm=algorithm, seed=seed, early_stopping=early_stopping, epochs=epochs)
    if isinstance(space, Study):
        given = {"objective": objective, "trials": trials, **settings, "constraints": constraints or None, "folder": folder}
        for name, value in given.items():
            if value is not None:
                raise ValueError(f"{name}: given beside a study that is open already; expected as an argument of that study")
        study = space
    else:
        study = Study(space, objective, trials=trials, parallel=parallel, constraints=constraints, folder=folder, **settings)
    session = _Session(study, sys.stderr.isatty() if progress is None else progress)
    if parallel == 1:
        session.run_here(function)
    else:
        _Pool(session, function, parallel, start_method).run()
    return study


class TrialsFailed(ValueError):
    """Trial after trial has failed, and none has shown a result: the function is wrong, not the parameters."""


class _Session:
    """What to try next, and what became of it."""

    def __init__(self, study: Study, progress: bool) -> None:
        self.study = study
        self._progress = progress
        self._left = study.running
        rows = study.trials
        self._ended = sum(row["state"] != "running" for row in rows)
        self._failed = sum(row["state"] == "failed" for row in rows)
        self._works = any(row["state"] in ("done", "stopped") or row["epochs"] is not None for row in rows)

    def next(self) -> SearchTrial | None:
        """First those that were left by a killed process."""
        if self._left:
            return self._left.pop(0)
        try:
            return self.study.ask()
        except StudyFinished:
            return None

    def report(self, id: int, epochs: float, value: float) -> str | None:
        self._works = True
        return self.study._search.report(id, epochs, value)

    def end(self, id: int, values: list[float] | None, failure: str | None) -> None:
        row = self.study._search.trial(id)
        if row is not None and row["state"] == "running":
            if failure is not None:
                self.study.tell(id, state="failed", reason=failure)
            elif values is not None:
                self.study.tell(id, values)
            row = self.study._search.trial(id)
        self._ended += 1
        state = row["state"] if row is not None else "failed"
        self._works |= state in ("done", "stopped")
        self._failed += state == "failed"
        if self._progress:
            self._show(id, state, values, failure)
        most = self.study._search.max_failures
        if not self._works and 0 < most <= self._failed:
            why = failure or (row or {}).get("reason")
            raise TrialsFailed(f"{self._failed} trials have failed, and none has shown a result. The last one: {why}")

    def _show(self, id: int, state: str, values: list[float] | None, failure: str | None) -> None:
        names = self.study.metrics
        result = " ".join(f"{name}={value:.6g}" for name, value in zip(names, values or [])) if state == "done" else ""
        best = self.study.best
        text = f"trial {id} {state} {result or (failure or '').partition(chr(10))[0]}".rstrip()
        known = f", best {names[0]}={best['value']:.6g} (trial {best['id']})" if best else ""
        print(f"{text}; {self._ended} of {self.study._search.trials}{known}", file=sys.stderr, flush=True)

    def run_here(self, function: Function) -> None:
        while (trial := self.next()) is not None:
            trial._reporter = self.report
            self.end(trial.id, *_call(function, trial))


def _call(function: Function, trial: SearchTrial) -> tuple[list[float] | None, str | None]:
    """The values of a trial, or why it failed; neither if it was stopped."""
    try:
        result = function(trial)
        if trial.should_stop:
            return None, None
        if result is None and trial._last is not None and len(trial._metrics) == 1:
            result = trial._last
        return values_of(result, trial._metrics), None
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        frames = error.__traceback__
        if frames is not None and frames.tb_next is not None:
            frames = frames.tb_next  # without this function
        head = "".join(traceback.format_exception_only(type(error), error)).strip()
        return None, f"{head}\n{''.join(traceback.format_exception(type(error), error, frames)).rstrip()}"


class _Worker:
    """A process that runs one trial after the other."""

    def __init__(self, context: Any, number: int, function: Function, metrics: list[str]) -> None:
        self.number = number
        self.trial: int | None = None
        self.is_ready = False
        self.connection, theirs = context.Pipe()
        # No daemon: data loaders start processes of their own.
        self.process = context.Process(target=_work, args=(theirs, number, function, metrics), name=f"pollux-tune-{number}")
        self.process.start()
        theirs.close()

    def how_it_ended(self) -> str:
        self.process.join()
        code = self.process.exitcode
        if code is not None and code < 0:
            try:
                return f"killed by {signal.Signals(-code).name}"
            except ValueError:
                return f"killed by signal {-code}"
        return f"exit code {code}"


class _Pool:
    """Several processes; this one only suggests, judges and writes down."""

    def __init__(self, session: _Session, function: Function, parallel: int, start_method: str) -> None:
        methods = multiprocessing.get_all_start_methods()
        if start_method not in methods:
            raise ValueError(f"start_method: found {start_method!r}; expected one of {', '.join(methods)}")
        try:
            multiprocessing.reduction.ForkingPickler.dumps(function)
        except Exception as error:
            problem = f"function: {error}; with parallel={parallel} it must be at the top level of a file, no lambda and no local function"
            raise ValueError(problem) from error
        self._context = multiprocessing.get_context(start_method)
        self._session, self._function, self._parallel = session, function, parallel
        self._workers: dict[int, _Worker] = {}

    def run(self) -> None:
        whole = False
        try:
            self._start_trials()
            while self._workers:
                self._step()
            whole = True
        finally:
            self._close(whole)

    def _start_trials(self) -> None:
        """Gives a trial to every free worker, as long as there are some."""
        for number in range(self._parallel):
            worker = self._workers.get(number)
            if worker is not None and worker.trial is not None:
                continue
            trial = self._session.next()
            if trial is None:
                if worker is not None:
                    self._dismiss(worker)
                continue
            if worker is None:
                worker = _Worker(self._context, number, self._function, self._session.study.metrics)
                self._workers[number] = worker
            worker.trial = trial.id
            self._send(worker, (trial.id, trial.params))

    def _send(self, worker: _Worker, message: Any) -> None:
        try:
            worker.connection.send(message)
        except OSError:
            pass  # it has died, which is about to be seen

    def _step(self) -> None:
        """Waits until something happens, and reacts."""
        by_handle: dict[Any, _Worker] = {}
        for worker in self._workers.values():
            by_handle[worker.connection] = by_handle[worker.process.sentinel] = worker
        ready = multiprocessing.connection.wait(list(by_handle))
        for worker in {by_handle[handle].number: by_handle[handle] for handle in ready}.values():
            try:
                # What it has said before its end comes first.
                if worker.connection.poll():
                    self._heard(worker, worker.connection.recv())
                    continue
            except (EOFError, OSError):
                pass
            self._lost(worker)
        self._start_trials()

    def _heard(self, worker: _Worker, message: tuple[Any, ...]) -> None:
        kind, *rest = message
        if kind == "ready":
            worker.is_ready = True
        elif kind == "report":
            self._send(worker, self._session.report(*rest))
        elif kind == "ended":
            worker.trial = None
            self._session.end(*rest)

    def _lost(self, worker: _Worker) -> None:
        del self._workers[worker.number]
        worker.connection.close()
        end = worker.how_it_ended()
        if not worker.is_ready:
            raise RuntimeError(_NO_START.format(end=end))
        if worker.trial is not None:
            self._session.end(worker.trial, None, f"its process ended in the middle of the trial ({end})")

    def _dismiss(self, worker: _Worker) -> None:
        """There is nothing more to do for it."""
        del self._workers[worker.number]
        worker.connection.close()
        worker.process.join(_GRACE_S)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()

    def _close(self, whole: bool) -> None:
        for worker in self._workers.values():
            worker.connection.close()
            if not whole:
                worker.process.terminate()
        for worker in self._workers.values():
            worker.process.join(_GRACE_S)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        self._workers.clear()


def _work(connection: Any, number: int, function: Function, metrics: list[str]) -> None:
    """A worker process, until its connection is closed."""
    # Ctrl-C reaches all processes of a terminal. The one that started this decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_die_with, args=(parent,), daemon=True).start()

    def report(id: int, epochs: float, value: float) -> str | None:
        connection.send(("report", id, epochs, value))
        reason: str | None = connection.recv()
        return reason

    try:
        connection.send(("ready",))
        while True:
            id, params = connection.recv()
            trial = SearchTrial(report, id, params, metrics, number)
            connection.send(("ended", id, *_call(function, trial)))
    except (EOFError, OSError):
        pass  # nobody is interested any more


def _die_with(parent: Any) -> None:
    parent.join()
    os._exit(1)

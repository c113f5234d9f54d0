"""Ask and tell: a study suggests parameters, and whoever asks runs the trials."""

from __future__ import annotations

import json
import math
import numbers
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Union

from . import _core
from ._core import StudyFinished
from .space import Space

if TYPE_CHECKING:
    import pandas

#: What is optimized: ``"minimize"``, ``"maximize"``, ``{"minimize": "loss"}``, or a list of such mappings.
Objective = Union[str, Mapping[str, str], Sequence[Mapping[str, str]]]
#: The result of a trial: a number, one for each objective, or metrics by name.
Result = Union[float, Sequence[float], Mapping[str, float]]

_DIRECTIONS = ("minimize", "maximize")
#: How a trial may end other than by a result.
_ENDS = ("failed", "stopped", "cancelled")


class SearchTrial:
    """A trial of a :class:`Study`: what to try, and where to report.

    Attributes:
        id: The number of the trial, from 0.
        params: The values to try, by name; parameters of other branches are missing.
        worker: Which of the ``parallel`` processes of :func:`optimize` runs it, from 0; to choose a GPU, for example.
        should_stop: Whether the trial is to end early. Set by :meth:`report`.
        stop_reason: Why, if it is.
    """

    def __init__(self, reporter: Any, id: int, params: dict[str, Any], metrics: list[str], worker: int = 0) -> None:
        self.id = id
        self.params = params
        self.worker = worker
        self.should_stop = False
        self.stop_reason: str | None = None
        self._reporter = reporter
        self._metrics = metrics
        self._epochs = 0.0
        self._last: float | None = None

    def report(
        self, value: float | Mapping[str, float] | None = None, /, *, epochs: float | None = None, **metrics: float
    ) -> bool:
        """Reports an intermediate value of the first objective, and tells whether to go on.

        Args:
            value: The value, or metrics by name; metrics may also be keyword arguments: ``trial.report(loss=0.3)``.
            epochs: The progress so far, in whatever all trials count it. By default each report is one further.

        Returns:
            True if the trial goes on, False if it should end now (as :attr:`should_stop` says from then on).
        """
        if isinstance(value, Mapping):
            metrics = {**value, **metrics}
        elif value is not None:
            metrics = {self._metrics[0]: value, **metrics}
        name = self._metrics[0]
        if name not in metrics:
            raise ValueError(f"report: found {', '.join(metrics) or 'nothing'}; expected a value of `{name}`")
        self._epochs = self._epochs + 1.0 if epochs is None else float(epochs)
        measured = _number(metrics[name], f"report: {name}")
        if math.isfinite(measured):
            self._last = measured
        reason = self._reporter(self.id, self._epochs, measured)
        if reason is not None:
            self.should_stop, self.stop_reason = True, reason
        return not self.should_stop

    def __repr__(self) -> str:
        return f"SearchTrial(id={self.id}, params={self.params})"


class Study:
    """Suggests parameters, takes results, and decides when a trial should be stopped.

    ::

        study = pt.Study({"lr": pt.log(1e-4, 1e-1)}, "minimize", trials=30, folder="studies/mine")
        for trial in study:
            study.tell(trial, train(**trial.params))
        print(study.best)

    Args:
        space: Parameters with their domains (see :mod:`pollux_tune.space`), or the name of a study file.
        objective: ``"minimize"``, ``"maximize"``, or with a name ``{"maximize": "accuracy"}``; a list of these for several
            objectives. A study file has its own.
        trials: How many there are to be; 100 by default.
        parallel: How many of them may run at a time: the search takes account of it.
        algorithm: ``auto`` (the default), ``tpe``, ``gp``, ``random``, ``halton`` or ``grid``.
        seed: Of all random choices.
        early_stopping: The rule by which reports are judged: ``"asha"``, ``"hyperband"``, ``"median"``, or as in study files
            ``{"rule": "asha", "grace": 2}``.
        epochs: How far a trial runs that is not stopped, in what reports count; rules need it.
        constraints: Such as ``["batch * accumulation <= 4096"]``.
        folder: Where the study is kept, so that it resumes after any crash; ``pollux-tune status``, ``trials``, ``best`` and
            others read it. Without one it lasts as long as this object.

    Raises:
        ValueError: With the name of each field that is wrong, and what is allowed.
    """

    def __init__(
        self,
        space: Space | str | os.PathLike[str],
        objective: Objective | None = None,
        *,
        trials: int | None = None,
        parallel: int | None = None,
        algorithm: str | None = None,
        seed: int | None = None,
        early_stopping: str | Mapping[str, Any] | None = None,
        epochs: float | None = None,
        constraints: Sequence[str] = (),
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        counts = {"trials": trials, "parallel": parallel, "seed": seed}
        if isinstance(space, Mapping):
            if objective is None:
                raise ValueError('objective: missing; expected "minimize", "maximize", {"maximize": "accuracy"} or a list of them')
            text = _text(space, objective, algorithm, early_stopping, epochs, constraints)
            self._search = _core.Search(text=text, folder=folder, **counts)
        else:
            given = {"objective": objective, "algorithm": algorithm, "early_stopping": early_stopping, "epochs": epochs}
            given["constraints"] = constraints or None
            for name, value in given.items():
                if value is not None:
                    raise ValueError(f"{name}: given beside the study file {os.fspath(space)}; expected one of the two")
            self._search = _core.Search(source=space, folder=folder, **counts)
        self.metrics: list[str] = [name for name, _ in self._search.objectives()]

    def ask(self) -> SearchTrial:
        """Starts a trial with the most promising parameters.

        Raises:
            StudyFinished: If all trials of the study were asked for, or a grid is used up.
        """
        return self._trial(*self._search.ask())

    def tell(
        self,
        trial: SearchTrial | int,
        result: Result | None = None,
        *,
        state: str | None = None,
        reason: str = "",
    ) -> None:
        """Ends a trial: with its result, or with a ``state`` of ``"failed"``, ``"stopped"`` or ``"cancelled"`` and a reason.

        Results that are not finite count as failure. A trial that a report has stopped has ended already.
        """
        id = trial.id if isinstance(trial, SearchTrial) else trial
        if state is not None:
            if state not in _ENDS or result is not None:
                found = f"{state!r} beside a result" if result is not None else repr(state)
                raise ValueError(f"state: found {found}; expected one of {', '.join(_ENDS)} without a result")
            getattr(self._search, f"tell_{state}")(id, reason)
        else:
            self._search.tell(id, values_of(result, self.metrics))

    def enqueue(self, params: Mapping[str, Any]) -> int:
        """Tries known parameters before anything else. Returns how many wait to be tried."""
        return self._search.enqueue(dict(params))

    @property
    def is_finished(self) -> bool:
        """Whether all trials were asked for; some of them may still run."""
        return self._search.is_finished()

    @property
    def running(self) -> list[SearchTrial]:
        """Trials without an end: those that others work on, or did when they were killed."""
        return [self._resumed(row) for row in self._search.all() if row["state"] == "running"]

    @property
    def trials(self) -> list[dict[str, Any]]:
        """All trials so far, as dictionaries.

        ``id``, ``state`` (``running``, ``done``, ``stopped``, ``failed``, ``cancelled``), ``params``, ``value`` (of the first
        objective), ``values`` (of all, by name), ``epochs`` and ``last`` (of the furthest report), and ``reason``.
        """
        return [self._row(row) for row in self._search.all()]

    @property
    def best(self) -> dict[str, Any] | None:
        """The best trial that ran to its end, as in :attr:`trials`; None if there is none yet."""
        return next(iter(self.best_trials(1)), None)

    def best_trials(self, count: int = 5) -> list[dict[str, Any]]:
        """The best trials that ran to their end, the best first."""
        return [self._row(row) for row in self._search.best(count)]

    def pareto_front(self) -> list[dict[str, Any]]:
        """The trials that no other beats in all objectives."""
        return [self._row(row) for row in self._search.pareto_front()]

    def importance(self, metric: str | None = None) -> dict[str, float]:
        """The share of an objective's variance that each parameter explains, the most important first."""
        metric = self.metrics[0] if metric is None else metric
        if metric not in self.metrics:
            raise ValueError(f"metric: found {metric!r}; expected one of {', '.join(self.metrics)}")
        return dict(self._search.importance(self.metrics.index(metric)))

    def trials_dataframe(self) -> pandas.DataFrame:
        """All trials as a table: ``params_lr``, ``values_loss`` and so on. Needs pandas."""
        try:
            import pandas
        except ImportError as error:
            raise ImportError("trials_dataframe needs pandas: pip install pandas, or use study.trials, a list of dicts") from error
        rows = []
        for trial in self.trials:
            params, values = trial.pop("params"), trial.pop("values") or {}
            row = {key: trial[key] for key in ("id", "state", "value", "epochs", "reason")}
            row.update({f"values_{name}": value for name, value in values.items()} if len(self.metrics) > 1 else {})
            rows.append({**row, **{f"params_{name}": value for name, value in params.items()}})
        return pandas.DataFrame(rows)

    def to_yaml(self) -> str:
        """The study as a file for ``pollux-tune``."""
        return self._search.yaml()

    def close(self) -> None:
        """Gives the folder back, so that another process can use it."""
        self._search.close()

    def __enter__(self) -> Study:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._search.all())

    def __iter__(self) -> Iterator[SearchTrial]:
        """Trials that were left running by a killed process, then new ones until all were asked for."""
        yield from self.running
        while True:
            try:
                trial = self.ask()
            except StudyFinished:
                return
            yield trial

    def _trial(self, id: int, params: dict[str, Any]) -> SearchTrial:
        return SearchTrial(self._search.report, id, params, self.metrics)

    def _resumed(self, row: dict[str, Any]) -> SearchTrial:
        return self._trial(row["id"], row["params"])

    def _row(self, row: dict[str, Any]) -> dict[str, Any]:
        values = row.pop("values")
        named = None if values is None else dict(zip(self.metrics, values))
        head = {"id": row["id"], "state": row["state"], "params": row["params"]}
        return {**head, "value": values[0] if values else None, "values": named, **row}


def values_of(result: Any, metrics: Sequence[str]) -> list[float]:
    """One value for each objective."""
    if isinstance(result, Mapping):
        missing = [name for name in metrics if name not in result]
        if missing:
            raise ValueError(f"result: found {', '.join(map(str, result)) or 'nothing'}, missing is {', '.join(missing)}")
        return [_number(result[name], name) for name in metrics]
    values = list(result) if isinstance(result, (list, tuple)) else [result]
    if len(values) != len(metrics):
        raise ValueError(f"result: found {len(values)} values; expected one for each of {', '.join(metrics)}")
    return [_number(value, "result") for value in values]


def _number(value: Any, name: str) -> float:
    # Tensors and arrays with one element have `item`.
    if hasattr(value, "item") and not isinstance(value, numbers.Real):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ValueError(f"{name}: found {value!r}; expected a number")
    return float(value)


def _text(
    space: Mapping[str, Any],
    objective: Objective,
    algorithm: str | None,
    early_stopping: str | Mapping[str, Any] | None,
    epochs: float | None,
    constraints: Sequence[str],
) -> str:
    """A study file: JSON is YAML."""
    if isinstance(objective, str):
        if objective not in _DIRECTIONS:
            allowed = f'"minimize", "maximize", or with the direction {{"minimize": {objective!r}}}'
            raise ValueError(f"objective: found {objective!r}; expected {allowed}")
        objective = {objective: "value"}
    search: dict[str, Any] = {}
    if algorithm is not None:
        search["algorithm"] = algorithm
    if early_stopping is not None:
        search["early_stopping"] = {"rule": early_stopping} if isinstance(early_stopping, str) else early_stopping
    study: dict[str, Any] = {"space": space, "objective": objective, "search": search}
    if constraints:
        study["constraints"] = list(constraints)
    if epochs is not None:
        study["trial"] = {"epochs": epochs}
    return json.dumps(study, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    """Numbers of numpy, mappings and sequences of other types."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (Sequence, range)):
        return list(value)
    if hasattr(value, "item"):
        return value.item()
    raise ValueError(f"space: found {value!r}; expected numbers, strings, True and False")

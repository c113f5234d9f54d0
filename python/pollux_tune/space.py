"""Domains of parameters, in the words of study files.

Each function returns what would stand in the ``space`` of a study file, so both forms can be mixed::

    space = {
        "lr": pt.log(1e-4, 1e-1),
        "optimizer": pt.choice({"sgd": {"momentum": pt.float(0.0, 0.99)}, "adam": {}}),
        "width": {"int": [64, 512], "step": 64},
    }

``prior`` is the value that is expected to be best, ``confidence`` how sure that is: ``low``, ``medium`` (the default) or ``high``. The
search begins there and finds better ones all the same.
"""

from __future__ import annotations

import builtins
from typing import Any, Mapping, Sequence, Union

Scalar = Union[builtins.bool, builtins.int, builtins.float, str]
#: One parameter: what one of the functions here returns, a list of choices, or a constant.
Domain = Union[Mapping[str, Any], Sequence[Scalar], Scalar]
#: Names of parameters with their domains.
Space = Mapping[str, Domain]
#: Other parameters and the value, or values, with which this one is active.
When = Mapping[str, Union[Scalar, Sequence[Scalar]]]


def _domain(
    form: dict[str, Any],
    when: When | None,
    prior: Scalar | None = None,
    confidence: str | None = None,
    **more: Any,
) -> dict[str, Any]:
    form.update({key: value for key, value in more.items() if value})
    expected = {"prior": prior, "confidence": confidence}
    form.update({key: value for key, value in expected.items() if value is not None})
    if when is not None:
        form["when"] = dict(when)
    return form


def float(
    low: builtins.float,
    high: builtins.float,
    *,
    step: builtins.float | None = None,
    log: builtins.bool = False,
    prior: builtins.float | None = None,
    confidence: str | None = None,
    when: When | None = None,
) -> dict[str, Any]:
    """Numbers from ``low`` to ``high``, in steps or on a logarithmic scale if wanted."""
    return _domain({"float": [low, high]}, when, prior, confidence, step=step, log=log)


def log(
    low: builtins.float,
    high: builtins.float,
    *,
    prior: builtins.float | None = None,
    confidence: str | None = None,
    when: When | None = None,
) -> dict[str, Any]:
    """Numbers whose logarithms are equally likely: learning rates, weight decays."""
    return _domain({"log": [low, high]}, when, prior, confidence)


def int(
    low: builtins.int,
    high: builtins.int,
    *,
    step: builtins.int | None = None,
    log: builtins.bool = False,
    prior: builtins.int | None = None,
    confidence: str | None = None,
    when: When | None = None,
) -> dict[str, Any]:
    """Whole numbers from ``low`` to ``high``, both included."""
    return _domain({"int": [low, high]}, when, prior, confidence, step=step, log=log)


def choice(
    values: Sequence[Scalar] | Mapping[str, Space | None],
    *,
    prior: Scalar | None = None,
    confidence: str | None = None,
    when: When | None = None,
) -> dict[str, Any]:
    """One of several values without order; as a mapping, each with the parameters that only it has."""
    if isinstance(values, Mapping):
        branches = {name: dict(space or {}) or None for name, space in values.items()}
        return _domain({"choice": branches}, when, prior, confidence)
    return _domain({"choice": list(values)}, when, prior, confidence)


def ordinal(
    values: Sequence[Scalar],
    *,
    prior: Scalar | None = None,
    confidence: str | None = None,
    when: When | None = None,
) -> dict[str, Any]:
    """One of several values of which neighbours are alike: sizes, for example."""
    return _domain({"ordinal": list(values)}, when, prior, confidence)


def fixed(value: Scalar, *, when: When | None = None) -> dict[str, Any]:
    """Always the same value."""
    return _domain({"fixed": value}, when)

"""`@trial` and `main`: the same script under `pollux-tune run`, and by itself."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

from . import _core

_function: Callable[[Any], Any] | None = None
# The worker that this process is, and the trial that it is to begin with.
serving: tuple[Any, Any] | None = None


def trial(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Marks the function that trains a trial. It gets a `pollux_tune.elastic.Trial` and returns its metrics."""
    global _function
    _function = function
    return function


def main() -> None:
    """Trains: what the head wants if `pollux-tune` has started this process, else once, with parameters of the command line."""
    global serving
    if _function is None:
        raise RuntimeError("there is no function to train with: mark one with @pollux_tune.trial")
    from .elastic_serve import serve

    if serving is not None:
        (worker, asked), serving = serving, None
        serve(worker, _function, asked)
    worker = _core.Worker.attach()
    if worker is not None:
        serve(worker, _function)
    _by_hand(_function)


class _Params(dict):
    """Parameters of the command line. Says which one is missing, and knows which ones were used."""

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__(values)
        self.used: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.used.add(name)
        if name not in self:
            raise SystemExit(f"the trial needs the parameter `{name}`: give --{name} VALUE")
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.used.add(name)
        return super().get(name, default)


def _value(text: str) -> Any:
    """As a study file would have it: also numbers such as `.5`, `1.` and `5.e-1`, which are not JSON."""
    for read in (json.loads, float):
        try:
            value = read(text)
        except ValueError:
            continue
        return value if isinstance(value, (bool, int, float, str)) else text
    return text


def _by_hand(function: Callable[[Any], Any]) -> None:
    from .elastic import Trial, call

    parser = argparse.ArgumentParser(
        description="Train once, in this process, without pollux-tune.",
        # `--b 3` is a parameter, and not short for `--batch`.
        allow_abbrev=False,
        epilog="Parameters of the trial are options, too: --lr 0.1 or --lr=0.1.",
    )
    parser.add_argument("--epochs", type=float, default=1.0, help="epochs to train for (default: 1)")
    parser.add_argument("--batch", type=int, default=128, help="examples of a step (default: 128)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and order (default: 0)")
    settings, rest = parser.parse_known_args()
    params: dict[str, Any] = {}
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            parser.error(f"unexpected `{word}`; parameters are given as --name value")
        name, equals, text = word[2:].partition("=")
        if not equals:
            # A flag, perhaps one of the script's own.
            text = rest.pop(0) if rest and not rest[0].startswith("--") else "true"
        params[name] = _value(text)
    task = {
        "study": "0" * 32, "trial": 0, "trainable": sys.argv[0], "params": params, "seed": settings.seed,
        "epochs": settings.epochs, "initial_batch": settings.batch, "lr_rule": "adascale", "checkpoint": "",
        "checkpoint_every_s": 1e9, "report_every_s": 1.0, "evaluate_every": 1.0, "measure_noise": False, "mixed_precision": False,
    }
    training = _core.Training(json.dumps(task))
    task["params"] = given = _Params(params)
    by_hand = Trial(None, task, training)
    result = call(by_hand, function)
    by_hand._returned(result)
    for name in sorted(set(given) - given.used):
        print(f"warning: nothing has used the parameter `{name}` (fine if --{name} is an option of your own)", file=sys.stderr)
    values = dict(result) if result else by_hand._last
    print(json.dumps({name: float(value) for name, value in values.items()}))

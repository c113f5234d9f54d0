"""Time of one ask and tell, against Optuna: a part of `make bench-python`.

Both search the same space (6 parameters: 3 on a logarithmic scale, 1 linear, 1 whole number, 1 choice) by their multivariate TPE, one trial
at a time, in one process. A row is the median time of ask and tell of the last 50 trials before a count; the runs take turns.
"""

import math
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import optuna

import pollux_tune as pt

COUNTS = [100, 300, 1000]
WINDOW = 50
ROUNDS = 3


def loss(lr, momentum, weight_decay, dropout, layers, optimizer):
    bowl = (math.log10(lr) + 2) ** 2 + (momentum - 0.9) ** 2 + 0.1 * (math.log10(weight_decay) + 4) ** 2
    return bowl + (math.log10(dropout) + 1) ** 2 + 0.05 * abs(layers - 4) + (0.1 if optimizer == "adam" else 0.0)


def ours(folder):
    space = {
        "lr": pt.log(1e-5, 1),
        "momentum": pt.float(0, 1),
        "weight_decay": pt.log(1e-7, 1e-1),
        "dropout": pt.log(1e-3, 0.9),
        "layers": pt.int(1, 12),
        "optimizer": ["sgd", "adam", "lamb"],
    }
    study = pt.Study(space, "minimize", trials=COUNTS[-1], algorithm="tpe", folder=folder and folder / "study")

    def one():
        trial = study.ask()
        study.tell(trial, loss(**trial.params))

    return one, study.close


def optunas(folder):
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = None
    if folder:
        backend = optuna.storages.journal.JournalFileBackend(str(folder / "journal.log"))
        storage = optuna.storages.JournalStorage(backend)
    sampler = optuna.samplers.TPESampler(multivariate=True, seed=0)
    study = optuna.create_study(storage=storage, sampler=sampler)

    def one():
        trial = study.ask()
        params = {
            "lr": trial.suggest_float("lr", 1e-5, 1, log=True),
            "momentum": trial.suggest_float("momentum", 0, 1),
            "weight_decay": trial.suggest_float("weight_decay", 1e-7, 1e-1, log=True),
            "dropout": trial.suggest_float("dropout", 1e-3, 0.9, log=True),
            "layers": trial.suggest_int("layers", 1, 12),
            "optimizer": trial.suggest_categorical("optimizer", ["sgd", "adam", "lamb"]),
        }
        study.tell(trial, loss(**params))

    return one, lambda: None


def measure(begin, on_disk):
    """Milliseconds of an ask and tell, by the number of trials before it."""
    with tempfile.TemporaryDirectory() as folder:
        one, close = begin(Path(folder) if on_disk else None)
        times = []
        for _ in range(COUNTS[-1]):
            began = time.perf_counter()
            one()
            times.append(1e3 * (time.perf_counter() - began))
        close()
    return [statistics.median(times[count - WINDOW : count]) for count in COUNTS]


def main():
    print(f"pollux-tune {pt.__version__}, optuna {optuna.__version__}, Python {sys.version.split()[0]}")
    print("| where | trials | pollux-tune, ms | Optuna, ms | ratio | load |\n|---|---|---|---|---|---|")
    for on_disk in [False, True]:
        rounds = [(measure(ours, on_disk), measure(optunas, on_disk)) for _ in range(ROUNDS)]
        for place, count in enumerate(COUNTS):
            mine, theirs = (statistics.median(pair[side][place] for pair in rounds) for side in (0, 1))
            where = "on disk" if on_disk else "in memory"
            load = os.getloadavg()[0]
            print(f"| {where} | {count} | {mine:.3f} | {theirs:.2f} | {theirs / mine:.0f}x | {load:.1f} |", flush=True)


if __name__ == "__main__":
    main()

"""Searches for the Pareto fronts of `problems.rs` with Optuna, and writes what of their volume is missing as JSON lines.

    python peers.py OUT.jsonl [--seeds N]

Each study has 150 trials, one at a time. Needs `optuna` and `numpy`. An OUT that is complete is left as it is.
"""

import argparse
import itertools
import json
import math
import pathlib

import numpy as np


def mixed(kind, lr, layers, momentum, beta, flag, rate):
    """A training with three optimizers, each with parameters of its own; lr, momentum, ... lie in [0, 1]."""
    total = 4 * (lr - 0.62 + 0.03 * (layers - 5)) ** 2 + 0.02 * (layers - 5) ** 2
    total += {0: 0.0, 1: 0.1, 2: 0.25}[kind]
    total += 2 * (momentum - 0.83) ** 2 if kind == 0 else 0.0
    total += 2 * (beta - 0.2) ** 2 if kind == 1 else 0.0
    total += 2 * (rate - 0.35) ** 2 if flag == 1 else 0.3
    return total


def training(t):
    """The loss of `mixed`, and a cost that grows with the layers and falls with the learning rate."""
    kind = t.suggest_categorical("kind", [0, 1, 2])
    lr = math.log10(t.suggest_float("lr", 1e-5, 1.0, log=True)) / 5 + 1
    layers = t.suggest_int("layers", 1, 8)
    momentum = t.suggest_float("momentum", 0.0, 1.0) if kind == 0 else 0.0
    beta = t.suggest_float("beta", 0.0, 1.0) if kind == 1 else 0.0
    flag = t.suggest_categorical("flag", [0, 1])
    rate = t.suggest_float("rate", 0.0, 1.0) if flag == 1 else 0.0
    return mixed(kind, lr, layers, momentum, beta, flag, rate), cost(kind, lr, layers)


def cost(kind, lr, layers):
    return layers / 8 * [1.0, 0.8, 0.5][kind] + 0.5 * (1 - lr)


def best_training():
    """All that does not cost anything at its best, the rest on a fine grid."""
    grid = itertools.product(range(3), range(1, 9), np.linspace(0, 1, 4001))
    return [(mixed(k, lr, n, 0.83, 0.2, 1, 0.35), cost(k, lr, n)) for k, n, lr in grid]


def five(t):
    return [t.suggest_float(f"x{i}", 0.0, 1.0) for i in range(5)]


def zdt(t, second):
    x = five(t)
    g = 1 + 9 / 4 * sum(x[1:])
    return x[0], g * (1 - second(x[0] / g))


def dtlz2(t):
    x = five(t)
    radius = 1 + sum((v - 0.5) ** 2 for v in x[2:])
    a, b = x[0] * math.pi / 2, x[1] * math.pi / 2
    return radius * math.cos(a) * math.cos(b), radius * math.cos(a) * math.sin(b), radius * math.sin(a)


def volume(results, reference):
    """The hypervolume of two or three objectives."""
    inside = [r for r in results if all(v < limit for v, limit in zip(r, reference))]
    if len(reference) == 2:
        total, least = 0.0, reference[1]
        for first, second in sorted(inside):
            total += (reference[0] - first) * max(least - second, 0.0)
            least = min(least, second)
        return total
    inside.sort(key=lambda r: r[2])
    ends = [r[2] for r in inside[1:]] + [reference[2]]
    slices = ((volume([r[:2] for r in inside[: i + 1]], reference[:2]), ends[i] - r[2]) for i, r in enumerate(inside))
    return sum(area * height for area, height in slices)


# The values, the reference point, the volume of the true front.
PROBLEMS = {
    "zdt1": (lambda t: zdt(t, math.sqrt), (1.1, 5.0), lambda: 5.5 - 1 / 3),
    "zdt2": (lambda t: zdt(t, lambda x: x * x), (1.1, 5.0), lambda: 5.5 - 2 / 3),
    "dtlz2": (dtlz2, (1.5, 1.5, 1.5), lambda: 3.375 - math.pi / 6),
    "loss-cost": (training, (2.0, 1.5), lambda: volume(best_training(), (2.0, 1.5))),
}
PEERS = {"optuna": "TPESampler", "nsga2": "NSGAIISampler", "random": "RandomSampler"}
TRIALS = 150


def volume_found(sampler, problem, seed):
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    values, reference, _ = PROBLEMS[problem]
    sampler = getattr(optuna.samplers, sampler)(seed=seed)
    study = optuna.create_study(directions=["minimize"] * len(reference), sampler=sampler)
    study.optimize(values, n_trials=TRIALS)
    return volume([tuple(t.values) for t in study.trials], reference)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--seeds", type=int, default=30)
    args = parser.parse_args()
    if args.out.exists():
        return
    rows = []
    for problem, (_, _, best) in PROBLEMS.items():
        best = best()
        for peer, sampler in PEERS.items():
            missing = [best - volume_found(sampler, problem, 1000 + seed) for seed in range(args.seeds)]
            rows.append(json.dumps({"peer": peer, "problem": problem, "missing": missing}) + "\n")
            print(peer, problem, float(np.median(missing)), flush=True)
    args.out.write_text("".join(rows))


if __name__ == "__main__":
    main()

"""Runs other optimizers on the functions of `functions.rs` and writes their regret as JSON lines.

    python peers.py OUT.jsonl [--peers NAME,...] [--functions NAME,...] [--seeds N] [--trials 100,300] [--workers 1,4]
                  [--no-several]

Needs `optuna`, `hyperopt` and `numpy`. Parallel workers are simulated: as many trials as there are workers are
asked for, then a random one of them ends. With noise, the regret is that of the true value at the point with the
best observation. Problems with several objectives run for 150 trials, one at a time, and their regret is how much of
the hypervolume of the true front is missing.
"""

import argparse
import itertools
import json
import logging
import math
import random
import time
import warnings

import numpy as np

warnings.filterwarnings("ignore")

ACKLEY_SHIFT = [9.1, -14.3, 12.7, -5.9, 16.2, -10.4, 7.5, -17.8, 4.6, -12.1]
HARTMANN_A = [[10, 3, 17, 3.5, 1.7, 8], [0.05, 10, 17, 0.1, 8, 14], [3, 3.5, 1.7, 10, 17, 8], [17, 8, 0.05, 10, 0.1, 14]]
HARTMANN_P = [
    [0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886],
    [0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991],
    [0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.6650],
    [0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381],
]


def branin(x):
    a, b = x
    t = b - 5.1 / (4 * math.pi**2) * a * a + 5 / math.pi * a - 6
    return t * t + 10 * (1 - 1 / (8 * math.pi)) * math.cos(a) + 10 - 0.39788735772973816


def hartmann6(x):
    total = 0.0
    for c, a, p in zip([1.0, 1.2, 3.0, 3.2], HARTMANN_A, HARTMANN_P):
        total += c * math.exp(-sum(a[i] * (x[i] - p[i]) ** 2 for i in range(6)))
    return 3.322368011391339 - total


def ackley10(x):
    z = [v - s for v, s in zip(x, ACKLEY_SHIFT)]
    square = math.sqrt(sum(v * v for v in z) / len(z))
    cosine = sum(math.cos(2 * math.pi * v) for v in z) / len(z)
    return -20 * math.exp(-0.2 * square) - math.exp(cosine) + 20 + math.e


def rosenbrock5(x):
    return sum(100 * (b - a * a) ** 2 + (1 - a) ** 2 for a, b in zip(x, x[1:]))


def effect(i, j, k):
    v = math.sin(12.9898 * i + 78.233 * j + 37.719 * k + 1.0) * 43758.5453
    return v - math.floor(v)


def cells6(x):
    """Six unordered choices of five, main effects and interactions of neighbours, as a table of networks has."""
    total = sum(effect(i, c, 0) for i, c in enumerate(x))
    return total + sum(0.7 * effect(10 + i, a, b) for i, (a, b) in enumerate(zip(x, x[1:])))


CELLS_BEST = None


def mixed(kind, lr, layers, momentum, beta, flag, rate):
    """A training with three optimizers, each with parameters of its own; lr, momentum, ... lie in [0, 1]."""
    total = 4 * (lr - 0.62 + 0.03 * (layers - 5)) ** 2 + 0.02 * (layers - 5) ** 2
    total += {0: 0.0, 1: 0.1, 2: 0.25}[kind]
    total += 2 * (momentum - 0.83) ** 2 if kind == 0 else 0.0
    total += 2 * (beta - 0.2) ** 2 if kind == 1 else 0.0
    total += 2 * (rate - 0.35) ** 2 if flag == 1 else 0.3
    return total


BOXES = {
    "branin": (branin, [(-5.0, 10.0), (0.0, 15.0)]),
    "hartmann6": (hartmann6, [(0.0, 1.0)] * 6),
    "ackley10": (ackley10, [(-32.768, 32.768)] * 10),
    "rosenbrock5": (rosenbrock5, [(-5.0, 10.0)] * 5),
}
NOISE = {"branin-noisy": ("branin", 2.0), "hartmann6-noisy": ("hartmann6", 0.2)}
FUNCTIONS = [*BOXES, "mixed", "cells6", *NOISE]


class Random:
    """The interface that all peers are brought to: numbers and choices, by name."""

    def __init__(self, seed):
        self.rng = random.Random(seed)

    def number(self, name, low, high):
        return self.rng.uniform(low, high)

    def whole(self, name, low, high):
        return self.rng.randint(low, high)

    def choice(self, name, count):
        return self.rng.randrange(count)


class OptunaTrial:
    def __init__(self, trial):
        self.trial = trial

    def number(self, name, low, high):
        return self.trial.suggest_float(name, low, high)

    def whole(self, name, low, high):
        return self.trial.suggest_int(name, low, high)

    def choice(self, name, count):
        return self.trial.suggest_categorical(name, list(range(count)))


def true_value(function, draw):
    if function in BOXES:
        f, box = BOXES[function]
        return f([draw.number(f"x{i}", low, high) for i, (low, high) in enumerate(box)])
    if function == "cells6":
        return cells6([draw.choice(f"c{i}", 5) for i in range(6)]) - CELLS_BEST
    kind = draw.choice("kind", 3)
    lr = math.log10(draw_log(draw, "lr", 1e-5, 1.0)) / 5 + 1
    layers = draw.whole("layers", 1, 8)
    momentum = draw.number("momentum", 0.0, 1.0) if kind == 0 else 0.0
    beta = draw.number("beta", 0.0, 1.0) if kind == 1 else 0.0
    flag = draw.choice("flag", 2)
    rate = draw.number("rate", 0.0, 1.0) if flag == 1 else 0.0
    return mixed(kind, lr, layers, momentum, beta, flag, rate)


def draw_log(draw, name, low, high):
    if isinstance(draw, OptunaTrial):
        return draw.trial.suggest_float(name, low, high, log=True)
    return math.exp(draw.number(name, math.log(low), math.log(high)))


class OptunaPeer:
    def __init__(self, function, seed, multivariate):
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        options = {} if multivariate else {"multivariate": False}
        self.function = function
        self.study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed, **options))

    def ask(self):
        trial = self.study.ask()
        return trial, true_value(self.function, OptunaTrial(trial))

    def tell(self, trial, value):
        self.study.tell(trial, value)


class RandomPeer:
    def __init__(self, function, seed):
        self.function, self.draw = function, Random(seed)

    def ask(self):
        return None, true_value(self.function, self.draw)

    def tell(self, trial, value):
        pass


class Fixed:
    """Reads what Hyperopt has drawn."""

    def __init__(self, values):
        self.values = values

    def number(self, name, low, high):
        return self.values[name]

    def whole(self, name, low, high):
        return int(self.values[name])

    def choice(self, name, count):
        return int(self.values[name])


def hyperopt_space(function):
    from hyperopt import hp
    from hyperopt.pyll import scope

    if function in BOXES:
        return {f"x{i}": hp.uniform(f"x{i}", *box) for i, box in enumerate(BOXES[function][1])}
    if function == "cells6":
        return {f"c{i}": hp.choice(f"c{i}", list(range(5))) for i in range(6)}
    return {
        "kind": hp.choice("kind", [{"momentum": hp.uniform("momentum", 0, 1)}, {"beta": hp.uniform("beta", 0, 1)}, {}]),
        "lr": hp.uniform("lr", math.log(1e-5), 0.0),
        "layers": scope.int(hp.quniform("layers", 1, 8, 1)),
        "flag": hp.choice("flag", [{}, {"rate": hp.uniform("rate", 0, 1)}]),
    }


class HyperoptPeer:
    def __init__(self, function, seed):
        import hyperopt

        logging.getLogger("hyperopt").setLevel(logging.ERROR)
        self.hyperopt, self.function = hyperopt, function
        space = hyperopt_space(function)
        self.domain = hyperopt.Domain(lambda x: x, space)
        self.trials = hyperopt.Trials()
        self.seeds = np.random.default_rng(seed)

    def ask(self):
        ids = self.trials.new_trial_ids(1)
        self.trials.refresh()
        docs = self.hyperopt.tpe.suggest(ids, self.domain, self.trials, int(self.seeds.integers(2**31)))
        docs[0]["state"] = self.hyperopt.JOB_STATE_RUNNING
        self.trials.insert_trial_docs(docs)
        self.trials.refresh()
        values = {k: v[0] for k, v in docs[0]["misc"]["vals"].items() if v}
        doc = next(t for t in self.trials._dynamic_trials if t["tid"] == docs[0]["tid"])
        return doc, true_value(self.function, Fixed(values))

    def tell(self, doc, value):
        doc["result"] = {"loss": value, "status": "ok"}
        doc["state"] = self.hyperopt.JOB_STATE_DONE
        self.trials.refresh()


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
SEVERAL = {
    "zdt1": (lambda t: zdt(t, math.sqrt), (1.1, 5.0), lambda: 5.5 - 1 / 3),
    "zdt2": (lambda t: zdt(t, lambda x: x * x), (1.1, 5.0), lambda: 5.5 - 2 / 3),
    "dtlz2": (dtlz2, (1.5, 1.5, 1.5), lambda: 3.375 - math.pi / 6),
    "loss-cost": (training, (2.0, 1.5), lambda: volume(best_training(), (2.0, 1.5))),
}
PEERS_OF_SEVERAL = {"optuna": "TPESampler", "nsga2": "NSGAIISampler", "random": "RandomSampler"}
TRIALS_OF_SEVERAL = 150


def missing(sampler, problem, seed):
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    values, reference, _ = SEVERAL[problem]
    sampler = getattr(optuna.samplers, sampler)(seed=seed)
    study = optuna.create_study(directions=["minimize"] * len(reference), sampler=sampler)
    study.optimize(values, n_trials=TRIALS_OF_SEVERAL)
    return volume([tuple(t.values) for t in study.trials], reference)


def run_several(out, seeds):
    for problem, (_, _, best) in SEVERAL.items():
        best = best()
        for peer, sampler in PEERS_OF_SEVERAL.items():
            regrets = [best - missing(sampler, problem, 1000 + seed) for seed in range(seeds)]
            row = {"peer": peer, "function": problem, "workers": 1, "trials": TRIALS_OF_SEVERAL}
            out.write(json.dumps({**row, "regrets": regrets}) + "\n")
            out.flush()
            print(row, float(np.median(regrets)), flush=True)


PEERS = {
    "random": RandomPeer,
    "optuna": lambda function, seed: OptunaPeer(function, seed, True),
    "optuna-univariate": lambda function, seed: OptunaPeer(function, seed, False),
    "hyperopt": HyperoptPeer,
}


def run(peer, name, seed, workers, marks):
    """The regret after each of the numbers of trials in `marks`."""
    function, noise = NOISE.get(name, (name, 0.0))
    optimizer = PEERS[peer](function, seed)
    rng = random.Random(seed + 7)
    running, best, found, regrets = [], math.inf, math.inf, []
    for done in range(1, max(marks) + 1):
        while len(running) < workers:
            running.append(optimizer.ask())
        trial, true = running.pop(rng.randrange(len(running)))
        value = true + noise * rng.gauss(0, 1)
        optimizer.tell(trial, value)
        if value < best:
            best, found = value, true
        if done in marks:
            regrets.append(found)
    return regrets


def main():
    global CELLS_BEST
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--functions", default=",".join(FUNCTIONS))
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--trials", default="100,300")
    parser.add_argument("--no-several", dest="several", action="store_false")
    parser.add_argument("--workers", default="1,4")
    args = parser.parse_args()
    CELLS_BEST = min(cells6(x) for x in itertools.product(range(5), repeat=6))
    marks = [int(t) for t in args.trials.split(",")]
    with open(args.out, "a") as out:
        if args.several:
            run_several(out, args.seeds)
        for peer, function in itertools.product(args.peers.split(","), args.functions.split(",")):
            for workers in [int(w) for w in args.workers.split(",")]:
                begin = time.process_time()
                runs = [run(peer, function, 1000 + seed, workers, marks) for seed in range(args.seeds)]
                seconds = (time.process_time() - begin) / args.seeds
                for at, mark in enumerate(marks):
                    row = {"peer": peer, "function": function, "workers": workers, "trials": mark}
                    regrets = [regrets[at] for regrets in runs]
                    out.write(json.dumps({**row, "regrets": regrets, "seconds": seconds}) + "\n")
                    out.flush()
                    print(row, float(np.median(regrets)), f"{seconds:.2f} s a run", flush=True)


if __name__ == "__main__":
    main()

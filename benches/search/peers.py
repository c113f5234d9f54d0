"""Runs other optimizers on the functions of `functions.rs` and writes their regret as JSON lines.

    python peers.py OUT.jsonl [--peers NAME,...] [--functions NAME,...] [--seeds N] [--trials 100,300] [--workers 1,4]

Needs `optuna`, `hyperopt` and `numpy`. Parallel workers are simulated: as many trials as there are workers are
asked for, then a random one of them ends. With noise, the regret is that of the true value at the point with the
best observation.
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
    parser.add_argument("--workers", default="1,4")
    args = parser.parse_args()
    CELLS_BEST = min(cells6(x) for x in itertools.product(range(5), repeat=6))
    marks = [int(t) for t in args.trials.split(",")]
    with open(args.out, "a") as out:
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

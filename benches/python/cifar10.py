"""The same CIFAR-10 study by the trainable in Rust and by the one in Python, with the same seeds: a part of `make bench-python`.

Usage: cifar10.py PROGRAM [--trials N] [--epochs N] [--examples N] [--seeds N]

PROGRAM is a `pollux-tune` with libtorch (`make run` builds one). The parameters are the same in both, as random search draws them from the seed, and so is
the order of the images; initial weights and augmentations come from generators of their own. Studies take turns.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def trials(program, what, arguments, seed):
    space = {
        "lr": {"log": [5e-3, 5e-1]}, "annealing": {"log": [1e-2, 1.0]}, "momentum": {"float": [0.5, 0.97]},
        "weight_decay": {"log": [1e-6, 1e-2]}, "width": {"int": [2, 6]}, "examples": arguments.examples,
    }
    settings = {"epochs": arguments.epochs, "initial_batch": 64, "max_batch": 256, **what}
    search = {"trials": arguments.trials, "parallel": 2, "algorithm": "random", "seed": seed}
    with tempfile.TemporaryDirectory() as folder:
        study = {"space": space, "objective": {"maximize": "accuracy"}, "trial": settings, "search": search}
        (Path(folder) / "study.yaml").write_text(json.dumps(study))
        command = [program, "run", Path(folder) / "study.yaml", "--slots", "2xcpu", "--folder", Path(folder) / "study"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{what} has failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        rows = subprocess.run([program, "trials", Path(folder) / "study", "--json"], capture_output=True, text=True, check=True)
    return [json.loads(line) for line in rows.stdout.splitlines()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    for name, usual in (("trials", 4), ("epochs", 3), ("examples", 4000), ("seeds", 1)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    arguments = parser.parse_args()
    python = {"python": str(ROOT / "examples/python/cifar10_elastic.py"), "interpreter": sys.executable}
    print("| seed | trial | lr | width | accuracy, Rust | accuracy, Python | slot seconds, Rust | slot seconds, Python |\n|---|---|---|---|---|---|---|---|")
    pairs = []
    for seed in range(arguments.seeds):
        ours = trials(arguments.program, {"trainable": "cifar10"}, arguments, seed)
        theirs = trials(arguments.program, python, arguments, seed)
        for a, b in zip(ours, theirs):
            assert a["params"] == b["params"], (a, b)
            pairs.append((a, b))
            cells = [a["values"]["accuracy"], b["values"]["accuracy"]]
            seconds = [a["slot_seconds"], b["slot_seconds"]]
            print(
                f"| {seed} | {a['id']} | {a['params']['lr']:.4f} | {a['params']['width']} | {cells[0]:.3f} | {cells[1]:.3f} "
                f"| {seconds[0]:.0f} | {seconds[1]:.0f} |", flush=True,
            )
    differences = [b["values"]["accuracy"] - a["values"]["accuracy"] for a, b in pairs]
    spread = statistics.stdev(differences) / len(differences) ** 0.5 if len(differences) > 1 else float("nan")
    ratio = statistics.median(b["slot_seconds"] / a["slot_seconds"] for a, b in pairs)
    print(f"\nPython - Rust: {statistics.mean(differences):+.4f} +- {spread:.4f} (standard error of the mean), time Python / Rust {ratio:.2f}, load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()

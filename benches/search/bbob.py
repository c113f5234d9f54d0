"""The 24 functions of the suite BBOB (Hansen et al. 2009), on which no setting was chosen, against Optuna's default: `make bench-bbob`.

    python bbob.py OUT.jsonl [--seeds N] [--jobs N] [--functions N,...]

Each seed has an instance of its own of each function, with its optimum elsewhere and turned another way: five parameters from -5 to 5, one trial
at a time. What is in OUT already is not run again. Needs `pollux_tune`, `optuna` and `ioh`, which has the functions.
"""

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import argparse
import json
import math
import multiprocessing
import pathlib
import statistics
import sys

OURS = ["our tpe", "our gp", "our auto"]
PEERS = [*OURS, "optuna"]
FUNCTIONS = range(1, 25)
DIMENSIONS = 5
MARKS = [50, 100]
#: Instances of the suite that usual experiments with it do not have.
FIRST_INSTANCE = 1001
#: Below that, BBOB takes a function for solved.
SOLVED = 1e-8


def function(number, seed):
    import ioh

    return ioh.get_problem(number, FIRST_INSTANCE + seed, DIMENSIONS, ioh.ProblemClass.BBOB)


def optuna_search(seed):
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))

    def ask():
        trial = study.ask()
        return trial, [trial.suggest_float(f"x{at}", -5, 5) for at in range(DIMENSIONS)]

    return ask, study.tell


def our_search(algorithm, seed):
    import pollux_tune as pt

    space = {f"x{at}": pt.float(-5, 5) for at in range(DIMENSIONS)}
    study = pt.Study(space, "minimize", trials=MARKS[-1], algorithm=algorithm, seed=seed)

    def ask():
        trial = study.ask()
        return trial, list(trial.params.values())

    return ask, study.tell


def run(job):
    """One line: the regrets at the marks."""
    peer, number, seed = job
    problem = function(number, seed)
    ask, tell = optuna_search(seed) if peer == "optuna" else our_search(peer.removeprefix("our "), seed)
    best, regrets = math.inf, []
    for done in range(1, MARKS[-1] + 1):
        trial, x = ask()
        value = problem(x)
        tell(trial, value)
        best = min(best, value - problem.optimum.y)
        if done in MARKS:
            regrets.append(max(best, 0.0))
    return {"peer": peer, "function": number, "name": problem.meta_data.name, "seed": seed, "trials": MARKS, "regrets": regrets}


def verdict(ours, theirs):
    """`+` where ours are significantly smaller, `-` where they are larger: the test of Mann and Whitney, two-sided, 5 %."""
    both = sorted([(value, True) for value in ours] + [(value, False) for value in theirs])
    ranks, ties, before = 0.0, 0, 0
    while before < len(both):
        group = [mine for value, mine in both if value == both[before][0]]
        ranks += sum(group) * (before + (len(group) + 1) / 2)
        ties += len(group) ** 3 - len(group)
        before += len(group)
    n, m, total = len(ours), len(theirs), len(both)
    variance = n * m / 12 * (total + 1 - ties / (total * (total - 1)))
    z = (ranks - n * (n + 1) / 2 - n * m / 2) / math.sqrt(variance) if variance > 0 else 0.0
    if math.erfc(abs(z) / math.sqrt(2)) >= 0.05:
        return ""
    return " +" if z < 0 else " -"


def ratio(ours, theirs):
    ours, theirs = (max(statistics.median(values), SOLVED) for values in (ours, theirs))
    return ours / theirs


def short(value):
    return "0" if value < SOLVED else f"{value:.2g}" if value < 100 else f"{value:.0f}"


def report(rows, functions, seeds):
    """Median regrets after the last mark with the ratio to Optuna's, and the means of all ratios at each mark."""
    regrets = {}
    for row in rows:
        if row["seed"] < seeds:
            for mark, regret in zip(row["trials"], row["regrets"]):
                regrets.setdefault((mark, row["function"], row["peer"]), []).append(regret)
    names = {row["function"]: row["name"] for row in rows}
    lines = [f"| function | {' | '.join([*OURS, 'optuna'])} | {' | '.join(f'{peer} / optuna' for peer in OURS)} |"]
    lines.append("|---|" + "---|" * (2 * len(OURS) + 1))
    for at in functions:
        of = {peer: regrets[MARKS[-1], at, peer] for peer in PEERS}
        cells = [short(statistics.median(of[peer])) for peer in PEERS]
        cells += [f"{ratio(of[peer], of['optuna']):.2g}{verdict(of[peer], of['optuna'])}" for peer in OURS]
        lines.append(f"| {at} {names[at]} | {' | '.join(cells)} |")
    for mark in MARKS:
        means = [
            statistics.geometric_mean(ratio(regrets[mark, at, peer], regrets[mark, at, "optuna"]) for at in functions)
            for peer in OURS
        ]
        cells = [*[""] * len(PEERS), *[f"{mean:.2g}" for mean in means]]
        lines.append(f"| geometric mean, {mark} trials | {' | '.join(cells)} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--seeds", type=int, default=15)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--functions", default=",".join(map(str, FUNCTIONS)))
    args = parser.parse_args()
    functions = [int(at) for at in args.functions.split(",")]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    rows = [json.loads(line) for line in args.out.read_text().splitlines()] if args.out.exists() else []
    known = {(row["peer"], row["function"], row["seed"]) for row in rows}
    jobs = [(peer, at, seed) for seed in range(args.seeds) for at in functions for peer in PEERS]
    jobs = [job for job in jobs if job not in known]
    with args.out.open("a") as out, multiprocessing.get_context("spawn").Pool(args.jobs) as pool:
        for row in pool.imap_unordered(run, jobs, chunksize=4):
            out.write(json.dumps(row) + "\n")
            out.flush()
            rows.append(row)
            if len(rows) % 100 == 0:
                print(f"{len(rows)} runs", file=sys.stderr, flush=True)
    print(report(rows, functions, args.seeds))


if __name__ == "__main__":
    main()

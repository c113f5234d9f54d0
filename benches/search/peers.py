"""Runs other optimizers on the problems of `problems.py` and writes the regret of each run as a JSON line.

    python peers.py OUT.jsonl [--jobs N] [--seeds N] [--only PEER,...] [--problems NAME,...] [--workers N,...]

What is in OUT already is not run again, so that an interrupted run goes on where it stopped. The work that says most
comes first. Parallel workers are simulated: as many trials as there are workers are asked for, then a random one of
them ends. With noise, the regret is that of the true value at the point with the best observation. Times are of the
processor.
"""

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import argparse
import functools
import importlib.metadata
import json
import logging
import math
import multiprocessing
import pathlib
import random
import sys
import time
import traceback
import warnings

import numpy as np

import problems

warnings.filterwarnings("ignore")

MARKS = [100, 300]
# Numbers of trials before the suggestion whose speed is measured, and how often it is.
SPEED = {100: 31, 1000: 15, 5000: 7, 10000: 7}


class OptunaPeer:
    def __init__(self, problem, seed, sampler):
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.optuna, self.problem = optuna, problem
        if sampler == "gp":
            import torch

            torch.set_num_threads(1)
            made = optuna.samplers.GPSampler(seed=seed)
        elif sampler == "univariate":
            made = optuna.samplers.TPESampler(seed=seed, multivariate=False)
        else:
            made = optuna.samplers.TPESampler(seed=seed)
        self.study = optuna.create_study(sampler=made)

    def ask(self):
        trial = self.study.ask()

        def suggest(param):
            if param.kind == "choice":
                return trial.suggest_categorical(param.name, list(range(param.high + 1)))
            if param.kind == "whole":
                return trial.suggest_int(param.name, param.low, param.high)
            return trial.suggest_float(param.name, param.low, param.high, log=param.kind == "log")

        return trial, self.problem.draw(suggest)

    def tell(self, trial, value):
        self.study.tell(trial, value)

    def insert(self, trials):
        """Takes trials that it was not asked for: values of parameters and of the objective."""
        make = self.optuna.distributions
        kinds = {
            "choice": lambda p: make.CategoricalDistribution(list(range(p.high + 1))),
            "whole": lambda p: make.IntDistribution(p.low, p.high),
            "number": lambda p: make.FloatDistribution(p.low, p.high),
        }
        kinds = {param.name: kinds[param.kind](param) for param in self.problem.params}
        for values, value in trials:
            of_trial = {name: kinds[name] for name in values}
            self.study.add_trial(self.optuna.trial.create_trial(params=values, distributions=of_trial, value=value))


class HyperoptPeer:
    def __init__(self, problem, seed):
        import hyperopt

        logging.getLogger("hyperopt").setLevel(logging.ERROR)
        self.hyperopt, self.problem = hyperopt, problem
        self.domain = hyperopt.Domain(lambda x: x, hyperopt_space(problem.params))
        self.trials = hyperopt.Trials()
        self.seeds = np.random.default_rng(seed)

    def ask(self):
        ids = self.trials.new_trial_ids(1)
        self.trials.refresh()
        docs = self.hyperopt.tpe.suggest(ids, self.domain, self.trials, int(self.seeds.integers(2**31)))
        docs[0]["state"] = self.hyperopt.JOB_STATE_RUNNING
        self.trials.insert_trial_docs(docs)
        self.trials.refresh()
        drawn = {name: values[0] for name, values in docs[0]["misc"]["vals"].items() if values}
        doc = next(t for t in reversed(self.trials._dynamic_trials) if t["tid"] == docs[0]["tid"])

        def suggest(param):
            value = drawn[param.name]
            if param.kind in ("choice", "whole"):
                return min(max(int(value), param.low), param.high)
            return math.exp(value) if param.kind == "log" else value

        return doc, self.problem.draw(suggest)

    def tell(self, doc, value):
        doc["result"] = {"loss": value, "status": "ok"}
        doc["state"] = self.hyperopt.JOB_STATE_DONE
        self.trials.refresh()

    def insert(self, trials):
        ids = self.trials.new_trial_ids(len(trials))
        docs = []
        for tid, (values, value) in zip(ids, trials):
            drawn = {p.name: [values[p.name]] if p.name in values else [] for p in self.problem.params}
            misc = {"tid": tid, "cmd": self.domain.cmd, "workdir": None, "vals": drawn}
            misc["idxs"] = {name: [tid] if values else [] for name, values in drawn.items()}
            docs += self.trials.new_trial_docs([tid], [None], [{"loss": value, "status": "ok"}], [misc])
            docs[-1]["state"] = self.hyperopt.JOB_STATE_DONE
        self.trials.insert_trial_docs(docs)
        self.trials.refresh()


def hyperopt_space(params, parent=None):
    """The parameters that are active with a parent; choices hold their children."""
    from hyperopt import hp

    def expression(param):
        if param.kind == "choice":
            return hp.choice(
                param.name, [hyperopt_space(params, (param.name, c)) or c for c in range(param.high + 1)]
            )
        if param.kind == "whole":
            return hp.quniform(param.name, param.low - 0.5, param.high + 0.5, 1)
        if param.kind == "log":
            return hp.uniform(param.name, math.log(param.low), math.log(param.high))
        return hp.uniform(param.name, param.low, param.high)

    return {param.name: expression(param) for param in params if param.parent == parent}


PEERS = {
    "optuna": functools.partial(OptunaPeer, sampler="default"),
    "optuna-univariate": functools.partial(OptunaPeer, sampler="univariate"),
    "optuna-gp": functools.partial(OptunaPeer, sampler="gp"),
    "hyperopt": HyperoptPeer,
}
PACKAGES = {"optuna": "optuna", "optuna-univariate": "optuna", "optuna-gp": "optuna", "hyperopt": "hyperopt"}


@functools.cache
def problem_of(name):
    return problems.make(name)


def run(peer, name, workers, seed, trials):
    """One line: the regrets at the marks up to `trials`, and the seconds of all asks and tells."""
    problem = problem_of(name)
    marks = [mark for mark in MARKS if mark <= trials]
    optimizer = PEERS[peer](problem, 1000 + seed)
    rng = random.Random(1000 + seed)
    running, asked, best, found, regrets, seconds = [], 0, math.inf, math.inf, [], []
    begin = time.process_time()
    for done in range(1, marks[-1] + 1):
        while len(running) < workers:
            trial, values = optimizer.ask()
            running.append((trial, problem.value(values)))
            asked += 1
        trial, truth = running.pop(rng.randrange(len(running)))
        value = truth + problem.noise * rng.gauss(0, 1)
        optimizer.tell(trial, value)
        if value < best:
            best, found = value, truth
        if done in marks:
            regrets.append(found)
            seconds.append(time.process_time() - begin)
    row = {"peer": peer, "problem": name, "workers": workers, "seed": seed}
    row |= {"trials": marks, "regrets": regrets, "seconds": seconds}
    return row | {"version": importlib.metadata.version(PACKAGES[peer])}


def speed(peer, size):
    """One line: the median time of one ask and one tell after so many random trials."""
    problem, rng = problems.speed(), random.Random(1)
    optimizer = PEERS[peer](problem, 1)
    drawn = [problem.random(rng)[1] for _ in range(size)]
    optimizer.insert([(values, problem.value(values)) for values in drawn])
    times = []
    for _ in range(SPEED[size]):
        begin = time.process_time()
        trial, values = optimizer.ask()
        optimizer.tell(trial, problem.value(values))
        times.append(time.process_time() - begin)
    row = {"peer": peer, "size": size, "ask_and_tell_ms": float(np.median(times)) * 1e3}
    return row | {"version": importlib.metadata.version(PACKAGES[peer])}


def work(seeds):
    """All (peer, problem, workers, seed, trials), the most telling first."""
    main = list(problems.TABLES)[:4] + problems.FUNCTIONS
    more = list(problems.TABLES)[4:]
    slow = ["hyperopt", "optuna-univariate"]
    stages = [("optuna", main, 1, 300), ("optuna-gp", ["branin", "hartmann6"], 1, 100)]
    stages += [*[(peer, main, 1, 100) for peer in slow], ("optuna", main, 4, 300)]
    stages += [("optuna-gp", ["nb201-cifar10", "rosenbrock5"], 1, 100)]
    stages += [*[(peer, main, 4, 100) for peer in slow], ("optuna-gp", ["ackley10"], 1, 100), ("optuna", more, 1, 300)]
    stages += [(peer, main, workers, 300) for workers in (1, 4) for peer in slow]
    jobs = [(p, name, w, seed, trials) for p, names, w, trials in stages for name in names for seed in range(seeds)]
    # Hyperopt takes too long after 10000 trials.
    sizes = [("optuna", size) for size in SPEED] + [("hyperopt", size) for size in SPEED if size < 10000]
    return [(peer, "speed", 1, size, size) for peer, size in sizes] + jobs


def attempt(job):
    try:
        return speed(job[0], job[4]) if job[1] == "speed" else run(*job)
    except Exception:
        print(job, traceback.format_exc(), file=sys.stderr, flush=True)
        return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seeds", type=int, default=25)
    parser.add_argument("--only", default=",".join(PEERS))
    parser.add_argument("--problems", default=",".join([*problems.ALL, "speed"]))
    parser.add_argument("--workers", default="1,4")
    args = parser.parse_args()
    lines = args.out.read_text().splitlines() if args.out.exists() else []
    rows = [json.loads(line) for line in lines]
    known = {}
    for row in rows:
        if "size" in row:
            known[row["peer"], "speed", 1, row["size"]] = row["size"]
            continue
        key = tuple(row[key] for key in ("peer", "problem", "workers", "seed"))
        known[key] = max(known.get(key, 0), *row["trials"])
    chosen = [set(args.only.split(",")), set(args.problems.split(",")), set(map(int, args.workers.split(",")))]
    wanted = [job for job in work(args.seeds) if all(x in names for x, names in zip(job, chosen))]
    jobs = [job for job in wanted if known.get(job[:4], 0) < job[4]]
    failed = 0
    with args.out.open("a") as out, multiprocessing.get_context("spawn").Pool(args.jobs) as pool:
        for done, row in enumerate(pool.imap_unordered(attempt, jobs), 1):
            if row is None:
                failed += 1
                continue
            out.write(json.dumps(row) + "\n")
            out.flush()
            print(f"{done}/{len(jobs)}", json.dumps(row), flush=True)
    sys.exit(f"{failed} runs failed" if failed else 0)


if __name__ == "__main__":
    main()

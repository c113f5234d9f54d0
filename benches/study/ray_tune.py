"""Trials that do nothing under Ray Tune: how many it ends in a second, as one JSON object."""

import json
import os
import sys
import tempfile
import time

os.environ.update(RAY_AIR_NEW_OUTPUT="0", RAY_DEDUP_LOGS="0", RAY_USAGE_STATS_ENABLED="0")

import ray
from ray import tune


def nothing(config):
    tune.report({"loss": config["lr"]})


def main():
    trials, parallel = int(sys.argv[1]), int(sys.argv[2])
    ray.init(num_cpus=parallel, include_dashboard=False, log_to_driver=False, logging_level="error")
    space = {
        "lr": tune.loguniform(1e-5, 1),
        "width": tune.randint(1, 64),
        "act": tune.choice(["relu", "gelu"]),
    }
    config = tune.TuneConfig(num_samples=trials, max_concurrent_trials=parallel, metric="loss", mode="min")
    # Actors that are used again are the fastest that it has to offer.
    config.reuse_actors = True
    with tempfile.TemporaryDirectory() as folder:
        run = tune.RunConfig(storage_path=folder, verbose=0)
        start = time.perf_counter()
        results = tune.Tuner(nothing, param_space=space, tune_config=config, run_config=run).fit()
        seconds = time.perf_counter() - start
    assert len(results) == trials and not results.errors
    print(json.dumps({"ray": ray.__version__, "trials": trials, "seconds": seconds, "per_second": trials / seconds}))


main()

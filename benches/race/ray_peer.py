"""Ray Tune in the race: ASHA, random search, one processor for each trial. Usage: ray_peer.py SPACE SECONDS SEED FOLDER"""

import json
import os
import random
import sys
import time

import numpy
import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler

HERE = os.path.dirname(os.path.abspath(__file__))
CORES = 2


def domain(entry):
    [(kind, (low, high))] = entry.items()
    if kind == "int":
        return tune.randint(low, high + 1)
    return tune.loguniform(low, high) if kind == "log" else tune.uniform(low, high)


def main():
    began_s = time.time()
    space, seconds, seed, folder = json.loads(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    random.seed(seed)
    numpy.random.seed(seed)

    def train(config):
        sys.path.insert(0, HERE)
        import notes
        import torch
        from resnet import training

        torch.set_num_threads(1)
        for accuracy in training(config):
            notes.note(folder, tune.get_context().get_trial_id(), accuracy)
            tune.report({"accuracy": accuracy})

    ray.init(num_cpus=CORES, include_dashboard=False)
    scheduler = ASHAScheduler(max_t=int(os.environ["EPOCHS"]))
    tuner = tune.Tuner(
        tune.with_resources(train, {"cpu": 1}),
        param_space={name: domain(entry) for name, entry in space.items()},
        tune_config=tune.TuneConfig(
            metric="accuracy", mode="max", num_samples=-1, max_concurrent_trials=CORES, scheduler=scheduler, reuse_actors=True,
            time_budget_s=max(seconds - (time.time() - began_s), 1),
        ),
        run_config=tune.RunConfig(storage_path=folder, name="tune", verbose=1),
    )
    tuner.fit()


if __name__ == "__main__":
    main()

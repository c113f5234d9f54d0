"""The same with Ray Tune: `pip install 'ray[tune]'`, then `python examples/python/cifar10_ray.py`."""

import os
import sys

import torch
from ray import tune
from ray.tune.schedulers import ASHAScheduler

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from resnet import EPOCHS, TRIALS, training

SPACE = {
    "lr": tune.loguniform(5e-3, 5e-1),
    "annealing": tune.loguniform(1e-2, 1.0),
    "momentum": tune.uniform(0.5, 0.97),
    "weight_decay": tune.loguniform(1e-6, 1e-2),
    "width": tune.randint(2, 7),
}


def train(config):
    sys.path.insert(0, HERE)
    torch.set_num_threads(1)
    for accuracy in training(config):
        tune.report({"accuracy": accuracy})


if __name__ == "__main__":
    tuner = tune.Tuner(
        tune.with_resources(train, {"cpu": 1}),
        param_space=SPACE,
        tune_config=tune.TuneConfig(
            metric="accuracy",
            mode="max",
            num_samples=TRIALS,
            max_concurrent_trials=2,
            scheduler=ASHAScheduler(max_t=EPOCHS, grace_period=1, reduction_factor=3),
        ),
    )
    best = tuner.fit().get_best_result()
    print(best.metrics["accuracy"], best.config)

"""CIFAR-10 with pollux-tune: `python examples/python/cifar10.py`, again to resume it. `make cifar10` fetches the images."""

import torch
from resnet import EPOCHS, TRIALS, training

import pollux_tune as pt

SPACE = {
    "lr": pt.log(5e-3, 5e-1),
    "annealing": pt.log(1e-2, 1.0),
    "momentum": pt.float(0.5, 0.97),
    "weight_decay": pt.log(1e-6, 1e-2),
    "width": pt.int(2, 6),
}


def train(trial):
    torch.set_num_threads(1)
    for accuracy in training(trial.params):
        if not trial.report(accuracy=accuracy):
            break


if __name__ == "__main__":
    study = pt.optimize(
        train,
        SPACE,
        {"maximize": "accuracy"},
        trials=TRIALS,
        parallel=2,
        early_stopping="asha",
        epochs=EPOCHS,
        folder="studies/cifar10-python",
        progress=True,
    )
    print(study.best)

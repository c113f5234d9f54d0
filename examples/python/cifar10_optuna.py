"""The same with Optuna: `pip install optuna`, then `python examples/python/cifar10_optuna.py`."""

import multiprocessing

import optuna
import torch
from resnet import EPOCHS, TRIALS, training

STORAGE = "sqlite:///cifar10-optuna.db"
WORKERS = 2


def train(trial):
    torch.set_num_threads(1)
    params = {
        "lr": trial.suggest_float("lr", 5e-3, 5e-1, log=True),
        "annealing": trial.suggest_float("annealing", 1e-2, 1.0, log=True),
        "momentum": trial.suggest_float("momentum", 0.5, 0.97),
        "weight_decay": trial.suggest_float("weight_decay", 1e-6, 1e-2, log=True),
        "width": trial.suggest_int("width", 2, 6),
    }
    for epoch, accuracy in enumerate(training(params), start=1):
        trial.report(accuracy, epoch)
        if trial.should_prune():
            raise optuna.TrialPruned()
    return accuracy


def work():
    pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3)
    study = optuna.load_study(study_name="cifar10", storage=STORAGE, pruner=pruner)
    enough = optuna.study.MaxTrialsCallback(TRIALS, states=None)
    study.optimize(train, callbacks=[enough])


if __name__ == "__main__":
    optuna.create_study(study_name="cifar10", storage=STORAGE, direction="maximize", load_if_exists=True)
    workers = [multiprocessing.get_context("spawn").Process(target=work) for _ in range(WORKERS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    best = optuna.load_study(study_name="cifar10", storage=STORAGE).best_trial
    print(best.number, best.value, best.params)

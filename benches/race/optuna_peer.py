"""Optuna in the race: its TPE, successive halving, and two processes that share a database. Usage: optuna_peer.py SPACE SECONDS SEED FOLDER"""

import json
import multiprocessing
import sys
import time

WORKERS = 2


def suggested(trial, space):
    params = {}
    for name, domain in space.items():
        [(kind, (low, high))] = domain.items()
        if kind == "int":
            params[name] = trial.suggest_int(name, low, high)
        else:
            params[name] = trial.suggest_float(name, low, high, log=kind == "log")
    return params


def work(number, space, until_s, seed, folder):
    import notes
    import optuna
    import torch
    from resnet import training

    torch.set_num_threads(1)

    def train(trial):
        for epoch, accuracy in enumerate(training(suggested(trial, space)), start=1):
            notes.note(folder, trial.number, accuracy)
            trial.report(accuracy, epoch)
            if trial.should_prune():
                raise optuna.TrialPruned()
        return accuracy

    sampler = optuna.samplers.TPESampler(seed=WORKERS * seed + number)
    pruner = optuna.pruners.SuccessiveHalvingPruner()
    study = optuna.load_study(study_name="race", storage=storage(folder), sampler=sampler, pruner=pruner)
    study.optimize(train, timeout=max(until_s - time.time(), 1))


def storage(folder):
    return f"sqlite:///{folder}/optuna.db"


def main():
    until_s = time.time() + float(sys.argv[2])
    import optuna

    space, seed, folder = json.loads(sys.argv[1]), int(sys.argv[3]), sys.argv[4]
    optuna.create_study(study_name="race", storage=storage(folder), direction="maximize")
    start = multiprocessing.get_context("spawn")
    workers = [start.Process(target=work, args=(number, space, until_s, seed, folder), daemon=True) for number in range(WORKERS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(max(until_s - time.time(), 1))


if __name__ == "__main__":
    main()

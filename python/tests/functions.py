"""Functions that worker processes import: those of a test module would need pytest there, too."""

import os
import signal
import time
from pathlib import Path


def bowl(trial):
    return (trial.params["x"] - 0.3) ** 2


def curve(trial):
    """Falls towards x, one report for each of nine epochs."""
    for epoch in range(1, 10):
        if not trial.report(trial.params["x"] + 1 / epoch):
            return None


def failing(trial):
    if trial.params["x"] > 0.5:
        raise RuntimeError("too far")
    return trial.params["x"]


def always_failing(trial):
    return trial.params["y"]


def killed(trial):
    if trial.id == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return trial.params["x"]


def leaving(trial):
    if trial.id == 1:
        os._exit(3)
    return trial.params["x"]


def exiting(trial):
    raise SystemExit("enough")


def process(trial):
    """Which process ran it."""
    return float(os.getpid())


def waiting(trial):
    """Tells that it runs, then waits for the end."""
    Path(os.environ["POLLUX_TUNE_TEST_FOLDER"], f"{trial.id}.{os.getpid()}").touch()
    if "POLLUX_TUNE_TEST_GO_ON" in os.environ:
        return trial.params["x"]
    while True:
        time.sleep(3600)

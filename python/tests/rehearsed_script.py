"""A script for rehearsals: a small network that waits where its test wants it to, and writes down which examples it has learned from."""

import contextlib
import fcntl
import json
import os
import time

import torch
import torch.nn.functional as F
from torch import nn

import pollux_tune as pt

EXAMPLES = 240
BATCH = 12
INPUTS = 16
CLASSES = 4
# Elements that no machine has memory for.
TOO_MUCH = 1 << 46
# Trainings have a node for each slot, studies one node with all of them.
SLOT = int(os.environ.get("POLLUX_TUNE_WORKER_NODE", 0)) + int(os.environ.get("POLLUX_TUNE_WORKER_SLOT", 0))


class Points(torch.utils.data.Dataset):
    """Points with their numbers."""

    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        weights = torch.randn(INPUTS, CLASSES, generator=torch.Generator().manual_seed(7))
        self.inputs = torch.randn(count, INPUTS, generator=generator)
        self.classes = (self.inputs @ weights + 2 * torch.randn(count, CLASSES, generator=generator)).argmax(1)

    def __len__(self):
        return len(self.classes)

    def __getitem__(self, place):
        return self.inputs[place], self.classes[place], place


knocked = set()


def wait(params, steps):
    """At closed gates, `steps;slot;path` each, until the test opens them. Knocks at its door, if there is one."""
    for gate in params.get("gates", "").split("|"):
        after, slot, path = gate.split(";") if gate else ("", "", "")
        if path and steps >= int(after) and slot in ("", str(SLOT)):
            if "door" in params and path not in knocked:
                knocked.add(path)
                with open(params["door"], "w") as door:
                    door.write(f"{SLOT} {os.getpid()}\n")
            with open(path) as lock:
                fcntl.flock(lock, fcntl.LOCK_SH)


def optimizer_of(params, net):
    kind = params.get("optimizer", "sgd")
    if kind == "sgd":
        return torch.optim.SGD(net.parameters(), lr=params["lr"], momentum=0.9, weight_decay=1e-3)
    return {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[kind](net.parameters(), lr=params["lr"])


class Room:
    """A device without room for passes of more examples than some."""

    def __init__(self, params):
        how = params.get("exhausted", "forward")
        self.fits = params.get("fits") if not how.endswith(" on 1") or SLOT == 1 else None
        self.how = how.removesuffix(" on 1")

    def check(self, examples, loss, bias):
        if self.fits is None or examples <= self.fits:
            return loss
        if self.how == "forward":
            torch.zeros(TOO_MUCH)
        # A table of one number again and again, whose gradient has to be a table as well.
        table = bias[:1].unsqueeze(1).expand(TOO_MUCH, 1)
        return loss + F.embedding(torch.tensor([0]), table).sum() * 0.0


@pt.trial
def train(trial):
    params = trial.params
    layers = [nn.Linear(INPUTS, 24), nn.ReLU(), nn.Linear(24, CLASSES)]
    if params.get("batch_norm"):
        layers.insert(1, nn.BatchNorm1d(24))
    if params.get("dropout"):
        layers.insert(-1, nn.Dropout(params["dropout"]))
    net = nn.Sequential(*layers)
    model, optimizer = trial.elastic(net, optimizer_of(params, net))
    scheduler = trial.keep("scheduler", torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5))
    scaler = trial.scaler() if params.get("scaler") else None
    half = contextlib.nullcontext
    if params.get("amp"):
        half = lambda: torch.autocast("cpu", dtype=torch.bfloat16)
    train_set, test_set = Points(EXAMPLES, 1), Points(params.get("tests", 101), 2)
    workers, room = params.get("num_workers", 0), Room(params)
    seen = []

    def right(batch):
        x, y, _ = batch
        if params.get("fits") and len(x) > 8 * params["fits"]:
            torch.zeros(TOO_MUCH)
        sums = {"accuracy": (model(x).argmax(1) == y).sum(), "count": len(y)}
        if params.get("classes"):
            # Names that follow from the examples: other ones on each worker.
            sums.update({f"class_{number}": (y == number).sum() for number in y.unique().tolist()})
        return sums

    for epoch in trial.epochs():
        if os.environ.get("FAIL"):
            raise ValueError("a mistake of the user")
        if params.get("before"):
            # Whoever has just joined does so while the others are in the middle of the epoch.
            trial.evaluate(test_set, right)
        for x, y, places in trial.batches(train_set, num_workers=workers):
            before = trial._training.steps
            wait(params, before)
            if os.path.exists(params.get("pending", "")):
                # A change is on its way, and not to be missed.
                time.sleep(0.1)
            with half():
                loss = room.check(len(y), F.cross_entropy(model(x), y), net[-1].bias)
            optimizer.zero_grad()
            seen += places.tolist()
            if scaler is not None:
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
            else:
                loss.backward()
            if params.get("clip"):
                trial.clip_grad_norm_(params["clip"])
            if scaler is not None:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
            if trial._training.steps > before:
                if params.get("log"):
                    line = {"step": before, "rank": trial.rank, "size": trial.size, "epoch": epoch, "places": seen}
                    with open(params["log"], "a") as log:
                        log.write(json.dumps(line) + "\n")
                seen = []
            elif trial._stepper.broken is not None:
                seen = []
        trial.report(trial.evaluate(test_set, right, num_workers=workers))
        scheduler.step()
    return trial.evaluate(test_set, right, num_workers=workers)


if __name__ == "__main__":
    pt.main()

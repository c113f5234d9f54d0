"""The module of `lightning_script.py` for rehearsals: it waits where its test wants it to, and writes down which epoch and step it is in."""

import json
import os
import time

import torch
from lightning_script import Net, Points
from rehearsed_script import wait
from torch.utils.data import DataLoader, Dataset

import pollux_tune as pt
from pollux_tune.lightning import ElasticTrainer


class Where(Dataset):
    """Examples, and whether another process has loaded them."""

    def __init__(self, examples):
        self.examples = examples

    def __len__(self):
        return len(self.examples)

    def __getitem__(self, place):
        return *self.examples[place], float(torch.utils.data.get_worker_info() is not None)


class WatchedPoints(Points):
    def val_dataloader(self):
        return DataLoader(Where(self.data[1]), batch_size=64, num_workers=1)


class WatchedNet(Net):
    def __init__(self, params):
        super().__init__(params["lr"])
        self.watch, self.done = params, None

    def note(self, what):
        line = {"what": what, "rank": self.global_rank, "epoch": self.current_epoch, "step": self.global_step}
        with open(self.watch["log"], "a") as log:
            log.write(json.dumps(line) + "\n")

    def on_train_start(self):
        self.note("start")

    def on_train_batch_start(self, batch, batch_idx):
        self.done = self.global_step
        wait(self.watch, self.done)
        if os.path.exists(self.watch["pending"]):
            # A change is on its way, and not to be missed.
            time.sleep(0.1)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.note("pass" if self.global_step == self.done else "update")

    def validation_step(self, batch, batch_idx):
        x, y, elsewhere = batch
        super().validation_step((x, y), batch_idx)
        self.log("loaded_elsewhere", elsewhere.mean())


@pt.trial
def train(trial):
    return ElasticTrainer(trial).fit(WatchedNet(trial.params), datamodule=WatchedPoints())


if __name__ == "__main__":
    pt.main()

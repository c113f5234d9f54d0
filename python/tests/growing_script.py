"""Training that pays with more workers and larger batches, whatever the machine is: its steps mostly wait. For the tests."""

import json
import os
import time

import torch
import torch.nn.functional as F
from torch import nn

import pollux_tune as pt

STEP_S, EXAMPLE_S = 0.03, 0.003
generator = torch.Generator().manual_seed(1)
inputs = torch.randn(400, 8, generator=generator)
# Mostly noise: larger batches lose little.
targets = inputs @ torch.randn(8, 1, generator=generator) + 10 * torch.randn(400, 1, generator=generator)
train_set = torch.utils.data.TensorDataset(inputs, targets)


@pt.trial
def train(trial):
    net = nn.Linear(8, 1)
    model, optimizer = trial.elastic(net, torch.optim.SGD(net.parameters(), lr=trial.params["lr"]))

    def note(*_):
        """At the update itself, as the optimizer sees it."""
        line = {"rank": trial.rank, "size": trial.size, "batch": trial.batch_size, "lr": optimizer.param_groups[0]["lr"]}
        line["statistics"] = trial._training.statistics
        with open(os.path.join(os.environ["LOGS"], f"trial-{trial.number}"), "a") as log:
            log.write(json.dumps(line) + "\n")

    optimizer.register_step_pre_hook(note)
    for epoch in trial.epochs():
        for x, y in trial.batches(train_set):
            time.sleep(STEP_S + EXAMPLE_S * len(x))
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
        trial.report(loss=float(epoch))
        # All members of the group see the same.
        if trial.size > 1 and trial.batch_size > trial.params["batch"]:
            return


pt.main()

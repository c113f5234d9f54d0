"""A script as users write them, for the tests: a small classification with batch normalization."""

import os

import torch
import torch.nn.functional as F
from torch import nn

import pollux_tune as pt

generator = torch.Generator().manual_seed(1)
weights = torch.randn(16, 4, generator=generator)
inputs = torch.randn(1200, 16, generator=generator)
classes = (inputs @ weights + torch.randn(1200, 4, generator=generator)).argmax(1)
train_set = torch.utils.data.TensorDataset(inputs[:1000], classes[:1000])
test_set = torch.utils.data.TensorDataset(inputs[1000:], classes[1000:])


@pt.trial
def train(trial):
    net = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(net.parameters(), lr=trial.params["lr"], momentum=0.9)
    model, optimizer = trial.elastic(net, optimizer)
    scheduler = trial.keep("scheduler", torch.optim.lr_scheduler.StepLR(optimizer, 5))

    def right(batch):
        x, y = batch
        return {"accuracy": (model(x).argmax(1) == y).sum()}

    for epoch in trial.epochs():
        for x, y in trial.batches(train_set):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            trial.clip_grad_norm_(10.0)
            optimizer.step()
        if os.environ.get("FAIL"):
            raise ValueError("a mistake of the user")
        trial.report(trial.evaluate(test_set, right))
        scheduler.step()
    return trial.evaluate(test_set, right)


pt.main()

"""An elastic trial: pollux-tune changes its number of GPUs and its batch while it trains, without a restart.

    pollux-tune run study.yaml                                          the whole study
    python train.py --lr 0.1 --momentum 0.9 --width 32 --epochs 3       one training, in this process

It needs PyTorch and the package pollux_tune.
"""

import torch
import torch.nn.functional as F
from torch import nn

import pollux_tune as pt


def rings(count, seed):
    """Points of a square and the ring that each is in, 0 or 1. Put your own data set here."""
    points = torch.rand(count, 2, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    return torch.utils.data.TensorDataset(points, (points.norm(dim=1) * 3).long() % 2)


@pt.trial
def train(trial):
    width = trial.params["width"]
    net = nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))
    optimizer = torch.optim.SGD(net.parameters(), lr=trial.params["lr"], momentum=trial.params["momentum"])
    model, optimizer = trial.elastic(net, optimizer)  # in place of DistributedDataParallel
    training, test = rings(4000, seed=0), rings(1000, seed=1)

    def metrics(batch):  # sums over the examples of a batch
        x, y = batch
        return {"accuracy": (model(x).argmax(1) == y).sum()}

    for epoch in trial.epochs():
        for x, y in trial.batches(training):  # in place of DistributedSampler and DataLoader
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        trial.report(trial.evaluate(test, metrics))  # what was reported last is the result


if __name__ == "__main__":
    pt.main()

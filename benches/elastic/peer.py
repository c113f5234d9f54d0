"""The same training steps by PyTorch's DistributedDataParallel. Prints what a step takes, in seconds: the median time by the clock, and
the mean CPU time of the first rank.

Usage: peer.py WIDTH BATCH WORKERS STEPS
"""

import os
import socket
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WARM_UP = 1


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.around = None
        if stride != 1 or inputs != outputs:
            self.around = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x):
        inner = self.first_norm(self.first(x)).relu()
        inner = self.second_norm(self.second(inner))
        around = x if self.around is None else self.around(x)
        return (inner + around).relu()


def resnet18(width):
    layers = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    inputs = width
    for stage in range(4):
        outputs = width << stage
        for block in range(2):
            layers.append(Block(inputs, outputs, 2 if stage > 0 and block == 0 else 1))
            inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10))


def train(rank, width, batch, workers, steps, results):
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = resnet18(width)
    if workers > 1:
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        dist.init_process_group("gloo", rank=rank, world_size=workers)
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    images, labels = torch.randn(batch, 3, 32, 32), torch.zeros(batch, dtype=torch.int64)
    times, cpu = [], 0.0
    for step in range(steps):
        if step == WARM_UP:
            cpu = time.process_time()
        began = time.perf_counter()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        times.append(time.perf_counter() - began)
    if rank == 0:
        cpu = (time.process_time() - cpu) / (steps - WARM_UP)
        results.put(f"{statistics.median(times[WARM_UP:])} {cpu}")
    if workers > 1:
        dist.destroy_process_group()


def main():
    width, batch, workers, steps = map(int, sys.argv[1:5])
    context = mp.get_context("spawn")
    results = context.SimpleQueue()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ["MASTER_PORT"] = str(free.getsockname()[1])
    ranks = [
        context.Process(target=train, args=(rank, width, batch, workers, steps, results)) for rank in range(workers)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
        if rank.exitcode:
            sys.exit(f"a rank ended with {rank.exitcode}")
    print(results.get())


if __name__ == "__main__":
    main()

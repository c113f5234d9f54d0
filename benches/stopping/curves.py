#!/usr/bin/env python3
"""Trains small networks with random hyper-parameters and writes their learning curves into data/curves.

Usage: curves.py FASHION CIFAR LOG [FOLDER]

FASHION has the four `.gz` files of Fashion-MNIST (the Debian package dataset-fashion-mnist has them in
/usr/share/datasets/fashion-mnist), CIFAR is what `scripts/cifar10.py` prints. Each finished run is appended to LOG as a line
of JSON, and a run that is there already is not repeated, so this may be interrupted. With FOLDER it trains nothing, and writes the
runs in LOG as a table for each task. Needs NumPy; about one second of CPU time for a run.
"""

import csv
import gzip
import io
import json
import math
import os
import sys
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import numpy as np

RUNS = 40
VALIDATION, TEST = 2000, 5000
HYPERPARAMETERS = ["lr", "momentum", "decay", "width", "batch", "dropout"]
# name: images, network, optimizer, schedule, epochs, reports for each epoch, training images, share of wrong labels
TASKS = {
    "fashion-mlp": ("fashion", "mlp", "sgd", "constant", 20, 1, 3000, 0.0),
    "fashion-cosine": ("fashion", "mlp", "sgd", "cosine", 20, 1, 3000, 0.0),
    "fashion-noisy": ("fashion", "mlp", "adam", "constant", 30, 1, 1500, 0.2),
    "fashion-short": ("fashion", "conv", "adam", "one-cycle", 3, 4, 12000, 0.0),
    "cifar-cosine": ("cifar", "conv", "sgd", "cosine", 20, 1, 3000, 0.0),
    "cifar-cycle": ("cifar", "conv", "adam", "one-cycle", 12, 1, 4000, 0.0),
    "cifar-steps": ("cifar", "mlp", "sgd", "steps", 30, 1, 2000, 0.0),
    "cifar-long": ("cifar", "conv", "sgd", "steps", 100, 1, 600, 0.0),
}


def fashion(folder):
    read = lambda name, skip: np.frombuffer(gzip.decompress((folder / name).read_bytes()), np.uint8)[skip:]
    parts = []
    for part in ("train", "t10k"):
        images = read(f"{part}-images-idx3-ubyte.gz", 16).reshape(-1, 14, 2, 14, 2).mean((2, 4), dtype=np.float32)
        # Framed to 16 x 16, so that patches fit.
        images = np.pad(images, ((0, 0), (1, 1), (1, 1)))[..., None]
        parts.append((images, read(f"{part}-labels-idx1-ubyte.gz", 8)))
    return parts


def cifar(folder):
    def read(names):
        rows = np.concatenate([np.frombuffer((folder / name).read_bytes(), np.uint8) for name in names])
        rows = rows.reshape(-1, 3073)
        images = rows[:, 1:].reshape(-1, 3, 16, 2, 16, 2).mean((3, 5), dtype=np.float32)
        return images.transpose(0, 2, 3, 1), rows[:, 0]

    return [read(["data_batch_1.bin", "data_batch_2.bin"]), read(["test_batch.bin"])]


def patches(images, size):
    """Of N x H x W x C, those of size x size, side by side, as N x H/size x W/size x (size * size * C)."""
    n, h, w, c = images.shape
    cut = images.reshape(n, h // size, size, w // size, size, c).transpose(0, 1, 3, 2, 4, 5)
    return np.ascontiguousarray(cut).reshape(n, h // size, w // size, size * size * c)


class Network:
    """Layers of weights with ReLU between them. In `conv`, the first two are convolutions that step by the size of their kernel."""

    def __init__(self, kind, channels, width, random):
        self.conv = kind == "conv"
        sizes = (
            [(16 * channels, width), (4 * width, 2 * width), (8 * width, 10)]
            if self.conv
            else [(256 * channels, 2 * width), (2 * width, width), (width, 10)]
        )
        draw = lambda size: random.normal(0, math.sqrt(2 / size[0]), size).astype(np.float32)
        self.weights = [array for size in sizes for array in (draw(size), np.zeros(size[1], np.float32))]

    def inputs(self, images):
        return patches(images, 4) if self.conv else images.reshape(len(images), -1)

    def forward(self, x, dropout=0.0, random=None):
        w1, b1, w2, b2, w3, b3 = self.weights
        first = np.maximum(x @ w1 + b1, 0)
        middle = patches(first, 2) if self.conv else first
        second = np.maximum(middle @ w2 + b2, 0)
        flat = second.reshape(len(x), -1)
        if dropout:
            flat = flat * ((random.random(flat.shape, np.float32) >= dropout) / np.float32(1 - dropout))
        return first, middle, second, flat, flat @ w3 + b3

    def gradients(self, x, y, dropout, random):
        _, _, w2, _, w3, _ = self.weights
        first, middle, second, flat, logits = self.forward(x, dropout, random)
        d = softmax(logits)
        d[np.arange(len(y)), y] -= 1
        d /= len(y)
        g3 = (flat.T @ d, d.sum(0))
        d = (d @ w3.T) * (flat > 0)
        if dropout:
            d /= np.float32(1 - dropout)
        d = d.reshape(-1, second.shape[-1])
        g2 = (middle.reshape(-1, middle.shape[-1]).T @ d, d.sum(0))
        d = d @ w2.T
        if self.conv:
            n, h, w, c = first.shape
            d = d.reshape(n, h // 2, w // 2, 2, 2, c).transpose(0, 1, 3, 2, 4, 5)
        d = np.ascontiguousarray(d).reshape(-1, first.shape[-1]) * (first.reshape(-1, first.shape[-1]) > 0)
        g1 = (x.reshape(-1, x.shape[-1]).T @ d, d.sum(0))
        return [*g1, *g2, *g3]

    def measure(self, x, y):
        """The mean loss and the share of errors."""
        logits = self.forward(x)[-1].astype(np.float64)
        logits -= logits.max(1, keepdims=True)
        losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(y)), y]
        wrong = (logits.argmax(1) != y).mean() if np.isfinite(losses).all() else 0.9
        return float(losses.mean()), float(wrong)


def softmax(logits):
    exp = np.exp(logits - logits.max(1, keepdims=True))
    return exp / exp.sum(1, keepdims=True)


def rate(schedule, done):
    """What the learning rate is multiplied by when this share of the training is done."""
    if schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * done))
    if schedule == "steps":
        return 1.0 if done < 0.5 else 0.1 if done < 0.75 else 0.01
    if schedule == "one-cycle":
        return done / 0.3 if done < 0.3 else (1 - done) / 0.7
    return 1.0


def drawn(task, run):
    """The hyper-parameters of a run."""
    _, _, optimizer, *_ = TASKS[task]
    random = np.random.default_rng([run, list(TASKS).index(task)])
    log = lambda low, high: float(math.exp(random.uniform(math.log(low), math.log(high))))
    return {
        "lr": log(1e-3, 1.0) if optimizer == "sgd" else log(1e-4, 1e-1),
        "momentum": float(random.uniform(0.0, 0.98)),
        "decay": log(1e-6, 1e-1),
        "width": round(log(8, 64)),
        "batch": 2 ** int(random.integers(4, 8)),
        "dropout": float(random.uniform(0.0, 0.7)),
    }, random


class Optimizer:
    def __init__(self, kind, config, weights):
        self.kind, self.config, self.weights, self.step = kind, config, weights, 0
        self.first = [np.zeros_like(w) for w in weights]
        self.second = [np.zeros_like(w) for w in weights]

    def update(self, gradients, factor):
        lr, beta, decay = self.config["lr"] * factor, self.config["momentum"], self.config["decay"]
        self.step += 1
        for w, g, m, v in zip(self.weights, gradients, self.first, self.second):
            if self.kind == "sgd":
                m *= beta
                m += g + decay * w
                w -= lr * m
            else:
                m *= beta
                m += (1 - beta) * g
                v *= 0.99
                v += 0.01 * g * g
                bias = math.sqrt(1 - 0.99**self.step) / (1 - beta**self.step)
                w -= lr * (bias * m / (np.sqrt(v) + 1e-8) + decay * w)


def train(task, run, data):
    images, kind, optimizer, schedule, epochs, reports, count, wrong = TASKS[task]
    config, random = drawn(task, run)
    (train_x, train_y), (test_x, test_y) = data[images]
    # Which images and which wrong labels a task has is the same for all its runs.
    order = np.random.default_rng(1).permutation(len(train_x))
    own, held = order[:count], order[-VALIDATION:]
    y = train_y[own].astype(np.int64)
    noise = np.random.default_rng(7)
    y = np.where(noise.random(count) < wrong, noise.integers(0, 10, count), y)
    network = Network(kind, train_x.shape[-1], config["width"], random)
    x, held_x, test_x = (network.inputs(part) for part in (train_x[own], train_x[held], test_x[:TEST]))
    held_y, test_y = train_y[held].astype(np.int64), test_y[:TEST].astype(np.int64)
    optimizer = Optimizer(optimizer, config, network.weights)
    steps = count // config["batch"]
    marks = {round(steps * (at + 1) / reports) for at in range(reports)}
    curve = []
    for epoch in range(epochs):
        order = random.permutation(count)
        for step in range(steps):
            batch = order[step * config["batch"] : (step + 1) * config["batch"]]
            gradients = network.gradients(x[batch], y[batch], config["dropout"], random)
            optimizer.update(gradients, rate(schedule, (epoch + step / steps) / epochs))
            if step + 1 in marks:
                curve.append(network.measure(held_x, held_y))
    return {"task": task, "run": run, **config, "curve": curve, "test": network.measure(test_x, test_y)}


def finished(log):
    if not log.exists():
        return {}
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return {(line["task"], line["run"]): line for line in lines}


def measure(fashion_folder, cifar_folder, log):
    np.seterr(all="ignore")
    done = finished(log)
    data = {"fashion": fashion(fashion_folder), "cifar": cifar(cifar_folder)}
    for images, parts in data.items():
        # Colours to mean 0 and deviation 1, by the training images.
        mean, deviation = parts[0][0].mean(), parts[0][0].std()
        data[images] = [((x - mean) / deviation, y) for x, y in parts]
    for run in range(RUNS):
        for task in TASKS:
            if (task, run) in done:
                continue
            line = json.dumps(train(task, run, data))
            with open(log, "a") as file:
                file.write(line + "\n")


def write(log, folder):
    runs = finished(log)
    whole = min(sum(1 for name, _ in runs if name == task) for task in TASKS)
    digits = lambda value: f"{value:.4g}" if math.isfinite(value) and value < 1e4 else "nan"
    for task, (_, _, _, _, _, reports, _, _) in TASKS.items():
        text = io.StringIO()
        out = csv.writer(text, lineterminator="\n")
        points = len(runs[task, 0]["curve"])
        at = [digits((point + 1) / reports) for point in range(points)]
        out.writerow([*HYPERPARAMETERS, "test_loss", "test_error", *(f"loss_{e}" for e in at), *(f"error_{e}" for e in at)])
        for run in range(whole):
            row = runs[task, run]
            values = [row[name] for name in HYPERPARAMETERS] + row["test"]
            values += [loss for loss, _ in row["curve"]] + [error for _, error in row["curve"]]
            out.writerow(map(digits, values))
        (folder / f"{task}.csv.gz").write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))


def main():
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__)
    if len(sys.argv) == 5:
        write(Path(sys.argv[3]), Path(sys.argv[4]))
    else:
        measure(*map(Path, sys.argv[1:]))


if __name__ == "__main__":
    main()

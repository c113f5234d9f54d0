"""What the scripts beside this one train: ResNet18 on CIFAR-10, in plain PyTorch.

The same network, data and five hyper-parameters as `trainable: cifar10` in Rust: learning rate, annealing, momentum, weight decay, width.
"""

import math
import os
from pathlib import Path

import numpy
import torch
import torch.nn.functional as F
from torch import nn

# Mean and spread of the three colours over the training images.
MEAN = torch.tensor([0.4914, 0.4822, 0.4465]).view(1, 3, 1, 1)
SPREAD = torch.tensor([0.2470, 0.2435, 0.2616]).view(1, 3, 1, 1)
SHIFT = 4
#: Of all three studies. Raise them for a real one; 64 is the width of the published network.
EXAMPLES = int(os.environ.get("EXAMPLES", 2000))
EPOCHS = int(os.environ.get("EPOCHS", 4))
TRIALS = int(os.environ.get("TRIALS", 8))
BATCH = 64


def images(*names, count=EXAMPLES):
    """The first images as `make cifar10` fetches them: a byte for the label, then red, green and blue of each pixel."""
    cache = os.environ.get("POLLUX_TUNE_CACHE") or Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "pollux-tune"
    folder = Path(os.environ.get("CIFAR10") or Path(cache) / "cifar10")
    rows = numpy.concatenate([numpy.fromfile(folder / name, dtype=numpy.uint8).reshape(-1, 3073) for name in names])
    rows = torch.from_numpy(rows[:count])
    return rows[:, 1:].view(-1, 3, 32, 32), rows[:, 0].long()


def normalized(pixels):
    return (pixels / 255 - MEAN) / SPREAD


def augmented(pixels):
    """Moved a little, and mirrored every other time."""
    padded = F.pad(pixels, [SHIFT] * 4)
    down, right = torch.randint(0, 2 * SHIFT + 1, (2, len(pixels))).tolist()
    moved = torch.stack([image[:, y : y + 32, x : x + 32] for image, y, x in zip(padded, down, right)])
    mirror = torch.rand(len(moved)) < 0.5
    moved[mirror] = moved[mirror].flip(-1)
    return moved


class Block(nn.Module):
    """Two convolutions with a way around them."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.around = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.around = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        inner = F.relu(self.first_norm(self.first(x)))
        return F.relu(self.second_norm(self.second(inner)) + self.around(x))


def initialize(module):
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    elif isinstance(module, nn.Linear):
        nn.init.kaiming_uniform_(module.weight, nonlinearity="relu")


def resnet18(width):
    """For small images (He et al. 2016); `width` is the number of channels of its first layer."""
    layers = [nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    inputs = width
    for stage in range(4):
        for block in range(2):
            layers.append(Block(inputs, width << stage, 2 if stage > 0 and block == 0 else 1))
            inputs = width << stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10)).apply(initialize)


def training(params, device="cpu"):
    """Trains epoch by epoch, and gives the accuracy after each."""
    torch.manual_seed(0)
    pixels, labels = images(*(f"data_batch_{number}.bin" for number in range(1, 6)))
    test_pixels, test_labels = images("test_batch.bin")
    net = resnet18(params["width"]).to(device)
    settings = {name: params[name] for name in ("lr", "momentum", "weight_decay")}
    optimizer = torch.optim.SGD(net.parameters(), **settings)
    steps = EPOCHS * math.ceil(len(labels) / BATCH)
    rest = params["annealing"]
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: rest + (1 - rest) * (1 + math.cos(math.pi * min(step / steps, 1))) / 2
    )
    for _ in range(EPOCHS):
        net.train()
        for chosen in torch.randperm(len(labels)).split(BATCH):
            batch = normalized(augmented(pixels[chosen]).float()).to(device)
            loss = F.cross_entropy(net(batch), labels[chosen].to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        net.eval()
        with torch.no_grad():
            right = sum(
                (net(normalized(part.float()).to(device)).argmax(1).cpu() == truth).sum().item()
                for part, truth in zip(test_pixels.split(500), test_labels.split(500))
            )
        yield right / len(test_labels)

"""CIFAR-10 as an elastic trial: `pollux-tune run search-spaces/cifar10-python.yaml`, or once by hand
`python examples/python/cifar10_elastic.py --lr 0.1 --width 4 --examples 2000`. `make cifar10` fetches the images.

The same network, data, augmentation and schedule as `trainable: cifar10` in Rust.
"""

import math

import torch
import torch.nn.functional as F
from resnet import augmented, images, normalized, resnet18

import pollux_tune as pt


class Images(torch.utils.data.Dataset):
    def __init__(self, count, *names):
        pixels, labels = images(*names, count=count)
        self.pixels, self.labels = pixels, labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, place):
        return self.pixels[place], self.labels[place]


def moved(examples):
    pixels, labels = torch.utils.data.default_collate(examples)
    return normalized(augmented(pixels).float()), labels


def unmoved(examples):
    pixels, labels = torch.utils.data.default_collate(examples)
    return normalized(pixels.float()), labels


@pt.trial
def train(trial):
    params = trial.params
    count = params.get("examples", 50_000)
    training = Images(count, *(f"data_batch_{number}.bin" for number in range(1, 6)))
    test = Images(count, "test_batch.bin")
    net = resnet18(params.get("width", 64))
    settings = {name: params.get(name, usual) for name, usual in (("lr", 0.1), ("momentum", 0.9), ("weight_decay", 5e-4))}
    model, optimizer = trial.elastic(net, torch.optim.SGD(net.parameters(), **settings))
    rest = params.get("annealing", 0.0)

    def metrics(batch):
        x, y = (part.to(trial.device) for part in batch)
        logits = model(x)
        return {"accuracy": (logits.argmax(1) == y).sum(), "loss": F.cross_entropy(logits, y, reduction="sum")}

    for epoch in trial.epochs():
        for x, y in trial.batches(training, collate_fn=moved):
            share = min(trial.progress / trial.total_epochs, 1)
            optimizer.param_groups[0]["lr"] = settings["lr"] * (rest + (1 - rest) * (1 + math.cos(math.pi * share)) / 2)
            optimizer.zero_grad()
            F.cross_entropy(model(x.to(trial.device)), y.to(trial.device)).backward()
            optimizer.step()
        result = trial.evaluate(test, metrics, collate_fn=unmoved)
        trial.report(result)
    return trial.evaluate(test, metrics, collate_fn=unmoved)


if __name__ == "__main__":
    pt.main()

"""What the measurements beside this file train: ResNet18 on random images, and a log of its steps.

Started as a worker of `pollux-tune run` or by itself it is an elastic trial; with `--ddp` it is the same loop in plain PyTorch under DDP, started once
for each rank, which saves its state and ends when it is told to.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "python"))
from resnet import resnet18

CLASSES, LR, MOMENTUM = 10, 0.01, 0.9


class Log:
    """A line for each step: when it was complete, on a clock that all processes share, the CPU time so far, and the size of the group."""

    def __init__(self, folder):
        self._out = open(Path(folder) / f"{os.getpid()}.jsonl", "a", buffering=1)

    def step(self, rank, size, batch):
        line = {"at": time.perf_counter(), "cpu": time.process_time(), "rank": rank, "size": size, "batch": batch}
        self._out.write(json.dumps(line) + "\n")


def images(examples):
    generator = torch.Generator().manual_seed(3)
    pixels = torch.randn(examples, 3, 32, 32, generator=generator)
    return torch.utils.data.TensorDataset(pixels, torch.randint(0, CLASSES, (examples,), generator=generator))


def model(width):
    torch.manual_seed(1)
    net = resnet18(width)
    return net, torch.optim.SGD(net.parameters(), lr=LR, momentum=MOMENTUM)


def elastic(trial):
    """Of the length that the study file says."""
    log, data = Log(trial.params["log"]), images(trial.params["examples"])
    net, optimizer = trial.elastic(*model(trial.params["width"]))
    for x, y in trial.batches(data):
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
        log.step(trial.rank, trial.size, len(x))
    return {"loss": 0.0}


def plain(settings):
    """`--ddp`: so many steps, or until SIGTERM; from a checkpoint if there is one."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    ended = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(True))
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    log, data = Log(settings["log"]), images(settings["examples"])
    net, optimizer = model(settings["width"])
    checkpoint = Path(settings.get("checkpoint", "/nowhere"))
    done = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        net.load_state_dict(saved["net"])
        optimizer.load_state_dict(saved["optimizer"])
        done = saved["done"]
    wrapped = DistributedDataParallel(net, gradient_as_bucket_view=True)
    sampler = torch.utils.data.DistributedSampler(data, size, rank)
    loader = torch.utils.data.DataLoader(data, batch_size=settings["batch"], sampler=sampler, drop_last=True)
    end = torch.zeros(1)
    while done < settings["steps"]:
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(wrapped(x), y).backward()
            optimizer.step()
            done += 1
            log.step(rank, size, len(x))
            if "checkpoint" in settings:
                end.fill_(float(bool(ended)))
                dist.all_reduce(end)
                if end > 0:
                    if rank == 0:
                        state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "done": done}
                        torch.save(state, checkpoint.with_suffix(".part"))
                        checkpoint.with_suffix(".part").rename(checkpoint)
                    return
            if done >= settings["steps"]:
                break
    dist.barrier()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--ddp"]:
        plain(json.loads(sys.argv[2]))
        # Gloo aborts now and then where an interpreter takes its leave.
        os._exit(0)
    else:
        import pollux_tune as pt

        pt.trial(elastic)
        pt.main()

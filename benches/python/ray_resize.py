"""Ray Train is resized, as elastic.py measures it: `python ray_resize.py FOLDER WIDTH BATCH`. Needs `ray[train]` and PyTorch.

A node with one slot comes and goes. Ray looks every second instead of once a minute, and the script saves its state after every 20 steps, as
Ray's examples do at each epoch; steps since then are repeated.
"""

import os
import sys
import tempfile
import threading
import time
from pathlib import Path

os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray
import ray.train
import torch
import torch.nn.functional as F
from ray.cluster_utils import Cluster
from ray.train.torch import TorchTrainer

from elastic import PATIENCE_S, SAME, wait_for
from steps import Log, images, model

EVERY = 20


def train(settings):
    torch.set_num_threads(1)
    context = ray.train.get_context()
    rank, size = context.get_world_rank(), context.get_world_size()
    log, data = Log(settings["log"]), images(128 * settings["batch"])
    net, optimizer = model(settings["width"])
    saved = ray.train.get_checkpoint()
    if saved is not None:
        with saved.as_directory() as folder:
            state = torch.load(Path(folder) / "state")
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
    net = ray.train.torch.prepare_model(net)
    sampler = torch.utils.data.DistributedSampler(data, size, rank)
    loader = torch.utils.data.DataLoader(data, batch_size=settings["batch"], sampler=sampler, drop_last=True)
    done = 0
    while not Path(settings["log"], "end").exists():
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
            log.step(rank, size, len(x))
            done += 1
            if done % EVERY == 0:
                with tempfile.TemporaryDirectory() as folder:
                    checkpoint = None
                    if rank == 0:
                        inner = net.module if hasattr(net, "module") else net
                        torch.save({"net": inner.state_dict(), "optimizer": optimizer.state_dict()}, Path(folder) / "state")
                        checkpoint = ray.train.Checkpoint.from_directory(folder)
                    ray.train.report({"done": done}, checkpoint=checkpoint)


def main():
    folder, width, batch = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    path = {"PYTHONPATH": str(Path(__file__).resolve().parent)}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 8, "resources": {"slot": 1}})
    ray.init(address=cluster.address, runtime_env={"env_vars": {**SAME, **path}}, log_to_driver=False)
    trainer = TorchTrainer(
        train,
        train_loop_config={"log": str(folder), "width": width, "batch": batch},
        scaling_config=ray.train.ScalingConfig(
            num_workers=(1, 2), resources_per_worker={"slot": 1}, elastic_resize_monitor_interval_s=1.0
        ),
        run_config=ray.train.RunConfig(
            storage_path=str(folder / "ray"), failure_config=ray.train.FailureConfig(max_failures=-1)
        ),
    )
    training = threading.Thread(target=trainer.fit, daemon=True)
    training.start()
    try:
        resize(cluster, folder)
    finally:
        (folder / "end").touch()
        training.join(PATIENCE_S)
        ray.shutdown()
        cluster.shutdown()


def resize(cluster, folder):
    """1 to 2, 2 to 1, 1 to 2."""
    for is_last in [False, True]:
        begun = time.perf_counter()
        wait_for(folder, lambda lines: lines and lines[-1]["size"] == 1 and lines[-1]["at"] > begun, "one worker of Ray")
        time.sleep(3.0)
        node = cluster.add_node(num_cpus=0, resources={"slot": 1})
        wait_for(folder, lambda lines: lines[-1]["size"] == 2, "two workers of Ray")
        time.sleep(3.0)
        if not is_last:
            cluster.remove_node(node)


if __name__ == "__main__":
    main()

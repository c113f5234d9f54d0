#!/usr/bin/env python3
"""Makes data/profiles/mesh-*.csv.gz: the tetrahedra between measured step times. Needs numpy, pandas and scipy.

Between placements that were measured, the authors' simulator interpolates with scipy over the Delaunay triangulation of
(nodes, GPUs, batch). On such a grid it is not unique, and where faces of neighbours do not match, scipy's answer depends on
where its search begins. So the tetrahedra are written in an order such that the first one that contains a point is the one
that scipy finds when asked for that point alone, as the authors do.
"""

import heapq
import gzip
import pathlib

import numpy as np
import pandas as pd
from scipy.spatial import Delaunay

DATA = pathlib.Path(__file__).resolve().parent.parent / "data" / "profiles"
AXES = ["num_nodes", "num_replicas", "local_bsz"]
# Largest total batch, and per-GPU batches, of what can run on more than four nodes.
LIMITS = {"bert": (384, 4, 12), "cifar10": (4096, 32, 1024), "deepspeech2": (640, 10, 80),
          "imagenet": (12800, 20, 200), "yolov3": (512, 4, 8)}


def measured(model, gpu):
    placements = pd.read_csv(DATA / model / f"placements-{gpu}.csv", dtype={"placement": str})
    placements["num_nodes"] = placements.placement.str.len()
    placements["num_replicas"] = placements.placement.map(lambda digits: sum(map(int, digits)))
    values = ["step_time", "sync_time"]
    mean = placements.groupby(AXES)[values].mean().reset_index()
    rows = pd.concat([mean, pd.read_csv(DATA / model / f"scalability-{gpu}.csv")])
    return rows[AXES].values.astype(float), rows[values].values


def precedence(mesh, points, values, limits):
    """Pairs (first, second) of tetrahedra that share a point but not its values, with the number of such points."""
    low, high = points[mesh.simplices].min(1) - 1e-7, points[mesh.simplices].max(1) + 1e-7
    most, least_bsz, most_bsz = limits
    pairs = {}
    for nodes in range(5, 17):
        for gpus in range(nodes, 4 * nodes + 1):
            for bsz in range(least_bsz, min(most_bsz, most // gpus) + 1):
                at = np.array([nodes, gpus, bsz], float)
                near = np.where(((low <= at) & (high >= at)).all(1))[0]
                shares = np.einsum("ijk,ik->ij", mesh.transform[near][:, :3], at - mesh.transform[near][:, 3])
                shares = np.c_[shares, 1 - shares.sum(1)]
                inside = (shares >= -1e-9).all(1)
                near, times = near[inside], np.einsum("ij,ijk->ik", shares[inside], values[mesh.simplices[near[inside]]])
                found = int(mesh.find_simplex(at))
                own = times[list(near).index(found)]
                for other in near[np.abs(times / own - 1).max(1) > 1e-12]:
                    pairs[found, int(other)] = pairs.get((found, int(other)), 0) + 1
    return pairs


def ordered(count, pairs):
    """A topological order; a cycle is broken where fewest points suffer."""
    after, waiting = [{} for _ in range(count)], [0] * count
    for (first, second), points in pairs.items():
        after[first][second] = points
        waiting[second] += points
    ready = [one for one in range(count) if waiting[one] == 0]
    order, done = [], [False] * count
    while len(order) < count:
        if not ready:
            heapq.heappush(ready, min((one for one in range(count) if not done[one]), key=lambda one: waiting[one]))
        one = heapq.heappop(ready)
        if done[one]:
            continue
        done[one] = True
        order.append(one)
        for other, points in after[one].items():
            waiting[other] -= points
            if waiting[other] == 0 and not done[other]:
                heapq.heappush(ready, other)
    return order


def main():
    for gpu in ["t4", "rtx2080ti"]:
        lines = ["model,a,b,c,d"]
        for model in ["bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3"]:
            points, values = measured(model, gpu)
            mesh = Delaunay(points)
            limits = LIMITS.get(model) if gpu == "t4" else None
            pairs = precedence(mesh, points, values, limits) if limits else {}
            for one in ordered(len(mesh.simplices), pairs):
                corners = sorted(int(corner) for corner in mesh.simplices[one])
                steps = [corners[0], *(b - a for a, b in zip(corners, corners[1:]))]
                lines.append(",".join([model, *map(str, steps)]))
        with open(DATA / f"mesh-{gpu}.csv.gz", "wb") as file:
            with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0, compresslevel=9) as packed:
                packed.write(("\n".join(lines) + "\n").encode())


if __name__ == "__main__":
    main()

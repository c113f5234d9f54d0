"""What scripts do besides: mixed precision, optimizers, clipping, passes, loaders with processes, too little memory; each under a head and by hand."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from rehearsal import PATIENCE_S, SCRIPT, STEPS, Gate, assert_same, finished, state, statistics, steps, task, train

FEATURES = {
    "amp": {"amp": True},
    "adam": {"optimizer": "adam", "lr": 0.01},
    "adamw": {"optimizer": "adamw", "lr": 0.01},
    "clip": {"clip": 0.5},
    "batch_norm": {"batch_norm": True},
    "num_workers": {"num_workers": 2},
    "scaler": {"scaler": True, "clip": 1.0},
}


def test_features_under_a_head(tmp_path):
    """Each learns on two workers, takes every step once, and evaluates every example once."""
    tasks = [task(tmp_path, name, **params) for name, params in FEATURES.items()]
    for number, (name, events) in enumerate(zip(FEATURES, train(tasks, [0, 1]))):
        metrics = finished(events)
        assert steps(events) == STEPS, name
        assert metrics["accuracy"] > 0.45 and metrics["count"] == 1.0, (name, metrics)
        _, variance = statistics(tasks, number)
        assert variance > 0, f"{name}: no noise was measured"


def test_passes_and_processes_change_nothing(tmp_path):
    """One pass or three, loaded here or by other processes: the same examples, and the same result."""
    tasks = [task(tmp_path, "here"), task(tmp_path, "processes", num_workers=1)]
    here, processes = train(tasks, [0, 1])
    assert_same(state(tasks, 1), state(tasks, 0), "loaded by processes")
    passes = [task(tmp_path, "passes")]
    (events,) = train(passes, [0, 1], max_batch_per_worker=2)
    assert {event["report"]["batch"]["accumulation"] for event in events if event["event"] == "reported"} == {2}
    assert_same(state(passes, 0), state(tasks, 0), "in three passes")
    assert finished(here) == pytest.approx(finished(processes)) and finished(here) == pytest.approx(finished(events))


def limits(events):
    return [(event["slot"], event["failed"], event["limit"]) for event in events if event["event"] == "out_of_memory"]


def test_a_pass_that_does_not_fit_is_taken_in_smaller_ones(tmp_path):
    """As if its size had been known before, with random numbers and running statistics that would be others if a pass counted twice."""
    params = {"dropout": 0.2, "batch_norm": True, "measure_noise": False}
    known = [task(tmp_path, "known", **params)]
    train(known, [0], slots=1, max_batch_per_worker=3)
    tasks = [task(tmp_path, how, fits=3, exhausted=how, **params) for how in ("forward", "backward")]
    # The second one is told what the first one has learned: it has a worker of its own.
    for number, one in enumerate(tasks):
        (events,) = train([one], [0], slots=1)
        assert limits(events) == [(0, 12, 3)], number
        assert steps(events) == STEPS and finished(events)["count"] == 1.0
        assert_same(state([one], 0), state(known, 0), f"learned {number}")


def test_members_that_run_out_of_memory_lose_nothing(tmp_path):
    tasks = [task(tmp_path, "one", fits=3, exhausted="forward on 1"), task(tmp_path, "none"), task(tmp_path, "hopeless", fits=0)]
    one, none, hopeless = train(tasks, [0, 1])
    assert limits(one) == [(1, 6, 3)]
    assert steps(one) == steps(none) == STEPS
    assert_same(state(tasks, 0), state(tasks, 1), "one with more passes")
    assert hopeless[-1]["event"] == "failed" and "not even one example at a time fits" in hopeless[-1]["reason"]


@pytest.mark.parametrize(
    "features", [{"amp": True, "optimizer": "adamw", "lr": 0.01, "clip": 0.5, "num_workers": 2}, {"scaler": True, "batch_norm": True, "fits": 5}]
)
def test_features_by_hand(tmp_path, features):
    words = [word for key, value in {"lr": 0.05, **features}.items() for word in (f"--{key}", json.dumps(value).strip('"'))]
    command = [sys.executable, SCRIPT, "--epochs", "2", "--batch", "12", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["accuracy"] > 0.4, done.stderr


def cpu_s(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_workers_that_wait_do_nothing(tmp_path):
    """One trains, another one has nothing to do."""
    gates, used = {at: Gate(tmp_path, at) for at in (1, 1500)}, {}

    def look(run, event):
        at = event["report"]["steps"] if event["event"] == "reported" else 0
        if at in gates:
            used[at] = [cpu_s(run.pid(slot)) for slot in (0, 1)]
            gates[at].open()

    stops = "".join(gate.after(at) for at, gate in gates.items())
    train([task(tmp_path, "trains", epochs=100, gates=stops)], [0], look)
    busy, idle = (after - before for before, after in zip(used[1], used[1500]))
    assert busy > 0.2, "too little to compare it with"
    assert idle < 0.1 * busy, f"{idle} s of processor time beside {busy} s"

"""Losses in a study: of a worker without which too few are left, and of the head."""

import json
import os
import select
import signal
import sys

import pytest

torch = pytest.importorskip("torch")

from installed import PATIENCE_S, printed, start
from rehearsal import SCRIPT, STEPS, Gate


class Held:
    """A study of one trial on two workers, which wait at gates and write down their steps."""

    def __init__(self, folder, gates):
        self.folder, self.log, self.file = folder, folder / "log", folder / "study.yaml"
        door = folder / "door"
        os.mkfifo(door)
        self.file.write_text(
            f"""
space: {{lr: 0.05, log: {{fixed: {self.log}}}, gates: {{fixed: "{gates}"}}, door: {{fixed: {door}}}}}
objective: {{maximize: accuracy}}
trial: {{python: {SCRIPT}, interpreter: {sys.executable}, epochs: 4, initial_batch: 12, max_batch: 12, min_gpus: 2, checkpoint_interval: 1h}}
search: {{trials: 1, parallel: 1, algorithm: random}}
"""
        )
        # For reading and writing: nobody who knocks has to wait.
        self._knocks = open(os.open(door, os.O_RDWR))

    def run(self):
        return start(self.folder, self.file)

    def at_the_door(self):
        """The processes of both workers by their slots, when they have come to a gate."""
        lines = (self._knocks.readline().split() for _ in range(2))
        return {slot: int(pid) for slot, pid in lines}

    def steps(self):
        """Who has taken which step, and how many they were then."""
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        return sorted((line["step"], line["rank"]) for line in lines), {line["step"]: line["size"] for line in lines}


def test_too_few_survivors_of_a_killed_rank_save_what_they_have_learned(tmp_path):
    """A trial needs two workers, and one of them is killed in the middle of a step: the other one saves, and no step is taken twice."""
    gate = Gate(tmp_path, "gate")
    held = Held(tmp_path, gate.after(30))
    run = held.run()
    os.kill(held.at_the_door()["1"], signal.SIGKILL)
    gate.open()
    assert run.wait(PATIENCE_S) == 0, printed(tmp_path)
    assert printed(tmp_path).count("has lost its worker") == 1, printed(tmp_path)
    taken, sizes = held.steps()
    assert taken == [(step, rank) for step in range(STEPS) for rank in range(sizes[step])]


def test_the_next_head_continues_where_the_killed_one_was(tmp_path):
    """The head is killed in the middle of a step, of a trial that has no checkpoint yet: its workers save and end, and no step is taken twice."""
    gate, later = Gate(tmp_path, "gate"), Gate(tmp_path, "later")
    held = Held(tmp_path, gate.after(30) + later.after(50))
    first = held.run()
    workers = [os.pidfd_open(pid) for pid in held.at_the_door().values()]
    first.kill()
    first.wait()
    # The next one comes at once, and its workers wait for those that still save.
    second = held.run()
    gate.open()
    for worker in workers:
        assert select.select([worker], [], [], PATIENCE_S)[0], "a worker outlives its head"
        os.close(worker)
    for _ in range(2):  # At the gate that is open by now, and at the next one.
        held.at_the_door()
    taken, _ = held.steps()
    assert taken == [(step, rank) for step in range(50) for rank in range(2)]
    later.open()
    assert second.wait(PATIENCE_S) == 0, printed(tmp_path)
    assert held.steps() == ([(step, rank) for step in range(STEPS) for rank in range(2)], dict.fromkeys(range(STEPS), 2))

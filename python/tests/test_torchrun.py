"""Programs that start torchrun, with several slots each and side by side on a machine."""

import json
import sys
from pathlib import Path

import pytest
from installed import program

pytest.importorskip("torch")

SCRIPT = Path(__file__).with_name("torchrun_script.py")


def test_torchrun_takes_its_ranks_and_its_port_from_the_environment(tmp_path):
    command = json.dumps([sys.executable, "-m", "torch.distributed.run", str(SCRIPT), "--lr", "{lr}"])
    (tmp_path / "study.yaml").write_text(f"""
space: {{lr: {{log: [0.01, 0.1]}}}}
objective: {{minimize: loss}}
trial: {{command: {command}, gpus: 2, epochs: 3}}
search: {{trials: 4, parallel: 2, algorithm: random}}
""")
    program("run", "study.yaml", "--slots", "4xcpu", "--folder", "study", cwd=tmp_path)
    trials = [json.loads(line) for line in program("trials", "study", "--json", cwd=tmp_path).splitlines()]
    assert len(trials) == 4 and all(trial["state"] == "done" for trial in trials), trials
    assert [trial["metrics"]["ranks"] for trial in trials] == [2] * 4
    assert all(trial["epochs"] == 3 for trial in trials)
    assert all(0 < trial["values"]["loss"] < 4 for trial in trials), trials

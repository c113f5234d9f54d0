"""Programs that start torchrun, with several slots each and side by side on a machine."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

SCRIPT = Path(__file__).with_name("torchrun_script.py")
PROGRAM = os.environ.get("POLLUX_TUNE_PROGRAM") or Path(sys.executable).parent / "pollux-tune"
PATIENCE_S = 600


def test_torchrun_takes_its_ranks_and_its_port_from_the_environment(tmp_path):
    command = json.dumps([sys.executable, "-m", "torch.distributed.run", str(SCRIPT), "--lr", "{lr}"])
    (tmp_path / "study.yaml").write_text(f"""
space: {{lr: {{log: [0.01, 0.1]}}}}
objective: {{minimize: loss}}
trial: {{command: {command}, gpus: 2, epochs: 3}}
search: {{trials: 4, parallel: 2, algorithm: random}}
""")
    run = [PROGRAM, "run", "study.yaml", "--slots", "4xcpu", "--folder", "study"]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    shown = subprocess.run([PROGRAM, "trials", "study", "--json"], cwd=tmp_path, capture_output=True, text=True, check=True)
    trials = [json.loads(line) for line in shown.stdout.splitlines()]
    assert len(trials) == 4 and all(trial["state"] == "done" for trial in trials), trials
    assert [trial["metrics"]["ranks"] for trial in trials] == [2] * 4
    assert all(trial["epochs"] == 3 for trial in trials)
    assert all(0 < trial["values"]["loss"] < 4 for trial in trials), trials

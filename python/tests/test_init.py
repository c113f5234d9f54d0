"""What `pollux-tune init --python` writes runs by hand, and under a head."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

PROGRAM = os.environ.get("POLLUX_TUNE_PROGRAM") or Path(sys.executable).parent / "pollux-tune"


def run(folder, *command):
    environment = dict(os.environ, OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_the_script_trains_by_hand_and_in_a_study(tmp_path):
    written = run(tmp_path, PROGRAM, "init", "--python")
    assert written.returncode == 0, written.stderr
    options = ["--lr", "0.1", "--momentum", "0.9", "--width", "32", "--epochs", "1"]
    by_hand = run(tmp_path, sys.executable, "train.py", *options)
    assert by_hand.returncode == 0, by_hand.stderr
    assert "accuracy" in by_hand.stdout
    study = run(tmp_path, PROGRAM, "run", "study.yaml", "--trials", "2", "--cpu", "--quiet")
    assert study.returncode == 0, study.stderr
    assert "accuracy" in study.stdout

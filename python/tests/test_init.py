"""What `pollux-tune init --python` writes runs by hand, and under a head."""

import os
import subprocess
import sys

import pytest
from installed import PATIENCE_S, program

pytest.importorskip("torch")


def test_the_script_trains_by_hand_and_in_a_study(tmp_path):
    """Also from another folder than that of the study."""
    program("init", "--python", "mine/study.yaml", cwd=tmp_path)
    options = ["--lr", "0.1", "--momentum", "0.9", "--width", "32", "--epochs", "1"]
    environment = dict(os.environ, OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
    command = [sys.executable, "mine/train.py", *options]
    by_hand = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    assert by_hand.returncode == 0 and "accuracy" in by_hand.stdout, by_hand.stderr
    study = program("run", "mine/study.yaml", "--trials", "2", "--cpu", "--quiet", cwd=tmp_path, env=environment)
    assert "accuracy" in study

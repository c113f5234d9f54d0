"""What `pip install` brings."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pollux_tune as pt


def test_versions_agree():
    assert pt.__version__ == importlib.metadata.version("pollux-tune")


def test_the_program_is_installed_beside_python():
    program = Path(sys.executable).parent / "pollux-tune"
    printed = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    assert printed.stdout.split() == ["pollux-tune", pt.__version__]


def test_the_program_runs_a_study(tmp_path):
    (tmp_path / "train.py").write_text("import sys\nprint('{\"loss\": %s}' % (float(sys.argv[1]) ** 2))\n")
    study = tmp_path / "study.yaml"
    study.write_text(
        f"""
space: {{x: {{float: [-1, 1]}}}}
objective: {{minimize: loss}}
trial: {{command: [{sys.executable}, {tmp_path}/train.py, "{{x}}"]}}
search: {{trials: 3}}
"""
    )
    program = Path(sys.executable).parent / "pollux-tune"
    folder = tmp_path / "folder"
    ran = subprocess.run([program, "run", study, "--folder", folder], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    shown = subprocess.run([program, "status", folder], capture_output=True, text=True, check=True)
    assert "3 of 3 ended" in shown.stdout

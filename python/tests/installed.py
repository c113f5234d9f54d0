"""The program that the wheel has brought, for the tests."""

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = os.environ.get("POLLUX_TUNE_PROGRAM") or Path(sys.executable).parent / "pollux-tune"
# For what comes sooner or later, also on a busy machine.
PATIENCE_S = 600


def program(*arguments, code=0, **options):
    """What it prints, or what it complains of if it is to fail."""
    command = [str(PROGRAM), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, **options)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stderr


def start(folder, file, **environment):
    """Runs a study on two slots, with its folder `study` and its log `run.log` in that folder."""
    command = [PROGRAM, "run", file, "--slots", "2xcpu", "--folder", folder / "study"]
    with open(folder / "run.log", "w") as log:
        return subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **environment})


def printed(folder):
    return (folder / "run.log").read_text()

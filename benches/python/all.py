"""What the Python package costs, all of it in one run: `make bench-python`.

Usage: all.py PROGRAM [--ray PYTHON] [--rounds N] [--changes N]

Ask and tell against Optuna, steps against plain DDP, pauses against Ray Train and restarts, and the same study in Rust and in Python, one after the
other. PROGRAM is a `pollux-tune` with libtorch. A part that fails does not stop the others; the exit code tells.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--ray", help="a Python with Ray Train and PyTorch")
    parser.add_argument("--rounds", default="5", help="of steps (default: 5)")
    parser.add_argument("--changes", default="5", help="of the number of workers, in either direction (default: 5)")
    arguments = parser.parse_args()
    elastic = ["--rounds", arguments.rounds, "--changes", arguments.changes]
    parts = {
        "search.py": [],
        "elastic.py": elastic + (["--ray", arguments.ray] if arguments.ray else []),
        "cifar10.py": [arguments.program],
    }
    began, failed = time.monotonic(), []
    print(f"{time.strftime('%Y-%m-%d %H:%M')}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    for script, more in parts.items():
        print(f"\n{script}", flush=True)
        # A process of its own for each: what one has loaded is not in the way of the next.
        if subprocess.run([sys.executable, HERE / script, *more]).returncode != 0:
            failed.append(script)
    print(f"\n{(time.monotonic() - began) / 60:.0f} minutes, load {os.getloadavg()[0]:.1f}", flush=True)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()

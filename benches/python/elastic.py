"""Elastic trials in Python against plain PyTorch DDP, and what a change of workers costs: a part of `make bench-python`.

Usage: elastic.py [--rounds N] [--changes N] [--ray PYTHON]

Both train the same ResNet18 with the same batch of each worker, one thread, and the same settings of glibc's memory. Runs take turns. A step time is
the median of a run without its first steps, a ratio the median of the ratios of rounds. A pause is the time from the last step of a group to the
first step of the next one. With `--ray`, Ray Train of that Python is resized, too, beside a restart from a checkpoint.
"""

import argparse
import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
SCRIPT = HERE / "steps.py"
PROGRAM = os.environ.get("POLLUX_TUNE_PROGRAM") or Path(sys.executable).parent / "pollux-tune"
# As pollux-tune sets them for its workers.
SAME = {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "33554432", "MALLOC_TRIM_THRESHOLD_": "1099511627776"}
WARM_UP, STEPS = 10, 50
PATIENCE_S = 600


class Failed(Exception):
    """A part of the measurement has failed; the others go on."""


def logs(folder):
    """The lines of all workers, by process."""
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in sorted(folder.glob("*.jsonl"))]


def study(folder, width, batch, size, steps, more="", growth=1):
    """A study of one trial, with a fixed batch unless that may grow: the command that runs it."""
    space = {"width": width, "examples": 64 * batch * size, "log": str(folder)}
    settings = {
        "python": str(SCRIPT), "interpreter": sys.executable, "epochs": steps / 64, "initial_batch": batch * size,
        "max_batch": growth * batch * size, "checkpoint_interval": "1h",
    }
    file = folder / "study.yaml"
    search = "{trials: 1, parallel: 1, algorithm: random}"
    lines = [f"space: {json.dumps(space)}", "objective: {minimize: loss}", f"trial: {json.dumps(settings)[:-1]}, {more}}}", f"search: {search}"]
    file.write_text("\n".join(lines) + "\n")
    return [PROGRAM, "run", file, "--slots", "2xcpu", "--folder", folder / "study"]


def ours(folder, width, batch, size):
    command = study(folder, width, batch, size, WARM_UP + STEPS, f"min_gpus: {size}, max_gpus: {size}")
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    if done.returncode != 0:
        raise Failed(f"the study has failed:\n{done.stdout}{done.stderr}")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ranks(settings, size):
    """One process for each rank of plain DDP."""
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(size)}
    command = [sys.executable, SCRIPT, "--ddp", json.dumps(settings)]
    return [subprocess.Popen(command, env={**os.environ, **SAME, **meeting, "RANK": str(rank)}) for rank in range(size)]


@contextlib.contextmanager
def ended(processes):
    """Whatever happens, none of them is left behind."""
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def theirs(folder, width, batch, size):
    settings = {"log": str(folder), "width": width, "batch": batch, "examples": 64 * batch * size, "steps": WARM_UP + STEPS}
    with ended(ranks(settings, size)) as processes:
        if any([process.wait(PATIENCE_S) for process in processes]):
            raise Failed("a rank of plain DDP has failed, see above")


def per_step(folder, size):
    """Milliseconds of the clock and of the processor, of a step of the first rank."""
    [lines] = [lines for lines in logs(folder) if lines and lines[-1]["rank"] == 0]
    lines = [line for line in lines if line["size"] == size][WARM_UP:]
    walls = [1e3 * (b["at"] - a["at"]) for a, b in zip(lines, lines[1:])]
    cpu = 1e3 * (lines[-1]["cpu"] - lines[0]["cpu"]) / (len(lines) - 1)
    return statistics.median(walls), cpu


def measured(run, *arguments):
    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder), *arguments)
        return per_step(Path(folder), arguments[-1])


def steps(rounds):
    print("| width | batch of a worker | workers | ours | PyTorch DDP | ours / DDP | CPU: ours / DDP | load |\n|---|---|---|---|---|---|---|---|")
    for width, batch in [(16, 32), (32, 16)]:
        for size in [1, 2]:
            pairs = [(measured(ours, width, batch, size), measured(theirs, width, batch, size)) for _ in range(rounds)]
            mine, other = (statistics.median(pair[side][0] for pair in pairs) for side in (0, 1))
            ratios = [statistics.median(pair[0][kind] / pair[1][kind] for pair in pairs) for kind in (0, 1)]
            load = os.getloadavg()[0]
            print(f"| {width} | {batch} | {size} | {mine:.0f} ms | {other:.0f} ms | {ratios[0]:.3f} | {ratios[1]:.3f} | {load:.1f} |", flush=True)


# --- pauses ----------------------------------------------------------------------------------------------------------------------
def last_lines(folder):
    lines = [lines[-1] for lines in logs(folder) if lines]
    return sorted(lines, key=lambda line: line["at"])


def wait_for(folder, condition, what):
    """Until the newest steps are as wanted."""
    end = time.monotonic() + PATIENCE_S
    while not condition(last_lines(folder)):
        if time.monotonic() > end:
            raise Failed(f"gave up waiting for {what}")
        time.sleep(0.2)


def all_steps(folder):
    return sorted((line for lines in logs(folder) for line in lines), key=lambda line: line["at"])


def pauses(lines):
    """Of each change of the size: from, to, and the time from the last step before it to the first one after it, in seconds."""
    return [(a["size"], b["size"], b["at"] - a["at"]) for a, b in zip(lines, lines[1:]) if a["size"] != b["size"]]


def workers_of(head):
    """The processes of workers that have taken steps are children of the head."""
    children = subprocess.run(["ps", "--no-headers", "-o", "pid", "--ppid", str(head)], capture_output=True, text=True).stdout.split()
    return [int(pid) for pid in children]


def our_pauses(width, batch, changes):
    """The head adds a worker when it likes; a worker is killed, and comes back."""
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        # Where the batch may grow, a second worker pays: labels are random, and gradients all noise.
        command = study(folder, width, batch, 1, 100_000, "max_gpus: 2", growth=4)
        head = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            for _ in range(changes):
                begun = time.perf_counter()
                wait_for(folder, lambda lines: lines and lines[-1]["size"] == 2 and lines[-1]["at"] > begun, "two workers")
                second = [int(file.stem) for file in folder.glob("*.jsonl") if (lines := file.read_text().splitlines()) and json.loads(lines[-1])["rank"] == 1]
                alive = set(workers_of(head.pid))
                for pid in second:
                    if pid in alive:
                        os.kill(pid, signal.SIGKILL)
                wait_for(folder, lambda lines: lines[-1]["size"] == 1, "one worker")
            wait_for(folder, lambda lines: lines[-1]["size"] == 2, "two workers")
        finally:
            head.send_signal(signal.SIGINT)
            head.wait(PATIENCE_S)
        return pauses(all_steps(folder))


def restart_pauses(width, batch, changes):
    """As AdaptDL does it: tell all ranks, which save and end; start another number of them."""
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        settings = {
            "log": str(folder), "width": width, "batch": batch, "examples": 128 * batch, "steps": 100_000, "checkpoint": str(folder / "state"),
        }
        size = 1
        for change in range(2 * changes + 1):
            begun = time.perf_counter()
            with ended(ranks(settings, size)) as processes:
                wait_for(folder, lambda lines: lines and lines[-1]["size"] == size and lines[-1]["at"] > begun, "the first step")
                for process in processes:
                    process.send_signal(signal.SIGTERM)
                for process in processes:
                    process.wait(PATIENCE_S)
            size = 3 - size
        return pauses(all_steps(folder))


def ray_pauses(python, width, batch):
    with tempfile.TemporaryDirectory() as folder:
        # With a session of its own, so that Ray's processes end with it.
        command = [python, HERE / "ray_resize.py", folder, str(width), str(batch)]
        ray = subprocess.Popen(command, stdout=sys.stderr, start_new_session=True)
        try:
            code = ray.wait(3 * PATIENCE_S)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(ray.pid, signal.SIGKILL)
            ray.wait()
        if code != 0:
            raise Failed("Ray Train was not resized, see above")
        return pauses(all_steps(Path(folder)))


def show_pauses(name, found):
    load = os.getloadavg()[0]
    for before, after in [(1, 2), (2, 1)]:
        times = sorted(seconds for a, b, seconds in found if (a, b) == (before, after))
        if times:
            row = [name, f"{before} to {after}", len(times), f"{statistics.median(times):.2f} s", f"{times[-1]:.2f} s", f"{load:.1f}"]
            print(f"| {' | '.join(map(str, row))} |", flush=True)


def all_pauses(changes, ray=None):
    """Gives the parts that have failed."""
    print("| who | workers | times | pause | longest | load |\n|---|---|---|---|---|---|", flush=True)
    width, batch, failed = 16, 32, []
    parts = {
        "pollux-tune, in place (2 to 1: `kill -9`)": lambda: our_pauses(width, batch, changes),
        "restart from a checkpoint": lambda: restart_pauses(width, batch, changes),
    }
    if ray:
        parts["Ray Train, elastic"] = lambda: ray_pauses(ray, width, batch)
    for name, measure in parts.items():
        try:
            show_pauses(name, measure())
        except (Failed, subprocess.TimeoutExpired) as problem:
            print(f"{name}: {problem}", file=sys.stderr, flush=True)
            failed.append(name)
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="of steps, ours and those of plain DDP in turns")
    parser.add_argument("--changes", type=int, default=5, help="of the number of workers, in either direction")
    parser.add_argument("--ray", help="a Python with Ray Train and PyTorch")
    arguments = parser.parse_args()
    steps(arguments.rounds)
    print()
    if failed := all_pauses(arguments.changes, arguments.ray):
        sys.exit(f"not measured: {', '.join(failed)}")


if __name__ == "__main__":
    main()

"""A race on this machine: the same search space, network, data and cores for pollux-tune, Ray Tune and Optuna. `make bench-race`.

Usage: race.py --peer PYTHON [--minutes N] [--seeds N] [--epochs N] [--examples N] [--only NAME,...] [--folder FOLDER]

Each contender has some minutes of the clock, its own start included, on the same two cores, and trains as many trials as it can. What counts is the best
test accuracy that any of its trials has had, after any epoch. Each stops trials by successive halving, with its own defaults:

  pollux-tune  examples/python/cifar10_elastic.py with `asha`, else the defaults of `pollux-tune run`: `auto` (a Gaussian process), goodput, as many
               trials at a time as pay off
  ray          Ray Tune with ASHA and random search, its default, one processor for each trial, in processes that are used again
  optuna       TPE, its default, with SuccessiveHalvingPruner in two processes that share a database

All three train the same network of examples/python/resnet.py in Python, with the same PyTorch. Turns are taken: all contenders with the first seed, then with
the next, where another one begins. What has ended is in results.jsonl of the folder and is not run again (remove the folder to start over); at the end
come a table and race.svg.

The Python that runs this needs pollux_tune and torch, PYTHON needs torch, ray[tune], optuna and matplotlib.
"""

import argparse
import contextlib
import fcntl
import json
import os
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PROGRAM = os.environ.get("POLLUX_TUNE_PROGRAM") or str(Path(sys.executable).parent / "pollux-tune")
CONTENDERS = ("pollux-tune", "ray", "optuna")
SPACE = {
    "lr": {"log": [5e-3, 5e-1]}, "annealing": {"log": [1e-2, 1.0]}, "momentum": {"float": [0.5, 0.97]},
    "weight_decay": {"log": [1e-6, 1e-2]}, "width": {"int": [2, 6]},
}
CORES = 2
# As pollux-tune sets them for its workers.
SAME = {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "33554432", "MALLOC_TRIM_THRESHOLD_": "1099511627776"}
# Ray gives up after 30 s, which a busy machine may need to start it. It reports to nobody.
PATIENT = {"RAY_raylet_start_wait_time_s": "300", "RAY_USAGE_STATS_ENABLED": "0"}
#: More trials than anybody has time for.
TRIALS = 10_000
#: Seconds that a contender has to end by itself when its time is over. Nothing of them counts.
GRACE_S = 60


def say(message):
    print(f"race: {message}", file=sys.stderr, flush=True)


def ours(settings, seed, folder):
    trial = {
        "python": str(ROOT / "examples/python/cifar10_elastic.py"), "interpreter": sys.executable, "epochs": settings.epochs,
        "initial_batch": 64, "max_batch": 512,
    }
    search = {"trials": TRIALS, "seed": seed, "timeout": f"{round(60 * settings.minutes)}s", "early_stopping": {"rule": "asha"}}
    space = {**SPACE, "examples": settings.examples}
    study = {"space": space, "objective": {"maximize": "accuracy"}, "trial": trial, "search": search}
    (folder / "study.yaml").write_text(json.dumps(study))
    return [PROGRAM, "run", folder / "study.yaml", "--slots", f"{CORES}xcpu", "--folder", folder / "study"]


def theirs(settings, name, seed, folder):
    return [settings.peer, HERE / f"{name}_peer.py", json.dumps(SPACE), str(60 * settings.minutes), str(seed), folder]


def points_of_ours(folder):
    """When which accuracy was measured, from the journal of the study."""
    with contextlib.closing(sqlite3.connect(folder / "study" / "journal.sqlite")) as journal:
        facts = journal.execute("SELECT at_s, trial, fact FROM facts WHERE kind = 'measured' ORDER BY seq").fetchall()
    return [(at_s, trial, accuracy_in(json.loads(fact))) for at_s, trial, fact in facts]


def accuracy_in(fact):
    """The accuracy among the metrics of a fact, whichever way they are nested."""
    if isinstance(fact, dict):
        if isinstance(fact.get("accuracy"), (int, float)):
            return fact["accuracy"]
        found = [accuracy_in(part) for part in fact.values()]
        return next((accuracy for accuracy in found if accuracy is not None), None)
    return None


def points_of_theirs(folder):
    """The same, from what `notes.note` has written."""
    file = folder / "notes.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [(line["at_s"], line["trial"], line["accuracy"]) for line in lines]


def left(session):
    """The processes that a contender has started and that still run, itself included: all that are in its session."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, of = stat.read_text(errors="replace").rpartition(")")[2].split()[:4]
            if int(of) == session and state != "Z":
                found.append(int(stat.parent.name))
    return found


def end(process, patience_s):
    """Waits until a contender has ended with all that it has started, and ends what takes too long, so that the next one has the machine for itself."""
    for number, patience_s in ((None, patience_s), (signal.SIGTERM, 30), (signal.SIGKILL, 30)):
        for pid in left(process.pid) if number is not None else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        until_s = time.monotonic() + patience_s
        while time.monotonic() < until_s:
            process.poll()
            if not left(process.pid):
                return
            time.sleep(0.2)
    sys.exit(f"race: processes {left(process.pid)} cannot be ended")


def run(settings, name, seed):
    """Lets a contender race with a seed; gives its line of results."""
    folder = settings.folder / "runs" / f"{name}-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    command = ours(settings, seed, folder) if name == "pollux-tune" else theirs(settings, name, seed, folder)
    environment = {**os.environ, **SAME, **PATIENT, "EXAMPLES": str(settings.examples), "EPOCHS": str(settings.epochs), "PYTHONDONTWRITEBYTECODE": "1"}
    log = folder / "log"
    with open(log, "wb") as output:
        began_s = time.time()
        process = subprocess.Popen(
            [str(part) for part in command], cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = process.wait(60 * settings.minutes)
                if time.time() - began_s < 54 * settings.minutes:
                    tail = log.read_text(errors="replace")[-3000:]
                    sys.exit(f"race: {name} has ended too early, with status {status}:\n{tail}")
            end(process, GRACE_S)
        except BaseException:
            end(process, 0)
            raise
    points = points_of_ours(folder) if name == "pollux-tune" else points_of_theirs(folder)
    limit_s = 60 * settings.minutes
    points = [(at_s - began_s, trial, accuracy) for at_s, trial, accuracy in points if accuracy is not None]
    points = sorted(point for point in points if point[0] <= limit_s)
    if not points:
        sys.exit(f"race: no trial of {name} has measured anything, see {log}")
    best = []
    for at_s, _, accuracy in points:
        if not best or accuracy > best[-1][1]:
            best.append((round(at_s, 2), accuracy))
    load = round(os.getloadavg()[0], 1)
    return {
        "contender": name, "seed": seed, **budget(settings), "trials": len({trial for _, trial, _ in points}), "epochs_seen": len(points),
        "load": load, "best": best,
    }


def budget(settings):
    return {"minutes": settings.minutes, "epochs": settings.epochs, "examples": settings.examples}


def results(settings):
    """What has ended with the same budget, by contender and seed."""
    file = settings.folder / "results.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    same = [line for line in lines if all(line[key] == value for key, value in budget(settings).items())]
    return {(line["contender"], line["seed"]): line for line in same}


def reached_s(line, accuracy):
    return next((at_s for at_s, seen in line["best"] if seen >= accuracy), None)


def table(done, seeds):
    """Accuracies at the end, when the last accuracy of the better peer was reached, and that time over its own."""
    complete = [seed for seed in range(seeds) if all((name, seed) in done for name in CONTENDERS)]
    rows = [
        "| contender | accuracy at the end, by seed | mean | trials | better peer's accuracy reached after, by seed | of the better peer's time |",
        "|---|---|---|---|---|---|",
    ]
    better = {seed: max((done[name, seed]["best"][-1] for name in CONTENDERS[1:]), key=lambda last: (last[1], -last[0])) for seed in complete}
    for name in CONTENDERS:
        lines = [done[name, seed] for seed in complete]
        last = [line["best"][-1][1] for line in lines]
        times = [reached_s(line, better[line["seed"]][1]) for line in lines]
        reached = ", ".join("not" if at_s is None else f"{at_s:.0f} s" for at_s in times)
        shares = [None if at_s is None else at_s / better[line["seed"]][0] for at_s, line in zip(times, lines)]
        shares = ", ".join("not" if share is None else f"{share:.2f}" for share in shares)
        trials = ", ".join(str(line["trials"]) for line in lines)
        accuracies = ", ".join(f"{accuracy:.4f}" for accuracy in last)
        mean = f"{statistics.mean(last):.4f}" if last else ""
        rows.append(f"| {name} | {accuracies} | {mean} | {trials} | {reached} | {shares} |")
    return "\n".join(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", required=True)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=9)
    parser.add_argument("--examples", type=int, default=8000)
    parser.add_argument("--only", default=",".join(CONTENDERS))
    parser.add_argument("--folder", type=Path, default=ROOT / ".cache" / "race")
    settings = parser.parse_args()
    only = settings.only.split(",")
    if unknown := set(only) - set(CONTENDERS):
        parser.error(f"--only: there is no {', '.join(sorted(unknown))}; expected {', '.join(CONTENDERS)}")
    settings.folder = settings.folder.resolve()
    # Contenders run in other folders.
    settings.peer = os.path.abspath(settings.peer)
    settings.folder.mkdir(parents=True, exist_ok=True)
    # Held as long as this runs.
    lock = open(settings.folder / "lock", "w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(f"race: another race runs in {settings.folder}")
    # All that it starts stays on these.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    # A contender is ended with it, whoever ends it.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, _: sys.exit(128 + number))
    wanted = [(name, seed) for seed in range(settings.seeds) for name in only[seed % len(only) :] + only[: seed % len(only)]]
    left = [turn for turn in wanted if turn not in results(settings)]
    say(f"{len(wanted) - len(left)} of {len(wanted)} runs are there, about {len(left) * settings.minutes:.0f} minutes to go")
    for name, seed in left:
        say(f"{name}, seed {seed}")
        line = run(settings, name, seed)
        with open(settings.folder / "results.jsonl", "a") as file:
            file.write(json.dumps(line) + "\n")
        say(f"{name}, seed {seed}: {line['best'][-1][1]:.4f} after {settings.minutes:g} minutes, {line['trials']} trials")
    done = results(settings)
    (settings.folder / "shown.json").write_text(json.dumps(list(done.values())))
    subprocess.run([settings.peer, HERE / "plot.py", settings.folder / "shown.json", settings.folder / "race.svg"], check=True)
    say(f"{settings.folder / 'race.svg'} shows it")
    print(table(done, settings.seeds))


if __name__ == "__main__":
    main()

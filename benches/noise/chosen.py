"""What a study made of the noise that its trials measured: which batches were chosen over time, and whether they run after single measurements.

    python benches/noise/chosen.py STUDY_FOLDER ...

For each trial: how much two measurements of the noise scale that follow each other differ, how often they turn (up after down, or down after up), how
often the batch was changed while its slots stayed the same, how often that turned, and the batches with the epochs since when they were used.
"""

import contextlib
import json
import math
import sqlite3
import statistics
import sys
from pathlib import Path


class Trial:
    def __init__(self):
        self.epochs, self.slots = 0.0, 0
        # Noise scales; epochs, slots and total batch; by how much the batch was changed on the same slots.
        self.noise, self.batches, self.changes = [], [], []

    def use(self, batch, retuned):
        total = batch["per_gpu"] * (batch["accumulation"] + 1) * self.slots
        if retuned and self.batches and self.batches[-1][2] != total:
            self.changes.append(math.log(total / self.batches[-1][2]))
        self.batches.append((self.epochs, self.slots, total))


def turns(steps):
    steps = [step for step in steps if step != 0.0]
    return sum(before * after < 0 for before, after in zip(steps, steps[1:]))


def steps_of(values):
    return [math.log(after / before) for before, after in zip(values, values[1:]) if before > 0 and after > 0]


def trials(folder):
    found = {}
    with contextlib.closing(sqlite3.connect(Path(folder) / "journal.sqlite")) as journal:
        kinds = "('trial_started', 'retuned', 'measured')"
        for kind, text in journal.execute(f"SELECT kind, fact FROM facts WHERE kind IN {kinds} ORDER BY seq"):
            fact = json.loads(text)[kind]
            trial = found.setdefault(fact["trial"], Trial())
            if kind == "measured":
                trial.epochs = fact["epochs"]
                if fact.get("noise") is not None:
                    trial.noise.append(fact["noise"])
                continue
            trial.slots = len(fact["slots"]) if kind == "trial_started" else trial.slots
            if fact.get("batch"):
                trial.use(fact["batch"], kind == "retuned")
    return found


def main():
    print("| study | trial | measurements | they differ by | they turn | changes of the batch | these turn | epoch: slots x batch |")
    print("|---|---|---|---|---|---|---|---|")
    differences, measured, changed = [], [0, 0], [0, 0]
    for folder in sys.argv[1:]:
        for number, trial in trials(folder).items():
            steps = steps_of(trial.noise)
            differences += map(abs, steps)
            measured = [measured[0] + len(steps), measured[1] + turns(steps)]
            changed = [changed[0] + len(trial.changes), changed[1] + turns(trial.changes)]
            typical = f"{100 * statistics.median(map(abs, steps)):.0f} %" if steps else ""
            path = ", ".join(f"{epochs:.1f}: {slots} x {total // max(slots, 1)}" for epochs, slots, total in trial.batches)
            cells = [Path(folder).name, number, len(trial.noise), typical, turns(steps), len(trial.changes), turns(trial.changes), path]
            print(f"| {' | '.join(map(str, cells))} |")
    if differences:
        print(f"\nTwo measurements differ by {100 * statistics.median(differences):.0f} % (median).", end=" ")
        print(f"Of {measured[0]} steps between them {measured[1]} turn, of {changed[0]} changes of the batch {changed[1]}.")


if __name__ == "__main__":
    main()

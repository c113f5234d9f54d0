"""Draws a race: the best accuracy of each contender over the time. Usage: plot.py LINES.json FILE.svg"""

import json
import sys

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot

COLOURS = {"pollux-tune": "#d1495b", "ray": "#00798c", "optuna": "#edae49"}


def main():
    lines = json.loads(open(sys.argv[1]).read())
    figure, axes = pyplot.subplots(figsize=(8, 4.5))
    named = set()
    for line in sorted(lines, key=lambda line: (line["contender"], line["seed"])):
        name = line["contender"]
        minutes = [at_s / 60 for at_s, _ in line["best"]] + [line["minutes"]]
        accuracies = [accuracy for _, accuracy in line["best"]]
        accuracies.append(accuracies[-1])
        axes.step(minutes, accuracies, where="post", color=COLOURS[name], label=None if name in named else name)
        named.add(name)
    axes.set_xlabel("minutes")
    axes.set_ylabel("best test accuracy")
    axes.legend(loc="lower right")
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(sys.argv[2], metadata={"Date": None})


if __name__ == "__main__":
    main()

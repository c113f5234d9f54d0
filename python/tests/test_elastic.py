"""Elastic trials: by hand, under a head, and with mistakes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from rehearsal import SCRIPT as REHEARSED
from rehearsal import STEPS, Gate

from pollux_tune import _core

SCRIPT = Path(__file__).with_name("elastic_script.py")
PROGRAM = os.environ.get("POLLUX_TUNE_PROGRAM") or Path(sys.executable).parent / "pollux-tune"
PATIENCE_S = 300


def study(folder, trial, trials=1):
    text = f"""
space: {{lr: {{log: [0.01, 0.2]}}}}
objective: {{maximize: accuracy}}
trial: {{python: {SCRIPT}, interpreter: {sys.executable}, initial_batch: 32, checkpoint_interval: 1s, {trial}}}
search: {{trials: {trials}, parallel: 1, algorithm: random}}
"""
    file = folder / "study.yaml"
    file.write_text(text)
    return file


def start(folder, file, **environment):
    log = open(folder / "run.log", "w")
    command = [PROGRAM, "run", file, "--slots", "2xcpu", "--folder", folder / "study"]
    return subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **environment})


def show(folder, number):
    command = [PROGRAM, "show", folder / "study", str(number)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_same_script_by_hand(tmp_path):
    command = [sys.executable, SCRIPT, "--lr", "0.1", "--epochs", "2", "--widht", "3"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)
    assert json.loads(done.stdout)["accuracy"] > 0.5, done.stderr
    assert "nothing has used the parameter `widht`" in done.stderr
    missing = subprocess.run([sys.executable, SCRIPT], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)
    assert missing.returncode == 1 and "the trial needs the parameter `lr`" in missing.stderr


LOOPS = """
import sys
import torch
import pollux_tune as pt

data = torch.utils.data.TensorDataset(torch.randn(64, 2), torch.zeros(64, 1))

@pt.trial
def train(trial):
    net = torch.nn.Linear(2, 1)
    model, optimizer = trial.elastic(net, torch.optim.SGD(net.parameters(), lr=0.1))
    for epoch in trial.epochs():
        for x, y in (trial.batches(data) if "--break" in sys.argv else torch.utils.data.DataLoader(data)):
            optimizer.zero_grad()
            (model(x) - y).square().mean().backward()
            optimizer.step()
            break

pt.main()
"""


@pytest.mark.parametrize(("flags", "reason"), [(["--break"], "was left before its end"), ([], "has to loop over trial.batches")])
def test_an_epoch_by_hand_that_is_none_is_a_mistake(tmp_path, flags, reason):
    (tmp_path / "train.py").write_text(LOOPS)
    command = [sys.executable, "train.py", "--batch", "8", *flags]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 1 and reason in done.stderr, done.stderr


def test_a_study_finishes_all_trials_and_rescales(tmp_path):
    run = start(tmp_path, study(tmp_path, "epochs: 8, max_batch: 128", trials=3))
    assert run.wait(PATIENCE_S) == 0, (tmp_path / "run.log").read_text()
    log = (tmp_path / "run.log").read_text()
    assert "the best of 3 finished trials" in log, log


def test_too_few_survivors_of_a_killed_rank_save_what_they_have_learned(tmp_path):
    """A trial needs two workers, and one of them is killed in the middle of a step: the other one saves, and no step is taken twice."""
    gate, door, log, file = Gate(tmp_path, "gate"), tmp_path / "door", tmp_path / "log", tmp_path / "study.yaml"
    os.mkfifo(door)
    file.write_text(
        f"""
space: {{lr: 0.05, log: {{fixed: {log}}}, gates: {{fixed: "{gate.after(30)}"}}, door: {{fixed: {door}}}}}
objective: {{maximize: accuracy}}
trial: {{python: {REHEARSED}, interpreter: {sys.executable}, epochs: 4, initial_batch: 12, max_batch: 12, min_gpus: 2}}
search: {{trials: 1, parallel: 1, algorithm: random}}
"""
    )
    # For reading and writing: nobody who knocks has to wait.
    with open(os.open(door, os.O_RDWR)) as knocks:
        run = start(tmp_path, file)
        at_the_door = dict(knocks.readline().split() for _ in range(2))
        os.kill(int(at_the_door["1"]), signal.SIGKILL)
        gate.open()
        code = run.wait(PATIENCE_S)
    printed = (tmp_path / "run.log").read_text()
    assert code == 0, printed
    assert printed.count("has lost its worker") == 1, printed
    taken, sizes = [], {}
    for line in map(json.loads, log.read_text().splitlines()):
        taken.append((line["step"], line["rank"]))
        sizes[line["step"]] = line["size"]
    assert sorted(taken) == [(step, rank) for step in range(STEPS) for rank in range(sizes[step])]


def test_a_mistake_shows_its_traceback(tmp_path):
    run = start(tmp_path, study(tmp_path, "epochs: 4"), FAIL="1")
    run.wait(PATIENCE_S)
    shown = show(tmp_path, 0)
    assert "ValueError: a mistake of the user" in shown and "elastic_script.py" in shown, shown


def task(**settings):
    usual = {
        "study": "0" * 32, "trial": 0, "trainable": "test", "params": {}, "seed": 3, "epochs": 100.0, "initial_batch": 8,
        "lr_rule": "adascale", "checkpoint": "", "checkpoint_every_s": 1e9, "report_every_s": 1.0, "evaluate_every": 1.0,
        "measure_noise": True, "mixed_precision": False,
    }
    return json.dumps({**usual, **settings})


def test_batches_that_change_within_an_epoch_lose_and_repeat_nothing():
    training = _core.Training(task())
    training.open(100, True)
    training.form_alone(8, 0)
    seen = []
    for total, accumulation in [(8, 0), (13, 1), (20, 2), (9, 0), (50, 4)]:
        training.retune(total, accumulation)
        seen += [place for one in training.plan(0)[0] for place in one]
        training.stepped(0.1, 0.1)
    assert sorted(seen) == list(range(100))


def test_noise_is_that_of_the_rust_estimator():
    """The gradients (3, 1) and (1, 3) of 10 examples each, as in the documentation of the estimator."""
    training = _core.Training(task(initial_batch=20))
    training.open(100, True)
    training.form_alone(20, 1)
    training.measure(2, 10.0, 10.0, 8.0)
    sqr, var = training.statistics
    assert sqr == pytest.approx(6.0) and var == pytest.approx(40.0)


def test_a_lone_worker_measures_the_halves_of_a_step():
    from pollux_tune.elastic_step import Stepper

    training = _core.Training(task())
    training.open(16, True)
    training.form_alone(8, 0)
    net = torch.nn.Linear(3, 1)
    data, targets = torch.randn(16, 3), torch.randn(16, 1)
    stepper = Stepper(training, net, torch.optim.SGD(net.parameters(), lr=0.0), False)
    plan = training.plan(0)
    assert len(plan[0]) == 2, "one step in eight is taken in halves"
    halves = []
    stepper.begin(plan, False, False)
    for places in plan[0]:
        stepper.next_pass()
        torch.nn.functional.mse_loss(net(data[places]), targets[places]).backward()
        halves.append(torch.cat([p.grad.reshape(-1).clone() for p in net.parameters()]))
        stepper.step()
    mean = (halves[0] + halves[1]) / 2
    expected = _core.Training(task())
    expected.open(16, True)
    expected.form_alone(8, 0)
    expected.measure(2, 4.0, float(sum(h.square().sum() for h in halves) / 2), float(mean.square().sum()))
    assert training.statistics == pytest.approx(expected.statistics, rel=1e-5)
    assert torch.allclose(torch.cat([p.grad.reshape(-1) for p in net.parameters()]), mean)


def test_a_function_of_a_module_has_its_folder_and_environment(tmp_path):
    """`module:` with a package, and `python:` with a file beside the script, both seen from `folder:`."""
    work = tmp_path / "work"
    (work / "package").mkdir(parents=True)
    (work / "package" / "__init__.py").touch()
    (work / "beside.py").write_text("CLASSES = 2\n")
    training = """
import os
import torch
import pollux_tune as pt

def main(trial):
    net = torch.nn.Linear(4, 1)
    model, optimizer = trial.elastic(net, torch.optim.SGD(net.parameters(), lr=trial.params["lr"]))
    for epoch in trial.epochs():
        for x, y in trial.batches(torch.utils.data.TensorDataset(torch.randn(32, 4), torch.randn(32, 1))):
            optimizer.zero_grad()
            (model(x) - y).square().mean().backward()
            optimizer.step()
    return {"accuracy": float(os.environ["BONUS"]) + (os.path.basename(os.getcwd()) == "work")}
"""
    (work / "package" / "train.py").write_text(training)
    (work / "script.py").write_text(training + "\nimport beside\npt.trial(main)\npt.main()\n")
    for name, entry in {"module": "module: package.train:main", "script": "python: script.py"}.items():
        folder = tmp_path / name
        folder.mkdir()
        file = folder / "study.yaml"
        settings = f"{entry}, interpreter: {sys.executable}, epochs: 1, initial_batch: 8, folder: ../work, env: {{BONUS: 7}}"
        file.write_text(
            f"""
space: {{lr: 0.01}}
objective: {{maximize: accuracy}}
trial: {{{settings}}}
search: {{trials: 1, parallel: 1, algorithm: random}}
"""
        )
        run = start(folder, file)
        assert run.wait(PATIENCE_S) == 0, (folder / "run.log").read_text()
        assert "accuracy=8" in (printed := (folder / "run.log").read_text()) or "accuracy 8" in printed, printed

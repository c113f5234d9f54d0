"""Elastic trials: by hand, under a head, and with mistakes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from installed import PATIENCE_S, printed, program, start

from pollux_tune import _core, trials
from pollux_tune.elastic import Trial, call

SCRIPT = Path(__file__).with_name("elastic_script.py")


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


def test_the_same_script_by_hand(tmp_path):
    command = [sys.executable, SCRIPT, "--lr", "0.1", "--epochs", "2", "--widht", "3"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)
    assert json.loads(done.stdout)["accuracy"] > 0.5, done.stderr
    assert "nothing has used the parameter `widht`" in done.stderr
    missing = subprocess.run([sys.executable, SCRIPT], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)
    assert missing.returncode == 1 and "the trial needs the parameter `lr`" in missing.stderr


@pytest.mark.parametrize(("text", "value"), [(".5", 0.5), ("1.", 1.0), ("5.e-1", 0.5), ("3", 3), ("true", True), ("adam", "adam"), ("[1]", "[1]")])
def test_parameters_by_hand_are_read_as_in_a_study_file(text, value):
    read = trials._value(text)
    assert read == value and type(read) is type(value)


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


SCHEDULE = """
import sys
import torch
import pollux_tune as pt

@pt.trial
def train(trial):
    net = torch.nn.Linear(2, 1)
    model, optimizer = trial.elastic(net, torch.optim.SGD(net.parameters(), lr=0.1))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    if "--keep" in sys.argv:
        trial.keep("scheduler", scheduler)
    for epoch in trial.epochs():
        for x, y in trial.batches(torch.utils.data.TensorDataset(torch.randn(64, 2), torch.zeros(64, 1))):
            optimizer.zero_grad()
            (model(x) - y).square().mean().backward()
            optimizer.step()
        scheduler.step()
    return {"loss": 0.0}

pt.main()
"""


@pytest.mark.parametrize("flags", [["--keep"], []])
def test_a_schedule_that_is_not_kept_is_warned_of(tmp_path, flags):
    (tmp_path / "train.py").write_text(SCHEDULE)
    command = [sys.executable, "train.py", *flags]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count('write `scheduler = trial.keep("scheduler", scheduler)`') == (0 if flags else 1), done.stderr


def test_a_study_evaluates_each_epoch_of_all_trials_once(tmp_path):
    run = start(tmp_path, study(tmp_path, "epochs: 8, max_batch: 128", trials=3))
    assert run.wait(PATIENCE_S) == 0, printed(tmp_path)
    assert "the best of 3 finished trials" in printed(tmp_path)
    for number in range(3):
        shown = json.loads(program("show", tmp_path / "study", number, "--json"))
        evaluated = [report["epochs"] for report in shown["reports"] if "accuracy" in report["metrics"]]
        assert len(evaluated) == len(set(evaluated)) == 8, "each epoch is evaluated once, the last one too"


def test_a_trial_grows_by_itself_with_its_batch_and_its_learning_rate(tmp_path):
    """Steps wait most of their time, so that more workers and larger batches pay on any machine, and it trains until it has both."""
    lr, batch = 0.001, 16
    (tmp_path / "study.yaml").write_text(f"""
space: {{lr: {lr}, batch: {batch}}}
objective: {{minimize: loss}}
trial: {{python: {SCRIPT.with_name("growing_script.py")}, interpreter: {sys.executable}, initial_batch: {batch}, max_batch: 128, epochs: 1000000}}
search: {{trials: 1, parallel: 1, algorithm: random}}
""")
    run = start(tmp_path, "study.yaml", LOGS=str(tmp_path))
    try:
        assert run.wait(PATIENCE_S) == 0, printed(tmp_path)
    finally:
        run.kill()
    updates = [json.loads(line) for line in (tmp_path / "trial-0").read_text().splitlines()]
    assert updates[0]["size"] == 1 and updates[0]["batch"] == batch, "it begins small"
    assert {update["size"] for update in updates} == {1, 2} and {update["rank"] for update in updates} == {0, 1}
    shown = json.loads(program("show", tmp_path / "study", 0, "--json"))
    assert shown["state"] == "done"
    larger = [update for update in updates if update["batch"] > batch]
    assert larger
    for update in updates:
        gain = 1.0
        if update["statistics"] is not None and update["batch"] > batch:
            # Johnson et al. 2020: the variance is that of one example.
            sqr, var = (max(0.0, value) for value in update["statistics"])
            gain = (var / batch + sqr) / (var / update["batch"] + sqr)
        assert update["lr"] == pytest.approx(lr * gain), update
    assert max(update["lr"] for update in larger) > 1.1 * lr


def test_a_mistake_shows_its_traceback(tmp_path):
    run = start(tmp_path, study(tmp_path, "epochs: 4"), FAIL="1")
    run.wait(PATIENCE_S)
    shown = program("show", tmp_path / "study", 0)
    assert "ValueError: a mistake of the user" in shown and "elastic_script.py" in shown, shown


def test_a_parameter_that_the_study_does_not_have_is_named_with_those_that_it_has():
    trial = Trial(None, {"params": {"lrr": 0.1, "width": 3}, "trial": 0, "seed": 0}, None)
    assert trial.params["width"] == 3 and trial.params.get("lr") is None
    with pytest.raises(KeyError, match="no parameter `lr`: it has lrr, width"):
        trial.params["lr"]


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


ZEROS = torch.utils.data.TensorDataset(torch.zeros(24, 3), torch.zeros(24, 1))


def three_epochs(trial, at_end):
    """A function that trains three epochs of three steps."""
    net = torch.nn.Linear(3, 1)
    model, optimizer = trial.elastic(net, torch.optim.SGD(net.parameters(), lr=0.1))
    for epoch in trial.epochs():
        for x, y in trial.batches(ZEROS):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
        at_end(epoch)
    return {"loss": 0.0}


def states_of_three_epochs():
    """The state after each, as it is when the head hears of its end."""
    words, states = task(epochs=3.0), []
    trial = Trial(None, json.loads(words), _core.Training(words))

    def keep(epoch):
        assert epoch == len(states)
        trial._between()
        states.append(trial._state())

    three_epochs(trial, keep)
    return states


def test_the_state_says_which_epochs_are_left():
    """Also to a trial that has not opened its data yet."""
    for done, state in enumerate(states_of_three_epochs(), start=1):
        words, epochs = task(epochs=3.0), []
        later = Trial(None, json.loads(words), _core.Training(words))
        later._resumed = (state, None)
        three_epochs(later, epochs.append)
        assert epochs == list(range(done, 3))


@pytest.mark.parametrize(("after", "done", "calls", "epochs"), [(2, 2, 2, [2]), (3, 1, 1, [0, 1, 2])])
def test_who_has_missed_the_end_of_an_epoch_goes_on_in_the_next_one(after, done, calls, epochs):
    """A second group brings a state that is further, after so many steps: in the middle of an epoch, or, no further, at its end."""
    ahead, formed, seen, called = states_of_three_epochs()[done - 1], [], [], []

    class Head:
        is_gpu = False
        coming = iter([("form", None), ("train", False, False), ("form", ahead), *[("train", False, False)] * 9, ("evaluate",), ("forget",)])

        def next(self):
            return next(self.coming)

        def may_continue(self):
            return len(formed) > 1 or trial._training.steps < after

        def done(self, *_):
            pass

        trained = evaluated = formed = done

    class Member(Trial):
        def _form(self, state):
            if state is not None:
                self._restore(state)
            formed.append(self._training.steps)
            self._training.form_alone(8, 0)
            self._stepper.begin_nothing()
            self._stepper.join(None)

    words = task(epochs=3.0)
    trial = Member(Head(), json.loads(words), _core.Training(words))

    def function(trial):
        called.append(trial)
        return three_epochs(trial, seen.append)

    assert call(trial, function) == {"loss": 0.0}
    assert formed == [0, 3 * done] and len(called) == calls
    assert seen == epochs and trial._training.steps == 9


def test_what_trains_is_found_wherever_the_study_is_run_from(tmp_path):
    """`module:` with a package, and `python:` with a file beside the script: beside the study file, and in a folder that is seen from there."""
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
    (tmp_path / "files").mkdir()
    # Where the study file is, and what the function finds there: 8 if it begins in `work`, else 7.
    cases = {"files": (", folder: ../work", 8), "work": ("", 7)}
    for place, (folder, accuracy) in cases.items():
        for name, entry in {"module": "module: package.train:main", "script": "python: script.py"}.items():
            settings = f"{entry}, interpreter: {sys.executable}, epochs: 1, initial_batch: 8, env: {{BONUS: 7}}{folder}"
            (tmp_path / place / f"{name}.yaml").write_text(
                f"""
space: {{lr: 0.01}}
objective: {{maximize: accuracy}}
trial: {{{settings}}}
search: {{trials: 1, parallel: 1, algorithm: random}}
"""
            )
            here = tmp_path / f"run-{place}-{name}"
            here.mkdir()
            run = start(here, f"../{place}/{name}.yaml")
            assert run.wait(PATIENCE_S) == 0, printed(here)
            [row] = map(json.loads, program("trials", here / "study", "--json").splitlines())
            assert row["values"]["accuracy"] == accuracy, row
            if name == "script":
                # The copy of the study file is in another folder, and finds the same.
                again = ["--slots", "2xcpu", "--folder", here / "again"]
                program("run", here / "study" / "study.yaml", *again, cwd=tmp_path)
                [row] = map(json.loads, program("trials", here / "again", "--json").splitlines())
                assert row["values"]["accuracy"] == accuracy, row
    (tmp_path / "files" / "missing.yaml").write_text("space: {lr: 0.01}\nobjective: {maximize: accuracy}\ntrial: {python: script.py}\n")
    refused = program("check", "files/missing.yaml", code=2, cwd=tmp_path)
    assert "`script.py`, which does not exist; expected the path of a Python script, relative to the folder of the study file" in refused

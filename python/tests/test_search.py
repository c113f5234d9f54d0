"""Search from Python: spaces, ask and tell, functions in processes, the folder of a study."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import functions
import pytest
from installed import program

import pollux_tune as pt

LINE = {"x": pt.float(0, 1)}


def wait_for(condition):
    """For minutes, if need be."""
    deadline = time.monotonic() + 120
    while not (value := condition()):
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.02)
    return value


# --- spaces


def test_searches_begin_with_priors():
    space = {
        "lr": pt.log(1e-4, 1e-1, prior=1e-3),
        "width": pt.int(64, 512, step=64, prior=128, confidence="low"),
        "bias": pt.choice([False, True], prior=False),
        "optimizer": pt.choice({"sgd": {"momentum": pt.float(0, 0.99, prior=0.9)}, "adam": None}, prior="sgd", confidence="high"),
        "beta": pt.ordinal([0.9, 0.99], prior=0.9, when={"optimizer": "adam"}),
    }
    first = dict(pt.Study(space, "minimize").ask().params)
    assert (first.pop("lr"), first.pop("momentum")) == pytest.approx((1e-3, 0.9))
    assert first == {"width": 128, "bias": False, "optimizer": "sgd"}
    with pytest.raises(ValueError, match="the prior of `lr` is 1.*expected a value of"):
        pt.Study({"lr": pt.log(1e-4, 1e-1, prior=1.0)}, "minimize")


def test_domains_are_those_of_study_files():
    space = {
        "lr": pt.log(1e-4, 1e-1),
        "width": pt.int(64, 512, step=64),
        "layers": pt.int(1, 8, log=True),
        "optimizer": pt.choice({"sgd": {"momentum": pt.float(0, 0.99)}, "adam": None}),
        "beta": pt.ordinal([0.9, 0.99], when={"optimizer": "adam"}),
        "act": ["relu", "gelü"],
        "bias": pt.choice([False, True]),
        "seed": pt.fixed(7),
    }
    study = pt.Study(space, {"maximize": "accuracy"}, trials=40, algorithm="random", constraints=["lr < 0.05 or width > 64"])
    branches = set()
    for trial in study:
        params = trial.params
        assert 1e-4 <= params["lr"] <= 1e-1 and isinstance(params["lr"], float)
        assert params["width"] in range(64, 513, 64) and isinstance(params["width"], int)
        assert params["act"] in ("relu", "gelü") and params["seed"] == 7 and isinstance(params["bias"], bool)
        assert ("momentum" in params) == (params["optimizer"] == "sgd")
        assert ("beta" in params) == (params["optimizer"] == "adam")
        assert params["lr"] < 0.05 or params["width"] > 64
        branches.add(params["optimizer"])
        study.tell(trial, 1.0)
    assert branches == {"sgd", "adam"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"space": {"lr": pt.log(1, 0.1)}}, "space.lr"),
        ({"space": {"lr": {"lgo": [1, 2]}}}, "unknown key `lgo`"),
        ({"space": {"a b": pt.int(1, 2)}}, "a b"),
        ({"space": {"x": object()}}, "space: found <object"),
        ({"objective": "loss"}, "objective: found 'loss'; expected \"minimize\""),
        ({"objective": None}, "objective: missing"),
        ({"objective": {"minimise": "loss"}}, "objective"),
        ({"algorithm": "tpo"}, "search.algorithm: found .*did you mean `tpe`"),
        ({"early_stopping": {"rule": "asha", "grace": 20}, "epochs": 10}, "grace"),
        ({"trials": 0}, "trials: found 0; expected 1 or more"),
        ({"parallel": 0}, "parallel: found 0"),
        ({"constraints": ["y < 1"]}, "constraints"),
    ],
)
def test_mistakes_name_the_field(arguments, message):
    with pytest.raises(ValueError, match=message):
        pt.Study(**{"space": LINE, "objective": "minimize", **arguments})


def test_all_mistakes_are_told_at_once():
    with pytest.raises(ValueError) as caught:
        pt.Study({"a": pt.log(1, 0.1), "b": {"itn": [1, 2]}}, {"minimize": "loss"})
    assert "space.a.log: " in str(caught.value) and "space.b.itn: " in str(caught.value)


def test_study_files(tmp_path):
    file = tmp_path / "study.yaml"
    file.write_text("space: {x: {float: [0, 1]}}\nobjective: {minimize: loss}\nsearch: {trials: 7}\n")
    assert sum(1 for _ in pt.Study(file)) == 7
    assert sum(1 for _ in pt.Study(str(file), trials=3)) == 3
    file.write_text("space: {x: {float: [1, 0]}}\nobjective: {minimize: loss}\n")
    with pytest.raises(ValueError, match="study.yaml:1:"):
        pt.Study(file)
    with pytest.raises(FileNotFoundError, match="nowhere.yaml"):
        pt.Study(tmp_path / "nowhere.yaml")
    with pytest.raises(ValueError, match="objective: given beside the study file"):
        pt.Study(file, "minimize")


# --- ask and tell


def test_ask_and_tell_finds_the_minimum():
    study = pt.Study(LINE, "minimize", trials=40)
    for trial in study:
        study.tell(trial, functions.bowl(trial))
    assert study.is_finished and len(study) == 40
    assert abs(study.best["params"]["x"] - 0.3) < 0.1
    with pytest.raises(pt.StudyFinished, match="all 40 trials"):
        study.ask()
    assert study.importance() == {"x": 1.0}


def test_results_of_all_forms():
    study = pt.Study(LINE, [{"minimize": "loss"}, {"maximize": "accuracy"}], trials=9)
    study.tell(study.ask(), [0.5, 0.9])
    study.tell(study.ask().id, {"accuracy": 0.8, "loss": 0.4, "other": 1})
    study.tell(study.ask(), state="failed", reason="out of memory")
    study.tell(study.ask(), state="cancelled")
    study.tell(study.ask(), (math.nan, 1.0))
    states = [(trial["state"], trial["values"]) for trial in study.trials]
    assert states[0] == ("done", {"loss": 0.5, "accuracy": 0.9})
    assert states[1] == ("done", {"loss": 0.4, "accuracy": 0.8})
    assert [state for state, _ in states[2:]] == ["failed", "cancelled", "failed"]
    assert study.trials[2]["reason"] == "out of memory"
    assert [trial["id"] for trial in study.pareto_front()] == [0, 1]
    trial = study.ask()
    for result in [1.0, {"loss": 1}, [1, 2, 3], "1", None, [1, "2"]]:
        with pytest.raises(ValueError, match="result|accuracy"):
            study.tell(trial, result)
    with pytest.raises(ValueError, match="state: found 'done'"):
        study.tell(trial, state="done")
    study.tell(trial, [1, 2])
    with pytest.raises(ValueError, match="trial 5 is done"):
        study.tell(trial, [1, 2])
    with pytest.raises(ValueError, match="there is no trial 77"):
        study.tell(77, [1, 2])


def test_known_parameters_come_first():
    study = pt.Study({"x": pt.float(0, 1), "opt": ["a", "b"]}, "minimize")
    assert study.enqueue({"x": 0.25, "opt": "b"}) == 1
    assert study.ask().params == {"x": 0.25, "opt": "b"}
    with pytest.raises(ValueError, match="`x`"):
        study.enqueue({"x": 2.0, "opt": "b"})
    with pytest.raises(ValueError, match="`x` is None"):
        study.enqueue({"x": None})


def test_reports_stop_trials():
    study = pt.Study(LINE, {"minimize": "loss"}, trials=60, early_stopping="median", epochs=9, algorithm="random")
    for trial in study:
        for epoch in range(1, 10):
            if not trial.report({"loss": trial.params["x"] + 1 / epoch}, epochs=epoch):
                assert trial.should_stop and trial.stop_reason
                break
        else:
            study.tell(trial, trial.params["x"])
    states = [trial["state"] for trial in study.trials]
    assert 10 < states.count("stopped") < 50
    stopped = next(trial for trial in study.trials if trial["state"] == "stopped")
    assert 1 <= stopped["epochs"] < 9 and stopped["reason"]
    trial = pt.Study(LINE, {"minimize": "loss"}).ask()
    with pytest.raises(ValueError, match="report: found accuracy; expected a value of `loss`"):
        trial.report(accuracy=1)


def test_a_table():
    pandas = pytest.importorskip("pandas")
    study = pt.optimize(functions.failing, LINE, "minimize", trials=12)
    table = study.trials_dataframe()
    assert isinstance(table, pandas.DataFrame) and len(table) == 12
    assert set(table.columns) == {"id", "state", "value", "epochs", "reason", "params_x"}
    assert table.set_index("id").loc[study.best["id"], "value"] == study.best["value"]


# --- functions


@pytest.mark.parametrize("parallel", [1, 3])
def test_functions_are_optimized(parallel):
    study = pt.optimize(functions.bowl, LINE, "minimize", trials=30, parallel=parallel)
    assert [trial["state"] for trial in study.trials] == ["done"] * 30
    assert study.best["value"] < 0.01


@pytest.mark.parametrize(
    "given",
    [
        {"objective": "maximize"}, {"trials": 3}, {"algorithm": "tpe"}, {"seed": 1}, {"early_stopping": "asha"}, {"epochs": 3},
        {"constraints": ["x < 1"]}, {"folder": "elsewhere"},
    ],
)
def test_what_an_open_study_has_said_already_is_not_said_again(given):
    study, [name] = pt.Study(LINE, "minimize", trials=2), given
    with pytest.raises(ValueError, match=f"^{name}: given beside a study that is open already"):
        pt.optimize(functions.bowl, study, **given)
    assert study.trials == [], "nothing was tried"


def test_processes_are_used_side_by_side_and_again():
    study = pt.optimize(functions.process, LINE, "minimize", trials=12, parallel=2)
    processes = {trial["value"] for trial in study.trials}
    assert len(processes) == 2 and os.getpid() not in processes


@pytest.mark.parametrize("parallel", [1, 2])
def test_functions_report_and_are_stopped(parallel):
    settings = {"early_stopping": "median", "epochs": 9, "algorithm": "random"}
    study = pt.optimize(functions.curve, LINE, "minimize", trials=40, parallel=parallel, **settings)
    by_state = {"done": 0, "stopped": 0}
    for trial in study.trials:
        by_state[trial["state"]] += 1
        if trial["state"] == "done":
            # What was reported last counts.
            assert trial["value"] == pytest.approx(trial["params"]["x"] + 1 / 9)
    assert min(by_state.values()) > 0


@pytest.mark.parametrize("parallel", [1, 2])
def test_exceptions_fail_a_trial_with_their_traceback(parallel):
    study = pt.optimize(functions.failing, LINE, "minimize", trials=20, parallel=parallel, algorithm="random")
    failed = [trial for trial in study.trials if trial["state"] == "failed"]
    assert failed and all(trial["params"]["x"] > 0.5 for trial in failed)
    reason = failed[0]["reason"]
    assert reason.startswith("RuntimeError: too far\nTraceback") and "functions.py" in reason and "_optimize.py" not in reason


@pytest.mark.parametrize("parallel", [1, 2])
def test_a_function_that_always_fails_ends_the_study(parallel):
    with pytest.raises(pt.TrialsFailed, match="10 trials have failed.*KeyError: 'y'"):
        pt.optimize(functions.always_failing, LINE, "minimize", trials=1000, parallel=parallel)
    with pytest.raises(pt.TrialsFailed, match="SystemExit: enough"):
        pt.optimize(functions.exiting, LINE, "minimize", trials=1000, parallel=parallel)


@pytest.mark.parametrize(("function", "end"), [(functions.killed, "killed by SIGKILL"), (functions.leaving, "exit code 3")])
def test_the_death_of_a_process_is_the_failure_of_its_trial(function, end):
    study = pt.optimize(function, LINE, "minimize", trials=8, parallel=2)
    states = [trial["state"] for trial in study.trials]
    assert states.count("done") == 7 and states[1] == "failed"
    assert study.trials[1]["reason"] == f"its process ended in the middle of the trial ({end})"


def test_functions_that_processes_cannot_import_are_refused():
    with pytest.raises(ValueError, match="top level of a file, no lambda"):
        pt.optimize(lambda trial: 1.0, LINE, "minimize", trials=2, parallel=2)
    with pytest.raises(ValueError, match="start_method: found 'span'; expected one of"):
        pt.optimize(functions.bowl, LINE, "minimize", parallel=2, start_method="span")
    with pytest.raises(ValueError, match="parallel: found 0"):
        pt.optimize(functions.bowl, LINE, "minimize", parallel=0)


def test_a_script_without_a_guard_says_what_to_do(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import pollux_tune as pt\n"
        "def train(trial): return 1.0\n"
        "pt.optimize(train, {'x': pt.float(0, 1)}, 'minimize', trials=4, parallel=2)\n"
    )
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 1 and 'if __name__ == "__main__":' in ran.stderr.splitlines()[-2], ran.stderr


# --- the folder of a study


def test_the_program_reads_the_folder(tmp_path):
    folder = tmp_path / "study"
    study = pt.optimize(functions.failing, LINE, {"minimize": "loss"}, trials=10, parallel=2, folder=folder, algorithm="random")
    failed = next(trial["id"] for trial in study.trials if trial["state"] == "failed")
    best = study.best
    study.close()
    with pytest.raises(ValueError, match="closed"):
        study.ask()
    status = json.loads(program("status", folder, "--json"))
    assert status["state"] == "done" and sum(status["trials"].values()) == 10
    assert len(program("trials", folder, "--json").splitlines()) == 10
    listed = json.loads(program("best", folder, "--json"))["best"][0]
    assert (listed["id"], listed["values"]) == (best["id"], {"loss": best["value"]})
    assert "RuntimeError: too far" in program("show", folder, str(failed))


def test_a_folder_has_one_user_at_a_time_and_one_study(tmp_path):
    with pt.Study(LINE, "minimize", folder=tmp_path) as study:
        study.ask()
        with pytest.raises(ValueError, match="run by another process"):
            pt.Study(LINE, "minimize", folder=tmp_path)
    with pytest.raises(ValueError, match="belongs to another study: parameter `x`"):
        pt.Study({"x": pt.float(0, 2)}, "minimize", folder=tmp_path)


def test_a_study_goes_on_as_if_it_had_never_stopped(tmp_path):
    def begin(folder=None):
        return pt.Study(LINE, "minimize", trials=20, folder=folder)

    whole = begin()
    for trial in whole:
        whole.tell(trial, functions.bowl(trial))
    for _ in range(5):
        with begin(tmp_path) as study:
            for count, trial in enumerate(study):
                if count == 4:
                    break  # left running
                study.tell(trial, functions.bowl(trial))
    with begin(tmp_path) as study:
        for trial in study:
            study.tell(trial, functions.bowl(trial))
        assert study.trials == whole.trials


SCRIPT = """
import sys
import pollux_tune as pt
import functions
if __name__ == "__main__":
    pt.optimize(functions.waiting, {"x": pt.float(0, 1)}, "minimize", trials=3, parallel=2, folder=sys.argv[1])
"""


def is_alive(pid):
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_study_leaves_no_process_and_is_resumed(tmp_path, signal_number):
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "begun").mkdir()
    here = str(Path(__file__).parent)
    environment = {**os.environ, "PYTHONPATH": here, "POLLUX_TUNE_TEST_FOLDER": str(tmp_path / "begun")}
    command = [sys.executable, tmp_path / "script.py", tmp_path / "study"]
    # A group of its own, as in a terminal; whoever runs the tests in the background ignores Ctrl-C, and so would all its processes.
    def heed():
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    running = subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True, preexec_fn=heed
    )
    wait_for(lambda: len(list((tmp_path / "begun").iterdir())) == 2)
    workers = [int(file.name.split(".")[1]) for file in (tmp_path / "begun").iterdir()]
    if signal_number == signal.SIGINT:
        os.killpg(running.pid, signal_number)
    else:
        running.kill()
    _, errors = running.communicate(timeout=120)
    assert running.returncode != 0
    if signal_number == signal.SIGINT:
        assert "KeyboardInterrupt" in errors.splitlines()[-1]
    wait_for(lambda: not any(is_alive(pid) for pid in workers))
    again = subprocess.run(command, env={**environment, "POLLUX_TUNE_TEST_GO_ON": "1"}, timeout=300)
    assert again.returncode == 0
    with pt.Study(LINE, "minimize", trials=3, folder=tmp_path / "study") as study:
        assert [trial["state"] for trial in study.trials] == ["done"] * 3

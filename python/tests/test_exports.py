"""Exports of a study, read by the tools that they are for, and studies of Optuna as warm starts."""

import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from installed import PATIENCE_S, PROGRAM, program

STUDY = """
space:
  lr: {log: [1e-5, 1]}
  drop: {float: [0.1, 0.75], step: 0.1}
  width: {int: [64, 500], step: 64}
  layers: {int: [1, 64], log: true}
  optimizer:
    choice:
      sgd: {momentum: {float: [0, 0.99]}}
      adam:
  norm: {choice: [false, true]}
  mixed: {choice: [none, 1, 2.5]}
  size: {ordinal: [16, 32, 64]}
  seed: {fixed: 7}
objective: {maximize: accuracy}
search: {trials: 12, seed: 7}
trial: {epochs: 3}
"""
DONE, FAILED, STOPPED, RUNNING = 6, 6, 7, 8


class Session:
    """A conversation with `ask-tell`."""

    def __init__(self, *arguments):
        command = [PROGRAM, "ask-tell", *map(str, arguments)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def send(self, request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        assert "error" not in answer, answer
        return answer

    def end(self):
        """What it says on stderr."""
        _, said = self.process.communicate()
        assert self.process.returncode == 0, said
        return said


def accuracy(number, epoch):
    return (number + 1) / 10 + epoch / 100


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Six trials that are done, one that failed, one that was stopped, one that runs, and enqueued parameters."""
    folder = tmp_path_factory.mktemp("exports")
    (folder / "study.yaml").write_text(STUDY)
    session = Session(folder / "study.yaml", "--folder", folder / "demo")
    for number in range(RUNNING + 1):
        assert session.send({"ask": 1})["id"] == number
        for epoch in (1, 2):
            session.send({"report": {"id": number, "epochs": epoch, "value": accuracy(number, epoch)}})
        if number < DONE:
            session.send({"tell": {"id": number, "value": accuracy(number, 3)}})
    session.send({"tell": {"id": FAILED, "state": "failed", "reason": "no, \"never\"\nagain"}})
    session.send({"tell": {"id": STOPPED, "state": "stopped"}})
    session.send({"enqueue": {"lr": 0.5, "drop": 0.3, "width": 128, "layers": 3, "optimizer": "adam", "norm": True, "mixed": 1, "size": 32}})
    session.end()
    return folder / "demo"


@pytest.fixture(scope="module")
def trials(study):
    return [json.loads(line) for line in program("trials", study, "--json").splitlines()]


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Said by these libraries about themselves, when they are imported.
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        yield


def check_table(table, trials, pandas):
    assert list(table["trial"]) == list(range(RUNNING + 1))
    assert list(table["state"]) == [trial["state"] for trial in trials]
    for trial, (_, row) in zip(trials, table.iterrows()):
        for name, value in trial["params"].items():
            assert row[f"params_{name}"] == (str(value) if name == "mixed" else value), name
        assert pandas.isna(row["params_momentum"]) == (trial["params"]["optimizer"] == "adam")
    assert list(table["values_accuracy"][:DONE]) == [accuracy(number, 3) for number in range(DONE)]
    assert table["values_accuracy"][DONE:].isna().all()
    assert table["metrics_accuracy"][STOPPED] == accuracy(STOPPED, 2)
    assert "never" in table["reason"][FAILED]


def test_pandas_reads_csv(study, trials, tmp_path):
    import pandas

    assert program("export", study, "-o", tmp_path / "trials.csv") == f"{tmp_path}/trials.csv: 9 trials\n"
    exact = {"float_precision": "round_trip", "dtype": {"params_mixed": str}}
    table = pandas.read_csv(tmp_path / "trials.csv", parse_dates=["created", "started", "ended"], **exact)
    check_table(table, trials, pandas)
    assert str(table["created"].dtype).startswith("datetime64") and table["ended"][:DONE].notna().all()
    assert table["params_norm"].dtype == bool and table["params_width"].dtype == "int64"
    program("export", study, "-o", tmp_path / "reports.csv", "--reports")
    reports = pandas.read_csv(tmp_path / "reports.csv", float_precision="round_trip")
    assert len(reports) == 2 * (RUNNING + 1)
    assert reports[reports["trial"] == 3]["accuracy"].tolist() == [accuracy(3, 1), accuracy(3, 2)]


def test_pandas_reads_parquet(study, trials, tmp_path):
    import pandas
    import pyarrow
    import pyarrow.parquet

    program("export", study, "-o", tmp_path / "trials.parquet")
    table = pandas.read_parquet(tmp_path / "trials.parquet")
    check_table(table, trials, pandas)
    schema = pyarrow.parquet.read_schema(tmp_path / "trials.parquet")
    kinds = {"trial": "int64", "params_lr": "double", "params_norm": "bool", "params_optimizer": "string", "ended": "timestamp[us, tz=UTC]"}
    assert {name: str(schema.field(name).type) for name in kinds} == kinds
    program("export", study, "-o", tmp_path / "reports.parquet", "--reports")
    reports = pyarrow.parquet.read_table(tmp_path / "reports.parquet")
    assert reports.num_rows == 2 * (RUNNING + 1)
    assert reports.column("epochs").to_pylist()[:2] == [1.0, 2.0]


def test_json_has_all_of_it(study, trials, tmp_path):
    program("export", study, "-o", tmp_path / "study.json")
    whole = json.loads((tmp_path / "study.json").read_text())
    assert [trial["params"] for trial in whole["trials"]] == [trial["params"] for trial in trials]
    assert whole["study"]["objectives"] == [{"metric": "accuracy", "direction": "maximize"}]
    assert [report["metrics"]["accuracy"] for report in whole["trials"][2]["reports"]] == [accuracy(2, 1), accuracy(2, 2)]
    assert whole["enqueued"][0]["width"] == 128


def test_optuna_loads_the_study(study, trials, tmp_path):
    import optuna
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
    from optuna.trial import TrialState

    program("export", study, "-o", tmp_path / "optuna.db")
    before = (tmp_path / "optuna.db").read_bytes()
    loaded = optuna.load_study(study_name=None, storage=f"sqlite:///{tmp_path}/optuna.db")
    assert (loaded.study_name, loaded.directions) == ("demo", [optuna.study.StudyDirection.MAXIMIZE])
    assert loaded.metric_names == ["accuracy"]
    states = [TrialState.COMPLETE] * DONE + [TrialState.FAIL, TrialState.PRUNED, TrialState.RUNNING, TrialState.WAITING]
    assert [trial.state for trial in loaded.trials] == states
    for ours, theirs in zip(trials, loaded.trials):
        assert theirs.params == ours["params"]
        theirs._validate()
        # As it would say itself of what it has asked for.
        assert all(theirs.distributions[name]._contains(theirs.distributions[name].to_internal_repr(value)) for name, value in theirs.params.items())
        assert theirs.intermediate_values == {epoch: accuracy(theirs.number, epoch) for epoch in (1, 2)}
    wanted = {
        "lr": FloatDistribution(1e-5, 1, log=True),
        "drop": FloatDistribution(0.1, 0.7, step=0.1),
        "width": IntDistribution(64, 448, step=64),
        "layers": IntDistribution(1, 64, log=True),
        "optimizer": CategoricalDistribution(["sgd", "adam"]),
        "norm": CategoricalDistribution([False, True]),
        "mixed": CategoricalDistribution(["none", 1, 2.5]),
        "size": CategoricalDistribution([16, 32, 64]),
        "seed": CategoricalDistribution([7]),
    }
    momentum = {"momentum": FloatDistribution(0, 0.99)}
    for trial in loaded.trials[: RUNNING + 1]:
        assert trial.distributions == (wanted | momentum if trial.params["optimizer"] == "sgd" else wanted)
    assert loaded.best_value == accuracy(DONE - 1, 3)
    assert loaded.trials[STOPPED].value == accuracy(STOPPED, 2)
    assert loaded.trials[FAILED].user_attrs["pollux_tune:state"] == "failed"
    assert loaded.trials[0].duration.total_seconds() >= 0
    # It is the time of day here, as Optuna has it.
    import datetime
    assert abs((datetime.datetime.now() - loaded.trials[0].datetime_start).total_seconds()) < 3600
    assert loaded.trials[-1].system_attrs["fixed_params"]["width"] == 128
    assert len(loaded.trials_dataframe()) == RUNNING + 2
    assert (tmp_path / "optuna.db").read_bytes() == before, "nothing had to be migrated"
    assert loaded._storage._backend._version_manager.get_current_version() == loaded._storage._backend._version_manager.get_head_version()


def test_optuna_continues_the_study(study, tmp_path):
    import optuna

    program("export", study, "-o", tmp_path / "optuna.db")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    loaded = optuna.load_study(study_name="demo", storage=f"sqlite:///{tmp_path}/optuna.db", sampler=optuna.samplers.TPESampler(seed=1, n_startup_trials=2))

    def objective(trial):
        lr = trial.suggest_float("lr", 1e-5, 1, log=True)
        trial.suggest_float("drop", 0.1, 0.7, step=0.1)
        trial.suggest_int("width", 64, 448, step=64)
        trial.suggest_categorical("norm", [False, True])
        return lr

    loaded.optimize(objective, n_trials=2)
    assert loaded.trials[RUNNING + 1].params["lr"] == 0.5, "what was enqueued comes first"
    assert len(loaded.trials) == RUNNING + 3


def test_optuna_dashboard_shows_the_study(study, tmp_path):
    import threading
    import urllib.request
    from wsgiref.simple_server import WSGIRequestHandler, make_server

    from optuna_dashboard import wsgi
    from optuna.storages import RDBStorage

    class Quiet(WSGIRequestHandler):
        def log_message(self, *_):
            pass

    program("export", study, "-o", tmp_path / "optuna.db")
    server = make_server("127.0.0.1", 0, wsgi(RDBStorage(f"sqlite:///{tmp_path}/optuna.db")), handler_class=Quiet)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()

    def ask(path):
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}{path}", timeout=PATIENCE_S) as answer:
            return answer.read()

    try:
        [known] = json.loads(ask("/api/studies"))["study_summaries"]
        assert (known["study_name"], known["directions"]) == ("demo", ["maximize"])
        shown = json.loads(ask(f"/api/studies/{known['study_id']}"))
        # With the enqueued parameters, which wait.
        assert len(shown["trials"]) == RUNNING + 2
        states = [trial["state"] for trial in shown["trials"]]
        assert states.count("Complete") == DONE and states[FAILED] == "Fail" and states[STOPPED] == "Pruned", states
        assert [trial["values"] for trial in shown["trials"][:DONE]] == [[accuracy(number, 3)] for number in range(DONE)]
        assert {"lr", "width", "momentum"} <= {one["name"] for one in shown["union_search_space"]}
        assert b"<html" in ask(f"/dashboard/studies/{known['study_id']}").lower()
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


def test_optuna_loads_several_objectives(tmp_path):
    import optuna

    (tmp_path / "study.yaml").write_text("space: {x: {float: [0, 1]}}\nobjective: [{maximize: accuracy}, {minimize: seconds}]\n")
    session = Session(tmp_path / "study.yaml", "--folder", tmp_path / "two")
    for number in range(3):
        session.send({"ask": 1})
        session.send({"tell": {"id": number, "values": [number / 10, 10.0 - number]}})
    session.end()
    program("export", tmp_path / "two", "-o", tmp_path / "two.db")
    loaded = optuna.load_study(study_name="two", storage=f"sqlite:///{tmp_path}/two.db")
    assert [direction.name for direction in loaded.directions] == ["MAXIMIZE", "MINIMIZE"]
    assert [trial.values for trial in loaded.trials] == [[number / 10, 10.0 - number] for number in range(3)]
    assert [trial.number for trial in loaded.best_trials] == [2]


def test_tensorboard_shows_curves_and_parameters(study, trials, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import metadata, plugin_data_pb2

    program("export", study, "-o", tmp_path / "runs", "--format", "tensorboard")
    assert sorted(path.name for path in (tmp_path / "runs").iterdir() if path.is_dir()) == [f"trial-{number}" for number in range(RUNNING + 1)]
    for trial in trials:
        events = EventAccumulator(str(tmp_path / "runs" / f"trial-{trial['id']}")).Reload()
        curve = [(event.step, pytest.approx(event.value)) for event in events.Scalars("accuracy")]
        assert curve == [(epoch, accuracy(trial["id"], epoch)) for epoch in (1, 2)]
        if trial["state"] == "done":
            assert events.Scalars("result/accuracy")[0].value == pytest.approx(accuracy(trial["id"], 3))
        contents = events.PluginTagToContent("hparams")
        start = metadata.parse_session_start_info_plugin_data(contents[metadata.SESSION_START_INFO_TAG])
        given = {name: getattr(value, value.WhichOneof("kind")) for name, value in start.hparams.items()}
        assert given == {name: str(value) if name == "mixed" else value for name, value in trial["params"].items()}
        if trial["state"] != "running":
            end = metadata.parse_session_end_info_plugin_data(contents[metadata.SESSION_END_INFO_TAG])
            assert end.status == (2 if trial["state"] == "failed" else 1)
    events = EventAccumulator(str(tmp_path / "runs")).Reload()
    experiment = metadata.parse_experiment_plugin_data(events.PluginTagToContent("hparams")[metadata.EXPERIMENT_TAG])
    assert [info.name for info in experiment.hparam_infos][:3] == ["lr", "drop", "width"]
    assert [info.name.tag for info in experiment.metric_infos] == ["result/accuracy", "accuracy"]


def test_mlflow_has_a_run_for_each_trial(study, trials, tmp_path, monkeypatch):
    # The versions of today want to be told that files are meant.
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    warnings.simplefilter("default")
    from mlflow import MlflowClient

    warnings.simplefilter("error")
    program("export", study, "-o", tmp_path / "my runs", "--format", "mlflow")
    client = MlflowClient((tmp_path / "my runs").as_uri())
    [experiment] = client.search_experiments()
    assert experiment.name == "demo"
    runs = sorted(client.search_runs([experiment.experiment_id]), key=lambda run: run.info.run_id)
    assert [run.info.run_name for run in runs] == [f"trial {number}" for number in range(RUNNING + 1)]
    states = {"done": "FINISHED", "failed": "FAILED", "stopped": "KILLED", "running": "RUNNING"}
    for run, trial in zip(runs, trials):
        assert set(run.data.params) == set(trial["params"])
        for name, value in trial["params"].items():
            told = run.data.params[name]
            assert float(told) == value if type(value) is float else told == str(value)
        assert (run.info.status, run.data.tags["state"]) == (states[trial["state"]], trial["state"])
        history = client.get_metric_history(run.info.run_id, "accuracy")
        assert [(point.step, point.value) for point in history] == [(epoch, accuracy(trial["id"], epoch)) for epoch in (1, 2)]
        assert run.data.metrics.get("result/accuracy") == (accuracy(trial["id"], 3) if trial["state"] == "done" else None)
        assert run.info.start_time > 0 and (run.info.end_time is None) == (trial["state"] == "running")
    assert client.search_runs([experiment.experiment_id], "metrics.accuracy > 0.75 and params.optimizer = 'sgd'") is not None
    # It can be written to, as any other.
    client.set_tag(runs[0].info.run_id, "note", "good")


@pytest.mark.parametrize("name, format", [("a.csv", "csv"), ("a.parquet", "parquet"), ("a.db", "optuna"), ("runs", "tensorboard"), ("mlruns", "mlflow")])
def test_nothing_is_replaced_without_force(study, tmp_path, name, format):
    program("export", study, "-o", tmp_path / name, "--format", format)
    assert "exists; --force replaces it" in program("export", study, "-o", tmp_path / name, "--format", format, code=2)
    program("export", study, "-o", tmp_path / name, "--format", format, "--force")
    assert [path.name for path in tmp_path.iterdir()] == [name], "nothing is left next to it"


def test_what_is_of_others_stays(study, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("years")
    said = program("export", study, "-o", tmp_path / "home", "--format", "tensorboard", "--force", code=2)
    assert "thesis.tex" in said and (tmp_path / "home" / "thesis.tex").exists()
    said = program("export", study, "-o", study / "journal.sqlite", "--format", "optuna", "--force", code=2)
    assert "of the study itself" in said
    program("status", study)
    # Another experiment in the same store stays as it is.
    store = tmp_path / "mlruns"
    (store / "0").mkdir(parents=True)
    program("export", study, "-o", store, "--format", "mlflow")
    program("export", study, "-o", store, "--format", "mlflow", "--force")
    assert (store / "0").exists() and len(list(store.iterdir())) == 3


def test_a_name_without_a_format_is_an_error(study, tmp_path):
    said = program("export", study, "-o", tmp_path / "out", code=2)
    assert re.search(r"--format.*\.csv.*\.parquet", said) and not list(tmp_path.iterdir())
    assert "--trial is for the weights" in program("export", study, "-o", tmp_path / "a.csv", "--trial", "1", code=2)
    assert "asked for and told" in program("export", study, "-o", tmp_path / "a.safetensors", code=2)
    assert "there is not a folder" in program("export", study, "-o", tmp_path / "none" / "a.db", code=2) and not os.path.exists(tmp_path / "none")


# --- studies of Optuna as warm starts


@pytest.fixture()
def optuna_database(tmp_path):
    """Two studies: `first` has eight trials, of which five are of the space of the study here."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = f"sqlite:///{tmp_path}/optuna.db"

    def objective(trial):
        lr = trial.suggest_float("lr", 1e-5, 10, log=True)
        layers = trial.suggest_int("layers", 1, 8)
        optimizer = trial.suggest_categorical("optimizer", ["sgd", "adam", "lion"])
        if optimizer == "sgd":
            trial.suggest_float("momentum", 0, 0.99)
        for step in (1, 2):
            trial.report(lr + step, step)
        if trial.number == 1:
            raise optuna.TrialPruned
        if trial.number == 2:
            raise ValueError("no")
        return lr + layers

    first = optuna.create_study(study_name="first", direction="minimize", storage=storage, sampler=optuna.samplers.RandomSampler(seed=1))
    fits = {"lr": 0.1, "layers": 3, "optimizer": "adam"}
    for params in [fits, fits | {"lr": 0.2}, fits, fits | {"optimizer": "sgd", "momentum": 0.5}, fits | {"lr": 5.0}, fits | {"optimizer": "lion"}, fits | {"layers": 8}, fits | {"lr": 1e-3}]:
        first.enqueue_trial(params)
    first.optimize(objective, n_trials=8, catch=ValueError)
    first.ask()
    optuna.create_study(study_name="second", direction="maximize", storage=storage)
    return tmp_path / "optuna.db"


NEW_STUDY = """
space:
  lr: {log: [1e-5, 1]}
  layers: {int: [1, 8]}
  optimizer: {choice: {sgd: {momentum: {float: [0, 0.99]}}, adam: }}
objective: {minimize: loss}
search: {trials: 3, parallel: 1}
trial: {command: [echo, '{"loss": 0.5}']}
"""
LEARNED = "learned from 5 of 8 trials; not used: 1 (`lr` is 5.0; expected a value of {float: [1e-5, 1.0], log: true}), 1 (`optimizer` is lion"


def imported(folder):
    import sqlite3

    with sqlite3.connect(f"file:{folder}/journal.sqlite?mode=ro", uri=True) as journal:
        return [json.loads(fact)["result_imported"] for (fact,) in journal.execute("SELECT fact FROM facts WHERE kind = 'result_imported' ORDER BY seq")]


def check_imported(facts):
    assert [fact["params"].get("momentum") for fact in facts] == [None, None, 0.5, None, None]
    assert facts[0] == {"params": {"lr": 0.1, "layers": 3, "optimizer": "adam"}, "end": {"done": [3.1]}, "last": [2.0, 2.1]}
    assert list(facts[1]["end"]) == ["stopped"] and facts[1]["last"] == [2.0, 2.2]


def test_ask_tell_learns_from_optuna(optuna_database, tmp_path):
    (tmp_path / "study.yaml").write_text(NEW_STUDY)
    session = Session(tmp_path / "study.yaml", "--folder", tmp_path / "new", "--warm-start", f"{optuna_database}#first")
    assert session.send({"status": {}})["status"]["learned"] == 5
    said = session.end()
    assert f"{optuna_database}#first: {LEARNED}" in said and "1 (it failed)" in said, said
    check_imported(imported(tmp_path / "new"))


def test_run_learns_from_optuna(optuna_database, tmp_path):
    (tmp_path / "study.yaml").write_text(NEW_STUDY)
    run = [PROGRAM, "run", tmp_path / "study.yaml", "--folder", tmp_path / "new", "--quiet", "--warm-start", f"{optuna_database}#first"]
    done = subprocess.run(run, capture_output=True, text=True)
    assert done.returncode == 0 and LEARNED in done.stderr, done.stderr
    check_imported(imported(tmp_path / "new"))
    assert json.loads(program("status", tmp_path / "new", "--json"))["trials"] == {"done": 3}
    again = subprocess.run(run, capture_output=True, text=True)
    assert again.returncode == 0 and "learned" not in again.stderr, "a study that has begun has learned already"


def test_a_warm_start_that_cannot_be_used_says_why(optuna_database, tmp_path):
    (tmp_path / "study.yaml").write_text(NEW_STUDY)

    def refused(earlier):
        return program("run", tmp_path / "study.yaml", "--folder", tmp_path / "new", "--warm-start", earlier, code=2)

    assert re.search(r"several studies: choose one of them, as in .*optuna.db#first; there are first, second", refused(optuna_database))
    assert "has no study `third`; expected one of first, second" in refused(f"{optuna_database}#third")
    assert "other objectives (maximize a value) than this study (minimize loss)" in refused(f"{optuna_database}#second")
    (tmp_path / "other.db").write_bytes(b"SQLite format 3\0" + b"x" * 5000)
    assert "cannot be read as a database of Optuna" in refused(tmp_path / "other.db")
    assert not (tmp_path / "new" / "journal.sqlite").exists()


def test_an_export_is_a_warm_start(study, trials, tmp_path):
    """What goes to Optuna comes back the same."""
    program("export", study, "-o", tmp_path / "optuna.db")
    session = Session(study.parent / "study.yaml", "--folder", tmp_path / "new", "--warm-start", tmp_path / "optuna.db")
    assert session.send({"status": {}})["status"]["learned"] == DONE + 1
    assert "learned from 7 of 8 trials; not used: 1 (it failed)" in session.end()
    facts = imported(tmp_path / "new")
    assert [fact["params"] for fact in facts] == [trial["params"] for trial in trials if trial["state"] in ("done", "stopped")]
    assert [fact["end"].get("done") for fact in facts] == [[accuracy(number, 3)] for number in range(DONE)] + [None]


# --- the page


def test_prometheus_reads_the_metrics(study):
    import urllib.error
    import urllib.request

    from prometheus_client.parser import text_string_to_metric_families

    server = subprocess.Popen([PROGRAM, "dashboard", study, "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        address, token = re.search(r"dashboard: (http://[^/]+)/\?token=(\w+)", server.stdout.readline()).groups()

        def scrape(headers):
            with urllib.request.urlopen(urllib.request.Request(f"{address}/metrics", headers=headers)) as answer:
                assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
                return answer.read().decode()

        text = scrape({"Authorization": f"Bearer {token}"})
        assert scrape({"X-Pollux-Tune-Token": token}).splitlines()[:3] == text.splitlines()[:3]
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": token}):
            with pytest.raises(urllib.error.HTTPError, match="403"):
                scrape(headers)
    finally:
        server.terminate()
        server.communicate()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert all(family.documentation and family.type in ("gauge", "counter") for family in families.values())
    assert all(sample.labels["study"] == "demo" for family in families.values() for sample in family.samples)
    trials = {sample.labels["state"]: sample.value for sample in families["pollux_tune_trials"].samples}
    assert {state: count for state, count in trials.items() if count} == {"done": DONE, "failed": 1, "stopped": 1, "running": 1}
    [best] = families["pollux_tune_best_value"].samples
    assert (best.value, best.labels["metric"], best.labels["direction"]) == (accuracy(DONE - 1, 3), "accuracy", "maximize")
    [wanted], [running] = families["pollux_tune_trials_wanted"].samples, families["pollux_tune_study_running"].samples
    assert (wanted.value, running.value) == (12, 0)
    assert {"pollux_tune_slot_seconds", "pollux_tune_slots_in_use", "pollux_tune_steps_per_second"} <= set(families)


def test_a_report_is_one_file(study, tmp_path):
    program("report", study, "-o", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert not re.search(r"(src|href)=\"(?!data:|#)", page), "it loads nothing"
    answers = json.loads(re.search(r'id="answers">(.*)</script>', page).group(1))
    assert answers["studies/demo"]["trials"] == {"done": DONE, "failed": 1, "stopped": 1, "running": 1}
    assert answers["studies/demo/history?objective=0"]["done"] == DONE
    assert answers[f"studies/demo/trials/{RUNNING}"]["log"] is None
    assert "--force replaces it" in program("report", study, "-o", tmp_path / "report.html", code=2)
    assert program("report", study) == f"{study}/report.html\n"

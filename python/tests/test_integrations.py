"""Lightning trains elastically, and Hugging Face's Trainer reports and is stopped early."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from installed import PATIENCE_S, program

torch = pytest.importorskip("torch")

import pollux_tune as pt

# --- Lightning -------------------------------------------------------------------------------------------------------------------
SCRIPT = Path(__file__).with_name("lightning_script.py")


def module():
    pytest.importorskip("pytorch_lightning")
    sys.path.insert(0, str(SCRIPT.parent))
    import lightning_script

    return lightning_script


def test_a_lightning_module_trains_by_hand(tmp_path):
    module()
    command = [sys.executable, SCRIPT, "--lr", "0.1", "--epochs", "3", "--batch", "32"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    metrics = json.loads(done.stdout)
    assert set(metrics) == {"accuracy", "val_loss"} and metrics["accuracy"] > 0.6


def test_a_lightning_module_trains_on_two_workers_and_its_weights_can_be_exported(tmp_path):
    script = module()
    (tmp_path / "study.yaml").write_text(f"""
space: {{lr: {{log: [0.05, 0.1]}}}}
objective: {{maximize: accuracy}}
trial: {{python: {SCRIPT}, interpreter: {sys.executable}, initial_batch: 32, max_batch: 128, epochs: 4, min_gpus: 2, max_gpus: 2}}
search: {{trials: 1, parallel: 1, algorithm: random}}
""")
    program("run", "study.yaml", "--slots", "2xcpu", "--folder", "study", cwd=tmp_path)
    [row] = [json.loads(line) for line in program("trials", "study", "--json", cwd=tmp_path).splitlines()]
    program("export", "study", "-o", "model.safetensors", cwd=tmp_path)
    from safetensors.torch import load_file

    net = script.Net(row["params"]["lr"])
    net.load_state_dict(load_file(tmp_path / "model.safetensors"))
    points = script.Points()
    points.setup("fit")
    inputs, classes = points.data[1].tensors
    with torch.no_grad():
        accuracy = (net.eval()(inputs).argmax(1) == classes).double().mean().item()
    assert accuracy > 0.6
    assert accuracy == pytest.approx(row["values"]["accuracy"], abs=1e-6)


def test_a_lightning_module_knows_its_epoch_and_step_wherever_it_joins(tmp_path):
    """25 steps an epoch, each in several passes. A worker joins after 30 of them, or a few more."""
    module()
    from rehearsal import Rescales, finished, task, train

    log, script = tmp_path / "log", SCRIPT.with_name("lightning_watched.py")
    rescales = Rescales(tmp_path, [(30, [0, 1])])
    params = {**rescales.params, "log": str(log)}
    tasks = [task(tmp_path, "watched", epochs=2, initial_batch=40, measure_noise=False, **params)]
    (events,) = train(tasks, [0], rescales.follow, arguments=(str(script),), max_batch_per_worker=10)
    metrics = finished(events)
    assert rescales.groups == [[0], [0, 1]]
    assert metrics["loaded_elsewhere"] == 1.0, "validation data are loaded by processes, as their loader says"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    begun = [(line["epoch"], line["step"]) for line in lines if line["what"] == "start"]
    assert begun[0] == (0, 0) and [epoch for epoch, _ in begun] == [0, 1] and 30 <= begun[1][1] < 50, begun
    for rank, (_, first) in enumerate(begun):
        mine = [line for line in lines if line["rank"] == rank and line["what"] != "start"]
        updates = [line for line in mine if line["what"] == "update"]
        assert [line["step"] for line in updates] == list(range(first + 1, 51)), "each update counts once"
        assert len(mine) > len(updates), "there are passes that are no updates"
        assert all(line["epoch"] == (line["step"] - 1) // 25 for line in updates)


def fake_trainer():
    from pollux_tune.lightning import ElasticTrainer

    return ElasticTrainer(None)


def test_what_lightning_can_do_and_elastic_trials_cannot_is_said():
    script = module()
    from pollux_tune.lightning import _optimizer

    net = script.Net(0.1)
    net.automatic_optimization = False
    with pytest.raises(TypeError, match="manual optimization"):
        fake_trainer().fit(net, datamodule=script.Points())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5)
    with pytest.raises(ValueError, match="once per epoch"):
        _optimizer({"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}})
    with pytest.raises(TypeError, match="one optimizer"):
        _optimizer([optimizer, optimizer])
    with pytest.raises(AttributeError, match="`logger` of a Lightning Trainer is not there in elastic trials"):
        fake_trainer().logger
    for configured in (optimizer, [optimizer], {"optimizer": optimizer}, ([optimizer], [])):
        assert _optimizer(configured) == (optimizer, [])
    for configured in (([optimizer], [schedule]), {"optimizer": optimizer, "lr_scheduler": schedule}):
        assert _optimizer(configured) == (optimizer, [{"scheduler": schedule}])


# --- Hugging Face ----------------------------------------------------------------------------------------------------------------
def hugging_face(folder, lr, callback, epochs):
    transformers = pytest.importorskip("transformers")

    class Line(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def forward(self, x, labels):
            return {"loss": (self.layer(x).squeeze(1) - labels).square().mean()}

    data = [{"x": torch.tensor([number / 32]), "labels": torch.tensor(number / 16)} for number in range(32)]
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), learning_rate=lr, num_train_epochs=epochs, per_device_train_batch_size=8, eval_strategy="epoch",
        save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True, lr_scheduler_type="constant",
    )
    torch.manual_seed(0)
    trainer = transformers.Trainer(model=Line(), args=arguments, train_dataset=data, eval_dataset=data, callbacks=[callback])
    trainer.train()
    return trainer.state


def test_hugging_face_reports_and_is_stopped_early(tmp_path):
    pytest.importorskip("transformers")
    from pollux_tune.huggingface import ReportCallback

    ran = {}

    def train(trial):
        ran[trial.id] = hugging_face(tmp_path / "hf", trial.params["lr"], ReportCallback(trial), 4).epoch

    study = pt.Study({"lr": pt.log(1e-6, 1.0)}, {"minimize": "eval_loss"}, trials=3, early_stopping={"rule": "asha", "grace": 1, "reduction": 2}, epochs=4)
    for lr in (0.1, 1e-6, 2e-6):
        study.enqueue({"lr": lr})
    pt.optimize(train, study)
    states = [row["state"] for row in study.trials]
    assert states[0] == "done" and "stopped" in states[1:], study.trials
    assert ran[0] == 4 and min(ran.values()) < 4, ran


def test_hugging_face_in_a_program_tells_the_head(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    from pollux_tune.huggingface import ReportCallback

    monkeypatch.setenv("POLLUX_TUNE_METRICS", str(tmp_path / "metrics"))
    hugging_face(tmp_path / "hf", 0.1, ReportCallback(), 2)
    lines = [json.loads(line) for line in (tmp_path / "metrics").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1.0, 2.0]
    assert lines[1]["eval_loss"] < lines[0]["eval_loss"]

"""Elastic trials under a head that changes their workers, kills them, and changes their batch: nothing is lost."""

import json
import random
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from rehearsal import EPOCHS, STEPS, Gate, Rescales, assert_same, finished, state, statistics, steps, task, train
from rehearsed_script import BATCH, CLASSES, EXAMPLES, INPUTS, Points, optimizer_of

from pollux_tune import _core

# The first step whose noise is measured with the second moments of Adam: one in four is, and those of the first five steps are too young.
WEIGHTED_STEP = 8


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_growing_and_shrinking_change_nothing(tmp_path, optimizer):
    lr = {"sgd": 0.05, "adamw": 0.003}[optimizer]
    rescales = Rescales(tmp_path, [(10, [0, 1]), (30, [0]), (50, [0, 1])])
    tasks = [
        task(tmp_path, "undisturbed", optimizer=optimizer, lr=lr),
        task(tmp_path, "rescaled", optimizer=optimizer, lr=lr, **rescales.params),
    ]
    both = train(tasks, [0], lambda run, event: rescales.follow(run, event) if run.number == 1 else None)
    assert rescales.groups == [[0], [0, 1], [0], [0, 1]]
    for events in both:
        assert steps(events) == STEPS, "every step is taken once"
    assert finished(both[0]) == pytest.approx(finished(both[1]))
    assert_same(state(tasks, 1), state(tasks, 0), "rescaled")


def test_killed_ranks_lose_nothing(tmp_path):
    """`kill -9` of a random rank at a random step, twenty times. Both ranks are in the step, or one waits for the other in its reduction."""
    rounds, chance = 20, random.Random(20)
    victims = [(chance.randrange(1, STEPS // 2), chance.randrange(2)) for _ in range(rounds)]
    gates = [Gate(tmp_path, number) for number in range(rounds)]
    tasks = [task(tmp_path, "undisturbed")]
    for number, (gate, (at, _)) in enumerate(zip(gates, victims)):
        tasks.append(task(tmp_path, f"round-{number}", gates=gate.after(at, chance.choice([None, 0, 1]))))
    killed, known, before = set(), {}, {}

    def look(run, event):
        number = run.number - 1
        if number < 0:
            return
        if event["event"] == "reported":
            known[number] = max(known.get(number, 0), event["report"]["steps"])
        elif event["event"] == "broken":
            known[number] = max(known.get(number, 0), event["steps"] or 0)
        elif event["event"] == "forming":
            before[number, event["group"]] = known.get(number, 0)
        elif event["event"] == "formed":
            # Whoever goes on does so from no earlier step than anyone had seen done. Meanwhile a member may have reported the first step
            # of the new group, before the head has heard from another one that it has formed.
            assert event["steps"] >= before[number, event["group"]], f"round {number} goes back"
        at, victim = victims[number]
        if number not in killed and known.get(number) == at:
            killed.add(number)
            run.kill(victim)
            gates[number].open()

    everything = train(tasks, [0, 1], look)
    undisturbed = state(tasks, 0)
    for number, events in enumerate(everything[1:]):
        assert {"event": "lost", "slot": victims[number][1]} in events, f"round {number}: nobody has died"
        assert sum(event["event"] == "lost" for event in events) == 1, f"round {number}: more have died"
        finished(events)
        assert steps(events) == STEPS, f"round {number}"
        assert_same(state(tasks, number + 1), undisturbed, f"round {number}")


def test_a_wholly_killed_group_resumes_from_its_checkpoint(tmp_path):
    # It does not come to its end before it is killed.
    gate, seen = Gate(tmp_path, "end"), {}
    tasks = [
        task(tmp_path, "undisturbed"),
        task(tmp_path, "killed", checkpoint_every_s=1e-6, gates=gate.after(STEPS - 1)),
    ]

    def look(run, event):
        if run.number == 0:
            return
        if event["event"] == "checkpointed" and event["steps"] >= 20 and "killed" not in seen:
            seen["killed"] = event["steps"]
            run.kill(0)
            run.kill(1)
            gate.open()
        elif event["event"] == "formed" and "killed" in seen:
            seen.setdefault("resumed", event["steps"])

    both = train(tasks, [0, 1], look)
    assert seen["resumed"] >= seen["killed"]
    finished(both[1])
    assert_same(state(tasks, 1), state(tasks, 0), "killed")


def lines_of(log):
    return [json.loads(line) for line in Path(log).read_text().splitlines()]


def test_the_epoch_is_right_for_those_who_join_and_for_those_who_resume(tmp_path):
    """One worker joins in the middle of the second epoch. Then both are killed, and others resume in the middle of the third."""
    log, end = tmp_path / "log", Gate(tmp_path, "end")
    rescales, seen = Rescales(tmp_path, [(30, [0, 1])]), {}
    params = {**rescales.params, "gates": rescales.params["gates"] + end.after(55), "before": True}
    tasks = [task(tmp_path, "epochs", log=str(log), checkpoint_every_s=1e-6, **params)]

    def look(run, event):
        rescales.follow(run, event)
        if event["event"] == "checkpointed" and event["steps"] >= 50 and "killed" not in seen:
            seen["killed"] = event["steps"]
            run.kill(0)
            run.kill(1)
            end.open()
        elif event["event"] == "formed" and "killed" in seen:
            seen.setdefault("resumed", event["steps"])

    (events,) = train(tasks, [0], look)
    finished(events)
    each = STEPS // EPOCHS
    assert rescales.groups[:2] == [[0], [0, 1]] and 2 * each < seen["resumed"] < 3 * each
    lines = lines_of(log)
    assert {line["rank"] for line in lines if line["step"] >= 30} == {0, 1}
    for line in lines:
        assert line["epoch"] == line["step"] // each, line


@pytest.mark.parametrize("tests", [1, 2])
def test_workers_evaluate_together_what_not_all_of_them_have(tmp_path, tests):
    """Fewer examples than workers, and metrics that only some examples have: the same as by one worker."""
    tasks = [task(tmp_path, f"of-{tests}", epochs=1, tests=tests, classes=True)]
    (events,) = train(tasks, [0, 1])
    metrics = finished(events)
    classes = Points(tests, 2).classes.tolist()
    assert tests == 1 or len(set(classes)) == 2, "two examples of the same class show nothing"
    assert metrics["count"] == 1.0
    assert {name: value for name, value in metrics.items() if name.startswith("class_")} == {
        f"class_{number}": classes.count(number) / tests for number in set(classes)
    }


def test_batches_that_change_in_mid_epoch_lose_and_repeat_no_example(tmp_path):
    """Two workers, four batches, one of them odd and one in several passes; every worker writes down what it has learned from."""
    log, wanted = tmp_path / "log", [(24, 0), (15, 0), (36, 2)]
    gates = [Gate(tmp_path, at) for at in (5, 12, 19)]
    stops = "".join(gate.after(at) for gate, at in zip(gates, (5, 12, 19)))
    tasks = [task(tmp_path, "batches", log=str(log), gates=stops)]
    told, used = [], []

    def look(run, event):
        if event["event"] == "reported":
            used.append(event["report"]["batch"]["total"])
            if len(told) < 3 and event["report"]["steps"] == (5, 12, 19)[len(told)]:
                told.append(wanted[len(told)])
                run.use_batch(*told[-1])
        elif event["event"] == "retuned":
            gates[len(told) - 1].open()

    events = train(tasks, [0, 1], look)[0]
    assert finished(events)["count"] == 1.0, "every example of the test data counts once"
    assert list(dict.fromkeys(used)) == [12, 24, 15, 36]
    taken = {}
    for line in lines_of(log):
        assert taken.setdefault(line["step"], {}).setdefault(line["rank"], line["places"]) is line["places"], "a step was taken twice"
    order = []
    for number in range(steps(events)):
        assert sorted(taken[number]) == [0, 1]
        order += taken[number][0] + taken[number][1]
    assert len({len(taken[number][0]) + len(taken[number][1]) for number in taken}) == 4
    epochs = [order[start : start + EXAMPLES] for start in range(0, len(order) - EXAMPLES + 1, EXAMPLES)]
    assert len(epochs) >= EPOCHS
    for epoch in epochs:
        assert sorted(epoch) == list(range(EXAMPLES))
    assert epochs[0] != epochs[1], "each epoch has an order of its own"


def test_the_noise_of_two_workers_is_that_of_the_rust_estimator(tmp_path):
    """After one step: from the gradients of both workers, which are computed here once more."""
    log = tmp_path / "log"
    tasks = [task(tmp_path, "noise", epochs=BATCH / EXAMPLES, log=str(log))]
    (events,) = train(tasks, [0, 1])
    assert steps(events) == 1
    torch.manual_seed(tasks[0]["seed"])
    net = torch.nn.Sequential(torch.nn.Linear(INPUTS, 24), torch.nn.ReLU(), torch.nn.Linear(24, CLASSES))
    data, gradients = Points(EXAMPLES, 1), []
    for line in lines_of(log):
        net.zero_grad()
        torch.nn.functional.cross_entropy(net(data.inputs[line["places"]]), data.classes[line["places"]]).backward()
        gradients.append(torch.cat([p.grad.double().reshape(-1) for p in net.parameters()]))
    assert len(gradients) == 2
    expected = _core.Training(json.dumps(tasks[0]))
    expected.open(EXAMPLES, True)
    expected.form_alone(BATCH, 1)
    mean_of_squares = sum(float(gradient.square().sum()) for gradient in gradients) / 2
    expected.measure(2, BATCH / 2, mean_of_squares, float((sum(gradients) / 2).square().sum()))
    assert statistics(tasks, 0) == pytest.approx(expected.statistics, rel=1e-4)


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_the_noise_of_two_workers_is_weighted_as_adam_weights_the_gradient(tmp_path, optimizer):
    """After the first step that is weighted by second moments: statistics without them are forgotten. All steps are taken here once more."""
    log, count, lr = tmp_path / "log", WEIGHTED_STEP + 1, 0.003
    tasks = [task(tmp_path, optimizer, epochs=count * BATCH / EXAMPLES, log=str(log), optimizer=optimizer, lr=lr)]
    (events,) = train(tasks, [0, 1])
    assert steps(events) == count
    torch.manual_seed(tasks[0]["seed"])
    net = torch.nn.Sequential(torch.nn.Linear(INPUTS, 24), torch.nn.ReLU(), torch.nn.Linear(24, CLASSES))
    updates = optimizer_of(tasks[0]["params"], net)
    data, taken = Points(EXAMPLES, 1), {}
    for line in lines_of(log):
        taken.setdefault(line["step"], []).append(line["places"])
    squares = 0.0
    for number in range(count):
        gradients = []
        for places in taken[number]:
            net.zero_grad()
            torch.nn.functional.cross_entropy(net(data.inputs[places]), data.classes[places]).backward()
            gradients.append(torch.cat([p.grad.double().reshape(-1) for p in net.parameters()]))
        mean = (gradients[0] + gradients[1]) / 2
        # beta2 is 0.999, eps 1e-8: the moments before this step, without their bias towards 0.
        scale = (squares / (1 - 0.999**number)) ** 0.5 + 1e-8 if number else 1.0
        squares = 0.999 * squares + 0.001 * mean**2
        parts = mean.float().split([p.numel() for p in net.parameters()])
        for p, part in zip(net.parameters(), parts):
            p.grad = part.reshape(p.shape)
        updates.step()
    # McCandlish et al. 2018, appendix A.1: two batches of 6 examples, and one of 12.
    small = float(sum((g / scale).square().sum() for g in gradients)) / 2
    large = float((mean / scale).square().sum())
    sqr = (BATCH * large - BATCH / 2 * small) / (BATCH - BATCH / 2)
    var = (small - large) / (1 / (BATCH / 2) - 1 / BATCH)
    unweighted = float(sum(g.square().sum() for g in gradients)) / 2
    assert small > 10 * unweighted, "weighted or not would be the same here"
    assert statistics(tasks, 0) == pytest.approx((sqr, var), rel=1e-3)

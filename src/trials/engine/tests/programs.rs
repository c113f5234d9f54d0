//! Programs on several slots, and those that are restarted with other ones.

use super::{rigid::finished, *};
use crate::trials::group::FinalState;

const TWO_GPUS: &str = "
space: {x: {float: [0, 1]}}
objective: {minimize: loss}
trial: {command: [train], epochs: 8, gpus: 2}
search: {trials: 5, parallel: 4, algorithm: random}
";

const RESTARTED: &str = "
space: {x: {float: [0, 1]}}
objective: {minimize: loss}
trial: {command: [train], epochs: 100, gpus: 1..4, elastic: restart}
search: {trials: 2, parallel: 2, algorithm: random}
scheduler: {interval: 60s}
";

#[test]
fn a_program_has_its_slots_on_one_machine_and_gives_all_of_them_back() {
    // One slot of the first machine and one of the second are of no use.
    let mut scene = Scene::with_nodes(TWO_GPUS, &[3, 1, 2]);
    for (trial, at) in [(0, [(0, 0), (0, 1)]), (1, [(2, 0), (2, 1)])] {
        scene.suggest();
        assert_eq!(scene.trial(trial).slots(), slots(&at));
    }
    assert_eq!(scene.engine.pending.ask, None, "there is no room for a third one");
    scene.input(finished(0, 1, 0.5));
    scene.suggest();
    assert_eq!(scene.trial(2).slots(), slots(&[(0, 0), (0, 1)]));
}

#[test]
fn a_program_waits_for_a_machine_that_has_enough_and_the_study_says_so() {
    let mut scene = Scene::with_nodes(TWO_GPUS, &[1, 1]);
    assert_eq!(scene.engine.pending.ask, None);
    let shortage = scene.engine.state.shortage(&scene.engine.study);
    let expected = "programs need 2 GPUs of one machine, the most that one has are 1";
    assert_eq!(shortage.as_deref(), Some(expected));
    scene.input(node_joined(2, 2));
    assert_eq!(scene.engine.state.shortage(&scene.engine.study), None);
    scene.suggest();
    assert_eq!(scene.trial(0).slots(), slots(&[(2, 0), (2, 1)]));
}

#[test]
fn a_program_that_loses_its_machine_starts_again_on_another() {
    let mut scene = Scene::with_nodes(TWO_GPUS, &[2]);
    scene.suggest();
    scene.ready(0, 1);
    let (facts, _) = scene.input(Input::NodeLost { node: NodeId(0), reason: "gone".to_owned() });
    assert_eq!(kinds(&facts), ["node_lost", "trial_interrupted"]);
    let (facts, _) = scene.input(node_joined(1, 2));
    assert_eq!(kinds(&facts), ["node_joined", "trial_started"]);
    assert_eq!(scene.trial(0).slots(), slots(&[(1, 0), (1, 1)]));
}

#[test]
fn the_best_value_is_the_result_if_the_study_says_so() {
    for (result, expected) in [("last", 0.5), ("best", 0.2)] {
        let yaml = TWO_GPUS.replace("epochs: 8", &format!("epochs: 8, result: {result}"));
        let mut scene = Scene::with_nodes(&yaml, &[2]);
        scene.suggest();
        for (number, value) in [(1, 0.4), (2, 0.2), (3, f64::NAN), (4, 0.5)] {
            scene.report(0, 1, number, (f64::from(number), value));
        }
        let (facts, _) = scene.input(finished(0, 1, 0.5));
        assert_eq!(facts[0], Fact::TrialDone { trial: TrialId(0), values: vec![expected] });
    }
}

/// What groups are told.
fn to_groups(commands: Vec<Command>) -> Vec<Command> {
    commands.into_iter().filter(|command| matches!(command, Command::Group { .. })).collect()
}

/// The question that is open.
fn question(commands: &[Command]) -> AllocationSnapshot {
    let solve = commands.iter().find_map(|command| match command {
        Command::Allocate(AllocatorRequest::Solve { snapshot, .. }) => Some((**snapshot).clone()),
        _ => None,
    });
    solve.unwrap_or_else(|| panic!("{commands:?}"))
}

/// A study with one program, which runs on one slot of a machine with four.
fn restarted() -> Scene {
    let mut scene = Scene::with_nodes(RESTARTED, &[4]);
    scene.engine.study.search.trials = 1;
    scene.suggest();
    scene.plan(&[(0, &[(0, 1)])]);
    scene.ready(0, 1);
    scene
}

#[test]
fn a_program_is_ended_and_started_again_with_other_slots() {
    let mut scene = restarted();
    assert_eq!(scene.trial(0).slots(), slots(&[(0, 0)]));
    scene.ask_for_plan();
    let (facts, commands) = scene.plan(&[(0, &[(0, 3)])]);
    assert_eq!(kinds(&facts), ["plan_adopted", "trial_pausing"]);
    let stop = Command::Group { trial: TrialId(0), command: GroupCommand::Stop(FinalState::Saved) };
    assert_eq!(to_groups(commands), [stop]);
    let paused = GroupEvent::Paused(Checkpoint { name: String::new(), epochs: 0.0 });
    let (facts, commands) = scene.input(Input::group(TrialId(0), Generation(1), paused));
    assert_eq!(kinds(&facts), ["trial_interrupted", "trial_started"]);
    assert!(
        matches!(&to_groups(commands.clone())[..], [Command::Group { command: GroupCommand::Launch(launch), .. }] if launch.slots.len() == 3),
        "{commands:?}"
    );
    assert_eq!(scene.trial(0).failures, Failures::default(), "nobody is to blame");
    scene.restart();
    assert_eq!(scene.trial(0).slots(), [], "another head begins anew");
}

#[test]
fn what_a_restart_costs_and_how_fast_a_program_is_are_measured() {
    let mut scene = restarted();
    for (number, epochs) in [(1, 1.0), (2, 2.0)] {
        scene.now_s += 10.0;
        scene.report(0, 1, number, (epochs, 1.0));
    }
    let revision = scene.engine.pending.solve.expect("its speed is known now, and it is asked at once");
    let cap = |scene: &Scene| {
        let snapshot = scene.engine.snapshot(scene.now_s);
        let request = &snapshot.problem(&scene.engine.study).expect("a problem").trials[0];
        (request.max_gpus, request.realloc_delay_s)
    };
    assert_eq!(cap(&scene), (2, 5.0), "nobody goes further than twice of what was tried");
    scene.input(Input::PlanSolved { revision, answer: Ok(plan(&[(0, &[(0, 2)])])), places: None });
    scene.now_s += 3.0;
    let paused = GroupEvent::Paused(Checkpoint { name: String::new(), epochs: 0.0 });
    scene.input(Input::group(TrialId(0), Generation(1), paused));
    scene.now_s += 4.0;
    scene.ready(0, 2);
    scene.now_s += 6.0;
    scene.report(0, 2, 1, (3.0, 1.0));
    assert!((cap(&scene).1 - 13.0).abs() < 1e-9, "from its end to the first report");
    scene.now_s += 5.0;
    let (_, commands) = scene.report(0, 2, 2, (4.0, 1.0));
    let pace = question(&commands).trials[0].pace.clone();
    assert_eq!(pace.expect("it is known").cap(), 4);
    // All of it follows from the journal.
    let before = cap(&scene);
    scene.restart();
    assert_eq!(cap(&scene), before);
}

#[test]
fn a_program_that_ends_by_itself_meanwhile_is_done() {
    let mut scene = restarted();
    scene.ask_for_plan();
    scene.plan(&[(0, &[(0, 2)])]);
    let (facts, _) = scene.input(finished(0, 1, 0.25));
    assert_eq!(facts[0], Fact::TrialDone { trial: TrialId(0), values: vec![0.25] });
}

#[test]
fn a_plan_over_two_machines_means_the_larger_part_of_it() {
    let mut scene = Scene::with_nodes(RESTARTED, &[2, 4]);
    scene.engine.study.search.trials = 1;
    scene.suggest();
    scene.plan(&[(0, &[(0, 1), (1, 3)])]);
    assert_eq!(scene.trial(0).slots(), slots(&[(1, 0), (1, 1), (1, 2)]));
}

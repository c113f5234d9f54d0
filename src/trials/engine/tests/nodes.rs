//! Machines that come, leave and are lost.

use super::{elastic::refit, rigid::RIGID, *};
use crate::trials::group::FinalState;

fn draining(node: u32) -> Input {
    Input::NodeDraining { node: NodeId(node), until_s: 120.0, reason: "its time ends".to_owned() }
}

pub(super) fn lost(node: u32) -> Input {
    Input::NodeLost { node: NodeId(node), reason: "no word from it".to_owned() }
}

fn joined_as(node: u32, name: &str, gpu_type: &str, slots: u32) -> Input {
    let (node, name, gpu_type) = (NodeId(node), name.to_owned(), GpuType::new(gpu_type).expect("a name"));
    Input::NodeJoined { node, name, gpu_type, island: 0, slots }
}

fn paused(trial: u32, generation: u32) -> Input {
    let checkpoint = Checkpoint { name: format!("{trial}"), epochs: 1.0 };
    Input::group(TrialId(trial), Generation(generation), GroupEvent::Paused(checkpoint))
}

/// The GPUs of the last question for a plan, by node.
fn asked(commands: &[Command]) -> Vec<(u32, u32)> {
    let snapshot = commands.iter().find_map(|command| match command {
        Command::Allocate(AllocatorRequest::Solve { snapshot, .. }) => Some(snapshot),
        _ => None,
    });
    let snapshot = snapshot.unwrap_or_else(|| panic!("no plan was asked for: {commands:?}"));
    snapshot.cluster.iter().map(|(id, node)| (id.0, node.gpus)).collect()
}

#[test]
fn a_machine_has_a_name_and_a_time_and_is_remembered_when_it_is_lost() {
    let mut scene = Scene::new(ELASTIC);
    scene.now_s = 5.0;
    scene.input(joined_as(3, "gpu3", "a100", 2));
    let state = &scene.engine.state;
    let node = &state.nodes[&NodeId(3)];
    assert_eq!((node.name.as_str(), node.since_s, &node.draining), ("gpu3", 5.0, &None));
    assert_eq!(
        (state.node_label(NodeId(3)), state.node_label(NodeId(4))),
        ("node 3 (gpu3)".into(), "node 4".into())
    );
    scene.now_s = 9.0;
    scene.input(draining(3));
    let known = Draining { since_s: 9.0, until_s: 120.0, reason: "its time ends".to_owned() };
    assert_eq!(scene.engine.state.nodes[&NodeId(3)].draining, Some(known));
    assert_eq!(scene.input(draining(3)).0, [], "it is known");
    scene.input(lost(3));
    let LostNode { name, slots, at_s, reason, .. } = &scene.engine.state.lost[&NodeId(3)];
    assert_eq!((name.as_str(), *slots, *at_s, reason.as_str()), ("gpu3", 2, 9.0, "no word from it"));
    scene.input(joined_as(4, "gpu4", "a100", 2));
    assert!(scene.engine.state.lost.contains_key(&NodeId(3)), "another machine");
    scene.input(joined_as(5, "gpu3", "a100", 2));
    assert!(scene.engine.state.lost.is_empty(), "it is here again, under another number");
    scene.input(lost(5));
    scene.restart();
    assert!(scene.engine.state.lost.is_empty(), "a new head begins afresh");
}

#[test]
fn a_deadline_is_a_time() {
    for (until_s, wanted_s) in [(f64::NAN, 7.0), (f64::INFINITY, LATEST_S), (-1.0, 7.0), (50.0, 50.0)] {
        let mut scene = Scene::with_nodes(ELASTIC, &[1]);
        scene.now_s = 7.0;
        let (facts, _) = scene.input(Input::NodeDraining { node: NodeId(0), until_s, reason: String::new() });
        let reason = String::new();
        assert_eq!(facts, [Fact::NodeDraining { node: NodeId(0), until_s: wanted_s, reason }]);
    }
}

#[test]
fn elastic_trials_hand_their_state_over_before_a_machine_leaves() {
    let mut scene = Scene::with_nodes(ELASTIC, &[2, 2, 2]);
    for trial in 0..2 {
        scene.suggest();
        scene.fit(trial, None);
    }
    scene.plan(&[(0, &[(0, 2)]), (1, &[(1, 2)])]);
    scene.ready(0, 1);
    scene.ready(1, 1);
    let (facts, commands) = scene.input(draining(0));
    assert_eq!(kinds(&facts), ["node_draining"], "it goes on until it knows where to go");
    assert_eq!(asked(&commands), [(1, 2), (2, 2)]);
    let (facts, commands) = scene.plan(&[(0, &[(2, 2)]), (1, &[(1, 2)])]);
    assert_eq!(kinds(&facts), ["plan_adopted", "trial_started"]);
    assert!(matches!(&commands[0], Command::Group { command: GroupCommand::Reshape { slots: to, .. }, .. }
        if *to == slots(&[(2, 0), (2, 1)])));
    assert_eq!(scene.trial(0).phase.holders(), slots(&[(0, 0), (0, 1)]), "old workers hand it over");
    scene.ready(0, 2);
    assert_eq!(kinds(&scene.input(lost(0)).0), ["node_lost"], "nothing is there any more");
    assert_eq!(scene.trial(0).failures, Failures::default());
}

#[test]
fn without_room_a_trial_is_saved_and_waits() {
    // Another machine is here, but the other trial has all of it.
    let mut scene = Scene::two_running(1);
    scene.input(draining(0));
    let (facts, _) = scene.plan(&[(0, &[]), (1, &[(1, 1)])]);
    assert_eq!(kinds(&facts), ["plan_adopted", "trial_pausing"]);
    scene.input(paused(0, 1));
    assert_eq!((scene.trial(0).phase.name(), scene.trial(0).failures.count), ("waiting", 0));

    // There is no other machine: that needs no plan.
    let mut scene = Scene::two_running(1);
    scene.input(draining(0));
    let (facts, commands) = scene.input(draining(1));
    assert_eq!(kinds(&facts), ["node_draining", "trial_pausing", "trial_pausing"]);
    let save = GroupCommand::Stop(FinalState::Saved);
    let saves = |command: &Command| matches!(command, Command::Group { command, .. } if *command == save);
    assert_eq!(commands.iter().filter(|command| saves(command)).count(), 2, "{commands:?}");
    scene.input(paused(0, 1));
    scene.input(paused(1, 1));
    assert_eq!(scene.engine.state.shortage_of(1).as_deref(), Some("all machines are about to leave"));
    scene.input(lost(0));
    scene.input(lost(1));
    assert_eq!(scene.engine.state.shortage_of(1).as_deref(), Some("all machines are gone"));
    // The next one brings them back, from what they have saved.
    let (_, commands) = scene.input(node_joined(7, 2));
    assert_eq!(asked(&commands), [(7, 2)]);
    let (facts, commands) = scene.plan(&[(0, &[(7, 1)]), (1, &[(7, 1)])]);
    assert_eq!(kinds(&facts), ["plan_adopted", "trial_started", "trial_started"]);
    let resumed = |command: &Command| {
        matches!(
            command,
            Command::Group { command: GroupCommand::Launch(Launch { checkpoint: Some(_), .. }), .. }
        )
    };
    assert_eq!(commands.iter().filter(|command| resumed(command)).count(), 2, "{commands:?}");
}

/// The plan was solved while the machine was not known to leave: trials would be sent away before they know where to.
#[test]
fn a_plan_that_counts_on_a_machine_that_leaves_is_not_followed() {
    let mut scene = Scene::two_running(2);
    scene.ask_for_plan();
    let before = scene.engine.pending.solve.expect("it has asked");
    let (_, commands) = scene.input(draining(0));
    assert_eq!(asked(&commands), [(1, 2)], "it asks again at once");
    let late = plan(&[(0, &[(0, 2)]), (1, &[(1, 2)])]);
    assert_eq!(
        scene.input(Input::PlanSolved { revision: before, answer: Ok(late), places: None }),
        (vec![], vec![])
    );
    assert_eq!(scene.trial(0).phase.name(), "running");
}

/// A trial was to get slots that another one had not given up yet when their machine began to leave.
#[test]
fn a_trial_does_not_move_to_a_machine_that_leaves() {
    let mut scene = Scene::two_running(2);
    scene.ask_for_plan();
    let (facts, _) = scene.plan(&[(0, &[(0, 1)]), (1, &[(1, 2), (0, 1)])]);
    assert_eq!(kinds(&facts), ["plan_adopted", "trial_started"], "the other one waits for a slot of node 0");
    scene.input(draining(0));
    let (facts, _) = scene.ready(0, 2);
    assert_eq!(kinds(&facts), ["group_formed"], "the slot is free, and nobody takes it");
    assert_eq!(scene.trial(1).phase.name(), "running");
    let (facts, _) = scene.plan(&[(0, &[(1, 1)]), (1, &[(1, 1)])]);
    assert_eq!(kinds(&facts), ["plan_adopted", "trial_started"]);
    scene.ready(1, 2);
    assert_eq!(scene.trial(0).slots(), slots(&[(1, 1)]), "the trial that has to leave");
}

/// The state of a moving trial is lost: it does not begin again on a machine that leaves.
#[test]
fn a_trial_from_disk_begins_where_it_can_stay() {
    let mut scene = Scene::two_running(1);
    scene.input(node_joined(2, 1));
    let revision = scene.engine.pending.solve.expect("it has asked");
    let answer = Ok(plan(&[(0, &[(2, 1)]), (1, &[(1, 1)])]));
    scene.input(Input::PlanSolved { revision, answer, places: None });
    assert_eq!(scene.trial(0).slots(), slots(&[(2, 0)]));
    scene.input(draining(2));
    let (facts, _) = scene.input(lost(0));
    assert_eq!(kinds(&facts), ["node_lost", "trial_interrupted"]);
    assert_eq!(scene.trial(0).failures.count, 0);
}

/// Where the scheduler thinks only now and then, a machine that leaves does not wait for it.
#[test]
fn a_machine_that_leaves_does_not_wait_for_the_next_interval() {
    let yaml = ELASTIC.replace("interval: 60s", "interval: 60s, immediate: false");
    let mut scene = Scene::with_nodes(&yaml, &[1, 1]);
    scene.suggest();
    scene.fit(0, None);
    scene.suggest();
    scene.fit(1, None);
    scene.ask_for_plan();
    scene.plan(&[(0, &[(0, 1)])]);
    scene.ready(0, 1);
    assert_eq!(scene.input(node_joined(2, 1)).1, [], "that can wait");
    assert_eq!(asked(&scene.input(draining(0)).1), [(1, 1), (2, 1)]);
}

#[test]
fn programs_stay_until_their_machine_is_gone_and_start_elsewhere_at_once() {
    let mut scene = Scene::with_nodes(RIGID, &[1, 1]);
    scene.suggest();
    scene.suggest();
    scene.ready(0, 1);
    scene.ready(1, 1);
    assert_eq!(kinds(&scene.input(draining(0)).0), ["node_draining"]);
    assert_eq!(scene.trial(0).phase.name(), "running");
    // The other machine is free again: a further trial may use it meanwhile.
    let done = Input::group(TrialId(1), Generation(1), GroupEvent::Finished(loss(0.5)));
    let (_, commands) = scene.input(done);
    assert!(matches!(commands[..], [Command::Suggest(_), ..]), "{commands:?}");
    let done = Input::group(TrialId(2), Generation(1), GroupEvent::Finished(loss(0.5)));
    scene.suggest();
    assert_eq!(scene.trial(2).slots(), slots(&[(1, 0)]));
    scene.input(done);
    let (facts, commands) = scene.input(lost(0));
    assert_eq!(kinds(&facts), ["node_lost", "trial_interrupted", "trial_started"]);
    assert!(matches!(commands[0], Command::Group { command: GroupCommand::Stop(FinalState::Discarded), .. }));
    assert_eq!(scene.trial(0).slots(), slots(&[(1, 0)]));
    assert_eq!(scene.trial(0).failures.count, 0);
}

#[test]
fn what_fails_on_a_machine_that_leaves_is_tried_elsewhere_and_not_held_against_it() {
    for cause in [FailureCause::Infrastructure, FailureCause::Trial] {
        let mut scene = Scene::with_nodes(RIGID, &[1]);
        scene.suggest();
        scene.ready(0, 1);
        scene.input(draining(0));
        let (facts, _) = scene.fail(0, 1, cause);
        assert_eq!(kinds(&facts), ["trial_interrupted"], "{cause:?}");
        assert_eq!(scene.trial(0).failures.count, 0, "{cause:?}");
        let (facts, _) = scene.input(node_joined(1, 1));
        assert_eq!(kinds(&facts), ["node_joined", "trial_started"], "{cause:?}");
        // There it is its own fault.
        let (facts, _) = scene.fail(0, 2, cause);
        let ends = if cause == FailureCause::Trial { "trial_failed" } else { "trial_interrupted" };
        assert_eq!(kinds(&facts), [ends]);
    }
    // A training whose program is wrong fails wherever it is.
    let mut scene = Scene::two_running(1);
    scene.input(draining(0));
    assert_eq!(kinds(&scene.fail(0, 1, FailureCause::Trial).0), ["trial_failed"]);
    // Workers that are lost there are no failures of the trial.
    scene.input(draining(1));
    scene.lose(1, 0);
    assert_eq!(scene.trial(1).failures.count, 0);
}

#[test]
fn no_number_of_lost_machines_is_held_against_a_trial() {
    let mut scene = Scene::with_nodes(RIGID, &[1]);
    scene.suggest();
    for round in 0..20 {
        let (facts, _) = scene.input(lost(round));
        assert_eq!(kinds(&facts), ["node_lost", "trial_interrupted"], "round {round}");
        let (facts, _) = scene.input(node_joined(round + 1, 1));
        assert_eq!(kinds(&facts), ["node_joined", "trial_started"], "round {round}: at once");
    }
    assert_eq!(scene.trial(0).failures.count, 0);
}

#[test]
fn machines_may_come_and_go_in_any_order() {
    let mut scene = Scene::two_running(1);
    assert_eq!(scene.input(lost(9)).0, [], "it was never here");
    assert_eq!(scene.input(draining(9)).0, []);
    scene.input(draining(0));
    // It comes again before its loss was noticed, and stays.
    let (facts, _) = scene.input(node_joined(0, 2));
    assert_eq!(kinds(&facts), ["node_lost", "node_joined", "trial_interrupted"]);
    assert!(scene.engine.state.nodes[&NodeId(0)].is_open());
    assert_eq!(scene.trial(0).failures.count, 0);
    assert_eq!(kinds(&scene.input(lost(0)).0), ["node_lost"]);
    assert_eq!(scene.input(lost(0)).0, [], "it is known");
    // One that never came so far as to have workers is gone, too.
    let blocked = Input::NodeBlocked { node: NodeId(5), reason: "no more processes".to_owned() };
    scene.input(blocked);
    assert_eq!(kinds(&scene.input(lost(5)).0), ["node_lost"]);
    assert!(scene.engine.state.blocked.is_empty());
    scene.restart();
}

/// A machine is lost and here again in one moment: what ran there ends before another trial gets its slot.
#[test]
fn a_program_that_was_lost_ends_before_the_next_one_gets_its_slot() {
    let mut scene = Scene::with_nodes(RIGID, &[1, 1]);
    scene.suggest();
    scene.suggest();
    scene.input(lost(0));
    assert_eq!(scene.trial(0).phase.name(), "waiting");
    let (facts, commands) = scene.input(node_joined(1, 1));
    assert_eq!(kinds(&facts), ["node_lost", "node_joined", "trial_interrupted", "trial_started"]);
    let of = |command: &Command| match command {
        Command::Group { trial, command: GroupCommand::Stop(_) } => Some(("stop", trial.0)),
        Command::Group { trial, command: GroupCommand::Launch(_) } => Some(("launch", trial.0)),
        _ => None,
    };
    assert_eq!(commands.iter().filter_map(of).collect::<Vec<_>>(), [("stop", 1), ("launch", 0)]);
}

#[test]
fn a_study_without_room_says_why_it_waits() {
    let mut scene = Scene::new(ELASTIC);
    let why = |scene: &Scene, gpus| scene.engine.state.shortage_of(gpus);
    assert_eq!(why(&scene, 1).as_deref(), Some("no machine has joined yet"));
    scene.input(joined_as(0, "", "t4", 2));
    assert_eq!(why(&scene, 2), None);
    scene.input(joined_as(1, "", "a100", 3));
    let few = "trials need 4 GPUs of one type, the most that are together are 3";
    assert_eq!(why(&scene, 4).as_deref(), Some(few), "two types do not add up");
    scene.input(joined_as(2, "", "t4", 2));
    assert_eq!(why(&scene, 4), None, "two machines of a type do");
    scene.input(lost(1));
    for (node, index) in [(0, 0), (0, 1), (2, 0), (2, 1)] {
        scene.lose(node, index);
    }
    assert_eq!(why(&scene, 1).as_deref(), Some("no machine has a worker"));
    assert_eq!(scene.engine.state.shortage(&scene.engine.study), why(&scene, 1));
    assert_eq!(
        scene.engine.state.shortage(&study("{space: {}, objective: {minimize: x}}")),
        None,
        "it needs none"
    );
    scene.input(Input::StopRequested);
    assert_eq!(why(&scene, 1), None, "nothing is to be started any more");
}

/// A study that has too few GPUs for a trial waits, and goes on when there are enough.
#[test]
fn a_study_waits_for_enough_gpus() {
    let yaml = ELASTIC.replace("epochs: 8", "epochs: 8, min_gpus: 2");
    let mut scene = Scene::with_nodes(&yaml, &[1]);
    assert_eq!(scene.engine.pending.ask, None, "no trial can run");
    let (_, commands) = scene.input(node_joined(1, 1));
    assert!(matches!(commands[..], [Command::Suggest(_)]), "{commands:?}");
}

/// Workers that are left over are too few to go on. What they have learned is not lost.
#[test]
fn too_few_survivors_write_the_state_of_their_trial() {
    let yaml = ELASTIC.replace("epochs: 8", "epochs: 8, min_gpus: 2");
    let mut scene = Scene::with_nodes(&yaml, &[2]);
    scene.suggest();
    scene.fit(0, None);
    scene.plan(&[(0, &[(0, 2)])]);
    scene.ready(0, 1);
    let (facts, commands) = scene.lose(0, 1);
    assert_eq!(kinds(&facts), ["slot_lost", "trial_pausing"]);
    let save = GroupCommand::Stop(FinalState::Saved);
    assert!(commands.contains(&Command::Group { trial: TrialId(0), command: save }), "{commands:?}");
    assert_eq!(scene.trial(0).phase.slots(), slots(&[(0, 0)]));
    assert_eq!(scene.engine.check(), Ok(()));
    let (facts, _) = scene.input(paused(0, 1));
    assert_eq!(kinds(&facts)[0], "trial_paused");
    assert!(scene.trial(0).checkpoint.is_some());
    // If nobody is left, there is nothing to be written.
    let mut scene = Scene::with_nodes(&yaml, &[2]);
    scene.suggest();
    scene.fit(0, None);
    scene.plan(&[(0, &[(0, 2)])]);
    scene.ready(0, 1);
    scene.lose(0, 0);
    let (facts, _) = scene.lose(0, 1);
    assert_eq!(kinds(&facts)[..2], ["slot_lost", "trial_interrupted"]);
}

/// All that is known of a trial is how fast it was on machines that are gone.
#[test]
fn a_trial_goes_on_on_a_type_of_gpu_that_it_has_never_seen() {
    let mut scene = Scene::with_nodes(ELASTIC, &[1]);
    scene.suggest();
    scene.fit(0, Some(refit(100.0, 1)));
    scene.plan(&[(0, &[(0, 1)])]);
    scene.ready(0, 1);
    scene.input(draining(0));
    scene.input(paused(0, 1));
    scene.input(lost(0));
    let (_, commands) = scene.input(joined_as(1, "", "h100", 1));
    let fit = |command: &Command| matches!(command, Command::Allocate(AllocatorRequest::Fit { .. }));
    assert!(commands.iter().any(fit), "{commands:?}");
    // Nothing more can be found out: it is placed all the same.
    scene.fit(0, Some(refit(100.0, 1)));
    let question = scene.engine.snapshot(scene.now_s);
    let problem = question.problem(&scene.engine.study).expect("it can be asked");
    assert!(problem.trials[0].table.iter().next().is_some(), "a place for it: {problem:?}");
}

#[test]
fn a_machine_is_let_go_when_nothing_runs_there_or_its_time_is_over() {
    let released = |commands: &[Command]| -> Vec<u32> {
        let node = |command: &Command| match command {
            Command::ReleaseNode { node } => Some(node.0),
            _ => None,
        };
        commands.iter().filter_map(node).collect()
    };
    let mut scene = Scene::two_running(1);
    scene.input(node_joined(2, 1));
    assert_eq!(released(&scene.input(draining(0)).1), [0_u32; 0], "a trial is there");
    scene.plan(&[(0, &[(2, 1)]), (1, &[(1, 1)])]);
    assert_eq!(released(&scene.ready(0, 2).1), [0], "it has moved");
    assert_eq!(released(&scene.pass(1.0).1), [0_u32; 0], "it is told once");
    scene.input(lost(0));
    scene.input(node_joined(0, 1));
    assert_eq!(released(&scene.input(draining(0)).1), [0], "nothing runs there");

    let mut scene = Scene::with_nodes(RIGID, &[1]);
    scene.suggest();
    scene.ready(0, 1);
    let (_, commands) =
        scene.input(Input::NodeDraining { node: NodeId(0), until_s: 50.0, reason: String::new() });
    assert_eq!(commands, [Command::WakeAt { at_s: 50.0 }]);
    assert_eq!(released(&scene.pass(49.0).1), [0_u32; 0]);
    assert_eq!(released(&scene.pass(1.0).1), [0], "its time is over");
    scene.restart();
    scene.input(node_joined(0, 1));
    let for_ever = Input::NodeDraining { node: NodeId(0), until_s: f64::INFINITY, reason: String::new() };
    scene.input(for_ever);
    assert_eq!(released(&scene.pass(40.0).1), [0_u32; 0], "it may take as long as it takes");
    assert_eq!(scene.engine.state.nodes[&NodeId(0)].draining.as_ref().and_then(Draining::deadline_s), None);
}

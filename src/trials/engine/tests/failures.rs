//! Workers that die, and messages of the dead.

use super::*;
use crate::{
    goodput::{Observation, Shape},
    trials::group::FinalState,
};

fn checkpointed(trial: u32, generation: u32, epochs: f64) -> Input {
    let checkpoint = Checkpoint { name: format!("{trial}/{epochs}"), epochs };
    Input::group(TrialId(trial), Generation(generation), GroupEvent::Checkpointed(checkpoint))
}

fn failed(trial: u32, generation: u32) -> Input {
    let reason = "bad luck".to_owned();
    Input::group(
        TrialId(trial),
        Generation(generation),
        GroupEvent::Failed { reason, cause: FailureCause::Infrastructure },
    )
}

#[test]
fn survivors_go_on() {
    let mut scene = Scene::two_running(2);
    let (facts, commands) = scene.lose(0, 1);
    assert_eq!(kinds(&facts), ["slot_lost", "trial_started"]);
    let [
        Command::Group {
            command: GroupCommand::Reshape { generation: Generation(2), slots: to, .. }, ..
        },
        Command::Allocate(AllocatorRequest::Solve { .. }),
    ] = &commands[..]
    else {
        panic!("{commands:?}")
    };
    assert_eq!((to, scene.trial(0).phase.holders()), (&slots(&[(0, 0)]), &slots(&[(0, 0)])[..]));
    assert_eq!(scene.lose(0, 1), (vec![], vec![]), "it is known");
}

#[test]
fn what_an_older_generation_says_does_not_count() {
    let mut scene = Scene::two_running(2);
    scene.lose(0, 1);
    let trial = TrialId(0);
    let late = [
        Input::group(trial, Generation(1), GroupEvent::Finished(loss(0.0))),
        Input::group(trial, Generation(1), GroupEvent::Formed),
        checkpointed(0, 1, 7.0),
        failed(0, 1),
    ];
    for input in late {
        assert_eq!(scene.input(input.clone()), (vec![], vec![]), "{input:?}");
    }
    scene.ready(0, 2);
    assert_eq!(scene.report(0, 1, 9, (1.0, 0.0)), (vec![], vec![]), "its successor trains already");
    // A rescale is no completion: the trial is done when its new generation reports it.
    let done = Input::group(trial, Generation(2), GroupEvent::Finished(loss(0.0)));
    assert_eq!(scene.input(done.clone()).0, [Fact::TrialDone { trial, values: vec![0.0] }]);
    assert_eq!(scene.input(done), (vec![], vec![]), "once");
}

/// A worker that panics says why and is gone: the node tells of its loss at once, the reason comes through the trial's group.
#[test]
fn a_trials_own_failure_counts_even_if_the_loss_of_its_worker_was_heard_first() {
    for lost in [&[0][..], &[0, 1]] {
        let mut scene = Scene::two_running(2);
        for index in lost {
            scene.lose(0, *index);
        }
        let (trial, reason) = (TrialId(0), "out of bounds".to_owned());
        let failed = GroupEvent::Failed { reason: reason.clone(), cause: FailureCause::Trial };
        let (facts, commands) = scene.input(Input::group(trial, Generation(1), failed.clone()));
        assert_eq!(facts, [Fact::TrialFailed { trial, reason }], "{lost:?}");
        let stops = |command: &Command| {
            matches!(command, Command::Group { command: GroupCommand::Stop(FinalState::Discarded), .. })
        };
        // What goes on in the next generation, if there is one, is of no use.
        assert_eq!(commands.iter().any(stops), lost.len() == 1, "{commands:?}");
        assert_eq!(scene.input(Input::group(trial, Generation(1), failed)), (vec![], vec![]), "once");
    }
}

#[test]
fn reports_that_come_again_are_old() {
    let mut scene = Scene::two_running(2);
    assert_eq!(kinds(&scene.report(0, 1, 1, (0.5, 0.5)).0), ["measured"]);
    assert_eq!(scene.report(0, 1, 1, (0.5, 0.5)).0, []);
    assert_eq!(kinds(&scene.report(0, 1, 2, (0.6, 0.5)).0), ["measured"]);
    assert_eq!(scene.report(0, 1, 1, (0.5, 0.5)).0, []);
    assert_eq!(scene.report(0, 1, 3, (f64::NAN, 0.5)).0, [], "from nowhere");
}

/// A worker may report anything; what is journaled must be readable.
#[test]
fn step_times_that_are_no_numbers_are_left_out() {
    let mut scene = Scene::two_running(2);
    let fine = Observation {
        shape: Shape::new(2, 1).expect("a shape"),
        per_gpu: 32.0,
        accumulation: 0,
        iter_time_s: 0.1,
        steps: 9.0,
    };
    let wrong = [
        Observation { steps: f64::INFINITY, ..fine },
        Observation { iter_time_s: f64::NAN, ..fine },
        Observation { per_gpu: -1.0, ..fine },
    ];
    let steps = [fine].into_iter().chain(wrong).collect();
    let report = Report { number: 1, epochs: 0.5, metrics: loss(0.5), steps, ..Report::default() };
    let (facts, _) = scene.input(Input::group(TrialId(0), Generation(1), GroupEvent::Reported(report)));
    assert!(matches!(&facts[0], Fact::Measured { steps, .. } if *steps == [fine]), "{facts:?}");
}

#[test]
fn a_checkpoint_that_failed_is_written_down_and_costs_nothing() {
    let mut scene = Scene::two_running(2);
    let failed = |trial, generation| {
        let event = GroupEvent::CheckpointFailed("no space".to_owned());
        Input::group(TrialId(trial), Generation(generation), event)
    };
    let before = scene.trial(0).clone();
    let (facts, commands) = scene.input(failed(0, 1));
    assert_eq!(facts, [Fact::CheckpointFailed { trial: TrialId(0), reason: "no space".to_owned() }]);
    assert_eq!(commands, []);
    assert_eq!(scene.trial(0).failures, before.failures);
    assert_eq!(scene.trial(0).phase, before.phase);
    assert_eq!(scene.input(failed(0, 9)).0.len(), 1, "whatever the generation");
    assert_eq!(scene.input(failed(7, 1)).0, [], "no such trial");
}

#[test]
fn a_trial_that_lost_everything_goes_back_to_its_checkpoint() {
    let mut scene = Scene::two_running(2);
    scene.input(checkpointed(0, 1, 1.5));
    let (facts, commands) =
        scene.input(Input::NodeLost { node: NodeId(0), reason: "the node is gone".to_owned() });
    let interrupted = Fact::TrialInterrupted {
        trial: TrialId(0),
        reason: "the node is gone".to_owned(),
        severity: Severity::Normal,
    };
    assert_eq!((facts.len(), &facts[1]), (2, &interrupted));
    assert!(matches!(
        commands[..],
        [
            Command::Group { command: GroupCommand::Stop(FinalState::Discarded), .. },
            Command::Allocate(AllocatorRequest::Solve { .. }),
        ]
    ));
    assert_eq!(
        (scene.trial(0).failures.count, scene.trial(0).failures.retries),
        (0, 0),
        "it is not to blame"
    );
    let (_, commands) = scene.plan(&[(0, &[(1, 1)]), (1, &[(1, 1)])]);
    assert!(
        matches!(commands[0], Command::Group { trial: TrialId(1), command: GroupCommand::Reshape { .. } }),
        "{commands:?}"
    );
    let (_, commands) = scene.ready(1, 2);
    let [
        Command::Group {
            command: GroupCommand::Launch(Launch { generation: Generation(2), checkpoint: Some(from), .. }),
            ..
        },
    ] = &commands[..]
    else {
        panic!("{commands:?}")
    };
    assert_eq!(from.name, "0/1.5");
}

/// While a group forms again, its state is with the old members. If they are gone, it begins from disk.
#[test]
fn a_joiner_that_dies_costs_nothing_and_a_holder_costs_a_checkpoint() {
    let moving = || {
        let mut scene = Scene::with_nodes(ELASTIC, &[1, 2]);
        scene.suggest();
        scene.fit(0, None);
        scene.suggest();
        scene.fit(1, None);
        scene.plan(&[(0, &[(0, 1)])]);
        scene.ready(0, 1);
        scene.ask_for_plan();
        let (_, commands) = scene.plan(&[(0, &[(1, 2)])]);
        assert!(
            matches!(
                commands[0],
                Command::Group { command: GroupCommand::Reshape { generation: Generation(2), .. }, .. }
            ),
            "{commands:?}"
        );
        scene
    };
    let mut scene = moving();
    let (_, commands) = scene.lose(1, 0);
    let [
        Command::Group {
            command: GroupCommand::Reshape { generation: Generation(3), slots: to, .. }, ..
        },
        ..,
    ] = &commands[..]
    else {
        panic!("{commands:?}")
    };
    assert_eq!((to, scene.trial(0).phase.holders()), (&slots(&[(1, 1)]), &slots(&[(0, 0)])[..]));
    // The other one, too: back to where it was.
    let (_, commands) = scene.lose(1, 1);
    let [
        Command::Group {
            command: GroupCommand::Reshape { generation: Generation(4), slots: to, .. }, ..
        },
        ..,
    ] = &commands[..]
    else {
        panic!("{commands:?}")
    };
    assert_eq!((to, scene.trial(0).phase.holders()), (&slots(&[(0, 0)]), &slots(&[(0, 0)])[..]));
    let (_, commands) = moving().lose(0, 0);
    let [
        Command::Group {
            command: GroupCommand::Launch(Launch { generation: Generation(3), slots: to, .. }),
            ..
        },
        ..,
    ] = &commands[..]
    else {
        panic!("{commands:?}")
    };
    assert_eq!(to, &slots(&[(1, 0), (1, 1)]));
}

/// Who is about to leave writes the state all the same; only if nobody is left, there is nothing to wait for.
#[test]
fn a_loss_on_the_way_out_changes_nothing_for_the_others() {
    let mut scene = Scene::two_running(2);
    scene.input(Input::StopRequested);
    assert_eq!(kinds(&scene.lose(0, 0).0), ["slot_lost"]);
    let checkpoint = Checkpoint { name: "0/1".to_owned(), epochs: 2.5 };
    let paused = Input::group(TrialId(0), Generation(1), GroupEvent::Paused(checkpoint));
    assert_eq!(kinds(&scene.input(paused).0), ["trial_paused"]);
    scene.lose(1, 0);
    let (facts, commands) = scene.lose(1, 1);
    assert_eq!(kinds(&facts), ["slot_lost", "trial_interrupted"]);
    assert_eq!(commands[1..], [Command::Finished(Outcome::Stopped)]);
}

#[test]
fn a_trial_that_fails_while_nobody_makes_progress_is_given_up() {
    let mut scene = Scene::two_running(1);
    for (generation, pause_s) in (1..=3).zip([1.0, 2.0, 4.0]) {
        let (facts, commands) = scene.input(failed(0, generation));
        assert_eq!(kinds(&facts), ["trial_interrupted"]);
        assert!(commands.contains(&Command::WakeAt { at_s: scene.now_s + pause_s }), "{commands:?}");
        assert_eq!(scene.pass(0.75 * pause_s), (vec![], vec![]), "not yet");
        let (facts, commands) = scene.pass(0.25 * pause_s);
        assert_eq!(kinds(&facts), ["trial_started"], "on the same slots");
        assert!(
            matches!(commands[0], Command::Group { command: GroupCommand::Launch(Launch { .. }), .. }),
            "{commands:?}"
        );
    }
    let (facts, _) = scene.input(failed(0, 4));
    let reason = "4 failures without progress of any trial, the last one: bad luck".to_owned();
    assert_eq!(facts[1..], [Fact::TrialFailed { trial: TrialId(0), reason }]);
}

/// Killed again and again, which is nobody's fault as long as others are not.
#[test]
fn no_number_of_failures_ends_a_trial_while_others_make_progress() {
    let mut scene = Scene::two_running(1);
    for generation in 1..=40 {
        let epochs = 0.1 * f64::from(generation);
        scene.input(checkpointed(1, 1, epochs));
        assert_eq!(kinds(&scene.input(failed(0, generation)).0), ["trial_interrupted"]);
        assert_eq!(kinds(&scene.pass(60.0).0), ["trial_started"], "a minute is the longest pause");
    }
    // When the other one stands still, its failures count.
    for generation in 41..=42 {
        scene.input(failed(0, generation));
        scene.pass(60.0);
    }
    assert!(!scene.engine.state.ended.contains_key(&TrialId(0)));
    scene.input(failed(0, 43));
    assert!(scene.engine.state.ended.contains_key(&TrialId(0)), "so the study ends");
}

/// Who kills four workers at once has not shown that the trial is to blame.
#[test]
fn workers_that_die_together_are_one_failure() {
    let mut scene = Scene::two_running(6);
    for index in 0..5 {
        assert_eq!(kinds(&scene.lose(0, index).0), ["slot_lost", "trial_started"], "survivors go on");
    }
    assert_eq!(scene.trial(0).failures.count, 1);
    assert_eq!(kinds(&scene.lose(0, 5).0), ["slot_lost", "trial_interrupted"]);
    assert!(scene.engine.state.active.contains_key(&TrialId(0)));
}

#[test]
fn progress_is_a_fresh_start() {
    let mut scene = Scene::two_running(1);
    for generation in 1..=9 {
        scene.report(0, generation, 1, (0.1 * f64::from(generation), 0.5));
        assert_eq!(kinds(&scene.input(failed(0, generation)).0), ["trial_interrupted"]);
        assert_eq!(kinds(&scene.pass(1.0).0), ["trial_started"], "the shortest pause");
    }
    // The same progress again is none.
    for generation in 10..=12 {
        scene.report(0, generation, 1, (0.5, 0.5));
        scene.input(failed(0, generation));
        scene.pass(8.0);
    }
    assert!(scene.engine.state.ended.contains_key(&TrialId(0)));
}

#[test]
fn a_failure_that_nothing_can_mend_is_the_end() {
    let mut scene = Scene::two_running(1);
    let reason = "exit code 1".to_owned();
    let fatal = Input::group(
        TrialId(0),
        Generation(1),
        GroupEvent::Failed { reason: reason.clone(), cause: FailureCause::Trial },
    );
    assert_eq!(scene.input(fatal).0, [Fact::TrialFailed { trial: TrialId(0), reason }]);
}

#[test]
fn a_node_that_joins_twice_was_lost() {
    let mut scene = Scene::two_running(2);
    let (facts, _) = scene.input(node_joined(0, 2));
    assert_eq!(kinds(&facts), ["node_lost", "node_joined", "trial_interrupted"]);
}

#[test]
fn facts_that_do_not_follow_are_refused() {
    let mut scene = Scene::two_running(2);
    let now_s = scene.engine.state.at_s;
    let mut refused = |at_s: f64, fact: Fact, message: &str| {
        let before = scene.engine.state.clone();
        let error =
            scene.engine.apply(&JournalEntry { at_s, fact }).expect_err("it does not follow").to_string();
        assert!(error.contains(message), "{error}");
        assert_eq!(scene.engine.state, before);
    };
    let done = |trial| Fact::TrialDone { trial: TrialId(trial), values: vec![1.0] };
    refused(now_s - 1.0, done(0), "its time is -1; expected 0 to 1e12");
    refused(1e72, done(0), "expected 0 to 1e12");
    refused(now_s, done(7), "`trial_done` is about trial 7, which is not active");
    let started = |generation| Fact::TrialStarted {
        trial: TrialId(0),
        generation: Generation(generation),
        slots: slots(&[(0, 0)]),
        batch: None,
        holders: vec![],
    };
    refused(now_s, started(1), "generation 1 after 1");
    refused(now_s, started(3), "generation 3 after 1");
    let created = |trial| Fact::TrialCreated {
        trial: TrialId(trial),
        params: crate::space::Params::default(),
        point: vec![],
    };
    refused(now_s, created(1), "trial 1 was created, the next one is 2");
}

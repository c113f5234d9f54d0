//! What all trials share is broken: nobody is to blame, and the study waits.

use super::{
    rigid::{RIGID, finished},
    *,
};

const BROKEN: FailureCause = FailureCause::Environment;

/// Two programs that run, of three.
fn programs() -> Scene {
    let mut scene = Scene::with_nodes(RIGID, &[2]);
    (scene.engine.study.trial.timeout, scene.engine.study.search.timeout) = (None, None);
    for trial in 0..2 {
        scene.suggest();
        scene.ready(trial, 1);
    }
    scene
}

#[test]
fn a_broken_environment_holds_all_launches_and_blames_nobody() {
    let mut scene = programs();
    let (facts, commands) = scene.fail(0, 1, BROKEN);
    assert_eq!(kinds(&facts), ["trial_interrupted", "study_waiting"]);
    assert_eq!(commands, [Command::WakeAt { at_s: 1.0 }], "no launch, and no new trial");
    assert_eq!(kinds(&scene.fail(1, 1, BROKEN).0), ["trial_interrupted"], "that is known");
    let wait = scene.engine.state.waiting.clone().expect("it waits");
    assert_eq!((wait.reason.as_str(), wait.since_s, wait.tries), ("bad luck", 0.0, 1));
    assert_eq!(scene.pass(0.5), (vec![], vec![]));
    let (facts, _) = scene.pass(0.5);
    assert_eq!(kinds(&facts), ["trial_started"], "one of the two finds out");
    assert_eq!(scene.engine.state.waiting.as_ref().and_then(|wait| wait.probe), Some(TrialId(0)));
    assert_eq!(scene.pass(100.0), (vec![], vec![]), "however long that takes");
    // It is still broken, for a long time.
    let mut pauses = Vec::new();
    for generation in 2..=40 {
        let began_s = scene.now_s;
        let (facts, commands) = scene.fail(0, generation, BROKEN);
        assert_eq!(kinds(&facts), ["trial_interrupted", "study_waiting"]);
        let [Command::WakeAt { at_s }] = commands[..] else { panic!("{commands:?}") };
        pauses.push(at_s - began_s);
        scene.now_s = at_s;
        assert_eq!(kinds(&scene.input(Input::Tick).0), ["trial_started"]);
    }
    assert_eq!((&pauses[..5], pauses[38]), (&[2.0, 4.0, 8.0, 16.0, 30.0][..], 30.0));
    assert_eq!(scene.trial(0).failures, Failures::default(), "no trial is to blame");
    // Then it is mended, which a program shows that runs.
    let (facts, commands) = scene.ready(0, 41);
    assert_eq!(kinds(&facts), ["group_formed", "study_resumed", "trial_started"]);
    assert_eq!(scene.engine.state.waiting, None);
    assert!(commands.iter().any(|command| matches!(command, Command::Group { trial: TrialId(1), .. })));
    for trial in 0..2 {
        scene.input(finished(trial, scene.trial(trial).generation.0, 0.5));
    }
    assert_eq!(kinds(&scene.suggest().0), ["trial_created", "trial_started"]);
}

#[test]
fn trials_that_run_while_the_study_waits_go_on() {
    let mut scene = programs();
    scene.fail(0, 1, BROKEN);
    assert_eq!(kinds(&scene.report(1, 1, 1, (1.0, 0.5)).0), ["measured"], "which proves nothing");
    assert_eq!(kinds(&scene.input(finished(1, 1, 0.5)).0), ["trial_done"]);
    assert!(scene.engine.state.waiting.is_some());
}

/// The probe fails for a reason of its own: another one finds out.
#[test]
fn a_probe_that_fails_otherwise_is_replaced() {
    let mut scene = programs();
    scene.fail(0, 1, BROKEN);
    scene.fail(1, 1, BROKEN);
    scene.pass(1.0);
    let (facts, _) = scene.fail(0, 2, FailureCause::Infrastructure);
    assert_eq!(kinds(&facts), ["trial_interrupted", "trial_started"]);
    assert_eq!(scene.engine.state.waiting.as_ref().and_then(|wait| wait.probe), Some(TrialId(1)));
    // What is the program's own fault shows that it could start.
    let (facts, _) = scene.fail(1, 2, FailureCause::Trial);
    assert_eq!(kinds(&facts), ["study_resumed", "trial_failed"]);
}

/// All trials that were there have ended: a new one is made to find out.
#[test]
fn a_new_trial_finds_out_if_there_is_no_other() {
    let mut scene = Scene::with_nodes(RIGID, &[2]);
    scene.suggest();
    scene.suggest();
    scene.fail(0, 1, BROKEN);
    scene.input(finished(1, 1, 0.5));
    // The probe is killed again and again.
    for (generation, pause_s) in (2..).zip([1.0, 1.0, 2.0]) {
        assert_eq!(kinds(&scene.pass(pause_s).0), ["trial_started"]);
        scene.fail(0, generation, FailureCause::Infrastructure);
    }
    scene.pass(4.0);
    let (facts, commands) = scene.fail(0, 5, FailureCause::Infrastructure);
    assert_eq!(kinds(&facts), ["trial_interrupted", "trial_failed"]);
    assert!(commands.iter().any(|command| matches!(command, Command::Suggest(_))), "{commands:?}");
    assert_eq!(kinds(&scene.suggest().0), ["trial_created", "trial_started"]);
    assert_eq!(scene.engine.state.waiting.as_ref().and_then(|wait| wait.probe), Some(TrialId(2)));
}

#[test]
fn a_study_that_waits_can_be_stopped_and_a_new_head_begins_afresh() {
    let mut scene = programs();
    scene.fail(0, 1, BROKEN);
    scene.fail(1, 1, BROKEN);
    let (_, commands) = scene.input(Input::StopRequested);
    assert_eq!(commands, [Command::Finished(Outcome::Stopped)]);
    scene.restart();
    assert_eq!(scene.engine.state.waiting, None);
    assert_eq!(kinds(&scene.input(node_joined(0, 2)).0), ["node_joined", "trial_started", "trial_started"]);
}

/// Elastic groups meet the disk and their data after they have formed: their first report shows that all is well.
#[test]
fn an_elastic_probe_has_to_report() {
    let mut scene = Scene::two_running(1);
    scene.fail(0, 1, BROKEN);
    assert_eq!(kinds(&scene.pass(1.0).0), ["trial_started"]);
    assert_eq!(kinds(&scene.ready(0, 2).0), ["group_formed"]);
    assert_eq!(kinds(&scene.report(0, 2, 1, (0.5, 0.5)).0), ["study_resumed", "measured"]);
}

#[test]
fn a_node_that_cannot_start_workers_says_so_once() {
    let mut scene = Scene::new(RIGID);
    let blocked = || Input::NodeBlocked { node: NodeId(0), reason: "no more processes".to_owned() };
    assert_eq!(kinds(&scene.input(blocked()).0), ["node_blocked"]);
    assert_eq!(scene.input(blocked()), (vec![], vec![]));
    assert_eq!(scene.engine.state.blocked[&NodeId(0)], "no more processes");
    scene.input(node_joined(0, 1));
    assert!(scene.engine.state.blocked.is_empty());
    scene.lose(0, 0);
    scene.input(blocked());
    scene.input(Input::WorkerJoined { slot: slots(&[(0, 0)])[0] });
    assert!(scene.engine.state.blocked.is_empty());
}

//! Trials with one slot, and the study around them.

use super::*;
use crate::trials::group::FinalState;

pub(super) const RIGID: &str = "
space: {x: {float: [0, 1]}}
objective: {minimize: loss}
trial: {command: [train], epochs: 8, timeout: 100s}
search: {trials: 3, parallel: 2, algorithm: random, timeout: 1000s, early_stopping: {rule: asha, grace: 1, reduction: 2}}
";

pub(super) fn finished(trial: u32, generation: u32, value: f64) -> Input {
    Input::group(TrialId(trial), Generation(generation), GroupEvent::Finished(loss(value)))
}

#[test]
fn a_study_begins_with_a_question_for_each_slot() {
    let mut scene = Scene::new(RIGID);
    assert_eq!(
        scene.journal.iter().map(|entry| entry.fact.kind()).collect::<Vec<_>>(),
        ["study_created", "head_started"]
    );
    let (facts, commands) = scene.input(node_joined(0, 1));
    assert_eq!(kinds(&facts), ["node_joined"]);
    assert_eq!(commands, [Command::Suggest(SuggestRequest { revision: 4, trial: TrialId(0) })]);
    let (facts, commands) = scene.suggest();
    assert_eq!(kinds(&facts), ["trial_created", "trial_started"]);
    let params = scene.trial(0).params.clone();
    let launch = Command::Group {
        trial: TrialId(0),
        command: GroupCommand::Launch(Launch {
            generation: Generation(1),
            slots: slots(&[(0, 0)]),
            params,
            batch: None,
            checkpoint: None,
        }),
    };
    assert_eq!(commands, [launch], "no second trial: the slot is taken");
    scene.now_s = 30.0;
    let (facts, commands) = scene.ready(0, 1);
    assert_eq!(kinds(&facts), ["group_formed"]);
    assert_eq!(commands, [Command::WakeAt { at_s: 130.0 }], "its time begins with its program");
    let (facts, commands) = scene.input(finished(0, 1, 0.5));
    assert_eq!(facts, [Fact::TrialDone { trial: TrialId(0), values: vec![0.5] }]);
    let ask = Command::Suggest(SuggestRequest { revision: 8, trial: TrialId(1) });
    assert_eq!(commands, [ask, Command::WakeAt { at_s: 1000.0 }]);
}

#[test]
fn a_study_ends_when_all_trials_have() {
    let mut scene = Scene::with_nodes(RIGID, &[2]);
    let mut last = Vec::new();
    for trial in 0..3 {
        scene.suggest();
        let (facts, commands) = scene.input(finished(trial, 1, 0.5));
        assert_eq!(facts[0], Fact::TrialDone { trial: TrialId(trial), values: vec![0.5] });
        last = commands;
    }
    assert_eq!(last, [Command::Finished(Outcome::Done)]);
    assert_eq!((scene.suggesting.results(), scene.engine.state.done), (3, true));
    assert_eq!(scene.input(Input::Tick), (vec![], vec![]), "it is reported once");
    assert_eq!(scene.input(node_joined(5, 1)), (vec![], vec![]), "and nothing happens any more");
    // A head that finds it done reports it too, and leaves it as it was.
    assert_eq!(scene.restart(), (vec![], vec![Command::Finished(Outcome::Done)]));
}

#[test]
fn more_trials_can_be_wanted_later() {
    let mut scene = Scene::with_nodes(RIGID, &[2]);
    for trial in 0..3 {
        scene.suggest();
        scene.input(finished(trial, 1, 0.5));
    }
    scene.engine.study.search.trials = 4;
    let (facts, _) = scene.restart();
    assert_eq!(kinds(&facts), ["head_started", "study_changed"]);
    let (_, commands) = scene.input(node_joined(0, 1));
    assert!(
        matches!(commands[0], Command::Suggest(SuggestRequest { trial: TrialId(3), .. })),
        "{commands:?}"
    );
}

#[test]
fn stale_answers_are_dropped() {
    let mut scene = Scene::with_nodes(RIGID, &[2]);
    let revision = scene.engine.pending.ask.expect("it has asked");
    let answer = scene.suggesting.ask(TrialId(0));
    let late = Input::Suggested { revision: revision - 1, answer: answer.clone() };
    assert_eq!(scene.input(late), (vec![], vec![]));
    let once = Input::Suggested { revision, answer };
    assert_eq!(kinds(&scene.input(once.clone()).0), ["trial_created", "trial_started"]);
    assert_eq!(scene.input(once), (vec![], vec![]), "the same answer again");
}

/// The slot is lost between question and answer: the suggestion is not used, and comes again when it is asked for again.
#[test]
fn a_suggestion_that_came_too_late_is_made_again() {
    let mut scene = Scene::with_nodes(RIGID, &[1]);
    let answer = scene.suggesting.ask(TrialId(0));
    scene.lose(0, 0);
    let revision = scene.engine.pending.ask.expect("it has asked");
    assert_eq!(scene.input(Input::Suggested { revision, answer: answer.clone() }), (vec![], vec![]));
    let (_, commands) = scene.input(Input::WorkerJoined { slot: slots(&[(0, 0)])[0] });
    assert!(matches!(commands[..], [Command::Suggest(_)]), "{commands:?}");
    assert_eq!(scene.suggesting.ask(TrialId(0)), answer);
    assert_eq!(kinds(&scene.suggest().0), ["trial_created", "trial_started"]);
}

#[test]
fn results_that_are_none_are_failures() {
    let mut scene = Scene::with_nodes(RIGID, &[2]);
    scene.suggest();
    scene.suggest();
    let (facts, _) = scene.input(finished(0, 1, f64::NAN));
    let reason = "`loss` is not a finite number".to_owned();
    assert_eq!(facts, [Fact::TrialFailed { trial: TrialId(0), reason }]);
    let nothing = Input::group(TrialId(1), Generation(1), GroupEvent::Finished(Metrics::new()));
    let (facts, _) = scene.input(nothing);
    let reason = "it ended without a value for `loss`: it has reported nothing; metrics are lines of JSON, such as {\"loss\": 0.5}";
    let reason = reason.to_owned();
    assert_eq!(facts, [Fact::TrialFailed { trial: TrialId(1), reason }]);
}

#[test]
fn what_was_reported_last_is_the_result() {
    let mut scene = Scene::with_nodes(RIGID, &[2]);
    scene.suggest();
    scene.report(0, 1, 1, (0.5, 0.25));
    let nothing = Input::group(TrialId(0), Generation(1), GroupEvent::Finished(Metrics::new()));
    assert_eq!(scene.input(nothing).0, [Fact::TrialDone { trial: TrialId(0), values: vec![0.25] }]);
}

#[test]
fn trials_and_studies_that_take_too_long_are_ended() {
    let mut scene = Scene::with_nodes(RIGID, &[2]);
    scene.suggest();
    scene.ready(0, 1);
    scene.now_s = 99.9;
    assert_eq!(scene.input(Input::Tick).0, []);
    scene.now_s = 100.0;
    let (facts, commands) = scene.input(Input::Tick);
    let reason = "it took longer than the 100 s of `trial.timeout`".to_owned();
    assert_eq!(facts, [Fact::TrialFailed { trial: TrialId(0), reason }]);
    assert_eq!(
        commands[0],
        Command::Group { trial: TrialId(0), command: GroupCommand::Stop(FinalState::Discarded) }
    );
    scene.now_s = 950.0;
    scene.suggest();
    scene.now_s = 1000.0;
    let (facts, commands) = scene.input(Input::Tick);
    assert_eq!(kinds(&facts), ["suggestions_ended", "trial_cancelled", "study_done"]);
    let stop = Command::Group { trial: TrialId(1), command: GroupCommand::Stop(FinalState::Discarded) };
    let outcome = Outcome::Failed("1 of 2 trials have failed and none has finished".to_owned());
    assert_eq!(commands, [stop, Command::Finished(outcome)]);
}

#[test]
fn the_time_of_a_trial_is_that_of_its_programs() {
    let mut scene = Scene::with_nodes(RIGID, &[2]);
    scene.suggest();
    scene.now_s = 150.0;
    assert_eq!(scene.input(Input::Tick).0, [], "the program before it takes long to end");
    scene.ready(0, 1);
    scene.now_s = 190.0;
    let (reason, cause) = ("killed".to_owned(), FailureCause::Infrastructure);
    scene.input(Input::group(TrialId(0), Generation(1), GroupEvent::Failed { reason, cause }));
    assert_eq!(kinds(&scene.pass(1.0).0), ["trial_started"]);
    scene.now_s = 300.0;
    scene.ready(0, 2);
    scene.now_s = 359.9;
    assert_eq!(scene.input(Input::Tick).0, [], "40 s of the first attempt, 59.9 s of the second");
    scene.now_s = 360.0;
    assert_eq!(kinds(&scene.input(Input::Tick).0), ["trial_failed"]);
}

#[test]
fn a_search_that_cannot_go_on_ends_the_study_with_a_reason() {
    let mut scene = Scene::with_nodes(RIGID, &[2]);
    scene.suggest();
    let revision = scene.engine.pending.ask.expect("it wants a second one");
    let answer = Err(NoSuggestion::Failed("no feasible point".to_owned()));
    let (facts, commands) = scene.input(Input::Suggested { revision, answer });
    assert_eq!((kinds(&facts), commands.len()), (vec!["suggestions_ended"], 0), "the first one still runs");
    let (_, commands) = scene.input(finished(0, 1, 1.0));
    assert_eq!(commands, [Command::Finished(Outcome::Failed("no feasible point".to_owned()))]);
}

#[test]
fn a_stopped_study_runs_its_trials_again_later() {
    let mut scene = Scene::with_nodes(RIGID, &[2]);
    scene.suggest();
    scene.suggest();
    let (facts, commands) = scene.input(Input::StopRequested);
    assert_eq!(kinds(&facts), ["stop_requested", "trial_interrupted", "trial_interrupted"]);
    let stop =
        |trial| Command::Group { trial: TrialId(trial), command: GroupCommand::Stop(FinalState::Discarded) };
    assert_eq!(commands, [stop(0), stop(1), Command::Finished(Outcome::Stopped)]);
    assert_eq!(scene.input(finished(0, 1, 0.1)), (vec![], vec![]), "too late");
    scene.now_s = 5000.0;
    scene.restart();
    let (facts, _) = scene.input(node_joined(0, 2));
    assert_eq!(kinds(&facts), ["node_joined", "trial_started", "trial_started"]);
    assert_eq!(scene.input(finished(0, 1, 0.1)), (vec![], vec![]), "of the first generation");
    assert_eq!(kinds(&scene.input(finished(0, 2, 0.1)).0), ["trial_done"]);
}

#[test]
fn a_trial_without_promise_is_stopped_and_its_slot_is_free_at_once() {
    let mut scene = Scene::with_nodes(RIGID, &[2]);
    scene.suggest();
    scene.suggest();
    scene.report(0, 1, 1, (1.0, 0.1));
    let (facts, commands) = scene.report(1, 1, 1, (1.0, 0.9));
    assert_eq!(kinds(&facts), ["group_formed", "measured", "trial_stopped"]);
    assert_eq!(
        commands[0],
        Command::Group { trial: TrialId(1), command: GroupCommand::Stop(FinalState::Discarded) }
    );
    assert!(
        matches!(commands[1], Command::Suggest(SuggestRequest { trial: TrialId(2), .. })),
        "{commands:?}"
    );
    assert_eq!(kinds(&scene.suggest().0), ["trial_created", "trial_started"]);
    assert_eq!(scene.trial(2).slots(), slots(&[(0, 1)]));
}

#[test]
fn a_trial_that_its_user_stops_leaves_its_slot_to_the_next() {
    let mut scene = Scene::with_nodes(RIGID, &[1]);
    scene.suggest();
    scene.ready(0, 1);
    let (facts, commands) = scene.input(Input::TrialStopRequested { trial: TrialId(0) });
    let reason = "stopped by its user".to_owned();
    assert_eq!(facts, [Fact::TrialCancelled { trial: TrialId(0), reason }]);
    let command = GroupCommand::Stop(FinalState::Discarded);
    assert_eq!(commands[0], Command::Group { trial: TrialId(0), command });
    assert!(
        matches!(commands[1], Command::Suggest(SuggestRequest { trial: TrialId(1), .. })),
        "{commands:?}"
    );
    // What has ended or never was stays as it is.
    for trial in [0, 7] {
        assert_eq!(scene.input(Input::TrialStopRequested { trial: TrialId(trial) }), (vec![], vec![]));
    }
    scene.restart();
}

//! What ends a study before all its trials were run, and what lets it go on.

use std::time::Duration;

use super::{
    rigid::{RIGID, finished},
    *,
};
use crate::trials::End;

const MANY: &str = "
space: {x: {float: [0, 1]}}
objective: {minimize: loss}
trial: {command: [train], epochs: 8}
search: {trials: 30, parallel: 4, algorithm: random, max_failures: 5}
";

const OWN: FailureCause = FailureCause::Trial;

/// A study of many trials of which the first have failed.
fn failing(failures: u32) -> (Scene, Vec<Fact>, Vec<Command>) {
    let mut scene = Scene::with_nodes(MANY, &[4]);
    let mut last = (Vec::new(), Vec::new());
    for trial in 0..failures {
        while scene.engine.pending.ask.is_some() {
            scene.suggest();
        }
        last = scene.fail(trial, 1, OWN);
    }
    (scene, last.0, last.1)
}

#[test]
fn a_study_of_nothing_but_failures_ends_as_failed() {
    let (_, facts, _) = failing(4);
    assert_eq!(kinds(&facts), ["trial_failed"]);
    let (mut scene, facts, commands) = failing(5);
    let cancelled = ["trial_cancelled"; 3];
    let mut wanted = vec!["trial_failed", "suggestions_ended"];
    wanted.extend(cancelled);
    wanted.push("study_done");
    assert_eq!(kinds(&facts), wanted);
    let reason =
        "5 trials have failed and none has finished (`search.max_failures`), the last one, trial 4: bad luck";
    assert_eq!(commands.last(), Some(&Command::Finished(Outcome::Failed(reason.to_owned()))));
    assert_eq!(scene.restart(), (vec![], vec![Command::Finished(Outcome::Failed(reason.to_owned()))]));
}

#[test]
fn one_trial_with_a_value_is_hope() {
    let (mut scene, ..) = failing(4);
    scene.suggest();
    scene.report(4, 1, 1, (1.0, 0.5));
    for trial in [5, 6, 7] {
        scene.fail(trial, 1, OWN);
        scene.suggest();
    }
    assert_eq!((scene.engine.state.failed, &scene.engine.state.search_ended), (7, &None));
    scene.input(finished(4, 1, 0.5));
    for trial in 8..=10 {
        assert_eq!(kinds(&scene.fail(trial, 1, OWN).0), ["trial_failed"], "one has finished");
        while scene.engine.pending.ask.is_some() {
            scene.suggest();
        }
    }
}

#[test]
fn without_a_limit_a_study_of_failures_runs_to_its_end_and_has_failed() {
    let mut scene = Scene::with_nodes(MANY, &[4]);
    (scene.engine.study.search.max_failures, scene.engine.study.search.trials) = (0, 12);
    for trial in 0..12 {
        while scene.engine.pending.ask.is_some() {
            scene.suggest();
        }
        let (_, commands) = scene.fail(trial, 1, OWN);
        if trial == 11 {
            let outcome = Outcome::Failed("12 of 12 trials have failed and none has finished".to_owned());
            assert_eq!(commands, [Command::Finished(outcome)]);
        }
    }
}

/// Puts facts of the state into the journal, as `pollux-tune retry` does.
fn retry(scene: &mut Scene, trials: &[u32]) -> Vec<&'static str> {
    let trials: Vec<TrialId> = trials.iter().copied().map(TrialId).collect();
    let facts = scene.engine.state.retry(&trials).expect("they have failed");
    for fact in &facts {
        let entry = JournalEntry { at_s: scene.engine.state.at_s, fact: fact.clone() };
        scene.engine.apply(&entry).expect("it follows");
        scene.journal.push(entry);
    }
    kinds(&facts)
}

#[test]
fn failed_trials_that_are_retried_run_again_with_the_same_parameters() {
    let (mut scene, ..) = failing(5);
    let (params, last) = (scene.engine.state.ended[&TrialId(2)].params.clone(), scene.engine.state.created());
    let mut facts = vec!["suggestions_reopened"];
    facts.extend(["trial_retried"; 8]);
    assert_eq!(retry(&mut scene, &[]), facts, "those that were cancelled for it, too");
    assert!(!scene.engine.state.done);
    assert_eq!((scene.engine.state.failed, scene.engine.state.ended.len()), (0, 0));
    assert_eq!(scene.trial(2).params, params);
    assert_eq!(kinds(&scene.restart().0), ["head_started"]);
    let (facts, _) = scene.input(node_joined(0, 4));
    assert_eq!(kinds(&facts)[1..], ["trial_started"; 4]);
    for trial in 0..8 {
        let generation = scene.trial(trial).generation.0;
        assert_eq!(kinds(&scene.input(finished(trial, generation, 0.5)).0)[0], "trial_done");
    }
    assert_eq!((scene.suggesting.results(), scene.engine.state.next_trial().0 as usize), (8, last));
}

#[test]
fn only_failed_trials_can_be_retried() {
    let (mut scene, ..) = failing(2);
    scene.input(finished(2, 1, 0.5));
    let state = &scene.engine.state;
    let refused =
        |trial: u32| state.retry(&[TrialId(0), TrialId(trial)]).expect_err("it has not").to_string();
    assert_eq!(refused(2), "trial 2 is done: only failed trials can be retried");
    assert_eq!(refused(3), "trial 3 has not ended: only failed trials can be retried");
    assert_eq!(refused(9), "there is no trial 9, there are 5 so far");
    let twice = state.retry(&[TrialId(1), TrialId(1)]).expect("once is enough");
    assert_eq!(twice, [Fact::TrialRetried { trial: TrialId(1) }]);
    let done = Fact::TrialRetried { trial: TrialId(2) };
    assert!(scene.engine.apply(&JournalEntry { at_s: 0.0, fact: done }).is_err());
}

/// A failure is forgotten by all: the suggester, the stopping rule, the counters of failures and of time.
#[test]
fn nothing_is_held_against_a_retried_trial() {
    let mut scene = Scene::with_nodes(RIGID, &[2]);
    scene.suggest();
    scene.suggest();
    scene.report(0, 1, 1, (1.0, f64::NAN));
    assert!(scene.engine.state.ended.contains_key(&TrialId(0)), "it has diverged");
    scene.now_s = 90.0;
    scene.input(finished(1, 1, 0.5));
    scene.suggest();
    scene.input(finished(2, 1, 0.5));
    assert!(scene.engine.state.done);
    assert_eq!(retry(&mut scene, &[0]), ["trial_retried"]);
    assert_eq!(kinds(&scene.restart().0), ["head_started"]);
    assert_eq!(kinds(&scene.input(node_joined(0, 2)).0), ["node_joined", "trial_started"]);
    let usage = scene.trial(0).usage;
    assert_eq!((usage.ran_s, scene.trial(0).metrics.len()), (0.0, 0), "it has all its time again");
    assert!((scene.engine.promise(TrialId(0)) - 1.0).abs() < 1e-12);
    assert_eq!(kinds(&scene.report(0, 2, 1, (1.0, 0.1)).0), ["group_formed", "measured"]);
    let (facts, commands) = scene.input(finished(0, 2, 0.1));
    assert_eq!(kinds(&facts), ["trial_done", "study_done"]);
    assert_eq!(commands, [Command::Finished(Outcome::Done)]);
}

/// Whatever the algorithm, a suggester that has heard of a failure and of its retry suggests what it would without either.
#[test]
fn suggesters_forget_what_is_retried() {
    for algorithm in ["tpe", "gp", "auto", "random", "halton", "grid"] {
        let yaml = format!(
            "{{space: {{x: {{float: [0, 1]}}, y: {{float: [0, 1]}}}}, objective: {{minimize: loss}}, \
             search: {{trials: 40, algorithm: {algorithm}}}}}"
        );
        let mut services = [(); 2].map(|()| SuggestService::new(&study(&yaml)).expect("it can be searched"));
        let [forgetful, innocent] = &mut services;
        let apply = |service: &mut SuggestService, fact: &Fact| {
            service.apply(&JournalEntry { at_s: 0.0, fact: fact.clone() }).expect("it understands");
        };
        for trial in (0..20).map(TrialId) {
            let Suggestion { params, point } = innocent.ask(trial).expect("there is more to try");
            let value = params.float("x").expect("a number") + params.float("y").expect("a number");
            let created = Fact::TrialCreated { trial, params, point };
            let done = Fact::TrialDone { trial, values: vec![value] };
            for service in [&mut *forgetful, innocent] {
                apply(service, &created);
                if trial.0 % 5 > 1 {
                    apply(service, &done);
                }
            }
            let reason = "bad luck".to_owned();
            match trial.0 % 5 {
                0 => apply(forgetful, &Fact::TrialFailed { trial, reason }),
                1 => apply(forgetful, &Fact::TrialCancelled { trial, reason }),
                _ => {}
            }
        }
        for trial in (0..20).map(TrialId).filter(|trial| trial.0 % 5 < 2) {
            apply(forgetful, &Fact::TrialRetried { trial });
        }
        assert_eq!(forgetful.results(), innocent.results());
        assert_eq!(forgetful.ask(TrialId(20)), innocent.ask(TrialId(20)), "{algorithm}");
    }
}

/// Its checkpoint is still there.
#[test]
fn a_retried_trial_goes_on_from_its_checkpoint() {
    let mut scene = Scene::two_running(1);
    let checkpoint = Checkpoint { name: "trial-0".to_owned(), epochs: 2.5 };
    scene.input(Input::group(TrialId(0), Generation(1), GroupEvent::Checkpointed(checkpoint.clone())));
    scene.fail(0, 1, OWN);
    retry(&mut scene, &[0]);
    assert_eq!((scene.trial(0).epochs, &scene.trial(0).checkpoint), (2.5, &Some(checkpoint)));
    assert_eq!(scene.trial(0).generation, Generation(1), "events of the first attempt stay old");
}

#[test]
fn a_study_that_ran_out_of_time_goes_on_with_more() {
    let mut scene = Scene::with_nodes(RIGID, &[2]);
    scene.engine.study.trial.timeout = None;
    scene.suggest();
    scene.suggest();
    scene.now_s = 900.0;
    scene.input(finished(0, 1, 0.5));
    scene.now_s = 1000.0;
    let (facts, _) = scene.input(Input::Tick);
    assert_eq!(kinds(&facts), ["suggestions_ended", "trial_cancelled", "study_done"]);
    assert_eq!(scene.restart().0, [], "nothing has changed");
    // A day later, with half as much again. The day does not count, what ran before does.
    scene.now_s = 90_000.0;
    scene.engine.study.search.timeout = Some(Duration::from_secs(1500));
    let (facts, _) = scene.restart();
    assert_eq!(kinds(&facts), ["head_started", "study_changed", "suggestions_reopened", "trial_retried"]);
    assert_eq!(facts[3], Fact::TrialRetried { trial: TrialId(1) }, "which was cancelled for it");
    scene.input(node_joined(0, 2));
    scene.now_s = 90_400.0;
    assert_eq!(kinds(&scene.suggest().0), ["trial_created", "trial_started"], "up to the number asked for");
    scene.now_s = 90_499.0;
    assert_eq!(scene.input(Input::Tick).0, []);
    scene.now_s = 90_500.0;
    let (facts, _) = scene.input(Input::Tick);
    assert_eq!(kinds(&facts), ["suggestions_ended", "trial_cancelled", "trial_cancelled", "study_done"]);
    // Without a limit it comes to its end.
    scene.engine.study.search.timeout = None;
    scene.restart();
    scene.input(node_joined(0, 2));
    for trial in 1..3 {
        scene.input(finished(trial, scene.trial(trial).generation.0, 0.5));
    }
    assert!(scene.engine.state.ended.values().all(|ended| matches!(ended.end, End::Done(_))));
    assert_eq!((scene.suggesting.results(), scene.engine.state.done), (3, true));
}

/// Journals of earlier versions know the limit by its words alone.
#[test]
fn an_earlier_study_that_ran_out_of_time_goes_on_too() {
    let mut scene = Scene::with_nodes(RIGID, &[2]);
    let fact = r#"{"suggestions_ended":{"reason":"the time of the study is up","failed":false}}"#;
    let fact: Fact = serde_json::from_str(fact).expect("a fact");
    scene.engine.apply(&JournalEntry { at_s: 0.0, fact }).expect("it follows");
    let end = scene.engine.state.search_ended.as_ref().expect("it has ended");
    assert_eq!(end.limit, Some(SearchLimit::Timeout));
}

#[test]
fn more_failures_can_be_allowed_later() {
    let (mut scene, ..) = failing(5);
    scene.engine.study.search.max_failures = 6;
    let (facts, _) = scene.restart();
    assert_eq!(kinds(&facts)[..3], ["head_started", "study_changed", "suggestions_reopened"]);
    scene.input(node_joined(0, 4));
    let (facts, _) = scene.fail(5, 2, OWN);
    assert_eq!(kinds(&facts)[..2], ["trial_failed", "suggestions_ended"]);
}

/// An evaluation has all metrics, so the first one without the objective is the end.
#[test]
fn a_metric_that_will_never_come_is_noticed_at_the_first_evaluation() {
    let report = |names: &[&str]| Report {
        number: 1,
        epochs: 1.0,
        metrics: names.iter().map(|name| ((*name).to_owned(), 0.5.into())).collect(),
        ..Report::default()
    };
    let reported = |report| Input::group(TrialId(0), Generation(1), GroupEvent::Reported(report));
    let mut scene = Scene::two_running(1);
    assert_eq!(kinds(&scene.input(reported(report(&[]))).0), ["measured"], "it has not evaluated yet");
    let late = Report { number: 2, ..report(&["accuracy", "error"]) };
    let (facts, commands) = scene.input(reported(late));
    let reason =
        "it reports `accuracy`, `error`, but the objective is `loss`: correct one of them".to_owned();
    assert_eq!(facts[1..], [Fact::TrialFailed { trial: TrialId(0), reason }]);
    assert!(matches!(commands[0], Command::Group { command: GroupCommand::Stop(_), .. }), "{commands:?}");
    // A program may say at its end what it was about.
    let mut scene = Scene::with_nodes(RIGID, &[2]);
    scene.suggest();
    assert_eq!(kinds(&scene.input(reported(report(&["accuracy"]))).0), ["group_formed", "measured"]);
    assert_eq!(kinds(&scene.input(finished(0, 1, 0.5)).0), ["trial_done"]);
}

use std::{
    fs,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
};

use pollux_tune::{
    actors::{Runner, Trial},
    space::Study,
    trials::{
        End, State,
        engine::{Fact, Metrics, Outcome},
    },
};

use crate::common::{ends, entries, folder};

type Answer = Result<Metrics, Box<dyn std::error::Error + Send + Sync>>;

fn study(more: &str) -> Study {
    let text = format!("space: {{x: {{float: [0, 1]}}}}\nobjective: {{minimize: loss}}\n{more}");
    Study::from_yaml("study.yaml", &text).unwrap()
}

fn loss(trial: &mut Trial) -> Answer {
    let x = trial.params().float("x")?;
    Ok([("loss".to_owned(), (x - 0.3).abs().into())].into())
}

#[test]
fn every_trial_is_run_once_and_the_best_is_found() {
    let calls = Arc::new(AtomicU32::new(0));
    let counted = calls.clone();
    let finished = Runner::new(study("search: {trials: 40, parallel: 3}"))
        .run_function(move |trial| {
            counted.fetch_add(1, Ordering::Relaxed);
            loss(trial)
        })
        .unwrap();
    assert_eq!(finished.outcome, Outcome::Done);
    assert_eq!(calls.load(Ordering::Relaxed), 40);
    assert_eq!(finished.search().trials().len(), 40);
    assert!(finished.best(1)[0].values().unwrap()[0] < 0.1);
}

#[test]
fn a_dead_actor_leads_to_a_fresh_start_from_the_journal() {
    let root = folder("dead");
    let (panics, facts) = (Arc::new(AtomicU32::new(0)), AtomicU32::new(0));
    let counted = panics.clone();
    let finished = Runner::new(study("search: {trials: 30, parallel: 2}"))
        .folder(&root)
        .watch(move |_, entries| {
            let before = facts.fetch_add(entries.len() as u32, Ordering::Relaxed);
            // The supervisor dies three times, after facts were written down and before anything was done about them.
            let died = counted.load(Ordering::Relaxed);
            if before > 25 * (died + 1) && died < 3 {
                counted.fetch_add(1, Ordering::Relaxed);
                panic!("on purpose");
            }
        })
        .run_function(loss)
        .unwrap();
    assert_eq!((finished.outcome, panics.load(Ordering::Relaxed)), (Outcome::Done, 3));
    assert_eq!(ends(&root), (0..30).map(|trial| (trial, 1)).collect());
    let starts = entries(&root).iter().filter(|fact| **fact == Fact::HeadStarted {}).count();
    assert_eq!(starts, 4);
    fs::remove_dir_all(&root).unwrap();
}

#[test]
fn an_actor_that_dies_again_and_again_is_told() {
    let error = Runner::new(study("search: {trials: 3}"))
        .watch(|_, _| panic!("on purpose"))
        .run_function(loss)
        .err()
        .unwrap();
    assert!(error.to_string().contains("the supervisor has died"), "{error}");
}

#[test]
fn failures_are_told_with_their_reasons() {
    let finished = Runner::new(study("search: {trials: 3, parallel: 1, algorithm: random}"))
        .run_function(|trial| match trial.number() {
            0 => Err("no luck".into()),
            1 => panic!("out of bounds"),
            _ => Ok([("other".to_owned(), 1.0.into())].into()),
        })
        .unwrap();
    let states: Vec<_> = finished.search().trials().map(|trial| trial.state.clone()).collect();
    assert!(states.iter().all(|state| matches!(state, State::Ended(End::Failed(_)))), "{states:?}");
    let texts: Vec<String> = states.iter().map(|state| format!("{state:?}")).collect();
    assert!(texts[0].contains("no luck"), "{texts:?}");
    assert!(texts[1].contains("it panicked: out of bounds"), "{texts:?}");
    assert!(texts[2].contains("it ended without a value for `loss`"), "{texts:?}");
}

#[test]
fn hopeless_trials_hear_that_they_are_given_up() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let told = seen.clone();
    let text = "trial: {epochs: 9}\nsearch: {trials: 27, parallel: 1, early_stopping: {rule: asha}}";
    let finished = Runner::new(study(text))
        .run_function(move |trial| {
            let x = trial.params().float("x")?;
            for epoch in 1..=9 {
                if let Err(stopped) = trial.report(f64::from(epoch), [("loss", x)]) {
                    told.lock().unwrap().push(trial.number());
                    return Err(stopped.into());
                }
            }
            Ok(Metrics::new())
        })
        .unwrap();
    let stopped: Vec<u32> = finished
        .search()
        .trials()
        .filter(|trial| matches!(trial.state, State::Ended(End::Stopped(_))))
        .map(|trial| trial.id.0)
        .collect();
    assert!(!stopped.is_empty() && stopped.len() < 27);
    assert_eq!(*seen.lock().unwrap(), stopped);
}

#[test]
fn a_stopped_study_goes_on_where_it_was() {
    let root = folder("stop");
    let runner = Runner::new(study("search: {trials: 25, parallel: 2}")).folder(&root);
    let stop = runner.stop_handle();
    let first = runner.run_function(move |trial| {
        if trial.number() == 10 {
            stop.stop();
            // A trial that is under way is not over: it waits here until it is told.
            while trial.report(1.0, [("loss", 1.0)]).is_ok() {}
        }
        loss(trial)
    });
    assert_eq!(first.unwrap().outcome, Outcome::Stopped);
    let done = ends(&root).len();
    assert!((9..25).contains(&done), "{done}");
    let second =
        Runner::new(study("search: {trials: 25, parallel: 2}")).folder(&root).run_function(loss).unwrap();
    assert_eq!(second.outcome, Outcome::Done);
    assert_eq!(ends(&root), (0..25).map(|trial| (trial, 1)).collect());
    // A third time there is nothing to do.
    let third = Runner::new(study("search: {trials: 25, parallel: 2}"))
        .folder(&root)
        .run_function(|_| panic!("nothing is left to do"))
        .unwrap();
    assert_eq!(third.search().trials().len(), 25);
    assert_eq!(third.outcome, Outcome::Done);
    fs::remove_dir_all(&root).unwrap();
}

/// A study file with the same parameters in another order: what was found so far counts, and the search goes on as if nothing had
/// changed. The order that the study began with is kept.
#[test]
fn reordering_parameters_changes_nothing() {
    let (space, reordered) = (
        "{a: {float: [0, 1]}, b: {int: [1, 8]}, c: [x, y]}",
        "{c: [x, y], b: {int: [1, 8]}, a: {float: [0, 1]}}",
    );
    let run = |name: &str, second: &str| {
        let root = folder(name);
        for (space, trials) in [(space, 15), (second, 30)] {
            let text = format!(
                "space: {space}\nobjective: {{minimize: loss}}\nsearch: {{trials: {trials}, parallel: 1, seed: 3}}"
            );
            let study = Study::from_yaml("study.yaml", &text).unwrap();
            let finished = Runner::new(study).folder(&root).run_function(|trial| -> Answer {
                let params = trial.params();
                let miss = if params.text("c")? == "x" { 0.0 } else { 1.0 };
                let loss = (params.float("a")? - 0.3).abs() + (params.int("b")? - 5).abs() as f64 + miss;
                Ok([("loss".to_owned(), loss.into())].into())
            });
            assert_eq!(finished.unwrap().outcome, Outcome::Done);
        }
        let created: Vec<Fact> =
            entries(&root).into_iter().filter(|fact| matches!(fact, Fact::TrialCreated { .. })).collect();
        let yaml = fs::read_to_string(root.join("study.yaml")).unwrap();
        fs::remove_dir_all(&root).unwrap();
        (created, yaml)
    };
    let (expected, found) = (run("ordered", space), run("reordered", reordered));
    assert_eq!(expected.0.len(), 30);
    assert_eq!(found, expected);
}

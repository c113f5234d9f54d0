//! What Rust programs bring along: suggesters and stopping rules of their own, and code that follows a study.

use std::{
    collections::BTreeMap,
    fs,
    sync::{Arc, Mutex},
};

use pollux_tune::{
    actors::{Event, Runner},
    ids::TrialId,
    space::{Algorithm, Dims, Domain, Params, Point, Space, Study},
    tpe::{Error, Outcome as Reported, Suggester},
    trials::{
        End,
        engine::{Metrics, Outcome},
        stopping::{Reason, Rule, Sample},
    },
};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use crate::common::folder;

fn study(trials: u32) -> Study {
    let space = Space::builder().add("x", Domain::float(0.0, 1.0).unwrap()).build().unwrap();
    Study::builder(space).minimize("loss").trials(trials).parallel(1).epochs(9.0).build().unwrap()
}

fn loss(params: &Params) -> f64 {
    (params.float("x").unwrap() - 0.3).abs()
}

/// Steps from the best point, by what was reported and its generator.
struct Walk {
    points: BTreeMap<TrialId, Point>,
    best: Option<(f64, TrialId)>,
    calls: Arc<Mutex<Vec<String>>>,
}

impl Walk {
    fn new(_: Dims, calls: &Arc<Mutex<Vec<String>>>) -> Self {
        calls.lock().unwrap().push("new".to_owned());
        Self { points: BTreeMap::new(), best: None, calls: calls.clone() }
    }
}

impl Suggester for Walk {
    fn name(&self) -> &'static str {
        "walk"
    }

    fn ask(&mut self, id: TrialId, rng: &mut ChaCha8Rng) -> Result<Point, Error> {
        self.calls.lock().unwrap().push(format!("ask {id}"));
        let best = self.best.map_or(Some(0.5), |(_, best)| self.points[&best][0]);
        let point = vec![best.map(|x| (x + rng.random_range(-0.1..0.1)).clamp(0.0, 1.0))];
        self.points.insert(id, point.clone());
        Ok(point)
    }

    fn insert(&mut self, id: TrialId, point: Point) -> Result<(), Error> {
        self.calls.lock().unwrap().push(format!("insert {id}"));
        self.points.insert(id, point);
        Ok(())
    }

    fn tell(&mut self, id: TrialId, outcome: Reported) -> Result<(), Error> {
        if let Reported::Done(values) = outcome
            && self.best.is_none_or(|(best, _)| values[0] < best)
        {
            self.best = Some((values[0], id));
        }
        Ok(())
    }

    fn retract(&mut self, _: TrialId) -> Result<(), Error> {
        Ok(())
    }
}

fn tried(search: &pollux_tune::trials::Search) -> Vec<Params> {
    search.trials().map(|trial| trial.params.clone()).collect()
}

#[test]
fn a_resumed_study_continues_with_a_fresh_suggester_as_if_nothing_had_happened() {
    let calls = Arc::new(Mutex::new(Vec::new()));
    let runner = |study: Study| {
        let calls = calls.clone();
        Runner::new(study).suggester(move |dims| Walk::new(dims, &calls))
    };
    let answer = |trial: &mut pollux_tune::actors::Trial| -> Result<Metrics, _> {
        Ok([("loss".to_owned(), loss(trial.params()).into())].into())
    };
    let whole = runner(study(20)).run_function(answer).unwrap();
    assert_eq!(calls.lock().unwrap().len(), 21, "made once, and asked for each trial");

    let root = folder("own-suggester");
    let first = runner(study(20)).folder(&root);
    let stop = first.stop_handle();
    let first = first.on_event(move |event| {
        if matches!(event, Event::Ended { trial: TrialId(7), .. }) {
            stop.stop();
        }
    });
    let first = first.run_function(answer).unwrap();
    assert_eq!(first.outcome, Outcome::Stopped);
    let begun = first.search().trials().len();
    assert!((8..20).contains(&begun), "{begun}");

    calls.lock().unwrap().clear();
    let second = runner(study(20)).folder(&root).run_function(answer).unwrap();
    assert_eq!(second.outcome, Outcome::Done);
    assert_eq!(tried(second.search()), tried(whole.search()));
    let shown: Vec<String> = (0..begun).map(|trial| format!("insert {trial}")).collect();
    assert_eq!(calls.lock().unwrap()[1..=begun], shown);
    fs::remove_dir_all(&root).unwrap();
}

/// Wrong in each way that there is.
struct Wrong(&'static str);

impl Suggester for Wrong {
    fn name(&self) -> &'static str {
        "wrong"
    }

    fn ask(&mut self, _: TrialId, _: &mut ChaCha8Rng) -> Result<Point, Error> {
        match self.0 {
            "outside" => Ok(vec![Some(1.5)]),
            "error" => Err(Error::Custom("no idea".to_owned())),
            _ => panic!("out of ideas"),
        }
    }

    fn insert(&mut self, _: TrialId, _: Point) -> Result<(), Error> {
        Ok(())
    }

    fn tell(&mut self, _: TrialId, _: Reported) -> Result<(), Error> {
        Ok(())
    }

    fn retract(&mut self, _: TrialId) -> Result<(), Error> {
        Ok(())
    }
}

#[test]
fn a_study_whose_suggester_is_wrong_fails_and_says_why() {
    for (how, reason) in [
        ("outside", "the coordinate of `x` is 1.5; expected a number from 0 to 1"),
        ("error", "no idea"),
        ("panic", "the suggester wrong has panicked: out of ideas"),
    ] {
        let runner = Runner::new(study(3)).suggester(move |_| Wrong(how));
        let finished = runner.run_function(|_| Ok(Metrics::new())).unwrap();
        let Outcome::Failed(why) = &finished.outcome else { panic!("{:?}", finished.outcome) };
        assert!(why.contains(reason), "{why}");
    }
}

/// Stops all trials but the first one at once, or panics.
struct Strict {
    panics: bool,
}

impl Rule for Strict {
    fn judge(&mut self, trial: TrialId, _: Option<Sample>, now: Sample) -> Option<Reason> {
        assert!(!self.panics, "on purpose");
        (trial > TrialId(0)).then_some(Reason::Custom { progress: now.progress })
    }
}

#[test]
fn trials_are_stopped_by_the_rule_of_the_program_after_their_grace() {
    let answer = |trial: &mut pollux_tune::actors::Trial| -> Result<Metrics, _> {
        for epoch in 1..=9 {
            trial.report(f64::from(epoch), [("loss", 1.0), ("lr", f64::from(epoch))])?;
        }
        Ok(Metrics::new())
    };
    let finished =
        Runner::new(study(4)).stopping_rule(3.0, || Strict { panics: false }).run_function(answer).unwrap();
    let trials: Vec<_> = finished.search().trials().collect();
    assert_eq!((trials[0].metric("loss"), trials[0].metric("lr")), (Some(1.0), Some(9.0)));
    for trial in &trials[1..] {
        let pollux_tune::trials::State::Ended(End::Stopped(reason)) = &trial.state else {
            panic!("{trial:?}");
        };
        assert_eq!(reason.to_string(), "by the stopping rule of the program at epoch 3.00");
        assert_eq!(trial.metric("lr"), Some(3.0));
    }
    let finished =
        Runner::new(study(4)).stopping_rule(1.0, || Strict { panics: true }).run_function(answer).unwrap();
    assert!(finished.search().trials().all(|trial| trial.values().is_some()));
    let wrong = Runner::new(study(4)).stopping_rule(0.0, || Strict { panics: false }).run_function(answer);
    assert!(wrong.err().unwrap().to_string().contains("the grace in epochs is 0"));
}

#[test]
fn events_come_in_their_order_and_end_with_the_study() {
    let (runner, events) = Runner::new(study(3)).events();
    let counted = Arc::new(Mutex::new(0));
    let count = counted.clone();
    let runner = runner.on_event(move |_| *count.lock().unwrap() += 1);
    let finished = runner
        .run_function(|trial| {
            trial.report(1.0, [("loss", 0.5)])?;
            Ok([("loss".to_owned(), 0.25.into())].into())
        })
        .unwrap();
    let kinds: Vec<String> = events
        .blocking()
        .map(|event| match event {
            Event::Created { trial, .. } => format!("created {trial}"),
            Event::Reported { trial, epochs, .. } => format!("reported {trial} {epochs}"),
            Event::Ended { trial, end } => format!("ended {trial} {end}"),
            event => format!("{event:?}"),
        })
        .collect();
    let of =
        |trial| [format!("created {trial}"), format!("reported {trial} 1"), format!("ended {trial} is done")];
    let mut expected: Vec<String> = (0..3).flat_map(of).collect();
    expected.push("Done".to_owned());
    assert_eq!(kinds, expected);
    assert_eq!(*counted.lock().unwrap(), 10);
    assert_eq!(finished.best(1)[0].metric("loss"), Some(0.25));
}

#[tokio::test]
async fn a_study_is_awaited_next_to_other_tasks() {
    let (runner, mut events) = Runner::new(study(5)).events();
    let finished =
        runner.run_function_async(|trial| Ok([("loss".to_owned(), loss(trial.params()).into())].into()));
    let last = async {
        let mut last = None;
        while let Some(event) = events.next().await {
            last = Some(event);
        }
        last
    };
    let (finished, last) = tokio::join!(finished, last);
    assert_eq!((finished.unwrap().outcome, last), (Outcome::Done, Some(Event::Done)));
}

#[tokio::test]
async fn a_study_that_nobody_awaits_is_stopped() {
    let (runner, mut events) = Runner::new(study(1000)).events();
    {
        let study = runner.run_function_async(|trial| {
            while !trial.is_stopped() {
                std::thread::yield_now();
            }
            Ok(Metrics::new())
        });
        let first = async { events.next().await };
        tokio::select! {
            _ = study => panic!("it has trials left"),
            first = first => assert!(matches!(first, Some(Event::Created { .. }))),
        }
    }
    let mut rest = Vec::new();
    while let Some(event) = events.next().await {
        rest.push(event);
    }
    assert!(rest.contains(&Event::StopRequested) && !rest.contains(&Event::Done), "{rest:?}");
}

#[test]
fn what_is_built_is_what_a_file_would_be() {
    let file = "space: {x: {float: [0, 1]}}\nobjective: {minimize: loss}\ntrial: {trainable: cifar10, epochs: 5}\n\
                search: {trials: 7, algorithm: gp, seed: 3}";
    let file = Study::from_yaml("study.yaml", file).unwrap();
    let built =
        Study::builder(file.space.clone()).minimize("loss").trainable("cifar10").epochs(5.0).trials(7);
    assert_eq!(built.algorithm(Algorithm::Gp).seed(3).build().unwrap(), file);
}

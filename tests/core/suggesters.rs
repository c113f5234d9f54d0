//! What every suggester promises, on random spaces.

use std::collections::BTreeSet;

use pollux_tune::{
    ids::TrialId,
    space::{Dim, Dims, Parent, Point},
    tpe::{Auto, Enqueue, Error, Gp, Grid, Halton, Outcome, Random, Suggester, Tpe, TpeOptions},
};
use proptest::{
    prelude::*,
    test_runner::{Config, FileFailurePersistence, TestCaseError, TestRunner},
};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

type Make = fn(&Dims, usize) -> Box<dyn Suggester>;

/// Everything behind the trait, for so many objectives.
const ALL: [(&str, Make); 8] = [
    ("tpe", |dims, objectives| {
        Box::new(Tpe::with_objectives(dims.clone(), objectives).expect("there are some"))
    }),
    ("tpe from the second trial on", |dims, objectives| Box::new(eager(dims, objectives))),
    ("random", |dims, objectives| {
        Box::new(Random::with_objectives(dims.clone(), objectives).expect("there are some"))
    }),
    ("halton", |dims, objectives| {
        Box::new(Halton::with_objectives(dims.clone(), 5, objectives).expect("there are some"))
    }),
    ("grid", |dims, objectives| {
        Box::new(Grid::with_objectives(dims.clone(), 3, objectives).expect("the grid is small"))
    }),
    ("enqueue", |dims, objectives| {
        let first = dims.build(|_, dim| dim.at(0.5));
        let next = Tpe::with_objectives(dims.clone(), objectives).expect("there are some");
        Box::new(Enqueue::new(dims, vec![first], next).expect("the point is fine"))
    }),
    ("gp", |dims, _| Box::new(Gp::new(dims.clone()))),
    ("auto", |dims, _| Box::new(Auto::new(dims.clone(), 4))),
];

const GOLDEN_TPE: [Option<f64>; 4] =
    [Some(0.137_271_262_180_563_3), Some(2.0), Some(5.0), Some(0.140_921_954_529_703_35)];
const GOLDEN_TPE_OF_TWO: [Option<f64>; 4] =
    [Some(0.511_186_613_130_159_9), Some(0.0), Some(4.0), Some(0.521_693_302_787_183_3)];
const GOLDEN_TPE_OF_THREE: [Option<f64>; 4] =
    [Some(0.375_708_595_001_560_1), Some(0.0), Some(0.0), Some(0.835_013_711_147_466_8)];
const GOLDEN_GP: [Option<f64>; 4] =
    [Some(0.376_242_800_463_871_2), Some(0.0), Some(0.0), Some(0.378_121_205_172_736_3)];
const GOLDEN_HALTON: [Option<f64>; 4] =
    [Some(0.056_520_693_495_964_336), Some(2.0), Some(3.0), Some(0.304_694_592_521_860_1)];

fn eager(dims: &Dims, objectives: usize) -> Tpe {
    let options = TpeOptions { startup: 1, objectives, ..TpeOptions::default() };
    Tpe::with_options(dims.clone(), options).expect("the options are fine")
}

fn flat(dims: &[Dim]) -> Dims {
    Dims::flat(dims.to_vec()).expect("it is a space")
}

fn rng(id: TrialId) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(9000 + u64::from(id.0))
}

/// Up to five parameters; some depend on one before them.
fn spaces() -> impl Strategy<Value = Dims> {
    let dim = prop_oneof![
        Just(Dim::Continuous),
        (1_u64..5).prop_map(|count| Dim::Discrete { count }),
        (1_usize..4).prop_map(|count| Dim::Categorical { count }),
    ];
    let parent = (any::<bool>(), 0_usize..5, 0_u64..4);
    prop::collection::vec((dim, parent), 0..=5).prop_map(|parts| {
        let dims: Vec<Dim> = parts.iter().map(|(dim, _)| *dim).collect();
        let parents = parts.iter().enumerate().map(|(at, &(_, (child, parent, choice)))| {
            let count = dims[..at].get(parent).and_then(|dim| dim.cells()).filter(|_| child)?;
            Some(Parent { dim: parent, choices: vec![choice % count] })
        });
        Dims::new(dims.clone(), parents.collect()).expect("parents come first")
    })
}

/// What happens next in a study: a trial begins, or the running trial of this place ends like that.
#[derive(Debug, Clone)]
enum Event {
    Ask,
    Tell(usize, Outcome),
}

fn events(objectives: usize) -> impl Strategy<Value = Vec<Event>> {
    let number = prop_oneof![
        8 => -1e3..1e3,
        1 => Just(f64::NAN),
        1 => Just(f64::INFINITY),
        1 => Just(f64::NEG_INFINITY),
    ];
    let outcome = prop_oneof![
        4 => prop::collection::vec(number.clone(), objectives).prop_map(Outcome::Done),
        1 => (prop::option::of(number), 0_u64..9).prop_map(|(value, step)| Outcome::Stopped { value, step }),
        1 => Just(Outcome::Failed),
        1 => Just(Outcome::Cancelled),
    ];
    let event = prop_oneof![
        3 => Just(Event::Ask),
        2 => (0_usize..4, outcome).prop_map(|(place, outcome)| Event::Tell(place, outcome)),
    ];
    prop::collection::vec(event, 1..80)
}

/// Plays events and returns the points, until a finite suggester has no more.
fn play(suggester: &mut dyn Suggester, events: &[Event]) -> Result<Vec<Point>, Error> {
    let (mut points, mut running) = (Vec::new(), Vec::new());
    for event in events {
        match event {
            Event::Ask => {
                let id = TrialId(points.len() as u32);
                match suggester.ask(id, &mut rng(id)) {
                    Ok(point) => points.push(point),
                    Err(Error::Exhausted(_)) => break,
                    Err(error) => return Err(error),
                }
                running.push(id);
            }
            Event::Tell(place, outcome) => {
                if *place < running.len() {
                    suggester.tell(running.remove(*place), outcome.clone())?;
                }
            }
        }
    }
    Ok(points)
}

/// Shows a suggester the same events with the points that were asked for.
fn replay(suggester: &mut dyn Suggester, events: &[Event], points: &[Point]) -> Result<(), Error> {
    let (mut points, mut running) = ((0..).map(TrialId).zip(points), Vec::new());
    for event in events {
        match event {
            Event::Ask => {
                let Some((id, point)) = points.next() else { return Ok(()) };
                suggester.insert(id, point.clone())?;
                running.push(id);
            }
            Event::Tell(place, outcome) => {
                if *place < running.len() {
                    suggester.tell(running.remove(*place), outcome.clone())?;
                }
            }
        }
    }
    Ok(())
}

fn conforms(
    make: impl Fn() -> Box<dyn Suggester>,
    dims: &Dims,
    events: &[Event],
) -> Result<(), TestCaseError> {
    let wrong = |error: Error| TestCaseError::fail(error.to_string());
    let (mut live, mut twin, mut late) = (make(), make(), make());
    let points = play(&mut *live, events).map_err(wrong)?;
    for point in &points {
        prop_assert!(dims.contains(point), "{:?} is not in the space", point);
    }
    prop_assert_eq!(&play(&mut *twin, events).map_err(wrong)?, &points, "the same results, other points");
    replay(&mut *late, events, &points).map_err(wrong)?;
    let id = TrialId(points.len() as u32);
    let next = live.ask(id, &mut rng(id));
    prop_assert_eq!(late.ask(id, &mut rng(id)), next, "replayed and live differ");
    Ok(())
}

/// Models have one objective.
fn is_model(name: &str) -> bool {
    matches!(name, "gp" | "auto")
}

#[test]
fn all_suggesters_keep_their_promises() {
    let settings = ALL.into_iter().flat_map(|all| [(all, 1), (all, 2), (all, 3)]);
    for ((name, make), objectives) in settings.filter(|((name, _), count)| *count == 1 || !is_model(name)) {
        let seeds = FileFailurePersistence::WithSource("regressions");
        let failure_persistence = Some(Box::new(seeds) as Box<_>);
        // A suggestion of a model takes a millisecond or more.
        let cases = if is_model(name) { 48 } else { Config::default().cases };
        let config = Config { cases, source_file: Some(file!()), failure_persistence, ..Config::default() };
        let run = |(dims, events): (Dims, Vec<Event>)| conforms(|| make(&dims, objectives), &dims, &events);
        if let Err(error) = TestRunner::new(config).run(&(spaces(), events(objectives)), run) {
            panic!("{name} with {objectives} objectives: {error}");
        }
    }
}

#[test]
fn trials_that_run_at_the_same_time_differ() {
    let dims = flat(&[Dim::Continuous, Dim::Continuous]);
    for (name, make) in ALL {
        let mut suggester = make(&dims, 1);
        let mut seen = BTreeSet::new();
        for id in (0..9).map(TrialId) {
            let point = suggester.ask(id, &mut rng(id)).expect("there are nine points");
            seen.insert(point.iter().map(|x| x.map(f64::to_bits)).collect::<Vec<_>>());
            if id.0 < 3 {
                suggester.tell(id, Outcome::Done(vec![0.0])).expect("it is running");
            }
        }
        assert_eq!(seen.len(), 9, "{name}");
    }
}

#[test]
fn running_trials_keep_tpe_away() {
    let dims = flat(&[Dim::Continuous]);
    let mut tpe = eager(&dims, 1);
    for (number, x) in [(0, 0.5), (1, 0.1), (2, 0.9), (3, 0.48), (4, 0.52)] {
        tpe.insert(TrialId(number), vec![Some(x)]).expect("it is new");
        tpe.tell(TrialId(number), Outcome::Done(vec![(x - 0.5_f64).abs()])).expect("it is running");
    }
    let points: Vec<f64> = (5..13)
        .map(TrialId)
        .filter_map(|id| tpe.ask(id, &mut rng(id)).expect("it has an answer")[0])
        .collect();
    let spread = points.iter().fold(0.0, |spread: f64, x| spread.max((x - 0.5).abs()));
    assert!(spread > 0.1, "{points:?}");
}

#[test]
fn spaces_without_a_choice_have_one_answer() {
    for (name, make) in ALL {
        for dims in [flat(&[]), flat(&[Dim::Categorical { count: 1 }, Dim::Discrete { count: 1 }])] {
            let mut suggester = make(&dims, 1);
            let mut answers = 0;
            for id in (0..30).map(TrialId) {
                match suggester.ask(id, &mut rng(id)) {
                    Ok(point) => assert!(dims.contains(&point), "{name}"),
                    Err(error) => {
                        assert_eq!((name, error), ("grid", Error::Exhausted(1)));
                        continue;
                    }
                }
                answers += 1;
                suggester.tell(id, Outcome::Done(vec![1.0])).expect("it is running");
            }
            assert_eq!(answers, if name == "grid" { 1 } else { 30 }, "{name}");
        }
    }
}

#[test]
fn finite_spaces_run_out_gracefully() {
    let dims = flat(&[Dim::Categorical { count: 4 }, Dim::Discrete { count: 5 }]);
    for (name, make) in ALL {
        let mut suggester = make(&dims, 1);
        let mut seen = BTreeSet::new();
        for id in (0..60).map(TrialId) {
            match suggester.ask(id, &mut rng(id)) {
                Ok(point) => {
                    seen.insert(point.iter().map(|x| x.map(f64::to_bits)).collect::<Vec<_>>());
                    let value = point.iter().flatten().sum();
                    suggester.tell(id, Outcome::Done(vec![value])).expect("it is running");
                }
                Err(error) => assert_eq!((name, error), ("grid", Error::Exhausted(20))),
            }
            let no_repeats = matches!(name, "grid" | "enqueue" | "gp" | "auto") || name.starts_with("tpe");
            assert!(!no_repeats || id.0 >= 20 || seen.len() > id.0 as usize, "{name} repeats at {id}");
        }
    }
}

#[test]
fn constraints_hold_and_impossible_ones_are_named() {
    let dims = flat(&[Dim::Continuous, Dim::Continuous, Dim::Categorical { count: 2 }]);
    let narrow = dims.clone().with_constraint(|point| point[0] >= point[1].map(|x| x + 0.5));
    let never = dims.with_constraint(|_| false);
    for (name, make) in ALL.into_iter().filter(|(name, _)| *name != "enqueue") {
        let mut suggester = make(&narrow, 1);
        for id in (0..60).map(TrialId) {
            let Ok(point) = suggester.ask(id, &mut rng(id)) else {
                assert_eq!((name, id.0), ("grid", 6), "out of points");
                break;
            };
            assert!(narrow.is_feasible(&point), "{name}: {point:?}");
            let value = point.iter().flatten().sum();
            suggester.tell(id, Outcome::Done(vec![value])).expect("it is running");
        }
        let error = make(&never, 1).ask(TrialId(0), &mut rng(TrialId(0)));
        assert!(matches!(error, Err(Error::Infeasible(_) | Error::Exhausted(0))), "{name}: {error:?}");
    }
}

#[test]
fn mistakes_of_the_caller_are_named_and_change_nothing() {
    let dims = flat(&[Dim::Continuous]);
    let settings = ALL.into_iter().flat_map(|all| [(all, 1), (all, 2)]);
    for ((name, make), objectives) in settings.filter(|((name, _), count)| *count == 1 || !is_model(name)) {
        let mut suggester = make(&dims, objectives);
        let (id, other) = (TrialId(3), TrialId(4));
        assert_eq!(suggester.tell(id, Outcome::Failed), Err(Error::UnknownTrial(id)), "{name}");
        suggester.ask(id, &mut rng(id)).expect("it is new");
        assert_eq!(suggester.ask(id, &mut rng(id)), Err(Error::DuplicateTrial(id)), "{name}");
        assert_eq!(suggester.insert(other, vec![None]), Err(Error::BadPoint(other)), "{name}");
        let wrong = Error::Objectives { trial: id, given: objectives + 1, expected: objectives };
        assert_eq!(suggester.tell(id, Outcome::Done(vec![0.0; objectives + 1])), Err(wrong), "{name}");
        suggester.tell(id, Outcome::Done(vec![0.0; objectives])).expect("it is running");
        assert_eq!(suggester.tell(id, Outcome::Failed), Err(Error::DuplicateResult(id)), "{name}");
        assert!(suggester.ask(other, &mut rng(other)).is_ok(), "{name}");
    }
}

#[test]
fn there_is_at_least_one_objective() {
    let dims = flat(&[Dim::Continuous]);
    let errors = [
        Tpe::with_objectives(dims.clone(), 0).err(),
        Random::with_objectives(dims.clone(), 0).err(),
        Halton::with_objectives(dims.clone(), 1, 0).err(),
        Grid::with_objectives(dims, 2, 0).err(),
    ];
    for error in errors {
        let error = error.expect("it is refused").to_string();
        assert_eq!(error, "the number of objectives is 0; expected 1 or more");
    }
}

/// Fails if a change of the code, of a dependency or of the machine changes what is suggested.
#[test]
fn suggestions_are_the_same_everywhere() {
    let child = Parent { dim: 1, choices: vec![0, 2] };
    let cells = Dim::Discrete { count: 7 };
    let dims = vec![Dim::Continuous, Dim::Categorical { count: 3 }, cells, Dim::Continuous];
    let dims = Dims::new(dims, vec![None, None, None, Some(child)]).expect("it is a space");
    let last = |make: Make, objectives: usize, trials: u32| {
        let mut suggester = make(&dims, objectives);
        let mut point = Point::new();
        for id in (0..trials).map(TrialId) {
            point = suggester.ask(id, &mut rng(id)).expect("it has an answer");
            let sum = |middle: f64| point.iter().flatten().map(|x| (x - middle) * (x - middle)).sum();
            let values = [0.4, 2.0, 0.1].into_iter().take(objectives).map(sum);
            suggester.tell(id, Outcome::Done(values.collect())).expect("it is running");
        }
        point
    };
    assert_eq!(last(ALL[0].1, 1, 40), GOLDEN_TPE);
    assert_eq!(last(ALL[0].1, 2, 40), GOLDEN_TPE_OF_TWO);
    assert_eq!(last(ALL[0].1, 3, 40), GOLDEN_TPE_OF_THREE);
    assert_eq!(last(ALL[3].1, 1, 40), GOLDEN_HALTON);
    assert_eq!(last(ALL[6].1, 1, 24), GOLDEN_GP);
}

/// The next points with and without trials that were cancelled, whatever they tried.
#[test]
fn cancelled_trials_say_nothing() {
    for name in ["tpe", "gp"] {
        let (_, make) = ALL.into_iter().find(|(other, _)| *other == name).expect("it is one of them");
        let next = |cancelled: u32| {
            let mut suggester = make(&flat(&[Dim::Continuous]), 1);
            for number in 0..30 {
                let x = f64::from(number) / 29.0;
                suggester.insert(TrialId(number), vec![Some(x)]).expect("it is new");
                suggester.tell(TrialId(number), Outcome::Done(vec![(x - 0.7).abs()])).expect("it is running");
            }
            for id in (100..100 + cancelled).map(TrialId) {
                suggester.insert(id, vec![Some(0.7)]).expect("it is new");
                suggester.tell(id, Outcome::Cancelled).expect("it is running");
            }
            suggester.ask(TrialId(40), &mut rng(TrialId(40)))
        };
        assert_eq!(next(20), next(0), "{name}");
    }
}

#[test]
fn models_learn_from_failures_and_stopped_trials() {
    for name in ["tpe", "gp"] {
        learns_from_failures(name);
    }
}

fn learns_from_failures(name: &str) {
    let (_, make) = ALL.into_iter().find(|(other, _)| *other == name).expect("it is one of them");
    let mut suggester = make(&flat(&[Dim::Continuous]), 1);
    let mut late = Vec::new();
    for id in (0..120).map(TrialId) {
        let x = suggester.ask(id, &mut rng(id)).expect("it has an answer")[0].expect("it is active");
        // The lower half crashes, the middle is stopped, the upper quarter is good.
        let outcome = match x {
            x if x < 0.5 => Outcome::Failed,
            x if x < 0.75 => Outcome::Stopped { value: Some(2.0 - x), step: 1 },
            x => Outcome::Done(vec![1.0 - x]),
        };
        suggester.tell(id, outcome).expect("it is running");
        if id.0 >= 60 {
            late.push(x);
        }
    }
    let good = late.iter().filter(|&&x| x > 0.75).count();
    assert!(good >= 48, "{name}: only {good} of {} were good", late.len());
}

/// The minimum of Branin's function is 0.397887 at three places.
fn branin(point: &[Option<f64>]) -> f64 {
    let at = |dim: usize| point[dim].expect("it is always active") * 15.0;
    let (x, y) = (at(0) - 5.0, at(1));
    let pi = std::f64::consts::PI;
    let valley = y - 5.1 / (4.0 * pi * pi) * x * x + 5.0 / pi * x - 6.0;
    valley * valley + 10.0 * (1.0 - 1.0 / (8.0 * pi)) * x.cos() + 10.0 - 0.397_887_357_729_739
}

#[test]
fn gp_needs_few_trials_for_a_smooth_function() {
    for workers in [1, 4] {
        let mut gp = Gp::new(flat(&[Dim::Continuous, Dim::Continuous]));
        let (mut running, mut best) = (Vec::new(), f64::INFINITY);
        for id in (0..60).map(TrialId) {
            running.push((id, gp.ask(id, &mut rng(id)).expect("it has an answer")));
            if running.len() == workers {
                let (id, point) = running.remove(0);
                best = best.min(branin(&point));
                gp.tell(id, Outcome::Done(vec![branin(&point)])).expect("it is running");
            }
        }
        assert!(best < 1e-3, "{best} with {workers} workers");
    }
}

/// The points of three batches after the first, each of which is told at once.
fn batches(suggester: &mut dyn Suggester, size: u32) -> Vec<Vec<Point>> {
    let mut batches = Vec::new();
    for first in (0..4).map(|batch| batch * size) {
        let ids = (first..first + size).map(TrialId);
        let points: Vec<Point> =
            ids.clone().map(|id| suggester.ask(id, &mut rng(id)).expect("it has an answer")).collect();
        for (id, point) in ids.zip(&points) {
            suggester.tell(id, Outcome::Done(vec![branin(point)])).expect("it is running");
        }
        batches.push(points);
    }
    batches.split_off(1)
}

fn distance(a: &Point, b: &Point) -> f64 {
    let along = |(a, b): (&Option<f64>, &Option<f64>)| (a.unwrap_or(0.0) - b.unwrap_or(0.0)).abs();
    a.iter().zip(b).map(along).fold(0.0, f64::max)
}

/// Most points of a batch were within 1e-3 of another one.
#[test]
fn gp_spreads_the_points_of_a_batch() {
    let mut gp = Gp::new(flat(&[Dim::Continuous, Dim::Continuous]));
    let batches = batches(&mut gp, 16);
    for batch in &batches {
        for (at, point) in batch.iter().enumerate() {
            let nearest = batch[..at].iter().map(|other| distance(point, other)).fold(1.0, f64::min);
            assert!(nearest > 1e-3, "{nearest} at {at} of {batch:?}");
        }
    }
    let best = batches.iter().flatten().map(|point| branin(point)).fold(f64::INFINITY, f64::min);
    assert!(best < 0.01, "{best}");
}

/// The best point is a corner, which was suggested again and again.
#[test]
fn gp_tries_a_corner_once() {
    let mut gp = Gp::new(flat(&[Dim::Continuous; 3]));
    let mut points: Vec<Point> = Vec::new();
    for id in (0..50).map(TrialId) {
        let point = gp.ask(id, &mut rng(id)).expect("it has an answer");
        assert!(points.iter().all(|other| distance(&point, other) > 1e-6), "{point:?} again");
        let value = point.iter().flatten().sum();
        gp.tell(id, Outcome::Done(vec![value])).expect("it is running");
        points.push(point);
    }
    assert!(points.contains(&vec![Some(0.0); 3]), "it never got there");
}

#[test]
fn gp_has_no_preference_where_all_is_the_same() {
    let mut gp = Gp::new(flat(&[Dim::Continuous; 3]));
    for id in (0..50).map(TrialId) {
        let point = gp.ask(id, &mut rng(id)).expect("it has an answer");
        assert!(point.iter().flatten().all(|&x| x > 0.0 && x < 1.0), "{point:?} is at a bound");
        gp.tell(id, Outcome::Done(vec![7.0])).expect("it is running");
    }
}

/// Results are anything between the best and twice as bad, whatever the point: there is only noise.
#[test]
fn gp_does_not_cling_to_a_lucky_result() {
    let mut gp = Gp::new(flat(&[Dim::Continuous]));
    for (number, x) in (0..20_u32).map(|number| (number, f64::from(number) / 19.0)) {
        let value = if number == 7 { -3.0 } else { f64::from(number * 7 % 5) };
        gp.insert(TrialId(number), vec![Some(x)]).expect("it is new");
        gp.tell(TrialId(number), Outcome::Done(vec![value])).expect("it is running");
    }
    let mut near = 0;
    for id in (20..40).map(TrialId) {
        let x = gp.ask(id, &mut rng(id)).expect("it has an answer")[0].expect("it is active");
        near += usize::from((x - 7.0 / 19.0).abs() < 0.01);
        gp.tell(id, Outcome::Done(vec![f64::from(id.0 * 7 % 5)])).expect("it is running");
    }
    assert!(near < 15, "{near} of 20 are at the lucky one");
}

/// More trials than the model looks at, some of them still running.
#[test]
fn gp_takes_many_trials() {
    let dims = flat(&[Dim::Continuous, Dim::Discrete { count: 100 }]);
    let mut gp = Gp::new(dims.clone());
    for id in (0..1000).map(TrialId) {
        let point =
            dims.build(|dim, parameter| parameter.at(f64::from((id.0 * [377, 611][dim]) % 1000) / 1000.0));
        let value = point[0].expect("it is active") + point[1].expect("it is active") / 100.0;
        gp.insert(id, point).expect("it is new");
        if id.0 % 3 > 0 {
            gp.tell(id, Outcome::Done(vec![value])).expect("it is running");
        }
    }
    let point = gp.ask(TrialId(1000), &mut rng(TrialId(1000))).expect("it has an answer");
    assert!(dims.contains(&point) && point[0] < Some(0.1) && point[1] < Some(10.0), "{point:?}");
}

/// From the file to the assignment: suggestions for the example studies decode, and keep conditions and constraints.
#[test]
fn the_example_studies_can_be_searched() {
    let alike = |(a, b): (&Option<f64>, &Option<f64>)| match (a, b) {
        (Some(a), Some(b)) => (a - b).abs() < 1e-12,
        (a, b) => a.is_none() && b.is_none(),
    };
    for file in ["cifar10.yaml", "transformer.yaml"] {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("search-spaces").join(file);
        let text = std::fs::read_to_string(&path).expect("the example is there");
        let study = pollux_tune::space::Study::from_yaml(file, &text).expect("the example is valid");
        let mut suggester = Tpe::new(study.space.to_dims().expect("the space has dimensions"));
        for id in (0..60).map(TrialId) {
            let rng = &mut ChaCha8Rng::seed_from_u64(u64::from(id.0));
            let point = suggester.ask(id, rng).expect("there is something to try");
            let assignment = study.space.decode(&point).expect("the point is one of the space");
            assert!(study.space.satisfies(&assignment), "{file}: {assignment}");
            let back = study.space.encode(&assignment).expect("it goes back");
            assert!(point.iter().zip(&back).all(alike), "{file}: {point:?} {back:?}");
            let value = point.iter().flatten().sum();
            suggester.tell(id, Outcome::Done(vec![value])).expect("it is running");
        }
    }
}

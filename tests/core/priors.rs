//! What experts expect of parameters, in study files and in searches.

use pollux_tune::{
    ids::TrialId,
    space::{Confidence, Dim, DimPrior, Dims, Domain, Error, Params, Space, Study, Value},
    tpe::{Auto, Gp, Outcome, Random, Suggester, Tpe},
    trials::{Search, engine::JournalEntry},
};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

#[test]
fn study_files_have_priors_and_keep_them() {
    let yaml = "
space:
  lr: {log: [1e-5, 1e-1], prior: 3e-4}
  width: {int: [64, 512], step: 64, prior: 128, confidence: low}
  optimizer:
    choice: {sgd: {momentum: {float: [0, 1], prior: 0.9}}, adam: {}}
    prior: adam
    confidence: high
  nesterov: {choice: [false, true], prior: false, when: {optimizer: sgd}}
  depth: [2, 4]
objective: {minimize: loss}
";
    let study = Study::from_yaml("study.yaml", yaml).expect("it is right");
    let prior = |name: &str| {
        let parameter = study.space.parameters().iter().find(|known| known.name() == name).expect(name);
        parameter.prior().map(|prior| (prior.value().clone(), prior.confidence()))
    };
    assert_eq!(prior("lr"), Some((Value::Float(3e-4), Confidence::Medium)));
    assert_eq!(prior("width"), Some((Value::Int(128), Confidence::Low)));
    assert_eq!(prior("optimizer"), Some((Value::Text("adam".to_owned()), Confidence::High)));
    assert_eq!(prior("momentum"), Some((Value::Float(0.9), Confidence::Medium)));
    assert_eq!(prior("nesterov"), Some((Value::Bool(false), Confidence::Medium)));
    assert_eq!(prior("depth"), None);
    let written = study.to_yaml();
    assert_eq!(Study::from_yaml("study.yaml", &written).as_ref(), Ok(&study), "{written}");
    let dims = study.space.to_dims().expect("it can be searched");
    assert_eq!(dims.prior(1), Some(DimPrior { coordinate: 1.0, confidence: Confidence::Low }));
    assert_eq!((0..dims.len()).filter(|&dim| dims.prior(dim).is_some()).count(), 5);
}

/// They guide a search, and the points so far stay what they are.
#[test]
fn a_study_can_continue_with_other_priors() {
    let study = |prior: &str| {
        let yaml =
            format!("{{space: {{a: {{float: [0, 1]{prior}}}, b: [x, y]}}, objective: {{minimize: loss}}}}");
        Study::from_yaml("study.yaml", &yaml).expect("it is right")
    };
    let (before, now) = (study(", prior: 0.5"), study(", prior: 0.25, confidence: low"));
    assert_eq!(now.continuing(&before), Ok(now.clone()));
    assert_eq!(study("").continuing(&before), Ok(study("")));
}

#[test]
fn bad_priors_are_named() {
    let mistake = |parameter: &str| {
        let yaml = format!("space:\n  p: {parameter}\nobjective: {{minimize: loss}}\n");
        Study::from_yaml("study.yaml", &yaml).expect_err(parameter).to_string()
    };
    let cases = [
        (
            "{log: [1e-5, 1e-1], prior: 1}",
            "study.yaml:2:33: space.p.prior: the prior of `p` is 1; expected a value of",
        ),
        ("{int: [64, 512], step: 64, prior: 100}", "the prior of `p` is 100"),
        ("{choice: [a, b], prior: c}", "the prior of `p` is c; expected a value of {choice: [a, b]}"),
        ("{fixed: 3, prior: 3}", "`p` has a fixed value"),
        ("{float: [0, 1], prior: [0.5]}", "space.p.prior"),
        ("{float: [0, 1], prior: 0.5, confidence: sure}", "expected one of low, medium, high"),
        (
            "{float: [0, 1], confidence: high}",
            "`confidence` has no effect without a `prior`; use it next to one",
        ),
    ];
    for (parameter, expected) in cases {
        let message = mistake(parameter);
        assert!(message.contains(expected), "{parameter}: {message}");
    }
    let domain = Domain::float(0.0, 1.0).expect("it is a domain");
    let unknown = Space::builder().add("lr", domain).expect_value("lt", 0.5, Confidence::Low).build();
    assert!(matches!(unknown, Err(Error::Unknown { .. })), "{unknown:?}");
}

/// A bowl in four numbers and a choice, 0 at its bottom.
fn loss(point: &[Option<f64>]) -> f64 {
    let number = |at: usize| point[at].expect("it is always active");
    let bowl: f64 = (0..4).map(|at| (number(at) - 0.3).powi(2)).sum();
    bowl + if number(4) < 0.5 { 0.0 } else { 0.2 }
}

/// The space of it, with priors in the numbers.
fn dims(number: Option<f64>, choice: f64) -> Dims {
    let mut dims = vec![Dim::Continuous; 4];
    dims.push(Dim::Categorical { count: 3 });
    let dims = Dims::flat(dims).expect("it is a space");
    let Some(number) = number else { return dims };
    let prior = |coordinate| DimPrior { coordinate, confidence: Confidence::Medium };
    let priors = (0..4).map(|dim| (dim, prior(number))).chain([(4, prior(choice))]);
    dims.with_priors(priors).expect("they are inside")
}

/// The smallest loss of a number of trials, the median of some seeds.
fn median(make: fn(Dims) -> Box<dyn Suggester>, dims: &Dims, trials: u32) -> f64 {
    let mut all: Vec<f64> = (0..7)
        .map(|seed| {
            let mut suggester = make(dims.clone());
            let mut best = f64::INFINITY;
            for id in (0..trials).map(TrialId) {
                let rng = &mut ChaCha8Rng::seed_from_u64(seed << 32 | u64::from(id.0));
                let point = suggester.ask(id, rng).expect("there is a point");
                best = best.min(loss(&point));
                suggester.tell(id, Outcome::Done(vec![loss(&point)])).expect("it is running");
            }
            best
        })
        .collect();
    all.sort_by(f64::total_cmp);
    all[3]
}

const MAKE: [fn(Dims) -> Box<dyn Suggester>; 4] = [
    |dims| Box::new(Tpe::new(dims)),
    |dims| Box::new(Gp::new(dims)),
    |dims| Box::new(Auto::new(dims, 1)),
    |dims| Box::new(Random::new(dims)),
];

#[test]
fn good_priors_help_at_once_and_bad_ones_do_not_hurt_for_long() {
    for make in [MAKE[0], MAKE[1], MAKE[3]] {
        let name = make(dims(None, 0.0)).name();
        let few = |dims: &Dims| median(make, dims, 12);
        let (without, with) = (few(&dims(None, 0.0)), few(&dims(Some(0.38), 0.0)));
        assert!(with < 0.5 * without, "{name}: {with} with good priors, {without} without");
        if name != "random" {
            let many = |dims: &Dims| median(make, dims, 70);
            let (without, with) = (many(&dims(None, 0.0)), many(&dims(Some(0.9), 2.0)));
            assert!(with < 3.0 * without + 1e-4, "{name}: {with} with bad priors, {without} without");
        }
    }
}

#[test]
fn the_first_trial_has_all_priors() {
    for make in MAKE {
        let mut suggester = make(dims(Some(0.7), 1.0));
        let first = suggester.ask(TrialId(0), &mut ChaCha8Rng::seed_from_u64(5)).expect("there is a point");
        assert_eq!(first, [0.7, 0.7, 0.7, 0.7, 1.0].map(Some), "{}", suggester.name());
        let second = suggester.ask(TrialId(1), &mut ChaCha8Rng::seed_from_u64(6)).expect("there is a point");
        assert_ne!(first, second);
    }
}

/// Most of the time an earlier study is right, and sometimes it is not.
#[test]
fn results_of_an_earlier_study_are_a_start_and_no_more() {
    for make in [MAKE[0], MAKE[1]] {
        let after = |trials: u32, shift: Option<f64>| {
            let mut suggester = make(dims(None, 0.0));
            for number in 0..shift.map_or(0, |_| 40) {
                let rng = &mut ChaCha8Rng::seed_from_u64(number);
                let point = dims(None, 0.0).build(|_, dim| dim.at(rand::RngExt::random(rng)));
                let moved: Vec<Option<f64>> = point
                    .iter()
                    .enumerate()
                    .map(|(at, x)| if at < 4 { x.map(|x| x - shift.unwrap_or(0.0)) } else { *x })
                    .collect();
                let outcome = Outcome::Done(vec![loss(&moved)]);
                suggester.import(TrialId(u32::MAX - number as u32), point, outcome).expect("it is new");
            }
            let mut best = f64::INFINITY;
            for id in (0..trials).map(TrialId) {
                let rng = &mut ChaCha8Rng::seed_from_u64(900 + u64::from(id.0));
                let point = suggester.ask(id, rng).expect("there is a point");
                best = best.min(loss(&point));
                suggester.tell(id, Outcome::Done(vec![loss(&point)])).expect("it is running");
            }
            best
        };
        let name = make(dims(None, 0.0)).name();
        assert!(after(8, Some(0.0)) < 0.5 * after(8, None), "{name} with the same optimum");
        let (moved, none) = (after(60, Some(0.4)), after(60, None));
        assert!(moved < 3.0 * none + 1e-3, "{name}: {moved} with another optimum, {none} without");
    }
}

/// A search that is shown the journal of another one continues as that one does.
#[test]
fn searches_with_priors_can_be_replayed() {
    for algorithm in ["tpe", "gp", "auto", "random"] {
        let yaml = format!(
            "{{space: {{lr: {{log: [1e-5, 1], prior: 1e-3}}, act: {{choice: [a, b], prior: b}}}}, objective: {{minimize: loss}}, \
             search: {{trials: 40, algorithm: {algorithm}}}}}"
        );
        let study = Study::from_yaml("study.yaml", &yaml).expect("it is right");
        let mut search = Search::new(&study).expect("it can be searched");
        let known = Params::from_iter([("lr", 1e-2.into()), ("act", "a".into())]);
        search.learn(&known, &0.5.into(), None).expect("it is of the space");
        for _ in 0..25 {
            let trial = search.ask().expect("there are more");
            let lr = trial.params.float("lr").expect("it is active");
            search.tell(trial.id, (lr.ln() + 5.0).abs()).expect("it is running");
        }
        let mut again = Search::new(&study).expect("it can be searched");
        for fact in search.take_facts() {
            again.apply(&JournalEntry { at_s: 0.0, fact }).expect("it fits");
        }
        for _ in 0..3 {
            assert_eq!(again.ask(), search.ask(), "{algorithm}");
        }
    }
}

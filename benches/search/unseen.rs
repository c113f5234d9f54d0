//! Functions that no setting was chosen with: each seed has one of its own, with its optimum elsewhere and turned another way, as in the
//! suite BBOB (Hansen et al. 2009).

use std::{
    f64::consts::PI,
    fmt::Write,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use pollux_tune::{
    ids::TrialId,
    space::{Confidence, Dim, DimPrior, Dims, Parent, Point},
    tpe::{Outcome, Suggester},
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};

use crate::{
    ours::{OURS, Ours, Seeded},
    problems::Problem,
    report::short,
    stats::median,
    study::run,
};

/// Trials of the study before.
const EARLIER: u32 = 60;
/// Parameters of the functions with a few.
const FEW: usize = 5;
/// And of those with many, and how many of these matter where not all of them do.
const MANY: usize = 40;
const MATTER: usize = 6;

/// What is known before the first trial.
#[derive(Clone, Copy, PartialEq)]
enum Before {
    Nothing,
    /// A study of the same function,
    Same,
    /// or of one whose optimum is 30 % of the range away in each parameter.
    Moved,
    /// Priors that are a tenth of the range off,
    Good,
    /// or almost half of it.
    Bad,
}

/// A kind of function, how many trials at a time, and how many in all.
struct Case {
    name: &'static str,
    kind: Kind,
    workers: usize,
    trials: usize,
    before: Before,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// Long axes a hundred times as long as short ones.
    Ellipsoid,
    /// Many local minima.
    Rastrigin,
    /// A bent valley.
    Rosenbrock,
    /// An ellipsoid, and a penalty of a million in a quarter of the space.
    Penalty,
    /// The best point is a corner.
    Corner,
    /// Choices in choices, with numbers of their own: thirteen parameters.
    Tree,
    /// Forty parameters, of which six matter,
    Few,
    /// or all.
    All,
}

fn cases() -> Vec<Case> {
    let case = |name, kind, workers, trials, before| Case { name, kind, workers, trials, before };
    let mut all = Vec::new();
    for (name, kind) in [
        ("ellipsoid", Kind::Ellipsoid),
        ("rastrigin", Kind::Rastrigin),
        ("rosenbrock", Kind::Rosenbrock),
        ("tree", Kind::Tree),
    ] {
        all.extend([1, 4, 16].map(|workers| case(name, kind, workers, 100, Before::Nothing)));
    }
    all.push(case("penalty", Kind::Penalty, 1, 100, Before::Nothing));
    all.push(case("corner", Kind::Corner, 1, 50, Before::Nothing));
    all.push(case("40 parameters, 6 matter", Kind::Few, 1, 100, Before::Nothing));
    all.push(case("40 parameters", Kind::All, 1, 100, Before::Nothing));
    for trials in [20, 60] {
        all.extend([
            case("ellipsoid, the same before", Kind::Ellipsoid, 1, trials, Before::Same),
            case("ellipsoid, moved since", Kind::Ellipsoid, 1, trials, Before::Moved),
            case("ellipsoid, good priors", Kind::Ellipsoid, 1, trials, Before::Good),
            case("ellipsoid, bad priors", Kind::Ellipsoid, 1, trials, Before::Bad),
            case("ellipsoid, nothing before", Kind::Ellipsoid, 1, trials, Before::Nothing),
        ]);
    }
    all
}

/// An orthogonal matrix at random.
fn rotation(rng: &mut ChaCha8Rng) -> Vec<Vec<f64>> {
    let mut rows: Vec<Vec<f64>> = Vec::new();
    for _ in 0..MATTER {
        let mut row: Vec<f64> = (0..MATTER).map(|_| StandardNormal.sample(rng)).collect();
        for other in &rows {
            let along: f64 = row.iter().zip(other).map(|(a, b)| a * b).sum();
            row.iter_mut().zip(other).for_each(|(a, b)| *a -= along * b);
        }
        let length = row.iter().map(|a| a * a).sum::<f64>().sqrt();
        for a in &mut row {
            *a /= length;
        }
        rows.push(row);
    }
    rows
}

/// The best point of a function in a cube: away from its bounds.
fn optimum(seed: u64, moved: bool) -> Vec<f64> {
    let rng = &mut ChaCha8Rng::seed_from_u64(seed);
    let mut best = Vec::new();
    for _ in 0..MANY {
        let (x, step): (f64, f64) = (rng.random_range(0.1..0.9), if rng.random() { 0.3 } else { -0.3 });
        let there = if (0.02..=0.98).contains(&(x + step)) { x + step } else { x - step };
        best.push(if moved { there } else { x });
    }
    best
}

fn problem(kind: Kind, seed: u64, moved: bool) -> Problem {
    let best = optimum(seed, moved);
    if kind == Kind::Tree {
        return tree(best);
    }
    let turn = rotation(&mut ChaCha8Rng::seed_from_u64(seed ^ 1 << 32));
    let count = if matches!(kind, Kind::Few | Kind::All) { MANY } else { FEW };
    let dims = Dims::flat(vec![Dim::Continuous; count]).expect("it is a space");
    let value = move |point: &[Option<f64>]| {
        let z: Vec<f64> = point.iter().zip(&best).map(|(x, best)| 10.0 * (x.unwrap_or(0.0) - best)).collect();
        let part = &z[..z.len().min(MATTER)];
        let turned: Vec<f64> =
            turn.iter().take(part.len()).map(|row| row.iter().zip(part).map(|(a, z)| a * z).sum()).collect();
        match kind {
            Kind::Penalty if (point[0].unwrap_or(0.0) * 12.0) as u32 % 4 == 3 => 1e6,
            Kind::Corner => point.iter().flatten().sum(),
            Kind::All => z.iter().map(|z| z * z).sum(),
            Kind::Rastrigin => turned.iter().map(|v| 2.0 * (1.0 - (PI * v).cos()) + v * v).sum(),
            Kind::Rosenbrock => {
                let v: Vec<f64> = turned.iter().map(|v| 0.5 * v + 1.0).collect();
                v.windows(2).map(|v| 100.0 * (v[1] - v[0] * v[0]).powi(2) + (1.0 - v[0]).powi(2)).sum()
            }
            _ => {
                let steep = |at: usize| 10_f64.powf(4.0 * at as f64 / (turned.len() - 1) as f64 - 2.0);
                turned.iter().enumerate().map(|(at, v)| steep(at) * v * v).sum()
            }
        }
    };
    Problem::function("unseen", dims, value)
}

fn tree(best: Vec<f64>) -> Problem {
    let choice = |count| Dim::Categorical { count };
    let mut dims = vec![Dim::Continuous; 13];
    (dims[0], dims[2], dims[6], dims[10]) = (choice(3), choice(2), choice(2), Dim::Discrete { count: 8 });
    let child = |dim, choice| Some(Parent { dim, choices: vec![choice] });
    let [first, second, third] = [0, 1, 2].map(|choice| child(0, choice));
    let parents = vec![
        None,
        None,
        first.clone(),
        first,
        child(2, 0),
        child(2, 1),
        second.clone(),
        second,
        child(6, 0),
        child(6, 1),
        third.clone(),
        third.clone(),
        third,
    ];
    Problem::function("unseen", Dims::new(dims, parents).expect("it is a space"), move |point| {
        let term = |(at, x): (usize, &Option<f64>)| {
            let x = x.as_ref()?;
            Some(match at {
                0 if *x as usize == (best[0] * 3.0) as usize => 0.0,
                2 | 6 if *x as usize == (best[at] * 2.0) as usize => 0.0,
                0 | 2 | 6 => 0.1,
                10 => 4.0 * (x / 7.0 - (best[10] * 7.0).round() / 7.0).powi(2),
                _ => 4.0 * (x - best[at]).powi(2),
            })
        };
        point.iter().enumerate().filter_map(term).sum()
    })
}

fn with_priors(dims: Dims, seed: u64, before: Before) -> Dims {
    let far = match before {
        Before::Good => 0.1,
        Before::Bad => 0.45,
        Before::Nothing | Before::Same | Before::Moved => return dims,
    };
    let away = |x: f64| if x > 0.5 { x - far } else { x + far };
    let prior = |x| DimPrior { coordinate: away(x), confidence: Confidence::Medium };
    let priors = optimum(seed, false).into_iter().map(prior).enumerate().take(dims.len());
    dims.with_priors(priors).expect("they are inside")
}

/// Shows a suggester the trials that another one of its kind has made of an earlier function.
fn import(suggester: &mut dyn Suggester, ours: &Ours, earlier: &Problem, seed: u64) {
    let mut other = (ours.make)(earlier.dims.clone(), seed);
    for number in 0..EARLIER {
        let rng = &mut ChaCha8Rng::seed_from_u64((seed ^ 1 << 20) << 32 | u64::from(number));
        let point: Point = other.ask(TrialId(number), rng).expect("there is a point");
        let outcome = Outcome::Done(vec![earlier.regret(&point)]);
        other.tell(TrialId(number), outcome.clone()).expect("it is running");
        suggester.import(TrialId(u32::MAX - number), point, outcome).expect("it is new");
    }
}

fn regret(case: &Case, ours: &Ours, seed: u64) -> f64 {
    let problem = problem(case.kind, seed, false);
    let mut suggester = (ours.make)(with_priors(problem.dims.clone(), seed, case.before), seed);
    if matches!(case.before, Before::Same | Before::Moved) {
        let earlier = self::problem(case.kind, seed, case.before == Before::Moved);
        import(&mut *suggester, ours, &earlier, seed);
    }
    let mut optimizer = Seeded { suggester, seed };
    run(&problem, &mut optimizer, seed, case.workers, &[case.trials]).regrets[0]
}

/// The median regret of each of ours in each case, as a table.
pub(crate) fn report(only: impl Fn(&str) -> bool, first_seed: u64, seeds: u64) -> String {
    let ours: Vec<&Ours> = OURS.iter().filter(|ours| only(ours.name)).collect();
    let cases = cases();
    let jobs: Vec<(&Case, &Ours)> =
        cases.iter().flat_map(|case| ours.iter().map(move |ours| (case, *ours))).collect();
    let (next, medians) = (AtomicUsize::new(0), Mutex::new(vec![0.0; jobs.len()]));
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some((case, ours)) = jobs.get(at) else { break };
            let all: Vec<f64> =
                (first_seed..first_seed + seeds).map(|seed| regret(case, ours, seed)).collect();
            medians.lock().expect("no thread panics with it")[at] = median(&all);
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    let medians = medians.into_inner().expect("no thread panics with it");
    let names: Vec<&str> = ours.iter().map(|ours| ours.name).collect();
    let mut text = format!("| function | trials | workers | {} |\n", names.join(" | "));
    let _ = writeln!(text, "|---|---|---|{}", "---|".repeat(names.len()));
    for (case, medians) in cases.iter().zip(medians.chunks(ours.len().max(1))) {
        let cells: Vec<String> = medians.iter().map(|value| short(*value)).collect();
        let _ =
            writeln!(text, "| {} | {} | {} | {} |", case.name, case.trials, case.workers, cells.join(" | "));
    }
    text
}

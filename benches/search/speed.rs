//! What a suggestion costs.

use std::time::Instant;

use pollux_tune::{
    space::{Dim, Dims, Parent},
    tpe::{Outcome, Suggester, Tpe, TrialId},
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Numbers of trials before the suggestion.
const SIZES: [u32; 5] = [100, 1000, 5000, 10_000, 100_000];
const REPEATS: u32 = 101;

/// Prints the median wall-clock time of one ask and one tell, by the number of objectives.
pub(crate) fn print() {
    println!("\n| trials | one objective, ms | two | three |\n|---|---|---|---|");
    for size in SIZES {
        let [one, two, three] = [1, 2, 3].map(|objectives| ask_and_tell_s(size, objectives) * 1e3);
        println!("| {size} | {one:.3} | {two:.3} | {three:.3} |");
    }
}

/// Three numbers, one of them conditional, cells and choices.
fn mixed() -> Dims {
    let dims = vec![
        Dim::Continuous,
        Dim::Continuous,
        Dim::Discrete { count: 16 },
        Dim::Discrete { count: 1000 },
        Dim::Categorical { count: 4 },
        Dim::Continuous,
    ];
    let parent = Parent { dim: 4, choices: vec![0, 1] };
    Dims::new(dims, vec![None, None, None, None, None, Some(parent)]).expect("it is a space")
}

fn ask_and_tell_s(size: u32, objectives: usize) -> f64 {
    let dims = mixed();
    let mut tpe = Tpe::with_objectives(dims.clone(), objectives).expect("there are some");
    let rng = &mut ChaCha8Rng::seed_from_u64(1);
    let value = |point: &[Option<f64>], middle: f64| {
        point.iter().flatten().map(|x| (x - middle).powi(2)).sum::<f64>()
    };
    let values = |point: &[Option<f64>]| {
        let middles = [0.3, 5.0, 20.0].into_iter().take(objectives);
        Outcome::Done(middles.map(|middle| value(point, middle)).collect())
    };
    for id in (0..size).map(TrialId) {
        let point = dims.build(|_, dim| dim.at(rng.random()));
        let outcome = values(&point);
        tpe.insert(id, point).expect("it is new");
        tpe.tell(id, outcome).expect("it is running");
    }
    let mut times = Vec::new();
    for id in (size..size + REPEATS).map(TrialId) {
        let begin = Instant::now();
        let point = tpe.ask(id, rng).expect("there is a point");
        tpe.tell(id, values(&point)).expect("it is running");
        times.push(begin.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

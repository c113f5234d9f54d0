//! A study with simulated workers, for ours and for the Rust peers alike.

use std::time::Duration;

use pollux_tune::space::Point;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

use crate::problems::{self, Problem};

/// After so many trials the regret is noted.
pub(crate) const MARKS: [usize; 2] = [100, 300];
pub(crate) const WORKERS: [usize; 2] = [1, 4];
pub(crate) const SEEDS: u64 = 25;
/// Numbers of trials before the suggestion whose speed is measured.
pub(crate) const SIZES: [u32; 4] = [100, 1000, 5000, 10_000];
const REPEATS: u32 = 31;

/// An optimizer that is asked for points by number and told their values.
pub(crate) trait Optimizer {
    fn ask(&mut self, number: u32) -> Point;
    fn tell(&mut self, number: u32, point: &Point, value: f64);
    /// Takes a trial that it was not asked for.
    fn insert(&mut self, number: u32, point: &Point, value: f64);
}

/// What came out of one study.
pub(crate) struct Run {
    pub(crate) regrets: Vec<f64>,
    /// Of the processor, for all asks and tells up to each mark.
    pub(crate) seconds: Vec<f64>,
}

/// Runs one study up to the last mark.
///
/// As many trials as there are workers are asked for, then a random one of them ends. With noise, the regret is
/// that of the true value at the point with the best observation.
pub(crate) fn run(
    problem: &Problem,
    optimizer: &mut dyn Optimizer,
    seed: u64,
    workers: usize,
    marks: &[usize],
) -> Run {
    let mut world = ChaCha8Rng::seed_from_u64(seed);
    let (mut running, mut next) = (Vec::new(), 0);
    let (mut best, mut found) = (f64::INFINITY, f64::INFINITY);
    let mut run = Run { regrets: Vec::new(), seconds: Vec::new() };
    let mut spent = Duration::ZERO;
    for ended in 1..=*marks.last().expect("there is a mark") {
        while running.len() < workers {
            let (point, time) = timed(|| optimizer.ask(next));
            spent += time;
            running.push((next, point));
            next += 1;
        }
        let (number, point) = running.swap_remove(world.random_range(0..running.len()));
        let noise: f64 = StandardNormal.sample(&mut world);
        let truth = problem.regret(&point);
        let value = truth + problem.noise * noise;
        spent += timed(|| optimizer.tell(number, &point, value)).1;
        if value < best {
            (best, found) = (value, truth);
        }
        if marks.contains(&ended) {
            run.regrets.push(found);
            run.seconds.push(spent.as_secs_f64());
        }
    }
    run
}

/// The median time of the processor for one ask and one tell after so many random trials, in ms.
pub(crate) fn ask_and_tell_ms(optimizer: &mut dyn Optimizer, size: u32) -> f64 {
    let problem = problems::speed();
    let rng = &mut ChaCha8Rng::seed_from_u64(1);
    for number in 0..size {
        let point = problem.dims.build(|_, dim| dim.at(rng.random()));
        optimizer.insert(number, &point, problem.regret(&point));
    }
    let mut times = Vec::new();
    for number in size..size + REPEATS {
        let (point, asking) = timed(|| optimizer.ask(number));
        let value = problem.regret(&point);
        times.push(asking + timed(|| optimizer.tell(number, &point, value)).1);
    }
    times.sort();
    times[times.len() / 2].as_secs_f64() * 1e3
}

/// A line as `peers.py` writes them.
pub(crate) fn line(
    peer: &str,
    problem: &str,
    workers: usize,
    seed: u64,
    trials: &[usize],
    run: &Run,
) -> Value {
    json!({
        "peer": peer, "problem": problem, "workers": workers, "seed": seed,
        "trials": trials, "regrets": run.regrets, "seconds": run.seconds,
    })
}

/// What comes out, and the time of the processor it took.
fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let begin = processor_time();
    let result = work();
    (result, processor_time().saturating_sub(begin))
}

/// What this thread has used of the processor.
fn processor_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}

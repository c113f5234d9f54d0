//! A suggester and a stopping rule of your own.
//!
//! ```sh
//! cargo run --release --example own_search
//! ```
//!
//! The suggester is an evolution strategy with one parent: it tries a point near the best one so far. With a folder
//! (`Runner::folder`) the study resumes after a crash: a fresh suggester and a fresh rule are shown all that was reported.

#![expect(clippy::print_stdout, reason = "an example shows what it has found")]

use std::collections::BTreeMap;

use pollux_tune::{
    prelude::*,
    space::{Dim, Dims, Point},
    tpe::{Error, Outcome, Suggester},
    trials::stopping::{Reason, Rule, Sample},
};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

/// How far a new point is from the best one, in every parameter.
const STEP: f64 = 0.15;

/// Tries points near the best one.
struct Evolution {
    dims: Dims,
    points: BTreeMap<TrialId, Point>,
    best: Option<(f64, TrialId)>,
}

impl Evolution {
    fn new(dims: Dims) -> Self {
        Self { dims, points: BTreeMap::new(), best: None }
    }

    /// A coordinate near that of the best point, or anywhere.
    fn near(&self, dim: usize, kind: Dim, rng: &mut ChaCha8Rng) -> f64 {
        let best = self.best.and_then(|(_, trial)| self.points.get(&trial)?[dim]);
        match (kind, best) {
            (Dim::Continuous, Some(best)) => (best + rng.random_range(-STEP..STEP)).clamp(0.0, 1.0),
            (_, Some(best)) if rng.random_bool(0.7) => best,
            _ => kind.at(rng.random()),
        }
    }
}

impl Suggester for Evolution {
    fn name(&self) -> &'static str {
        "evolution"
    }

    fn ask(&mut self, id: TrialId, rng: &mut ChaCha8Rng) -> Result<Point, Error> {
        for _ in 0..1000 {
            let point = self.dims.build(|dim, kind| self.near(dim, kind, rng));
            if self.dims.is_feasible(&point) {
                self.points.insert(id, point.clone());
                return Ok(point);
            }
        }
        Err(Error::Custom("found no point that satisfies the constraints".to_owned()))
    }

    fn insert(&mut self, id: TrialId, point: Point) -> Result<(), Error> {
        self.points.insert(id, point);
        Ok(())
    }

    fn tell(&mut self, id: TrialId, outcome: Outcome) -> Result<(), Error> {
        if let Outcome::Done(values) = outcome
            && self.best.is_none_or(|(best, _)| values[0] < best)
        {
            self.best = Some((values[0], id));
        }
        Ok(())
    }

    fn retract(&mut self, _: TrialId) -> Result<(), Error> {
        // Failures leave no trace here.
        Ok(())
    }
}

/// Stops a trial that is more than twice as bad as the best one was so far.
#[derive(Default)]
struct TwiceAsBad {
    best: Option<f64>,
}

impl Rule for TwiceAsBad {
    fn judge(&mut self, _: TrialId, _: Option<Sample>, now: Sample) -> Option<Reason> {
        let best = self.best.map_or(now.value, |best| best.min(now.value));
        self.best = Some(best);
        (now.value > 2.0 * best).then_some(Reason::Custom { progress: now.progress })
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let space = Space::builder()
        .add("lr", Domain::log(1e-5, 1.0)?)
        .add("optimizer", Domain::choice(["sgd", "adam"])?)
        .build()?;
    let study = Study::builder(space).minimize("loss").trials(60).epochs(10.0).build()?;
    let runner = Runner::new(study).suggester(Evolution::new).stopping_rule(5.0, TwiceAsBad::default);
    let finished = runner.run_function(|trial| {
        let distance = (trial.params().float("lr")?.log10() + 2.5).abs();
        let penalty = if trial.params().text("optimizer")? == "adam" { 0.1 } else { 0.3 };
        for epoch in 1..=10 {
            // An error says that the trial was stopped.
            trial.report(f64::from(epoch), [("loss", penalty + distance + 1.0 / f64::from(epoch))])?;
        }
        Ok(Metrics::new())
    })?;
    let done = finished.search().trials().filter(|trial| trial.values().is_some()).count();
    println!("{done} of {} trials ran to their end", finished.search().trials().len());
    for best in finished.best(3) {
        println!("{:.4}  {}", best.metric("loss").unwrap_or(f64::NAN), best.params);
    }
    Ok(())
}

//! Our suggesters.

use pollux_tune::{
    ids::TrialId,
    space::{Dims, Point},
    tpe::{Auto, Gp, Halton, Outcome, Random, Suggester, Tpe},
};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::study::{MARKS, Optimizer};

/// One of ours, and how far it runs.
pub(crate) struct Ours {
    pub(crate) name: &'static str,
    pub(crate) make: fn(Dims, u64) -> Box<dyn Suggester>,
    /// Those of [`MARKS`] that it runs to.
    pub(crate) marks: &'static [usize],
}

/// All of ours; `report.rs` says what each is compared with.
pub(crate) const OURS: [Ours; 5] = [
    Ours { name: "our tpe", make: |dims, _| Box::new(Tpe::new(dims)), marks: &MARKS },
    Ours { name: "our gp", make: |dims, _| Box::new(Gp::new(dims)), marks: &[MARKS[0]] },
    Ours { name: "our auto", make: |dims, _| Box::new(Auto::new(dims, 4)), marks: &MARKS },
    Ours { name: "our halton", make: |dims, seed| Box::new(Halton::new(dims, seed)), marks: &MARKS },
    Ours { name: "our random", make: |dims, _| Box::new(Random::new(dims)), marks: &MARKS },
];

/// A suggester with the seed of its study.
pub(crate) struct Seeded {
    pub(crate) suggester: Box<dyn Suggester>,
    pub(crate) seed: u64,
}

impl Optimizer for Seeded {
    fn ask(&mut self, number: u32) -> Point {
        let rng = &mut ChaCha8Rng::seed_from_u64(self.seed << 32 | u64::from(number));
        self.suggester.ask(TrialId(number), rng).expect("there is a point")
    }

    fn tell(&mut self, number: u32, _: &Point, value: f64) {
        self.suggester.tell(TrialId(number), Outcome::Done(vec![value])).expect("it is running");
    }

    fn insert(&mut self, number: u32, point: &Point, value: f64) {
        self.suggester.insert(TrialId(number), point.clone()).expect("it is new");
        self.tell(number, point, value);
    }
}

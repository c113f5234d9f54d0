//! What an earlier study says.

use std::{collections::BTreeMap, mem};

use rand_chacha::ChaCha8Rng;

use super::{
    draw::uniform,
    expert::strength,
    history::History,
    parzen::Parzen,
    sampler::{BETTER, WORSE},
    split,
};
use crate::space::{Dims, Point};

/// It counts in full up to this number of results.
const PATIENCE: f64 = 30.0;

/// Where the trials of an earlier study were good, and where the others were.
#[derive(Debug)]
pub(super) struct Earlier {
    /// The number of its trials.
    trials: usize,
    good: Parzen,
    others: Parzen,
    /// ln of the ratio of both, by row.
    scores: BTreeMap<usize, f64>,
}

impl Earlier {
    /// The models of the trials that were imported, if there are any; those that are there already unless there are more trials now.
    pub(super) fn of(before: Option<Self>, history: &History, share: f64, max: usize) -> Option<Self> {
        let trials = history.foreign_best().len();
        match before {
            _ if trials == 0 => None,
            Some(before) if before.trials == trials => Some(before),
            _ => {
                let (good, others) = split::foreign(history, share, max);
                let model = |set: &split::Set, widths| {
                    let rows: Vec<&[f64]> = set.rows.iter().map(|&row| history.row(row)).collect();
                    Parzen::new(history.dims(), &rows, &set.weights, widths)
                };
                let (good, others) = (model(&good, &BETTER), model(&others, &WORSE));
                Some(Self { trials, good, others, scores: BTreeMap::new() })
            }
        }
    }

    /// One of the first points of this study: the best of the earlier one, then by turns points from anywhere, which show what
    /// it is worth, and points like its good ones.
    pub(super) fn begin(&self, history: &History, candidates: usize, rng: &mut ChaCha8Rng) -> Point {
        let dims = history.dims();
        match (history.own(), history.foreign_best().first()) {
            (0, Some(&best)) => history.point(best as usize),
            (trial, _) if trial % 2 == 1 => uniform(dims, rng),
            _ => {
                let mut scratch = Vec::new();
                let drawn: Vec<Point> = (0..candidates).map(|_| self.draw(dims, rng)).collect();
                let scored = drawn.into_iter().map(|point| (self.log_ratio(&point, &mut scratch), point));
                scored
                    .max_by(|a, b| a.0.total_cmp(&b.0))
                    .map_or_else(|| uniform(dims, rng), |(_, point)| point)
            }
        }
    }

    pub(super) fn draw(&self, dims: &Dims, rng: &mut ChaCha8Rng) -> Point {
        self.good.draw(dims, rng)
    }

    pub(super) fn log_ratio(&self, point: &Point, scratch: &mut Vec<f64>) -> f64 {
        self.good.log_density(point, scratch) - self.others.log_density(point, scratch)
    }

    /// How much it counts, from 1 without results to 0.
    pub(super) fn strength(&mut self, history: &History) -> f64 {
        let mut scores = mem::take(&mut self.scores);
        let mut scratch = Vec::new();
        let strength = strength(history, PATIENCE, |row| {
            *scores.entry(row).or_insert_with(|| self.log_ratio(&history.point(row), &mut scratch))
        });
        self.scores = scores;
        strength
    }
}

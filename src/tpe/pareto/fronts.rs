use super::dominates;

/// Results of trials by front, kept up to date as they come.
///
/// A result joins the first front that does not dominate it and pushes those it dominates into the next one, and
/// so on (Li et al. 2017, "Efficient Nondomination Level Update Method for Steady-State Evolutionary Multiobjective
/// Optimization"). The fronts do not depend on the order in which the results came.
#[derive(Debug)]
pub(in crate::tpe) struct Fronts {
    objectives: usize,
    /// Row by row; NaN where a trial has no result.
    values: Vec<f64>,
    /// The rows of each front in order.
    levels: Vec<Vec<u32>>,
    count: usize,
}

impl Fronts {
    pub(in crate::tpe) fn new(objectives: usize) -> Self {
        Self { objectives, values: Vec::new(), levels: Vec::new(), count: 0 }
    }

    pub(in crate::tpe) fn objectives(&self) -> usize {
        self.objectives
    }

    /// How many results there are.
    pub(in crate::tpe) fn len(&self) -> usize {
        self.count
    }

    /// The rows of each front, the best front first.
    pub(in crate::tpe) fn levels(&self) -> &[Vec<u32>] {
        &self.levels
    }

    /// The result of a row that has one.
    pub(in crate::tpe) fn values(&self, row: u32) -> &[f64] {
        &self.values[row as usize * self.objectives..][..self.objectives]
    }

    /// Adds a result without NaN, one value for each objective, of a row that has none.
    pub(in crate::tpe) fn insert(&mut self, row: u32, values: &[f64]) {
        let start = row as usize * self.objectives;
        let end = start + self.objectives;
        self.values.resize(self.values.len().max(end), f64::NAN);
        self.values[start..end].copy_from_slice(values);
        self.count += 1;
        let values = |row: u32| &self.values[row as usize * self.objectives..][..self.objectives];
        let beats = |a: u32, b: u32| dominates(values(a), values(b));
        let mut at = self.levels.partition_point(|level| level.iter().any(|&other| beats(other, row)));
        let mut coming = vec![row];
        while !coming.is_empty() && at < self.levels.len() {
            let (pushed, stay): (Vec<u32>, Vec<u32>) =
                self.levels[at].iter().partition(|&&other| coming.iter().any(|&new| beats(new, other)));
            if stay.is_empty() {
                // A whole front gives way, and with it all behind.
                break;
            }
            self.levels[at] = merged(&stay, &coming);
            coming = pushed;
            at += 1;
        }
        if !coming.is_empty() {
            self.levels.insert(at, coming);
        }
    }
}

fn merged(a: &[u32], b: &[u32]) -> Vec<u32> {
    let mut all = [a, b].concat();
    all.sort_unstable();
    all
}

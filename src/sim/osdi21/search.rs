//! What differs in the allocator's search of the authors' simulator.

use crate::alloc::{Matrix, SearchRules, TrialRequest, realloc_factor};

/// Where the code of the authors (Pollux OSDI'21) differs from our version of their search.
#[derive(Debug)]
pub(crate) struct AuthorsSearch;

impl SearchRules for AuthorsSearch {
    /// A fair share is on one node, whatever its size.
    fn fair_node_gpus(&self, _largest: u32) -> u32 {
        u32::MAX
    }

    /// A first start pays for a move too, and the factor may be 0.
    fn moved_factor(&self, trial: &TrialRequest, _waits: bool) -> f64 {
        realloc_factor(trial.age_s, trial.reallocations, trial.realloc_delay_s)
    }

    /// Only at the first question.
    fn starts_from_current(&self, remembers: bool) -> bool {
        !remembers
    }

    /// The rows of survivors are handed on by their position, though the order has changed since.
    fn inherit(&self, rows: &mut [Option<usize>]) {
        let mut survivors: Vec<usize> = rows.iter().copied().flatten().collect();
        survivors.sort_unstable();
        let mut next = survivors.into_iter();
        rows.iter_mut().filter(|row| row.is_some()).for_each(|row| *row = next.next());
    }

    /// One step for all rows before the next. Their interference avoidance also takes GPUs from trials on one node, if two
    /// distributed ones come before on that node.
    fn repair(&self, matrix: &mut Matrix<'_>) -> bool {
        if matrix.avoids_interference() {
            let mut tenants = vec![0_u16; matrix.nodes()];
            for row in matrix.rows() {
                let spread = row.iter().map(|cell| u32::from(*cell > 0)).sum::<u32>() > 1;
                for (cell, tenants) in row.iter_mut().zip(&mut tenants) {
                    *tenants = tenants.saturating_add(u16::from(spread && *cell > 0));
                    *cell = if *tenants > 1 { 0 } else { *cell };
                }
            }
        }
        matrix.limit_rows();
        true
    }
}

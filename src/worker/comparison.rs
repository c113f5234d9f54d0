//! Which steps of a training measure the noise of its gradient, and how.

/// What the gradients of a step are compared with: without something to compare, noise and signal cannot be separated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    /// Those of the workers of a group with each other.
    Workers,
    /// Those of the passes of a step, of a worker that is alone.
    Passes,
    /// Those of the two halves of a step that would have had one pass.
    Halves,
    /// Those of two steps in a row, where halves will not do. The weights move in between, which looks like noise if they move fast.
    Steps,
}

impl Comparison {
    pub(super) const fn of(workers: u32, passes: u32, total: u32, halves: bool) -> Self {
        match (workers, passes) {
            (1, 1) if halves && total > 1 => Self::Halves,
            (1, 1) => Self::Steps,
            (1, _) => Self::Passes,
            _ => Self::Workers,
        }
    }

    /// One measurement in this many steps: the averages have a window of a thousand, and neither halves nor the norms of long
    /// vectors are free.
    pub(super) const fn every(self) -> u32 {
        match self {
            Self::Halves => 8,
            Self::Workers | Self::Passes | Self::Steps => 4,
        }
    }

    /// Whether the norms of a step are taken: the same for all workers. Those of a single gradient are taken with the next one.
    pub(super) const fn measures(self, step: u64) -> bool {
        step % self.every() as u64 == if matches!(self, Self::Steps) { 1 } else { 0 }
    }

    /// The passes of a step that would have this many.
    pub(super) const fn passes(self, step: u64, passes: u32) -> u32 {
        if matches!(self, Self::Halves) && self.measures(step) { 2 } else { passes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_two_passes_in_one_step_of_eight() {
        let halves = Comparison::of(1, 1, 10, true);
        assert_eq!((0..17).map(|step| halves.passes(step, 1)).filter(|&passes| passes == 2).count(), 3);
        let others = [(1, 1, 10, false), (1, 1, 1, true), (1, 3, 10, true), (2, 1, 10, true)];
        let others =
            others.map(|(workers, passes, total, halves)| Comparison::of(workers, passes, total, halves));
        assert_eq!(others, [Comparison::Steps, Comparison::Steps, Comparison::Passes, Comparison::Workers]);
        assert!(others.iter().all(|other| (0..9).all(|step| other.passes(step, 3) == 3)));
    }
}

use std::ops::Range;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// The stream of a seed that augmentation draws from; epochs have the lower ones.
const AUGMENTATION: u64 = 1 << 63;

/// Which example stands at which position of a training without end.
///
/// Epoch follows epoch, each with all examples in an order of its own. An optimizer step takes the next positions, as many as its
/// batch has, so batches and workers may change at any step, also in the middle of an epoch: as long as steps take
/// positions without a gap, no example is lost or seen twice.
///
/// ```
/// use pollux_tune::worker::{ElasticSampler, shard};
///
/// let mut order = ElasticSampler::new(7, 1000).expect("there are examples");
/// // One worker with a batch of 4, or two with 2 each: the same examples.
/// let whole = order.examples(0..4);
/// let parts: Vec<u32> = (0..2).flat_map(|rank| order.examples(shard(&(0..4), rank, 2))).collect();
/// assert_eq!(whole, parts);
/// ```
#[derive(Debug, Clone)]
pub struct ElasticSampler {
    seed: u64,
    count: u32,
    /// The epoch that the permutation is for.
    epoch: Option<u64>,
    permutation: Vec<u32>,
}

impl ElasticSampler {
    /// An order of this many examples; none if there are none.
    #[must_use]
    pub fn new(seed: u64, count: u32) -> Option<Self> {
        (count > 0).then_some(Self { seed, count, epoch: None, permutation: Vec::new() })
    }

    /// How many examples an epoch has.
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// The examples at a range of positions.
    pub fn examples(&mut self, positions: Range<u64>) -> Vec<u32> {
        positions.map(|position| self.example(position)).collect()
    }

    /// The example at a position.
    pub fn example(&mut self, position: u64) -> u32 {
        let count = u64::from(self.count);
        let epoch = position / count;
        if self.epoch != Some(epoch) {
            self.shuffle(epoch);
        }
        self.permutation[(position % count) as usize]
    }

    /// Fisher and Yates, with a generator that knows nothing but seed and epoch.
    fn shuffle(&mut self, epoch: u64) {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        rng.set_stream(epoch);
        self.permutation.clear();
        self.permutation.extend(0..self.count);
        for last in (1..self.permutation.len()).rev() {
            self.permutation.swap(last, rng.random_range(0..=last));
        }
        self.epoch = Some(epoch);
    }

    /// What the example at a position is augmented with: the same on whichever worker it is loaded.
    #[must_use]
    pub fn augmentation(&self, position: u64) -> ChaCha8Rng {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        rng.set_stream(AUGMENTATION | position);
        rng
    }
}

/// The part of a step's positions that a rank works on. The parts of all ranks make up the whole, in order, and differ in size by at
/// most one.
///
/// ```
/// use pollux_tune::worker::shard;
///
/// assert_eq!([shard(&(10..15), 0, 2), shard(&(10..15), 1, 2)], [10..13, 13..15]);
/// ```
#[must_use]
pub fn shard(positions: &Range<u64>, rank: u32, ranks: u32) -> Range<u64> {
    let (total, ranks, rank) =
        (positions.end.saturating_sub(positions.start), u64::from(ranks), u64::from(rank));
    let start = |rank: u64| positions.start + rank * (total / ranks) + rank.min(total % ranks);
    start(rank)..start(rank + 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_epoch_has_every_example_once_in_another_order() {
        let mut order = ElasticSampler::new(3, 100).expect("there are examples");
        let epochs = [0, 1].map(|epoch| order.examples(100 * epoch..100 * (epoch + 1)));
        for epoch in &epochs {
            let mut sorted = epoch.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..100).collect::<Vec<u32>>());
        }
        assert_ne!(epochs[0], epochs[1]);
        assert_ne!(ElasticSampler::new(4, 100).expect("there are examples").examples(0..100), epochs[0]);
    }

    #[test]
    fn augmentation_depends_on_the_position_alone() {
        let order = ElasticSampler::new(3, 100).expect("there are examples");
        let draw = |position| order.augmentation(position).random::<u64>();
        assert_eq!(draw(17), draw(17));
        assert_ne!(draw(17), draw(117), "the same example in the next epoch");
    }

    #[test]
    fn no_examples_have_no_order() {
        assert!(ElasticSampler::new(0, 0).is_none());
    }

    proptest! {
        /// Batches and workers change at every step, each rank with an order of its own: nothing is lost or repeated.
        #[test]
        fn nothing_is_lost_or_repeated(
            seed: u64, count in 1_u32..60, steps in prop::collection::vec((1_u64..50, 1_u32..6), 1..30),
        ) {
            let mut position = 0;
            let mut seen = Vec::new();
            for (batch, ranks) in steps {
                for rank in 0..ranks {
                    let mut order = ElasticSampler::new(seed, count).expect("there are examples");
                    seen.extend(order.examples(shard(&(position..position + batch), rank, ranks)));
                }
                position += batch;
            }
            let undisturbed = ElasticSampler::new(seed, count).expect("there are examples").examples(0..position);
            prop_assert_eq!(&seen, &undisturbed);
            for epoch in seen.chunks_exact(count as usize) {
                let mut sorted = epoch.to_vec();
                sorted.sort_unstable();
                prop_assert_eq!(sorted, (0..count).collect::<Vec<u32>>());
            }
        }

        #[test]
        fn shares_differ_by_one_at_most(start in 0_u64..1000, total in 0_u64..1000, ranks in 1_u32..20) {
            let sizes: Vec<u64> = (0..ranks).map(|rank| {
                let part = shard(&(start..start + total), rank, ranks);
                part.end - part.start
            }).collect();
            prop_assert_eq!(sizes.iter().sum::<u64>(), total);
            prop_assert!(sizes.iter().max().unwrap_or(&0) - sizes.iter().min().unwrap_or(&0) <= 1);
        }
    }
}

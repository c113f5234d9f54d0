//! Fewer points, where there are more than can be seen.

use std::collections::BTreeSet;

/// Points in their order, of which at most a fixed number is kept: then every second one is dropped, and the last one never.
#[derive(Debug, Clone)]
pub(super) struct Thinned<T> {
    kept: Vec<T>,
    last: Option<T>,
    /// One of so many points is kept.
    every: u64,
    seen: u64,
}

impl<T: Copy> Thinned<T> {
    /// Keeps fewer than this many points.
    pub(super) const MAX: usize = 1024;

    pub(super) const fn new() -> Self {
        Self { kept: Vec::new(), last: None, every: 1, seen: 0 }
    }

    pub(super) fn push(&mut self, point: T) {
        if self.kept.len() >= Self::MAX {
            let mut place = 0;
            self.kept.retain(|_| {
                place += 1;
                place % 2 == 1
            });
            self.every *= 2;
        }
        if self.seen.is_multiple_of(self.every) {
            self.kept.push(point);
            self.last = None;
        } else {
            self.last = Some(point);
        }
        self.seen += 1;
    }

    /// At most `max` points, the first and the last one among them.
    pub(super) fn pick(&self, max: usize) -> Vec<T> {
        let all: Vec<T> = self.kept.iter().copied().chain(self.last).collect();
        spread(all.len(), max).into_iter().map(|place| all[place]).collect()
    }

    pub(super) fn last(&self) -> Option<T> {
        self.last.or_else(|| self.kept.last().copied())
    }
}

/// At most `max` places from 0 to `count` - 1, evenly spread, the first and the last one among them.
pub(super) fn spread(count: usize, max: usize) -> Vec<usize> {
    if count <= max {
        return (0..count).collect();
    }
    let last = (count - 1) as f64;
    let step = last / (max.max(2) - 1) as f64;
    let places: BTreeSet<usize> =
        (0..max.max(2)).map(|place| ((place as f64 * step).round() as usize).min(count - 1)).collect();
    places.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn long_curves_keep_their_ends() {
        let mut points = Thinned::new();
        for number in 0..100_000_u32 {
            points.push(number);
            assert!(points.kept.len() <= Thinned::<u32>::MAX);
        }
        let picked = points.pick(50);
        assert_eq!((picked.len(), picked[0], picked[49]), (50, 0, 99_999));
        assert_eq!(points.last(), Some(99_999));
        let gaps: Vec<u32> = picked.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(gaps.iter().all(|gap| (1_500..2_700).contains(gap)), "{gaps:?}");
    }

    proptest! {
        #[test]
        fn places_are_spread(count in 0_usize..5_000, max in 2_usize..400) {
            let places = spread(count, max);
            prop_assert_eq!(places.len(), count.min(max));
            prop_assert!(places.windows(2).all(|pair| pair[0] < pair[1]));
            prop_assert_eq!(places.first().copied(), (count > 0).then_some(0));
            prop_assert_eq!(places.last().copied(), count.checked_sub(1));
        }
    }
}

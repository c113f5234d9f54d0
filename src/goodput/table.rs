use std::collections::BTreeMap;

use super::{Error, Shape, Tier};
use crate::ids::GpuType;

/// The best goodput of a trial for every number of GPUs of one type: all that an allocator needs to know.
///
/// Values are examples per second at the efficiency of the initial batch; 0 where the trial cannot run.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Curve {
    /// Per tier, the goodput with `index + 1` GPUs.
    tiers: [Vec<f64>; Tier::COUNT],
}

impl Curve {
    /// Tabulates `goodput` for up to `max_gpus` GPUs, of which a node holds at most `node_gpus`.
    pub fn build(
        max_gpus: u32,
        node_gpus: u32,
        mut goodput: impl FnMut(Shape) -> f64,
    ) -> Result<Self, Error> {
        let mut fill = |tier: Tier, range: std::ops::RangeInclusive<u32>| -> Result<Vec<f64>, Error> {
            range
                .map(|gpus| {
                    if gpus == 1 && tier != Tier::Local {
                        return Ok(0.0);
                    }
                    let value = goodput(Shape::at_tier(gpus, tier));
                    Error::check_at_least("goodput", value, 0.0, "a finite number, at least 0")
                })
                .collect()
        };
        Ok(Self { tiers: [fill(Tier::Local, 1..=max_gpus.min(node_gpus))?, fill(Tier::Node, 1..=max_gpus)?] })
    }

    /// Goodput that grows in proportion to the GPUs: what is believed of a trial that has not run yet.
    #[must_use]
    pub fn linear(max_gpus: u32, node_gpus: u32) -> Self {
        let ramp = |n: u32| (1..=n).map(f64::from).collect::<Vec<_>>();
        let mut node = ramp(max_gpus);
        if let Some(first) = node.first_mut() {
            *first = 0.0;
        }
        Self { tiers: [ramp(max_gpus.min(node_gpus)), node] }
    }

    /// The goodput of an allocation of this shape; 0 beyond the end of the table.
    #[must_use]
    pub fn goodput(&self, shape: Shape) -> f64 {
        let tier = shape.tier().unwrap_or(Tier::Local);
        self.at(tier, shape.gpus())
    }

    /// The goodput of `gpus` GPUs at a tier; 0 beyond the end of the table. One GPU is [`Tier::Local`].
    #[must_use]
    pub fn at(&self, tier: Tier, gpus: u32) -> f64 {
        match gpus.checked_sub(1) {
            Some(index) => self.tiers[tier.index()].get(index as usize).copied().unwrap_or(0.0),
            None => 0.0,
        }
    }

    /// The largest number of GPUs with an entry at a tier.
    #[must_use]
    pub fn max_gpus(&self, tier: Tier) -> u32 {
        self.tiers[tier.index()].len() as u32
    }
}

/// The [`Curve`]s of one trial, one for each GPU type it can run on.
pub type GoodputTable = BTreeMap<GpuType, Curve>;

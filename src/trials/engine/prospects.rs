//! What a trial would do with other numbers of GPUs, by what is known of it.

use std::collections::BTreeSet;

use super::{Engine, TrialKind, snapshot};
use crate::{
    goodput::Shape,
    ids::{GpuType, TrialId},
};

/// A trial on so many GPUs of a type.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Prospect {
    pub(crate) gpu_type: GpuType,
    pub(crate) gpus: u32,
    /// The least number of machines that have so many.
    pub(crate) nodes: u32,
    /// Examples per second times efficiency for elastic trials, statistical epochs per second for programs.
    pub(crate) goodput: f64,
    /// The best total batch; none for programs.
    pub(crate) batch: Option<u64>,
}

/// What is known of how fast a trial is.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Prospects {
    /// By type, and the number of GPUs.
    pub(crate) all: Vec<Prospect>,
    /// More GPUs than that were not explored yet.
    pub(crate) cap: u32,
}

impl Engine {
    /// What is known of how fast an active trial is on the machines that are here; none if that is nothing.
    pub(crate) fn prospects(&self, trial: TrialId) -> Option<Prospects> {
        let active = self.state.active.get(&trial)?;
        if self.kind == TrialKind::Restarted {
            return self.paces(trial);
        }
        let fit = active.fit.as_ref()?;
        let noise = active.noise_curve(self.study.trial.initial_batch);
        let model = snapshot::model(fit, noise, self)?;
        let mut all = Vec::new();
        for (gpu_type, total, largest) in self.rooms() {
            let widest = total.min(self.limits_of(&gpu_type)?.max_gpus());
            for gpus in counts(widest, active.slots().len() as u32) {
                let nodes = gpus.div_ceil(largest);
                let best = Shape::new(gpus, nodes).ok().and_then(|shape| model.best_batch(&gpu_type, shape));
                all.extend(best.map(|best| Prospect {
                    gpu_type: gpu_type.clone(),
                    gpus,
                    nodes,
                    goodput: best.goodput,
                    batch: Some(best.plan.total(gpus)),
                }));
            }
        }
        (!all.is_empty()).then_some(Prospects { all, cap: fit.cap })
    }

    /// Types of GPU that are here: how many, and how many the largest machine has.
    fn rooms(&self) -> Vec<(GpuType, u32, u32)> {
        let types: BTreeSet<&GpuType> = self.state.nodes.values().map(|node| &node.gpu_type).collect();
        let room = |gpu_type: &GpuType| {
            let slots =
                self.state.nodes.values().filter(|node| node.gpu_type == *gpu_type).map(|node| node.slots);
            (gpu_type.clone(), slots.clone().sum(), slots.max().unwrap_or(1).max(1))
        };
        types.into_iter().map(room).collect()
    }

    /// The same of a program that is started again with other numbers of GPUs.
    fn paces(&self, trial: TrialId) -> Option<Prospects> {
        let snapshot = self.snapshot(self.state.at_s);
        let pace = snapshot.trials.into_iter().find(|known| known.id == trial)?.pace?;
        let own = self.state.active.get(&trial)?.slots().len() as u32;
        let mut all = Vec::new();
        for (gpu_type, _, largest) in self.rooms() {
            let widest = self.study.trial.max_gpus.unwrap_or(largest).min(largest);
            let table = pace.table(&self.state.cluster(), widest).ok()?;
            let Some(curve) = table.get(&gpu_type) else { continue };
            for gpus in counts(widest, own) {
                let goodput = Shape::new(gpus, 1).map_or(0.0, |shape| curve.goodput(shape));
                all.push(Prospect { gpu_type: gpu_type.clone(), gpus, nodes: 1, goodput, batch: None });
            }
        }
        (!all.is_empty()).then(|| Prospects { all, cap: pace.cap() })
    }
}

/// Powers of two up to the largest number, that itself, and the one that there is.
fn counts(widest: u32, own: u32) -> BTreeSet<u32> {
    let powers =
        std::iter::successors(Some(1_u32), |gpus| gpus.checked_mul(2)).take_while(|gpus| *gpus <= widest);
    powers.chain([widest, own]).filter(|gpus| (1..=widest).contains(gpus)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_gpus_are_powers_of_two_and_what_there_is() {
        assert_eq!(counts(12, 3).into_iter().collect::<Vec<_>>(), [1, 2, 3, 4, 8, 12]);
        assert_eq!(counts(1, 0).into_iter().collect::<Vec<_>>(), [1]);
        assert!(counts(0, 4).is_empty());
    }
}

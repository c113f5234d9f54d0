use std::collections::BTreeMap;

use super::{
    BatchLimits, BestBatch, Curve, Error, GoodputTable, NoiseCurve, Shape, ThroughputParams, best_batch,
};
use crate::ids::GpuType;

/// The GOODPUT function of one trial at its present progress: `(theta_sys, phi_t, M0)` of Pollux OSDI'21 section 4.1,
/// for every GPU type it may run on.
///
/// ```
/// use pollux_tune::{goodput::*, ids::GpuType};
/// let sync = [SyncCost { alpha_s: 0.01, beta_s: 0.0 }, SyncCost { alpha_s: 0.1, beta_s: 0.0 }];
/// let params = ThroughputParams::new(ComputeCost { alpha_s: 0.02, beta_s: 0.001 }, sync, 2.0)?;
/// let limits = BatchLimits::new(128, BatchMode::Adaptive { max: 4096 }, 32, 1024)?;
/// let t4 = GpuType::new("t4")?;
/// let model = GoodputModel::new(NoiseScale::new(2000.0)?).with_type(t4.clone(), params, limits);
/// let table = model.table([(t4.clone(), 4, 16)])?; // nodes of 4, up to 16 GPUs
/// assert!(table[&t4].goodput(Shape::new(4, 1)?) > 2.5 * table[&t4].goodput(Shape::single()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct GoodputModel {
    noise: NoiseCurve,
    types: BTreeMap<GpuType, (ThroughputParams, BatchLimits)>,
}

impl GoodputModel {
    /// A trial with this noise scale, the same at all batches or not, of which no GPU type is known yet.
    #[must_use]
    pub fn new(noise: impl Into<NoiseCurve>) -> Self {
        Self { noise: noise.into(), types: BTreeMap::new() }
    }

    /// Adds or replaces what is known of a GPU type.
    #[must_use]
    pub fn with_type(mut self, gpu_type: GpuType, params: ThroughputParams, limits: BatchLimits) -> Self {
        self.types.insert(gpu_type, (params, limits));
        self
    }

    /// The best batch plan on an allocation; none if the type is not known or nothing fits.
    #[must_use]
    pub fn best_batch(&self, gpu_type: &GpuType, shape: Shape) -> Option<BestBatch> {
        let (params, limits) = self.types.get(gpu_type)?;
        best_batch(params, shape, self.noise, limits)
    }

    /// Tabulates the best goodput for an allocator. Each entry names a GPU type, the GPUs of its largest node, and how
    /// many GPUs the trial could be given; types that are not known are left out.
    pub fn table(&self, room: impl IntoIterator<Item = (GpuType, u32, u32)>) -> Result<GoodputTable, Error> {
        let mut table = GoodputTable::new();
        for (gpu_type, node_gpus, max_gpus) in room {
            let Some((params, limits)) = self.types.get(&gpu_type) else { continue };
            let max_gpus = max_gpus.min(limits.max_gpus());
            let goodput =
                |shape| best_batch(params, shape, self.noise, limits).map_or(0.0, |best| best.goodput);
            table.insert(gpu_type, Curve::build(max_gpus, node_gpus, goodput)?);
        }
        Ok(table)
    }
}

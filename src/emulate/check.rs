use serde_json::Map;

use super::error::Error;
use crate::{alloc::ClusterSpec, ids::GpuType, sim::Modelled};

/// Whether a trainable can be emulated on these machines.
///
/// ```
/// use pollux_tune::{alloc::ClusterSpec, internal::emulate};
/// let check = |trainable: &str, cluster: &str| emulate::check(trainable, &ClusterSpec::parse(cluster).unwrap());
/// assert!(check("cifar10", "2x8xa100,4x4xt4").is_ok());
/// assert!(check("cifar10", "1x8xh100").unwrap_err().to_string().ends_with("expected one of a100, rtx2080ti, t4"));
/// assert!(check("mnist", "4x4xt4").is_err());
/// ```
pub fn check(trainable: &str, cluster: &ClusterSpec) -> Result<(), Error> {
    let application = Modelled::new(trainable, &Map::new(), 0, 1.0)?.application();
    let known: Vec<&str> = application.gpu_types().map(GpuType::name).collect();
    match cluster.node_sets.iter().find(|set| !known.contains(&set.gpu_type.name())) {
        None => Ok(()),
        Some(set) => Err(Error::UnknownType {
            trainable: trainable.to_owned(),
            gpu_type: set.gpu_type.to_string(),
            allowed: known.join(", "),
        }),
    }
}

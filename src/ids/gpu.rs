use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::gpu_names;

/// A GPU type must have a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the name of a GPU type is empty")]
pub struct EmptyGpuType;

/// The name of a kind of GPU, such as `a100` or `t4`; any name will do. Cheap to clone.
///
/// ```
/// use pollux_tune::ids::GpuType;
/// assert_eq!(GpuType::new("A100")?, GpuType::new("a100")?);
/// assert_eq!(GpuType::new("RTX 2080 Ti")?.name(), "rtx2080ti");
/// # Ok::<(), pollux_tune::ids::EmptyGpuType>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct GpuType(Arc<str>);

impl GpuType {
    /// A GPU type of this name; upper and lower case are the same, and so are the usual spellings of a known type.
    pub fn new(name: &str) -> Result<Self, EmptyGpuType> {
        let name = name.trim();
        if name.is_empty() {
            return Err(EmptyGpuType);
        }
        Ok(Self(gpu_names::canonical(name).into()))
    }

    /// The type of a GPU from its model, as `nvidia-smi --query-gpu=name` prints it; memory and form factor do not matter.
    ///
    /// ```
    /// use pollux_tune::ids::GpuType;
    /// assert_eq!(GpuType::of_model("NVIDIA A100-SXM4-80GB").name(), "a100");
    /// ```
    #[must_use]
    pub fn of_model(model: &str) -> Self {
        Self(gpu_names::of_model(model).into())
    }

    /// Shares of a processor, where there are no GPUs.
    #[must_use]
    pub fn cpu() -> Self {
        Self("cpu".into())
    }

    /// The name in lower case.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for GpuType {
    type Error = EmptyGpuType;

    fn try_from(name: String) -> Result<Self, EmptyGpuType> {
        Self::new(&name)
    }
}

impl From<GpuType> for String {
    fn from(gpu_type: GpuType) -> Self {
        gpu_type.name().to_owned()
    }
}

impl fmt::Display for GpuType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for GpuType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

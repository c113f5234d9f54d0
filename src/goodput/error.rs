use thiserror::Error;

use crate::ids::EmptyGpuType;

/// What can be wrong with the numbers given to the goodput model.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum Error {
    /// A number is NaN, infinite, or outside its range.
    #[error("{what} is {value}; expected {allowed}")]
    OutOfRange {
        /// The quantity, as a user would call it.
        what: &'static str,
        /// What was given.
        value: f64,
        /// The allowed values in words.
        allowed: &'static str,
    },
    /// An allocation without GPUs, or with more nodes than GPUs.
    #[error("no allocation has {gpus} GPUs on {nodes} nodes: at least one GPU on each node is needed")]
    BadShape {
        /// GPUs in all.
        gpus: u32,
        /// Nodes they are on.
        nodes: u32,
    },
    /// A batch limit contradicts another one.
    #[error("{lower} ({lower_value}) is larger than {upper} ({upper_value})")]
    BadLimits {
        /// The limit that should be the smaller one.
        lower: &'static str,
        /// Its value.
        lower_value: u64,
        /// The limit that should be the larger one.
        upper: &'static str,
        /// Its value.
        upper_value: u64,
    },
    /// A GPU type without a name.
    #[error(transparent)]
    GpuType(#[from] EmptyGpuType),
    /// A name that is not among the known ones.
    #[error("unknown {what} `{name}`; known are {allowed}")]
    UnknownName {
        /// The kind of thing that was named.
        what: &'static str,
        /// What was given.
        name: String,
        /// The known names.
        allowed: String,
    },
    /// Two lists that belong together have different lengths.
    #[error("{what}: {len} numbers for {expected}")]
    LengthMismatch {
        /// The list, as a user would call it.
        what: &'static str,
        /// Its length.
        len: usize,
        /// The length it should have.
        expected: usize,
    },
    /// There is nothing to fit to.
    #[error("no observations to fit")]
    NoObservations,
    /// The optimizer found no finite parameters.
    #[error("the fit did not converge to finite parameters")]
    FitFailed,
}

impl Error {
    /// `value` if it is finite and at least `min`.
    pub(crate) fn check_at_least(
        what: &'static str,
        value: f64,
        min: f64,
        allowed: &'static str,
    ) -> Result<f64, Self> {
        if value.is_finite() && value >= min {
            Ok(value)
        } else {
            Err(Self::OutOfRange { what, value, allowed })
        }
    }

    /// `value` if it is finite.
    pub(crate) const fn check_finite(what: &'static str, value: f64) -> Result<f64, Self> {
        if value.is_finite() {
            Ok(value)
        } else {
            Err(Self::OutOfRange { what, value, allowed: "a finite number" })
        }
    }

    /// `value` if it is finite and above zero.
    pub(crate) fn check_positive(what: &'static str, value: f64) -> Result<f64, Self> {
        if value.is_finite() && value > 0.0 {
            Ok(value)
        } else {
            Err(Self::OutOfRange { what, value, allowed: "a finite number above 0" })
        }
    }
}

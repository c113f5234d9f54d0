use super::{Confidence, Value};

/// What is expected of a parameter: the value that is best, and how sure that is.
#[derive(Debug, Clone, PartialEq)]
pub struct Prior {
    pub(super) value: Value,
    pub(super) confidence: Confidence,
}

impl Prior {
    /// The value that is expected to be best.
    #[must_use]
    pub const fn value(&self) -> &Value {
        &self.value
    }

    /// How sure that is.
    #[must_use]
    pub const fn confidence(&self) -> Confidence {
        self.confidence
    }
}

/// A [`Prior`] as suggesters see it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DimPrior {
    /// The coordinate of the value.
    pub coordinate: f64,
    /// How sure it is.
    pub confidence: Confidence,
}

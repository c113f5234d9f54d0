/// One dimension of a space in the form that suggesters work on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dim {
    /// A number from 0 to 1.
    Continuous,
    /// Cells 0, 1, ... in order; neighbours are alike.
    Discrete {
        /// How many there are.
        count: u64,
    },
    /// Choices 0, 1, ... without order.
    Categorical {
        /// How many there are.
        count: usize,
    },
}

impl Dim {
    /// Whether a coordinate lies inside: cells and choices are whole numbers.
    ///
    /// ```
    /// use pollux_tune::space::Dim;
    /// assert!(Dim::Continuous.contains(0.5));
    /// assert!(!Dim::Discrete { count: 3 }.contains(0.5));
    /// assert!(!Dim::Categorical { count: 3 }.contains(3.0));
    /// ```
    #[must_use]
    pub fn contains(self, coordinate: f64) -> bool {
        match self.cells() {
            None => (0.0..=1.0).contains(&coordinate),
            Some(count) => coordinate.fract() == 0.0 && (0.0..count as f64).contains(&coordinate),
        }
    }

    /// Takes a share of the way from the first value to the last one, from 0 to 1, to the value there.
    ///
    /// ```
    /// use pollux_tune::space::Dim;
    /// assert_eq!(Dim::Discrete { count: 4 }.at(0.99) as u64, 3);
    /// ```
    #[must_use]
    pub fn at(self, share: f64) -> f64 {
        match self.cells() {
            None => share.clamp(0.0, 1.0),
            Some(count) => (share * count as f64).floor().clamp(0.0, count.saturating_sub(1) as f64),
        }
    }

    /// How many cells or choices there are; none if it is continuous.
    #[must_use]
    pub const fn cells(self) -> Option<u64> {
        match self {
            Self::Continuous => None,
            Self::Discrete { count } => Some(count),
            Self::Categorical { count } => Some(count as u64),
        }
    }
}

/// One coordinate for each dimension, none where the parameter is inactive. Those of cells and choices are
/// whole numbers.
pub type Point = Vec<Option<f64>>;

use super::{Confidence, Domain, Error, Space, Value};

/// Puts a [`Space`] together. The first mistake is what [`SpaceBuilder::build`] returns.
///
/// ```
/// use pollux_tune::space::{Dim, Domain, Space};
/// let space = Space::builder()
///     .add("lr", Domain::log(1e-5, 1e-1)?)
///     .add("optimizer", Domain::choice(["sgd", "adam"])?)
///     .add_when("momentum", Domain::float(0.0, 0.99)?, "optimizer", ["sgd"])
///     .add("batch", Domain::fixed(128)?)
///     .build()?;
/// assert_eq!(space.dims(), [Dim::Continuous, Dim::Categorical { count: 2 }, Dim::Continuous]);
///
/// let sgd = space.decode(&[Some(0.5), Some(0.0), Some(1.0)])?;
/// assert_eq!(sgd.to_string(), "lr=0.001 optimizer=sgd momentum=0.99 batch=128");
/// let adam = space.decode(&[Some(0.5), Some(1.0), Some(1.0)])?;
/// assert_eq!(adam.to_string(), "lr=0.001 optimizer=adam batch=128");
/// assert_eq!(space.encode(&adam)?[2], None); // no momentum
/// # Ok::<(), pollux_tune::space::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct SpaceBuilder {
    space: Result<Space, Error>,
}

impl SpaceBuilder {
    pub(super) fn new() -> Self {
        Self { space: Ok(Space::default()) }
    }

    /// Adds a parameter that is always active.
    #[must_use]
    pub fn add(self, name: &str, domain: Domain) -> Self {
        self.and(|space| space.push(name, domain, None))
    }

    /// Adds a parameter that is active where an earlier one is active and has one of these values.
    #[must_use]
    pub fn add_when<V: Into<Value>>(
        self,
        name: &str,
        domain: Domain,
        parent: &str,
        values: impl IntoIterator<Item = V>,
    ) -> Self {
        let values: Vec<Value> = values.into_iter().map(Into::into).collect();
        self.and(|space| {
            let condition = space.condition(parent, &values)?;
            space.push(name, domain, Some(condition))
        })
    }

    /// Says which value of a parameter that was added before is expected to be best. Searches try it first and then look around it, the
    /// less the more results there are and the less these agree.
    ///
    /// ```
    /// use pollux_tune::space::{Confidence, Domain, Space};
    /// let space = Space::builder()
    ///     .add("lr", Domain::log(1e-5, 1e-1)?)
    ///     .expect_value("lr", 3e-4, Confidence::High)
    ///     .build()?;
    /// let yaml = "space:\n  lr: {float: [1e-5, 0.1], log: true, prior: 0.0003, confidence: high}\n";
    /// assert_eq!(space.to_yaml(), yaml);
    /// # Ok::<(), pollux_tune::space::Error>(())
    /// ```
    #[must_use]
    pub fn expect_value(self, name: &str, value: impl Into<Value>, confidence: Confidence) -> Self {
        let value = value.into();
        self.and(|space| space.expect_value(name, &value, confidence))
    }

    /// Adds a constraint between parameters that were added before; see [`Constraint`](super::Constraint).
    #[must_use]
    pub fn constrain(self, text: &str) -> Self {
        self.and(|space| space.constrain(text))
    }

    /// The space.
    pub fn build(self) -> Result<Space, Error> {
        self.space
    }

    fn and(self, step: impl FnOnce(&mut Space) -> Result<(), Error>) -> Self {
        let space = self.space.and_then(|mut space| {
            step(&mut space)?;
            Ok(space)
        });
        Self { space }
    }
}

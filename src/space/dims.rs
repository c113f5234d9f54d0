use std::{fmt, sync::Arc};

use thiserror::Error;

use super::{Dim, DimPrior, Point};

/// When a parameter is active: its parent is, and has one of the choices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parent {
    /// Where the parent stands among the parameters.
    pub dim: usize,
    /// The values of the parent.
    pub choices: Vec<u64>,
}

/// Why parameters make no search space.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BadDims {
    /// There is not one entry of parents for each parameter.
    #[error("{dims} parameters have {parents} entries of parents")]
    Parents {
        /// The number of parameters.
        dims: usize,
        /// The number of entries.
        parents: usize,
    },
    /// A parameter has nothing to choose from, or more cells than a number can tell apart.
    #[error("parameter {dim} has {count} values; expected 1 to 2^52")]
    Count {
        /// The parameter.
        dim: usize,
        /// What was given.
        count: u64,
    },
    /// A parent stands behind its child or is a continuum.
    #[error("parameter {dim} depends on {parent}; expected a discrete parameter that stands before it")]
    Order {
        /// The child.
        dim: usize,
        /// The parent.
        parent: usize,
    },
    /// A parent does not have the value that a child asks for.
    #[error("parameter {dim} depends on the value {choice} of {parent}, which has {count}")]
    Choice {
        /// The child.
        dim: usize,
        /// The parent.
        parent: usize,
        /// The value asked for.
        choice: u64,
        /// The number of values of the parent.
        count: u64,
    },
    /// What is expected of a parameter is none of its values, or there is no such parameter.
    #[error("the prior of parameter {dim} is none of its values")]
    Prior {
        /// The parameter.
        dim: usize,
    },
    /// A child that can never be active.
    #[error("parameter {dim} is active for no value of {parent}")]
    Never {
        /// The child.
        dim: usize,
        /// The parent.
        parent: usize,
    },
}

type Constraint = Arc<dyn Fn(&[Option<f64>]) -> bool + Send + Sync>;

/// Parameters, when they are active, and which points are feasible.
///
/// ```
/// use pollux_tune::space::{Dim, Dims, Parent};
///
/// // A choice of two optimizers; the second one has a momentum.
/// let momentum = Parent { dim: 0, choices: vec![1] };
/// let dims = Dims::new(vec![Dim::Categorical { count: 2 }, Dim::Continuous], vec![None, Some(momentum)])?;
/// assert!(dims.contains(&[Some(0.0), None]));
/// assert!(!dims.contains(&[Some(1.0), None]), "the momentum is missing");
/// # Ok::<(), pollux_tune::space::BadDims>(())
/// ```
#[derive(Clone)]
pub struct Dims {
    parameters: Vec<Dim>,
    parents: Vec<Option<Parent>>,
    constraint: Option<Constraint>,
    priors: Vec<Option<DimPrior>>,
}

impl Dims {
    /// Parameters with their parents; a parent stands before its children.
    pub fn new(dims: Vec<Dim>, parents: Vec<Option<Parent>>) -> Result<Self, BadDims> {
        if dims.len() != parents.len() {
            return Err(BadDims::Parents { dims: dims.len(), parents: parents.len() });
        }
        for (dim, parameter) in dims.iter().enumerate() {
            let count = parameter.cells().unwrap_or(1);
            if count == 0 || count > 1 << 52 {
                return Err(BadDims::Count { dim, count });
            }
        }
        for (dim, parent) in parents.iter().enumerate() {
            if let Some(parent) = parent {
                check_parent(&dims, dim, parent)?;
            }
        }
        let priors = vec![None; dims.len()];
        Ok(Self { parameters: dims, parents, constraint: None, priors })
    }

    /// Parameters that are always active.
    ///
    /// ```
    /// use pollux_tune::space::{Dim, Dims};
    ///
    /// let dims = Dims::flat(vec![Dim::Continuous, Dim::Discrete { count: 8 }])?;
    /// assert_eq!(dims.len(), 2);
    /// # Ok::<(), pollux_tune::space::BadDims>(())
    /// ```
    pub fn flat(dims: Vec<Dim>) -> Result<Self, BadDims> {
        let parents = vec![None; dims.len()];
        Self::new(dims, parents)
    }

    /// Adds a rule that feasible points keep, to those there are.
    #[must_use]
    pub fn with_constraint(mut self, rule: impl Fn(&[Option<f64>]) -> bool + Send + Sync + 'static) -> Self {
        self.constraint = Some(match self.constraint.take() {
            None => Arc::new(rule),
            Some(before) => Arc::new(move |point: &[Option<f64>]| before(point) && rule(point)),
        });
        self
    }

    /// Adds what is expected of parameters, by their places, to what there is.
    ///
    /// ```
    /// use pollux_tune::space::{Confidence, Dim, DimPrior, Dims};
    ///
    /// let prior = DimPrior { coordinate: 0.3, confidence: Confidence::High };
    /// let dims = Dims::flat(vec![Dim::Continuous; 2])?.with_priors([(1, prior)])?;
    /// assert_eq!([dims.prior(0), dims.prior(1)], [None, Some(prior)]);
    /// # Ok::<(), pollux_tune::space::BadDims>(())
    /// ```
    pub fn with_priors(
        mut self,
        priors: impl IntoIterator<Item = (usize, DimPrior)>,
    ) -> Result<Self, BadDims> {
        for (dim, prior) in priors {
            if !self.parameters.get(dim).is_some_and(|parameter| parameter.contains(prior.coordinate)) {
                return Err(BadDims::Prior { dim });
            }
            self.priors[dim] = Some(prior);
        }
        Ok(self)
    }

    /// What is expected of a parameter, if anything.
    #[must_use]
    pub fn prior(&self, dim: usize) -> Option<DimPrior> {
        self.priors[dim]
    }

    /// The number of parameters.
    #[must_use]
    pub fn len(&self) -> usize {
        self.parameters.len()
    }

    /// Whether there is nothing to choose.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.parameters.is_empty()
    }

    /// A parameter.
    #[must_use]
    pub fn dim(&self, dim: usize) -> Dim {
        self.parameters[dim]
    }

    /// All parameters, parents before their children.
    pub fn iter(&self) -> impl Iterator<Item = Dim> + '_ {
        self.parameters.iter().copied()
    }

    /// When a parameter is active; none if it always is.
    #[must_use]
    pub fn parent(&self, dim: usize) -> Option<&Parent> {
        self.parents[dim].as_ref()
    }

    /// Whether a parameter is active, given the coordinates of those before it.
    #[must_use]
    pub fn is_active(&self, dim: usize, before: &[Option<f64>]) -> bool {
        self.parents[dim].as_ref().is_none_or(|parent| {
            before[parent.dim].is_some_and(|value| parent.choices.contains(&(value as u64)))
        })
    }

    /// Whether a parameter has a parent, so that it is not always active.
    #[must_use]
    pub fn is_conditional(&self, dim: usize) -> bool {
        self.parents[dim].is_some()
    }

    /// Whether a point keeps the constraints; it must be one that the parameters can take.
    #[must_use]
    pub fn is_feasible(&self, point: &[Option<f64>]) -> bool {
        self.constraint.as_ref().is_none_or(|rule| rule(point))
    }

    /// Whether points can be infeasible.
    #[must_use]
    pub fn is_constrained(&self) -> bool {
        self.constraint.is_some()
    }

    /// Whether every coordinate is in its range and there exactly where the parameter is active. Constraints
    /// do not matter.
    #[must_use]
    pub fn contains(&self, point: &[Option<f64>]) -> bool {
        point.len() == self.parameters.len()
            && (0..self.parameters.len()).all(|dim| match point[dim] {
                Some(value) => self.is_active(dim, point) && self.parameters[dim].contains(value),
                None => !self.is_active(dim, point),
            })
    }

    /// Builds a point by choosing the active coordinates in order.
    pub fn build(&self, mut choose: impl FnMut(usize, Dim) -> f64) -> Point {
        let mut point = Point::with_capacity(self.len());
        for (dim, &parameter) in self.parameters.iter().enumerate() {
            let value = self.is_active(dim, &point).then(|| choose(dim, parameter));
            point.push(value);
        }
        point
    }
}

impl fmt::Debug for Dims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dims")
            .field("parameters", &self.parameters)
            .field("parents", &self.parents)
            .finish_non_exhaustive()
    }
}

fn check_parent(dims: &[Dim], dim: usize, parent: &Parent) -> Result<(), BadDims> {
    let order = BadDims::Order { dim, parent: parent.dim };
    let count = dims[..dim].get(parent.dim).and_then(|parent| parent.cells()).ok_or(order)?;
    if parent.choices.is_empty() {
        return Err(BadDims::Never { dim, parent: parent.dim });
    }
    match parent.choices.iter().find(|&&choice| choice >= count) {
        Some(&choice) => Err(BadDims::Choice { dim, parent: parent.dim, choice, count }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_must_make_sense() {
        let dims = vec![Dim::Discrete { count: 3 }, Dim::Continuous];
        let child = |dim, choices| Dims::new(dims.clone(), vec![None, Some(Parent { dim, choices })]);
        assert!(child(0, vec![0, 2]).is_ok());
        let wrong = |dim, choices| child(dim, choices).expect_err("it is wrong").to_string();
        assert!(wrong(1, vec![0]).contains("depends on 1"));
        assert!(wrong(0, vec![3]).contains("value 3 of 0, which has 3"));
        assert!(wrong(0, vec![]).contains("active for no value"));
        assert_eq!(
            Dims::flat(vec![Dim::Discrete { count: 0 }]).expect_err("nothing to choose"),
            BadDims::Count { dim: 0, count: 0 }
        );
        assert!(Dims::new(vec![Dim::Continuous], vec![]).is_err());
    }

    #[test]
    fn shares_reach_every_cell() {
        let dim = Dim::Discrete { count: 4 };
        assert_eq!([0.0, 0.26, 0.99, 1.0].map(|share| dim.at(share) as u64), [0, 1, 3, 3]);
    }

    #[test]
    fn constraints_add_up() {
        let dims = Dims::flat(vec![Dim::Continuous]).expect("it is a space");
        let above = |low: f64| move |point: &[Option<f64>]| point[0].is_some_and(|x| x > low);
        let dims = dims.with_constraint(above(0.2)).with_constraint(above(0.1));
        assert!(dims.is_feasible(&[Some(0.3)]));
        assert!(!dims.is_feasible(&[Some(0.15)]));
    }
}

use std::fmt::Write;

use super::{
    BadDims, Confidence, Constraint, Dim, DimPrior, Dims, Domain, Error, Params, Parent, Point, Prior,
    SpaceBuilder, Value, error::similar, value::text_to_yaml,
};

/// What can be searched: parameters with domains and conditions, in order, and constraints between them.
///
/// Made by [`Space::builder`] or read from YAML by [`Space::from_yaml`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Space {
    parameters: Vec<Parameter>,
    /// The parameter of each dimension.
    dims: Vec<usize>,
    constraints: Vec<Constraint>,
}

/// A named domain, perhaps under a condition.
#[derive(Debug, Clone, PartialEq)]
pub struct Parameter {
    name: String,
    domain: Domain,
    condition: Option<Condition>,
    prior: Option<Prior>,
    dim: Option<usize>,
}

/// The values of another parameter with which a parameter is active.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Condition {
    /// The place of the parent among the parameters.
    parent: usize,
    parent_dim: usize,
    /// Sorted.
    cells: Vec<u64>,
}

impl Parameter {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its values.
    #[must_use]
    pub const fn domain(&self) -> &Domain {
        &self.domain
    }

    /// What is expected of it, if anything.
    #[must_use]
    pub const fn prior(&self) -> Option<&Prior> {
        self.prior.as_ref()
    }

    /// Its dimension; none if it is fixed.
    #[must_use]
    pub const fn dim(&self) -> Option<usize> {
        self.dim
    }
}

impl Space {
    /// An empty space to add parameters to.
    #[must_use]
    pub fn builder() -> SpaceBuilder {
        SpaceBuilder::new()
    }

    /// All parameters, in order, fixed ones included.
    #[must_use]
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// All constraints.
    #[must_use]
    pub fn constraints(&self) -> &[Constraint] {
        &self.constraints
    }

    /// What suggesters work on: one dimension for each parameter that is not fixed, in order.
    #[must_use]
    pub fn dims(&self) -> Vec<Dim> {
        self.dims.iter().filter_map(|&place| self.parameters[place].domain.dim()).collect()
    }

    /// The space as suggesters take it: dimensions, when they are active, and which points keep the constraints.
    ///
    /// ```
    /// use pollux_tune::space::{Domain, Space};
    /// let space = Space::builder()
    ///     .add("low", Domain::float(0.0, 1.0)?)
    ///     .add("high", Domain::float(0.0, 1.0)?)
    ///     .constrain("low < high")
    ///     .build()?;
    /// let dims = space.to_dims()?;
    /// assert!(dims.is_feasible(&[Some(0.1), Some(0.2)]) && !dims.is_feasible(&[Some(0.2), Some(0.1)]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn to_dims(&self) -> Result<Dims, BadDims> {
        let parent =
            |dim: usize| self.parent(dim).map(|(dim, cells)| Parent { dim, choices: cells.to_vec() });
        let dims = Dims::new(self.dims(), (0..self.dims.len()).map(parent).collect())?;
        let prior = |parameter: &Parameter| {
            let Prior { value, confidence } = parameter.prior.as_ref()?;
            let coordinate = parameter.domain.encode(value)?;
            Some((parameter.dim?, DimPrior { coordinate, confidence: *confidence }))
        };
        let dims = dims.with_priors(self.parameters.iter().filter_map(prior))?;
        if self.constraints.is_empty() {
            return Ok(dims);
        }
        let space = self.clone();
        Ok(dims.with_constraint(move |point| {
            space.decode(point).is_ok_and(|assignment| space.satisfies(&assignment))
        }))
    }

    /// The name of the parameter of a dimension.
    ///
    /// # Panics
    ///
    /// If there is no such dimension.
    #[must_use]
    pub fn name(&self, dim: usize) -> &str {
        &self.parameters[self.dims[dim]].name
    }

    /// On which other dimension, and on which of its cells or choices (sorted), a dimension depends. The
    /// other one comes before it, and may depend on a third.
    ///
    /// # Panics
    ///
    /// If there is no such dimension.
    #[must_use]
    pub fn parent(&self, dim: usize) -> Option<(usize, &[u64])> {
        let condition = self.parameters[self.dims[dim]].condition.as_ref()?;
        Some((condition.parent_dim, &condition.cells))
    }

    /// Whether the parameter of a dimension is active at a point: all conditions on the way up hold.
    ///
    /// # Panics
    ///
    /// If there is no such dimension.
    #[must_use]
    pub fn is_active(&self, dim: usize, point: &[Option<f64>]) -> bool {
        self.is_active_parameter(self.dims[dim], point)
    }

    fn is_active_parameter(&self, place: usize, point: &[Option<f64>]) -> bool {
        let mut condition = self.parameters[place].condition.as_ref();
        while let Some(Condition { parent, parent_dim, cells }) = condition {
            let cell = point.get(*parent_dim).copied().flatten().filter(|cell| *cell >= 0.0);
            if cell.is_none_or(|cell| cells.binary_search(&(cell as u64)).is_err()) {
                return false;
            }
            condition = self.parameters[*parent].condition.as_ref();
        }
        true
    }

    /// The values at a point. Coordinates of inactive parameters are ignored.
    pub fn decode(&self, point: &[Option<f64>]) -> Result<Params, Error> {
        if point.len() != self.dims.len() {
            return Err(Error::WrongLength { found: point.len(), expected: self.dims.len() });
        }
        let mut values = Vec::with_capacity(self.parameters.len());
        for (place, parameter) in self.parameters.iter().enumerate() {
            if !self.is_active_parameter(place, point) {
                continue;
            }
            let coordinate = parameter.dim.map_or(Some(0.0), |dim| point[dim]);
            let value = coordinate.and_then(|coordinate| parameter.domain.decode(coordinate));
            let value = value.ok_or_else(|| bad_coordinate(parameter, coordinate))?;
            values.push((parameter.name.clone(), value));
        }
        Ok(values.into_iter().collect())
    }

    /// The point of an assignment, which must hold every active parameter and no other.
    ///
    /// Fixed parameters may be left out. A whole number of a log domain that lies between two of its cells
    /// becomes the nearest, see [`Domain::log_int`].
    pub fn encode(&self, assignment: &Params) -> Result<Point, Error> {
        let names = || self.parameters.iter().map(Parameter::name);
        if let Some((name, _)) = assignment.iter().find(|(name, _)| !names().any(|known| known == *name)) {
            let similar = similar(name, names()).map(str::to_owned);
            return Err(Error::Unknown { name: name.to_owned(), place: "in the space", similar });
        }
        let mut point = vec![None; self.dims.len()];
        for (place, parameter) in self.parameters.iter().enumerate() {
            let value = assignment.get(&parameter.name);
            let active = self.is_active_parameter(place, &point);
            match (value, active) {
                (Some(_), false) => return Err(Error::Inactive(parameter.name.clone())),
                (None, true) if parameter.dim.is_some() => {
                    return Err(Error::Missing(parameter.name.clone()));
                }
                (Some(value), true) => {
                    let coordinate = parameter.domain.encode(value);
                    let coordinate = coordinate.ok_or_else(|| bad_value(parameter, value))?;
                    if let Some(dim) = parameter.dim {
                        point[dim] = Some(coordinate);
                    }
                }
                (None, _) => {}
            }
        }
        Ok(point)
    }

    /// An assignment from outside with fixed values added, in the order and with the types of the space.
    ///
    /// ```
    /// use pollux_tune::space::{Params, Domain, Space};
    /// let space = Space::builder().add("lr", Domain::log(1e-5, 1.0)?).add("batch", Domain::fixed(64)?);
    /// let space = space.build()?;
    /// let known = space.complete(&Params::from_iter([("lr", 1.into())]))?;
    /// assert_eq!(known.to_string(), "lr=1 batch=64");
    /// # Ok::<(), pollux_tune::space::Error>(())
    /// ```
    pub fn complete(&self, assignment: &Params) -> Result<Params, Error> {
        let point = self.encode(assignment)?;
        let decoded = self.decode(&point)?;
        let exact = |name: &str, value: &Value| {
            let parameter = self.parameters.iter().find(|parameter| parameter.name == name)?;
            Some((name.to_owned(), parameter.domain.normalize(assignment.get(name).unwrap_or(value))?))
        };
        Ok(decoded.iter().filter_map(|(name, value)| exact(name, value)).collect())
    }

    /// Whether all constraints hold.
    #[must_use]
    pub fn satisfies(&self, assignment: &Params) -> bool {
        self.broken(assignment).is_none()
    }

    /// The first constraint that does not hold.
    #[must_use]
    pub fn broken(&self, assignment: &Params) -> Option<&Constraint> {
        self.constraints.iter().find(|constraint| !constraint.holds(assignment))
    }

    /// How many different assignments there are, if they can be counted; constraints are not looked at.
    ///
    /// ```
    /// use pollux_tune::space::{Domain, Space};
    /// let space = Space::builder()
    ///     .add("optimizer", Domain::choice(["sgd", "adam", "lamb"])?)
    ///     .add_when("nesterov", Domain::bool(), "optimizer", ["sgd"])
    ///     .add("layers", Domain::int(1, 5)?)
    ///     .build()?;
    /// assert_eq!(space.combinations(), Some((2 + 1 + 1) * 5));
    /// # Ok::<(), pollux_tune::space::Error>(())
    /// ```
    #[must_use]
    pub fn combinations(&self) -> Option<u128> {
        // From the last to the first, so that children come before their parents.
        let mut counts: Vec<u128> = vec![1; self.parameters.len()];
        for (place, parameter) in self.parameters.iter().enumerate().rev() {
            let Some(dim) = parameter.domain.dim() else { continue };
            let cells = dim.cells()?;
            let children: Vec<_> = self.children(place).collect();
            let mut special: Vec<u64> =
                children.iter().flat_map(|(_, cells)| cells.iter().copied()).collect();
            special.sort_unstable();
            special.dedup();
            let mut sum = u128::from(cells - special.len() as u64);
            for cell in special {
                let active = children.iter().filter(|(_, cells)| cells.binary_search(&cell).is_ok());
                let product = active.map(|(child, _)| counts[*child]).try_fold(1_u128, u128::checked_mul)?;
                sum = sum.checked_add(product)?;
            }
            counts[place] = sum;
        }
        let roots = self.parameters.iter().zip(counts).filter(|(parameter, _)| parameter.condition.is_none());
        roots.map(|(_, count)| count).try_fold(1, u128::checked_mul)
    }

    fn children(&self, place: usize) -> impl Iterator<Item = (usize, &[u64])> {
        self.parameters.iter().enumerate().filter_map(move |(child, parameter)| {
            let condition = parameter.condition.as_ref().filter(|condition| condition.parent == place)?;
            Some((child, condition.cells.as_slice()))
        })
    }

    /// The parts `space` and `constraints` of a study file, which are read as the same space again.
    ///
    /// ```
    /// use pollux_tune::space::{Domain, Space};
    /// let space = Space::builder()
    ///     .add("optimizer", Domain::choice(["sgd", "adam"])?)
    ///     .add_when("momentum", Domain::float(0.0, 0.99)?, "optimizer", ["sgd"])
    ///     .build()?;
    /// let yaml = "space:\n  optimizer: {choice: [sgd, adam]}\n  \
    ///             momentum: {float: [0.0, 0.99], when: {optimizer: [sgd]}}\n";
    /// assert_eq!(space.to_yaml(), yaml);
    /// # Ok::<(), pollux_tune::space::Error>(())
    /// ```
    #[must_use]
    pub fn to_yaml(&self) -> String {
        let mut yaml = String::from(if self.parameters.is_empty() { "space: {}\n" } else { "space:\n" });
        for parameter in &self.parameters {
            let mut domain = self.parameter_to_yaml(parameter);
            if let Some(Prior { value, confidence }) = &parameter.prior {
                domain.truncate(domain.len() - 1);
                let _ = write!(domain, ", prior: {}, confidence: {confidence}}}", value.to_yaml());
            }
            let _ = writeln!(yaml, "  {}: {domain}", text_to_yaml(&parameter.name));
        }
        for (place, constraint) in self.constraints.iter().enumerate() {
            let heading = if place == 0 { "constraints:\n" } else { "" };
            let _ = writeln!(yaml, "{heading}  - {}", text_to_yaml(constraint.text()));
        }
        yaml
    }

    /// The domain and the condition of one of its parameters.
    pub(super) fn parameter_to_yaml(&self, parameter: &Parameter) -> String {
        let mut domain = parameter.domain.to_string();
        if let Some(Condition { parent, cells, .. }) = &parameter.condition {
            let parent = &self.parameters[*parent];
            let values = cells.iter().filter_map(|cell| parent.domain.decode(*cell as f64));
            let values: Vec<_> = values.map(|value| value.to_yaml()).collect();
            domain.truncate(domain.len() - 1);
            let parent = text_to_yaml(&parent.name);
            let _ = write!(domain, ", when: {{{parent}: [{}]}}}}", values.join(", "));
        }
        domain
    }

    pub(super) fn condition(&self, parent: &str, values: &[Value]) -> Result<Condition, Error> {
        let Some(place) = self.parameters.iter().position(|known| known.name == parent) else {
            let similar = similar(parent, self.parameters.iter().map(Parameter::name)).map(str::to_owned);
            return Err(Error::Unknown { name: parent.to_owned(), place: "before this one", similar });
        };
        let known = &self.parameters[place];
        let cells = known.domain.dim().and_then(Dim::cells);
        let (Some(_), Some(parent_dim)) = (cells, known.dim) else {
            return Err(Error::BadParent(parent.to_owned()));
        };
        let cell = |value: &Value| {
            let cell = known.domain.encode(value).ok_or_else(|| Error::BadCondition {
                parent: parent.to_owned(),
                value: value.to_string(),
                domain: known.domain.to_string(),
            })?;
            Ok(cell as u64)
        };
        let mut cells = values.iter().map(cell).collect::<Result<Vec<u64>, Error>>()?;
        if cells.is_empty() {
            return Err(Error::EmptyCondition(parent.to_owned()));
        }
        cells.sort_unstable();
        cells.dedup();
        Ok(Condition { parent: place, parent_dim, cells })
    }

    pub(super) fn push(
        &mut self,
        name: &str,
        domain: Domain,
        condition: Option<Condition>,
    ) -> Result<(), Error> {
        let tail = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '-');
        if !name.starts_with(|c: char| c.is_alphabetic() || c == '_') || !name.chars().all(tail) {
            return Err(Error::BadName(name.to_owned()));
        }
        if self.parameters.iter().any(|known| known.name == name) {
            return Err(Error::Duplicate(name.to_owned()));
        }
        let dim = domain.dim().map(|_| self.dims.len());
        if dim.is_some() {
            self.dims.push(self.parameters.len());
        }
        self.parameters.push(Parameter { name: name.to_owned(), domain, condition, prior: None, dim });
        Ok(())
    }

    /// The same with what another space expects of its parameters.
    pub(super) fn with_priors_of(&self, other: &Self) -> Self {
        let mut space = self.clone();
        for parameter in &mut space.parameters {
            let same = other.parameters.iter().find(|known| known.name == parameter.name);
            parameter.prior = same.and_then(|known| known.prior.clone());
        }
        space
    }

    /// Says what is expected of a parameter that was added before.
    pub(super) fn expect_value(
        &mut self,
        name: &str,
        value: &Value,
        confidence: Confidence,
    ) -> Result<(), Error> {
        let Some(place) = self.parameters.iter().position(|known| known.name == name) else {
            let similar = similar(name, self.parameters.iter().map(Parameter::name)).map(str::to_owned);
            return Err(Error::Unknown { name: name.to_owned(), place: "in the space", similar });
        };
        let parameter = &mut self.parameters[place];
        if parameter.dim.is_none() {
            return Err(Error::FixedPrior(name.to_owned()));
        }
        let value = parameter.domain.normalize(value).ok_or_else(|| Error::BadPrior {
            name: name.to_owned(),
            value: value.to_string(),
            domain: parameter.domain.to_string(),
        })?;
        parameter.prior = Some(Prior { value, confidence });
        Ok(())
    }

    pub(super) fn constrain(&mut self, text: &str) -> Result<(), Error> {
        let known: Vec<_> = self.parameters.iter().map(|known| (known.name(), known.domain())).collect();
        let constraint = Constraint::parse(text, &known)?;
        self.constraints.push(constraint);
        Ok(())
    }
}

fn bad_coordinate(parameter: &Parameter, coordinate: Option<f64>) -> Error {
    let allowed = match parameter.domain.dim().and_then(Dim::cells) {
        Some(count) => format!("a whole number from 0 to {}", count - 1),
        None => "a number from 0 to 1".to_owned(),
    };
    let found = coordinate.map_or_else(|| "missing".to_owned(), |found| found.to_string());
    Error::BadCoordinate { name: parameter.name.clone(), found, allowed }
}

fn bad_value(parameter: &Parameter, value: &Value) -> Error {
    let (name, value) = (parameter.name.clone(), value.to_string());
    Error::BadValue { name, value, domain: parameter.domain.to_string() }
}

use thiserror::Error;

/// What can be wrong with a space, a point or an assignment.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum Error {
    /// A name that could not be written in a constraint.
    #[error(
        "`{0}` is not a valid parameter name; expected letters, digits, `_`, `.` and `-` after a letter or `_`"
    )]
    BadName(String),
    /// Two parameters have the same name.
    #[error("`{0}` is there twice, names are unique in the whole space")]
    Duplicate(String),
    /// The bounds, step or choices of a domain.
    #[error("{what} {found}; expected {allowed}")]
    BadDomain {
        /// What is wrong, with its verb, such as `the step is`.
        what: &'static str,
        /// What it is.
        found: String,
        /// What it could be.
        allowed: &'static str,
    },
    /// A parameter that is not in the space, or not above the one that depends on it.
    #[error("there is no parameter `{name}` {place}{}", hint(.similar.as_deref()))]
    Unknown {
        /// The name.
        name: String,
        /// Where it was looked for.
        place: &'static str,
        /// A name that it may have been meant to be.
        similar: Option<String>,
    },
    /// A parameter whose values cannot be listed decides nothing.
    #[error("`{0}` cannot decide about others; expected a parameter with choices or steps")]
    BadParent(String),
    /// A value that the parent cannot have.
    #[error("`{parent}` is never {value}; expected a value of {domain}")]
    BadCondition {
        /// The parameter that decides.
        parent: String,
        /// The value it should have.
        value: String,
        /// What it can have.
        domain: String,
    },
    /// A condition without values would never hold.
    #[error("the condition on `{0}` has no values, it would never hold")]
    EmptyCondition(String),
    /// A constraint that cannot be read.
    #[error("{message} at column {column} of `{text}`")]
    BadConstraint {
        /// The constraint.
        text: String,
        /// Where it goes wrong, in characters from 1.
        column: usize,
        /// What is wrong there, and what is allowed.
        message: String,
    },
    /// A point has more or fewer coordinates than the space has dimensions.
    #[error("the point has {found} coordinates, the space has {expected} dimensions")]
    WrongLength {
        /// How many it has.
        found: usize,
        /// How many it should have.
        expected: usize,
    },
    /// A coordinate is missing, or lies outside of its dimension.
    #[error("the coordinate of `{name}` is {found}; expected {allowed}")]
    BadCoordinate {
        /// The parameter.
        name: String,
        /// Its coordinate.
        found: String,
        /// What the dimension takes.
        allowed: String,
    },
    /// An assignment lacks an active parameter.
    #[error("`{0}` has no value")]
    Missing(String),
    /// An assignment has a parameter whose condition does not hold.
    #[error("`{0}` has a value, but its condition does not hold")]
    Inactive(String),
    /// A value outside of its domain.
    #[error("`{name}` is {value}; expected a value of {domain}")]
    BadValue {
        /// The parameter.
        name: String,
        /// Its value.
        value: String,
        /// What it can be.
        domain: String,
    },
    /// What is expected of a parameter is none of its values.
    #[error("the prior of `{name}` is {value}; expected a value of {domain}")]
    BadPrior {
        /// The parameter.
        name: String,
        /// The value.
        value: String,
        /// What it can be.
        domain: String,
    },
    /// There is nothing to expect of a fixed value.
    #[error("`{0}` has a fixed value; a prior is for parameters that are searched")]
    FixedPrior(String),
    /// The parameters are read as a type that they do not fit.
    #[error("the parameters do not fit this type: {0}")]
    WrongStruct(String),
    /// A value is read as another type than it has.
    #[error("`{name}` is {value}, which is not {wanted}")]
    WrongType {
        /// The parameter.
        name: String,
        /// Its value.
        value: String,
        /// The type that was asked for.
        wanted: &'static str,
    },
}

fn hint(similar: Option<&str>) -> String {
    similar.map_or_else(String::new, |name| format!("; did you mean `{name}`?"))
}

/// The known name that a wrong one was probably meant to be.
pub(super) fn similar<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let simple = |name: &str| name.to_lowercase().replace(['-', ' '], "_");
    let wrong = simple(name);
    let near = known.into_iter().map(|known| (strsim::damerau_levenshtein(&wrong, &simple(known)), known));
    let limit = (wrong.chars().count() / 3).max(1);
    near.filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typing_mistakes_are_understood() {
        let known = ["objective", "trials", "parallel", "max_batch"];
        assert_eq!(similar("objectve", known), Some("objective"));
        assert_eq!(similar("trails", known), Some("trials"));
        assert_eq!(similar("max-batch", known), Some("max_batch"));
        assert_eq!(similar("colour", known), None);
        assert_eq!(similar("", known), None);
    }
}

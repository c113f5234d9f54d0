use super::{Domain, Error, Params, Value, parse::Parser};

/// A rule between parameters, such as `batch * accumulation <= 4096`.
///
/// It knows numbers, names, texts in quotes, `true`, `false`, `+ - * /`, comparisons, `and`, `or`, `not` and
/// brackets. A name with `-` in it is written in backquotes. It does not apply where one of its parameters is
/// inactive.
///
/// ```
/// use pollux_tune::space::{Domain, Space};
/// let space = Space::builder()
///     .add("lr", Domain::log(1e-5, 1e-1)?)
///     .add("min_lr", Domain::log(1e-6, 1e-1)?)
///     .constrain("min_lr < lr")
///     .build()?;
/// let good = space.decode(&[Some(0.9), Some(0.1)])?;
/// assert!(space.satisfies(&good));
/// let bad = space.decode(&[Some(0.1), Some(0.9)])?;
/// assert_eq!(space.broken(&bad).map(|constraint| constraint.text()), Some("min_lr < lr"));
/// # Ok::<(), pollux_tune::space::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Constraint {
    text: String,
    rule: Expression,
}

/// What a constraint is made of.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Expression {
    Constant(Value),
    Name(String),
    Not(Box<Expression>),
    Minus(Box<Expression>),
    Binary(Operator, Box<Expression>, Box<Expression>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    Less,
    AtMost,
    Greater,
    AtLeast,
    Equal,
    Unequal,
    And,
    Or,
}

/// What an expression yields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Type {
    Number,
    Truth,
    Text,
}

impl Type {
    /// The type of all values of a domain, unless they are of several.
    pub(super) fn of(domain: &Domain) -> Option<Self> {
        let mut types = domain.samples().into_iter().map(|value| Self::of_value(&value));
        let first = types.next()?;
        types.all(|next| next == first).then_some(first)
    }

    pub(super) const fn of_value(value: &Value) -> Self {
        match value {
            Value::Bool(_) => Self::Truth,
            Value::Int(_) | Value::Float(_) => Self::Number,
            Value::Text(_) => Self::Text,
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Number => "a number",
            Self::Truth => "true or false",
            Self::Text => "a text",
        }
    }
}

impl Constraint {
    /// Reads a constraint between parameters of these names and domains.
    pub(super) fn parse(text: &str, known: &[(&str, &Domain)]) -> Result<Self, Error> {
        let rule = Parser::new(text, known).whole().map_err(|wrong| Error::BadConstraint {
            text: text.trim().to_owned(),
            column: wrong.at + 1,
            message: wrong.message,
        })?;
        Ok(Self { text: text.trim().to_owned(), rule })
    }

    /// As it was written.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether an assignment keeps to it, or it does not apply.
    #[must_use]
    pub fn holds(&self, assignment: &Params) -> bool {
        match self.rule.value(assignment) {
            Some(Value::Bool(holds)) => holds,
            _ => true,
        }
    }
}

impl Expression {
    /// None if a parameter is inactive.
    fn value(&self, assignment: &Params) -> Option<Value> {
        Some(match self {
            Self::Constant(value) => value.clone(),
            Self::Name(name) => assignment.get(name)?.clone(),
            Self::Not(inner) => Value::Bool(!inner.value(assignment)?.as_bool()?),
            Self::Minus(inner) => Value::Float(-inner.value(assignment)?.as_float()?),
            Self::Binary(operator, left, right) => {
                let (left, right) = (left.value(assignment)?, right.value(assignment)?);
                return operator.apply(&left, &right);
            }
        })
    }
}

impl Operator {
    #[expect(clippy::float_cmp, reason = "the user asks for equality, and choices are exact")]
    fn apply(self, left: &Value, right: &Value) -> Option<Value> {
        if let (Some(left), Some(right)) = (left.as_float(), right.as_float()) {
            return match self {
                Self::Add => Some(Value::Float(left + right)),
                Self::Subtract => Some(Value::Float(left - right)),
                Self::Multiply => Some(Value::Float(left * right)),
                Self::Divide => Some(Value::Float(left / right)),
                Self::Less => Some(Value::Bool(left < right)),
                Self::AtMost => Some(Value::Bool(left <= right)),
                Self::Greater => Some(Value::Bool(left > right)),
                Self::AtLeast => Some(Value::Bool(left >= right)),
                Self::Equal => Some(Value::Bool(left == right)),
                Self::Unequal => Some(Value::Bool(left != right)),
                Self::And | Self::Or => None,
            };
        }
        match self {
            Self::And => Some(Value::Bool(left.as_bool()? && right.as_bool()?)),
            Self::Or => Some(Value::Bool(left.as_bool()? || right.as_bool()?)),
            Self::Equal => Some(Value::Bool(left == right)),
            Self::Unequal => Some(Value::Bool(left != right)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Constraint, Error> {
        let domains = [
            ("lr", Domain::float(0.0, 1.0).unwrap()),
            ("batch", Domain::int(1, 4096).unwrap()),
            ("act", Domain::choice(["relu", "gelu"]).unwrap()),
            ("nesterov", Domain::bool()),
            ("weight-decay", Domain::float(0.0, 1.0).unwrap()),
            ("mixed", Domain::choice([Value::Int(1), Value::from("auto")]).unwrap()),
        ];
        Constraint::parse(text, &domains.each_ref().map(|(name, domain)| (*name, domain)))
    }

    fn holds(text: &str) -> bool {
        let constraint = parse(text).unwrap();
        let values: [(&str, Value); 5] = [
            ("lr", 0.1.into()),
            ("batch", 128.into()),
            ("act", "relu".into()),
            ("nesterov", true.into()),
            ("weight-decay", 0.5.into()),
        ];
        constraint.holds(&Params::from_iter(values))
    }

    fn wrong(text: &str) -> String {
        parse(text).unwrap_err().to_string()
    }

    #[test]
    fn constraints_are_computed_with_the_usual_precedence() {
        for text in [
            "batch <= 128",
            "1 + 2 * 3 == 7",
            "(1 + 2) * 3 == 9",
            "8 / 4 / 2 == 1",
            "8 - 4 - 2 == 2",
            "-batch < -127 and - -1 == 1",
            "not batch < 5 and nesterov",
            "false or true and true",
            "act == 'relu' or lr > 1",
            "act != \"gelu\"",
            "`weight-decay` > lr",
            "lr * 1e1 >= .5e0 * 2",
            "nesterov == true",
        ] {
            assert!(holds(text), "{text}");
        }
        for text in ["batch < 128", "not nesterov", "act == 'gelu'", "1 / 0 < 1", "0 / 0 == 0 / 0"] {
            assert!(!holds(text), "{text}");
        }
    }

    #[test]
    fn a_constraint_without_all_its_parameters_does_not_apply() {
        let constraint = parse("lr > 1 and batch > 1").unwrap();
        assert!(constraint.holds(&Params::from_iter([("batch", 5.into())])));
    }

    #[test]
    fn mistakes_have_columns() {
        for (text, message) in [
            ("batch <= ", "the constraint ends too early; expected a number, name, text or `(` at column 10"),
            ("batch <= 3 3", "`3` is too much; expected an operator or the end at column 12"),
            ("1 < lr < 2", "comparisons cannot be chained; write `a < b and b < c` at column 8"),
            ("btach < 3", "there is no parameter `btach` in the space; did you mean `batch`? at column 1"),
            ("lr + 1", "this is a number; expected a comparison at column 1"),
            ("lr < 'x'", "a number is compared with a text; expected two of the same kind at column 4"),
            ("act < 'x'", "`<` has a text on its left; expected a number at column 5"),
            ("(lr < 1", "a `(` is not closed; expected `)` at column 8"),
            ("lr < 1 and 3", "`and` has a number on its right; expected true or false at column 8"),
            (
                "lr ~ 1",
                "`~` is unknown; expected one of numbers, names, texts, + - * / < <= > >= == != and or not ( ) \
                 at column 4",
            ),
            ("lr = 1", "`=` is unknown; write `==` for equality at column 4"),
            ("lr < 1.2.3", "`1.2.3` is not a number at column 6"),
            ("act == 'relu", "a text is not closed; expected another `'` at column 8"),
            (
                "mixed == 1",
                "`mixed` has values of several kinds; expected a parameter whose values are of one kind at column 1",
            ),
            ("", "the constraint ends too early; expected a number, name, text or `(` at column 1"),
        ] {
            assert_eq!(wrong(text), format!("{message} of `{}`", text.trim()), "{text}");
        }
    }

    #[test]
    fn depth_has_a_limit() {
        assert!(wrong(&"(".repeat(400)).starts_with("the constraint is nested too deeply"));
        assert!(wrong(&"not ".repeat(400)).starts_with("the constraint is nested too deeply"));
        assert!(wrong(&"-".repeat(400)).starts_with("the constraint is nested too deeply"));
        let long = format!("{}1 < 2", "1 + ".repeat(100_000));
        assert!(wrong(&long).starts_with("the constraint is too long"));
    }
}

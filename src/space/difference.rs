//! What makes a study another one than that in a folder.

use std::fmt;

use super::{Constraint, Objective, Space, Study};

/// A difference between a study file and the study that it is to continue.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Difference {
    /// Something that was not there.
    Added {
        /// What it is, such as "parameter `lr`".
        what: String,
        /// As it is in the study file.
        now: String,
    },
    /// Something that is missing.
    Removed {
        /// What it is.
        what: String,
        /// As it was.
        before: String,
    },
    /// Something that is not as it was.
    Changed {
        /// What it is.
        what: String,
        /// As it was.
        before: String,
        /// As it is in the study file.
        now: String,
    },
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Added { what, now } => write!(f, "{what} was added: {now}"),
            Self::Removed { what, before } => write!(f, "{what} was removed: it was {before}"),
            Self::Changed { what, before, now } => write!(f, "{what} was {before} and is now {now}"),
        }
    }
}

/// Things by name, as text.
type Named = Vec<(String, String)>;

fn compare(kind: &str, before: &Named, now: &Named, differences: &mut Vec<Difference>) {
    let find =
        |all: &Named, name: &str| all.iter().find(|(known, _)| known == name).map(|(_, text)| text.clone());
    for (name, before) in before {
        let what = format!("{kind} `{name}`");
        match find(now, name) {
            None => differences.push(Difference::Removed { what, before: before.clone() }),
            Some(now) if now != *before => {
                differences.push(Difference::Changed { what, before: before.clone(), now });
            }
            Some(_) => {}
        }
    }
    for (name, now) in now {
        if find(before, name).is_none() {
            differences.push(Difference::Added { what: format!("{kind} `{name}`"), now: now.clone() });
        }
    }
}

fn parameters(space: &Space) -> Named {
    let parameters = space.parameters().iter();
    parameters.map(|parameter| (parameter.name().to_owned(), space.parameter_to_yaml(parameter))).collect()
}

fn constraints(space: &Space) -> Vec<&str> {
    let mut all: Vec<&str> = space.constraints().iter().map(Constraint::text).collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn objectives(study: &Study) -> Named {
    let named = |Objective { metric, direction }: &Objective| (metric.clone(), direction.to_string());
    study.objectives.iter().map(named).collect()
}

impl Study {
    /// This study as the continuation of an earlier one: with the space of that one, whose order is that of all points so far. Priors and
    /// other settings may change; a different space or other objectives are an error that names all differences.
    ///
    /// ```
    /// use pollux_tune::space::Study;
    /// let study = |space: &str| {
    ///     Study::from_yaml("study.yaml", &format!("{{space: {space}, objective: {{minimize: loss}}}}"))
    /// };
    /// let before = study("{a: {float: [0, 1]}, b: {int: [1, 8]}}")?;
    /// let reordered = study("{b: {int: [1, 8]}, a: {float: [0, 1]}}")?;
    /// assert_eq!(reordered.continuing(&before).as_ref(), Ok(&before));
    ///
    /// let other = study("{a: {float: [0, 2]}, c: {fixed: 3}}")?;
    /// let differences = other.continuing(&before).unwrap_err();
    /// let texts: Vec<String> = differences.iter().map(ToString::to_string).collect();
    /// assert_eq!(texts, [
    ///     "parameter `a` was {float: [0.0, 1.0]} and is now {float: [0.0, 2.0]}",
    ///     "parameter `b` was removed: it was {int: [1, 8]}",
    ///     "parameter `c` was added: {fixed: 3}",
    /// ]);
    /// # Ok::<(), pollux_tune::space::Diagnostics>(())
    /// ```
    pub fn continuing(&self, before: &Self) -> Result<Self, Vec<Difference>> {
        let mut differences = Vec::new();
        compare("parameter", &parameters(&before.space), &parameters(&self.space), &mut differences);
        let (old, new) = (constraints(&before.space), constraints(&self.space));
        for text in old.iter().filter(|text| !new.contains(text)) {
            let what = "a constraint".to_owned();
            differences.push(Difference::Removed { what, before: format!("`{text}`") });
        }
        for text in new.iter().filter(|text| !old.contains(text)) {
            let what = "a constraint".to_owned();
            differences.push(Difference::Added { what, now: format!("`{text}`") });
        }
        let (old, new) = (objectives(before), objectives(self));
        let found = differences.len();
        compare("objective", &old, &new, &mut differences);
        if differences.len() == found && old != new {
            // The first one decides about early stopping.
            let list = |all: &Named| {
                all.iter().map(|(metric, _)| format!("`{metric}`")).collect::<Vec<_>>().join(", ")
            };
            let what = "the order of the objectives".to_owned();
            differences.push(Difference::Changed { what, before: list(&old), now: list(&new) });
        }
        if differences.is_empty() {
            Ok(Self { space: before.space.with_priors_of(&self.space), ..self.clone() })
        } else {
            Err(differences)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn study(text: &str) -> Study {
        Study::from_yaml("study.yaml", text).expect("a study")
    }

    fn texts(now: &str, before: &str) -> Vec<String> {
        let differences = study(now).continuing(&study(before)).expect_err("they differ");
        differences.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn order_is_no_difference_and_that_of_the_earlier_study_counts() {
        let before = study(
            "{space: {optimizer: {choice: [sgd, adam]}, momentum: {float: [0, 1], when: {optimizer: sgd}}, x: {int: [1, 9]}, \
             y: {int: [1, 9]}}, constraints: [x < y, y < 8], objective: {minimize: loss}}",
        );
        let now = study(
            "{objective: {minimize: loss}, search: {trials: 7}, constraints: [y < 8, x < y], space: {y: {int: [1, 9]}, \
             x: {int: [1, 9]}, optimizer: {choice: [sgd, adam]}, momentum: {float: [0, 1], when: {optimizer: [sgd]}}}}",
        );
        assert_ne!(now.space, before.space);
        let continued = now.continuing(&before).expect("the same study");
        assert_eq!(continued.space, before.space);
        assert_eq!(continued.search.trials, 7, "settings may change");
    }

    #[test]
    fn conditions_constraints_and_objectives_are_compared() {
        let space = "space: {o: {choice: [a, b]}, m: {float: [0, 1], when: {o: a}}}";
        let before = format!("{{{space}, objective: [{{minimize: loss}}, {{maximize: accuracy}}]}}");
        let other = "{space: {o: {choice: [a, b]}, m: {float: [0, 1], when: {o: b}}}, constraints: [m < 0.5], \
                     objective: [{maximize: loss}, {minimize: time}]}";
        assert_eq!(
            texts(other, &before),
            [
                "parameter `m` was {float: [0.0, 1.0], when: {o: [a]}} and is now {float: [0.0, 1.0], when: {o: [b]}}",
                "a constraint was added: `m < 0.5`",
                "objective `loss` was minimize and is now maximize",
                "objective `accuracy` was removed: it was maximize",
                "objective `time` was added: minimize",
            ]
        );
        let swapped = format!("{{{space}, objective: [{{maximize: accuracy}}, {{minimize: loss}}]}}");
        assert_eq!(
            texts(&swapped, &before),
            ["the order of the objectives was `loss`, `accuracy` and is now `accuracy`, `loss`"]
        );
    }
}

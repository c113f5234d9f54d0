use std::{fmt, str::FromStr};

use super::{Error, GoodputPolicy, OptimusPolicy, Policy, PolluxPolicy, StaticPolicy, TiresiasPolicy};

/// The policies that can be chosen by name.
///
/// ```
/// use pollux_tune::alloc::PolicyKind;
/// let kind: PolicyKind = "tiresias".parse()?;
/// assert_eq!(kind.build().name(), "tiresias");
/// assert!("round-robin".parse::<PolicyKind>().is_err());
/// # Ok::<(), pollux_tune::alloc::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum PolicyKind {
    /// [`GoodputPolicy`], `goodput`, the default.
    #[default]
    Goodput,
    /// [`PolluxPolicy`], `pollux`.
    Pollux,
    /// [`StaticPolicy`], `static`.
    Static,
    /// [`OptimusPolicy`], `optimus`.
    Optimus,
    /// [`TiresiasPolicy`], `tiresias`.
    Tiresias,
}

impl PolicyKind {
    /// Every policy.
    pub const ALL: [Self; 5] = [Self::Goodput, Self::Pollux, Self::Static, Self::Optimus, Self::Tiresias];

    /// The names of all of them.
    pub const NAMES: &'static [&'static str] = &["goodput", "pollux", "static", "optimus", "tiresias"];

    /// The name users choose it by.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Goodput => "goodput",
            Self::Pollux => "pollux",
            Self::Static => "static",
            Self::Optimus => "optimus",
            Self::Tiresias => "tiresias",
        }
    }

    /// The policy with its default options.
    #[must_use]
    pub fn build(self) -> Box<dyn Policy> {
        match self {
            Self::Goodput => Box::new(GoodputPolicy::default()),
            Self::Pollux => Box::new(PolluxPolicy::default()),
            Self::Static => Box::new(StaticPolicy),
            Self::Optimus => Box::new(OptimusPolicy),
            Self::Tiresias => Box::new(TiresiasPolicy::default()),
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for PolicyKind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.name() == name)
            .ok_or_else(|| Error::UnknownPolicy { name: name.to_owned(), allowed: Self::NAMES.join(", ") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_read_back_and_answers_to_it() {
        assert_eq!(PolicyKind::NAMES, PolicyKind::ALL.map(PolicyKind::name));
        for kind in PolicyKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
            assert_eq!(kind.build().name(), kind.name());
        }
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let message = "fifo".parse::<PolicyKind>().unwrap_err().to_string();
        assert_eq!(
            message,
            "there is no policy `fifo`; expected one of goodput, pollux, static, optimus, tiresias"
        );
    }
}

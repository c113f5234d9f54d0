use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use thiserror::Error;

const DIGITS: usize = 32;

/// What distinguishes a study from all others: 128 random bits, written as 32 hexadecimal digits.
///
/// It is in the journal of the study and in all that belongs to it, so that nothing of another study is taken for its own.
///
/// ```
/// use pollux_tune::ids::StudyId;
///
/// let study = StudyId(0xfeed);
/// assert_eq!(study.to_string(), "0000000000000000000000000000feed");
/// assert_eq!(study.to_string().parse(), Ok(study));
/// assert!("feed".parse::<StudyId>().is_err());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct StudyId(pub u128);

/// A text that is not the id of a study.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{0}` is not the id of a study, which has {DIGITS} hexadecimal digits")]
pub struct InvalidStudyId(String);

impl fmt::Display for StudyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl FromStr for StudyId {
    type Err = InvalidStudyId;

    fn from_str(text: &str) -> Result<Self, InvalidStudyId> {
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let number = u128::from_str_radix(text, 16).ok();
        let number = number.filter(|_| text.len() == DIGITS && text.bytes().all(is_digit));
        number.map(Self).ok_or_else(|| InvalidStudyId(text.to_owned()))
    }
}

impl TryFrom<String> for StudyId {
    type Error = InvalidStudyId;

    fn try_from(text: String) -> Result<Self, InvalidStudyId> {
        text.parse()
    }
}

impl From<StudyId> for String {
    fn from(study: StudyId) -> Self {
        study.to_string()
    }
}

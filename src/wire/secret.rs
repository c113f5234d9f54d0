use std::{fmt, hint, str::FromStr};

use hmac::{Hmac, Mac};
use sha2::Sha256;

use super::Error;

const BYTES: usize = 16;
const DIGITS: usize = 2 * BYTES;

/// What a worker has to know to be let in: 128 random bits.
///
/// It has no `Display`, `Debug` does not show it, and comparing takes as long whatever is different.
#[derive(Clone)]
pub struct Secret(String);

impl Secret {
    /// A new one, from the system's random numbers.
    pub fn random() -> Result<Self, Error> {
        Ok(Self(random_digits::<BYTES>()?))
    }

    /// The secret of the workers of one start of a head, from the token of the study. Whoever knows it learns nothing of the token.
    #[must_use]
    pub fn derive(token: &Self, epoch: u64) -> Self {
        let mut mac = token.keyed();
        mac.update(b"pollux-tune workers");
        mac.update(&epoch.to_be_bytes());
        Self(digits(&mac.finalize().into_bytes()[..BYTES]))
    }

    fn keyed(&self) -> Hmac<Sha256> {
        Hmac::new_from_slice(self.0.as_bytes()).expect("a key of an HMAC may have any length")
    }

    /// The secret as text, for the environment of a worker.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Whether somebody else's text is this secret.
    pub(crate) fn is(&self, text: &[u8]) -> bool {
        let different = |(a, b): (&u8, &u8)| a ^ b;
        let all =
            self.0.as_bytes().iter().zip(text).map(different).fold(0, |all, one| hint::black_box(all | one));
        text.len() == DIGITS && all == 0
    }
}

/// A random number, for what has to differ from start to start.
pub(crate) fn random_number() -> Result<u64, Error> {
    let mut bytes = [0_u8; 8];
    getrandom::fill(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// Hexadecimal digits of as many random bytes.
pub(super) fn random_digits<const BYTES: usize>() -> Result<String, Error> {
    let mut bytes = [0_u8; BYTES];
    getrandom::fill(&mut bytes)?;
    Ok(digits(&bytes))
}

/// Hexadecimal digits.
pub(super) fn digits(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from(if nibble < 10 { b'0' + nibble } else { b'a' + nibble - 10 });
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

impl FromStr for Secret {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if text.len() == DIGITS && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
            Ok(Self(text.to_owned()))
        } else {
            Err(Error::Secret { found: text.len(), allowed: DIGITS })
        }
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.is(other.0.as_bytes())
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_only_itself() {
        let secret = Secret::random().expect("random numbers");
        let text = secret.reveal();
        assert_eq!(text.len(), 32);
        assert_eq!(text.parse::<Secret>().expect("a secret"), secret);
        assert_ne!(Secret::random().expect("random numbers"), secret);
        assert!(secret.is(text.as_bytes()) && !secret.is(&text.as_bytes()[..31]) && !secret.is(b""));
        assert!(!secret.is(format!("{text}0").as_bytes()));
        for at in 0..32 {
            let mut other = text.as_bytes().to_vec();
            other[at] ^= 1;
            assert!(!secret.is(&other), "digit {at}");
        }
    }

    #[test]
    fn each_start_of_a_head_has_its_own_secret() {
        let token: Secret = "0123456789abcdef0123456789abcdef".parse().expect("a secret");
        let secret = Secret::derive(&token, 7);
        assert_eq!(secret, Secret::derive(&token.clone(), 7));
        assert_eq!(secret.reveal().parse::<Secret>().expect("it is one"), secret);
        let other: Secret = "0123456789abcdef0123456789abcdee".parse().expect("a secret");
        for another in [Secret::derive(&token, 8), Secret::derive(&other, 7), token] {
            assert_ne!(another, secret);
        }
    }

    #[test]
    fn a_secret_is_not_shown() {
        let secret: Secret = "0123456789abcdef0123456789abcdef".parse().expect("a secret");
        assert_eq!(format!("{secret:?}"), "Secret(..)");
        for wrong in ["", "0123456789abcdef0123456789abcdeF", "0123456789abcdef0123456789abcdef0"] {
            let error = wrong.parse::<Secret>().expect_err("no secret").to_string();
            assert!(
                error.contains("32 hexadecimal digits") && (wrong.is_empty() || !error.contains(wrong)),
                "{error}"
            );
        }
    }
}

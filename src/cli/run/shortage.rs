//! A study that has no machines for its trials, for those who watch it.

use std::time::{Duration, Instant};

/// Machines may take a moment to join: nobody needs to know before this has passed.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a study without room for its trials waits for, and whether the user knows.
#[derive(Debug, Default)]
pub(super) struct Shortage {
    /// With the time when it is to be told.
    reason: Option<(String, Instant)>,
    is_told: bool,
}

impl Shortage {
    /// From now on the study waits for this, or for nothing. Gives what is to be told at once.
    pub(super) fn set(&mut self, reason: Option<String>, now: Instant) -> Option<String> {
        let Some(reason) = reason else {
            self.reason = None;
            return std::mem::take(&mut self.is_told)
                .then(|| "the study continues: there is room for its trials".to_owned());
        };
        let due = match &self.reason {
            Some((before, _)) if *before == reason => return None,
            Some((_, due)) => *due,
            None => now + PATIENCE,
        };
        self.reason = Some((reason, due));
        // It is another reason than the one that is told.
        if self.is_told { self.tell() } else { None }
    }

    /// When [`tell`](Self::tell) is to be called.
    pub(super) fn due(&self) -> Option<Instant> {
        self.reason.as_ref().filter(|_| !self.is_told).map(|(_, due)| *due)
    }

    /// What the user is to know.
    pub(super) fn tell(&mut self) -> Option<String> {
        let (reason, _) = self.reason.as_ref()?;
        self.is_told = true;
        Some(format!("the study waits: {reason}; it continues by itself when there is room"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_is_told_once_when_it_lasts_and_again_when_it_changes() {
        let (mut shortage, now) = (Shortage::default(), Instant::now());
        let none = |shortage: &mut Shortage, at| shortage.set(Some("none is here".to_owned()), at);
        assert_eq!((none(&mut shortage, now), shortage.due()), (None, Some(now + PATIENCE)));
        assert_eq!(none(&mut shortage, now + PATIENCE / 2), None);
        assert_eq!(shortage.due(), Some(now + PATIENCE), "it is the same one");
        assert_eq!(shortage.set(None, now), None, "nobody knew");
        assert_eq!(shortage.due(), None);
        none(&mut shortage, now);
        let told = "the study waits: none is here; it continues by itself when there is room";
        assert_eq!((shortage.tell().as_deref(), shortage.due()), (Some(told), None));
        assert_eq!(none(&mut shortage, now), None, "it is known");
        let few = shortage.set(Some("too few are here".to_owned()), now);
        assert!(few.is_some_and(|line| line.contains("too few are here")));
        let goes_on = shortage.set(None, now);
        assert_eq!(goes_on.as_deref(), Some("the study continues: there is room for its trials"));
    }
}

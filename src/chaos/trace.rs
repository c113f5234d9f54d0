use std::{
    collections::{VecDeque, hash_map::DefaultHasher},
    fmt,
    hash::Hasher,
};

/// How many events are shown when a rule is broken.
const LAST: usize = 60;

/// What has happened: the last events as text, and all of them as one number.
#[derive(Debug, Default)]
pub(super) struct Trace {
    last: VecDeque<String>,
    hasher: DefaultHasher,
    events: u64,
}

impl Trace {
    pub(super) fn note(&mut self, at_s: f64, what: fmt::Arguments<'_>) {
        let line = format!("{at_s:10.3} s  {what}");
        self.hasher.write(line.as_bytes());
        self.events += 1;
        if self.last.len() == LAST {
            self.last.pop_front();
        }
        self.last.push_back(line);
    }

    pub(super) fn last(&self) -> impl Iterator<Item = &str> {
        self.last.iter().map(String::as_str)
    }

    pub(super) fn hash(&self) -> u64 {
        self.hasher.finish()
    }
}

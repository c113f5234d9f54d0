//! What a head and its workers tell each other.
//!
//! A worker process hosts one rank of one trial at a time. Commands go down to it, events come up. Both are plain values here; how
//! they travel is up to a link.
//!
//! *Architecture invariant:* every message about a group carries the group's generation, and whoever gets one of an older generation
//! ignores it.

mod message;

pub use message::{
    Batch, Command, Event, Form, Member, Metric, Noise, Pause, Report, StepTime, Task, VERSION,
};

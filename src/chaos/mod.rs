//! Seeded faults: a whole study in virtual time, in which everything goes wrong that can.
//!
//! A seed stands for a cluster, a study and its faults. What runs is the real code: the engine, its services, the drivers of
//! groups and nodes, and the workers' side of the protocol. Modelled are processes, connections, training, the disk and the clock.
//! First faults happen, and after every event all rules are checked; then they end, and the study must come to its end. The same
//! seed always gives the same events.
//!
//! | layer | guarantees | so these faults are modelled |
//! |---|---|---|
//! | mailboxes of actors | nothing is lost, doubled or overtaken in one of them | delay, and any order between two of them; all are lost when the head dies |
//! | connection of a worker (one call) | order, both ways; no loss without the loss of the connection, no second connection of a process | delay, loss of the connection, events that arrive after the process is known to be dead |
//! | journal | an append is there as a whole or not at all; durable are facts that create or end a trial | no space, loss of all that is not durable |
//! | checkpoints | what was renamed is whole | no space, writers that die; two writers of one file |
//!
//! *Architecture invariant:* nothing here reads a clock, does I/O or draws a random number that does not follow from the seed.

mod backend;
mod disk;
mod groups;
mod head;
mod journal;
mod machines;
mod plan;
mod processes;
mod programs;
mod rules;
mod site;
#[cfg(test)]
mod tests;
mod trace;
mod world;

use std::{collections::BTreeMap, fmt};

pub(crate) use self::plan::Fault;
use self::world::World;

/// A life of a worker: the number of its process and its place in it.
type Life = u64;

/// The reason of all failures that are meant to be.
const INJECTED: &str = "a fault of the simulation";

/// Defects that were in the program once. Tests put them back, to see that they are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Defects {
    /// A group prepares a worker again that has failed and left, after its end: the slot is never free again.
    prepares_the_dead: bool,
    /// A worker forgets a checkpoint that is being written instead of waiting for it, and begins another one of the same name.
    drops_writers: bool,
}

/// What happened in a run without a broken rule.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Summary {
    /// How often each fault has struck.
    pub(crate) faults: BTreeMap<Fault, u64>,
    /// Trials that have ended.
    pub(crate) trials: u64,
    /// Events in all.
    pub(crate) events: u64,
    /// Virtual seconds.
    pub(crate) seconds: f64,
    /// The longest time from a fault until all trials that it had stopped trained again, in virtual seconds.
    pub(crate) recovery_s: f64,
    /// Of the whole trace.
    pub(crate) hash: u64,
}

/// A rule was broken.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Violation {
    pub(crate) seed: u64,
    pub(crate) rule: String,
    /// The last events before that.
    pub(crate) trace: Vec<String>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, rule, trace } = self;
        for line in trace {
            writeln!(f, "{line}")?;
        }
        writeln!(f, "seed {seed}: {rule}")?;
        write!(f, "repeat it with: pollux-tune chaos --seed {seed}")
    }
}

/// Runs the study of a seed to its end, through all its faults.
pub(crate) fn run(seed: u64) -> Result<Summary, Box<Violation>> {
    run_with(seed, Defects::default())
}

fn run_with(seed: u64, defects: Defects) -> Result<Summary, Box<Violation>> {
    let failed = |rule: String, trace| Box::new(Violation { seed, rule, trace });
    let mut world = World::new(seed, defects).map_err(|rule| failed(rule, Vec::new()))?;
    world.run().map_err(|rule| failed(rule, world.trace()))
}

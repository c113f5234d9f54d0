//! The program: what it prints, and what it reads and writes.

mod ask_tell;
mod dashboard;
mod durability;
mod first_steps;
mod gpus;
mod inspect;
mod nodes;
mod pictures;
mod programs;
mod steer;
mod stop;
mod terminal;
mod timeline;
mod transcripts;
#[path = "../support/world.rs"]
#[expect(dead_code, reason = "studies run to their end here")]
mod world;

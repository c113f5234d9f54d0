//! The pure core: search spaces, suggesters, early stopping, goodput, policies, the engine, simulations.

mod against_pollux;
mod bootstrap;
#[path = "../support/curves.rs"]
mod curves;
mod engine;
mod fit_oracle;
mod learning_curves;
#[path = "../support/measured.rs"]
mod measured;
mod pages;
mod policies;
mod priors;
#[path = "../support/problems.rs"]
mod problems;
mod profiles;
mod programs;
mod promise;
#[path = "../../benches/stopping/replay.rs"]
mod replay;
#[path = "../../benches/several/problems.rs"]
mod several;
mod several_objectives;
mod simulation;
mod space;
#[path = "../support/spaces.rs"]
mod spaces;
mod stopping;
mod study;
mod study_hints;
mod suggesters;
#[path = "../support/world.rs"]
mod world;

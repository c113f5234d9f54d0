//! Study files: YAML in, a validated [`Study`] out, with all mistakes of a file at once.

mod build;
mod cluster;
mod diagnostic;
mod feasible;
mod foreign;
mod idle;
mod machines;
mod node;
mod program;
mod read;
mod scalar;
mod schema;
mod settings;
mod space;
mod study;
mod table;
mod trainable;
mod write;

pub use self::{
    build::StudyBuilder,
    diagnostic::{Diagnostic, DiagnosticKind, Diagnostics},
    machines::{Gres, InvalidMachines, Machines, NodeRange, PilotSpec, SlotSet, SshHost},
    scalar::duration,
    schema::schema,
    settings::{
        Algorithm, Confidence, Direction, EarlyStopping, Elasticity, InvalidKeepCheckpoints, InvalidParallel,
        KeepCheckpoints, Objective, Parallel, Program, PythonEntry, PythonProgram, ResultValue,
        SchedulerSettings, SearchSettings, StoppingRule, TrialSettings,
    },
    study::Study,
    trainable::TrainableSpec,
};

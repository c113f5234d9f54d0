//! Study files: YAML in, a validated [`Study`] out, with all mistakes of a file at once.

mod cluster;
mod diagnostic;
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
mod write;

pub use self::{
    diagnostic::{Diagnostic, DiagnosticKind, Diagnostics},
    machines::{Gres, InvalidMachines, Machines, NodeRange, PilotSpec, SlotSet, SshHost},
    scalar::duration,
    schema::schema,
    settings::{
        Algorithm, Direction, EarlyStopping, Elasticity, InvalidKeepCheckpoints, InvalidParallel,
        KeepCheckpoints, Objective, Parallel, Program, PythonEntry, PythonProgram, ResultValue,
        SchedulerSettings, SearchSettings, StoppingRule, TrialSettings,
    },
    study::Study,
};

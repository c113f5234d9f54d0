//! What can be searched.
//!
//! A [`Space`] has parameters with [`Domain`]s, conditions and constraints. Suggesters see its dimensions
//! ([`Dim`]) and work on a [`Point`]; trials see [`Params`]. [`Space::decode`] and [`Space::encode`]
//! convert between them. A [`Study`] is read from YAML: space, objectives and settings.
//!
//! *Architecture invariant:* whatever [`Space::decode`] returns lies inside the space, and only here does
//! text become values. Nothing here does I/O.

#![deny(clippy::disallowed_methods, clippy::iter_over_hash_type)]

mod builder;
mod command;
mod constraint;
mod core;
mod difference;
mod dims;
mod domain;
mod error;
mod file;
mod json;
mod params;
mod parse;
mod point;
mod prior;
mod value;

#[cfg(feature = "runtime")]
pub(crate) use self::command::{Piece, pieces};
#[cfg(feature = "cli")]
pub(crate) use self::domain::Form;
pub use self::{
    builder::SpaceBuilder,
    constraint::Constraint,
    core::{Parameter, Space},
    difference::Difference,
    dims::{BadDims, Dims, Parent},
    domain::Domain,
    error::Error,
    file::{
        Algorithm, Confidence, Diagnostic, DiagnosticKind, Diagnostics, Direction, EarlyStopping, Elasticity,
        Gres, InvalidKeepCheckpoints, InvalidMachines, InvalidParallel, KeepCheckpoints, Machines, NodeRange,
        Objective, Parallel, PilotSpec, Program, PythonEntry, PythonProgram, ResultValue, SchedulerSettings,
        SearchSettings, SlotSet, SshHost, StoppingRule, Study, StudyBuilder, TrainableSpec, TrialSettings,
        duration, schema,
    },
    params::Params,
    point::{Dim, Point},
    prior::{DimPrior, Prior},
    value::Value,
};

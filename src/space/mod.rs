//! What can be searched.
//!
//! A [`Space`] has parameters with [`Domain`]s, conditions and constraints. Suggesters see its dimensions
//! ([`Dim`]) and work on a [`Point`]; trials see an [`Assignment`]. [`Space::decode`] and [`Space::encode`] lead
//! from one to the other.
//!
//! *Architecture invariant:* whatever [`Space::decode`] returns lies inside the space, and text becomes values
//! here and nowhere else. Nothing here does I/O.

#![deny(clippy::disallowed_methods, clippy::iter_over_hash_type)]

mod assignment;
mod builder;
mod constraint;
mod core;
mod domain;
mod error;
mod parse;
mod point;
mod value;

pub use self::{
    assignment::Assignment,
    builder::SpaceBuilder,
    constraint::Constraint,
    core::{Parameter, Space},
    domain::Domain,
    error::Error,
    point::{Dim, Point},
    value::Value,
};

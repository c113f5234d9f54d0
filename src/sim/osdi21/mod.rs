//! What exists only to repeat published results: the rules, the fit and the search of the authors' simulators, peculiarities included.
//!
//! Nothing else uses any of it, live studies least of all. [`Rules`] sets by which rules a simulation goes, and answers
//! every question on which they differ. Of Pollux (OSDI'21) there are the fit ([`Profile`]) with its solver (`lbfgsb`,
//! `line_search`), which must stop where scipy stops, the choice of a batch among 50 ([`best_batch`]), and what differs in the
//! allocator's search ([`AuthorsSearch`]).

mod batch;
mod lbfgsb;
mod line_search;
mod profile;
mod rules;
mod search;

pub use rules::Rules;
pub(crate) use search::AuthorsSearch;
pub(super) use {batch::best_batch, profile::Profile};

use super::End;
use crate::{
    ids::TrialId,
    space::{Params, Point},
};

/// What became true of a search. In their order, facts say everything about it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Fact {
    /// An earlier study had this result.
    Learned {
        /// What was tried.
        params: Params,
        /// How it ended.
        end: End,
        /// Its last report: statistical epochs and the value of the first objective.
        last: Option<(f64, f64)>,
    },
    /// Parameters were put into the queue.
    Enqueued {
        /// What is to be tried.
        params: Params,
    },
    /// A trial began.
    Asked {
        /// Its number.
        id: TrialId,
        /// What it tries.
        params: Params,
        /// The same as the suggester saw it, to the last bit; without it, it follows from the parameters.
        point: Option<Point>,
    },
    /// A trial reported a value of the first objective.
    Reported {
        /// Its number.
        id: TrialId,
        /// Statistical epochs so far.
        epochs: f64,
        /// What was measured.
        value: f64,
    },
    /// A trial ended.
    Ended {
        /// Its number.
        id: TrialId,
        /// How.
        end: End,
    },
}

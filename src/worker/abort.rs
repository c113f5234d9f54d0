//! How a group is aborted while its member waits for the others in the middle of a step.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{
    ids::{Round, TrialId},
    trials::group::Form,
};

/// Makes a member of a group give up what it waits for. May be called more than once, and when nothing waits.
pub(super) type AbortHandle = Box<dyn Fn() + Send>;

/// The group that can be aborted from another thread.
#[derive(Clone, Default)]
pub(super) struct Aborts(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// All groups of a trial before this round are broken.
    broken: Option<(TrialId, Round)>,
    current: Option<(TrialId, Round, AbortHandle)>,
}

impl State {
    fn apply(&self) {
        if let (Some((broken, before)), Some((trial, round, handle))) = (&self.broken, &self.current)
            && broken == trial
            && round < before
        {
            handle();
        }
    }
}

impl Aborts {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A group has been started. It is aborted at once if it is known to be broken.
    pub(super) fn register(&self, form: &Form, handle: AbortHandle) {
        let mut state = self.state();
        state.current = Some((form.trial, form.round, handle));
        state.apply();
    }

    /// The group is left.
    pub(super) fn clear(&self) {
        self.state().current = None;
    }

    /// Whatever group there is has to end.
    pub(super) fn abort(&self) {
        if let Some((_, _, handle)) = &self.state().current {
            handle();
        }
    }

    /// The groups of a trial before a new one are broken.
    pub(super) fn abort_before(&self, form: &Form) {
        let mut state = self.state();
        state.broken = Some((form.trial, form.round));
        state.apply();
    }
}

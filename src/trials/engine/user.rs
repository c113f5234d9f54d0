//! What the user asks of a study from outside: to pause, to resume, to try known parameters.

use super::{Engine, Fact, Input, Severity, State, StepBuilder};
use crate::space::Params;

impl Engine {
    pub(super) fn on_user_input(&mut self, step: &mut StepBuilder, input: Input) {
        match input {
            Input::PauseRequested if self.state.paused_s.is_none() => {
                self.emit(step, Fact::PauseRequested {});
            }
            Input::ResumeRequested if self.state.paused_s.is_some() => {
                self.emit(step, Fact::ResumeRequested {});
                self.pending.dirty = true;
            }
            Input::EnqueueRequested { params } => {
                // Who asks has checked them; a journal with others could not be continued.
                let Ok(params) = self.study.space.complete(&params) else { return };
                for fact in self.state.enqueue(params) {
                    self.emit(step, fact);
                }
            }
            _ => {}
        }
    }
}

impl State {
    /// Whether trials may be launched, as far as the user is concerned.
    pub(super) const fn is_launching(&self) -> bool {
        !self.stopping && self.paused_s.is_none()
    }

    pub(super) const fn pause(&mut self, at_s: f64) {
        if self.paused_s.is_none() {
            self.paused_s = Some(at_s);
        }
    }

    pub(super) fn unpause(&mut self, at_s: f64) {
        if let Some(since_s) = self.paused_s.take() {
            // It was up meanwhile, and that does not count.
            self.up_s -= at_s - since_s.max(self.started_s);
        }
    }

    /// Seconds since this head has started, up to the last fact. While the study is paused does not count.
    pub(super) fn up_since_start_s(&self) -> f64 {
        self.paused_s.map_or(self.at_s, |since_s| since_s.max(self.started_s)) - self.started_s
    }

    /// What is to be journaled so that parameters, all of them, are tried before others. A search that had nothing left to try, such
    /// as a grid, is open again.
    #[must_use]
    pub fn enqueue(&self, params: Params) -> Vec<Fact> {
        let is_exhausted = |end: &super::SearchEnd| end.limit.is_none() && end.severity == Severity::Normal;
        let reopens = self.search_ended.as_ref().is_some_and(is_exhausted);
        let reopened = reopens.then_some(Fact::SuggestionsReopened {});
        reopened.into_iter().chain([Fact::TrialEnqueued { params }]).collect()
    }
}

//! Limits of a study: time and failures that end it, and what lets it go on.

use std::collections::BTreeSet;

use super::{Engine, Error, Fact, Outcome, SearchEnd, SearchLimit, Severity, State, StepBuilder};
use crate::{ids::TrialId, trials::End};

/// Why a search has ended by `search.timeout`. Journals of earlier versions know it by these words alone.
pub(super) const TIME_IS_UP: &str = "the time of the study is up";

impl Engine {
    /// Ends the study as failed where it makes no sense to continue: nothing but failures.
    pub(super) fn fail_fast(&mut self, step: &mut StepBuilder) {
        if self.state.done || self.state.search_ended.is_some() || !self.is_hopeless() {
            return;
        }
        let last = self.state.ended.iter().filter_map(|(trial, ended)| match &ended.end {
            End::Failed(reason) => Some((ended.ended_s, trial, reason.lines().next().unwrap_or_default())),
            _ => None,
        });
        let last = last.max_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(b.1)));
        let last = last.map_or_else(String::new, |(_, trial, reason)| {
            format!(", the last one, trial {trial}: {reason}")
        });
        let failed = self.state.failed;
        let reason =
            format!("{failed} trials have failed and none has finished (`search.max_failures`){last}");
        self.end_search(step, &reason, SearchLimit::Failures);
    }

    /// Whether too many trials have failed, and no other has anything to show.
    fn is_hopeless(&self) -> bool {
        let (state, max) = (&self.state, self.study.search.max_failures);
        let metric = self.study.objectives.first().map(|objective| &objective.metric);
        let has_value = |metrics: &super::Metrics| {
            metric.and_then(|metric| metrics.get(metric)).is_some_and(|value| value.value().is_finite())
        };
        max > 0
            && state.failed >= max
            && state.finished == 0
            && !state.active.values().any(|active| has_value(&active.metrics))
    }

    /// A limit is reached: there are no more trials, and those that run end.
    pub(super) fn end_search(&mut self, step: &mut StepBuilder, reason: &str, limit: SearchLimit) {
        let severity = match limit {
            SearchLimit::Timeout => Severity::Normal,
            SearchLimit::Failures => Severity::Failure,
        };
        self.emit(step, Fact::SuggestionsEnded { reason: reason.to_owned(), severity, limit: Some(limit) });
        let trials: Vec<TrialId> = self.state.active.keys().copied().collect();
        for trial in trials {
            self.stop_and_end(step, Fact::TrialCancelled { trial, reason: reason.to_owned() }, trial);
        }
    }

    /// Whether the limit that ended the search is reached no more, because the study file has another one.
    pub(super) fn reopens(&self) -> bool {
        let state = &self.state;
        match state.search_ended.as_ref().and_then(|end| end.limit) {
            Some(SearchLimit::Timeout) => {
                let up_s = state.up_s + state.up_since_start_s();
                self.study.search.timeout.is_none_or(|timeout| timeout.as_secs_f64() > up_s)
            }
            Some(SearchLimit::Failures) => !self.is_hopeless(),
            None => false,
        }
    }

    /// How a study that is over has ended.
    pub(super) fn outcome(&self) -> Outcome {
        let State { failed, finished, search_ended, .. } = &self.state;
        match search_ended {
            Some(SearchEnd { reason, severity: Severity::Failure, .. }) => Outcome::Failed(reason.clone()),
            _ if *failed > 0 && *finished == 0 => Outcome::Failed(format!(
                "{failed} of {} trials have failed and none has finished",
                self.state.created()
            )),
            _ => Outcome::Done,
        }
    }
}

impl State {
    /// Trials that would have gone on without the limit that ended the search.
    pub(super) fn cancelled_by_limit(&self) -> Vec<TrialId> {
        let Some(SearchEnd { reason, limit: Some(_), .. }) = &self.search_ended else { return Vec::new() };
        let is_by_limit = |end: &End| matches!(end, End::Cancelled(why) if why == reason);
        self.ended.iter().filter(|(_, ended)| is_by_limit(&ended.end)).map(|(trial, _)| *trial).collect()
    }

    /// What is to be journaled so that failed trials run again: these, or all if none is named. If failures had ended the study, the
    /// trials that were running then come back as well. Nothing is to be done if none has failed.
    pub fn retry(&self, trials: &[TrialId]) -> Result<Vec<Fact>, Error> {
        let is_failed = |trial: &TrialId| matches!(self.ended.get(trial), Some(ended) if matches!(ended.end, End::Failed(_)));
        for &trial in trials {
            if !self.active.contains_key(&trial) && !self.ended.contains_key(&trial) {
                return Err(Error::NoSuchTrial { trial, count: self.created() });
            }
            if !is_failed(&trial) {
                let end = self.ended.get(&trial).map(|ended| ended.end.clone());
                return Err(Error::NotFailed { trial, end });
            }
        }
        let mut chosen: BTreeSet<TrialId> = trials.iter().copied().collect();
        if trials.is_empty() {
            chosen.extend(self.ended.keys().copied().filter(is_failed));
        }
        let mut facts = Vec::new();
        let has_failed =
            self.search_ended.as_ref().is_some_and(|end| end.limit == Some(SearchLimit::Failures));
        if has_failed && !chosen.is_empty() {
            chosen.extend(self.cancelled_by_limit());
            facts.push(Fact::SuggestionsReopened {});
        }
        facts.extend(chosen.into_iter().map(|trial| Fact::TrialRetried { trial }));
        Ok(facts)
    }
}

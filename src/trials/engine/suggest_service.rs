//! Answers to [`Ask`](super::Command::Ask).

use super::{Error, Fact, JournalEntry, NoSuggestion, Suggestion, apply::end_of};
use crate::{
    ids::TrialId,
    space::{StoppingRule, Study},
    trials::search::{self, Search},
};

/// The suggester of a study, kept up to date by its facts.
///
/// It may live on another thread, as long as facts and questions come in their order. After a restart it is built anew from
/// the journal, and suggests what it would have suggested.
pub struct SuggestService {
    search: Search,
    metric: String,
    /// A suggestion that no trial was made of yet. A second question for the same trial gets the same answer.
    offered: Option<(TrialId, Suggestion)>,
    told: usize,
}

impl SuggestService {
    /// A suggester that knows of no trial.
    pub fn new(study: &Study) -> Result<Self, Error> {
        let mut study = study.clone();
        // Whoever runs the study decides on that, and the facts tell.
        study.search.early_stopping.rule = StoppingRule::Never;
        let search = Search::new(&study)?;
        let metric = study.objectives.first().ok_or(Error::NoObjective)?.metric.clone();
        Ok(Self { search, metric, offered: None, told: 0 })
    }

    /// How many results it was told.
    #[must_use]
    pub const fn told(&self) -> usize {
        self.told
    }

    /// The search with all trials that it knows, to ask for the best of them and what they have in common.
    #[must_use]
    pub fn into_search(mut self) -> Search {
        if let Some((trial, _)) = self.offered {
            self.search.withdraw(trial);
        }
        self.search
    }

    /// Takes note of a fact.
    pub fn apply(&mut self, entry: &JournalEntry) -> Result<(), Error> {
        let fact = match &entry.fact {
            Fact::TrialCreated { trial, params, point } => {
                match self.offered.take() {
                    Some((offered, suggestion)) if offered == *trial && suggestion.point == *point => {
                        return Ok(());
                    }
                    before => self.offered = before,
                }
                search::Fact::Asked { id: *trial, params: params.clone(), point: Some(point.clone()) }
            }
            Fact::Measured { trial, epochs, metrics, .. } => match metrics.get(&self.metric) {
                Some(value) => search::Fact::Reported { id: *trial, epochs: *epochs, value: value.value() },
                None => return Ok(()),
            },
            fact => match end_of(fact) {
                Some((id, _, end)) => {
                    self.told += 1;
                    search::Fact::Ended { id, end }
                }
                None => return Ok(()),
            },
        };
        Ok(self.search.apply(fact)?)
    }

    /// What a new trial should try.
    pub fn ask(&mut self, trial: TrialId) -> Result<Suggestion, NoSuggestion> {
        if let Some((offered, suggestion)) = &self.offered
            && *offered == trial
        {
            return Ok(suggestion.clone());
        }
        match self.search.ask() {
            Ok(new) if new.id == trial => {
                let suggestion = Suggestion { params: new.params, point: new.point };
                self.offered = Some((trial, suggestion.clone()));
                Ok(suggestion)
            }
            Ok(new) => {
                Err(NoSuggestion::Failed(format!("trial {trial} was asked for, the next one is {}", new.id)))
            }
            Err(error) if error.is_end() => Err(NoSuggestion::Exhausted),
            Err(error) => Err(NoSuggestion::Failed(error.to_string())),
        }
    }
}

//! Answers to [`Ask`](super::Command::Suggest).

use super::{Error, Fact, Input, JournalEntry, NoSuggestion, SuggestRequest, Suggestion, apply::end_of};
use crate::{
    ids::TrialId,
    space::{Dims, Study},
    tpe::Suggester,
    trials::Search,
};

/// The suggester of a study, kept up to date by its facts.
///
/// It may live on another thread, as long as facts and questions come in their order. After a restart it is rebuilt from
/// the journal, and suggests what it would have suggested.
pub struct SuggestService {
    search: Search,
    /// A suggestion that no trial was made of yet. A second question for the same trial gets the same answer.
    offered: Option<(TrialId, Suggestion)>,
    results: usize,
}

impl SuggestService {
    /// A suggester that knows of no trial.
    pub fn new(study: &Study) -> Result<Self, Error> {
        // The engine decides which trials are stopped, and journals it.
        Ok(Self { search: Search::without_stopping(study)?, offered: None, results: 0 })
    }

    /// The same with another suggester in the place of that of the study: see [`Search::with_suggester`].
    #[must_use]
    pub fn with_suggester(mut self, make: impl FnOnce(Dims) -> Box<dyn Suggester>) -> Self {
        self.search = self.search.with_suggester(make);
        self
    }

    /// The number of results it knows.
    #[must_use]
    pub const fn results(&self) -> usize {
        self.results
    }

    /// The search with all trials that it knows, to ask for the best of them and for importance.
    #[must_use]
    pub fn into_search(mut self) -> Search {
        if let Some((trial, _)) = self.offered {
            self.search.withdraw(trial);
        }
        self.search
    }

    /// Takes note of a fact.
    pub fn apply(&mut self, entry: &JournalEntry) -> Result<(), Error> {
        if let Fact::TrialCreated { trial, point, .. } = &entry.fact
            && self
                .offered
                .take_if(|(offered, suggestion)| offered == trial && suggestion.point == *point)
                .is_some()
        {
            return Ok(());
        }
        self.results += usize::from(end_of(&entry.fact).is_some());
        self.results -= usize::from(matches!(entry.fact, Fact::TrialRetried { .. }));
        Ok(self.search.apply(entry)?)
    }

    /// The answer to a question.
    pub fn answer(&mut self, SuggestRequest { revision, trial }: SuggestRequest) -> Input {
        Input::Suggested { revision, answer: self.ask(trial) }
    }

    /// What a new trial should try.
    pub fn ask(&mut self, trial: TrialId) -> Result<Suggestion, NoSuggestion> {
        if let Some((offered, suggestion)) = &self.offered
            && *offered == trial
        {
            return Ok(suggestion.clone());
        }
        let asked = self.search.ask();
        // The engine journals it if it makes a trial of it.
        self.search.take_facts();
        match asked {
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

#[cfg(test)]
mod tests {
    use super::{
        super::{Engine, State, TrialKind},
        *,
    };
    use crate::{space::Params, trials::End};

    /// The facts of a search bring the state, the engine and a second search to where it is.
    #[test]
    fn known_parameters_and_results_are_facts_like_others() {
        let yaml = "{space: {x: {float: [0, 1]}, depth: 3}, objective: {maximize: accuracy}, search: {trials: 20, seed: 3}}";
        let study = Study::from_yaml("study.yaml", yaml).unwrap();
        let params = |x: f64| -> Params { [("x", x.into())].into_iter().collect() };
        let mut search = Search::new(&study).unwrap();
        for x in 0..12 {
            search.learn(&params(f64::from(x) / 20.0), &f64::from(x).into(), None).unwrap();
        }
        search.learn(&params(0.5), &End::Done(vec![f64::NAN]), Some((1.0, f64::NAN))).unwrap();
        search.enqueue(&params(0.25)).unwrap();
        search.enqueue(&params(0.75)).unwrap();
        search.ask().unwrap();
        search.report(TrialId(0), 1.0, 0.5).unwrap();
        search.tell(TrialId(0), f64::INFINITY).unwrap();
        let (mut state, mut service) = (State::default(), SuggestService::new(&study).unwrap());
        let mut engine = Engine::new(&study, TrialKind::Rigid).unwrap();
        for fact in search.take_facts() {
            // As a journal keeps it.
            let text = serde_json::to_string(&fact).unwrap();
            let entry = JournalEntry { at_s: 1.0, fact: serde_json::from_str(&text).unwrap() };
            assert_eq!(entry.fact, fact);
            state.apply(&entry).unwrap();
            engine.apply(&entry).unwrap();
            service.apply(&entry).unwrap();
        }
        assert_eq!((state.imported, state.queue.len(), state.ended.len()), (13, 1, 1));
        assert_eq!(engine.state(), &state);
        assert_eq!(service.search.learned(), 13);
        for trial in [1, 2].map(TrialId) {
            assert_eq!(service.ask(trial).unwrap().params, search.ask().unwrap().params);
            for fact in search.take_facts() {
                let entry = JournalEntry { at_s: 2.0, fact };
                state.apply(&entry).unwrap();
                service.apply(&entry).unwrap();
            }
        }
        assert!(state.queue.is_empty() && state.active[&TrialId(1)].params.float("x") == Ok(0.75));
        assert_eq!(service.into_search().trials().len(), 3);
    }

    /// In a journal of an earlier version, `int [1000, 1100]` with logarithms has six cells, and 1100 is the last.
    #[test]
    fn points_of_other_cells_are_read_by_their_parameters() {
        let yaml = "{space: {x: {int: [1000, 1100], log: true}}, objective: {minimize: loss}}";
        let study = Study::from_yaml("study.yaml", yaml).unwrap();
        let (trial, params) = (TrialId(0), Params::from_iter([("x", 1100.into())]));
        for point in [vec![Some(5.0)], vec![Some(4000.0)]] {
            let mut search = Search::new(&study).unwrap();
            let fact = Fact::TrialCreated { trial, params: params.clone(), point };
            search.apply(&JournalEntry { at_s: 0.0, fact }).unwrap();
            let known = search.trial(trial).unwrap();
            assert_eq!((&known.params, &known.point), (&params, &vec![Some(100.0)]));
        }
    }
}

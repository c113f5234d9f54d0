//! Suggesters and stopping rules of a program, in the place of those that a study file can name.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use rand_chacha::ChaCha8Rng;

use super::{error::Error, function::panic_text};
use crate::{
    ids::TrialId,
    space::{Dims, Point, Study},
    tpe::{self, Outcome, Suggester},
    trials::{
        engine::{self, Replay, TrialKind},
        stopping::{self, Reason, Rule, Sample},
    },
};

type MakeSuggester = dyn Fn(Dims) -> Box<dyn Suggester> + Send + Sync;
type MakeRule = dyn Fn() -> Box<dyn Rule> + Send + Sync;

/// What the program has in the place of the study's own. The actors may begin again, so each time new ones are made.
#[derive(Clone, Default)]
pub(super) struct Custom {
    pub(super) suggester: Option<Arc<MakeSuggester>>,
    /// With the statistical epochs before which it stops nothing.
    pub(super) rule: Option<(f64, Arc<MakeRule>)>,
}

impl Custom {
    /// The engine and the services of a study before its first fact.
    pub(super) fn replay(&self, study: &Study, kind: TrialKind) -> Result<Replay, Error> {
        let Replay { mut engine, mut services } = Replay::new(study, kind)?;
        if let Some(make) = &self.suggester {
            services.suggest = services.suggest.with_suggester(|dims| Box::new(Caught(make(dims))));
        }
        if let Some((grace, make)) = &self.rule {
            let rule = Box::new(CaughtRule { rule: make(), has_panicked: false });
            let stopper = stopping::of_rule(rule, *grace, study.trial.epochs).map_err(engine::Error::from)?;
            engine = engine.with_stopper(stopper);
        }
        Ok(Replay { engine, services })
    }
}

/// A suggester whose panics are errors: a new head would only meet them again.
struct Caught(Box<dyn Suggester>);

impl Caught {
    fn catch<T>(
        &mut self,
        call: impl FnOnce(&mut dyn Suggester) -> Result<T, tpe::Error>,
    ) -> Result<T, tpe::Error> {
        let result = catch_unwind(AssertUnwindSafe(|| call(&mut *self.0)));
        result.unwrap_or_else(|panic| {
            let (name, text) = (self.name(), panic_text(&*panic));
            Err(tpe::Error::Custom(format!("the suggester {name} has panicked: {text}")))
        })
    }
}

/// What a policy calls itself, unless it panics even then.
fn name_of(name: impl FnOnce() -> &'static str) -> &'static str {
    catch_unwind(AssertUnwindSafe(name)).unwrap_or("without a name")
}

impl Suggester for Caught {
    fn name(&self) -> &'static str {
        name_of(|| self.0.name())
    }

    fn ask(&mut self, id: TrialId, rng: &mut ChaCha8Rng) -> Result<Point, tpe::Error> {
        self.catch(|suggester| suggester.ask(id, rng))
    }

    fn insert(&mut self, id: TrialId, point: Point) -> Result<(), tpe::Error> {
        self.catch(|suggester| suggester.insert(id, point))
    }

    fn tell(&mut self, id: TrialId, outcome: Outcome) -> Result<(), tpe::Error> {
        self.catch(|suggester| suggester.tell(id, outcome))
    }

    fn retract(&mut self, id: TrialId) -> Result<(), tpe::Error> {
        self.catch(|suggester| suggester.retract(id))
    }
}

/// A rule that stops no trial any more once it has panicked.
struct CaughtRule {
    rule: Box<dyn Rule>,
    has_panicked: bool,
}

impl CaughtRule {
    fn catch<T>(&mut self, call: impl FnOnce(&mut dyn Rule) -> T) -> Option<T> {
        if self.has_panicked {
            return None;
        }
        let result = catch_unwind(AssertUnwindSafe(|| call(&mut *self.rule)));
        result
            .inspect_err(|panic| {
                self.has_panicked = true;
                let (rule, panic) = (name_of(|| self.rule.name()), panic_text(&**panic));
                tracing::error!(rule, panic, "the stopping rule has panicked; it stops no trial any more");
            })
            .ok()
    }
}

impl Rule for CaughtRule {
    fn name(&self) -> &'static str {
        name_of(|| self.rule.name())
    }

    fn judge(&mut self, trial: TrialId, before: Option<Sample>, now: Sample) -> Option<Reason> {
        self.catch(|rule| rule.judge(trial, before, now)).flatten()
    }

    fn promise(&self, trial: TrialId, now: Sample) -> f64 {
        let promise = || self.rule.promise(trial, now);
        if self.has_panicked { 1.0 } else { catch_unwind(AssertUnwindSafe(promise)).unwrap_or(1.0) }
    }

    fn end(&mut self, trial: TrialId) {
        self.catch(|rule| rule.end(trial));
    }

    fn withdraw(&mut self, trial: TrialId) {
        self.catch(|rule| rule.withdraw(trial));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing of it works.
    struct Broken;

    impl Suggester for Broken {
        fn name(&self) -> &'static str {
            panic!("it has no name")
        }

        fn ask(&mut self, _: TrialId, _: &mut ChaCha8Rng) -> Result<Point, tpe::Error> {
            panic!("it knows nothing")
        }

        fn insert(&mut self, _: TrialId, _: Point) -> Result<(), tpe::Error> {
            panic!("it has no room")
        }

        fn tell(&mut self, _: TrialId, _: Outcome) -> Result<(), tpe::Error> {
            panic!("it does not listen")
        }

        fn retract(&mut self, _: TrialId) -> Result<(), tpe::Error> {
            panic!("it does not forget")
        }
    }

    #[test]
    fn a_suggester_that_panics_even_for_its_name_ends_nothing() {
        let mut caught = Caught(Box::new(Broken));
        assert_eq!(caught.name(), "without a name");
        let error = caught.retract(TrialId(0)).expect_err("it panics").to_string();
        assert!(error.ends_with("the suggester without a name has panicked: it does not forget"), "{error}");
    }
}

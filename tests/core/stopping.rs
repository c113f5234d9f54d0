//! What every stopping rule promises, on random reports.

use pollux_tune::{
    ids::TrialId,
    space::{Direction, EarlyStopping, StoppingRule},
    trials::stopping::{EndKind, Error, Reason, Stopper, Verdict, stopper},
};
use proptest::{
    prelude::*,
    test_runner::{Config, FileFailurePersistence, TestCaseError, TestRunner},
};

const EPOCHS: f64 = 20.0;
const GRACE: f64 = 1.5;

const ALL: [StoppingRule; 6] = [
    StoppingRule::Never,
    StoppingRule::Asha,
    StoppingRule::Hyperband,
    StoppingRule::Median,
    StoppingRule::Patience,
    StoppingRule::Threshold,
];

fn settings(rule: StoppingRule) -> EarlyStopping {
    EarlyStopping { rule, grace: GRACE, reduction: 2.0, patience: 4.0, threshold: Some(0.6) }
}

fn make(rule: StoppingRule) -> Box<dyn Stopper> {
    stopper(&settings(rule), EPOCHS, Direction::Minimize).expect("the settings are fine")
}

/// What happens next in a study: a trial reports at some distance from its last report, or ends.
#[derive(Debug, Clone)]
enum Event {
    Report { trial: u32, advance: f64, value: f64 },
    End { trial: u32, how: EndKind },
}

/// Some values many times, some as wild as numbers get.
fn values() -> impl Strategy<Value = f64> {
    prop_oneof![20 => 0.0..1.0, 3 => Just(0.5), 1 => any::<f64>()]
}

/// Mostly forwards, sometimes back to a checkpoint, sometimes not at all, sometimes far.
fn advances() -> impl Strategy<Value = f64> {
    prop_oneof![8 => 0.0..3.0, 1 => -4.0..0.0, 1 => Just(0.0), 1 => 0.0..30.0, 1 => Just(1.0)]
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let report = (0_u32..12, advances(), values());
    let ends =
        prop::sample::select(vec![EndKind::Done, EndKind::Stopped, EndKind::Failed, EndKind::Cancelled]);
    let event = prop_oneof![
        12 => report.prop_map(|(trial, advance, value)| Event::Report { trial, advance, value }),
        1 => (0_u32..12, ends).prop_map(|(trial, how)| Event::End { trial, how }),
    ];
    prop::collection::vec(event, 1..150)
}

/// One report with all that was said about it.
#[derive(Debug, Clone, PartialEq)]
struct Said {
    trial: TrialId,
    progress: f64,
    value: f64,
    verdict: Result<Verdict, Error>,
    promises: Vec<f64>,
}

/// Plays events; trials count their progress from where they reported last.
fn play(stopper: &mut dyn Stopper, events: &[Event]) -> Vec<Said> {
    let mut progress = [0.0_f64; 12];
    let mut said = Vec::new();
    for event in events {
        match *event {
            Event::Report { trial, advance, value } => {
                let at = &mut progress[trial as usize];
                *at = (*at + advance).max(0.0);
                let (trial, progress) = (TrialId(trial), *at);
                let verdict = stopper.report(trial, progress, value);
                let promises = (0..12).map(|trial| stopper.promise(TrialId(trial))).collect();
                said.push(Said { trial, progress, value, verdict, promises });
            }
            // Ending twice is an error, which the suite below looks at.
            Event::End { trial, how } => drop(stopper.end(TrialId(trial), how)),
        }
    }
    said
}

/// Without NaN, which is not equal to itself.
fn plain(said: &[Said]) -> Vec<Said> {
    let number = |value: f64| if value.is_nan() { f64::INFINITY } else { value };
    said.iter().map(|one| Said { value: number(one.value), ..one.clone() }).collect()
}

fn conforms(rule: StoppingRule, events: &[Event]) -> Result<(), TestCaseError> {
    let (mut live, mut twin) = (make(rule), make(rule));
    let said = play(&mut *live, events);
    prop_assert_eq!(plain(&play(&mut *twin, events)), plain(&said), "the same reports, other verdicts");
    let mut stopped = [None; 12];
    let mut ended = [false; 12];
    let mut reports = said.iter();
    for event in events {
        let trial = match *event {
            Event::End { trial, .. } => {
                ended[trial as usize] = true;
                continue;
            }
            Event::Report { trial, .. } => trial as usize,
        };
        let one = reports.next().expect("there is one for each report");
        prop_assert!(one.promises.iter().all(|promise| (0.0..=1.0).contains(promise)), "{:?}", one);
        match (&one.verdict, stopped[trial]) {
            (Err(error), _) => prop_assert!(ended[trial] && *error == Error::Ended(one.trial), "{:?}", one),
            (Ok(_), _) if ended[trial] => prop_assert!(false, "it has ended: {:?}", one),
            (Ok(verdict), Some(before)) => prop_assert_eq!(*verdict, before, "it was stopped"),
            (Ok(verdict @ Verdict::Stop(reason)), None) => {
                prop_assert!(rule != StoppingRule::Never && one.progress >= GRACE, "{:?}", one);
                let diverged = matches!(reason, Reason::Diverged { .. });
                prop_assert_eq!(diverged, !one.value.is_finite());
                prop_assert!(diverged || one.progress < EPOCHS, "it was done: {:?}", one);
                stopped[trial] = Some(*verdict);
            }
            (Ok(Verdict::Continue), None) => {
                let late = rule != StoppingRule::Never && one.progress >= GRACE;
                prop_assert!(one.value.is_finite() || !late, "it has diverged: {:?}", one);
            }
        }
        if stopped[trial].is_some() || ended[trial] {
            prop_assert_eq!(one.promises[trial].to_bits(), 0, "{:?}", one);
        }
    }
    Ok(())
}

fn for_all(check: impl Fn(StoppingRule, &[Event]) -> Result<(), TestCaseError>) {
    for rule in ALL {
        let seeds = FileFailurePersistence::WithSource("regressions");
        let failure_persistence = Some(Box::new(seeds) as Box<_>);
        let config = Config { source_file: Some(file!()), failure_persistence, ..Config::default() };
        if let Err(error) = TestRunner::new(config).run(&events(), |events| check(rule, &events)) {
            panic!("{rule}: {error}");
        }
    }
}

#[test]
fn all_rules_keep_their_promises() {
    for_all(conforms);
}

/// A trial that restarts from a checkpoint reports some of its progress once more: what it says, and what
/// everybody is told from then on, are as if it had not.
#[test]
fn repeated_reports_change_nothing() {
    for_all(|rule, events| {
        let (mut once, mut twice) = (make(rule), make(rule));
        let mut reported: Vec<Vec<(f64, f64)>> = vec![Vec::new(); 12];
        let mut progress = [0.0_f64; 12];
        for event in events {
            match *event {
                Event::Report { trial, advance, value } => {
                    let (at, id) = (&mut progress[trial as usize], TrialId(trial));
                    *at = (*at + advance.abs()).max(0.0);
                    let value = if value.is_finite() { value } else { 0.0 };
                    let verdict = once.report(id, *at, value);
                    prop_assert_eq!(twice.report(id, *at, value), verdict.clone());
                    let past = &mut reported[trial as usize];
                    past.push((*at, value));
                    for &(at, value) in past.iter().rev().take(3).rev() {
                        prop_assert_eq!(twice.report(id, at, value + 0.1), verdict.clone());
                    }
                    prop_assert_eq!(once.promise(id).to_bits(), twice.promise(id).to_bits());
                }
                Event::End { trial, how } => {
                    prop_assert_eq!(once.end(TrialId(trial), how), twice.end(TrialId(trial), how));
                }
            }
        }
        Ok(())
    });
}

/// Whatever the others do, and whenever they report: the trial that is ahead of them everywhere goes on.
#[test]
fn the_best_trial_is_never_stopped() {
    for_all(|rule, events| {
        let mut stopper = make(rule);
        let best = TrialId(99);
        let mut own = 0.0;
        for said in plain(&play(&mut *make(StoppingRule::Never), events)) {
            let value = said.value.clamp(-1.0, 1.0);
            drop(stopper.report(said.trial, said.progress, value));
            own += 0.1 + 0.01 * said.progress;
            // It gets better and better, for the sake of `patience`.
            let verdict = stopper.report(best, own, -1.0 - own);
            prop_assert_eq!(verdict, Ok(Verdict::Continue));
            prop_assert!(stopper.promise(best) > 0.5, "{}", stopper.promise(best));
        }
        Ok(())
    });
}

#[test]
fn a_value_that_is_no_number_stops_a_trial_after_its_grace() {
    for rule in ALL {
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let mut stopper = make(rule);
            let (early, late) = (TrialId(0), TrialId(1));
            let idle = rule == StoppingRule::Never;
            assert_eq!(stopper.report(early, 0.5, value), Ok(Verdict::Continue), "{rule}: may be undefined");
            let promise = if idle { 1.0 } else { 0.0_f64 };
            assert_eq!(stopper.promise(early).to_bits(), promise.to_bits(), "{rule}: it does not look good");
            assert_eq!(stopper.report(early, 0.6, 0.5), Ok(Verdict::Continue), "{rule}");
            assert!(stopper.promise(early) > 0.9, "{rule}: it has recovered");
            let verdict = stopper.report(late, 2.0, value);
            let stop = Verdict::Stop(Reason::Diverged { progress: 2.0 });
            assert_eq!(verdict, Ok(if idle { Verdict::Continue } else { stop }), "{rule}");
        }
    }
}

#[test]
fn mistakes_of_the_caller_are_named_and_change_nothing() {
    for rule in ALL {
        let mut stopper = make(rule);
        assert_eq!(stopper.name(), rule.name());
        let trial = TrialId(3);
        for progress in [f64::NAN, f64::INFINITY, -1e-9] {
            let error = stopper.report(trial, progress, 0.5).expect_err("it is nowhere");
            assert!(error.to_string().contains("expected a finite number, at least 0"), "{error}");
        }
        assert_eq!(stopper.report(trial, 1.0, 0.5), Ok(Verdict::Continue), "{rule}");
        assert_eq!(stopper.end(trial, EndKind::Done), Ok(()), "{rule}");
        assert_eq!(stopper.end(trial, EndKind::Failed), Err(Error::Ended(trial)), "{rule}");
        assert_eq!(stopper.report(trial, 2.0, 0.5), Err(Error::Ended(trial)), "{rule}");
        let silent = TrialId(4);
        assert_eq!(stopper.end(silent, EndKind::Failed), Ok(()), "{rule}: it ended before it reported");
        assert_eq!(stopper.report(silent, 2.0, 0.5), Err(Error::Ended(silent)), "{rule}");
    }
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    let refused = |change: &dyn Fn(&mut EarlyStopping), rule: StoppingRule, epochs: f64| {
        let mut settings = settings(rule);
        change(&mut settings);
        let error = stopper(&settings, epochs, Direction::Minimize).err();
        error.map_or_else(String::new, |error| error.to_string())
    };
    for rule in ALL {
        assert!(
            refused(&|_| (), rule, f64::NAN).contains("the number of epochs of a trial is NaN"),
            "{rule}"
        );
        let idle = rule == StoppingRule::Never;
        for grace in [0.0, -1.0, f64::NAN, 20.0, f64::INFINITY] {
            let text = refused(&|settings| settings.grace = grace, rule, 20.0);
            assert_eq!(text.contains("the grace in epochs is"), !idle, "{rule}: {text}");
        }
        let text = refused(&|settings| settings.reduction = 1.0, rule, 20.0);
        let halving = matches!(rule, StoppingRule::Asha | StoppingRule::Hyperband);
        assert_eq!(text == "the reduction is 1; expected 1.1 to 1000", halving, "{rule}: {text}");
        let text = refused(&|settings| settings.patience = f64::NAN, rule, 20.0);
        assert_eq!(text.contains("the patience in epochs is NaN"), rule == StoppingRule::Patience, "{text}");
        let text = refused(&|settings| settings.threshold = None, rule, 20.0);
        assert_eq!(text.contains("no threshold"), rule == StoppingRule::Threshold, "{text}");
        let text = refused(&|settings| settings.threshold = Some(f64::NAN), rule, 20.0);
        assert_eq!(text.contains("the threshold is NaN"), rule == StoppingRule::Threshold, "{text}");
    }
}

/// With a metric that is maximized, values are negated on their way in, and the threshold is on the other side.
#[test]
fn the_threshold_is_in_the_units_of_the_metric() {
    let settings = settings(StoppingRule::Threshold);
    let mut accuracy = stopper(&settings, EPOCHS, Direction::Maximize).expect("the settings are fine");
    assert_eq!(accuracy.report(TrialId(0), 2.0, -0.61), Ok(Verdict::Continue));
    let reason = Reason::Threshold { progress: 2.0 };
    assert_eq!(accuracy.report(TrialId(1), 2.0, -0.59), Ok(Verdict::Stop(reason)));
}

/// A trial that comes to its end in one leap counts at the rungs on its way, but it is done and not stopped.
#[test]
fn what_is_done_is_not_stopped() {
    let mut asha = make(StoppingRule::Asha);
    assert_eq!(asha.report(TrialId(0), 10.0, 0.1), Ok(Verdict::Continue));
    assert_eq!(asha.report(TrialId(1), 20.0, 0.3), Ok(Verdict::Continue));
    let reason = Reason::Rung { rung: 1.5, rank: 2, trials: 3, kept: 1 };
    assert_eq!(asha.report(TrialId(2), 2.0, 0.2), Ok(Verdict::Stop(reason)));
}

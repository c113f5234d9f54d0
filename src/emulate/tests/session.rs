//! Books that are kept without a clock.

use proptest::prelude::*;

use super::{batch, task};
use crate::{
    emulate::session::{Session, State, per_gpu},
    goodput::StatisticalProgress,
    ids::GpuType,
    sim::Modelled,
    trials::group::{Batch, Task},
};

const EXAMPLES: u64 = 50_001;

fn at(session: &Session) -> State {
    session.current()
}

#[test]
fn without_noise_every_step_counts_as_the_initial_batch() {
    let mut session = Session::new(Task { measure_noise: false, ..task() }).unwrap();
    // 2 * 50001 / 128 = 781.3, whatever the batch.
    assert_eq!((session.steps_to_end(batch(128)), session.steps_to_end(batch(512))), (782, 782));
    // 0.5 * 50001 / 128 = 195.3
    assert_eq!(session.steps_to_evaluation(batch(128), 1000), Some(196));
    assert_eq!(session.steps_to_evaluation(batch(128), 195), None);
    let evaluated = session.advance(batch(512), 400);
    assert_eq!(at(&session), State { steps: 400, examples: 204_800, useful: 51_200.0, evaluations: 2 });
    let epochs: Vec<f64> = evaluated.iter().map(|metric| metric.epochs).collect();
    assert_eq!(epochs, [196.0, 391.0].map(|steps| steps * 128.0 / EXAMPLES as f64));
    assert!(evaluated[0].values["accuracy"] < evaluated[1].values["accuracy"]);
    assert!(session.noise(batch(128)).is_none());
    // What is evaluated at the very end is reported with the end.
    assert_eq!(session.advance(batch(128), 382).len(), 1);
    assert!(session.is_finished());
    assert_eq!(session.evaluate().epochs.to_bits(), (782.0 * 128.0 / EXAMPLES as f64).to_bits());
}

/// The same as a real worker counts: step by step.
#[test]
fn progress_is_that_of_single_steps() {
    for total in [128, 500, 1000] {
        let mut session = Session::new(task()).unwrap();
        let Task { trainable, params, seed, epochs, .. } = task();
        let model = Modelled::new(&trainable, &params, seed, epochs).unwrap();
        let mut progress = StatisticalProgress::new(128.0).unwrap();
        let mut steps = 0;
        while progress.epochs(EXAMPLES).unwrap() < epochs {
            let phi = model.noise_at(progress.epochs(EXAMPLES).unwrap(), total);
            progress.add_step(f64::from(total), phi).unwrap();
            steps += 1;
        }
        let expected = session.steps_to_end(batch(total));
        assert!(expected.abs_diff(steps) <= 1 + steps / 200, "{total}: {expected} instead of {steps}");
        session.advance(batch(total), expected - 1);
        assert!(!session.is_finished());
        session.advance(batch(total), 1);
        assert!(session.is_finished());
        assert_eq!((at(&session).steps, at(&session).examples), (expected, expected * u64::from(total)));
    }
}

/// Far more steps than anybody would take one by one, and evaluations that are due all the time.
#[test]
fn the_longest_training_is_over_in_no_time() {
    let longest =
        Task { epochs: 1e9, initial_batch: 1, evaluate_every: 1e-6, measure_noise: false, ..task() };
    let mut session = Session::new(longest).unwrap();
    assert_eq!(session.steps_to_end(batch(1)), 1_000_000_000 * EXAMPLES);
    assert_eq!(session.steps_to_evaluation(batch(1), 10), Some(1));
    assert_eq!(session.advance(batch(1), 10).len(), 10);
    session.state = Some(State { steps: u64::MAX, examples: u64::MAX, useful: 1e14, evaluations: u64::MAX });
    assert!(session.is_finished() && session.steps_to_end(batch(1)) == 0);
}

#[test]
fn a_learning_rate_follows_its_rule() {
    let mut session = Session::new(Task { lr_rule: "linear".to_owned(), ..task() }).unwrap();
    session.advance(batch(512), 10);
    assert!((session.learning_rate(batch(512)).unwrap() - 4.0 * 0.05).abs() < 1e-12);
    assert!(session.noise(batch(512)).unwrap().var > 0.0);
}

#[test]
fn what_cannot_be_emulated_is_refused_with_what_can() {
    let message = |task: Task| Session::new(task).unwrap_err().to_string();
    let unknown = message(Task { trainable: "mnist".to_owned(), ..task() });
    assert!(unknown.contains("mnist") && unknown.contains("bert, cifar10"), "{unknown}");
    assert!(message(Task { lr_rule: "cosine".to_owned(), ..task() }).contains("adascale"));
    assert!(message(Task { evaluate_every: 0.0, ..task() }).contains("evaluation"));
    assert!(message(Task { evaluate_every: 1e-9, ..task() }).contains("evaluations in an epoch is"));
    assert!(message(Task { epochs: 1e12, ..task() }).contains("at most 1e9"));
    assert!(message(Task { report_every_s: f64::NAN, ..task() }).contains("report"));
    assert!(message(Task { checkpoint_every_s: -1.0, ..task() }).contains("checkpoint"));
    assert!(message(Task { initial_batch: 0, ..task() }).contains("initial batch"));
    assert!(message(Task { epochs: 0.0, ..task() }).contains("epochs"));
    let session = Session::new(task()).unwrap();
    let h100 = GpuType::new("h100").unwrap();
    let error = session.step_s(&h100, &[1], batch(128)).unwrap_err().to_string();
    assert!(error.contains("h100") && error.contains("a100"), "{error}");
    assert!(session.step_s(&GpuType::new("a100").unwrap(), &[1], batch(0)).is_err());
}

#[test]
fn a_pass_is_as_large_as_the_largest_share() {
    let shares = |total, accumulation, gpus| per_gpu(Batch { total, accumulation }, gpus);
    assert_eq!([shares(128, 0, 4), shares(130, 0, 4), shares(130, 1, 4)], [32, 33, 17]);
}

proptest! {
    /// However often somebody looks.
    #[test]
    fn progress_does_not_depend_on_when_it_is_looked_at(
        looks in prop::collection::vec(0_u64..400, 1..20),
        total in 64_u32..4096,
    ) {
        let mut often = Session::new(Task { epochs: 50.0, ..task() }).unwrap();
        let mut once = Session::new(Task { epochs: 50.0, ..task() }).unwrap();
        let mut evaluated = Vec::new();
        for steps in &looks {
            evaluated.extend(often.advance(batch(total), *steps));
        }
        let together = once.advance(batch(total), looks.iter().sum());
        prop_assert_eq!(evaluated.len(), together.len());
        prop_assert_eq!((at(&often).steps, at(&often).examples, at(&often).evaluations),
            (at(&once).steps, at(&once).examples, at(&once).evaluations));
        prop_assert!((at(&often).useful - at(&once).useful).abs() <= 1e-9 * at(&once).useful);
    }
}

//! Checkpoints of real trainings: what is damaged or of another trial is told of and not used, and the training goes on.

use std::{fs, path::Path};

use pollux_tune::{actors::TrainingEvent, trials::group::Task};
use serde_json::json;

use crate::common::{Folder, STEPS, assert_same, checkpoints, sgd, state, steps, task, train};

/// Trains one task to its end. Gives what was said of checkpoints, and the step from which it trained.
fn run(task: Task) -> (Vec<String>, u64) {
    let (mut said, mut from) = (Vec::new(), None);
    let all = train(vec![task], &[0, 1], |_, event| match event {
        TrainingEvent::CheckpointFailed { reason } => said.push(reason.clone()),
        TrainingEvent::Formed { steps, .. } => from = from.or(Some(*steps)),
        _ => {}
    });
    let last = all[0].last();
    assert!(matches!(last, Some(TrainingEvent::Finished { .. })), "{last:?}");
    assert_eq!(all[0].iter().rev().find_map(steps), Some(STEPS));
    (said, from.expect("it has trained"))
}

/// Flips a bit of the weights: files end with them, moments and a checksum.
fn flip(path: &Path) {
    let mut bytes = fs::read(path).expect("a checkpoint");
    let at = bytes.len() / 2;
    bytes[at] ^= 0x40;
    fs::write(path, bytes).expect("it can be written");
}

#[test]
fn damaged_checkpoints_are_not_trained_on() {
    let folder = Folder::new();
    let task = Task { checkpoint_every_s: 1e-6, ..task(&folder, "trial", json!({"lr": 0.05, "adam": true})) };
    assert_eq!(run(task.clone()), (vec![], 0));
    let undisturbed = state(&folder, "trial");
    let both = checkpoints(&folder, "trial");
    assert_eq!(both.len(), 2, "{both:?}");
    // One after the other: the newest with other weights, then that and the other one cut off.
    flip(&both[0]);
    let (said, from) = run(task.clone());
    assert!(from > 0 && from < STEPS, "from step {from}");
    let expected =
        format!("is damaged: its checksum is wrong; the trial resumes from the one of step {from}");
    assert!(matches!(&said[..], [one] if one.ends_with(&expected)), "{said:?}");
    assert_same(&state(&folder, "trial"), &undisturbed, "resumed from the older one");

    let both = checkpoints(&folder, "trial");
    assert_eq!(both.len(), 2, "{both:?}");
    flip(&both[0]);
    let bytes = fs::read(&both[1]).expect("a checkpoint");
    fs::write(&both[1], &bytes[..bytes.len() / 2]).expect("it can be written");
    let (said, from) = run(task);
    assert_eq!(from, 0);
    let [one] = &said[..] else { panic!("{said:?}") };
    assert!(one.contains("is damaged") && one.contains("is cut off"), "{one}");
    assert!(one.ends_with("; the trial starts from the beginning"), "{one}");
    assert_same(&state(&folder, "trial"), &undisturbed, "from the beginning");
}

#[test]
fn checkpoints_of_others_are_left_alone() {
    let folder = Folder::new();
    let mine = task(&folder, "trial", sgd());
    assert_eq!(run(mine.clone()), (vec![], 0));
    let before = checkpoints(&folder, "trial");
    let other_study = Task { study: pollux_tune::ids::StudyId(2), ..mine.clone() };
    let other_params = task(&folder, "trial", json!({"lr": 0.05, "hidden": 16}));
    for (other, problem) in [(other_study, "is of another study"), (other_params, "with other parameters")] {
        let (said, from) = run(other);
        assert_eq!(from, 0);
        assert!(said.iter().any(|said| said.contains(problem)), "{said:?}");
    }
    let after = checkpoints(&folder, "trial");
    assert!(before.iter().all(|path| after.contains(path)), "{before:?} and {after:?}");
    assert_eq!(run(mine).1, STEPS, "and the first one still has its own");
}

#[test]
fn what_is_no_checkpoint_does_not_fail_a_trial() {
    let folder = Folder::new();
    fs::write(folder.path().join("trial"), b"not a checkpoint").expect("a file");
    let (said, from) = run(task(&folder, "trial", sgd()));
    assert_eq!(from, 0);
    assert!(said.iter().any(|said| said.contains("has neither an identity nor a checksum")), "{said:?}");
    assert_eq!(checkpoints(&folder, "trial").len(), 1);
    assert_eq!(fs::read(folder.path().join("trial.earlier")).expect("it is kept"), b"not a checkpoint");
}

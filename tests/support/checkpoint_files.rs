//! What trainings leave on disk.

use std::{
    fs,
    path::{Path, PathBuf},
};

use tch::Tensor;

/// The checkpoints in a folder, the last one first.
pub(crate) fn checkpoints_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder of checkpoints");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "checkpoint"));
    paths.sort();
    paths.reverse();
    paths
}

/// All vectors of the last checkpoint.
pub(crate) fn last_state(folder: &Path) -> Vec<(String, Tensor)> {
    let mut tensors = Tensor::read_safetensors(&checkpoints_in(folder)[0]).expect("a checkpoint");
    tensors.retain(|(name, _)| name != "checksum");
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    tensors
}

/// Two trainings have come to the same end.
pub(crate) fn assert_same(ours: &[(String, Tensor)], theirs: &[(String, Tensor)], what: &str) {
    assert_eq!(ours.len(), theirs.len());
    for ((name, ours), (other, theirs)) in ours.iter().zip(theirs) {
        assert_eq!(name, other);
        let difference = (ours - theirs).abs().max().double_value(&[]);
        let size = theirs.abs().max().double_value(&[]);
        assert!(difference <= 2e-4 * size, "{what}: {name} differs by {difference} of {size}");
    }
}

//! Single checkpoints as bytes: what tests and fuzzing need to be a disk.

use std::io::{self, Cursor};

use super::envelope::{self, Contents, Kind, Position, Stored};
use crate::{ids::Round, trials::group::Task, worker::checkpoint::Identity};

/// Whether these bytes are a checkpoint of a training of the task: the steps behind it, or what is wrong.
pub fn check_checkpoint(task: &Task, bytes: &[u8]) -> Result<u64, String> {
    let contents = envelope::verify(&mut Cursor::new(bytes), &Identity::of(task), Kind::Trained);
    contents.map(|contents| contents.position.steps).map_err(|problem| problem.to_string())
}

/// A checkpoint of the task after so many steps, with these numbers.
pub fn make_checkpoint(task: &Task, steps: u64, numbers: &[f32]) -> io::Result<Vec<u8>> {
    let contents = Contents {
        position: Position { steps, round: Round(1) },
        state: "{}".to_owned(),
        vectors: vec![Stored::numbers("weights", numbers.len() as u64)],
    };
    let mut bytes = Vec::new();
    envelope::write(&mut bytes, &Identity::of(task), Kind::Trained, &contents, |out| {
        numbers.iter().try_for_each(|number| out.write_all(&number.to_le_bytes()))
    })?;
    Ok(bytes)
}

/// The bytes with their checksum, as if somebody had made them on purpose.
#[must_use]
pub fn seal_checkpoint(bytes: &[u8]) -> Vec<u8> {
    [bytes, blake3::hash(bytes).as_bytes()].concat()
}

//! The state of a trial as named tensors, on disk.

use crate::{
    ids::Round,
    trials::group::Task,
    worker::{
        Error,
        checkpoint::{
            CheckpointFolder, Contents, Durability, Kind, Loaded, NotSaved, Position, State, Stored,
            Unreadable,
        },
    },
};

/// A tensor with its numbers, the lowest byte first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedTensor {
    /// Its name.
    pub name: String,
    /// The type of its numbers as safetensors calls it, such as `F32`.
    pub dtype: String,
    /// Its shape.
    pub shape: Vec<u64>,
    /// Its numbers.
    pub data: Vec<u8>,
}

/// What was in a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    /// For [`Training::restore`](super::Training::restore).
    pub state: String,
    /// All tensors.
    pub tensors: Vec<SavedTensor>,
}

/// Writes a checkpoint.
pub(super) fn write(
    task: &Task,
    position: (u64, Round),
    state: String,
    tensors: &[SavedTensor],
) -> Result<(), NotSaved> {
    let stored = |SavedTensor { name, dtype, shape, data }: &SavedTensor| Stored {
        name: name.clone(),
        dtype: dtype.clone(),
        shape: shape.clone(),
        bytes: data.len() as u64,
    };
    let (steps, round) = position;
    let vectors = tensors.iter().map(stored).collect();
    let contents = Contents { position: Position { steps, round }, state, vectors };
    let state = State { contents, durability: Durability::OnDisk };
    CheckpointFolder::of(task, Kind::Trained)
        .write(&state, |out| tensors.iter().try_for_each(|tensor| out.write_all(&tensor.data)))
}

/// The last checkpoint of a trial that is whole, if there is one, and what the user should know of others.
pub fn load_checkpoint(task: &Task) -> Result<(Option<Restored>, Option<String>), Error> {
    let unreadable = |Unreadable { path, source }| Error::Checkpoint { path, source };
    let folder = CheckpointFolder::of(task, Kind::Trained);
    let Loaded { state, warning } = folder.load(unreadable, |contents, input| {
        let read = |Stored { name, dtype, shape, bytes }: &Stored| {
            let mut data = vec![0; *bytes as usize];
            let unreadable = |source| Error::Checkpoint { path: task.checkpoint.clone(), source };
            input.read_exact(&mut data).map_err(unreadable)?;
            Ok(SavedTensor { name: name.clone(), dtype: dtype.clone(), shape: shape.clone(), data })
        };
        let tensors = contents.vectors.iter().map(read).collect::<Result<_, Error>>()?;
        Ok(Ok(Restored { state: contents.state.clone(), tensors }))
    })?;
    Ok((state, warning))
}

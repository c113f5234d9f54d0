//! An emulated trial on disk: the safety net for when all its workers are gone.

use super::{
    error::Error,
    session::{self, Session},
};
use crate::{
    ids::Round,
    worker::checkpoint::{
        CheckpointFolder, Contents, Durability, Kind, Loaded, NotSaved, Position, Problem, State,
    },
};

/// Writes the state. Gives the number of its steps.
///
/// The file is small and a loss of power no concern of an emulation, so this is over before a runtime would notice.
pub(super) fn save(session: &Session, round: Round) -> Result<u64, NotSaved> {
    let current = session.current();
    let state = serde_json::to_string(&current).map_err(|error| NotSaved(error.to_string()))?;
    let position = Position { steps: current.steps, round };
    let contents = Contents { position, state, vectors: Vec::new() };
    let state = State { contents, durability: Durability::Cached };
    CheckpointFolder::of(&session.task, Kind::Emulated).write(&state, |_| Ok(()))?;
    Ok(current.steps)
}

/// The state in the last checkpoint of the session's trial, if there is one.
pub(super) fn load(session: &Session) -> Result<Loaded<session::State>, Error> {
    CheckpointFolder::of(&session.task, Kind::Emulated).load(Error::from, |contents, _| {
        let state = serde_json::from_str::<session::State>(&contents.state);
        Ok(state.map_err(|error| Problem::State(error.to_string())).and_then(|state| {
            if (0.0..f64::INFINITY).contains(&state.useful) {
                Ok(state)
            } else {
                Err(Problem::State(format!("its progress is {}; expected a number from 0", state.useful)))
            }
        }))
    })
}

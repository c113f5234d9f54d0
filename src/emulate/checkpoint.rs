//! An emulated trial on disk: the safety net for when all its workers are gone.

use std::{fs, io, path::PathBuf, process};

use serde::{Deserialize, Serialize};

use super::{
    error::Error,
    session::{Session, State},
};

/// What is in the file. A real training would not take it for one of its own, nor the other way round.
#[derive(Debug, Serialize, Deserialize)]
struct File {
    emulated: String,
    state: State,
}

/// Writes the state next to the old one, which it then replaces: at any moment there is a whole one. Gives the number of
/// its steps.
///
/// The file is small and a loss of power no concern of an emulation, so this is over before a runtime would notice.
pub(super) fn save(session: &Session, slot: u32) -> Result<u64, Error> {
    let path = &session.task.checkpoint;
    let state = session.current();
    let failed = |what: &str| Error::io(format!("{what} the checkpoint {}", path.display()));
    let file = File { emulated: session.task.trainable.clone(), state };
    let text = serde_json::to_vec(&file).map_err(io::Error::from).map_err(failed("making"))?;
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(failed("making the folder of"))?;
    }
    let mut part = path.as_os_str().to_owned();
    part.push(format!(".{}-{slot}", process::id()));
    let part = PathBuf::from(part);
    let written = fs::write(&part, text)
        .map_err(failed("writing"))
        .and_then(|()| fs::rename(&part, path).map_err(failed("replacing")));
    if written.is_err() {
        // It may not even be there.
        let _ = fs::remove_file(&part);
    }
    written.map(|()| state.steps)
}

/// The state in the checkpoint of the session's trial, if there is one.
pub(super) fn load(session: &Session) -> Result<Option<State>, Error> {
    let path = &session.task.checkpoint;
    let wrong = |problem: String| Error::Checkpoint { path: path.clone(), problem };
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io(format!("reading the checkpoint {}", path.display()))(error)),
    };
    let file: File = serde_json::from_slice(&text)
        .map_err(|error| wrong(format!("is not one of an emulated training: {error}")))?;
    if file.emulated != session.task.trainable {
        let problem =
            format!("is of another model (`{}`); remove it or choose another folder", file.emulated);
        return Err(wrong(problem));
    }
    if !(0.0..f64::INFINITY).contains(&file.state.useful) {
        return Err(wrong(format!("has a progress of {}, allowed is a number from 0", file.state.useful)));
    }
    Ok(Some(file.state))
}

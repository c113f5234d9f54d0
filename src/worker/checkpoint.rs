//! A trial on disk: the safety net for when all its workers are gone.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    thread::{self, JoinHandle},
};

use serde::{Deserialize, Serialize};
use tch::{Device, Tensor, no_grad};

use super::{
    error::Error,
    flat::{Layout, copy},
    session::{Counters, Session},
};

/// What there is to know about the tensors of a checkpoint.
#[derive(Debug, Serialize, Deserialize)]
struct Header {
    trainable: String,
    layout: Layout,
    counters: Counters,
}

const HEADER: &str = "header";

/// A checkpoint that is being written.
#[derive(Debug)]
pub(super) struct Writing {
    steps: u64,
    thread: JoinHandle<Result<(), Error>>,
}

impl Writing {
    /// Copies the state, which takes no longer than a copy in memory, and writes it on a thread of its own.
    pub(super) fn start(session: &Session) -> Result<Self, Error> {
        let path = session.task.checkpoint.clone();
        let header = Header {
            trainable: session.task.trainable.clone(),
            layout: session.flat.layout().clone(),
            counters: session.counters(),
        };
        let header =
            serde_json::to_vec(&header).map_err(|error| wrong(&path, format!("cannot be made: {error}")))?;
        let mut tensors = vec![(HEADER.to_owned(), Tensor::f_from_slice(&header)?)];
        for (name, vector) in vectors(session) {
            tensors.push((name, copy(&vector, Device::Cpu)?));
        }
        let steps = session.steps();
        let thread = thread::Builder::new()
            .name("checkpoint".to_owned())
            .spawn(move || write(&path, &tensors))
            .map_err(Error::io("starting a thread"))?;
        Ok(Self { steps, thread })
    }

    pub(super) fn is_done(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits for the end. Says how many steps the checkpoint has behind it.
    pub(super) fn finish(self) -> Result<u64, Error> {
        match self.thread.join() {
            Ok(written) => written.map(|()| self.steps),
            Err(_) => Err(Error::Protocol("the thread that writes checkpoints has panicked".to_owned())),
        }
    }
}

fn vectors(session: &Session) -> Vec<(String, Tensor)> {
    let mut all = vec![("weights".to_owned(), session.flat.weights.shallow_clone())];
    if session.flat.buffers.numel() > 0 {
        all.push(("buffers".to_owned(), session.flat.buffers.shallow_clone()));
    }
    let moments = session.descent.moments.iter().enumerate();
    all.extend(moments.map(|(at, moment)| (format!("moments.{at}"), moment.shallow_clone())));
    all
}

/// Beside the old one, which it then replaces: at any moment there is a whole one.
fn write(path: &Path, tensors: &[(String, Tensor)]) -> Result<(), Error> {
    let failed = |what: &str| Error::io(format!("{what} the checkpoint {}", path.display()));
    let folder = path.parent().unwrap_or_else(|| Path::new("."));
    fs::create_dir_all(folder).map_err(failed("making the folder of"))?;
    let mut part = path.as_os_str().to_owned();
    part.push(format!(".{}", std::process::id()));
    let part = PathBuf::from(part);
    let written = Tensor::write_safetensors(tensors, &part).map_err(Error::from).and_then(|()| {
        File::open(&part).and_then(|file| file.sync_all()).map_err(failed("saving"))?;
        fs::rename(&part, path).map_err(failed("replacing"))?;
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed("saving the folder of"))
    });
    if written.is_err() {
        // It may not even be there.
        let _ = fs::remove_file(&part);
    }
    written
}

/// Goes on from the checkpoint of the session's trial, if there is one. Says whether there was.
pub(super) fn load(session: &mut Session) -> Result<bool, Error> {
    let path = session.task.checkpoint.clone();
    if !path.try_exists().map_err(Error::io(format!("looking for the checkpoint {}", path.display())))? {
        return Ok(false);
    }
    let unreadable = |error: tch::TchError| wrong(&path, format!("cannot be read: {error}"));
    let mut tensors: std::collections::BTreeMap<String, Tensor> =
        Tensor::read_safetensors(&path).map_err(unreadable)?.into_iter().collect();
    let mut take = |name: &str| {
        tensors
            .remove(name)
            .ok_or_else(|| wrong(&path, format!("has no `{name}`; was it written by another program?")))
    };
    let header = Vec::<u8>::try_from(take(HEADER)?)?;
    let header: Header = serde_json::from_slice(&header)
        .map_err(|error| wrong(&path, format!("has a header that cannot be read: {error}")))?;
    if header.trainable != session.task.trainable || header.layout != *session.flat.layout() {
        return Err(wrong(
            &path,
            format!("is of another model (`{}`); remove it or choose another folder", header.trainable),
        ));
    }
    for (name, mut vector) in vectors(session) {
        let stored = take(&name)?;
        if stored.size() != vector.size() {
            return Err(wrong(
                &path,
                format!("has {:?} elements in `{name}`, not {:?}", stored.size(), vector.size()),
            ));
        }
        no_grad(|| vector.f_copy_(&stored).map(drop))?;
    }
    session.restore(header.counters)?;
    Ok(true)
}

fn wrong(path: &Path, problem: String) -> Error {
    Error::Checkpoint { path: path.to_owned(), problem }
}

//! A trial on disk: the safety net for when all its workers are gone.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    thread::{self, JoinHandle},
};

use serde::{Deserialize, Serialize};
use tch::{Device, Tensor, no_grad};

use super::{
    flat::{Layout, copy},
    session::{Counters, Session},
};
use crate::worker::Error;

/// What there is to know about the tensors of a checkpoint.
#[derive(Debug, Serialize, Deserialize)]
struct Header {
    trainable: String,
    layout: Layout,
    counters: Counters,
}

const HEADER: &str = "header";

/// Writes checkpoints on a thread of its own, one after the other.
///
/// A checkpoint that is being written is waited for before the next one is, and before the writer is dropped: both would use the same
/// temporary name, and after a release the trial may be started elsewhere.
#[derive(Debug, Default)]
pub(super) struct CheckpointWriter {
    writing: Option<Writing>,
}

#[derive(Debug)]
struct Writing {
    steps: u64,
    thread: JoinHandle<Result<(), Error>>,
}

impl CheckpointWriter {
    fn start(
        &mut self,
        steps: u64,
        write: impl FnOnce() -> Result<(), Error> + Send + 'static,
    ) -> Result<(), Error> {
        self.finish(true)?;
        let thread = thread::Builder::new().name("checkpoint".to_owned()).spawn(write);
        self.writing = Some(Writing { steps, thread: thread.map_err(Error::io("starting a thread"))? });
        Ok(())
    }

    /// The steps of a checkpoint that was written since the last call; with `wait`, after it is.
    pub(super) fn finish(&mut self, wait: bool) -> Result<Option<u64>, Error> {
        let done = self.writing.take_if(|writing| wait || writing.thread.is_finished());
        let Some(Writing { steps, thread }) = done else { return Ok(None) };
        match thread.join() {
            Ok(written) => written.map(|()| Some(steps)),
            Err(_) => Err(Error::Protocol("the thread that writes checkpoints has panicked".to_owned())),
        }
    }
}

impl Drop for CheckpointWriter {
    fn drop(&mut self) {
        // Nobody is left to report it to.
        let _ = self.finish(true);
    }
}

/// Copies the state, which takes no longer than a copy in memory, and has it written.
pub(super) fn save(session: &Session, writer: &mut CheckpointWriter) -> Result<(), Error> {
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
    writer.start(session.steps(), move || write(&path, &tensors))
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

/// Resumes from the checkpoint of the session's trial, if there is one. Gives whether there was.
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

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex, mpsc};

    use super::*;

    /// A write that takes until it is let go, and is then put down.
    fn slow(
        log: &Arc<Mutex<Vec<u64>>>,
        steps: u64,
    ) -> (mpsc::Sender<()>, impl FnOnce() -> Result<(), Error> + use<>) {
        let (go, gone) = mpsc::channel();
        let log = log.clone();
        (go, move || {
            gone.recv().expect("it is let go");
            log.lock().expect("no panic").push(steps);
            Ok(())
        })
    }

    #[test]
    fn a_checkpoint_is_on_disk_before_the_next_one_is_written_and_before_the_writer_is_gone() {
        let log = Arc::new(Mutex::new(Vec::new()));
        let mut writer = CheckpointWriter::default();
        let (go, first) = slow(&log, 1);
        writer.start(1, first).expect("it starts");
        assert_eq!(writer.finish(false).expect("no error"), None, "it is not done");
        go.send(()).expect("it waits");
        let (go, second) = slow(&log, 2);
        writer.start(2, second).expect("it starts");
        assert_eq!(*log.lock().expect("no panic"), [1]);
        go.send(()).expect("it waits");
        drop(writer);
        assert_eq!(*log.lock().expect("no panic"), [1, 2]);
    }

    #[test]
    fn a_checkpoint_is_told_once_and_so_is_why_there_is_none() {
        let mut writer = CheckpointWriter::default();
        writer.start(7, || Ok(())).expect("it starts");
        assert_eq!(writer.finish(true).expect("it is written"), Some(7));
        assert_eq!(writer.finish(true).expect("nothing is written"), None);
        writer.start(8, || Err(Error::Protocol("no space".to_owned()))).expect("it starts");
        assert_eq!(writer.finish(true).expect_err("it failed").to_string(), "no space");
        assert_eq!(writer.finish(true).expect("nothing is written"), None);
    }
}

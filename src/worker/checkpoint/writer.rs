use std::thread::{self, JoinHandle};

use super::NotSaved;

/// Writes checkpoints on a thread of its own, one after the other.
///
/// A checkpoint that is being written is waited for before the next one is, and before the writer is dropped: after a release the trial
/// may be started elsewhere, and has to find it.
#[derive(Debug, Default)]
pub(crate) struct CheckpointWriter {
    writing: Option<Writing>,
}

#[derive(Debug)]
struct Writing {
    steps: u64,
    thread: JoinHandle<Result<(), NotSaved>>,
}

impl CheckpointWriter {
    pub(crate) fn start(
        &mut self,
        steps: u64,
        write: impl FnOnce() -> Result<(), NotSaved> + Send + 'static,
    ) -> Result<(), NotSaved> {
        self.finish(true)?;
        let thread = thread::Builder::new().name("checkpoint".to_owned()).spawn(write);
        let thread =
            thread.map_err(|error| NotSaved(format!("no thread for checkpoints can be started: {error}")))?;
        self.writing = Some(Writing { steps, thread });
        Ok(())
    }

    /// The steps of a checkpoint that was written since the last call; with `wait`, after it is.
    pub(crate) fn finish(&mut self, wait: bool) -> Result<Option<u64>, NotSaved> {
        let done = self.writing.take_if(|writing| wait || writing.thread.is_finished());
        let Some(Writing { steps, thread }) = done else { return Ok(None) };
        match thread.join() {
            Ok(written) => written.map(|()| Some(steps)),
            Err(_) => Err(NotSaved("the thread that writes checkpoints has panicked".to_owned())),
        }
    }
}

impl Drop for CheckpointWriter {
    fn drop(&mut self) {
        // Nobody is left to report it to.
        let _ = self.finish(true);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex, mpsc};

    use super::*;

    /// A write that takes until it is let go, and is then put down.
    fn slow(
        log: &Arc<Mutex<Vec<u64>>>,
        steps: u64,
    ) -> (mpsc::Sender<()>, impl FnOnce() -> Result<(), NotSaved> + use<>) {
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
        writer.start(8, || Err(NotSaved("no space".to_owned()))).expect("it starts");
        assert_eq!(writer.finish(true).expect_err("it failed").to_string(), "no space");
        assert_eq!(writer.finish(true).expect("nothing is written"), None);
    }
}

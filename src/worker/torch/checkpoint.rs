//! A trial on disk: the safety net for when all its workers are gone.

use std::{
    io::{self, Read, Write},
    path::Path,
};

use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor, no_grad};

use super::{
    flat::{Layout, copy},
    session::Session,
};
use crate::{
    ids::Round,
    wire::with_causes,
    worker::{
        Error,
        checkpoint::{
            self, CheckpointFolder, CheckpointWriter, Contents, Durability, Loaded, NotSaved, Position,
            Problem, State, Stored, Unreadable,
        },
        counters::Counters,
    },
};

/// As many numbers are copied at once between tensors and files.
const PIECE: i64 = 1 << 20;
/// Bytes of a number.
const NUMBER: usize = size_of::<f32>();

/// What there is to know about the vectors of a checkpoint.
#[derive(Debug, Serialize, Deserialize)]
struct Progress {
    layout: Layout,
    counters: Counters,
}

/// Copies the state, which takes no longer than a copy in memory, and has it written.
pub(super) fn save(session: &Session, round: Round, writer: &mut CheckpointWriter) -> Result<(), NotSaved> {
    let failed = |error: Error| NotSaved(with_causes(&error));
    let progress = Progress { layout: session.flat.layout().clone(), counters: session.counters() };
    let state = serde_json::to_string(&progress).map_err(|error| NotSaved(error.to_string()))?;
    let (mut vectors, mut copies) = (Vec::new(), Vec::new());
    for (name, vector) in self::vectors(session) {
        vectors.push(Stored::numbers(&name, vector.numel() as u64));
        copies.push(copy(&vector, Device::Cpu).map_err(failed)?);
    }
    let position = Position { steps: session.books.steps(), round };
    let state = State { contents: Contents { position, state, vectors }, durability: Durability::OnDisk };
    let folder = CheckpointFolder::of(&session.task, checkpoint::Kind::Trained);
    writer.start(session.books.steps(), move || folder.write(&state, |out| write(&copies, out)))
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

/// Where the pieces of a vector begin, and how long they are.
fn pieces(vector: &Tensor) -> impl Iterator<Item = (i64, i64)> + use<> {
    let length = vector.size().iter().product::<i64>();
    (0..length).step_by(PIECE as usize).map(move |start| (start, PIECE.min(length - start)))
}

/// Numbers in the order of bytes of this machine, which is that of the format on all that libtorch runs on.
fn write(vectors: &[Tensor], out: &mut dyn Write) -> io::Result<()> {
    let mut buffer = vec![0; PIECE as usize * NUMBER];
    for vector in vectors {
        for (start, length) in pieces(vector) {
            let bytes = &mut buffer[..length as usize * NUMBER];
            let piece = vector.f_narrow(0, start, length).map_err(io::Error::other)?;
            piece.f_copy_data_u8(bytes, length as usize).map_err(io::Error::other)?;
            out.write_all(bytes)?;
        }
    }
    Ok(())
}

/// Fills vectors of the session. An error leaves them half filled.
fn read(vectors: &[(String, Tensor)], input: &mut dyn Read, folder: &Path) -> Result<(), Error> {
    let mut buffer = vec![0; PIECE as usize * NUMBER];
    for (_, vector) in vectors {
        for (start, length) in pieces(vector) {
            let bytes = &mut buffer[..length as usize * NUMBER];
            let unreadable = |source| unreadable(Unreadable { path: folder.to_owned(), source });
            input.read_exact(bytes).map_err(unreadable)?;
            let piece = Tensor::f_from_data_size(bytes, &[length], Kind::Float)?;
            no_grad(|| vector.f_narrow(0, start, length)?.f_copy_(&piece).map(drop))?;
        }
    }
    Ok(())
}

/// Resumes from the last checkpoint of the session's trial, if there is one.
pub(super) fn load(session: &mut Session) -> Result<(), Error> {
    let folder = CheckpointFolder::of(&session.task, checkpoint::Kind::Trained);
    let vectors = vectors(session);
    let Loaded { state, warning } = folder.load(unreadable, |contents, input| {
        let progress = match check(contents, session.flat.layout(), &vectors) {
            Ok(progress) => progress,
            Err(problem) => return Ok(Err(problem)),
        };
        read(&vectors, input, &session.task.checkpoint)?;
        Ok(Ok(progress.counters))
    })?;
    session.warning = warning;
    state.map_or(Ok(()), |counters| session.restore(counters))
}

fn unreadable(Unreadable { path, source }: Unreadable) -> Error {
    Error::Checkpoint { path, source }
}

/// Whether a checkpoint has what a model needs.
fn check(contents: &Contents, layout: &Layout, vectors: &[(String, Tensor)]) -> Result<Progress, Problem> {
    let progress: Progress =
        serde_json::from_str(&contents.state).map_err(|error| Problem::State(error.to_string()))?;
    if progress.layout != *layout {
        return Err(Problem::State("the model has other variables now".to_owned()));
    }
    let wanted: Vec<Stored> =
        vectors.iter().map(|(name, vector)| Stored::numbers(name, vector.numel() as u64)).collect();
    if contents.vectors != wanted {
        let problem = format!("it has the vectors {:?} instead of {wanted:?}", contents.vectors);
        return Err(Problem::State(problem));
    }
    Ok(progress)
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use super::*;
    use crate::{ids::TrialId, trials::group::Task};

    /// What Ctrl-C does in the middle of a background checkpoint: the trial is saved once more, and its worker is free.
    #[test]
    fn a_release_waits_for_the_checkpoint_that_is_being_written() {
        let path = std::env::temp_dir().join(format!("pollux-checkpoint-writer-{}", std::process::id()));
        let task = Task { checkpoint: path.clone(), ..Task::new(TrialId(0), "net") };
        let folder = CheckpointFolder::of(&task, checkpoint::Kind::Trained);
        let numbers = Tensor::from_slice(&[1.0_f32, 2.0, 3.0]);
        let write_at = |steps: u64, hold: Option<mpsc::Receiver<()>>| {
            let (folder, numbers) = (folder.clone(), vec![numbers.copy()]);
            let position = Position { steps, round: Round(1) };
            let contents =
                Contents { position, state: "{}".to_owned(), vectors: vec![Stored::numbers("weights", 3)] };
            let state = State { contents, durability: Durability::OnDisk };
            move || {
                folder.write(&state, |out| {
                    if let Some(hold) = hold {
                        hold.recv().expect("it is let go");
                    }
                    write(&numbers, out)
                })
            }
        };
        let (go, hold) = mpsc::channel();
        let mut writer = CheckpointWriter::default();
        writer.start(10, write_at(10, Some(hold))).expect("it starts");
        let (release, released) = mpsc::channel();
        let second = write_at(20, None);
        let releasing = thread::spawn(move || {
            writer.start(20, second).expect("the first one is written");
            drop(writer);
            release.send(()).expect("the test waits");
        });
        // However slow the machine is, it cannot come before it is let go.
        let early = released.recv_timeout(std::time::Duration::from_millis(200));
        assert!(early.is_err(), "the worker was free before the checkpoint was on disk");
        go.send(()).expect("it waits");
        released.recv().expect("it is free");
        releasing.join().expect("no panic");
        assert_eq!(std::fs::read_dir(&path).expect("a folder").count(), 2);
        let mut read_back = Vec::new();
        let loaded = folder.load(unreadable, |contents, input| {
            let mut vector = [("weights".to_owned(), Tensor::zeros([3], (Kind::Float, Device::Cpu)))];
            read(&vector, input, &path)?;
            let [(_, vector)] = &mut vector;
            read_back = Vec::<f32>::try_from(&*vector)?;
            Ok(Ok(contents.position.steps))
        });
        let loaded = loaded.expect("it can be read");
        assert_eq!((loaded.state, loaded.warning), (Some(20), None));
        assert_eq!(read_back, [1.0, 2.0, 3.0]);
        std::fs::remove_dir_all(path).expect("it can be removed");
    }
}

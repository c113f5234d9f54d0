//! Checkpoints between an agent and its head, for machines without a shared file system.

use std::{
    fmt,
    fs::File,
    io::{self, ErrorKind},
    path::Path,
    pin::Pin,
    sync::Arc,
};

use tokio::{
    sync::mpsc::{self, Receiver},
    task::{JoinHandle, spawn_blocking},
};
use tokio_stream::{Stream, StreamExt, wrappers::ReceiverStream};
use tonic::{Code, Status, Streaming, transport::Channel};

use super::{
    CheckpointFolders,
    files::{self, BYTES_MAX, Chunk, is_plain},
};
use crate::{
    ids::{StudyId, TrialId},
    trials::agent::HeldCheckpoint,
    wire::{
        Error,
        convert_agent::study_id,
        proto::{
            self, agent_head_client::AgentHeadClient, download_part::Kind as Downloaded,
            upload_part::Kind as Uploaded,
        },
    },
};

type Head = Arc<dyn CheckpointFolders>;
/// A file on its way to an agent.
pub(super) type PartStream = Pin<Box<dyn Stream<Item = Result<proto::DownloadPart, Status>> + Send>>;

fn status(error: &io::Error) -> Status {
    let code = match error.kind() {
        ErrorKind::NotFound => Code::NotFound,
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Code::ResourceExhausted,
        ErrorKind::InvalidData | ErrorKind::UnexpectedEof => Code::DataLoss,
        _ => Code::Aborted,
    };
    Status::new(code, error.to_string())
}

fn invalid(problem: impl Into<String>) -> Status {
    Status::invalid_argument(problem)
}

/// What somebody who blocks has to say.
async fn done<T>(work: JoinHandle<Result<T, Status>>) -> Result<T, Status> {
    work.await.unwrap_or_else(|_| Err(Status::internal("the thread of the transfer has ended")))
}

fn check_name(head: &Head, file: &str) -> Result<(), Status> {
    if is_plain(file) && head.is_checkpoint(file) {
        return Ok(());
    }
    Err(invalid(format!("`{}` is not the name of a checkpoint", file.escape_debug())))
}

/// Takes in what an agent sends. Says when it is on disk.
pub(super) async fn receive(head: Head, mut parts: Streaming<proto::UploadPart>) -> Result<(), Status> {
    let first = parts.message().await?.and_then(|part| part.kind);
    let Some(Uploaded::Begin(proto::UploadBegin { checkpoint: Some(checkpoint), bytes })) = first else {
        return Err(invalid("an upload has to begin with what is coming"));
    };
    let HeldCheckpoint { study, trial, file } =
        checkpoint.try_into().map_err(|error: Error| invalid(error.to_string()))?;
    check_name(&head, &file)?;
    if bytes > BYTES_MAX {
        return Err(invalid(format!("it has {bytes} bytes; expected at most {BYTES_MAX}")));
    }
    let (send, mut chunks) = mpsc::channel(1);
    let writing = spawn_blocking(move || {
        let folder = head.folder(study, trial).map_err(Status::failed_precondition)?;
        files::store(&folder, &file, Some(bytes), &mut chunks).map_err(|error| status(&error))
    });
    while let Some(part) = parts.message().await? {
        let chunk = match part.kind {
            Some(Uploaded::Data(data)) => Chunk::Data(data),
            Some(Uploaded::Checksum(checksum)) => Chunk::Checksum(checksum),
            Some(Uploaded::Begin(_)) | None => return Err(invalid("an upload has data and a checksum")),
        };
        if send.send(chunk).await.is_err() {
            // It is there already, or could not be written.
            break;
        }
    }
    drop(send);
    done(writing).await
}

/// What the head has.
pub(super) async fn list(head: Head, request: proto::ListRequest) -> Result<Vec<String>, Status> {
    let study = study_id(&request.study, "ListRequest").map_err(|error| invalid(error.to_string()))?;
    done(spawn_blocking(move || {
        let folder = head.folder(study, TrialId(request.trial)).map_err(Status::failed_precondition)?;
        files::list(&folder, |name| head.is_checkpoint(name)).map_err(|error| status(&error))
    }))
    .await
}

/// Sends an agent what it wants.
pub(super) async fn send(head: Head, request: proto::DownloadRequest) -> Result<PartStream, Status> {
    let wanted = request.checkpoint.ok_or_else(|| invalid("no checkpoint is asked for"))?;
    let HeldCheckpoint { study, trial, file } =
        wanted.try_into().map_err(|error: Error| invalid(error.to_string()))?;
    check_name(&head, &file)?;
    let opening = spawn_blocking(move || {
        let folder = head.folder(study, trial).map_err(Status::failed_precondition)?;
        File::open(folder.join(file)).map_err(|error| status(&error))
    });
    let (chunks, reading) = read(done(opening).await?);
    let parts = chunks.map(|chunk| {
        let kind = match chunk {
            Chunk::Data(data) => Downloaded::Data(data),
            Chunk::Checksum(checksum) => Downloaded::Checksum(checksum),
        };
        Ok(proto::DownloadPart { kind: Some(kind) })
    });
    // A file that could not be read to its end has no checksum, but this.
    let error = tokio_stream::once(reading).then(done).filter_map(Result::err).map(Err);
    Ok(Box::pin(parts.chain(error)))
}

/// Begins to read a file.
fn read(file: File) -> (ReceiverStream<Chunk>, JoinHandle<Result<(), Status>>) {
    let (send, chunks) = mpsc::channel(1);
    let reading = spawn_blocking(move || files::read(file, &send).map_err(|error| status(&error)));
    (ReceiverStream::new(chunks), reading)
}

/// Gets checkpoints from one machine to the other. It works for as long as the connection of its agent lasts.
#[derive(Clone)]
pub struct CheckpointTransfer(pub(super) AgentHeadClient<Channel>);

impl fmt::Debug for CheckpointTransfer {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("CheckpointTransfer").finish_non_exhaustive()
    }
}

impl CheckpointTransfer {
    pub(super) const fn new(client: AgentHeadClient<Channel>) -> Self {
        Self(client)
    }

    /// Sends a checkpoint that is at `path` to the head, and waits until it is on its disk.
    pub async fn upload(&self, checkpoint: &HeldCheckpoint, path: &Path) -> Result<(), Error> {
        let failed = |problem: String| Error::Transfer { file: checkpoint.file.clone(), problem };
        let path = path.to_owned();
        let open = spawn_blocking(move || {
            let file = File::open(path)?;
            let bytes = file.metadata()?.len();
            Ok((file, bytes))
        });
        let opened = open.await.map_err(|error| failed(error.to_string()))?;
        let (file, bytes) = opened.map_err(|error: io::Error| failed(error.to_string()))?;
        let (chunks, reading) = read(file);
        let begin = proto::UploadBegin { checkpoint: Some(checkpoint.clone().into()), bytes };
        let parts = tokio_stream::once(Uploaded::Begin(begin)).chain(chunks.map(|chunk| match chunk {
            Chunk::Data(data) => Uploaded::Data(data),
            Chunk::Checksum(checksum) => Uploaded::Checksum(checksum),
        }));
        let parts = parts.map(|kind| proto::UploadPart { kind: Some(kind) });
        let sent = self.0.clone().upload(parts).await;
        // What went wrong first.
        done(reading).await.map_err(|status| failed(status.message().to_owned()))?;
        sent.map_err(|status| failed(status.message().to_owned()))?;
        Ok(())
    }

    /// The files of the checkpoints that the head has of a trial, in order.
    pub async fn list(&self, study: StudyId, trial: TrialId) -> Result<Vec<String>, Error> {
        let request = proto::ListRequest { study: study.to_string(), trial: trial.0 };
        let listed = self.0.clone().list(request).await;
        let failed = |status: Status| Error::Transfer {
            file: format!("list of trial {trial}"),
            problem: status.message().to_owned(),
        };
        Ok(listed.map_err(failed)?.into_inner().files)
    }

    /// Gets a checkpoint of the head into a folder, under its name, and waits until it is on disk.
    pub async fn download(&self, checkpoint: &HeldCheckpoint, folder: &Path) -> Result<(), Error> {
        let file = checkpoint.file.clone();
        let failed = |problem: String| Error::Transfer { file: checkpoint.file.clone(), problem };
        if !is_plain(&file) {
            return Err(failed("that is not the name of a checkpoint".to_owned()));
        }
        let request = proto::DownloadRequest { checkpoint: Some(checkpoint.clone().into()) };
        let parts = self.0.clone().download(request).await;
        let mut parts = parts.map_err(|status| failed(status.message().to_owned()))?.into_inner();
        let (send, mut chunks): (_, Receiver<Chunk>) = mpsc::channel(1);
        let folder = folder.to_owned();
        let writing = spawn_blocking(move || {
            files::store(&folder, &file, None, &mut chunks).map_err(|error| status(&error))
        });
        let mut broken = None;
        loop {
            let chunk = match parts.message().await {
                Ok(Some(proto::DownloadPart { kind: Some(Downloaded::Data(data)) })) => Chunk::Data(data),
                Ok(Some(proto::DownloadPart { kind: Some(Downloaded::Checksum(sum)) })) => {
                    Chunk::Checksum(sum)
                }
                Ok(_) => break,
                Err(status) => {
                    broken = Some(status);
                    break;
                }
            };
            if send.send(chunk).await.is_err() {
                break;
            }
        }
        drop(send);
        let written = done(writing).await;
        match broken {
            Some(status) => Err(status),
            None => written,
        }
        .map_err(|status| failed(status.message().to_owned()))
    }
}

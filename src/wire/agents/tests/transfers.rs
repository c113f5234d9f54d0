//! Checkpoints on their way.

use std::{
    sync::{Condvar, Mutex},
    time::Duration,
};

use tokio::time::advance;

use super::*;
use crate::{
    trials::agent::{FENCE, HeldCheckpoint, LEASE},
    wire::proto,
};

fn held(file: &str) -> HeldCheckpoint {
    HeldCheckpoint { study: STUDY, trial: TrialId(3), file: file.to_owned() }
}

/// Bytes that are nowhere the same.
fn contents(bytes: usize) -> Vec<u8> {
    let mut hash = blake3::Hasher::new().finalize_xof();
    let mut contents = vec![0; bytes];
    hash.fill(&mut contents);
    contents
}

fn names(folder: PathBuf) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let name = |entry: std::io::Result<fs::DirEntry>| {
        entry.expect("an entry").file_name().into_string().expect("a text")
    };
    entries.map(name).collect()
}

#[tokio::test]
async fn a_checkpoint_goes_to_the_head_and_back() {
    let mut head = Head::new();
    let (agent, _, _handle, _way) = head.joined().await;
    let local = head.scratch.0.join("local");
    let folder = head.scratch.0.join("checkpoints/3");
    for (file, bytes) in
        [("empty.checkpoint", 0), ("odd.checkpoint", (5 << 20) + 7), ("even.checkpoint", 2 << 20)]
    {
        fs::write(&local, contents(bytes)).expect("a file");
        agent.checkpoints.upload(&held(file), &local).await.expect("it is sent");
        assert!(fs::read(folder.join(file)).expect("it is there") == contents(bytes), "{file}");
    }
    // What is there is not sent again.
    fs::write(&local, b"another").expect("a file");
    agent.checkpoints.upload(&held("odd.checkpoint"), &local).await.expect("it is there");
    assert_eq!(fs::metadata(folder.join("odd.checkpoint")).expect("it is").len(), (5 << 20) + 7);

    fs::write(folder.join("notes"), "no checkpoint").expect("a file");
    let listed = agent.checkpoints.list(STUDY, TrialId(3)).await.expect("a list");
    assert_eq!(listed, ["empty.checkpoint", "even.checkpoint", "odd.checkpoint"]);
    assert!(agent.checkpoints.list(STUDY, TrialId(9)).await.expect("a list").is_empty());
    let to = head.scratch.0.join("there/3");
    for file in &listed {
        agent.checkpoints.download(&held(file), &to).await.expect("it comes");
        assert!(
            fs::read(to.join(file)).expect("it is there") == fs::read(folder.join(file)).expect("so it is")
        );
    }
    assert_eq!(names(to).len(), 3, "nothing else is left");
    assert_eq!(names(folder).len(), 4, "nor here");
}

#[tokio::test]
async fn what_cannot_be_transferred_says_why_and_leaves_nothing() {
    let mut head = Head::new();
    let (agent, _, _handle, _way) = head.joined().await;
    let local = head.scratch.0.join("local");
    fs::write(&local, contents(3 << 20)).expect("a file");
    let to = head.scratch.0.join("there");
    for file in [
        "../a.checkpoint",
        "/etc/a.checkpoint",
        ".checkpoint",
        "",
        "a",
        "a b.checkpoint",
        "..",
        "a\0.checkpoint",
    ] {
        let sent = agent.checkpoints.upload(&held(file), &local).await.expect_err("no name").to_string();
        assert!(sent.contains("is not the name of a checkpoint"), "{sent}");
        agent.checkpoints.download(&held(file), &to).await.expect_err("no name");
    }
    let other = HeldCheckpoint { study: StudyId(1), ..held("a.checkpoint") };
    let error = agent.checkpoints.upload(&other, &local).await.expect_err("another study").to_string();
    assert_eq!(error, "the checkpoint a.checkpoint cannot be transferred: another study");
    let error = agent.checkpoints.download(&held("a.checkpoint"), &to).await.expect_err("it is not there");
    assert!(error.to_string().contains("No such file"), "{error}");
    let error = agent.checkpoints.upload(&held("a.checkpoint"), &head.scratch.0.join("missing")).await;
    assert!(error.expect_err("it is not there").to_string().contains("No such file"));
    // Where its folder should be, there is a file.
    fs::create_dir_all(head.scratch.0.join("checkpoints")).expect("a folder");
    fs::write(head.scratch.0.join("checkpoints/3"), "in the way").expect("a file");
    agent.checkpoints.upload(&held("a.checkpoint"), &local).await.expect_err("it cannot be written");
    assert!(names(to).is_empty());
}

/// As a head that is not to be trusted, or a network that is not, would.
#[tokio::test]
async fn a_checkpoint_that_was_changed_or_cut_off_is_not_kept() {
    use proto::upload_part::Kind;
    let mut head = Head::new();
    let (stream, _way) = head.way();
    let mut client = refusals::client(head.secured(stream).await.expect("it is the right head")).await;
    let hello = tokio_stream::iter([proto::AgentEvent::from(hello("gpu1"))]);
    let mut request = tonic::Request::new(tokio_stream::StreamExt::chain(hello, tokio_stream::pending()));
    let token = head.identity.token.reveal().parse().expect("a header");
    request.metadata_mut().insert(crate::wire::agents::TOKEN, token);
    let _commands = client.join(request).await.expect("it is let in");
    let (_, _handle) = head.next_joined().await;
    let begin = Kind::Begin(proto::UploadBegin { checkpoint: Some(held("a.checkpoint").into()), bytes: 3 });
    let right = Kind::Checksum(blake3::hash(b"abc").as_bytes().to_vec());
    let data = |bytes: &[u8]| Kind::Data(bytes.to_vec());
    for (kinds, expected) in [
        (vec![begin.clone(), data(b"abd"), right.clone()], "its checksum is wrong"),
        (vec![begin.clone(), data(b"abc")], "it was cut off"),
        (vec![begin.clone(), data(b"abcd"), right.clone()], "longer than it was said"),
        (vec![data(b"abc"), right.clone()], "has to begin with"),
        (vec![begin.clone(), begin.clone()], "has data and a checksum"),
        (vec![], "has to begin with"),
    ] {
        let parts = kinds.into_iter().map(|kind| proto::UploadPart { kind: Some(kind) });
        let status =
            client.upload(tokio_stream::iter(parts.collect::<Vec<_>>())).await.expect_err("it is not whole");
        assert!(status.message().contains(expected), "{}", status.message());
    }
    let folder = head.scratch.0.join("checkpoints/3");
    let parts = [begin, data(b"ab"), data(b"c"), right].map(|kind| proto::UploadPart { kind: Some(kind) });
    client.upload(tokio_stream::iter(parts)).await.expect("it is whole");
    assert_eq!(names(folder), ["a.checkpoint"]);
}

/// Holds up those who look for a folder until it is opened, or the test has failed.
#[derive(Default)]
struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    fn open(&self) {
        *self.0.0.lock().expect("nobody panics") = true;
        self.0.1.notify_all();
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.open();
    }
}

/// Folders that take their time.
struct Slow {
    folders: Folders,
    open: Arc<(Mutex<bool>, Condvar)>,
}

impl CheckpointFolders for Slow {
    fn folder(&self, study: StudyId, trial: TrialId) -> Result<PathBuf, String> {
        let (open, changed) = &*self.open;
        let waited = changed.wait_while(open.lock().expect("nobody panics"), |open| !*open);
        drop(waited.expect("nobody panics"));
        self.folders.folder(study, trial)
    }

    fn is_checkpoint(&self, file: &str) -> bool {
        self.folders.is_checkpoint(file)
    }
}

/// Lets time pass, and everybody do what is due. Time does not pass by itself while a thread works.
async fn pass(time: Duration) {
    for _ in 0..time.as_secs() * 2 {
        advance(Duration::from_millis(500)).await;
        for _ in 0..200 {
            tokio::task::yield_now().await;
        }
    }
}

/// The head's disk does not answer, and all calls are full of what it should take.
#[tokio::test(start_paused = true)]
async fn uploads_that_stand_still_hold_up_no_heartbeat() {
    let scratch = Scratch::new();
    let gate = Gate::default();
    let folders = Folders(scratch.0.join("checkpoints"));
    let mut head = Head::with(scratch, Arc::new(Slow { folders, open: gate.0.clone() }));
    let (mut agent, _, _handle, _way) = head.joined().await;
    let local = head.scratch.0.join("local");
    fs::write(&local, contents(8 << 20)).expect("a file");
    let mut uploads = Vec::new();
    for number in 0..5 {
        let (transfer, local) = (agent.checkpoints.clone(), local.clone());
        let checkpoint = held(&format!("{number}.checkpoint"));
        uploads.push(tokio::spawn(async move { transfer.upload(&checkpoint, &local).await }));
    }
    pass(2 * LEASE).await;
    assert!(agent.ended.try_recv().is_err(), "the agent still hears that it is heard");
    assert!(head.heard.try_recv().is_err(), "the head still hears the agent");
    assert!(uploads.iter().all(|upload| !upload.is_finished()));
    gate.open();
    for upload in uploads {
        upload.await.expect("no panic").expect("it is sent");
    }
    assert_eq!(names(head.scratch.0.join("checkpoints/3")).len(), 5);
}

/// The agent does not take what it has asked for.
#[tokio::test(start_paused = true)]
async fn a_download_that_stands_still_holds_up_no_heartbeat() {
    let mut head = Head::new();
    let (mut agent, _, _handle, _way) = head.joined().await;
    let folder = head.scratch.0.join("checkpoints/3");
    fs::create_dir_all(&folder).expect("a folder");
    let mut downloads = Vec::new();
    for number in 0..5 {
        let file = format!("{number}.checkpoint");
        fs::write(folder.join(&file), contents(8 << 20)).expect("a file");
        let wanted = proto::DownloadRequest { checkpoint: Some(held(&file).into()) };
        downloads.push(agent.checkpoints.0.clone().download(wanted).await.expect("it comes").into_inner());
    }
    pass(2 * FENCE).await;
    assert!(agent.ended.try_recv().is_err() && head.heard.try_recv().is_err());
    for mut download in downloads {
        let mut bytes = 0;
        while let Some(part) = download.message().await.expect("it comes") {
            if let Some(proto::download_part::Kind::Data(data)) = part.kind {
                bytes += data.len();
            }
        }
        assert_eq!(bytes, 8 << 20);
    }
}

/// With its connection ends what is on its way, and nothing is left of it.
#[tokio::test]
async fn a_lost_agent_leaves_no_parts() {
    let mut head = Head::new();
    let (agent, _, _handle, way) = head.joined().await;
    let local = head.scratch.0.join("local");
    fs::write(&local, contents(32 << 20)).expect("a file");
    let folder = head.scratch.0.join("checkpoints/3");
    let (transfer, watched) = (agent.checkpoints.clone(), folder.clone());
    let upload = tokio::spawn(async move { transfer.upload(&held("a.checkpoint"), &local).await });
    while names(watched.clone()).is_empty() {
        tokio::task::yield_now().await;
    }
    way.up.send_replace(false);
    drop(agent);
    drop(head.open);
    upload.await.expect("no panic").expect_err("it is cut off");
    while !names(folder.clone()).is_empty() {
        tokio::task::yield_now().await;
    }
}

//! The agent of a machine that is not the head's: joins, serves, and joins again when its head was lost.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::mpsc,
    time::{self, Instant},
};

use super::{
    Error,
    serve::{Ended, Machine, serve},
    shipping,
};
use crate::{
    ids::StudyId,
    store::Folder,
    trials::agent::{AgentCommand, AgentEvent, AgentHello, Welcome},
    wire::{self, CheckpointTransfer, JoinFile, Secret, with_causes},
};

/// How long to wait before the head is called again; twice as long each time.
const REDIAL: Duration = Duration::from_millis(200);
const LONGEST_REDIAL: Duration = Duration::from_secs(5);
/// How much time is left after the signal that comes before the end of a job (`SIGUSR1`).
const AFTER_WARNING: Duration = Duration::from_secs(110);
/// How much time is left after `SIGTERM`, which is followed by `SIGKILL` after 30 s on most clusters.
const AFTER_TERM: Duration = Duration::from_secs(25);
/// Signals so close to each other are one request: `timeout` sends one to a process and one to its group.
const TOGETHER: Duration = Duration::from_secs(1);

/// Where the way to the head is written down.
#[derive(Debug, Clone)]
pub(crate) enum Join {
    /// A file that is read again each time: the head may listen elsewhere after a restart.
    File(PathBuf),
    /// What was read once.
    Known(Box<JoinFile>),
}

/// An agent as its user has described it.
pub(crate) struct RemoteAgent<'a> {
    pub(crate) join: Join,
    pub(crate) machine: Machine,
    /// The machine, as people call it.
    pub(crate) name: String,
    pub(crate) island: String,
    /// The job that it runs in.
    pub(crate) job: Option<String>,
    /// Where files are kept if the folder of the study is out of reach.
    pub(crate) scratch: PathBuf,
    /// Tells people what happens.
    pub(crate) notify: Box<dyn Fn(&str) + 'a>,
}

/// How an agent has come to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AgentEnd {
    /// The head needs it no longer, and says why.
    Told(String),
    /// The machine is taken away.
    TakenAway,
}

/// What the system wants of this process.
struct Signals {
    warning: Signal,
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn open() -> Result<Self, Error> {
        let open = |kind| signal(kind).map_err(Error::io("listening to signals"));
        Ok(Self {
            warning: open(SignalKind::user_defined1())?,
            terminate: open(SignalKind::terminate())?,
            interrupt: open(SignalKind::interrupt())?,
        })
    }

    /// Waits for any of them: how much time is left, and why.
    async fn next(&mut self) -> (Duration, &'static str) {
        tokio::select! {
            _ = self.warning.recv() => (AFTER_WARNING, "its time is almost over (SIGUSR1)"),
            _ = self.terminate.recv() => (AFTER_TERM, "it was asked to end (SIGTERM)"),
            _ = self.interrupt.recv() => (AFTER_TERM, "its user wants it to end (SIGINT)"),
        }
    }
}

impl RemoteAgent<'_> {
    /// Serves until the head needs this machine no longer, or the machine is taken away. To be called inside a `LocalSet`.
    pub(crate) async fn run(mut self) -> Result<AgentEnd, Error> {
        let mut signals = Signals::open()?;
        let incarnation = wire::random_number()?;
        let mut pause = REDIAL;
        loop {
            let joined = tokio::select! {
                joined = self.join(incarnation) => joined,
                _ = signals.next() => return Ok(AgentEnd::TakenAway),
            };
            match joined {
                Ok(joined) => {
                    pause = REDIAL;
                    (self.notify)(&joined.describe());
                    if let Some(end) = self.serve(joined, &mut signals).await? {
                        return Ok(end);
                    }
                }
                Err(Error::Wire(error)) if error.is_temporary() => {
                    if pause == REDIAL {
                        (self.notify)(&format!(
                            "the head cannot be reached, and is called until it can: {}",
                            with_causes(&error)
                        ));
                    }
                    tokio::select! {
                        () = time::sleep(pause) => {}
                        _ = signals.next() => return Ok(AgentEnd::TakenAway),
                    }
                    pause = (2 * pause).min(LONGEST_REDIAL);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Joins the head once.
    async fn join(&mut self, incarnation: u64) -> Result<Joined, Error> {
        let join = match &self.join {
            Join::File(path) => JoinFile::read(path)?,
            Join::Known(join) => (**join).clone(),
        };
        let head = wire::reach(&join).await?;
        if self.machine.address.is_none() {
            self.machine.address = Some(head.local());
        }
        let hello = AgentHello {
            build: wire::build().to_owned(),
            incarnation,
            name: self.name.clone(),
            address: self.machine.address,
            island: self.island.clone(),
            nodes: self.machine.nodes.clone(),
            ends_in_s: None,
            job: self.job.clone(),
            held: shipping::held(join.study, &Folder::new(&self.own(join.study))),
        };
        let mut connection = head.join(hello).await?;
        let Some(AgentCommand::Welcome(welcome)) = connection.commands.recv().await else {
            return Err(wire::Error::HeadAway {
                reason: "the head went before it had said anything".to_owned(),
            }
            .into());
        };
        let secret = join.worker_secret(welcome.epoch);
        Ok(Joined { connection, welcome: *welcome, secret })
    }

    /// One life, with a head: none if that was lost.
    async fn serve(&self, joined: Joined, signals: &mut Signals) -> Result<Option<AgentEnd>, Error> {
        let Joined { connection, welcome, secret } = joined;
        let wire::AgentConnection { events, mut commands, ended: why, checkpoints } = connection;
        let own = self.folder(&welcome).map_err(Error::io("making a folder for the study"))?;
        let (folder, transfer) = match own {
            None => (welcome.folder.clone(), None),
            Some(own) => {
                self.send_wanted(&welcome, &own, &checkpoints).await;
                (own, Some(checkpoints))
            }
        };
        let told = events.downgrade();
        // Closed when the connection has ended or the time is over: either way all that runs saves its state and ends.
        let (pass_on, mut passed) = mpsc::unbounded_channel();
        let mut pass_on = Some(pass_on);
        let mut deadline: Option<Instant> = None;
        let mut asked: Option<Instant> = None;
        let serving = serve(&self.machine, welcome, Some(folder), secret, transfer, &mut passed, events);
        let mut serving = std::pin::pin!(serving);
        loop {
            tokio::select! {
                ended = &mut serving => {
                    return Ok(match ended? {
                        Ended::Told(reason) => Some(AgentEnd::Told(reason)),
                        Ended::HeadLost if deadline.is_some() => Some(AgentEnd::TakenAway),
                        Ended::HeadLost => {
                            let why = why.await.map_or_else(|_| "it is gone".to_owned(), |why| why.to_string());
                            (self.notify)(&format!("the head is lost: {why}; it is called again"));
                            None
                        }
                    });
                }
                command = commands.recv(), if pass_on.is_some() => match (command, &pass_on) {
                    (Some(command), Some(to)) => drop(to.send(command)),
                    _ => pass_on = None,
                },
                (left, reason) = signals.next() => {
                    let over = Instant::now() + left;
                    if left == AFTER_TERM {
                        if asked.is_some_and(|asked| asked.elapsed() < TOGETHER) {
                            continue;
                        }
                        asked = Some(Instant::now());
                    }
                    // Who is asked twice wants it now.
                    let is_again = deadline.is_some() && left == AFTER_TERM;
                    deadline = Some(if is_again { Instant::now() } else { deadline.map_or(over, |set| set.min(over)) });
                    if let Some(told) = told.upgrade() {
                        let reason = reason.to_owned();
                        // A head that is gone is noticed above.
                        let _ = told.send(AgentEvent::Draining { within_s: left.as_secs_f64(), reason });
                    }
                    (self.notify)(&format!("{reason}: trials are to move away within {} s", left.as_secs()));
                }
                () = time::sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() && pass_on.is_some() => {
                    (self.notify)("the time is over");
                    pass_on = None;
                }
            }
        }
    }

    /// Where this machine keeps the files of a study that it does not share with the head.
    fn own(&self, study: StudyId) -> PathBuf {
        self.scratch.join(format!("pollux-tune-{study}"))
    }

    /// Sends what the head lacks. If that fails, the trials go on from older checkpoints.
    async fn send_wanted(&self, welcome: &Welcome, own: &Path, checkpoints: &CheckpointTransfer) {
        let folder = Folder::new(own);
        for checkpoint in &welcome.wanted {
            let path = folder.checkpoint(checkpoint.trial).join(&checkpoint.file);
            if let Err(error) = checkpoints.upload(checkpoint, &path).await {
                (self.notify)(&format!(
                    "{} cannot be sent to the head: {}",
                    path.display(),
                    with_causes(&error)
                ));
            }
        }
    }

    /// A folder for the study, if this machine does not share that of the head.
    fn folder(&self, welcome: &Welcome) -> io::Result<Option<PathBuf>> {
        if shares(welcome) {
            return Ok(None);
        }
        let own = self.own(welcome.study);
        let folder = Folder::new(&own);
        for path in [own.clone(), folder.checkpoints(), folder.logs()] {
            fs::create_dir_all(path)?;
        }
        Ok(Some(own))
    }
}

/// Whether this machine sees the same files as its head.
fn shares(welcome: &Welcome) -> bool {
    let found = fs::read_to_string(Folder::new(&welcome.folder).probe());
    !welcome.probe.is_empty() && found.is_ok_and(|found| found.trim() == welcome.probe)
}

/// A head that has let this agent in.
struct Joined {
    connection: wire::AgentConnection,
    welcome: Welcome,
    secret: Secret,
}

impl Joined {
    fn describe(&self) -> String {
        let nodes: Vec<String> = self.welcome.nodes.iter().map(ToString::to_string).collect();
        let what = if nodes.len() == 1 { "node" } else { "nodes" };
        format!("joined study {} as {what} {}", self.welcome.study, nodes.join(", "))
    }
}

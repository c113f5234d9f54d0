//! One start of a program, from its launch to the end of the last process that it has started.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    process::{ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use tokio::{
    io::AsyncReadExt,
    process::ChildStdout,
    sync::{
        mpsc::{UnboundedReceiver, UnboundedSender},
        oneshot,
    },
    time::{self, Instant},
};

use super::{
    Place,
    launch::Launch,
    lines::{Line, Lines},
    metrics_file::MetricsFile,
    report::Reports,
    surroundings::{Port, Surroundings},
};
use crate::{
    store::tail,
    trials::{
        agent::{AgentEvent, AgentSlot, ProgramLaunch},
        engine::{FailureCause, GroupEvent, Report},
    },
};

/// How much is read at a time.
const CHUNK: usize = 1 << 16;
/// How long to read on after the end of a program, if something that it has started holds its output open.
const AFTERMATH: Duration = Duration::from_secs(1);
const QUIET: Duration = Duration::from_millis(100);
/// How many characters of the last line of a program that has failed are in the first line of the reason.
const COMPLAINT: usize = 160;
/// How long to wait for a program that was killed, after its custody has given up: a file system or a driver may hold it.
const LET_GO: Duration = Duration::from_secs(60);
/// How often to look whether a program is silent, in the time that it may be.
const LOOKS: u32 = 8;
/// How often to look whether there is something new in the file of metrics.
const FILE_EVERY: Duration = Duration::from_millis(200);

/// One start of a program.
pub(super) struct Attempt {
    place: Arc<Place>,
    launch: ProgramLaunch,
    /// Its slots.
    places: Vec<AgentSlot>,
    events: UnboundedSender<AgentEvent>,
    /// Reports that the head has dealt with.
    taken: UnboundedReceiver<()>,
    reports: Reports,
}

/// Why an attempt is over.
enum Over {
    /// It was asked to end, and has so much time.
    Asked(Duration),
    /// The program has ended.
    Exited(io::Result<ExitStatus>),
    /// Nothing has come from it for too long.
    Silent(Duration),
}

/// How long a program may take to end when it is asked to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Grace {
    /// As long as it was launched with.
    Full,
    /// It is killed at once.
    None,
}

/// What a program prints.
struct Output {
    pipe: Option<ChildStdout>,
    chunk: Vec<u8>,
    lines: Lines,
    log: File,
    /// When something was last read, and how long the log was: errors go there without us.
    heard: Instant,
    logged: u64,
    /// What it writes to its file of metrics.
    metrics: MetricsFile,
}

impl Attempt {
    pub(super) fn new(
        place: Arc<Place>,
        launch: ProgramLaunch,
        places: Vec<AgentSlot>,
        events: UnboundedSender<AgentEvent>,
        taken: UnboundedReceiver<()>,
    ) -> Self {
        let reports = Reports::new(launch.epochs, &launch.objectives);
        Self { place, launch, places, events, taken, reports }
    }

    /// Runs the program to its end, or until it is to stop. When this returns, nothing of it is left.
    pub(super) async fn run(mut self, stop: &mut oneshot::Receiver<Grace>) {
        let folder = self.launch.folder.clone();
        if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
            let reason = format!("there is not a folder {} here (`trial.folder`)", folder.display());
            self.fail(reason, FailureCause::Trial);
            return;
        }
        // The port is its own until nothing of it is left.
        let (mut launch, mut output, _port) = match self.start() {
            Ok(started) => started,
            // The folder of the study or the system are not as they should be.
            Err(error) => {
                self.fail(format!("it cannot be started: {error}"), FailureCause::Environment);
                return;
            }
        };
        let over = tokio::select! {
            biased;
            grace = &mut *stop => Ok(Over::Asked(self.grace(grace.ok()))),
            begun = launch.begin() => match begun {
                Ok(()) => {
                    self.send(GroupEvent::Formed);
                    Ok(self.watch(&mut launch, &mut output, stop).await)
                }
                Err(refusal) => Err(refusal),
            },
        };
        match over {
            Ok(Over::Exited(status)) => {
                launch.custody.forget();
                self.read_rest(&mut output).await;
                self.ended(status);
            }
            Ok(Over::Asked(grace)) => {
                launch.custody.set_grace(grace);
                self.end(&mut launch, &mut output).await;
            }
            Ok(Over::Silent(limit)) => {
                self.end(&mut launch, &mut output).await;
                let reason = format!("it printed nothing for {limit:?} (`trial.silence`), and was ended");
                self.fail(reason, FailureCause::Infrastructure);
            }
            Err((reason, cause)) => {
                self.end(&mut launch, &mut output).await;
                self.fail(reason, cause);
            }
        }
        // What it has started may have outlived it.
        launch.custody.end().await;
    }

    /// How much time it has to end. A head that is lost needs it no longer.
    fn grace(&self, asked: Option<Grace>) -> Duration {
        match asked {
            Some(Grace::Full) => self.usual_grace(),
            Some(Grace::None) | None => Duration::ZERO,
        }
    }

    fn usual_grace(&self) -> Duration {
        Duration::try_from_secs_f64(self.launch.grace_s).unwrap_or_default()
    }

    fn start(&self) -> io::Result<(Launch, Output, Port)> {
        let (folder, trial) = (&self.place.folder, self.launch.trial);
        let home = folder.checkpoint(trial);
        fs::create_dir_all(&home)?;
        let json = serde_json::to_string(&self.launch.params)?;
        let file = home.join("params.json");
        fs::write(&file, &json)?;
        let (metrics, port) = (home.join("metrics.jsonl"), self.place.ports.reserve()?);
        let ready = MetricsFile::at(&metrics);
        let around = Surroundings {
            launch: &self.launch,
            places: &self.places,
            home: home.clone(),
            metrics,
            port: &port,
        };
        let mut log = OpenOptions::new().create(true).append(true).open(folder.log(trial))?;
        let words: Vec<String> = self.launch.words.iter().map(|word| around.fill_in(word)).collect();
        writeln!(log, "# {}", words.join(" "))?;
        let errors = log.try_clone()?;
        let mut launch = Launch::start(&self.place, words, &home, self.usual_grace(), |command| {
            command.stdout(Stdio::piped()).stderr(errors);
            around.dress(command, &json, &file);
        })?;
        let pipe = launch.child.stdout.take();
        let logged = log.metadata().map_or(0, |log| log.len());
        let (chunk, lines, heard) = (Vec::with_capacity(CHUNK), Lines::default(), Instant::now());
        Ok((launch, Output { pipe, chunk, lines, log, heard, logged, metrics: ready }, port))
    }

    /// Follows the program while it runs.
    async fn watch(
        &mut self,
        launch: &mut Launch,
        output: &mut Output,
        stop: &mut oneshot::Receiver<Grace>,
    ) -> Over {
        let silence = self.launch.silence_s.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        output.heard = Instant::now();
        let mut look = time::interval(silence.map_or(Duration::MAX, |limit| limit / LOOKS).max(SHORTEST));
        look.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
        let mut file = time::interval(FILE_EVERY);
        file.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
        loop {
            let due = self.reports.due_at();
            tokio::select! {
                biased;
                grace = &mut *stop => return Over::Asked(self.grace(grace.ok())),
                // Before its output: somebody else may go on printing.
                status = launch.child.wait() => return Over::Exited(status),
                () = time::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => self.report().await,
                () = output.read(), if output.pipe.is_some() => self.take(output).await,
                _ = file.tick() => self.take_file(output).await,
                _ = look.tick(), if silence.is_some() => {
                    if let Some(limit) = silence.filter(|limit| output.is_silent(*limit)) {
                        return Over::Silent(limit);
                    }
                }
            }
        }
    }

    /// Reads what the program had printed when it ended. If others hold its output open, that is not waited for.
    async fn read_rest(&mut self, output: &mut Output) {
        let over = Instant::now() + AFTERMATH;
        while output.pipe.is_some() && Instant::now() < over {
            if time::timeout(QUIET, output.read()).await.is_err() {
                break;
            }
            self.take(output).await;
        }
        output.pipe = None;
        self.take(output).await;
        let (mut complete, now) = (Vec::new(), Instant::now());
        output.metrics.finish(|line| {
            complete.extend(self.reports.take_marked(line));
            complete.extend(self.reports.due(now));
        });
        for report in complete {
            self.send_and_wait(report).await;
        }
    }

    /// Ends the program with all that it has started. What it prints meanwhile goes to the log.
    async fn end(&mut self, launch: &mut Launch, output: &mut Output) {
        let Launch { custody, child, .. } = launch;
        let mut ended = std::pin::pin!(in_time(custody.end(), child.wait()));
        let has_ended = loop {
            tokio::select! {
                biased;
                ended = &mut ended => break ended.is_some(),
                () = output.read(), if output.pipe.is_some() => output.log_lines(|_| {}),
            }
        };
        if has_ended {
            custody.forget();
        } else {
            // It stays known, so that no other program takes it for its own. It gets no further than to its end.
            tracing::error!(trial = %self.launch.trial, "a program does not end though it was killed: its slots are used again");
        }
        output.pipe = None;
        output.log_lines(|_| {});
    }

    /// Logs what was read, and reports what it has measured. The program waits meanwhile, once its pipe is full.
    async fn take(&mut self, output: &mut Output) {
        let (mut complete, now) = (Vec::new(), Instant::now());
        output.log_lines(|line| {
            complete.extend(self.reports.take(line));
            complete.extend(self.reports.due(now));
        });
        for report in complete {
            self.send_and_wait(report).await;
        }
    }

    /// Reports what it has written to its file of metrics.
    async fn take_file(&mut self, output: &mut Output) {
        let (mut complete, now) = (Vec::new(), Instant::now());
        let is_new = output.metrics.read(|line| {
            complete.extend(self.reports.take_marked(line));
            complete.extend(self.reports.due(now));
        });
        if is_new {
            output.heard = now;
        }
        for report in complete {
            self.send_and_wait(report).await;
        }
    }

    /// Sends the report that is due.
    async fn report(&mut self) {
        if let Some(report) = self.reports.due(Instant::now()) {
            self.send_and_wait(report).await;
        }
    }

    /// Waits until the head has dealt with a report, so that no more than one is on its way.
    async fn send_and_wait(&mut self, report: Report) {
        self.send(GroupEvent::Reported(report));
        // Without a head there is nothing to wait for.
        let _ = self.taken.recv().await;
    }

    fn send(&self, event: GroupEvent) {
        let ProgramLaunch { trial, generation, .. } = self.launch;
        // A head that is lost asks nobody.
        let _ = self.events.send(AgentEvent::Program { trial, generation, event });
    }

    fn ended(&mut self, status: io::Result<ExitStatus>) {
        let (rest, last) = self.reports.finish();
        if let Some(report) = rest {
            self.send(GroupEvent::Reported(report));
        }
        let status = match status {
            Ok(status) if status.success() => return self.send(GroupEvent::Finished(last)),
            Ok(status) => status,
            Err(error) => {
                return self.fail(format!("its end was missed: {error}"), FailureCause::Infrastructure);
            }
        };
        let log = self.place.folder.log(self.launch.trial);
        let output = tail(&log);
        let (how, fault) = match status.code() {
            Some(code) => (format!("it ended with exit code {code}"), FailureCause::Trial),
            // Whoever killed it had reasons that need not be the trial's fault.
            None => (format!("it was killed ({status})"), FailureCause::Infrastructure),
        };
        let why = complaint(&output).map_or_else(String::new, |line| format!(": {line}"));
        let output = if output.is_empty() { output } else { format!("\n{output}") };
        self.fail(format!("{how}{why}, see {}{output}", log.display()), fault);
    }

    fn fail(&self, reason: String, cause: FailureCause) {
        self.send(GroupEvent::Failed { reason, cause });
    }
}

/// What comes of the wait for a program that is made to end meanwhile; none if the system does not let it go even then.
async fn in_time<T>(end: impl Future<Output = ()>, wait: impl Future<Output = T>) -> Option<T> {
    let (mut end, mut wait) = (std::pin::pin!(end), std::pin::pin!(wait));
    tokio::select! {
        biased;
        ended = &mut wait => {
            end.await;
            Some(ended)
        }
        () = &mut end => time::timeout(LET_GO, wait).await.ok(),
    }
}

/// What a program has most likely failed for: its last line that is neither the command nor a report.
fn complaint(output: &str) -> Option<String> {
    let is_said = |line: &&str| !line.is_empty() && !line.starts_with(['#', '{']);
    let line = output.lines().rev().map(str::trim).find(is_said)?;
    let short: String = line.chars().take(COMPLAINT).collect();
    Some(if short.len() < line.len() { format!("{short}...") } else { short })
}

/// Timers need some time.
const SHORTEST: Duration = Duration::from_millis(1);

impl Output {
    /// Waits for more. At the end of the output, or what is as good as that, there is no more pipe.
    async fn read(&mut self) {
        let Some(pipe) = &mut self.pipe else { return };
        if !matches!(pipe.read_buf(&mut self.chunk).await, Ok(bytes) if bytes > 0) {
            self.pipe = None;
        }
        self.heard = Instant::now();
    }

    /// Writes the lines that were read to the log, and shows them.
    fn log_lines(&mut self, mut show: impl FnMut(&str)) {
        let mut text = Vec::with_capacity(self.chunk.len());
        let mut each = |Line { text: line, lost }: Line<'_>| {
            text.extend_from_slice(line);
            if lost > 0 {
                text.extend_from_slice(format!(" [{lost} bytes more, cut off]").as_bytes());
            } else {
                show(&String::from_utf8_lossy(line));
            }
            text.push(b'\n');
        };
        self.lines.take(&self.chunk, &mut each);
        if self.pipe.is_none() {
            self.lines.finish(&mut each);
        }
        self.chunk.clear();
        // A full disk is reported by those who must write.
        let _ = self.log.write_all(&text);
    }

    /// Whether nothing has come for so long, neither here nor in the log.
    fn is_silent(&mut self, limit: Duration) -> bool {
        let logged = self.log.metadata().map_or(0, |log| log.len());
        if logged != self.logged {
            (self.logged, self.heard) = (logged, Instant::now());
        }
        self.heard.elapsed() >= limit
    }
}

#[cfg(test)]
mod tests {
    use std::{env, process};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_program_that_the_system_holds_is_not_waited_for_without_end() {
        use std::future::{pending, ready};
        assert_eq!(in_time(ready(()), pending::<()>()).await, None);
        assert_eq!(in_time(ready(()), async { time::sleep(LET_GO / 2).await }).await, Some(()));
        assert_eq!(in_time(time::sleep(LET_GO * 2), ready(7)).await, Some(7));
    }

    /// Errors of a program go to the log without us.
    #[tokio::test(start_paused = true)]
    async fn who_prints_errors_is_not_silent() {
        let path = env::temp_dir().join(format!("pollux-silent-{}", process::id()));
        let log = File::create(&path).expect("it can be written");
        let (chunk, lines, heard) = (Vec::new(), Lines::default(), Instant::now());
        let metrics = MetricsFile::at(&path.with_extension("jsonl"));
        let mut output = Output { pipe: None, chunk, lines, log, heard, logged: 0, metrics };
        let limit = Duration::from_secs(10);
        time::advance(Duration::from_secs(9)).await;
        assert!(!output.is_silent(limit));
        let mut errors = OpenOptions::new().append(true).open(&path).expect("it is there");
        writeln!(errors, "epoch 1").expect("it can be written");
        time::advance(Duration::from_secs(9)).await;
        assert!(!output.is_silent(limit));
        time::advance(Duration::from_secs(10)).await;
        assert!(output.is_silent(limit));
        fs::remove_file(&path).expect("it is there");
    }
}

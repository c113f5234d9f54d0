//! `pollux-tune ask-tell`: the search for programs in any language, as lines of JSON.

mod error;
mod import;
mod protocol;

use std::{
    io::{BufRead, Write},
    path::{Path, PathBuf},
};

pub(crate) use self::{error::Error, import::read, protocol::Share};
use self::{
    import::Imported,
    protocol::{Ranked, Reply, Report, Request, Status, Tell, plain_json},
};
use super::{
    output::pluralize,
    study,
    warm_start::{self, Earlier},
};
use crate::{
    cli,
    ids::TrialId,
    space::Study,
    store::{self, KeptSearch},
    trials::{self, End, State, Verdict, stopping::EndKind},
};

/// What the user asked for.
pub(crate) struct Settings {
    pub(crate) study: PathBuf,
    pub(crate) folder: Option<PathBuf>,
    /// Of an earlier version.
    pub(crate) journal: Option<PathBuf>,
    pub(crate) warm_start: Vec<PathBuf>,
}

/// Answers requests until the input ends.
pub(crate) fn run(
    settings: &Settings,
    input: &mut impl BufRead,
    out: &mut impl Write,
    stderr: &mut impl Write,
) -> Result<(), cli::Error> {
    let (_, study) = study::load(&settings.study, stderr)?;
    // Read before anything is written.
    let earlier = warm_start::read(&settings.warm_start, &study)?;
    let kept = KeptSearch::in_memory(&study)
        .map_err(|source| cli::Error::SearchOf { file: settings.study.clone(), source })?;
    let mut session = Session { kept };
    if let Some(folder) = folder(settings) {
        session.open(&folder, settings, &study, stderr)?;
    }
    session.warm_start(earlier, stderr)?;
    session.converse(input, out)
}

/// Answers requests about a study that is kept nowhere, until the input ends.
pub fn answer_requests(
    study: &Study,
    input: &mut impl BufRead,
    out: &mut impl Write,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    Ok(Session { kept: KeptSearch::in_memory(study)? }.converse(input, out)?)
}

/// Where the study is kept: a journal of an earlier version has its folder next to it.
fn folder(settings: &Settings) -> Option<PathBuf> {
    let next_to = |journal: &PathBuf| match journal.extension() {
        _ if journal.is_dir() => journal.clone(),
        Some(_) => journal.with_extension(""),
        None => journal.with_extension("study"),
    };
    settings.folder.clone().or_else(|| settings.journal.as_ref().map(next_to))
}

/// Errors of the store, in the words of this command.
fn refused(error: store::Error) -> cli::Error {
    match error {
        store::Error::InUse(path) => Error::InUse(path).into(),
        store::Error::OtherStudy { path, differences, same_objectives } => {
            // Other studies with these objectives can be learned from.
            let remedy = if same_objectives { ", or pass this one to --warm-start" } else { "" };
            Error::OtherStudy { path, differences, remedy }.into()
        }
        error => error.into(),
    }
}

struct Session {
    kept: KeptSearch,
}

/// What is wrong with a request.
struct BadRequest(String);

impl From<trials::Error> for BadRequest {
    fn from(error: trials::Error) -> Self {
        Self(error.to_string())
    }
}

impl Session {
    /// Opens the folder of the study, with what an earlier version left if the study begins.
    fn open(
        &mut self,
        folder: &Path,
        settings: &Settings,
        study: &Study,
        stderr: &mut impl Write,
    ) -> Result<(), cli::Error> {
        let is_new = warm_start::is_new(folder)?;
        // With a folder of its own, a journal that is missing is a mistake.
        let is_wanted = |path: &&PathBuf| !path.is_dir() && (settings.folder.is_some() || path.exists());
        let journal = settings.journal.as_ref().filter(|path| is_new && is_wanted(path));
        let imported = journal.map(|path| import::read_begun(path)).transpose()?.flatten();
        let facts = imported.as_ref().map_or(&[][..], |imported| &imported.facts);
        self.kept = KeptSearch::open_with(folder, study, facts).map_err(refused)?;
        if let Some(Imported { file, .. }) = imported {
            let _ = writeln!(stderr, "{}: imported into {}", file.display(), folder.display());
        } else if let (true, None, Some(file)) = (is_new, &settings.folder, &settings.journal) {
            let _ = writeln!(stderr, "{}: kept in the folder {}", file.display(), folder.display());
        }
        let asked = self.kept.search().trials().len();
        if asked > 0 {
            let (running, asked) = (self.status().running.len(), pluralize(asked, "trial"));
            let _ =
                writeln!(stderr, "{}: resuming after {asked}, {running} of them running", folder.display());
        }
        self.keep()
    }

    /// A study that has started learned from earlier ones when it did.
    fn warm_start(&mut self, earlier: Vec<Earlier>, stderr: &mut impl Write) -> Result<(), cli::Error> {
        if self.kept.search().trials().len() > 0 || self.kept.search().learned() > 0 {
            return Ok(());
        }
        for study in earlier {
            study.teach(self.kept.search_mut(), stderr);
        }
        self.keep()
    }

    /// Answers each line of the input, until it ends.
    fn converse(&mut self, input: &mut impl BufRead, out: &mut impl Write) -> Result<(), cli::Error> {
        for (number, line) in (1..).zip(input.split(b'\n')) {
            let line = line.map_err(cli::Error::Stdin)?;
            if line.trim_ascii().is_empty() {
                continue;
            }
            for reply in self.answer(&line, number)? {
                serde_json::to_writer(&mut *out, &reply).map_err(|error| cli::Error::Stdout(error.into()))?;
                out.write_all(b"\n").map_err(cli::Error::Stdout)?;
            }
            out.flush().map_err(cli::Error::Stdout)?;
        }
        Ok(())
    }

    /// Journals what became true, before it is answered.
    fn keep(&mut self) -> Result<(), cli::Error> {
        Ok(self.kept.keep()?)
    }

    fn answer(&mut self, line: &[u8], number: usize) -> Result<Vec<Reply>, cli::Error> {
        let text = str::from_utf8(line).map_err(|error| BadRequest(format!("no UTF-8: {error}")));
        let request = text.and_then(|text| {
            // A request is one line, which the reply names itself.
            let wrong = |error: serde_json::Error| error.to_string().replace("at line 1 column", "at column");
            serde_json::from_str(&plain_json(text)).map_err(|error| BadRequest(wrong(error)))
        });
        let replies = request.and_then(|request| self.handle(request, number));
        let replies = replies.unwrap_or_else(|BadRequest(error)| vec![Reply::Error { error, line: number }]);
        self.keep()?;
        Ok(replies)
    }

    fn handle(&mut self, request: Request, number: usize) -> Result<Vec<Reply>, BadRequest> {
        Ok(match request {
            Request::Ask(count) => return self.ask(count, number),
            Request::Report(report) => vec![self.report(&report)?],
            Request::Tell(tell) => vec![self.tell(tell)?],
            Request::Enqueue(params) => {
                self.kept.search_mut().enqueue(&params)?;
                vec![Reply::Enqueued { enqueued: self.kept.search().waiting() }]
            }
            Request::Best(count) => vec![Reply::best(self.kept.search().best(count))],
            Request::Front {} => {
                let front = self.kept.search().pareto_front().into_iter().map(Ranked::from).collect();
                vec![Reply::Front { front }]
            }
            Request::Importance {} => {
                let importance = self.kept.search().importance(0)?.into_iter().map(Share::from).collect();
                vec![Reply::Importance { importance }]
            }
            Request::Status {} => vec![Reply::Status { status: self.status() }],
        })
    }

    fn ask(&mut self, count: u32, number: usize) -> Result<Vec<Reply>, BadRequest> {
        if count == 0 {
            return Err(BadRequest("`ask` is 0; expected 1 or more".to_owned()));
        }
        let mut replies = Vec::new();
        for _ in 0..count {
            match self.kept.ask() {
                Ok(trial) => replies.push(Reply::Trial { id: trial.id.0, params: trial.params }),
                Err(error) if error.is_end() => {
                    replies.push(Reply::Finished { finished: error.to_string() });
                    break;
                }
                // Running trials must be able to report.
                Err(error) => {
                    replies.push(Reply::Error { error: error.to_string(), line: number });
                    break;
                }
            }
        }
        Ok(replies)
    }

    fn report(&mut self, &Report { id, epochs, value }: &Report) -> Result<Reply, BadRequest> {
        match self.kept.search_mut().report(TrialId(id), epochs, value) {
            Ok(Verdict::Continue) => Ok(Reply::Verdict { id, stop: false, reason: None }),
            Ok(Verdict::Stop(reason)) => {
                Ok(Reply::Verdict { id, stop: true, reason: Some(reason.to_string()) })
            }
            // Its client may not know.
            Err(trials::Error::Ended(_, End::Stopped(why))) => {
                Ok(Reply::Verdict { id, stop: true, reason: Some(why.to_string()) })
            }
            Err(trials::Error::Ended(_, End::Failed(why) | End::Cancelled(why))) => {
                Ok(Reply::Verdict { id, stop: true, reason: Some(why) })
            }
            Err(error) => Err(error.into()),
        }
    }

    fn tell(&mut self, tell: Tell) -> Result<Reply, BadRequest> {
        let id = tell.id;
        let end = tell.end().map_err(|problem| BadRequest(problem.to_owned()))?;
        self.kept.search_mut().tell(TrialId(id), end)?;
        let end = self.kept.search().trial(TrialId(id)).map(|trial| &trial.state);
        let state = if let Some(State::Ended(end)) = end { end.kind() } else { EndKind::Failed };
        Ok(Reply::Ended { id, state })
    }

    fn status(&self) -> Status {
        let trials = self.kept.search().study().search.trials;
        let mut status = Status { trials, learned: self.kept.search().learned(), ..Status::default() };
        for trial in self.kept.search().trials() {
            status.asked += 1;
            match &trial.state {
                State::Running => status.running.push(trial.into()),
                State::Ended(end) => match end.kind() {
                    EndKind::Done => status.done += 1,
                    EndKind::Stopped => status.stopped += 1,
                    EndKind::Cancelled => status.cancelled += 1,
                    EndKind::Failed => status.failed += 1,
                },
            }
        }
        status
    }
}

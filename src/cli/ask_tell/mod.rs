//! `pollux-tune ask-tell`: the search for programs in any language, as lines of JSON.

mod journal;
mod protocol;

use std::{
    io::{BufRead, Write},
    path::{Path, PathBuf},
};

use crate::{
    ids::TrialId,
    space::Study,
    trials::{self, End, Fact, Search, State},
};

use self::{
    journal::Journal,
    protocol::{Ending, Ranked, Report, Request, Status, Tell, plain_json},
};
pub(crate) use self::{
    journal::{Error as JournalError, read},
    protocol::{Reply, Share},
};
use super::{Error, output::pluralize, study};

/// What the user asked for.
pub(crate) struct Settings {
    pub(crate) study: PathBuf,
    pub(crate) journal: Option<PathBuf>,
    pub(crate) warm_start: Vec<PathBuf>,
}

/// Answers requests until the input ends.
pub(crate) fn run(
    settings: &Settings,
    input: &mut impl BufRead,
    out: &mut impl Write,
    stderr: &mut impl Write,
) -> Result<(), Error> {
    let (yaml, study) = study::load(&settings.study, stderr)?;
    // Read before anything is written.
    let earlier = settings.warm_start.iter().map(|file| earlier(file)).collect::<Result<Vec<_>, Error>>()?;
    for (file, search) in &earlier {
        check_objectives(file, search.study(), &study)?;
    }
    let search =
        Search::new(&study).map_err(|source| Error::SearchOf { file: settings.study.clone(), source })?;
    let mut session = match &settings.journal {
        Some(path) => {
            let (journal, search) = Journal::open(path, &yaml, &study)?;
            Session { search, journal: Some(journal) }
        }
        None => Session { search, journal: None },
    };
    session.greet(settings.journal.as_deref(), stderr);
    session.warm_start(&earlier, stderr)?;
    for (number, line) in (1..).zip(input.split(b'\n')) {
        let line = line.map_err(Error::Stdin)?;
        if line.trim_ascii().is_empty() {
            continue;
        }
        for reply in session.answer(&line, number)? {
            serde_json::to_writer(&mut *out, &reply).map_err(|error| Error::Stdout(error.into()))?;
            out.write_all(b"\n").map_err(Error::Stdout)?;
        }
        out.flush().map_err(Error::Stdout)?;
    }
    Ok(())
}

/// The trials of an earlier study that ended.
fn earlier(file: &Path) -> Result<(PathBuf, Search), Error> {
    let contents = read(file)?;
    let study = contents.study.clone();
    Ok((file.to_owned(), contents.replay(file, &study)?))
}

/// A value of one objective means nothing for another one.
fn check_objectives(file: &Path, theirs: &Study, ours: &Study) -> Result<(), JournalError> {
    if theirs.objectives == ours.objectives {
        return Ok(());
    }
    let goals = |study: &Study| {
        let goals = study.objectives.iter().map(|goal| format!("{} {}", goal.direction, goal.metric));
        goals.collect::<Vec<_>>().join(" and ")
    };
    Err(JournalError::OtherObjectives { file: file.to_owned(), theirs: goals(theirs), ours: goals(ours) })
}

struct Session {
    search: Search,
    journal: Option<Journal>,
}

/// Why a request has no answer: a mistake in it, or the end of everything.
enum Trouble {
    Request(String),
    Fatal(Error),
}

impl From<trials::Error> for Trouble {
    fn from(error: trials::Error) -> Self {
        Self::Request(error.to_string())
    }
}

impl From<JournalError> for Trouble {
    fn from(error: JournalError) -> Self {
        Self::Fatal(error.into())
    }
}

impl Session {
    fn greet(&self, journal: Option<&Path>, stderr: &mut impl Write) {
        let Some(path) = journal else { return };
        let asked = self.search.trials().len();
        if asked > 0 {
            let running = self.status().running.len();
            let _ = writeln!(
                stderr,
                "{}: resuming after {}, {running} of them running",
                path.display(),
                pluralize(asked, "trial")
            );
        }
    }

    /// A study that has begun learned from earlier ones when it did.
    fn warm_start(&mut self, earlier: &[(PathBuf, Search)], stderr: &mut impl Write) -> Result<(), Error> {
        if self.search.trials().len() > 0 || self.search.learned() > 0 {
            return Ok(());
        }
        let mut facts = Vec::new();
        for (file, search) in earlier {
            let (known, mut ended) = (facts.len(), 0);
            for trial in search.trials() {
                let State::Ended(end) = &trial.state else { continue };
                ended += 1;
                let (params, end) = (trial.params.clone(), end.clone());
                let fact = Fact::Learned { params, end, last: trial.last };
                if self.search.apply(fact.clone()).is_ok() {
                    facts.push(fact);
                }
            }
            let learned = facts.len() - known;
            let others = if learned < ended { "; the others are not of this space" } else { "" };
            let of = pluralize(ended, "trial");
            let _ = writeln!(stderr, "{}: learned from {learned} of {of}{others}", file.display());
        }
        match &mut self.journal {
            Some(journal) if !facts.is_empty() => Ok(journal.append_learned(&facts)?),
            _ => Ok(()),
        }
    }

    fn keep(&mut self, fact: &Fact) -> Result<(), JournalError> {
        self.journal.as_mut().map_or(Ok(()), |journal| journal.append(fact))
    }

    fn answer(&mut self, line: &[u8], number: usize) -> Result<Vec<Reply>, Error> {
        let text = str::from_utf8(line).map_err(|error| Trouble::Request(format!("no UTF-8: {error}")));
        let request = text.and_then(|text| {
            // A request is one line, which the reply names itself.
            let wrong = |error: serde_json::Error| error.to_string().replace("at line 1 column", "at column");
            serde_json::from_str(&plain_json(text)).map_err(|error| Trouble::Request(wrong(error)))
        });
        match request.and_then(|request| self.handle(request, number)) {
            Ok(replies) => Ok(replies),
            Err(Trouble::Request(error)) => Ok(vec![Reply::Error { error, line: number }]),
            Err(Trouble::Fatal(error)) => Err(error),
        }
    }

    fn handle(&mut self, request: Request, number: usize) -> Result<Vec<Reply>, Trouble> {
        Ok(match request {
            Request::Ask(count) => return self.ask(count, number),
            Request::Report(report) => vec![self.report(&report)?],
            Request::Tell(tell) => vec![self.tell(tell)?],
            Request::Enqueue(params) => {
                self.search.enqueue(&params)?;
                self.keep(&Fact::Enqueued { params })?;
                vec![Reply::Enqueued { enqueued: self.search.waiting() }]
            }
            Request::Best(count) => vec![Reply::best(self.search.best(count))],
            Request::Front {} => {
                let front = self.search.pareto_front().into_iter().map(Ranked::from).collect();
                vec![Reply::Front { front }]
            }
            Request::Importance {} => {
                let importance = self.search.importance(0)?.into_iter().map(Share::from).collect();
                vec![Reply::Importance { importance }]
            }
            Request::Status {} => vec![Reply::Status { status: self.status() }],
        })
    }

    fn ask(&mut self, count: u32, number: usize) -> Result<Vec<Reply>, Trouble> {
        if count == 0 {
            return Err(Trouble::Request("`ask` is 0, allowed is 1 or more".to_owned()));
        }
        let mut replies = Vec::new();
        for _ in 0..count {
            match self.search.ask() {
                Ok(trial) => {
                    let (id, params) = (trial.id, trial.params);
                    let fact = Fact::Asked { id, params: params.clone(), point: Some(trial.point) };
                    self.keep(&fact)?;
                    replies.push(Reply::Trial { id: id.0, params });
                }
                Err(error) if error.is_end() => {
                    replies.push(Reply::Finished { finished: error.to_string() });
                    break;
                }
                // Trials that have begun must be heard of.
                Err(error) => {
                    replies.push(Reply::Error { error: error.to_string(), line: number });
                    break;
                }
            }
        }
        Ok(replies)
    }

    fn report(&mut self, &Report { id, epochs, value }: &Report) -> Result<Reply, Trouble> {
        let trial = TrialId(id);
        match self.search.report(trial, epochs, value) {
            Ok(_) => self.keep(&Fact::Reported { id: trial, epochs, value })?,
            // Its client may not have heard of it.
            Err(trials::Error::Ended(_, End::Stopped(why) | End::Failed(why) | End::Cancelled(why))) => {
                return Ok(Reply::Verdict { id, stop: true, reason: Some(why) });
            }
            Err(error) => return Err(error.into()),
        }
        match self.search.trial(trial).map(|trial| trial.state.clone()) {
            Some(State::Ended(end)) => {
                let reason = match &end {
                    End::Stopped(why) | End::Failed(why) | End::Cancelled(why) => Some(why.clone()),
                    End::Done(_) => None,
                };
                self.keep(&Fact::Ended { id: trial, end })?;
                Ok(Reply::Verdict { id, stop: true, reason })
            }
            Some(State::Running) | None => Ok(Reply::Verdict { id, stop: false, reason: None }),
        }
    }

    fn tell(&mut self, tell: Tell) -> Result<Reply, Trouble> {
        let id = tell.id;
        let end = tell.end().map_err(|problem| Trouble::Request(problem.to_owned()))?;
        self.search.tell(TrialId(id), end.clone())?;
        let state = ending(&end);
        self.keep(&Fact::Ended { id: TrialId(id), end })?;
        Ok(Reply::Told { id, state })
    }

    fn status(&self) -> Status {
        let trials = self.search.study().search.trials;
        let mut status = Status { trials, learned: self.search.learned(), ..Status::default() };
        for trial in self.search.trials() {
            status.asked += 1;
            match &trial.state {
                State::Running => status.running.push(trial.into()),
                State::Ended(end) => match ending(end) {
                    Ending::Done => status.done += 1,
                    Ending::Stopped => status.stopped += 1,
                    Ending::Cancelled => status.cancelled += 1,
                    Ending::Failed => status.failed += 1,
                },
            }
        }
        status
    }
}

/// What becomes of a trial; a result that is not a number is none.
fn ending(end: &End) -> Ending {
    match end {
        End::Done(values) if values.iter().all(|value| value.is_finite()) => Ending::Done,
        End::Done(_) | End::Failed(_) => Ending::Failed,
        End::Stopped(_) => Ending::Stopped,
        End::Cancelled(_) => Ending::Cancelled,
    }
}

//! What is whole of a study on disk, and how that is kept when the rest is damaged.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use rusqlite::Connection;

use super::{
    Error, Folder,
    digest::Chain,
    facts::{self, Facts},
    place::sync_folder,
    seal::{Claim, Seal, Sealer},
    sqlite,
    tables::{Flaw, SLOTS, SPANS, STUDY, Summary, TRIALS},
    writer::{beside, write_new},
};
use crate::{
    ids::{StudyId, TrialId},
    trials::engine::{Fact, State},
};

/// How a study on disk was found.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Examination {
    /// Which study it is; none if that cannot be known, or in a journal of an earlier version.
    pub study: Option<StudyId>,
    /// So many facts are whole, from the first one on.
    pub facts: u64,
    /// So many there must have been.
    pub written: u64,
    /// Trials with a result among the facts that are whole.
    pub results: u64,
    /// Trials whose end is among the facts that are not whole, as far as these can be read.
    pub lost: Vec<TrialId>,
    /// What is wrong; nothing if all is whole.
    pub problems: Vec<String>,
}

/// What was done about a damaged study.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Repair {
    /// How it was found.
    pub found: Examination,
    /// Where the damaged files are now; none if all was whole.
    pub damaged: Option<PathBuf>,
}

/// Looks whether a study is whole: its facts, their number, and the tables that follow from them. Nothing is changed.
pub fn examine(root: &Path) -> Result<Examination, Error> {
    Ok(Salvage::read(&Folder::new(root))?.0)
}

/// Makes a damaged study whole again: with all facts up to the first that is not. The files as they were are kept.
/// Fails if the study runs, or if there is nothing to keep.
pub fn repair(root: &Path) -> Result<Repair, Error> {
    let folder = Folder::new(root);
    if !folder.journal().exists() {
        folder.check_nothing_is_lost()?;
        return Err(Error::NoStudy(root.to_owned()));
    }
    let lock = folder.lock()?;
    let (found, salvage) = Salvage::read(&folder)?;
    if found.problems.is_empty() {
        return Ok(Repair { found, damaged: None });
    }
    let Some(study) = found.study.filter(|_| found.facts > 0) else {
        let problem = "no fact in it is whole, so there is nothing to keep: restore it from a copy";
        return Err(Error::Damaged { path: folder.journal(), problem: problem.to_owned() });
    };
    let damaged = beside(&root.join("journal"), "damaged");
    replace(&folder, &damaged, study, salvage)?;
    folder.sign(&lock, Some(study))?;
    Ok(Repair { found, damaged: Some(damaged) })
}

/// Puts a new journal with the facts that are whole in place of the damaged files, which are moved away.
fn replace(folder: &Folder, damaged: &Path, study: StudyId, salvage: Salvage) -> Result<(), Error> {
    let (path, new) = (folder.journal(), folder.root().join("journal.sqlite.new"));
    let io = |source| Error::io("write", &path, source);
    if new.exists() {
        fs::remove_file(&new).map_err(io)?;
    }
    let Salvage { connection, facts } = salvage;
    let mut facts = Facts::all(&path, Chain::begin(study)).until(facts);
    let claim = write_new(&new, study, &mut facts, &connection)?;
    // Nobody may look at the files that go.
    drop(connection);
    let put = || -> io::Result<()> {
        File::open(&new)?.sync_all()?;
        fs::create_dir(damaged)?;
        fs::copy(&path, damaged.join("journal.sqlite"))?;
        // They belong to the old journal and would spoil the new one.
        for file in [folder.wal(), folder.root().join("journal.sqlite-shm"), folder.seal()] {
            if let Some(name) = file.file_name().filter(|_| file.exists()) {
                fs::rename(&file, damaged.join(name))?;
            }
        }
        sync_folder(damaged)?;
        fs::rename(&new, &path)?;
        sync_folder(folder.root())
    };
    put().map_err(io)?;
    Sealer::create(folder, study, claim).map(drop)
}

/// What can be read of a journal.
struct Salvage {
    connection: Connection,
    /// So many facts are whole, from the first one on.
    facts: u64,
}

impl Salvage {
    fn read(folder: &Folder) -> Result<(Examination, Self), Error> {
        let mut problems = Vec::new();
        let seal = Seal::read(folder).unwrap_or_else(|error| {
            problems.push(told(&error));
            None
        });
        let (connection, form) = sqlite::open_reader(folder)?;
        let path = folder.journal();
        problems.extend(structure(&connection));
        let is_present = form == sqlite::VERSION;
        let own = if is_present { sqlite::study_id(&connection, &path).ok() } else { None };
        let runner = folder.last_runner().and_then(|runner| runner.study);
        // The right one is that from which the facts follow.
        let candidates = [own, seal.as_ref().map(|seal| seal.study), runner];
        let follows = |study: &StudyId| {
            let first = Facts::all(&path, Chain::begin(*study)).first(&connection);
            first.is_ok_and(|first| first.is_some())
        };
        let study = candidates.into_iter().flatten().find(follows).or(own);
        if is_present && study != own {
            problems.push("the id of the study cannot be read".to_owned());
        }
        let mut facts = match study.filter(|_| is_present) {
            Some(study) => Facts::all(&path, Chain::begin(study)),
            None => Facts::unchecked(&path),
        };
        let (mut results, mut state) = (0, State::default());
        let whole = facts.read::<Error>(&connection, |entry| {
            state.apply(&entry).map_err(|source| Error::OutOfPlace { path: path.clone(), source })?;
            results += u64::from(matches!(entry.fact, Fact::TrialDone { .. }));
            Ok(())
        });
        problems.extend(whole.as_ref().err().map(told));
        let kept = state.facts;
        let mut written = kept;
        if is_present {
            if let Err(error) = facts::check_seal(&connection, &path, seal.as_ref()) {
                problems.push(told(&error));
            }
            let here = facts.chain.map(|chain| Claim { facts: kept, chain });
            let (claimed, flaws) = tables(&connection, here);
            problems.extend(flaws);
            let claims = seal.iter().flat_map(Seal::claims).map(|claim| claim.facts);
            written = claims.chain(claimed).fold(kept, u64::max);
        }
        let lost = beyond(&connection, kept);
        problems.dedup();
        let salvage = Self { connection, facts: kept };
        Ok((Examination { study, facts: kept, written, results, lost, problems }, salvage))
    }
}

/// An error without the name of the file and without advice, which are told once.
fn told(error: &Error) -> String {
    match error {
        Error::NotWhole { problem, .. } => problem.clone(),
        error => error.to_string(),
    }
}

/// What `SQLite` finds wrong.
fn structure(connection: &Connection) -> Vec<String> {
    let check = || -> rusqlite::Result<Vec<String>> {
        let mut check = connection.prepare("PRAGMA integrity_check(5)")?;
        check.query_map([], |row| row.get::<_, String>(0))?.collect()
    };
    let found = check().unwrap_or_else(|error| vec![error.to_string()]);
    let found = found.into_iter().filter(|line| line != "ok");
    found.map(|line| line.replace('\n', " ")).collect()
}

/// How many facts the tables follow from, if that can be read, and what is wrong with them.
fn tables(connection: &Connection, here: Option<Claim>) -> (Option<u64>, Vec<String>) {
    let summary = match Summary::read(connection) {
        Ok(summary) => summary,
        Err(flaw) => return (None, vec![flaw.describe()]),
    };
    let all = [
        (&TRIALS, summary.sums.trials),
        (&SPANS, summary.sums.spans),
        (&SLOTS, summary.sums.slots),
        (&STUDY, summary.sums.study),
    ];
    let flaws = all.into_iter().filter_map(|(table, sum)| table.all(connection, "", sum, |_| Ok(())).err());
    let mut flaws: Vec<String> = flaws.map(|flaw: Flaw| flaw.describe()).collect();
    if here != Some(Claim { facts: summary.facts, chain: summary.chain }) {
        flaws.push("the tables do not follow from the facts that are whole".to_owned());
    }
    (Some(summary.facts), flaws)
}

/// Trials whose end can be read among the facts after a place.
fn beyond(connection: &Connection, kept: u64) -> Vec<TrialId> {
    let read = || -> rusqlite::Result<Vec<u32>> {
        let ends = "SELECT trial FROM facts WHERE seq > ? AND trial IS NOT NULL AND kind IN \
                    ('trial_done', 'trial_stopped', 'trial_failed', 'trial_cancelled')";
        let mut ends = connection.prepare(ends)?;
        let ends = ends.query_map([kept.cast_signed()], |row| row.get::<_, u32>(0))?;
        Ok(ends.map_while(Result::ok).collect())
    };
    let lost: BTreeSet<u32> = read().unwrap_or_default().into_iter().collect();
    lost.into_iter().map(TrialId).collect()
}

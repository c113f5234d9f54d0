//! Which studies there are, and what is known of each.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{Commands, Error, model::Model};
use crate::{
    store::{Annotations, Folder, Reader},
    wire::with_causes,
};

/// All studies that the page shows. Those that are begun later in a folder of studies join.
pub(super) struct Studies {
    folders: Vec<PathBuf>,
    known: Mutex<BTreeMap<String, Arc<Watched>>>,
    commands: Arc<dyn Commands>,
}

/// A study and what is known of it.
pub(super) struct Watched {
    /// Its name in addresses.
    pub(super) key: String,
    pub(super) folder: PathBuf,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// With the file that it reads: another one may take its place.
    reader: Option<(Reader, u64)>,
    model: Model,
    problem: Option<String>,
    /// By objective and number of finished trials.
    importance: BTreeMap<(usize, usize), Vec<(String, f64)>>,
}

/// A study at one moment.
pub(super) struct View<'a> {
    pub(super) key: &'a str,
    pub(super) folder: Folder,
    pub(super) model: &'a Model,
    /// Why it cannot be read on.
    pub(super) problem: Option<&'a str>,
    /// A process runs it.
    pub(super) is_run: bool,
}

impl View<'_> {
    /// What people have written about it. A file that cannot be read is a matter of the commands that change it.
    pub(super) fn notes(&self) -> Annotations {
        Annotations::read(&self.folder).unwrap_or_default()
    }
}

impl Studies {
    /// Those in these folders: there must be one in each at least, or the folder itself must be one.
    pub(super) fn new(folders: &[PathBuf], commands: Arc<dyn Commands>) -> Self {
        let studies = Self { folders: folders.to_vec(), known: Mutex::default(), commands };
        studies.look();
        studies
    }

    /// Fails if a folder has no study.
    pub(super) fn check(&self) -> Result<(), Error> {
        let missing = self.folders.iter().find(|folder| found(folder).is_empty());
        missing.map_or(Ok(()), |folder| Err(Error::NoStudy(folder.clone())))
    }

    /// Finds studies that are new.
    fn look(&self) {
        let mut known = lock(&self.known);
        let there: BTreeSet<PathBuf> = known.values().map(|study| study.folder.clone()).collect();
        for folder in self.folders.iter().flat_map(|folder| found(folder)) {
            if !there.contains(&folder) {
                let key = key(&folder, |key| known.contains_key(key));
                let inner = Mutex::default();
                known.insert(key.clone(), Arc::new(Watched { key, folder, inner }));
            }
        }
    }

    /// All of them, in the order of their names.
    pub(super) fn all(&self) -> Vec<Arc<Watched>> {
        self.look();
        lock(&self.known).values().cloned().collect()
    }

    pub(super) fn get(&self, key: &str) -> Option<Arc<Watched>> {
        let known = || lock(&self.known).get(key).cloned();
        known().or_else(|| {
            self.look();
            known()
        })
    }

    pub(super) fn commands(&self) -> &dyn Commands {
        &*self.commands
    }
}

impl Watched {
    /// Looks at the study as it is now.
    pub(super) fn view<T>(&self, commands: &dyn Commands, look: impl FnOnce(&View<'_>) -> T) -> T {
        let mut inner = lock(&self.inner);
        inner.refresh(&self.folder, commands);
        let is_run = inner.reader.as_ref().is_some_and(|(reader, _)| reader.is_run());
        let folder = Folder::new(&self.folder);
        let Inner { model, problem, .. } = &*inner;
        look(&View { key: &self.key, folder, model, problem: problem.as_deref(), is_run })
    }

    /// Changes whenever there is something new to see.
    pub(super) fn version(&self) -> (u64, bool) {
        let mut inner = lock(&self.inner);
        if inner.reader.is_none() {
            inner.open(&self.folder);
        }
        let facts = |(reader, _): &(Reader, u64)| (reader.facts().unwrap_or_default(), reader.is_run());
        inner.reader.as_ref().map_or((0, false), facts)
    }

    /// What was computed for an objective when so many trials had finished, or is now. Others need not wait for it.
    pub(super) fn importance<E>(
        &self,
        at: (usize, usize),
        compute: impl FnOnce() -> Result<Vec<(String, f64)>, E>,
    ) -> Result<Vec<(String, f64)>, E> {
        if let Some(shares) = lock(&self.inner).importance.get(&at) {
            return Ok(shares.clone());
        }
        let shares = compute()?;
        let mut inner = lock(&self.inner);
        inner.importance.retain(|(objective, _), _| *objective != at.0);
        inner.importance.insert(at, shares.clone());
        Ok(shares)
    }
}

impl Inner {
    fn open(&mut self, folder: &Path) {
        let place = Folder::new(folder);
        match Reader::open(folder) {
            Ok(reader) => {
                *self = Self { reader: Some((reader, file_number(&place))), ..Self::default() };
            }
            Err(error) => *self = Self { problem: Some(with_causes(&error)), ..Self::default() },
        }
    }

    /// Reads what is new.
    fn refresh(&mut self, folder: &Path, commands: &dyn Commands) {
        let number = file_number(&Folder::new(folder));
        if self.reader.as_ref().is_none_or(|(_, opened)| *opened != number) {
            self.open(folder);
        }
        let Some((reader, _)) = &self.reader else { return };
        let from = self.model.state.facts;
        let model = &mut self.model;
        let read = reader.facts().map_err(|error| with_causes(&error)).and_then(|facts| {
            if facts == from {
                return Ok(());
            }
            let take = |entry| model.apply(&entry, commands).map_err(Unreadable::from);
            reader.replay_from(from, take).map_err(|problem| problem.0)
        });
        if let Err(problem) = read {
            // Whatever was read is shown; next time it is tried from the beginning.
            self.problem = Some(problem);
            self.reader = None;
        }
    }
}

/// Why facts cannot be read.
struct Unreadable(String);

impl<E: std::error::Error + 'static> From<E> for Unreadable {
    fn from(error: E) -> Self {
        Self(with_causes(&error))
    }
}

/// What a journal is known by on its disk; 0 if there is none.
fn file_number(folder: &Folder) -> u64 {
    fs::metadata(folder.journal()).map_or(0, |file| file.ino())
}

/// Nothing here is left half done by a panic: models are read again.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The studies in a folder, or it alone if it is one.
fn found(folder: &Path) -> Vec<PathBuf> {
    let is_study = |path: &Path| Folder::new(path).journal().exists();
    if is_study(folder) {
        return vec![folder.to_owned()];
    }
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut studies: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| is_study(path)).collect();
    studies.sort();
    studies
}

/// A name for addresses that is not taken yet.
fn key(folder: &Path, is_taken: impl Fn(&str) -> bool) -> String {
    let whole = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    let name = whole.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' };
    let name: String = name.chars().map(plain).collect();
    let name = if name.is_empty() { "study".to_owned() } else { name };
    if !is_taken(&name) {
        return name;
    }
    let numbered = (2..).map(|number: u32| format!("{name}-{number}"));
    numbered.into_iter().find(|name| !is_taken(name)).unwrap_or(name)
}

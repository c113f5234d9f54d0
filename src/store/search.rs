//! A search that is kept in the folder of a study, for those who run the trials themselves: the same journal as that of a run.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use super::{Error, Journal, Opening, Store};
use crate::{
    ids::{Generation, GpuType, NodeId, SlotId, TrialId},
    space::Study,
    trials::{
        self, Search, Trial,
        engine::{Fact, JournalEntry, State},
    },
};

/// Where trials of other programs run, for all we know.
const CLIENT: &str = "client";

/// A [`Search`] whose facts are kept in a folder, or nowhere. Whoever changes it calls [`keep`](Self::keep) before anybody hears of it.
///
/// ```
/// use pollux_tune::{space::Study, store::KeptSearch};
///
/// # let folder = std::env::temp_dir().join(format!("pollux-tune-kept-{}", std::process::id()));
/// let study = Study::from_yaml("study.yaml", "{space: {x: {float: [0, 1]}}, objective: {minimize: loss}}")?;
/// let mut kept = KeptSearch::open(&folder, &study)?;
/// let trial = kept.ask()?;
/// kept.keep()?;
/// drop(kept);
/// let kept = KeptSearch::open(&folder, &study)?;
/// assert_eq!(kept.search().trial(trial.id), Some(&trial));
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct KeptSearch {
    search: Search,
    store: Option<Store>,
    /// There are no more suggestions.
    is_exhausted: bool,
}

impl KeptSearch {
    /// A search that lasts as long as the process.
    pub fn in_memory(study: &Study) -> Result<Self, trials::Error> {
        Ok(Self { search: Search::new(study)?, store: None, is_exhausted: false })
    }

    /// Opens or begins the study in a folder, for which nobody else may write until this is dropped.
    pub fn open(folder: &Path, study: &Study) -> Result<Self, Error> {
        Self::open_with(folder, study, &[])
    }

    /// The same; a study that begins takes over facts of an earlier form.
    pub(crate) fn open_with(folder: &Path, study: &Study, imported: &[Fact]) -> Result<Self, Error> {
        let opening = Store::begin(folder)?;
        let path = opening.folder().journal();
        let study = continued(folder, study, &opening)?;
        let mut search = Search::new(&study)?;
        let store = opening.replay(|entry| {
            let damaged =
                |problem: trials::Error| Error::Damaged { path: path.clone(), problem: problem.to_string() };
            search.apply(entry).map_err(damaged)
        })?;
        let before = store.state().filter(|state| state.facts > 0);
        let (mut facts, yaml) = (Vec::new(), study.to_yaml());
        if let Some(state) = before {
            if state.done && search.is_finished() {
                return Ok(Self { search, store: Some(store), is_exhausted: false });
            }
            facts.push(Fact::HeadStarted {});
            if state.yaml != yaml {
                facts.push(Fact::StudyChanged { yaml: yaml.clone() });
            }
        } else {
            facts.extend([Fact::StudyCreated { yaml: yaml.clone() }, Fact::HeadStarted {}]);
            for fact in imported {
                search.apply(&JournalEntry { at_s: 0.0, fact: fact.clone() })?;
                facts.push(fact.clone());
            }
        }
        store.write_study(&yaml)?;
        let mut kept = Self { search, store: Some(store), is_exhausted: false };
        kept.write(facts)?;
        Ok(kept)
    }

    /// How the search stands.
    #[must_use]
    pub const fn search(&self) -> &Search {
        &self.search
    }

    /// To report, tell, enqueue and learn.
    pub const fn search_mut(&mut self) -> &mut Search {
        &mut self.search
    }

    /// Starts a trial: see [`Search::ask`].
    pub fn ask(&mut self) -> Result<Trial, trials::Error> {
        let asked = self.search.ask();
        self.is_exhausted |= asked.as_ref().is_err_and(trials::Error::is_end);
        asked
    }

    /// Writes down what became true. Once this returns, it survives a crash of the machine.
    pub fn keep(&mut self) -> Result<(), Error> {
        let mut facts = self.search.take_facts();
        let Some(store) = &self.store else { return Ok(()) };
        let is_running = |trial: &Trial| trial.state == trials::State::Running;
        if (self.is_exhausted || self.search.is_finished())
            && !store.state().is_some_and(|state| state.done)
            && !self.search.trials().any(is_running)
        {
            facts.push(Fact::StudyDone {});
        }
        if facts.is_empty() { Ok(()) } else { self.write(facts) }
    }

    fn write(&mut self, facts: Vec<Fact>) -> Result<(), Error> {
        let Some(store) = &mut self.store else { return Ok(()) };
        let mut lanes = Lanes::of(store.state());
        let mut all = Vec::new();
        for fact in facts {
            lanes.add(fact, &mut all);
        }
        let today_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let at_s = store.state().map_or(today_s, |state| today_s.max(state.at_s));
        let entries: Vec<JournalEntry> = all.into_iter().map(|fact| JournalEntry { at_s, fact }).collect();
        store.append(&entries)?;
        store.sync()
    }
}

/// Begins a study in a folder that has none, with what is known from earlier ones. Whoever runs it resumes there.
#[cfg(feature = "cli")]
pub(crate) fn begin_with(folder: &Path, study: &Study, imported: Vec<Fact>) -> Result<(), Error> {
    let mut store = Store::open(folder)?;
    if !store.is_empty() {
        return Ok(());
    }
    let yaml = study.to_yaml();
    store.write_study(&yaml)?;
    let at_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let facts = std::iter::once(Fact::StudyCreated { yaml }).chain(imported);
    let entries: Vec<JournalEntry> = facts.map(|fact| JournalEntry { at_s, fact }).collect();
    store.append(&entries)?;
    store.sync()
}

/// The study as it goes on in its folder: trials of one study make no sense in another one.
fn continued(folder: &Path, ours: &Study, opening: &Opening) -> Result<Study, Error> {
    let has_trials = opening.has_trials()?;
    let Some(theirs) = opening.study()?.filter(|_| has_trials) else { return Ok(ours.clone()) };
    ours.continuing(&theirs).map_err(|differences| {
        let differences: Vec<String> = differences.iter().map(ToString::to_string).collect();
        Error::OtherStudy {
            path: folder.to_owned(),
            differences: differences.join("; "),
            same_objectives: theirs.objectives == ours.objectives,
        }
    })
}

/// Which trial runs where: each of them has a slot of its own as long as its client works on it, on a node that stands for the
/// client. So `status` and `timeline` show what runs.
struct Lanes {
    joined: BTreeSet<NodeId>,
    /// With the generation.
    running: BTreeMap<TrialId, (NodeId, Generation)>,
    /// Trials that have no slot at the moment, with their last generation.
    waiting: BTreeMap<TrialId, Generation>,
}

impl Lanes {
    fn of(state: Option<&State>) -> Self {
        let mut lanes = Self { joined: BTreeSet::new(), running: BTreeMap::new(), waiting: BTreeMap::new() };
        let Some(state) = state else { return lanes };
        lanes.joined = state.nodes.keys().copied().collect();
        for (&trial, active) in &state.active {
            match active.slots().first() {
                Some(slot) => _ = lanes.running.insert(trial, (slot.node, active.generation)),
                None => _ = lanes.waiting.insert(trial, active.generation),
            }
        }
        lanes
    }

    /// Adds a fact, and what it means for the slots.
    fn add(&mut self, mut fact: Fact, to: &mut Vec<Fact>) {
        match &mut fact {
            Fact::HeadStarted {} => {
                self.joined.clear();
                let running = mem::take(&mut self.running);
                self.waiting.extend(running.into_iter().map(|(trial, (_, generation))| (trial, generation)));
            }
            Fact::TrialCreated { trial, .. } => _ = self.waiting.insert(*trial, Generation::NONE),
            Fact::Measured { trial, generation, .. } => {
                *generation = self.running.get(trial).map_or(*generation, |(_, current)| *current);
            }
            Fact::TrialDone { trial, .. }
            | Fact::TrialStopped { trial, .. }
            | Fact::TrialFailed { trial, .. }
            | Fact::TrialCancelled { trial, .. } => _ = self.running.remove(trial),
            _ => {}
        }
        to.push(fact);
        for (trial, before) in mem::take(&mut self.waiting) {
            self.start(trial, before.next(), to);
        }
    }

    fn start(&mut self, trial: TrialId, generation: Generation, to: &mut Vec<Fact>) {
        let busy: BTreeSet<NodeId> = self.running.values().map(|(node, _)| *node).collect();
        // The first gap, or the end.
        let gap = (0..).zip(&busy).find(|(free, node)| node.0 != *free);
        let node = NodeId(gap.map_or(busy.len() as u32, |(free, _)| free));
        if self.joined.insert(node) {
            let gpu_type = GpuType::new(CLIENT).expect("the name is not empty");
            to.push(Fact::NodeJoined { node, name: String::new(), gpu_type, island: 0, slots: 1 });
        }
        let slots = vec![SlotId { node, index: 0 }];
        to.push(Fact::TrialStarted { trial, generation, slots, batch: None, holders: Vec::new() });
        to.push(Fact::GroupFormed { trial, generation });
        self.running.insert(trial, (node, generation));
    }
}

//! The folder of an `ask-tell` study: the same journal as that of `run`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Display,
    mem,
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use super::{Error, import::Imported};
use crate::{
    cli,
    ids::{Generation, GpuType, NodeId, SlotId, TrialId},
    space::Study,
    store::{self, Journal, Opening, Store},
    trials::{
        Search,
        engine::{Fact, JournalEntry, State},
    },
};

/// Where trials of other programs run, for all we know.
const CLIENT: &str = "client";

/// An open study; nobody else writes to it.
pub(super) struct Record {
    store: Store,
}

impl Record {
    /// Opens or begins the study in a folder, and says how the search stands. A study that begins takes over what was imported.
    pub(super) fn open(
        folder: &Path,
        study: &Study,
        imported: Option<&Imported>,
    ) -> Result<(Self, Search), cli::Error> {
        let opening = Store::begin(folder).map_err(|error| match error {
            store::Error::InUse(path) => cli::Error::from(Error::InUse(path)),
            error => error.into(),
        })?;
        let path = opening.folder().journal();
        let study = continued(folder, study, &opening)?;
        let mut search = Search::new(&study)?;
        let store = opening
            .replay(|entry| search.apply(entry).map_err(|error| cli::Error::from(damaged(&path, &error))))?;
        let mut record = Self { store };
        let before = record.store.state().filter(|state| state.facts > 0);
        let (mut facts, yaml) = (Vec::new(), study.to_yaml());
        if let Some(state) = before {
            if state.done && search.is_finished() {
                return Ok((record, search));
            }
            facts.push(Fact::HeadStarted {});
            if state.yaml != yaml {
                facts.push(Fact::StudyChanged { yaml: yaml.clone() });
            }
        } else {
            facts.extend([Fact::StudyCreated { yaml: yaml.clone() }, Fact::HeadStarted {}]);
            for fact in imported.into_iter().flat_map(|imported| &imported.facts) {
                search.apply(&JournalEntry { at_s: 0.0, fact: fact.clone() })?;
                facts.push(fact.clone());
            }
        }
        record.store.write_study(&yaml)?;
        record.write(facts)?;
        Ok((record, search))
    }

    /// Once this returns, the facts survive a crash of the machine.
    pub(super) fn write(&mut self, facts: Vec<Fact>) -> Result<(), store::Error> {
        let mut lanes = Lanes::of(self.store.state());
        let mut all = Vec::new();
        for fact in facts {
            lanes.add(fact, &mut all);
        }
        let today_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let at_s = self.store.state().map_or(today_s, |state| today_s.max(state.at_s));
        let entries: Vec<JournalEntry> = all.into_iter().map(|fact| JournalEntry { at_s, fact }).collect();
        self.store.append(&entries)?;
        self.store.sync()
    }

    /// Whether the journal says that all is over.
    pub(super) fn is_done(&self) -> bool {
        self.store.state().is_some_and(|state| state.done)
    }
}

fn damaged(path: &Path, problem: &dyn Display) -> store::Error {
    store::Error::Damaged { path: path.to_owned(), problem: problem.to_string() }
}

/// The study as it goes on in its folder: trials of one study make no sense in another one.
fn continued(folder: &Path, ours: &Study, opening: &Opening) -> Result<Study, cli::Error> {
    let has_trials = opening.has_trials()?;
    let Some(theirs) = opening.study()?.filter(|_| has_trials) else { return Ok(ours.clone()) };
    ours.continuing(&theirs).map_err(|differences| {
        // Other studies with these objectives can be learned from.
        let remedy =
            if theirs.objectives == ours.objectives { ", or pass this one to --warm-start" } else { "" };
        let differences: Vec<String> = differences.iter().map(ToString::to_string).collect();
        Error::OtherStudy { path: folder.to_owned(), differences: differences.join("; "), remedy }.into()
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

//! What follows from each input, as values. `tests/core/engine.rs` puts a small random world around the engine.

mod elastic;
mod failures;
mod json;
mod limits;
mod memory;
mod nodes;
mod programs;
mod rifts;
mod rigid;
mod user;
mod waiting;

use std::collections::BTreeMap;

use super::*;
use crate::{
    alloc::{Allocation, Plan, Reason, TrialPlacement},
    ids::{GpuType, NodeId, SlotId},
};

const ELASTIC: &str = "
space: {x: {float: [0, 1]}}
objective: {minimize: loss}
trial: {trainable: toy, epochs: 8, initial_batch: 64, max_batch: 512}
search: {trials: 3, parallel: 2, algorithm: random, early_stopping: {rule: asha, grace: 1, reduction: 2}}
scheduler: {interval: 60s}
";

fn study(yaml: &str) -> Study {
    Study::from_yaml("study.yaml", yaml).expect("it is a study")
}

/// An engine with those who answer its questions.
struct Scene {
    engine: Engine,
    suggesting: SuggestService,
    journal: Vec<JournalEntry>,
    now_s: f64,
}

impl Scene {
    /// A study that has started, at time 0.
    fn new(yaml: &str) -> Self {
        let study = study(yaml);
        let engine = Engine::new(&study, TrialKind::of(&study)).expect("it is a good study");
        let suggesting = SuggestService::new(&study).expect("it can be searched");
        let mut scene = Self { engine, suggesting, journal: Vec::new(), now_s: 0.0 };
        scene.input(Input::Started);
        scene
    }

    /// The same with this number of slots on a node.
    fn with_nodes(yaml: &str, slots: &[u32]) -> Self {
        let mut scene = Self::new(yaml);
        for (node, slots) in (0..).zip(slots) {
            scene.input(node_joined(node, *slots));
        }
        scene
    }

    fn input(&mut self, input: Input) -> (Vec<Fact>, Vec<Command>) {
        let step = self.engine.handle(input, self.now_s);
        for entry in &step.facts {
            self.suggesting.apply(entry).expect("the suggester understands");
        }
        self.journal.extend(step.facts.iter().cloned());
        (step.facts.into_iter().map(|entry| entry.fact).collect(), step.commands)
    }

    /// Lets time pass, up to when the engine wants to be woken.
    fn pass(&mut self, seconds: f64) -> (Vec<Fact>, Vec<Command>) {
        self.now_s += seconds;
        self.input(Input::Tick)
    }

    /// A group has failed.
    fn fail(&mut self, trial: u32, generation: u32, cause: FailureCause) -> (Vec<Fact>, Vec<Command>) {
        let reason = "bad luck".to_owned();
        let event = GroupEvent::Failed { reason, cause };
        self.input(Input::group(TrialId(trial), Generation(generation), event))
    }

    /// The head is gone, and the next one replays the journal.
    fn restart(&mut self) -> (Vec<Fact>, Vec<Command>) {
        let (study, kind) = (self.engine.study.clone(), self.engine.kind);
        let mut engine = Engine::new(&study, kind).expect("as before");
        let mut suggesting = SuggestService::new(&study).expect("as before");
        for entry in &self.journal {
            engine.apply(entry).expect("it is a journal");
            suggesting.apply(entry).expect("it is a journal");
        }
        assert_eq!(engine.state(), self.engine.state());
        (self.engine, self.suggesting) = (engine, suggesting);
        self.input(Input::Started)
    }

    /// Answers the question that is open.
    fn suggest(&mut self) -> (Vec<Fact>, Vec<Command>) {
        let revision = self.engine.pending.ask.expect("it has asked");
        let answer = self.suggesting.ask(self.engine.state.next_trial());
        self.input(Input::Suggested { revision, answer })
    }

    fn fit(&mut self, trial: u32, answer: Option<Refit>) -> (Vec<Fact>, Vec<Command>) {
        let trial = TrialId(trial);
        let revision = self.engine.pending.fits[&trial];
        self.input(Input::FitDone { revision, trial, answer })
    }

    /// Answers with a number of GPUs on each node for each trial.
    fn plan(&mut self, shares: &[(u32, &[(u32, u32)])]) -> (Vec<Fact>, Vec<Command>) {
        let revision = self.engine.pending.solve.expect("it has asked");
        self.input(Input::PlanSolved { revision, answer: Ok(plan(shares)), places: None })
    }

    fn ready(&mut self, trial: u32, generation: u32) -> (Vec<Fact>, Vec<Command>) {
        self.input(Input::group(TrialId(trial), Generation(generation), GroupEvent::Formed))
    }

    fn report(
        &mut self,
        trial: u32,
        generation: u32,
        number: u32,
        at: (f64, f64),
    ) -> (Vec<Fact>, Vec<Command>) {
        let report = Report { number, epochs: at.0, metrics: loss(at.1), ..Report::default() };
        self.input(Input::group(TrialId(trial), Generation(generation), GroupEvent::Reported(report)))
    }

    fn lose(&mut self, node: u32, index: u32) -> (Vec<Fact>, Vec<Command>) {
        let slot = SlotId { node: NodeId(node), index };
        self.input(Input::WorkerLost { slot, reason: "killed".to_owned() })
    }

    fn trial(&self, trial: u32) -> &ActiveTrial {
        &self.engine.state.active[&TrialId(trial)]
    }

    /// Two elastic trials of generation 1, the first on all slots of node 0, the second on all of node 1.
    fn two_running(slots: u32) -> Self {
        let mut scene = Self::with_nodes(ELASTIC, &[slots, slots]);
        for trial in 0..2 {
            scene.suggest();
            scene.fit(trial, None);
        }
        scene.plan(&[(0, &[(0, slots)]), (1, &[(1, slots)])]);
        for trial in 0..2 {
            scene.ready(trial, 1);
        }
        scene
    }

    /// Brings up the question for a plan.
    fn ask_for_plan(&mut self) {
        self.now_s += 60.0;
        let (_, commands) = self.input(Input::Tick);
        assert!(matches!(commands[..], [Command::Allocate(AllocatorRequest::Solve { .. })]), "{commands:?}");
    }
}

fn node_joined(node: u32, slots: u32) -> Input {
    let gpu_type = GpuType::new("t4").expect("it is a name");
    Input::NodeJoined { node: NodeId(node), name: String::new(), gpu_type, island: 0, slots }
}

fn slots(places: &[(u32, u32)]) -> Vec<SlotId> {
    places.iter().map(|&(node, index)| SlotId { node: NodeId(node), index }).collect()
}

fn plan(shares: &[(u32, &[(u32, u32)])]) -> Plan {
    let decision = |(trial, nodes): &(u32, &[(u32, u32)])| TrialPlacement {
        trial: TrialId(*trial),
        allocation: nodes.iter().map(|&(node, gpus)| (NodeId(node), gpus)).collect::<Allocation>(),
        speedup: 1.0,
        reason: Reason::Started,
    };
    Plan { placements: shares.iter().map(decision).collect(), fitness: 1.0, fitness_bound: None }
}

fn loss(value: f64) -> Metrics {
    BTreeMap::from([("loss".to_owned(), value.into())])
}

/// The kinds of facts, in order.
fn kinds(facts: &[Fact]) -> Vec<&'static str> {
    facts.iter().map(Fact::kind).collect()
}

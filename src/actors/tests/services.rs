use actix::Actor;
use tokio::sync::mpsc::UnboundedReceiver;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use super::{drain, exits, in_virtual_time, probe, settle, study};
use crate::{
    actors::{
        allocator::{Allocator, AllocatorService},
        error::Error,
        exit::SessionExit,
        message::{EngineInput, FactsAppended, ForAllocator, ForSuggester},
        scripted::{Script, ScriptedAllocator},
        suggester::{Suggester, TakeSearch},
    },
    alloc::{Allocation, Cluster, Node},
    goodput::NoiseScale,
    ids::{Generation, GpuType, NodeId, TrialId},
    space::Study,
    trials::engine::{
        AllocateService, AllocationSnapshot, AllocatorRequest, Fact, Input, JournalEntry, SuggestRequest,
        SuggestService, Suggestion, TrialSnapshot,
    },
};

const ELASTIC: &str = "trial: {trainable: net, epochs: 8, initial_batch: 64, max_batch: 512}";

fn entry(fact: Fact) -> JournalEntry {
    JournalEntry { at_s: 0.0, fact }
}

fn appended(fact: Fact) -> FactsAppended {
    FactsAppended(vec![entry(fact)].into())
}

/// A fact about a trial that was never created.
fn nonsense() -> FactsAppended {
    appended(Fact::TrialDone { trial: TrialId(5), values: vec![0.5] })
}

async fn input(inputs: &mut UnboundedReceiver<EngineInput>) -> Input {
    inputs.recv().await.expect("an answer").input
}

#[test]
fn a_suggester_answers_with_the_revision_and_learns_from_facts() {
    in_virtual_time(async {
        let ((supervisor, mut inputs), (exit, mut exits)) = (probe::<EngineInput>(), exits());
        let service = SuggestService::new(&study("search: {trials: 9}")).expect("a study");
        let suggester = Suggester::new(service, supervisor, &exit).start();
        let ask = |revision, trial| ForSuggester(SuggestRequest { revision, trial: TrialId(trial) });
        suggester.do_send(ask(7, 0));
        let Input::Suggested { revision: 7, answer: Ok(first) } = input(&mut inputs).await else {
            panic!("7")
        };
        // As long as no trial was made of it, it is the answer.
        suggester.do_send(ask(8, 0));
        assert_eq!(input(&mut inputs).await, Input::Suggested { revision: 8, answer: Ok(first.clone()) });
        let Suggestion { params, point } = first.clone();
        suggester.do_send(appended(Fact::TrialCreated { trial: TrialId(0), params, point }));
        suggester.do_send(ask(9, 1));
        let Input::Suggested { revision: 9, answer: Ok(second) } = input(&mut inputs).await else {
            panic!("9")
        };
        assert_ne!(first, second);
        suggester.do_send(appended(Fact::TrialDone { trial: TrialId(0), values: vec![0.5] }));
        let search = suggester.send(TakeSearch).await.expect("it lives").expect("nobody took it before");
        assert_eq!(search.best(1).len(), 1);
        assert!(drain(&mut exits).is_empty());
    });
}

#[test]
fn services_that_do_not_understand_a_fact_end_the_session() {
    in_virtual_time(async {
        let ((supervisor, _inputs), (exit, mut exits)) = (probe::<EngineInput>(), exits());
        let service = SuggestService::new(&study("")).expect("a study");
        Suggester::new(service, supervisor, &exit).start().do_send(nonsense());
        let ended = exits.recv().await;
        assert!(matches!(ended, Some(SessionExit::Failed(Error::Engine(_)))), "{ended:?}");
    });
}

fn snapshot(gpus: &[u32], current: &[u32], attained_gpu_s: f64) -> AllocationSnapshot {
    let mut cluster = Cluster::new();
    for (node, &gpus) in (0..).zip(gpus) {
        let gpu_type = GpuType::new("cpu").expect("a name");
        cluster.add(NodeId(node), Node { gpu_type, gpus, island: 0 }).expect("a node");
    }
    let trial = TrialSnapshot {
        id: TrialId(0),
        fit: None,
        noise: NoiseScale::ZERO.into(),
        current: current.iter().map(|node| (NodeId(*node), 1)).collect::<Allocation>(),
        age_s: 0.0,
        reallocations: 0,
        delay_s: 5.0,
        horizon_s: 15.0,
        attained_gpu_s,
        promise: 1.0,
        remaining_epochs: 8.0,
        pace: None,
    };
    AllocationSnapshot { cluster, trials: vec![trial], batch_limits: BTreeMap::new(), to_come: 1 }
}

#[test]
fn an_allocator_answers_with_the_revision() {
    in_virtual_time(async {
        let ((supervisor, mut inputs), (exit, _exits)) = (probe::<EngineInput>(), exits());
        let service = AllocateService::new(&study(ELASTIC)).expect("a study");
        let allocator = Allocator::new(Box::new(service), supervisor, &exit).start();
        allocator.do_send(ForAllocator(AllocatorRequest::Fit { revision: 3, trial: TrialId(0) }));
        let nothing = Input::FitDone { revision: 3, trial: TrialId(0), answer: None };
        assert_eq!(input(&mut inputs).await, nothing, "it does not know of the trial");
        let snapshot = Box::new(snapshot(&[1], &[], 0.0));
        allocator.do_send(ForAllocator(AllocatorRequest::Solve { revision: 4, snapshot }));
        let Input::PlanSolved { revision: 4, answer: Ok(plan), .. } = input(&mut inputs).await else {
            panic!("4")
        };
        assert_eq!(plan.placements[0].allocation.gpus(), 1);
        settle().await;
        assert!(drain(&mut inputs).is_empty());
    });
}

/// A study with a script, and what it wants.
fn scripted(wanted: &[u32], is_adaptive: bool) -> (Study, Script) {
    let wanted = Arc::new(Mutex::new(wanted.to_vec()));
    (study(ELASTIC), Script { wanted, slots: 3, is_adaptive })
}

/// The nodes that a scripted allocator gives to the trial; none if it is to wait.
fn placed(allocator: &mut ScriptedAllocator, snapshot: AllocationSnapshot) -> Option<Vec<u32>> {
    let request = AllocatorRequest::Solve { revision: 1, snapshot: Box::new(snapshot) };
    let Input::PlanSolved { revision: 1, answer: Ok(plan), .. } = allocator.answer(&request) else {
        panic!("1")
    };
    let nodes = |allocation: &Allocation| allocation.iter().map(|(node, _)| node.0).collect();
    plan.placements.first().map(|placement| nodes(&placement.allocation))
}

#[test]
fn a_script_names_the_slots() {
    let (study, script) = scripted(&[2, 0], false);
    let wanted = script.wanted.clone();
    let mut allocator = ScriptedAllocator::new(script, AllocateService::new(&study).expect("a study"));
    assert_eq!(placed(&mut allocator, snapshot(&[1, 1], &[], 0.0)), None, "a slot is still to join");
    assert_eq!(placed(&mut allocator, snapshot(&[1, 1, 1], &[], 0.0)), Some(vec![0, 2]));
    *wanted.lock().expect("a script") = vec![1];
    assert_eq!(placed(&mut allocator, snapshot(&[1, 1, 1], &[0, 2], 9.0)), Some(vec![1]));
    // Without a worker on the slot it trains on where it is.
    assert_eq!(placed(&mut allocator, snapshot(&[1, 0, 1], &[0, 2], 9.0)), Some(vec![0, 2]));
    *wanted.lock().expect("a script") = vec![1, 2];
    assert_eq!(placed(&mut allocator, snapshot(&[1, 0, 1], &[0, 2], 9.0)), Some(vec![2]));
}

#[test]
fn only_a_batch_that_adapts_needs_to_know_the_speed() {
    let created = Fact::TrialCreated {
        trial: TrialId(0),
        params: [("x", 0.5.into())].into_iter().collect(),
        point: vec![Some(0.5)],
    };
    let facts = [entry(created), entry(Fact::GroupFormed { trial: TrialId(0), generation: Generation(1) })];
    for is_adaptive in [false, true] {
        let (study, script) = scripted(&[0], is_adaptive);
        let mut allocator = ScriptedAllocator::new(script, AllocateService::new(&study).expect("a study"));
        facts.iter().try_for_each(|entry| allocator.apply(entry)).expect("good facts");
        let answer = allocator.answer(&AllocatorRequest::Fit { revision: 2, trial: TrialId(0) });
        let Input::FitDone { revision: 2, trial: TrialId(0), answer } = answer else { panic!("{answer:?}") };
        assert_eq!(answer.is_some(), is_adaptive);
    }
}

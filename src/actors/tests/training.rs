use std::collections::BTreeMap;

use super::slot;
use crate::{
    actors::training_events::{Seen, Tracker, TrainingEvent},
    goodput::{Observation, Shape},
    ids::{Round, SlotId, TrialId},
    trials::{
        engine::Fact,
        group::{Batch, Form, Member, Pause, WorkerCommand, WorkerEvent, WorkerReport},
    },
};

const BATCH: Batch = Batch { total: 24, accumulation: 0 };
/// Rounds of real groups are large numbers.
const FIRST: u64 = 4_294_967_297;

fn form(round: u64, members: &[u32]) -> WorkerCommand {
    let member = |&node: &u32| Member { slot: slot(node, 0), rendezvous_addr: String::new() };
    let (members, donors, batch) = (members.iter().map(member).collect(), Vec::new(), BATCH);
    WorkerCommand::Form(Form {
        trial: TrialId(0),
        round: Round(round),
        members,
        donors,
        batch,
        broken: false,
    })
}

fn formed(trial: u32, round: u64, steps: u64) -> WorkerEvent {
    WorkerEvent::Formed { trial: TrialId(trial), round: Round(round), steps, pause: Pause::default() }
}

/// A training on the slots 1 and 0, by rank, that has told of its first group.
fn training() -> Tracker {
    let mut tracker = Tracker::default();
    let forming = Some(TrainingEvent::Forming { group: 1, slots: vec![1, 0] });
    assert_eq!(tracker.take(Seen::Command(0, form(FIRST, &[1, 0]))), forming);
    assert_eq!(tracker.take(Seen::Command(1, form(FIRST, &[1, 0]))), None, "all are told the same");
    assert_eq!(tracker.take(Seen::Event(1, formed(0, FIRST, 7))), None);
    assert!(!tracker.is_formed());
    let event = tracker.take(Seen::Event(0, formed(0, FIRST, 7)));
    let pause = Pause::default();
    assert_eq!(event, Some(TrainingEvent::Formed { group: 1, slots: vec![1, 0], steps: 7, pause }));
    assert!(tracker.is_formed());
    tracker
}

#[test]
fn a_group_is_formed_once_all_its_members_are() {
    let mut tracker = training();
    assert_eq!(tracker.take(Seen::Event(0, formed(0, FIRST, 7))), None, "it is told once");
    assert_eq!(tracker.members(), [1, 0]);
    let forming = Some(TrainingEvent::Forming { group: 2, slots: vec![0] });
    assert_eq!(tracker.take(Seen::Command(0, form(FIRST + 4, &[0]))), forming);
    assert!(!tracker.is_formed());
    assert_eq!(tracker.take(Seen::Event(0, formed(0, FIRST, 7))), None, "it is of the group before");
    let event = tracker.take(Seen::Event(0, formed(0, FIRST + 4, 9)));
    let pause = Pause::default();
    assert_eq!(event, Some(TrainingEvent::Formed { group: 2, slots: vec![0], steps: 9, pause }));
}

#[test]
fn reports_have_the_number_of_the_group_and_one_machine() {
    let mut tracker = training();
    let times = |nodes| Observation {
        shape: Shape::new(2, nodes).expect("a shape"),
        per_gpu: 12.0,
        accumulation: 0,
        iter_time_s: 0.1,
        steps: 3.0,
    };
    let report = |round, nodes| {
        let step_times = vec![times(nodes)];
        Box::new(WorkerReport { round: Round(round), step_times, ..WorkerReport::default() })
    };
    let event = tracker.take(Seen::Event(1, WorkerEvent::Reported(report(FIRST, 2))));
    assert_eq!(event, Some(TrainingEvent::Reported(report(1, 1))));
    let (trial, reason) = (TrialId(0), "a peer was lost".to_owned());
    let broken = WorkerEvent::Broken { trial, round: Round(FIRST), steps: Some(7), reason: reason.clone() };
    let event = tracker.take(Seen::Event(0, broken));
    assert_eq!(event, Some(TrainingEvent::Broken { slot: 0, group: 1, steps: Some(7), reason }));
}

#[test]
fn a_batch_is_told_once_for_all_members() {
    let mut tracker = training();
    let retune = || WorkerCommand::Retune { trial: TrialId(0), round: Round(FIRST), batch: BATCH };
    assert_eq!(tracker.take(Seen::Command(1, retune())), Some(TrainingEvent::Retuned(BATCH)));
    assert_eq!(tracker.take(Seen::Command(0, retune())), None);
}

#[test]
fn the_engine_tells_of_losses_and_ends() {
    let lost = |slot: SlotId| Seen::Fact(Fact::SlotLost { slot, reason: "killed".to_owned() });
    let failed = |trial, reason: &str| {
        Seen::Fact(Fact::TrialFailed { trial: TrialId(trial), reason: reason.to_owned() })
    };
    let mut tracker = training();
    assert_eq!(tracker.take(Seen::Lost), None);
    assert_eq!(tracker.take(lost(slot(1, 0))), Some(TrainingEvent::Lost { slot: 1 }));
    let metrics = BTreeMap::from([("accuracy".to_owned(), 0.5)]);
    let finished = WorkerEvent::Finished { trial: TrialId(0), round: Round(FIRST), metrics: metrics.clone() };
    assert_eq!(tracker.take(Seen::Event(1, finished)), None);
    // The engine misses the metric of its objective.
    assert_eq!(tracker.take(failed(0, "no loss")), Some(TrainingEvent::Finished { metrics }));
    // The next task counts anew, and what is still on its way of the last one is not about it.
    assert_eq!((tracker.trial(), tracker.is_formed()), (TrialId(1), false));
    assert_eq!(tracker.take(Seen::Event(0, WorkerEvent::Checkpointed { trial: TrialId(0), steps: 9 })), None);
    let reason = "the loss is NaN".to_owned();
    assert_eq!(tracker.take(failed(1, &reason)), Some(TrainingEvent::Failed { reason }));
}

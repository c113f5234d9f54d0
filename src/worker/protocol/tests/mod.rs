//! A worker with a backend and a head that do what the test wants.

mod fake;
mod head_gone;

use std::sync::atomic::Ordering;

use proptest::prelude::*;
use tokio::{
    sync::mpsc::{self, UnboundedReceiver, UnboundedSender},
    task::yield_now,
};

use self::fake::{Call, Fake, Script, Steps, evaluation};
use super::*;
use crate::{
    ids::NodeId,
    trials::group::{Batch, Evaluation, Member, MemoryLimit, Pause, WorkerReport},
};

const TRIAL: TrialId = TrialId(7);
const BATCH: Batch = Batch { total: 64, accumulation: 0 };
const OTHER: Batch = Batch { total: 256, accumulation: 1 };

const fn slot(index: u32) -> SlotId {
    SlotId { node: NodeId(0), index }
}

fn task() -> Task {
    Task { report_every_s: 10.0, checkpoint_every_s: 100.0, ..Task::new(TRIAL, "net") }
}

fn form(round: u64, members: &[u32], donors: &[u32]) -> Form {
    let list = |slots: &[u32]| {
        slots.iter().map(|index| Member { slot: slot(*index), rendezvous_addr: String::new() }).collect()
    };
    let (members, donors) = (list(members), list(donors));
    Form { trial: TRIAL, round: Round(round), members, donors, batch: BATCH, broken: false }
}

const fn release(state: FinalState) -> WorkerCommand {
    WorkerCommand::Release { trial: TRIAL, state }
}

/// A worker of slot 0, its head and its backend.
struct World {
    script: Script,
    commands: UnboundedSender<WorkerCommand>,
    prepare: UnboundedSender<Result<(), Failure>>,
    meet: UnboundedSender<Result<u64, Failure>>,
    step: UnboundedSender<Steps>,
    events: UnboundedReceiver<WorkerEvent>,
    /// What it does, with its steps and the longest of them, since the last look.
    signs: Vec<(Activity, u64, f64)>,
}

impl World {
    fn new() -> Self {
        let script = Script::default();
        script.finish.store(1000, Ordering::Relaxed);
        let (commands, coming) = mpsc::unbounded_channel();
        let (prepare, prepares) = mpsc::unbounded_channel();
        let (meet, meetings) = mpsc::unbounded_channel();
        let (step, steps) = mpsc::unbounded_channel();
        let (send, events) = mpsc::unbounded_channel();
        let backend = Fake { script: script.clone(), prepares, meetings, steps };
        let send = move |event| {
            // The test may have heard enough.
            let _ = send.send(event);
        };
        tokio::spawn(Worker::new(slot(0), backend, coming, send).run());
        Self { script, commands, prepare, meet, step, events, signs: Vec::new() }
    }

    /// Lets the worker do all that it can, and gives its events but for the signs of its progress.
    async fn settle(&mut self) -> Vec<WorkerEvent> {
        for _ in 0..100 {
            yield_now().await;
        }
        let mut events = Vec::new();
        while let Ok(event) = self.events.try_recv() {
            match event {
                WorkerEvent::Progress { trial: TRIAL, steps, longest_step_s, activity, .. } => {
                    self.signs.push((activity, steps, longest_step_s));
                }
                event => events.push(event),
            }
        }
        events
    }

    async fn command(&mut self, command: WorkerCommand) -> Vec<WorkerEvent> {
        self.commands.send(command).unwrap();
        self.settle().await
    }

    /// A step that ends at this time.
    async fn step_until(&mut self, now_s: u32) -> Vec<(Activity, u64, f64)> {
        self.script.now_s.store(now_s, Ordering::Relaxed);
        self.step(StepProgress::default()).await;
        std::mem::take(&mut self.signs)
    }

    async fn step(&mut self, progress: StepProgress) -> Vec<WorkerEvent> {
        self.step.send(Ok(progress)).unwrap();
        self.settle().await
    }

    async fn prepare(&mut self) {
        self.prepare.send(Ok(())).unwrap();
        let prepared = WorkerEvent::Prepared { trial: TRIAL, rendezvous_addr: "here".to_owned() };
        assert_eq!(self.command(WorkerCommand::Prepare(Box::new(task()))).await, [prepared]);
    }

    /// Prepares, and trains from step 5 on in round 3.
    async fn training(members: &[u32]) -> Self {
        let mut world = Self::new();
        world.prepare().await;
        world.meet.send(Ok(5)).unwrap();
        let formed = WorkerEvent::Formed { trial: TRIAL, round: Round(3), steps: 5, pause: Pause::default() };
        assert_eq!(world.command(WorkerCommand::Form(form(3, members, &[]))).await, [formed]);
        world.script.calls();
        world
    }
}

const RELEASED: WorkerEvent = WorkerEvent::Released { trial: TRIAL };

const fn checkpointed(steps: u64) -> WorkerEvent {
    WorkerEvent::Checkpointed { trial: TRIAL, steps }
}

fn reported(steps: u64, evaluations: &[Evaluation]) -> WorkerEvent {
    let evaluations = evaluations.to_vec();
    let report =
        WorkerReport { trial: TRIAL, round: Round(3), steps, evaluations, ..WorkerReport::default() };
    WorkerEvent::Reported(Box::new(report))
}

#[tokio::test]
async fn what_cannot_be_prepared_is_the_trials_fault() {
    let mut world = World::new();
    world.prepare.send(Err(Failure::Trial("no such model".to_owned()))).unwrap();
    let failed =
        WorkerEvent::Failed { trial: TRIAL, reason: "no such model".to_owned(), cause: FailureCause::Trial };
    assert_eq!(world.command(WorkerCommand::Prepare(Box::new(task()))).await, [failed]);
    let [WorkerEvent::Broken { steps: None, reason, .. }] =
        &world.command(WorkerCommand::Form(form(1, &[0], &[]))).await[..]
    else {
        panic!("it cannot train")
    };
    assert_eq!(reason, "the worker was asked to train before it had prepared");
    assert_eq!(world.command(release(FinalState::Saved)).await, [RELEASED]);
}

#[tokio::test]
async fn roles_decide_what_a_worker_does() {
    for (form, role) in [
        (form(3, &[1, 0], &[]), Role::Train(1)),
        (form(3, &[1, 2], &[3, 0]), Role::Donate(3)),
        (form(3, &[1], &[2]), Role::Leave),
    ] {
        let mut world = World::new();
        world.prepare().await;
        world.meet.send(Ok(0)).unwrap();
        let events = world.command(WorkerCommand::Form(form)).await;
        let calls = world.script.calls();
        match role {
            Role::Train(_) => {
                assert!(matches!(events[..], [WorkerEvent::Formed { .. }]), "{events:?}");
                assert!(
                    matches!(calls[..], [Call::Join(joined), Call::Train(_)] if joined == role),
                    "{calls:?}"
                );
            }
            Role::Donate(_) => {
                assert_eq!(events, [RELEASED]);
                assert_eq!(calls, [Call::Join(role), Call::Leave, Call::Drop]);
            }
            Role::Leave => assert_eq!((events, calls), (vec![RELEASED], vec![Call::Drop])),
        }
    }
}

/// Slots are numbered on each machine: the first one of another machine is somebody else.
#[test]
fn a_role_is_found_by_node_and_slot() {
    let at = |node: u32, index: u32| SlotId { node: NodeId(node), index };
    let member = |slot| Member { slot, rendezvous_addr: String::new() };
    let (members, donors) = ([at(4, 0), at(7, 0), at(4, 1)].map(member), [at(9, 0)].map(member));
    let form = Form { members: members.into(), donors: donors.into(), ..form(3, &[], &[]) };
    for (slot, role) in [
        (at(4, 0), Role::Train(0)),
        (at(7, 0), Role::Train(1)),
        (at(4, 1), Role::Train(2)),
        (at(9, 0), Role::Donate(3)),
        (at(0, 0), Role::Leave),
        (at(7, 1), Role::Leave),
    ] {
        assert_eq!(Role::of(slot, &form), role, "{slot}");
    }
    assert_eq!(form.machines(), 2, "members only");
}

#[tokio::test]
async fn groups_of_the_past_and_of_other_trials_change_nothing() {
    let mut world = World::training(&[0]).await;
    for round in [2, 3] {
        assert_eq!(world.command(WorkerCommand::Form(form(round, &[], &[]))).await, []);
    }
    let other = WorkerCommand::Release { trial: TrialId(8), state: FinalState::Discarded };
    assert_eq!(world.command(other).await, []);
    let request = |calls: Vec<Call>| match calls.last() {
        Some(Call::Train(request)) => *request,
        other => panic!("{other:?}"),
    };
    assert!(!request(world.script.calls()).leave);
    // Once it has left, they are answered, in order.
    world.command(release(FinalState::Discarded)).await;
    assert!(request(world.script.calls()).leave);
    let left = world.step(StepProgress { left: true, ..StepProgress::default() }).await;
    assert_eq!(left, [reported(6, &[]), WorkerEvent::Released { trial: TrialId(8) }, RELEASED]);
    assert_eq!(world.script.calls(), [Call::Leave, Call::Drop]);
}

#[tokio::test]
async fn another_batch_waits_until_all_agree() {
    let mut world = World::training(&[0]).await;
    let retune = |round, batch| WorkerCommand::Retune { trial: TRIAL, round: Round(round), batch };
    for (round, batch) in [(2, BATCH), (3, OTHER), (3, BATCH), (4, BATCH)] {
        world.command(retune(round, batch)).await;
    }
    let batches = |world: &World| -> Vec<Option<Batch>> {
        let calls = world.script.calls().into_iter();
        calls.map(|call| if let Call::Train(request) = call { request.batch } else { None }).collect()
    };
    assert_eq!(batches(&world).last(), Some(&Some(OTHER)));
    world.step(StepProgress::default()).await;
    assert_eq!(batches(&world), [Some(OTHER)], "not all have it yet");
    let retuned = StepProgress { retuned: true, ..StepProgress::default() };
    world.step(retuned.clone()).await;
    assert_eq!(batches(&world), [Some(BATCH)]);
    world.step(retuned).await;
    assert_eq!(batches(&world), [None], "those of other groups are not meant");
}

#[tokio::test]
async fn only_the_first_rank_reports_and_saves() {
    let evaluated = StepProgress { evaluations: vec![evaluation(1.0)], ..StepProgress::default() };
    let mut other = World::training(&[1, 0]).await;
    other.script.now_s.store(1000, Ordering::Relaxed);
    assert_eq!(other.step(evaluated.clone()).await, []);
    let quiet = StepRequest { leave: false, batch: None, wake_s: 1010.0 };
    assert_eq!(other.script.calls(), [Call::Train(quiet)], "it only gives signs");

    let mut first = World::training(&[0, 1]).await;
    assert_eq!(first.step(StepProgress::default()).await, [], "nothing is due");
    assert_eq!(first.script.calls(), [Call::Train(StepRequest { wake_s: 10.0, ..quiet })]);
    assert_eq!(first.step(evaluated).await, [reported(7, &[evaluation(1.0)])], "evaluations come at once");
    first.script.now_s.store(10, Ordering::Relaxed);
    assert_eq!(first.step(StepProgress::default()).await, [reported(8, &[])]);
    assert_eq!(first.step(StepProgress::default()).await, []);
    first.script.calls();
    first.script.now_s.store(100, Ordering::Relaxed);
    assert_eq!(first.step(StepProgress::default()).await, [reported(10, &[])]);
    let calls = first.script.calls();
    assert!(matches!(calls[..], [Call::Save, Call::Train(_)]), "it trains while it writes: {calls:?}");
    // Another one is due, but this one is not on disk yet.
    first.script.now_s.store(200, Ordering::Relaxed);
    assert_eq!(first.step(StepProgress::default()).await, [reported(11, &[])]);
    assert!(!first.script.calls().contains(&Call::Save));
}

/// A checkpoint that is being written when its group is left is waited for before the worker is free.
#[tokio::test]
async fn no_checkpoint_is_left_behind() {
    for (state, calls, events) in [
        (FinalState::Discarded, vec![Call::Leave, Call::Wait, Call::Drop], vec![checkpointed(6), RELEASED]),
        (
            FinalState::Saved,
            vec![Call::Leave, Call::Wait, Call::Save, Call::Wait, Call::Drop],
            vec![checkpointed(6), checkpointed(7), RELEASED],
        ),
    ] {
        let mut world = World::training(&[0]).await;
        world.script.now_s.store(100, Ordering::Relaxed);
        assert_eq!(world.step(StepProgress::default()).await, [reported(6, &[])]);
        world.command(release(state)).await;
        world.script.calls();
        let events_after = world.step(StepProgress { left: true, ..StepProgress::default() }).await;
        assert_eq!(world.script.calls(), calls);
        assert_eq!((&events_after[0], &events_after[1..]), (&reported(7, &[]), &events[..]));
    }
}

/// A full disk costs checkpoints, and nothing else.
#[tokio::test]
async fn a_checkpoint_that_cannot_be_written_is_told_once_and_tried_again() {
    let mut world = World::training(&[0]).await;
    world.script.is_done.store(true, Ordering::Relaxed);
    let failed = WorkerEvent::CheckpointFailed { trial: TRIAL, reason: "no space".to_owned() };
    for (now_s, is_full, event) in [
        (100, true, Some(failed.clone())),
        (200, true, None),
        (300, true, None),
        (400, false, Some(checkpointed(9))),
        (500, false, Some(checkpointed(10))),
        (600, true, Some(failed)),
    ] {
        world.script.is_full.store(is_full, Ordering::Relaxed);
        world.script.now_s.store(now_s, Ordering::Relaxed);
        let mut events = world.step(StepProgress::default()).await;
        events.retain(|event| !matches!(event, WorkerEvent::Reported(_)));
        assert_eq!(events, Vec::from_iter(event), "at {now_s}");
        assert!(world.script.calls().contains(&Call::Save), "at {now_s}");
    }
}

#[tokio::test]
async fn what_could_not_be_saved_on_release_is_a_failure_of_the_environment() {
    for state in [FinalState::Saved, FinalState::Discarded] {
        let mut world = World::training(&[0]).await;
        world.script.is_full.store(true, Ordering::Relaxed);
        let left = StepProgress { left: true, ..StepProgress::default() };
        world.step.send(Ok(left)).unwrap();
        let events = world.command(release(state)).await;
        let (reason, cause) = ("no space".to_owned(), FailureCause::Environment);
        let last = match state {
            FinalState::Saved => WorkerEvent::Failed { trial: TRIAL, reason, cause },
            FinalState::Discarded => RELEASED,
        };
        assert_eq!(events.last(), Some(&last));
        assert_eq!(world.script.calls().last(), Some(&Call::Drop));
    }
}

#[tokio::test]
async fn a_trial_that_is_complete_is_so_without_a_checkpoint() {
    let mut world = World::training(&[0]).await;
    world.script.is_full.store(true, Ordering::Relaxed);
    world.script.finish.store(6, Ordering::Relaxed);
    let events = world.step(StepProgress::default()).await;
    assert!(
        matches!(
            events[..],
            [WorkerEvent::Reported(_), WorkerEvent::CheckpointFailed { .. }, WorkerEvent::Finished { .. }]
        ),
        "{events:?}"
    );
}

#[tokio::test]
async fn what_is_wrong_with_checkpoints_is_told_before_the_training() {
    let mut world = World::new();
    world.prepare().await;
    *world.script.warning.lock().unwrap() = Some("it is damaged".to_owned());
    world.meet.send(Ok(5)).unwrap();
    let events = world.command(WorkerCommand::Form(form(3, &[0], &[]))).await;
    let failed = WorkerEvent::CheckpointFailed { trial: TRIAL, reason: "it is damaged".to_owned() };
    assert!(matches!(&events[..], [first, WorkerEvent::Formed { .. }] if *first == failed), "{events:?}");
}

#[tokio::test]
async fn what_is_learned_of_the_memory_is_told_by_every_rank_and_before_a_group_breaks() {
    let mut world = World::training(&[1, 0]).await;
    let memory = |limit| MemoryLimit { failed: 64, limit };
    let told = |limit| WorkerEvent::OutOfMemory { trial: TRIAL, memory: memory(limit) };
    *world.script.memory.lock().unwrap() = Some(memory(32));
    assert_eq!(world.step(StepProgress::default()).await, [told(32)]);
    assert_eq!(world.step(StepProgress::default()).await, []);
    *world.script.memory.lock().unwrap() = Some(memory(16));
    world.step.send(Err(Failure::Group("no memory".to_owned()))).unwrap();
    let events = world.settle().await;
    assert!(matches!(&events[..], [first, WorkerEvent::Broken { .. }] if *first == told(16)), "{events:?}");
}

#[tokio::test]
async fn what_has_no_state_is_not_saved() {
    let mut world = World::new();
    world.prepare().await;
    assert_eq!(world.command(release(FinalState::Saved)).await, [RELEASED]);
    assert_eq!(world.script.calls(), [Call::Drop]);
}

#[tokio::test]
async fn a_complete_trial_is_evaluated_reported_saved_and_finished() {
    let mut world = World::training(&[0, 1]).await;
    world.script.finish.store(6, Ordering::Relaxed);
    world.script.now_s.store(100, Ordering::Relaxed);
    let (trial, round, metrics) = (TRIAL, Round(3), evaluation(2.0).values);
    let finished = WorkerEvent::Finished { trial, round, metrics };
    let events_after = world.step(StepProgress::default()).await;
    assert_eq!(events_after, [reported(6, &[evaluation(2.0)]), checkpointed(6), finished]);
    assert_eq!(world.script.calls(), [Call::Evaluate, Call::Save, Call::Wait, Call::Leave]);
    // The others evaluate with it, but report nothing.
    let mut other = World::training(&[1, 0]).await;
    other.script.finish.store(6, Ordering::Relaxed);
    assert_eq!(other.step(StepProgress::default()).await, []);
    assert_eq!(other.script.calls(), [Call::Evaluate, Call::Leave]);
}

/// Whoever hears nothing knows that the training stands still: signs come after steps, and from no other thread.
#[tokio::test]
async fn every_rank_gives_signs_of_steps_and_only_of_steps() {
    for members in [[0, 1], [1, 0]] {
        let mut world = World::training(&members).await;
        assert_eq!(std::mem::take(&mut world.signs), [(Activity::Joining, 0, 0.0)]);
        assert_eq!(
            world.step_until(3).await,
            [(Activity::Training, 6, 3.0)],
            "the first step is told of at once"
        );
        assert_eq!(world.step_until(4).await, []);
        assert_eq!(world.step_until(9).await, []);
        // The longest since the last sign, not the last one.
        assert_eq!(world.step_until(13).await, [(Activity::Training, 9, 5.0)]);
        // Time alone is no reason, and neither are commands.
        world.script.now_s.store(500, Ordering::Relaxed);
        let retune = WorkerCommand::Retune { trial: TRIAL, round: Round(3), batch: OTHER };
        assert_eq!(world.command(retune).await, []);
        assert_eq!(world.signs, []);
        assert_eq!(world.step_until(510).await, [(Activity::Training, 10, 497.0)]);
    }
}

#[tokio::test]
async fn what_takes_long_besides_steps_is_announced() {
    let evaluating = StepProgress { wants_evaluation: true, ..StepProgress::default() };
    let mut world = World::training(&[0, 1]).await;
    world.step_until(2).await;
    world.script.now_s.store(5, Ordering::Relaxed);
    assert_eq!(world.step(evaluating.clone()).await, [reported(7, &[evaluation(2.0)])]);
    let signs = [(Activity::Evaluating, 7, 3.0), (Activity::Training, 7, 0.0)];
    assert_eq!(std::mem::take(&mut world.signs), signs);
    // The end: an evaluation, then a checkpoint that others wait for.
    world.script.finish.store(8, Ordering::Relaxed);
    let signs = [(Activity::Evaluating, 8, 1.0), (Activity::Training, 8, 0.0), (Activity::Saving, 8, 0.0)];
    assert_eq!(world.step_until(6).await, signs);
    assert_eq!(world.command(release(FinalState::Saved)).await, [checkpointed(8), RELEASED]);
    assert_eq!(world.signs, [(Activity::Saving, 8, 0.0)]);

    let mut other = World::training(&[1, 0]).await;
    other.step_until(2).await;
    other.script.finish.store(7, Ordering::Relaxed);
    let signs = [(Activity::Evaluating, 7, 1.0), (Activity::Training, 7, 0.0), (Activity::Idle, 7, 0.0)];
    assert_eq!(other.step_until(3).await, signs);
    assert_eq!(other.command(release(FinalState::Discarded)).await, [RELEASED]);
    assert_eq!(other.signs, [], "there is nothing to wait for");
}

#[tokio::test]
async fn a_lost_group_is_reported_with_the_steps_that_are_left() {
    let mut world = World::training(&[0, 1]).await;
    world.step.send(Err(Failure::Group("slot 0.1 is gone".to_owned()))).unwrap();
    let reason = "slot 0.1 is gone".to_owned();
    let broken = WorkerEvent::Broken { trial: TRIAL, round: Round(3), steps: Some(5), reason };
    assert_eq!(world.settle().await, [broken]);
    assert_eq!(world.script.calls(), [Call::Leave]);
    // It has the state still, and goes into the next group.
    world.meet.send(Ok(5)).unwrap();
    let events = world.command(WorkerCommand::Form(form(4, &[0], &[]))).await;
    assert!(matches!(events[..], [WorkerEvent::Formed { round: Round(4), .. }]), "{events:?}");
    // The trial's own mistakes end it.
    world.step.send(Err(Failure::Trial("the loss is NaN".to_owned()))).unwrap();
    let failed = WorkerEvent::Failed {
        trial: TRIAL,
        reason: "the loss is NaN".to_owned(),
        cause: FailureCause::Trial,
    };
    assert_eq!(world.settle().await, [failed]);
}

#[tokio::test]
async fn a_broken_group_is_left_at_once_and_without_an_event() {
    let mut world = World::training(&[0, 1]).await;
    world.meet.send(Ok(5)).unwrap();
    let events = world.command(WorkerCommand::Form(Form { broken: true, ..form(4, &[0], &[]) })).await;
    assert!(matches!(events[..], [WorkerEvent::Formed { round: Round(4), .. }]), "{events:?}");
    let calls = world.script.calls();
    assert!(matches!(calls[..], [Call::Abort, Call::Join(_), Call::Train(_)]), "{calls:?}");
    // So is one that is lost while it is to be left anyway.
    world.command(release(FinalState::Discarded)).await;
    world.step.send(Err(Failure::Group("aborted".to_owned()))).unwrap();
    assert_eq!(world.settle().await, [RELEASED]);
    assert!(world.script.calls().contains(&Call::Abort));
}

#[tokio::test]
async fn a_rendezvous_is_given_up_for_another_one() {
    let mut world = World::new();
    world.prepare().await;
    assert_eq!(world.command(WorkerCommand::Form(form(1, &[0, 1], &[]))).await, []);
    // This one is of no concern.
    let retune = WorkerCommand::Retune { trial: TRIAL, round: Round(1), batch: OTHER };
    assert_eq!(world.command(retune).await, []);
    assert_eq!(world.script.calls(), [Call::Join(Role::Train(0))]);
    assert_eq!(world.command(WorkerCommand::Form(form(2, &[1], &[0]))).await, []);
    assert_eq!(world.script.calls(), [Call::Leave, Call::Join(Role::Donate(1))]);
    world.meet.send(Err(Failure::Group("slot 0.1 is gone".to_owned()))).unwrap();
    let reason = "slot 0.1 is gone".to_owned();
    let broken = WorkerEvent::Broken { trial: TRIAL, round: Round(2), steps: None, reason };
    assert_eq!(world.settle().await, [broken]);
}

fn any_command() -> impl Strategy<Value = WorkerCommand> {
    let slots = || prop::collection::vec(0_u32..3, 0..3);
    let state = prop_oneof![Just(FinalState::Saved), Just(FinalState::Discarded)];
    let trial = || (0_u32..2).prop_map(|more| TrialId(TRIAL.0 + more));
    prop_oneof![
        trial().prop_map(|trial| WorkerCommand::Prepare(Box::new(Task { trial, ..task() }))),
        (trial(), 0_u64..8, slots(), slots(), any::<bool>()).prop_map(
            |(trial, round, members, donors, broken)| {
                WorkerCommand::Form(Form { trial, broken, ..form(round, &members, &donors) })
            }
        ),
        (trial(), 0_u64..8).prop_map(|(trial, round)| WorkerCommand::Retune {
            trial,
            round: Round(round),
            batch: OTHER
        }),
        (trial(), state).prop_map(|(trial, state)| WorkerCommand::Release { trial, state }),
    ]
}

#[derive(Debug, Clone)]
enum Turn {
    Command(WorkerCommand),
    Step(bool),
    Fail(bool),
}

fn turn() -> impl Strategy<Value = Turn> {
    prop_oneof![
        3 => any_command().prop_map(Turn::Command),
        2 => any::<bool>().prop_map(Turn::Step),
        1 => any::<bool>().prop_map(Turn::Fail),
    ]
}

proptest! {
    /// Whatever comes in whatever order: each release is answered, and the worker ends with its head.
    #[test]
    fn every_release_is_answered(turns in prop::collection::vec(turn(), 0..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut world = World::new();
            for _ in 0..100 {
                world.prepare.send(Ok(())).unwrap();
                world.meet.send(Ok(5)).unwrap();
            }
            let (mut asked, mut events) = (Vec::new(), Vec::new());
            for turn in turns {
                match turn {
                    Turn::Command(command) => {
                        if let WorkerCommand::Release { trial, .. } = command {
                            asked.push(trial);
                        }
                        events.extend(world.command(command).await);
                    }
                    Turn::Step(left) => events.extend(world.step(StepProgress { left, ..StepProgress::default() }).await),
                    Turn::Fail(group) => {
                        let kind = if group { Failure::Group } else { Failure::Trial };
                        world.step.send(Err(kind("it fails".to_owned()))).unwrap();
                        events.extend(world.settle().await);
                    }
                }
            }
            // All that is under way comes to its end.
            for trial in [TRIAL, TrialId(TRIAL.0 + 1)] {
                asked.push(trial);
                events.extend(world.command(WorkerCommand::Release { trial, state: FinalState::Discarded }).await);
            }
            for _ in 0..100 {
                events.extend(world.step(StepProgress { left: true, ..StepProgress::default() }).await);
            }
            let released = |trial| events.iter().filter(|event| **event == WorkerEvent::Released { trial }).count();
            let wanted = |trial| asked.iter().filter(|asked| **asked == trial).count();
            for trial in [TRIAL, TrialId(TRIAL.0 + 1)] {
                // Workers that only donate or leave are free without having been asked.
                prop_assert!(released(trial) >= wanted(trial), "{events:?}");
            }
            drop(world.commands);
            while world.events.recv().await.is_some() {}
            Ok(())
        })?;
    }
}

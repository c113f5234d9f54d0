mod hangs;

use super::*;
use crate::{
    ids::NodeId,
    space::Params,
    trials::group::{MemoryLimit, Pause},
};

const TRIAL: TrialId = TrialId(7);
/// Where time does not matter.
const NOW: f64 = 100.0;
const BATCH: Batch = Batch { total: 128, accumulation: 0 };

fn slot(index: u32) -> SlotId {
    SlotId { node: NodeId(0), index }
}

fn slots(indices: &[u32]) -> Vec<SlotId> {
    indices.iter().copied().map(slot).collect()
}

/// The number of a round of the group that was launched with generation 1.
fn round(number: u64) -> Round {
    Round(Round::before(Generation(1)).0 + number)
}

fn task() -> Task {
    Task { checkpoint: "study/checkpoints/7".into(), ..Task::new(TRIAL, "net") }
}

fn launch(indices: &[u32]) -> (Driver, Vec<Output>) {
    let (generation, params) = (Generation(1), Params::default());
    let launch = Launch { generation, slots: slots(indices), params, batch: Some(BATCH), checkpoint: None };
    Driver::launch(task(), launch, Limits::default(), NOW)
}

fn prepared(index: u32) -> WorkerEvent {
    WorkerEvent::Prepared { trial: TRIAL, rendezvous_addr: format!("host:{index}") }
}

fn formed(number: u64) -> WorkerEvent {
    WorkerEvent::Formed { trial: TRIAL, round: round(number), steps: 0, pause: Pause::default() }
}

fn broken(number: u64) -> WorkerEvent {
    WorkerEvent::Broken { trial: TRIAL, round: round(number), steps: None, reason: "lost".to_owned() }
}

fn reported(number: u64, epochs: f64) -> WorkerEvent {
    let (trial, round) = (TRIAL, round(number));
    WorkerEvent::Reported(Box::new(WorkerReport { trial, round, epochs, ..WorkerReport::default() }))
}

fn finished(number: u64) -> WorkerEvent {
    let metrics = BTreeMap::from([("loss".to_owned(), 0.5)]);
    WorkerEvent::Finished { trial: TRIAL, round: round(number), metrics }
}

fn failed() -> WorkerEvent {
    WorkerEvent::Failed { trial: TRIAL, reason: "the loss is NaN".to_owned(), cause: FailureCause::Trial }
}

const RELEASED: WorkerEvent = WorkerEvent::Released { trial: TRIAL };
const CHECKPOINTED: WorkerEvent = WorkerEvent::Checkpointed { trial: TRIAL, steps: 3 };
const SAVE: GroupCommand = GroupCommand::Stop(FinalState::Saved);
const DISCARD: GroupCommand = GroupCommand::Stop(FinalState::Discarded);

fn reshape(generation: u32, indices: &[u32]) -> GroupCommand {
    GroupCommand::Reshape { generation: Generation(generation), slots: slots(indices), batch: BATCH }
}

fn send(index: u32, command: WorkerCommand) -> Output {
    Output::Send { slot: slot(index), command }
}

fn prepare(index: u32) -> Output {
    send(index, WorkerCommand::Prepare(Box::new(task())))
}

fn release(index: u32, state: FinalState) -> Output {
    send(index, WorkerCommand::Release { trial: TRIAL, state })
}

/// A round with everybody in `notify`.
fn form(number: u64, members: &[u32], donors: &[u32], notify: &[u32], broken: bool) -> Vec<Output> {
    form_with(number, (members, donors), notify, broken, BATCH)
}

fn form_with(
    number: u64,
    (members, donors): (&[u32], &[u32]),
    notify: &[u32],
    broken: bool,
    batch: Batch,
) -> Vec<Output> {
    let member = |&index: &u32| Member { slot: slot(index), rendezvous_addr: format!("host:{index}") };
    let members = members.iter().map(member).collect();
    let donors = donors.iter().map(member).collect();
    let form = Form { trial: TRIAL, round: round(number), members, donors, batch, broken };
    notify.iter().map(|&index| send(index, WorkerCommand::Form(form.clone()))).collect()
}

fn engine(generation: u32, event: GroupEvent) -> Output {
    Output::Engine { generation: Generation(generation), event }
}

fn report(generation: u32, number: u32, epochs: f64) -> Output {
    engine(generation, GroupEvent::Reported(Report { number, epochs, ..Report::default() }))
}

fn checkpoint(epochs: f64) -> Checkpoint {
    Checkpoint { name: "7".to_owned(), epochs }
}

fn trial_failed() -> GroupEvent {
    GroupEvent::Failed { reason: "the loss is NaN".to_owned(), cause: FailureCause::Trial }
}

fn trial_finished() -> GroupEvent {
    GroupEvent::Finished(Metrics::from([("loss".to_owned(), 0.5.into())]))
}

/// A driver of a group that trains on these slots, as the engine knows.
fn training(indices: &[u32]) -> Driver {
    let (mut driver, _) = launch(indices);
    let mut outputs = Vec::new();
    for &index in indices {
        outputs = driver.on_worker(slot(index), prepared(index), NOW);
    }
    assert_eq!(outputs, form(1, indices, &[], indices, false));
    for &index in indices {
        outputs = driver.on_worker(slot(index), formed(1), NOW);
    }
    assert_eq!(outputs, [engine(1, GroupEvent::Formed)]);
    driver
}

#[test]
fn a_launch_prepares_all_forms_once_and_announces_when_all_train() {
    let (mut driver, outputs) = launch(&[0, 1]);
    assert_eq!(outputs, [prepare(0), prepare(1)]);
    assert_eq!(driver.on_worker(slot(1), prepared(1), NOW), []);
    assert_eq!(driver.on_worker(slot(0), prepared(0), NOW), form(1, &[0, 1], &[], &[0, 1], false));
    assert_eq!(driver.on_worker(slot(0), formed(1), NOW), []);
    assert_eq!(driver.on_worker(slot(1), formed(1), NOW), [engine(1, GroupEvent::Formed)]);
    assert_eq!(driver.members(), slots(&[0, 1]));
}

#[test]
fn a_group_trains_on_until_the_newcomer_has_prepared() {
    let mut driver = training(&[0]);
    assert_eq!(driver.on_command(reshape(2, &[0, 1]), NOW), [prepare(1)]);
    // What is measured meanwhile is of the generation before.
    assert_eq!(driver.on_worker(slot(0), reported(1, 0.5), NOW), [report(1, 1, 0.5)]);
    assert_eq!(driver.on_worker(slot(1), prepared(1), NOW), form(2, &[0, 1], &[], &[0, 1], false));
    assert_eq!(driver.on_worker(slot(0), reported(1, 0.75), NOW), [report(1, 2, 0.75)]);
    assert_eq!(driver.on_worker(slot(0), formed(2), NOW), []);
    assert_eq!(driver.on_worker(slot(1), formed(2), NOW), [engine(2, GroupEvent::Formed)]);
    // Reports are numbered from 1 in each generation.
    assert_eq!(driver.on_worker(slot(0), reported(2, 1.0), NOW), [report(2, 1, 1.0)]);
}

#[test]
fn a_smaller_group_is_announced_when_those_who_leave_have_left() {
    let mut driver = training(&[0, 1]);
    assert_eq!(driver.on_command(reshape(2, &[0]), NOW), form(2, &[0], &[], &[0, 1], false));
    assert_eq!(driver.on_worker(slot(0), formed(2), NOW), [], "slot 1 is not free yet");
    assert_eq!(driver.on_worker(slot(1), RELEASED, NOW), [engine(2, GroupEvent::Formed)]);
}

#[test]
fn a_move_to_other_slots_takes_the_state_along() {
    let mut driver = training(&[0, 1]);
    assert_eq!(driver.on_command(reshape(2, &[2]), NOW), [prepare(2)]);
    assert_eq!(driver.on_worker(slot(2), prepared(2), NOW), form(2, &[2], &[0], &[0, 1, 2], false));
    assert_eq!(driver.on_worker(slot(1), RELEASED, NOW), []);
    assert_eq!(driver.on_worker(slot(2), formed(2), NOW), []);
    assert_eq!(driver.on_worker(slot(0), RELEASED, NOW), [engine(2, GroupEvent::Formed)]);
}

#[test]
fn another_batch_is_for_all_members_of_the_round() {
    let mut driver = training(&[0, 1]);
    let batch = Batch { total: 256, accumulation: 1 };
    let retune = |index| send(index, WorkerCommand::Retune { trial: TRIAL, round: round(1), batch });
    assert_eq!(driver.on_command(GroupCommand::Retune { batch }, NOW), [retune(0), retune(1)]);
    // It is kept for whatever round comes next.
    let outputs = driver.on_worker(slot(1), broken(1), NOW);
    assert_eq!(outputs, form_with(2, (&[0, 1], &[]), &[0, 1], true, batch));
}

#[test]
fn fewer_workers_than_planned_keep_the_total_in_passes_no_larger_than_before() {
    let mut driver = training(&[0, 1, 2, 3]);
    let batch = |accumulation| Batch { total: 128, accumulation };
    let outputs = driver.on_lost(slot(3), NOW);
    assert_eq!(outputs, form_with(2, (&[0, 1, 2], &[]), &[0, 1, 2], true, batch(1)));
    driver.on_lost(slot(2), NOW).clear();
    let outputs = driver.on_lost(slot(1), NOW);
    assert_eq!(outputs, form_with(4, (&[0], &[]), &[0], true, batch(3)));
}

#[test]
fn a_pause_saves_the_state_once_and_says_so_when_all_have_left() {
    let mut driver = training(&[0, 1]);
    assert_eq!(driver.on_worker(slot(0), reported(1, 0.5), NOW), [report(1, 1, 0.5)]);
    let outputs = driver.on_command(SAVE, NOW);
    assert_eq!(outputs, [release(0, FinalState::Saved), release(1, FinalState::Discarded)]);
    assert_eq!(driver.on_command(SAVE, NOW), [], "it is on its way");
    assert_eq!(driver.on_worker(slot(1), RELEASED, NOW), []);
    assert_eq!(driver.on_worker(slot(0), reported(1, 0.75), NOW), [report(1, 2, 0.75)]);
    assert_eq!(driver.on_worker(slot(0), CHECKPOINTED, NOW), []);
    let paused = engine(1, GroupEvent::Paused(checkpoint(0.75)));
    assert_eq!(driver.on_worker(slot(0), RELEASED, NOW), [paused, Output::Left]);
}

#[test]
fn what_is_wrong_with_checkpoints_is_passed_on_and_changes_nothing() {
    let problem = || WorkerEvent::CheckpointFailed { trial: TRIAL, reason: "no space".to_owned() };
    let (mut driver, _) = launch(&[0]);
    driver.on_worker(slot(0), prepared(0), NOW).clear();
    let told = |generation| engine(generation, GroupEvent::CheckpointFailed("no space".to_owned()));
    assert_eq!(driver.on_worker(slot(0), problem(), NOW), [told(1)], "found before it trains");
    let mut driver = training(&[0]);
    let before = driver.clone();
    assert_eq!(driver.on_worker(slot(0), problem(), NOW), [told(1)]);
    assert_eq!(driver, before);
    // On the way out, the failure says it.
    assert_eq!(driver.on_command(SAVE, NOW), [release(0, FinalState::Saved)]);
    assert_eq!(driver.on_worker(slot(0), problem(), NOW), []);
    let (reason, cause) = ("no space".to_owned(), FailureCause::Environment);
    let failed = WorkerEvent::Failed { trial: TRIAL, reason: reason.clone(), cause };
    assert_eq!(driver.on_worker(slot(0), failed, NOW), [engine(1, GroupEvent::Failed { reason, cause })]);
    assert_eq!(driver.on_command(DISCARD, NOW), [Output::Left]);
}

#[test]
fn what_is_learned_of_the_memory_is_passed_on_with_its_slot_and_changes_nothing() {
    let memory = MemoryLimit { failed: 64, limit: 32 };
    let mut driver = training(&[0, 1]);
    let before = driver.clone();
    let told = |slot| engine(1, GroupEvent::OutOfMemory { slot, memory });
    let event = || WorkerEvent::OutOfMemory { trial: TRIAL, memory };
    assert_eq!(driver.on_worker(slot(1), event(), NOW), [told(slot(1))]);
    assert_eq!(driver, before);
    // It is as true of a trial that is to be saved.
    driver.on_command(SAVE, NOW).clear();
    assert_eq!(driver.on_worker(slot(0), event(), NOW), [told(slot(0))]);
}

#[test]
fn a_pause_whose_state_is_lost_is_a_failure_of_the_infrastructure() {
    let mut driver = training(&[0]);
    assert_eq!(driver.on_command(SAVE, NOW), [release(0, FinalState::Saved)]);
    let (reason, cause) = ("its state could not be saved".to_owned(), FailureCause::Infrastructure);
    let failed = engine(1, GroupEvent::Failed { reason, cause });
    assert_eq!(driver.on_lost(slot(0), NOW), [failed, Output::Left]);
}

#[test]
fn a_group_that_is_dropped_says_nothing_more() {
    let mut driver = training(&[0, 1]);
    let discard = |index| release(index, FinalState::Discarded);
    assert_eq!(driver.on_command(DISCARD, NOW), [discard(0), discard(1)]);
    assert_eq!(driver.on_worker(slot(0), finished(1), NOW), []);
    assert_eq!(driver.on_worker(slot(0), RELEASED, NOW), []);
    assert_eq!(driver.on_worker(slot(1), RELEASED, NOW), [Output::Left]);
}

#[test]
fn the_end_releases_all_before_the_engine_knows_and_waits_to_be_dropped() {
    let mut driver = training(&[0, 1]);
    let outputs = driver.on_worker(slot(0), finished(1), NOW);
    let [discard0, discard1] = [0, 1].map(|index| release(index, FinalState::Discarded));
    assert_eq!(outputs, [discard0, discard1, engine(1, trial_finished())]);
    assert_eq!(driver.on_worker(slot(0), finished(1), NOW), [], "it ends once");
    assert_eq!(driver.on_worker(slot(0), RELEASED, NOW), []);
    assert_eq!(driver.on_worker(slot(1), RELEASED, NOW), [], "the engine has not taken note yet");
    assert_eq!(driver.on_command(DISCARD, NOW), [Output::Left]);
}

/// It hung studies once: the others were made to form a group again, with a worker that had failed already.
#[test]
fn a_failure_of_the_trial_ends_it_and_prepares_nobody_again() {
    let discard = |index| release(index, FinalState::Discarded);
    for generation in [1, 2] {
        let mut driver = training(&[0, 1]);
        if generation == 2 {
            assert_eq!(driver.on_command(reshape(2, &[0, 1, 2]), NOW), [prepare(2)]);
        }
        let all: Vec<Output> = (0..=generation).map(discard).collect();
        let outputs = driver.on_worker(slot(1), failed(), NOW);
        assert_eq!(outputs, [&all[..], &[engine(generation, trial_failed())]].concat());
        for event in [failed(), broken(1), prepared(2), RELEASED] {
            assert_eq!(driver.on_worker(slot(0), event, NOW), []);
        }
        for index in [0, 1, 2] {
            assert_eq!(driver.on_lost(slot(index), NOW), []);
        }
        assert_eq!(driver.on_command(GroupCommand::Retune { batch: BATCH }, NOW), []);
        assert_eq!(driver.on_command(DISCARD, NOW), [Output::Left]);
    }
}

#[test]
fn a_failure_while_a_launch_prepares_ends_it() {
    let (mut driver, _) = launch(&[0, 1]);
    let outputs = driver.on_worker(slot(0), failed(), NOW);
    let [discard0, discard1] = [0, 1].map(|index| release(index, FinalState::Discarded));
    assert_eq!(outputs, [discard0, discard1, engine(1, trial_failed())]);
    assert_eq!(driver.on_worker(slot(1), prepared(1), NOW), []);
    assert_eq!(driver.on_command(DISCARD, NOW), []);
    assert_eq!(driver.on_worker(slot(1), RELEASED, NOW), [Output::Left]);
}

/// Two groups of a trial trained side by side once: the engine launched the next one while a member of the last one took a long step.
#[test]
fn a_failure_that_the_trial_can_recover_from_is_reported_when_all_workers_are_free() {
    let reason = "no space".to_owned();
    for cause in [FailureCause::Infrastructure, FailureCause::Environment] {
        let failed = WorkerEvent::Failed { trial: TRIAL, reason: reason.clone(), cause };
        let mut driver = training(&[0, 1]);
        assert_eq!(driver.on_command(reshape(2, &[0, 1, 2]), NOW), [prepare(2)]);
        let all = [0, 1, 2].map(|index| release(index, FinalState::Discarded));
        assert_eq!(driver.on_worker(slot(2), failed, NOW), all);
        let mut own = driver.clone();
        assert_eq!(driver.on_worker(slot(0), RELEASED, NOW), []);
        assert_eq!(driver.on_command(reshape(3, &[0, 1]), NOW), [], "under the new generation");
        let event = GroupEvent::Failed { reason: reason.clone(), cause };
        assert_eq!(driver.on_lost(slot(1), NOW), [engine(3, event.clone())]);
        assert_eq!(driver.on_command(reshape(4, &[0]), NOW), [engine(4, event)]);
        assert_eq!(driver.on_command(DISCARD, NOW), [Output::Left]);
        // The trial's own failure is final, so nobody has to wait for it.
        assert_eq!(own.on_worker(slot(0), self::failed(), NOW), [engine(2, trial_failed())]);
    }
}

#[test]
fn an_end_that_crosses_a_reshape_is_announced_again_under_the_new_generation() {
    for (event, end) in [(finished(1), trial_finished()), (failed(), trial_failed())] {
        let mut driver = training(&[0]);
        let outputs = driver.on_worker(slot(0), event, NOW);
        assert_eq!(outputs, [release(0, FinalState::Discarded), engine(1, end.clone())]);
        assert_eq!(driver.on_command(reshape(2, &[0, 1]), NOW), [engine(2, end)]);
    }
}

#[test]
fn an_end_that_crosses_a_pause_is_the_end() {
    let mut driver = training(&[0]);
    assert_eq!(driver.on_command(SAVE, NOW), [release(0, FinalState::Saved)]);
    assert_eq!(driver.on_worker(slot(0), finished(1), NOW), [engine(1, trial_finished())]);
    assert_eq!(
        driver.on_worker(slot(0), CHECKPOINTED, NOW),
        [engine(1, GroupEvent::Checkpointed(checkpoint(0.0)))]
    );
    assert_eq!(driver.on_worker(slot(0), RELEASED, NOW), []);
    assert_eq!(driver.on_command(DISCARD, NOW), [Output::Left]);
}

#[test]
fn reports_wait_until_the_engine_knows_the_first_generation() {
    let (mut driver, _) = launch(&[0, 1]);
    for index in [0, 1] {
        driver.on_worker(slot(index), prepared(index), NOW).clear();
    }
    assert_eq!(driver.on_worker(slot(0), formed(1), NOW), []);
    assert_eq!(driver.on_worker(slot(0), reported(1, 0.25), NOW), []);
    assert_eq!(driver.on_worker(slot(0), CHECKPOINTED, NOW), [], "of a generation that nobody knows");
    assert_eq!(driver.on_worker(slot(0), reported(1, 0.5), NOW), []);
    let outputs = driver.on_worker(slot(1), formed(1), NOW);
    assert_eq!(outputs, [engine(1, GroupEvent::Formed), report(1, 1, 0.25), report(1, 2, 0.5)]);
}

#[test]
fn a_trial_that_ends_before_it_was_announced_still_reports_its_evaluations() {
    let (mut driver, _) = launch(&[0, 1]);
    for index in [0, 1] {
        driver.on_worker(slot(index), prepared(index), NOW).clear();
    }
    driver.on_worker(slot(0), formed(1), NOW).clear();
    assert_eq!(driver.on_worker(slot(0), reported(1, 1.0), NOW), []);
    let outputs = driver.on_worker(slot(0), finished(1), NOW);
    let [discard0, discard1] = [0, 1].map(|index| release(index, FinalState::Discarded));
    assert_eq!(outputs, [discard0, discard1, report(1, 1, 1.0), engine(1, trial_finished())]);
}

#[test]
fn evaluations_are_reported_one_by_one() {
    let mut driver = training(&[0]);
    let evaluation = |epochs: f64| super::super::Evaluation {
        epochs,
        values: BTreeMap::from([("loss".to_owned(), epochs)]),
    };
    let worker_report = WorkerReport {
        trial: TRIAL,
        epochs: 2.5,
        evaluations: vec![evaluation(1.0), evaluation(2.0)],
        ..WorkerReport::default()
    };
    let evaluated = |number, epochs: f64| {
        let metrics = Metrics::from([("loss".to_owned(), epochs.into())]);
        engine(1, GroupEvent::Reported(Report { number, epochs, metrics, ..Report::default() }))
    };
    let outputs = driver.on_worker(slot(0), WorkerEvent::Reported(Box::new(worker_report)), NOW);
    assert_eq!(outputs, [evaluated(1, 1.0), evaluated(2, 2.0), report(1, 3, 2.5)]);
}

#[test]
fn only_checkpoints_of_the_announced_generation_count() {
    let mut driver = training(&[0]);
    assert_eq!(driver.on_worker(slot(0), reported(1, 0.5), NOW), [report(1, 1, 0.5)]);
    let saved = |generation| engine(generation, GroupEvent::Checkpointed(checkpoint(0.5)));
    assert_eq!(driver.on_worker(slot(0), CHECKPOINTED, NOW), [saved(1)]);
    assert_eq!(driver.on_command(reshape(2, &[0, 1]), NOW), [prepare(1)]);
    assert_eq!(driver.on_worker(slot(0), CHECKPOINTED, NOW), []);
    assert_eq!(driver.on_worker(slot(1), prepared(1), NOW), form(2, &[0, 1], &[], &[0, 1], false));
    assert_eq!(driver.on_worker(slot(0), CHECKPOINTED, NOW), []);
    driver.on_worker(slot(0), formed(2), NOW).clear();
    assert_eq!(driver.on_worker(slot(1), formed(2), NOW), [engine(2, GroupEvent::Formed)]);
    assert_eq!(driver.on_worker(slot(0), CHECKPOINTED, NOW), [saved(2)]);
}

#[test]
fn events_of_other_trials_and_of_older_rounds_change_nothing() {
    let mut driver = training(&[0, 1]);
    assert_eq!(driver.on_worker(slot(0), broken(1), NOW), form(2, &[0, 1], &[], &[0, 1], true));
    assert_eq!(driver.on_worker(slot(1), broken(1), NOW), []);
    driver.on_worker(slot(0), formed(2), NOW).clear();
    let before = driver.clone();
    let other = TrialId(8);
    for event in [
        formed(1),
        broken(1),
        WorkerEvent::Failed { trial: other, reason: String::new(), cause: FailureCause::Trial },
        WorkerEvent::Released { trial: other },
        WorkerEvent::Finished { trial: other, round: round(2), metrics: BTreeMap::new() },
    ] {
        for index in [0, 1, 2] {
            assert_eq!(driver.on_worker(slot(index), event.clone(), NOW), []);
        }
    }
    assert_eq!(driver, before);
}

#[test]
fn survivors_resume_and_the_engine_is_asked_again_only_after_its_next_decision() {
    let mut driver = training(&[0, 1]);
    let halves = Batch { total: 128, accumulation: 1 };
    assert_eq!(driver.on_lost(slot(1), NOW), form_with(2, (&[0], &[]), &[0], true, halves));
    assert_eq!(driver.on_worker(slot(0), formed(2), NOW), [], "the generation is known already");
    assert_eq!(driver.on_command(reshape(2, &[0]), NOW), [engine(2, GroupEvent::Formed)]);
    assert_eq!(driver.on_command(reshape(3, &[0, 1]), NOW), [prepare(1)]);
}

#[test]
fn rounds_that_break_again_and_again_are_a_failure_of_the_infrastructure() {
    let mut driver = training(&[0]);
    for number in 1..=5 {
        assert_eq!(driver.on_worker(slot(0), broken(number), NOW), form(number + 1, &[0], &[], &[0], true));
    }
    let mut progressed = driver.clone();
    let reason = "5 groups in a row have broken without a step in between".to_owned();
    let failed = engine(1, GroupEvent::Failed { reason, cause: FailureCause::Infrastructure });
    let outputs = driver.on_worker(slot(0), broken(6), NOW);
    assert_eq!(outputs.last(), Some(&release(0, FinalState::Discarded)));
    assert_eq!(driver.on_worker(slot(0), RELEASED, NOW), [failed]);
    // A step in between makes all well.
    progressed.on_worker(slot(0), formed(6), NOW).clear();
    progressed.on_worker(slot(0), reported(6, 0.5), NOW).clear();
    assert_eq!(progressed.on_worker(slot(0), broken(6), NOW), form(7, &[0], &[], &[0], true));
}

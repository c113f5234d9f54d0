//! Workers that stand still, in virtual time.

use super::*;
use crate::trials::group::Activity;

/// A driver and its clock.
struct Clocked {
    driver: Driver,
    now_s: f64,
}

impl Clocked {
    /// A group that was launched at time 0.
    fn launched(indices: &[u32], limits: Limits) -> Self {
        let (generation, params) = (Generation(1), Params::default());
        let launch =
            Launch { generation, slots: slots(indices), params, batch: Some(BATCH), checkpoint: None };
        let (driver, _) = Driver::launch(task(), launch, limits, 0.0);
        Self { driver, now_s: 0.0 }
    }

    /// A group that trains, and has taken its first step.
    fn training(indices: &[u32], limits: Limits) -> Self {
        let mut clocked = Self::launched(indices, limits);
        clocked.all(indices, prepared);
        clocked.all(indices, |_| sign(1, Activity::Joining, 0.0));
        clocked.all(indices, |_| formed(1));
        clocked.all(indices, |_| sign(1, Activity::Training, 0.1));
        clocked
    }

    fn all(&mut self, indices: &[u32], event: impl Fn(u32) -> WorkerEvent) {
        for &index in indices {
            self.hear(index, event(index)).clear();
        }
    }

    fn hear(&mut self, index: u32, event: WorkerEvent) -> Vec<Output> {
        self.driver.on_worker(slot(index), event, self.now_s)
    }

    fn lose(&mut self, index: u32) -> Vec<Output> {
        self.driver.on_lost(slot(index), self.now_s)
    }

    fn command(&mut self, command: GroupCommand) -> Vec<Output> {
        self.driver.on_command(command, self.now_s)
    }

    /// Waits for so many seconds, in which nothing is heard. Gives what is done at its end, and expects nothing before.
    fn wait(&mut self, seconds: f64) -> Vec<Output> {
        let end_s = self.now_s + seconds;
        while let Some(at_s) = self.driver.deadline_s().filter(|at_s| *at_s < end_s) {
            assert!(at_s > self.now_s, "it waits for nothing");
            self.now_s = at_s;
            assert_eq!(self.driver.on_time(at_s), [], "after {} of {seconds} s", seconds - (end_s - at_s));
        }
        self.now_s = end_s;
        self.driver.on_time(end_s)
    }
}

fn sign(number: u64, activity: Activity, longest_step_s: f64) -> WorkerEvent {
    WorkerEvent::Progress { trial: TRIAL, round: round(number), steps: 1, longest_step_s, activity }
}

fn kill(index: u32, what: &str) -> Output {
    Output::Kill { slot: slot(index), reason: format!("worker 0.{index} {what}: it was killed") }
}

/// The round is over, and there is no other one.
fn leave_at_once(number: u64, index: u32) -> Output {
    let (round, batch) = (round(number), Batch { total: 128, accumulation: 1 });
    let form = Form { trial: TRIAL, round, members: Vec::new(), donors: Vec::new(), batch, broken: true };
    send(index, WorkerCommand::Form(form))
}

#[test]
fn a_worker_that_makes_no_step_is_killed_and_the_trial_goes_back_to_its_checkpoint_unblamed() {
    let mut one = Clocked::training(&[0], Limits::default());
    assert_eq!(one.wait(60.0), [kill(0, "made no step for 60 s, expected at most 60 s")]);
    // The engine hears of the loss from the node. Nothing of the group counts as a failure.
    assert_eq!(one.lose(0), []);
    assert_eq!(one.driver.deadline_s(), None);
}

#[test]
fn a_worker_whose_end_does_not_come_is_killed_again() {
    let mut one = Clocked::training(&[0], Limits::default());
    assert_eq!(one.wait(60.0), [kill(0, "made no step for 60 s, expected at most 60 s")]);
    assert_eq!(one.wait(60.0), [kill(0, "made no step for 120 s, expected at most 60 s")]);
}

#[test]
fn the_first_step_may_take_longer_and_so_may_the_first_one_with_another_batch() {
    let mut one = Clocked::launched(&[0], Limits::default());
    one.all(&[0], prepared);
    one.all(&[0], |_| sign(1, Activity::Joining, 0.0));
    one.all(&[0], |_| formed(1));
    assert_eq!(one.wait(299.0), []);
    // From then on this step is the measure.
    assert_eq!(one.hear(0, sign(1, Activity::Training, 30.0)), []);
    assert_eq!(one.wait(299.0), []);
    assert_eq!(one.wait(1.0), [kill(0, "made no step for 300 s, expected at most 300 s")]);

    let mut one = Clocked::training(&[0], Limits::default());
    assert_eq!(one.wait(59.0), []);
    assert_eq!(one.command(GroupCommand::Retune { batch: BATCH }).len(), 1);
    assert_eq!(one.wait(299.0), []);
    assert_eq!(one.hear(0, sign(1, Activity::Training, 0.1)), []);
    assert_eq!(one.wait(60.0), [kill(0, "made no step for 60 s, expected at most 60 s")]);
}

#[test]
fn limits_follow_the_longest_step_of_the_trial_on_whichever_worker() {
    let mut two = Clocked::training(&[0, 1], Limits::default());
    for _ in 0..3 {
        assert_eq!(two.wait(20.0), []);
        two.all(&[0], |_| sign(1, Activity::Training, 20.0));
        two.all(&[1], |_| sign(1, Activity::Training, 0.5));
    }
    assert_eq!(two.wait(199.0), []);
    two.all(&[0, 1], |_| sign(1, Activity::Training, 0.5));
    assert_eq!(two.wait(199.0), []);
    assert_ne!(two.wait(1.0), []);
}

#[test]
fn a_study_may_allow_less_or_more() {
    for silence_s in [3.0, 1000.0] {
        let limits = Limits { silence_s: Some(silence_s), ..Limits::default() };
        let mut one = Clocked::training(&[0], limits);
        let what = format!("made no step for {silence_s} s, expected at most {silence_s} s");
        assert_eq!(one.wait(silence_s), [kill(0, &what)]);
    }
}

/// An emulated second may be a millisecond: what counts is how long a worker is silent in real time.
#[test]
fn the_clock_of_emulated_workers_is_converted() {
    let limits = Limits { time_scale: 0.001, ..Limits::default() };
    let mut one = Clocked::training(&[0], limits);
    assert_eq!(one.hear(0, sign(1, Activity::Training, 2000.0)), []);
    assert_eq!(one.wait(60.0), [kill(0, "made no step for 60 s, expected at most 60 s")]);
    assert_eq!(one.hear(0, sign(1, Activity::Training, 20_000.0)), []);
    assert_eq!(one.wait(199.0), []);
    assert_eq!(one.hear(0, sign(1, Activity::Training, f64::NAN)), []);
    assert_eq!(one.wait(200.0), [kill(0, "made no step for 200 s, expected at most 200 s")]);
}

/// All members wait for the one that stands still, and are as silent as that one. Who can form another round is innocent.
#[test]
fn only_the_one_that_does_not_come_to_the_next_round_is_killed() {
    for guilty in [0, 1, 2] {
        let innocent: Vec<u32> = (0..3).filter(|index| *index != guilty).collect();
        let mut three = Clocked::training(&[0, 1, 2], Limits::default());
        assert_eq!(three.wait(60.0), form(2, &[0, 1, 2], &[], &[0, 1, 2], true));
        three.all(&innocent, |_| sign(2, Activity::Joining, 0.0));
        assert_eq!(three.wait(60.0), [kill(guilty, "made no step for 120 s, expected at most 60 s")]);
        let outputs = three.lose(guilty);
        let batch = Batch { total: 128, accumulation: 1 };
        assert_eq!(outputs, form_with(3, (&innocent, &[]), &innocent, true, batch));
        three.all(&innocent, |_| sign(3, Activity::Joining, 0.0));
        three.all(&innocent, |_| formed(3));
        // Whatever happened before, they have all the time that others have.
        assert_eq!(three.wait(299.0), []);
    }
}

#[test]
fn a_step_that_was_only_slow_costs_a_round_and_no_worker() {
    let mut two = Clocked::training(&[0, 1], Limits::default());
    assert_eq!(two.wait(60.0), form(2, &[0, 1], &[], &[0, 1], true));
    assert_eq!(two.wait(50.0), []);
    two.all(&[0, 1], |_| sign(2, Activity::Joining, 0.0));
    two.all(&[0, 1], |_| formed(2));
    assert_eq!(two.wait(299.0), []);
    two.all(&[0, 1], |_| sign(2, Activity::Training, 0.1));
    assert_eq!(two.driver.members(), slots(&[0, 1]));
}

#[test]
fn preparing_may_take_ten_minutes_and_disturbs_nobody_meanwhile() {
    let mut one = Clocked::training(&[0], Limits::default());
    assert_eq!(one.command(reshape(2, &[0, 1])), [prepare(1)]);
    for _ in 0..59 {
        assert_eq!(one.wait(10.0), []);
        one.all(&[0], |_| sign(1, Activity::Training, 0.1));
    }
    assert_eq!(one.wait(10.0), [kill(1, "has been preparing its trial for 600 s, expected at most 600 s")]);
    assert_eq!(one.lose(1), []);
    one.all(&[0], |_| sign(1, Activity::Training, 0.1));
    assert_eq!(one.wait(59.0), []);
}

#[test]
fn a_worker_that_does_not_come_to_its_rendezvous_is_killed_and_those_who_wait_for_it_are_not() {
    let mut two = Clocked::launched(&[0, 1], Limits::default());
    two.all(&[0], prepared);
    // The first one has nothing to do until the other one has prepared.
    assert_eq!(two.wait(500.0), []);
    two.all(&[1], prepared);
    two.all(&[0], |_| sign(1, Activity::Joining, 0.0));
    assert_eq!(two.wait(60.0), [kill(1, "has not answered for 60 s, expected at most 60 s")]);
    // The killed one may take its time to die.
    assert_eq!(two.wait(59.0), []);
}

#[test]
fn a_rendezvous_that_all_have_come_to_is_tried_again() {
    let mut two = Clocked::launched(&[0, 1], Limits::default());
    two.all(&[0, 1], prepared);
    two.all(&[0, 1], |_| sign(1, Activity::Joining, 0.0));
    assert_eq!(two.wait(300.0), form(2, &[0, 1], &[], &[0, 1], true));
    two.all(&[1], |_| sign(2, Activity::Joining, 0.0));
    assert_eq!(two.wait(300.0), [kill(0, "has been forming its group for 600 s, expected at most 300 s")]);
    // Alone there is nobody to wait for.
    let mut one = Clocked::launched(&[0], Limits::default());
    one.all(&[0], prepared);
    one.all(&[0], |_| sign(1, Activity::Joining, 0.0));
    assert_eq!(one.wait(300.0), [kill(0, "has been forming its group for 300 s, expected at most 300 s")]);
}

/// Members that can connect to nobody are all there each time.
#[test]
fn a_group_that_never_forms_fails_without_blame() {
    let mut two = Clocked::launched(&[0, 1], Limits::default());
    two.all(&[0, 1], prepared);
    for number in 1..=5 {
        two.all(&[0, 1], |_| sign(number, Activity::Joining, 0.0));
        assert_eq!(two.wait(300.0), form(number + 1, &[0, 1], &[], &[0, 1], true));
    }
    two.all(&[0, 1], |_| sign(6, Activity::Joining, 0.0));
    assert_ne!(two.wait(300.0), []);
    two.all(&[0], |_| RELEASED);
    let outputs = two.hear(1, RELEASED);
    let failure = |output: &Output| match output {
        Output::Engine { event: GroupEvent::Failed { cause, .. }, .. } => Some(*cause),
        _ => None,
    };
    assert_eq!(outputs.iter().find_map(failure), Some(FailureCause::Infrastructure), "{outputs:?}");
}

#[test]
fn evaluations_have_limits_of_their_own() {
    let mut one = Clocked::training(&[0], Limits::default());
    one.all(&[0], |_| sign(1, Activity::Evaluating, 0.1));
    assert_eq!(one.wait(500.0), []);
    one.all(&[0], |_| sign(1, Activity::Training, 0.0));
    // Steps are not measured by it, and other evaluations are.
    assert_eq!(one.wait(59.0), []);
    one.all(&[0], |_| sign(1, Activity::Evaluating, 0.1));
    assert_eq!(one.wait(4999.0), []);
    assert_eq!(one.wait(1.0), [kill(0, "has been evaluating for 5000 s, expected at most 5000 s")]);
}

#[test]
fn who_has_nothing_to_do_has_all_the_time() {
    let mut two = Clocked::training(&[0, 1], Limits::default());
    two.all(&[0, 1], |_| sign(1, Activity::Evaluating, 0.1));
    two.all(&[1], |_| sign(1, Activity::Idle, 0.0));
    two.all(&[0], |_| sign(1, Activity::Saving, 0.0));
    assert_eq!(two.wait(599.0), [], "the first rank saves, the other one waits");
    assert_eq!(two.hear(0, finished(1)).len(), 3);
    two.all(&[0, 1], |_| RELEASED);
    assert_eq!(two.driver.deadline_s(), None);
}

#[test]
fn a_worker_that_does_not_leave_is_killed() {
    let mut one = Clocked::training(&[0], Limits::default());
    assert_eq!(one.command(DISCARD), [release(0, FinalState::Discarded)]);
    assert_eq!(one.wait(60.0), [kill(0, "made no step for 60 s, expected at most 60 s")]);
    assert_eq!(one.lose(0), [Output::Left]);
    // One that trains no more.
    let mut one = Clocked::launched(&[0, 1], Limits::default());
    one.all(&[0], prepared);
    assert_eq!(one.command(DISCARD).len(), 2);
    assert_eq!(one.wait(60.0), [kill(0, "has not answered for 60 s, expected at most 60 s")]);
    assert_eq!(one.lose(0), []);
    assert_eq!(one.wait(540.0), [kill(1, "has been preparing its trial for 600 s, expected at most 600 s")]);
    assert_eq!(one.lose(1), [Output::Left]);
}

/// It had come to a rendezvous when the trial ended, where nobody else will come.
#[test]
fn a_worker_that_does_not_leave_a_rendezvous_is_killed() {
    let mut two = Clocked::launched(&[0, 1], Limits::default());
    two.all(&[0, 1], prepared);
    assert_eq!(two.command(DISCARD).len(), 2);
    two.all(&[1], |_| RELEASED);
    two.all(&[0], |_| sign(1, Activity::Joining, 0.0));
    assert_eq!(two.wait(300.0), [kill(0, "has been forming its group for 300 s, expected at most 300 s")]);
    assert_eq!(two.lose(0), [Output::Left]);
}

#[test]
fn a_checkpoint_that_is_never_written_ends_the_pause_without_blame() {
    let mut one = Clocked::training(&[0], Limits::default());
    assert_eq!(one.command(SAVE), [release(0, FinalState::Saved)]);
    one.all(&[0], |_| sign(1, Activity::Saving, 0.0));
    let what = "has been waiting for a checkpoint for 600 s, expected at most 600 s";
    assert_eq!(one.wait(600.0), [kill(0, what)]);
    let (reason, cause) = ("its state could not be saved".to_owned(), FailureCause::Infrastructure);
    assert_eq!(one.lose(0), [engine(1, GroupEvent::Failed { reason, cause }), Output::Left]);
}

/// It is the other one that the first rank waits for, or nothing can be saved anyway.
#[test]
fn who_is_to_save_the_state_is_killed_last() {
    let mut two = Clocked::training(&[0, 1], Limits::default());
    assert_eq!(two.command(SAVE).len(), 2);
    assert_eq!(two.wait(60.0), [kill(1, "made no step for 60 s, expected at most 60 s")]);
    let mut saved = Clocked { driver: two.driver.clone(), ..two };
    assert_eq!(saved.lose(1), [leave_at_once(2, 0)], "it need not notice that by itself");
    saved.all(&[0], |_| sign(1, Activity::Saving, 0.0));
    saved.all(&[0], |_| CHECKPOINTED);
    assert_eq!(saved.hear(0, RELEASED), [engine(1, GroupEvent::Paused(checkpoint(0.0))), Output::Left]);
    // It was itself.
    assert_eq!(two.lose(1), [leave_at_once(2, 0)]);
    assert_eq!(two.wait(60.0), [kill(0, "made no step for 120 s, expected at most 60 s")]);
}

#[test]
fn a_worker_that_is_to_leave_and_does_not_holds_up_nobody() {
    let mut two = Clocked::training(&[0, 1], Limits::default());
    assert_eq!(two.command(reshape(2, &[0])), form(2, &[0], &[], &[0, 1], false));
    // Both wait for a step that never comes.
    let outputs = two.wait(60.0);
    assert_eq!(outputs, form(3, &[0], &[], &[0], true));
    two.all(&[0], |_| sign(3, Activity::Joining, 0.0));
    two.all(&[0], |_| formed(3));
    assert_eq!(two.wait(10.0), [kill(1, "made no step for 70 s, expected at most 10 s")]);
    assert_eq!(two.lose(1), [engine(2, GroupEvent::Formed)]);
}

/// A machine is cut off, and with fewer workers the trial cannot go on: it is launched elsewhere as soon as the one that is left is free.
/// That one may stand in the middle of a step, waiting for the one that is gone.
#[test]
fn who_waits_for_one_that_is_gone_is_free_soon_whatever_comes_first() {
    let group = || Clocked::training(&[0, 1], Limits::default());
    let (mut lost_first, mut stopped_first) = (group(), group());
    assert_eq!(lost_first.wait(30.0), []);
    let alone = form_with(2, (&[0], &[]), &[0], true, Batch { total: 128, accumulation: 1 });
    assert_eq!(lost_first.lose(1), alone, "its step is aborted");
    assert_eq!(lost_first.command(DISCARD), [release(0, FinalState::Discarded)]);

    assert_eq!(stopped_first.wait(30.0), []);
    assert_eq!(stopped_first.command(DISCARD), [0, 1].map(|index| release(index, FinalState::Discarded)));
    assert_eq!(stopped_first.lose(1), [leave_at_once(2, 0)], "its step is aborted");

    for mut one in [lost_first, stopped_first] {
        assert_eq!(one.wait(9.0), []);
        let mut left = Clocked { driver: one.driver.clone(), ..one };
        assert_eq!(left.hear(0, RELEASED), [Output::Left]);
        // If that does not help either.
        assert_eq!(one.wait(1.0), [kill(0, "made no step for 40 s, expected at most 10 s")]);
    }
}

#[test]
fn who_is_to_leave_at_once_may_finish_a_long_step() {
    let mut two = Clocked::training(&[0, 1], Limits::default());
    two.all(&[0, 1], |_| sign(1, Activity::Training, 20.0));
    assert_eq!(two.command(DISCARD).len(), 2);
    assert_eq!(two.lose(1).len(), 1);
    assert_eq!(two.wait(40.0), [kill(0, "made no step for 40 s, expected at most 40 s")]);
}

/// A head that was stopped, or whose machine slept, has not heard of anybody, and what was sent meanwhile is still on its way.
#[test]
fn a_head_that_stood_still_itself_blames_nobody() {
    let mut one = Clocked::training(&[0], Limits::default());
    assert_eq!(one.wait(50.0), []);
    one.now_s += 1000.0;
    assert_eq!(one.driver.on_time(one.now_s), []);
    assert_eq!(one.wait(59.0), []);
    assert_eq!(one.wait(1.0), [kill(0, "made no step for 1110 s, expected at most 60 s")]);
}

//! What a head holds back for its journal: effects until facts are on disk, and inputs while nothing can be written.
//!
//! Whoever runs an engine owns an [`Outbox`], appends facts and waits for the disk; it says what may be done when. The actors do so
//! with a real disk, the seeded simulations with one that fails.
//!
//! *Architecture invariant:* nothing leaves the outbox before all facts that it follows from are in the journal and those among them that
//! create or end a trial are on disk; effects leave in the order of their facts, and inputs are taken in the order they came.

use std::{collections::VecDeque, mem, sync::Arc};

use super::engine::{Command, GroupCommand, GroupEvent, Input, JournalEntry, Outcome, Report, Step};
use crate::{
    goodput::Observations,
    ids::{NodeId, TrialId},
};

/// So many inputs wait at most. What is left after coalescing are losses and restarts of workers, a few in a minute.
const WAITING_MAX: usize = 10_000;

/// The first pause before a journal is written again that could not be, in seconds; each one is twice as long as the one before.
const PAUSE_S: f64 = 1.0;
/// The longest one.
pub(crate) const LONGEST_PAUSE_S: f64 = 30.0;

/// What can be noticed outside of the head.
#[derive(Debug, PartialEq)]
pub(crate) enum Effect<A> {
    /// These are shown, and the groups of trials that have ended are dropped.
    Facts(Arc<[JournalEntry]>),
    /// A command for a trial.
    Group(TrialId, GroupCommand),
    /// A machine is not needed any more.
    ReleaseNode(NodeId),
    /// The study ends.
    Finish(Outcome),
    /// Whoever waits for an input may go on.
    Acknowledge(A),
}

/// What may become of an input.
#[derive(Debug, PartialEq)]
pub(crate) enum Admission<A> {
    /// The engine takes it now.
    Taken(Input, Option<A>),
    /// It waits for the journal.
    Waits,
    /// It cannot wait: the head ends, and the next one finds all that is in the journal.
    Ends,
}

/// What the journal could not take.
#[derive(Debug, PartialEq)]
pub(crate) enum Unwritten<A> {
    /// The facts of this step.
    Step(Step, Option<A>),
    /// It took them, but they could not be brought to the disk.
    Sync,
}

/// What is to be told at once about a step that is in the journal.
#[derive(Debug, PartialEq)]
pub(crate) struct Told {
    /// For those who only think about facts; none if nothing became true.
    pub(crate) facts: Option<Arc<[JournalEntry]>>,
    /// Questions and alarms: whoever only thinks cannot be noticed outside.
    pub(crate) questions: Vec<Command>,
}

/// Holds effects and inputs of a head until its journal allows them. `A` acknowledges an input.
#[derive(Debug)]
pub(crate) struct Outbox<A> {
    held: Vec<Effect<A>>,
    /// A fact that has to survive a loss of power may not be on disk.
    is_unsettled: bool,
    blocked: Option<Unwritten<A>>,
    /// How often the journal could not be written in a row.
    tries: u32,
    waiting: VecDeque<(Input, Option<A>)>,
}

impl<A> Outbox<A> {
    pub(crate) const fn new() -> Self {
        Self { held: Vec::new(), is_unsettled: false, blocked: None, tries: 0, waiting: VecDeque::new() }
    }

    /// Whether the journal cannot be written for now.
    pub(crate) const fn is_blocked(&self) -> bool {
        self.blocked.is_some()
    }

    /// Whether effects wait for the disk.
    pub(crate) const fn is_unsettled(&self) -> bool {
        self.is_unsettled
    }

    /// Something has happened.
    pub(crate) fn admit(&mut self, input: Input, ack: Option<A>) -> Admission<A> {
        if self.blocked.is_none() {
            return Admission::Taken(input, ack);
        }
        // That cannot be written down either, and whoever asks for it does not want to wait.
        if input == Input::StopRequested {
            return Admission::Ends;
        }
        let Some(input) = self.coalesce(input, ack.is_some()) else { return Admission::Waits };
        if self.waiting.len() >= WAITING_MAX {
            return Admission::Ends;
        }
        self.waiting.push_back((input, ack));
        Admission::Waits
    }

    /// Makes one of an input and one that waits already, if that says the same; else it is given back. Alarms ring once, a trial has one
    /// report and one checkpoint. What somebody waits for has its own place: there is one for each trial at most.
    fn coalesce(&mut self, input: Input, is_awaited: bool) -> Option<Input> {
        if is_awaited {
            return Some(input);
        }
        if matches!(input, Input::Tick | Input::ReplanRequested) {
            return if self.waiting.iter().any(|(other, _)| *other == input) { None } else { Some(input) };
        }
        let Input::Group { trial, generation, event } = input else { return Some(input) };
        let concerns = |(other, _): &&mut (Input, Option<A>)| matches!(other, Input::Group { trial: of, .. } if *of == trial);
        // Not beyond anything else that has happened to the trial.
        let last = self.waiting.iter_mut().rev().find(concerns);
        let last = last.filter(|(_, ack)| ack.is_none()).map(|(input, _)| input);
        let event = match (last, event) {
            (
                Some(Input::Group { generation: of, event: GroupEvent::Reported(before), .. }),
                GroupEvent::Reported(report),
            ) if *of == generation => {
                merge(before, report);
                return None;
            }
            (
                Some(Input::Group { generation: of, event: GroupEvent::Checkpointed(before), .. }),
                GroupEvent::Checkpointed(checkpoint),
            ) if *of == generation => {
                *before = checkpoint;
                return None;
            }
            (_, event) => event,
        };
        Some(Input::Group { trial, generation, event })
    }

    /// The facts of a step are in the journal.
    pub(crate) fn written(&mut self, Step { facts, commands }: Step, ack: Option<A>) -> Told {
        let is_end = |command: &Command| matches!(command, Command::Finished(_));
        self.is_unsettled |=
            facts.iter().any(|entry| entry.fact.is_milestone()) || commands.iter().any(is_end);
        let facts: Option<Arc<[JournalEntry]>> = (!facts.is_empty()).then(|| facts.into());
        self.held.extend(facts.clone().map(Effect::Facts));
        let mut questions = Vec::new();
        for command in commands {
            match command {
                Command::Group { trial, command } => self.held.push(Effect::Group(trial, command)),
                Command::ReleaseNode { node } => self.held.push(Effect::ReleaseNode(node)),
                Command::Finished(outcome) => self.held.push(Effect::Finish(outcome)),
                command => questions.push(command),
            }
        }
        self.held.extend(ack.map(Effect::Acknowledge));
        Told { facts, questions }
    }

    /// A command that follows from no fact.
    pub(crate) fn hold(&mut self, trial: TrialId, command: GroupCommand) {
        self.held.push(Effect::Group(trial, command));
    }

    /// The journal could not be written. Gives how often in a row, and the seconds until it is tried again.
    pub(crate) fn block(&mut self, unwritten: Unwritten<A>) -> (u32, f64) {
        self.blocked = Some(unwritten);
        self.tries = self.tries.saturating_add(1);
        let doubled = PAUSE_S * f64::from(1_u32 << (self.tries - 1).min(8));
        (self.tries, doubled.min(LONGEST_PAUSE_S))
    }

    /// What the journal is to be tried with again; whoever takes it calls [`unblock`](Self::unblock) or [`block`](Self::block).
    pub(crate) fn take_unwritten(&mut self) -> Option<Unwritten<A>> {
        self.blocked.take()
    }

    /// The journal can be written again. Gives how often it could not.
    pub(crate) fn unblock(&mut self) -> u32 {
        mem::take(&mut self.tries)
    }

    /// The next input that has waited, if the journal can be written.
    pub(crate) fn next_waiting(&mut self) -> Option<(Input, Option<A>)> {
        if self.is_blocked() { None } else { self.waiting.pop_front() }
    }

    /// All facts so far are on disk.
    pub(crate) const fn settled(&mut self) {
        self.is_unsettled = false;
    }

    /// What may be done now, in this order.
    pub(crate) fn release(&mut self) -> Vec<Effect<A>> {
        if self.is_unsettled { Vec::new() } else { mem::take(&mut self.held) }
    }

    /// Nothing of it will ever be done.
    pub(crate) fn clear(&mut self) {
        *self = Self::new();
    }
}

/// Adds a report to the one before it: the last value of each metric, and all steps.
fn merge(before: &mut Report, Report { number, epochs, metrics, steps, noise, noise_batch }: Report) {
    let mut all = Observations::default();
    for steps in before.steps.iter().chain(&steps) {
        // One that cannot be used would not have been used later either.
        let _ = all.add(steps);
    }
    before.steps = all.iter().collect();
    before.metrics.extend(metrics);
    if noise.is_some() {
        (before.noise, before.noise_batch) = (noise, noise_batch);
    }
    (before.number, before.epochs) = (number, epochs);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        goodput::{Observation, Shape},
        ids::{Generation, NodeId, SlotId},
        trials::engine::{Checkpoint, Fact, SuggestRequest},
    };

    fn report(trial: u32, number: u32) -> Input {
        let shape = Shape::new(1, 1).unwrap();
        let steps = Observation { shape, per_gpu: 8.0, accumulation: 0, iter_time_s: 0.1, steps: 5.0 };
        let report = Report {
            number,
            epochs: f64::from(number),
            metrics: [("loss".to_owned(), f64::from(number).into())].into(),
            steps: vec![steps],
            noise: None,
            noise_batch: None,
        };
        Input::group(TrialId(trial), Generation(1), GroupEvent::Reported(report))
    }

    fn lost(index: u32) -> Input {
        Input::WorkerLost { slot: SlotId { node: NodeId(0), index }, reason: "killed".to_owned() }
    }

    fn fact(fact: Fact) -> JournalEntry {
        JournalEntry { at_s: 0.0, fact }
    }

    fn drain(outbox: &mut Outbox<u32>) -> Vec<Input> {
        outbox.take_unwritten();
        std::iter::from_fn(|| Some(outbox.next_waiting()?.0)).collect()
    }

    #[test]
    fn effects_wait_for_the_disk_and_questions_do_not() {
        let mut outbox = Outbox::new();
        let request = SuggestRequest { revision: 1, trial: TrialId(1) };
        let done = fact(Fact::TrialDone { trial: TrialId(0), values: vec![1.0] });
        let commands = vec![Command::Suggest(request), Command::Finished(Outcome::Done)];
        let told = outbox.written(Step { facts: vec![done.clone()], commands }, Some(7));
        assert_eq!(told.questions, [Command::Suggest(request)]);
        assert_eq!(told.facts.as_deref(), Some(&[done][..]));
        assert!(outbox.is_unsettled() && outbox.release().is_empty());
        outbox.settled();
        let effects = outbox.release();
        assert!(matches!(
            effects[..],
            [Effect::Facts(_), Effect::Finish(Outcome::Done), Effect::Acknowledge(7)]
        ));
        outbox.written(Step { facts: vec![fact(Fact::StudyResumed {})], commands: vec![] }, None);
        assert!(matches!(outbox.release()[..], [Effect::Facts(_)]), "that need not survive a loss of power");
    }

    #[test]
    fn what_waits_for_a_journal_is_bounded() {
        let mut outbox = Outbox::new();
        assert_eq!(outbox.admit(Input::Tick, Some(1)), Admission::Taken(Input::Tick, Some(1)));
        assert_eq!(outbox.block(Unwritten::Sync), (1, 1.0));
        let checkpoint = |epochs: f64| {
            let event = GroupEvent::Checkpointed(Checkpoint { name: "trial-1".to_owned(), epochs });
            Input::group(TrialId(1), Generation(1), event)
        };
        for number in 1..=5000 {
            for input in
                [Input::Tick, report(0, number), checkpoint(f64::from(number)), Input::ReplanRequested]
            {
                assert_eq!(outbox.admit(input, None), Admission::Waits);
            }
        }
        assert_eq!(outbox.admit(report(0, 5001), Some(3)), Admission::Waits);
        assert_eq!(outbox.admit(lost(0), None), Admission::Waits);
        let waiting = drain(&mut outbox);
        assert_eq!(waiting.len(), 6, "{waiting:?}");
        let Input::Group { event: GroupEvent::Reported(merged), .. } = &waiting[1] else {
            panic!("{waiting:?}")
        };
        assert_eq!((merged.number, merged.epochs, merged.metrics["loss"].value()), (5000, 5000.0, 5000.0));
        assert!(merged.steps.len() == 1 && merged.steps[0].steps > 5.0, "{:?}", merged.steps);
        assert_eq!((&waiting[2], &waiting[4]), (&checkpoint(5000.0), &report(0, 5001)));
    }

    #[test]
    fn reports_do_not_pass_what_came_between() {
        let mut outbox = Outbox::new();
        outbox.block(Unwritten::Sync);
        let formed = Input::group(TrialId(0), Generation(2), GroupEvent::Formed);
        let inputs = [report(0, 1), formed, report(1, 1), report(0, 2)];
        for input in inputs.clone() {
            assert_eq!(outbox.admit(input, None), Admission::Waits);
        }
        assert_eq!(drain(&mut outbox), inputs);
    }

    #[test]
    fn a_head_that_waits_for_too_much_ends_and_one_that_is_to_stop_does_so() {
        let mut outbox = Outbox::<u32>::new();
        outbox.block(Unwritten::Sync);
        for index in 0..WAITING_MAX as u32 {
            assert_eq!(outbox.admit(lost(index), None), Admission::Waits);
        }
        assert_eq!(outbox.admit(lost(0), None), Admission::Ends);
        outbox.clear();
        outbox.block(Unwritten::Sync);
        assert_eq!(outbox.admit(Input::StopRequested, None), Admission::Ends);
    }

    #[test]
    fn pauses_grow_until_the_journal_can_be_written() {
        let mut outbox = Outbox::<u32>::new();
        let pauses: Vec<f64> = (0..7).map(|_| outbox.block(Unwritten::Sync).1).collect();
        assert_eq!(pauses, [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]);
        assert_eq!(outbox.take_unwritten(), Some(Unwritten::Sync));
        assert_eq!((outbox.unblock(), outbox.block(Unwritten::Sync)), (7, (1, 1.0)));
    }
}

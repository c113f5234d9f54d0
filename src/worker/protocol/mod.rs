//! The workers' side of the worker-group protocol, for whatever [`Backend`] trains. The head's side is
//! [`trials::group::Driver`](crate::trials::group::Driver); `docs/architecture.md` has a picture of both.

mod backend;
mod heartbeat;
mod inbox;
mod reporter;
#[cfg(test)]
mod tests;

use tokio::sync::mpsc::UnboundedReceiver;

pub(crate) use self::backend::{Backend, Failure, Role, StepProgress, StepRequest};
use self::{
    heartbeat::Heartbeat,
    inbox::{Inbox, Leave},
    reporter::RankZeroReporter,
};
use crate::{
    ids::{Round, SlotId, TrialId},
    trials::{
        engine::FailureCause,
        group::{Activity, Evaluation, FinalState, Form, Task, WorkerCommand, WorkerEvent},
    },
    worker::checkpoint::NotSaved,
};

/// A worker: hosts a rank of whatever trial it is given, one at a time.
pub(crate) struct Worker<B: Backend, S> {
    slot: SlotId,
    backend: B,
    inbox: Inbox,
    /// Sends an event to the head. When that is gone, nobody hears it.
    send: S,
    hosted: Option<Hosted<B::Session>>,
}

/// A trial that the worker has prepared.
struct Hosted<S> {
    task: Task,
    /// The latest group that it was to join.
    round: Round,
    session: S,
    /// A checkpoint is being written.
    is_saving: bool,
    /// Why the last checkpoint is not on disk.
    not_saved: Option<NotSaved>,
}

/// Why a worker takes part in a group no longer.
#[derive(Debug)]
enum Stop {
    /// It was to leave, or the trial is complete: so do all members.
    Left,
    /// It was to leave before all were there.
    GivenUp,
    /// It has handed over the state.
    Donated,
    /// The head knows that the group is broken: it was left in the middle of a step that so fails for the others, too.
    Aborted,
    Failed(Failure),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl<B: Backend, S: Fn(WorkerEvent)> Worker<B, S> {
    pub(crate) const fn new(
        slot: SlotId,
        backend: B,
        commands: UnboundedReceiver<WorkerCommand>,
        send: S,
    ) -> Self {
        Self { slot, backend, inbox: Inbox::new(commands), send, hosted: None }
    }

    /// Follows the commands of the head until it is gone. Then it leaves its group, together with its members if all of them know of it,
    /// and saves the state of its trial.
    pub(crate) async fn run(mut self) {
        while let Some(command) = self.inbox.next().await {
            self.follow(command).await;
        }
        if let Some(hosted) = self.hosted.take() {
            self.release(hosted, FinalState::Saved);
        }
    }

    async fn follow(&mut self, command: WorkerCommand) {
        match command {
            WorkerCommand::Prepare(task) => self.prepare(*task).await,
            WorkerCommand::Form(form) => self.form(&form).await,
            // Its group is gone.
            WorkerCommand::Retune { .. } => {}
            WorkerCommand::Release { trial, state } => match self.hosted.take_if(|it| it.task.trial == trial)
            {
                Some(hosted) => self.release(hosted, state),
                None => self.send(WorkerEvent::Released { trial }),
            },
        }
    }

    fn send(&self, event: WorkerEvent) {
        (self.send)(event);
    }

    /// Says what it is going to do: the head allows more time for some of it.
    fn announce(&self, hosted: &Hosted<B::Session>, activity: Activity, longest_step_s: f64) {
        let (trial, round) = (hosted.task.trial, hosted.round);
        let steps = self.backend.steps(&hosted.session).unwrap_or(0);
        self.send(WorkerEvent::Progress { trial, round, steps, longest_step_s, activity });
    }

    async fn prepare(&mut self, task: Task) {
        let trial = task.trial;
        self.hosted = None;
        match self.backend.prepare(task.clone()).await {
            Ok(session) => {
                self.hosted =
                    Some(Hosted { task, round: Round(0), session, is_saving: false, not_saved: None });
                self.send(WorkerEvent::Prepared { trial, rendezvous_addr: self.backend.rendezvous_addr() });
            }
            Err(failure) => self.fail(trial, failure),
        }
    }

    fn fail(&self, trial: TrialId, failure: Failure) {
        let (reason, cause) = match failure {
            Failure::Trial(reason) => (reason, FailureCause::Trial),
            Failure::Group(reason) => (reason, FailureCause::Infrastructure),
            Failure::Environment(reason) => (reason, FailureCause::Environment),
        };
        self.send(WorkerEvent::Failed { trial, reason, cause });
    }

    /// Forgets a trial.
    fn release(&mut self, mut hosted: Hosted<B::Session>, state: FinalState) {
        let trial = hosted.task.trial;
        let is_to_save = state == FinalState::Saved && self.backend.steps(&hosted.session).is_some();
        if hosted.is_saving || is_to_save {
            self.announce(&hosted, Activity::Saving, 0.0);
        }
        if is_to_save {
            self.save(&mut hosted, true);
        } else {
            self.settle_checkpoint(&mut hosted, true);
        }
        let not_saved = hosted.not_saved.take_if(|_| is_to_save);
        // What belongs to the trial is over before the head knows.
        drop(hosted);
        match not_saved {
            Some(NotSaved(reason)) => self.fail(trial, Failure::Environment(reason)),
            None => self.send(WorkerEvent::Released { trial }),
        }
    }

    /// Reports a checkpoint that is on disk; with `wait`, waits for one that is being written.
    fn settle_checkpoint(&mut self, hosted: &mut Hosted<B::Session>, wait: bool) {
        if !hosted.is_saving {
            return;
        }
        match self.backend.saved(&mut hosted.session, wait) {
            Ok(None) => {}
            Ok(Some(steps)) => {
                (hosted.is_saving, hosted.not_saved) = (false, None);
                self.send(WorkerEvent::Checkpointed { trial: hosted.task.trial, steps });
            }
            Err(problem) => self.not_saved(hosted, problem),
        }
    }

    /// Writes a checkpoint, after the last one is on disk.
    fn save(&mut self, hosted: &mut Hosted<B::Session>, wait: bool) {
        self.settle_checkpoint(hosted, true);
        match self.backend.save(&mut hosted.session, hosted.round) {
            Ok(()) => hosted.is_saving = true,
            Err(problem) => self.not_saved(hosted, problem),
        }
        self.settle_checkpoint(hosted, wait);
    }

    /// There is one checkpoint less, and that is all. It is told once, until one can be written again.
    fn not_saved(&self, hosted: &mut Hosted<B::Session>, problem: NotSaved) {
        hosted.is_saving = false;
        let NotSaved(reason) = problem.clone();
        match hosted.not_saved.replace(problem) {
            Some(_) => {}
            None => self.send(WorkerEvent::CheckpointFailed { trial: hosted.task.trial, reason }),
        }
    }

    /// Takes part in a new group for as long as it lasts.
    async fn form(&mut self, form: &Form) {
        let (trial, round) = (form.trial, form.round);
        let Some(mut hosted) = self.hosted.take_if(|hosted| hosted.task.trial == trial) else {
            if Role::of(self.slot, form) == Role::Leave {
                // It has left already.
                return;
            }
            let reason = "the worker was asked to train before it had prepared".to_owned();
            return self.send(WorkerEvent::Broken { trial, round, steps: None, reason });
        };
        if round <= hosted.round {
            // Of a group that has been replaced since.
            self.hosted = Some(hosted);
            return;
        }
        hosted.round = round;
        let role = Role::of(self.slot, form);
        if role == Role::Leave {
            return self.release(hosted, FinalState::Discarded);
        }
        self.announce(&hosted, Activity::Joining, 0.0);
        match self.take_part(form, role, &mut hosted).await {
            Stop::Donated => {
                self.inbox.poll();
                // Whether anybody keeps what it has handed over is not known then.
                let state = if self.inbox.is_over() { FinalState::Saved } else { FinalState::Discarded };
                self.release(hosted, state);
            }
            // The first rank saves for all.
            Stop::Left if self.inbox.is_over() && role != Role::Train(0) => {
                self.release(hosted, FinalState::Discarded);
            }
            Stop::Left | Stop::GivenUp | Stop::Aborted => self.hosted = Some(hosted),
            Stop::Failed(Failure::Group(reason)) => {
                let steps = self.backend.steps(&hosted.session);
                self.hosted = Some(hosted);
                self.send(WorkerEvent::Broken { trial, round, steps, reason });
            }
            Stop::Failed(failure) => {
                if hosted.is_saving {
                    // It is waited for.
                    self.announce(&hosted, Activity::Saving, 0.0);
                }
                drop(hosted);
                self.fail(trial, failure);
            }
        }
    }

    async fn take_part(&mut self, form: &Form, role: Role, hosted: &mut Hosted<B::Session>) -> Stop {
        let mut group = match self.backend.join(&hosted.session, form, role) {
            Ok(group) => group,
            Err(failure) => return failure.into(),
        };
        let stop = match self.join(role, hosted, &mut group).await {
            Ok(()) => {
                let trained = Training { worker: self, hosted, group: &mut group, role }.run().await;
                trained.unwrap_or_else(|stop| stop)
            }
            Err(stop) => stop,
        };
        match stop {
            Stop::Aborted => self.backend.abort(&mut hosted.session, group),
            _ => self.backend.leave(group),
        }
        stop
    }

    /// Joins the group, and gets the state.
    async fn join(
        &mut self,
        role: Role,
        hosted: &mut Hosted<B::Session>,
        group: &mut B::Group,
    ) -> Result<(), Stop> {
        let (trial, round) = (hosted.task.trial, hosted.round);
        let Self { backend, inbox, .. } = self;
        let pause = {
            let mut meeting = std::pin::pin!(backend.rendezvous(&mut hosted.session, group));
            loop {
                if inbox.leave(trial, round).is_some() {
                    return Err(Stop::GivenUp);
                }
                tokio::select! {
                    biased;
                    () = inbox.receive() => {}
                    met = &mut meeting => break met?,
                }
            }
        };
        if let Role::Donate(_) = role {
            return Err(Stop::Donated);
        }
        if let Some(reason) = self.backend.warning(&mut hosted.session) {
            self.send(WorkerEvent::CheckpointFailed { trial, reason });
        }
        let steps = self.backend.steps(&hosted.session).unwrap_or(0);
        self.send(WorkerEvent::Formed { trial, round, steps, pause });
        Ok(())
    }
}

/// One rank of a group that trains, from its first step to its last.
struct Training<'a, B: Backend, S> {
    worker: &'a mut Worker<B, S>,
    hosted: &'a mut Hosted<B::Session>,
    group: &'a mut B::Group,
    role: Role,
}

impl<B: Backend, S: Fn(WorkerEvent)> Training<'_, B, S> {
    /// Trains until the group is left, the trial is complete, or something fails.
    async fn run(mut self) -> Result<Stop, Stop> {
        let (trial, round) = (self.hosted.task.trial, self.hosted.round);
        let (now_s, steps) = (self.worker.backend.now_s(), self.worker.backend.steps(&self.hosted.session));
        let mut heartbeat = Heartbeat::new(&self.hosted.task, now_s, steps);
        let mut reporter =
            (self.role == Role::Train(0)).then(|| RankZeroReporter::new(&self.hosted.task, now_s));
        while !self.worker.backend.is_finished(&self.hosted.session)? {
            let leave = self.worker.inbox.leave(trial, round);
            if leave == Some(Leave::Broken) {
                return Ok(Stop::Aborted);
            }
            let request = StepRequest {
                leave: leave.is_some(),
                batch: self.worker.inbox.batch(trial, round),
                wake_s: reporter
                    .as_ref()
                    .map_or(f64::INFINITY, RankZeroReporter::wake_s)
                    .min(heartbeat.due_s()),
            };
            let Worker { inbox, backend, .. } = &mut *self.worker;
            let progress = tokio::select! {
                biased;
                () = inbox.receive() => continue,
                progress = backend.train(&mut self.hosted.session, self.group, request) => progress,
            };
            // Also if that has broken the group: the next one should know.
            if let Some(memory) = self.worker.backend.memory(&mut self.hosted.session) {
                self.worker.send(WorkerEvent::OutOfMemory { trial, memory });
            }
            let mut progress = progress.map_err(|failure| self.stopped_by(failure))?;
            if progress.retuned {
                self.worker.inbox.remove_batch(trial, round);
            }
            self.beat(&mut heartbeat);
            if progress.wants_evaluation {
                progress.evaluations.push(self.evaluate(&mut heartbeat)?);
            }
            self.worker.settle_checkpoint(self.hosted, false);
            if let Some(reporter) = &mut reporter {
                reporter.evaluated(progress.evaluations);
                self.stepped(reporter, progress.left)?;
            }
            if progress.left {
                return Ok(Stop::Left);
            }
        }
        self.finish(reporter, &mut heartbeat)
    }

    /// A sign of progress after steps, if it is time.
    fn beat(&self, heartbeat: &mut Heartbeat) {
        let (now_s, backend) = (self.worker.backend.now_s(), &self.worker.backend);
        heartbeat.stepped(now_s, backend.steps(&self.hosted.session));
        if let Some(longest_s) = heartbeat.take_due(now_s) {
            self.worker.announce(self.hosted, Activity::Training, longest_s);
        }
    }

    /// Evaluates together with all members, which may take much longer than a step.
    fn evaluate(&mut self, heartbeat: &mut Heartbeat) -> Result<Evaluation, Stop> {
        let longest_s = heartbeat.take(self.worker.backend.now_s());
        self.worker.announce(self.hosted, Activity::Evaluating, longest_s);
        let evaluated = self.worker.backend.evaluate(&mut self.hosted.session, self.group);
        let evaluated = evaluated.map_err(|failure| self.stopped_by(failure))?;
        heartbeat.resume(self.worker.backend.now_s());
        self.worker.announce(self.hosted, Activity::Training, 0.0);
        Ok(evaluated)
    }

    /// A group that is to be left anyway may end in the middle of a step, of which the head knows.
    fn stopped_by(&mut self, failure: Failure) -> Stop {
        self.worker.inbox.poll();
        let leave = self.worker.inbox.leave(self.hosted.task.trial, self.hosted.round);
        match failure {
            Failure::Group(_) if leave.is_some() => Stop::Aborted,
            failure => failure.into(),
        }
    }

    /// What the first rank does after steps.
    fn stepped(&mut self, reporter: &mut RankZeroReporter, left: bool) -> Result<(), Stop> {
        let Self { worker, hosted, .. } = self;
        if left {
            let has_unreported = reporter.has_unreported(worker.backend.steps(&hosted.session));
            return if has_unreported { self.report(reporter) } else { Ok(()) };
        }
        if worker.backend.is_finished(&hosted.session)? {
            // Everything is reported together with the end.
            return Ok(());
        }
        let now_s = worker.backend.now_s();
        if !hosted.is_saving && reporter.wants_checkpoint(now_s) {
            reporter.saving(now_s);
            worker.save(hosted, false);
        }
        if reporter.wants_report(now_s) { self.report(reporter) } else { Ok(()) }
    }

    fn report(&mut self, reporter: &mut RankZeroReporter) -> Result<(), Stop> {
        let Self { worker, hosted, group, .. } = self;
        let mut report = worker.backend.measure(&mut hosted.session, group)?;
        (report.trial, report.round) = (hosted.task.trial, hosted.round);
        report.evaluations = reporter.reported(worker.backend.now_s(), report.steps);
        worker.send(WorkerEvent::Reported(Box::new(report)));
        Ok(())
    }

    /// The trial is complete: all evaluate, and the first rank saves and reports.
    fn finish(
        &mut self,
        reporter: Option<RankZeroReporter>,
        heartbeat: &mut Heartbeat,
    ) -> Result<Stop, Stop> {
        let last = self.evaluate(heartbeat)?;
        if let Some(mut reporter) = reporter {
            let metrics = last.values.clone();
            reporter.evaluated([last]);
            self.report(&mut reporter)?;
            self.worker.announce(self.hosted, Activity::Saving, 0.0);
            self.worker.save(self.hosted, true);
            let (trial, round) = (self.hosted.task.trial, self.hosted.round);
            self.worker.send(WorkerEvent::Finished { trial, round, metrics });
        } else {
            self.worker.announce(self.hosted, Activity::Idle, 0.0);
        }
        Ok(Stop::Left)
    }
}

//! Training with libtorch, behind the worker protocol.

use std::time::Instant;

use tch::Device;

use super::{checkpoint, session::Session, team::Team, trainable::Registry, transfer::StateTransfer};
use crate::{
    ids::Round,
    trials::group::{Batch, Evaluation, Form, MemoryLimit, Pause, Task, WorkerReport},
    wire::with_causes,
    worker::{
        Error,
        abort::Aborts,
        checkpoint::{CheckpointWriter, NotSaved},
        host::HostedTrial,
        protocol::{Backend, Failure, Role, StepProgress, StepRequest},
        rendezvous::Rendezvous,
    },
};

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let reason = with_causes(&error);
        if error.is_of_the_group() {
            Self::Group(reason)
        } else if error.is_of_the_environment() {
            Self::Environment(reason)
        } else {
            Self::Trial(reason)
        }
    }
}

pub(super) struct TorchBackend<'a> {
    registry: &'a Registry,
    device: Device,
    /// Where groups meet whose first member is this worker.
    rendezvous: Rendezvous,
    aborts: Aborts,
    hosted: HostedTrial,
    started: Instant,
}

impl<'a> TorchBackend<'a> {
    pub(super) fn new(
        registry: &'a Registry,
        device: Device,
        rendezvous: Rendezvous,
        aborts: Aborts,
        hosted: HostedTrial,
    ) -> Self {
        Self { registry, device, rendezvous, aborts, hosted, started: Instant::now() }
    }
}

/// A trial that was prepared.
pub(super) struct Prepared {
    session: Session,
    writer: CheckpointWriter,
    _hosting: Hosting,
}

/// Names the trial for as long as there is anything of it.
struct Hosting(HostedTrial);

impl Drop for Hosting {
    fn drop(&mut self) {
        self.0.set(None);
    }
}

/// A group that was joined.
pub(super) struct Group {
    form: Form,
    role: Role,
    batch: Batch,
    /// Once it is together.
    team: Option<Team>,
    aborts: Aborts,
}

impl Group {
    fn team(&mut self) -> Result<&mut Team, Error> {
        self.team.as_mut().ok_or_else(|| Error::Protocol("the group is not together".to_owned()))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.aborts.clear();
    }
}

impl Backend for TorchBackend<'_> {
    type Session = Prepared;
    type Group = Group;

    fn rendezvous_addr(&self) -> String {
        self.rendezvous.address().to_owned()
    }

    fn now_s(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    async fn prepare(&mut self, task: Task) -> Result<Prepared, Failure> {
        let hosting = Hosting(self.hosted.clone());
        self.hosted.set(Some(task.trial));
        let session = Session::new(task, self.registry, self.device)?;
        Ok(Prepared { session, writer: CheckpointWriter::default(), _hosting: hosting })
    }

    fn steps(&self, prepared: &Prepared) -> Option<u64> {
        prepared.session.books.state_steps()
    }

    fn is_finished(&self, prepared: &Prepared) -> Result<bool, Failure> {
        Ok(prepared.session.is_finished()?)
    }

    fn join(&mut self, _: &Prepared, form: &Form, role: Role) -> Result<Group, Failure> {
        let aborts = self.aborts.clone();
        Ok(Group { form: form.clone(), role, batch: form.batch, team: None, aborts })
    }

    async fn rendezvous(&mut self, prepared: &mut Prepared, group: &mut Group) -> Result<Pause, Failure> {
        let transfer = StateTransfer::new(&self.rendezvous, self.device, &group.form, &self.aborts);
        let (team, pause) = transfer.run(group.role, &mut prepared.session).await?;
        group.team = team;
        self.hosted.set_state();
        prepared.session.books.forget_seen();
        Ok(pause)
    }

    /// One step.
    async fn train(
        &mut self,
        prepared: &mut Prepared,
        group: &mut Group,
        request: StepRequest,
    ) -> Result<StepProgress, Failure> {
        // Here the worker looks at its commands.
        tokio::task::yield_now().await;
        let (session, batch) = (&mut prepared.session, group.batch);
        let team = group.team()?;
        let agreed = session.step(team, batch, request.leave, request.batch.is_some())?;
        let mut progress = StepProgress { left: agreed.leave, ..StepProgress::default() };
        if let (true, Some(batch)) = (agreed.retune, request.batch) {
            session.begin(team)?;
            progress.retuned = true;
            group.batch = batch;
        }
        progress.wants_evaluation = session.wants_evaluation()? && !session.is_finished()?;
        if group.team()?.rank > 0 {
            session.books.forget_seen();
        }
        Ok(progress)
    }

    fn evaluate(&mut self, prepared: &mut Prepared, group: &mut Group) -> Result<Evaluation, Failure> {
        let values = prepared.session.evaluate(group.team()?)?;
        Ok(Evaluation { epochs: prepared.session.epochs()?, values })
    }

    fn measure(&mut self, prepared: &mut Prepared, group: &mut Group) -> Result<WorkerReport, Failure> {
        let batch = group.batch;
        Ok(prepared.session.report(group.team()?, batch)?)
    }

    fn memory(&mut self, prepared: &mut Prepared) -> Option<MemoryLimit> {
        prepared.session.memory.news()
    }

    fn warning(&mut self, prepared: &mut Prepared) -> Option<String> {
        prepared.session.warning.take()
    }

    fn save(&mut self, prepared: &mut Prepared, round: Round) -> Result<(), NotSaved> {
        checkpoint::save(&prepared.session, round, &mut prepared.writer)
    }

    fn saved(&mut self, prepared: &mut Prepared, wait: bool) -> Result<Option<u64>, NotSaved> {
        prepared.writer.finish(wait)
    }

    fn leave(&mut self, group: Group) {
        drop(group);
    }

    fn abort(&mut self, _: &mut Prepared, group: Group) {
        drop(group);
    }
}

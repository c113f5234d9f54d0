//! What training itself has to provide: the seam between the protocol and the ways to train.

use crate::{
    ids::{Round, SlotId},
    trials::group::{Batch, Evaluation, Form, MemoryLimit, Pause, Task, WorkerReport},
    worker::checkpoint::NotSaved,
};

/// Why a worker cannot continue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The group has lost a member or could not be formed. The trial can continue in another group.
    Group(String),
    /// The trial itself is to blame: another worker would fail as well.
    Trial(String),
    /// Something that all trials share is to blame, such as a full disk.
    Environment(String),
}

/// What a worker does in a new group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Train with this rank.
    Train(u32),
    /// Hand over the state, then forget the trial. Donors come after the members in the group that hands over.
    Donate(u32),
    /// Forget the trial.
    Leave,
}

impl Role {
    /// That of the worker of a slot.
    pub(crate) fn of(slot: SlotId, form: &Form) -> Self {
        let place = |list: &[crate::trials::group::Member]| {
            list.iter().position(|member| member.slot == slot).map(|at| at as u32)
        };
        match (place(&form.members), place(&form.donors)) {
            (Some(rank), _) => Self::Train(rank),
            (None, Some(at)) => Self::Donate(form.members.len() as u32 + at),
            (None, None) => Self::Leave,
        }
    }
}

/// What the head and the protocol want of the next steps.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct StepRequest {
    /// Leave the group at the end of a step, with all its members.
    pub(crate) leave: bool,
    /// Use another batch from the next step on that all members can agree on.
    pub(crate) batch: Option<Batch>,
    /// Return after the first step that ends at this moment or later.
    pub(crate) wake_s: f64,
}

/// What has become of a [`StepRequest`].
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct StepProgress {
    /// All members leave the group.
    pub(crate) left: bool,
    /// The other batch is in use, or is of no use any more.
    pub(crate) retuned: bool,
    /// Evaluations that became due and took no time, but not the one at the end of the training.
    pub(crate) evaluations: Vec<Evaluation>,
    /// One that takes its time is due, but not the one at the end of the training.
    pub(crate) wants_evaluation: bool,
}

/// A way to train: with libtorch, modelled, or by another program.
///
/// The [`Worker`](super::Worker) follows the protocol: it knows which commands it has received, in which group it is, when reports and
/// checkpoints are due, and which events they make. A backend knows how to train and nothing of commands, events or other trials. To add
/// one, implement this trait, and run a `Worker` with it that is attached to the head (`wire::attach`).
///
/// Methods are called one at a time, and in this order: [`prepare`](Self::prepare); then for each group [`join`](Self::join),
/// [`rendezvous`](Self::rendezvous), unless it only donates [`train`](Self::train) again and again, [`evaluate`](Self::evaluate) when that wants it
/// and when the training is complete, and [`leave`](Self::leave). A session outlives its groups: what it has learned goes into the next one. When a
/// session or a group is dropped, everything that belongs to it has to be over.
///
/// Futures of `rendezvous` and `train` are dropped when a command has come that changes what is wanted. They have to wait only where
/// nothing is lost by that. A backend that blocks instead gives the worker a chance to look at its commands by yielding.
pub(crate) trait Backend {
    /// A trial that was prepared: its model and data, and its state once it has any.
    type Session;
    /// A group that was joined.
    type Group;

    /// Its rendezvous address if it is the first of a group.
    fn rendezvous_addr(&self) -> String;

    /// Seconds on the clock of the worker, which all times in messages are measured with.
    fn now_s(&self) -> f64;

    /// Makes the model and opens the data.
    async fn prepare(&mut self, task: Task) -> Result<Self::Session, Failure>;

    /// Optimizer steps that the state of the trial has behind it; none if there is only a model as it was made.
    fn steps(&self, session: &Self::Session) -> Option<u64>;

    /// Whether the trial has reached its last epoch.
    fn is_finished(&self, session: &Self::Session) -> Result<bool, Failure>;

    /// Starts to take part in a group, as member or donor. Does not wait for others.
    fn join(&mut self, session: &Self::Session, form: &Form, role: Role) -> Result<Self::Group, Failure>;

    /// Waits until all members and donors are there, and gives each member the state of the one who has come furthest: if nobody has
    /// any, that of the checkpoint, or that of a new model.
    async fn rendezvous(
        &mut self,
        session: &mut Self::Session,
        group: &mut Self::Group,
    ) -> Result<Pause, Failure>;

    /// Trains for one step at least, unless it was asked for something that can be done before the end of the step.
    ///
    /// All members take the same steps. A step that fails because of the group has not happened. One for which there was no memory is
    /// taken in more passes, and [`memory`](Self::memory) tells.
    async fn train(
        &mut self,
        session: &mut Self::Session,
        group: &mut Self::Group,
        request: StepRequest,
    ) -> Result<StepProgress, Failure>;

    /// Evaluates, together with all members: when `train` wants it, and the trained model.
    fn evaluate(
        &mut self,
        session: &mut Self::Session,
        group: &mut Self::Group,
    ) -> Result<Evaluation, Failure>;

    /// What was measured since the last call, or since the group was formed. The worker fills in trial, round and evaluations.
    fn measure(
        &mut self,
        session: &mut Self::Session,
        group: &mut Self::Group,
    ) -> Result<WorkerReport, Failure>;

    /// What was learned of the memory of the device since the last call.
    fn memory(&mut self, _: &mut Self::Session) -> Option<MemoryLimit> {
        None
    }

    /// What the user should know of checkpoints that a rendezvous has found and not used, since the last call.
    fn warning(&mut self, session: &mut Self::Session) -> Option<String>;

    /// Starts to write a checkpoint of the state as it is now, after the last step of a group. One that is still being written has to be
    /// on disk before.
    fn save(&mut self, session: &mut Self::Session, round: Round) -> Result<(), NotSaved>;

    /// The steps of a checkpoint that was written since the last call; with `wait`, after it is.
    fn saved(&mut self, session: &mut Self::Session, wait: bool) -> Result<Option<u64>, NotSaved>;

    /// Leaves a group in agreement with its members, who do not count it as lost.
    fn leave(&mut self, group: Self::Group);

    /// Leaves a group that is broken, in the middle of a step, which fails for the other members as well.
    fn abort(&mut self, session: &mut Self::Session, group: Self::Group);
}

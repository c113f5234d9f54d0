//! One job while it is simulated: where it is, and how fast it goes.

use super::{Application, Error, JobSpec, Rules, Settings, StepTime, agent::Agent, run::adapts};
use crate::{
    alloc::{Allocation, Cluster, RemainingWork},
    goodput::{BatchPlan, NoiseScale, Shape},
    ids::GpuType,
};

pub(super) struct Job<'a> {
    pub(super) spec: &'a JobSpec,
    pub(super) agent: Agent,
    pub(super) allocation: Allocation,
    /// Whether its replicas are numbered from the node with most of its GPUs on, not by node.
    pub(super) fullest_first: bool,
    /// Whether it models its own speed.
    learns: bool,
    /// What a change of its GPUs takes.
    pub(super) restart_s: f64,
    /// By how much it is slower than its step times.
    slowness: f64,
    /// What it runs with; none while it waits.
    running: Option<Running>,
    /// Seconds until it trains again after a change of its GPUs.
    delay_s: f64,
    /// How often its GPUs were changed after its start; none before it.
    pub(super) restarts: Option<u32>,
    progress: f64,
    pub(super) epoch: usize,
    pub(super) attained_gpu_s: f64,
    pub(super) completed_s: Option<f64>,
}

struct Running {
    gpu_type: GpuType,
    shape: Shape,
    /// GPUs of each node.
    placement: Vec<u32>,
    plan: BatchPlan,
}

impl Running {
    /// Whether it is the same on other nodes.
    fn is_like(&self, other: &Self) -> bool {
        let sorted = |placement: &[u32]| {
            let mut gpus = placement.to_vec();
            gpus.sort_unstable();
            gpus
        };
        self.gpu_type == other.gpu_type && sorted(&self.placement) == sorted(&other.placement)
    }
}

/// How fast a job goes at the moment.
struct Pace {
    time: StepTime,
    noise: NoiseScale,
    /// Progress per second.
    rate: f64,
}

impl<'a> Job<'a> {
    pub(super) fn new(spec: &'a JobSpec, agent: Agent, settings: &Settings) -> Self {
        let learns = adapts(settings.policy);
        let (restart_s, slowness) = settings.rules.restart(spec.application, settings.restart_delay_s);
        Self {
            spec,
            learns,
            restart_s,
            slowness,
            agent,
            allocation: Allocation::none(),
            fullest_first: settings.rules.as_authors() && !learns,
            running: None,
            delay_s: 0.0,
            restarts: None,
            progress: 0.0,
            epoch: 0,
            attained_gpu_s: 0.0,
            completed_s: None,
        }
    }

    const fn application(&self) -> &'static Application {
        self.spec.application
    }

    pub(super) fn is_active(&self, now_s: f64) -> bool {
        self.spec.submitted_s <= now_s && self.completed_s.is_none()
    }

    /// Whether it has GPUs but does not train on them yet.
    pub(super) fn is_restarting(&self) -> bool {
        self.delay_s > 0.0 && self.running.is_some()
    }

    /// Gives the job other GPUs, or none.
    pub(super) fn reallocate(
        &mut self,
        allocation: Allocation,
        cluster: &Cluster,
        rules: Rules,
    ) -> Result<(), Error> {
        self.allocation = allocation;
        let first = self.allocation.iter().next();
        let Some(((node, _), shape)) = first.zip(self.allocation.shape()) else {
            self.running = None;
            return Ok(());
        };
        let gpu_type = cluster.get(node).expect("plans use nodes of the cluster").gpu_type.clone();
        let mut placement: Vec<u32> = self.allocation.iter().map(|(_, gpus)| gpus).collect();
        if self.fullest_first {
            placement.sort_unstable_by(|a, b| b.cmp(a));
        }
        let before = self.running.take();
        let plan = BatchPlan { per_gpu: 0, accumulation: 0 };
        let now = Running { gpu_type, shape, placement, plan };
        let alike = rules.moves_freely() && before.is_some_and(|before| before.is_like(&now));
        if !alike {
            self.delay_s = self.restart_s;
            self.restarts = Some(self.restarts.map_or(0, |restarts| restarts + 1));
        }
        self.running = Some(now);
        self.choose_batch()
    }

    /// What is left until all epochs are done, by what its user says.
    pub(super) fn remaining(&self) -> RemainingWork {
        let left = self.declared() - self.progress;
        RemainingWork::Examples(left * f64::from(self.application().initial_batch()))
    }

    /// How much of its training is done by what its user says, from 0 to 1; none at its beginning.
    pub(super) fn past_share(&self) -> Option<f64> {
        Some(self.progress / self.declared()).filter(|share| *share > 0.0)
    }

    /// The progress with which it will be done, by what its user says. A job that trains for longer is in its last epoch, as far as
    /// anybody knows.
    fn declared(&self) -> f64 {
        let (application, epochs) = (self.application(), self.application().epochs());
        let whole = application.progress_after(epochs);
        let said = self.spec.declared * whole;
        if said < whole { said.max(self.progress + whole / epochs as f64) } else { said }
    }

    fn choose_batch(&mut self) -> Result<(), Error> {
        let Some(running) = &mut self.running else { return Ok(()) };
        let plan = self.agent.choose(&running.gpu_type, running.shape);
        running.plan = plan.ok_or_else(|| Error::CannotRun {
            job: self.spec.name.clone(),
            reason: format!("no batch fits {} GPUs of type {}", running.shape.gpus(), running.gpu_type),
        })?;
        Ok(())
    }

    fn pace(&self, interference: f64) -> Result<Option<Pace>, Error> {
        let Some(Running { gpu_type, shape, placement, plan }) = &self.running else { return Ok(None) };
        let application = self.application();
        let time =
            application.step_time(gpu_type, placement, plan.per_gpu).ok_or_else(|| Error::CannotRun {
                job: self.spec.name.clone(),
                reason: format!(
                    "no step time was measured around {} examples on each of {} GPUs on {} nodes",
                    plan.per_gpu,
                    shape.gpus(),
                    shape.nodes()
                ),
            })?;
        let total = plan.total(shape.gpus()) as u32;
        let noise = application.noise(self.epoch, total);
        let gain = noise.gain(f64::from(application.initial_batch()), f64::from(total));
        let rate = gain / time.with_accumulation_s(plan.accumulation) * (1.0 - interference) / self.slowness;
        Ok(Some(Pace { time, noise, rate }))
    }

    /// Seconds until the present epoch ends, if nothing changes; none while the job waits.
    pub(super) fn next_epoch_s(&self, interference: f64) -> Result<Option<f64>, Error> {
        let left = self.application().progress_after(self.epoch + 1) - self.progress;
        Ok(self.pace(interference)?.map(|pace| self.delay_s + left / pace.rate))
    }

    /// Trains for some seconds from `now_s` on. By the rules of other simulators epochs end after a whole number of seconds.
    pub(super) fn advance(
        &mut self,
        mut now_s: f64,
        mut seconds: f64,
        interference: f64,
        rules: Rules,
    ) -> Result<(), Error> {
        let whole = rules.in_rounds();
        let gpus = f64::from(self.allocation.gpus());
        let pause = self.delay_s.min(seconds);
        if gpus > 0.0 {
            self.delay_s -= pause;
            self.attained_gpu_s += pause * gpus;
            (now_s, seconds) = (now_s + pause, seconds - pause);
        }
        while seconds > 0.0 && self.completed_s.is_none() {
            let Some(pace) = self.pace(interference)? else { return Ok(()) };
            if let Some(Running { gpu_type, shape, plan, .. }) = self.running.as_ref().filter(|_| self.learns)
            {
                self.agent.observe(gpu_type, *shape, *plan, pace.time, pace.noise)?;
            }
            let goal = self.application().progress_after(self.epoch + 1);
            let reached = self.progress + pace.rate * seconds;
            let mut spent = seconds;
            // By our rules the clock often stops just where an epoch ends.
            let rounding = if whole { 0.0 } else { 1e-9 * goal };
            if reached < goal - rounding {
                self.progress = reached;
            } else {
                spent = (goal - self.progress) / pace.rate;
                spent = if whole { spent.round_ties_even() } else { spent.clamp(0.0, seconds) };
                self.epoch += 1;
                self.progress = goal;
                if self.epoch == self.application().epochs() {
                    self.completed_s = Some(now_s + spent);
                }
            }
            self.attained_gpu_s += spent * gpus;
            (now_s, seconds) = (now_s + spent, seconds - spent);
            self.choose_batch()?;
        }
        Ok(())
    }
}

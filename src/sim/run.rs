//! The virtual clock: jobs train, the policy is asked, its plan is carried out.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::{
    Application, Error, JobReport, JobSpec, Report, Workload,
    agent::{Agent, Batch},
    job::Job,
    osdi21::{AuthorsSearch, Rules},
};
use crate::{
    alloc::{
        Allocation, Cluster, Fairness, Policy, PolicyKind, PolluxPolicy, Problem, RemainingWork, TrialRequest,
    },
    goodput::{BatchPlan, Curve, GoodputTable, Shape},
    ids::{GpuType, NodeId, TrialId},
};

/// What policies that maximise FITNESS aim at.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Aim {
    /// Speedups by the exponent p.
    Speedup(Fairness),
    /// A low mean completion time, see [`Problem::aim_at_completion`]. It trusts jobs on how many epochs they
    /// will train.
    Completion,
}

/// What is simulated, besides the jobs.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Settings {
    /// The machines.
    pub cluster: Cluster,
    /// Who allocates them.
    pub policy: PolicyKind,
    /// By which rules.
    pub rules: Rules,
    /// Seconds between two questions to the policy; at most, by our rules.
    pub interval_s: f64,
    /// What `goodput` and `pollux` aim at.
    pub aim: Aim,
    /// The share of its speed that a distributed job loses on a node with another one.
    pub interference: f64,
    /// Whether policies avoid that.
    pub avoid_interference: bool,
    /// Seconds that a job does not train after a change of its GPUs.
    pub restart_delay_s: f64,
    /// For policies that draw random numbers.
    pub seed: u64,
}

impl Settings {
    /// The authors' experiment: intervals of 60 s, restarts of 30 s, no interference, p = -1; but `goodput` aims at
    /// completion.
    #[must_use]
    pub fn new(cluster: Cluster, policy: PolicyKind, rules: Rules) -> Self {
        Self {
            cluster,
            policy,
            rules,
            interval_s: 60.0,
            aim: match policy {
                PolicyKind::Goodput => Aim::Completion,
                _ => Aim::Speedup(Fairness::default()),
            },
            interference: 0.0,
            avoid_interference: true,
            restart_delay_s: 30.0,
            seed: 0,
        }
    }

    fn check(&self) -> Result<(), Error> {
        let range = |what, value: f64, low: f64, high: f64, allowed| {
            if (low..=high).contains(&value) {
                Ok(())
            } else {
                Err(Error::OutOfRange { what, value, allowed })
            }
        };
        range("the interval in seconds", self.interval_s, 1.0, 86_400.0, "1 to 86400")?;
        range("the interference", self.interference, 0.0, 0.99, "0 to 0.99")?;
        range("the restart delay in seconds", self.restart_delay_s, 0.0, 86_400.0, "0 to 86400")?;
        if self.rules.in_rounds() && (self.interval_s.fract() != 0.0 || self.restart_delay_s.fract() != 0.0) {
            let value = if self.interval_s.fract() == 0.0 { self.restart_delay_s } else { self.interval_s };
            let what = "a time by the rules of osdi21";
            return Err(Error::OutOfRange { what, value, allowed: "a whole number of seconds" });
        }
        Ok(())
    }

    /// Every node must be like one on which step times were measured.
    fn check_cluster(&self, workload: &Workload) -> Result<(), Error> {
        let measured = |application: &'static Application| {
            application.gpu_types().filter_map(|gpu_type| {
                application.step_times(gpu_type).map(|times| (gpu_type.clone(), times.node_gpus_max()))
            })
        };
        let known: BTreeMap<GpuType, u32> =
            workload.jobs().iter().flat_map(|job| measured(job.application)).collect();
        for (gpu_type, node_gpus, _) in self.cluster.room(u32::MAX) {
            if known.get(&gpu_type).is_none_or(|&max| node_gpus > max) {
                let allowed: Vec<String> = known
                    .iter()
                    .map(|(gpu_type, max)| format!("{gpu_type} with up to {max} GPUs in a node"))
                    .collect();
                let nodes = format!("nodes with {node_gpus} GPUs of type {gpu_type}");
                return Err(Error::BadCluster { nodes, allowed: allowed.join(", ") });
            }
        }
        if self.cluster.total_gpus() == 0 {
            let (nodes, allowed) = ("a cluster without GPUs".to_owned(), "at least one GPU".to_owned());
            return Err(Error::BadCluster { nodes, allowed });
        }
        Ok(())
    }

    /// Whose fit and whose choice of batches jobs use: `goodput` brings ours also into the world of the authors.
    fn agent_rules(&self) -> Rules {
        if self.policy == PolicyKind::Goodput { Rules::Own } else { self.rules }
    }

    fn build_policy(&self) -> Box<dyn Policy> {
        match (self.policy, self.rules) {
            (PolicyKind::Pollux, Rules::Osdi21) => {
                Box::new(PolluxPolicy::default().with_rules(&AuthorsSearch))
            }
            (policy, _) => policy.build(),
        }
    }
}

/// The progress of a simulation.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Progress {
    /// Seconds since its beginning.
    pub now_s: f64,
    /// Jobs that are done.
    pub completed: usize,
    /// Jobs that run or wait.
    pub active: usize,
    /// All jobs.
    pub jobs: usize,
}

/// Runs a workload to its end. `watch` is called whenever the policy was asked.
///
/// ```
/// use pollux_tune::{alloc::*, sim::*};
/// let text = "name,time,application,num_replicas,batch_size\na,10,ncf,1,32768\nb,20,cifar10,4,1024\n";
/// let settings = Settings::new(Cluster::parse("2x4xt4")?, PolicyKind::Tiresias, Rules::Osdi21);
/// let report = simulate(&Workload::parse(text)?, &settings, &mut |_| {})?;
/// // Submitted at 10 s, started by the first round at 60 s, training from 90 s on.
/// assert_eq!(report.jobs[0].completed_s, 137.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn simulate(
    workload: &Workload,
    settings: &Settings,
    watch: &mut dyn FnMut(&Progress),
) -> Result<Report, Error> {
    settings.check()?;
    settings.check_cluster(workload)?;
    let mut run = Run::new(workload, settings)?;
    if !settings.rules.in_rounds() {
        // Jobs that are there from the beginning.
        run.decide()?;
    }
    while run.completed < run.jobs.len() {
        if settings.rules.in_rounds() {
            run.advance(settings.interval_s)?;
        } else {
            run.advance_to_event()?;
        }
        run.decide()?;
        run.check_progress()?;
        watch(&run.progress());
    }
    Ok(run.report())
}

/// Jobs that wait for longer while no job has any GPU will wait forever.
const PATIENCE_S: f64 = 86_400.0;

struct Run<'a> {
    settings: &'a Settings,
    policy: Box<dyn Policy>,
    rng: ChaCha8Rng,
    jobs: Vec<Job<'a>>,
    /// What `optimus` and the policies with fixed requests know, by job.
    tables: Vec<Option<Arc<GoodputTable>>>,
    now_s: f64,
    completed: usize,
    last_question_s: f64,
    /// When some job had GPUs last.
    last_progress_s: f64,
}

impl<'a> Run<'a> {
    fn new(workload: &'a Workload, settings: &'a Settings) -> Result<Self, Error> {
        let jobs: Vec<Job> = workload
            .jobs()
            .iter()
            .map(|spec| Ok(Job::new(spec, agent(spec, settings)?, settings)))
            .collect::<Result<_, Error>>()?;
        Ok(Self {
            settings,
            policy: settings.build_policy(),
            rng: ChaCha8Rng::seed_from_u64(settings.seed),
            tables: vec![None; jobs.len()],
            jobs,
            now_s: 0.0,
            completed: 0,
            last_question_s: 0.0,
            last_progress_s: 0.0,
        })
    }

    fn progress(&self) -> Progress {
        let active = self.jobs.iter().filter(|job| job.is_active(self.now_s)).count();
        Progress { now_s: self.now_s, completed: self.completed, active, jobs: self.jobs.len() }
    }

    /// Lets all jobs train for some seconds.
    fn advance(&mut self, seconds: f64) -> Result<(), Error> {
        let crowded = self.crowded_nodes();
        for job in self.jobs.iter_mut().filter(|job| job.completed_s.is_none()) {
            let slowed = slowdown(&job.allocation, &crowded, self.settings.interference);
            job.advance(self.now_s, seconds, slowed, self.settings.rules)?;
            self.completed += usize::from(job.completed_s.is_some());
        }
        self.now_s += seconds;
        Ok(())
    }

    /// Nodes that more than one distributed job uses.
    fn crowded_nodes(&self) -> BTreeSet<NodeId> {
        let mut users: BTreeMap<NodeId, u32> = BTreeMap::new();
        if self.settings.interference > 0.0 {
            for job in self.jobs.iter().filter(|job| job.allocation.is_distributed()) {
                job.allocation.iter().for_each(|(node, _)| *users.entry(node).or_default() += 1);
            }
        }
        users.into_iter().filter(|(_, users)| *users > 1).map(|(node, _)| node).collect()
    }

    /// Asks the policy, and applies its plan.
    fn decide(&mut self) -> Result<(), Error> {
        self.last_question_s = self.now_s;
        for job in self.jobs.iter_mut().filter(|job| job.completed_s.is_some()) {
            job.allocation = Allocation::none();
        }
        let active: Vec<usize> =
            (0..self.jobs.len()).filter(|&job| self.jobs[job].is_active(self.now_s)).collect();
        if active.is_empty() {
            return Ok(());
        }
        let problem = self.problem(&active)?;
        let plan = self.policy.allocate(&problem, &mut self.rng)?;
        for (&job, placement) in active.iter().zip(plan.placements) {
            let job = &mut self.jobs[job];
            if placement.allocation != job.allocation {
                job.reallocate(placement.allocation, &self.settings.cluster, self.settings.rules)?;
            }
        }
        Ok(())
    }

    /// Fails if jobs wait forever: no job has had GPUs for a day, and no new one will come.
    fn check_progress(&mut self) -> Result<(), Error> {
        let moving = self.jobs.iter().any(|job| {
            job.completed_s.is_none() && (!job.allocation.is_empty() || job.spec.submitted_s > self.now_s)
        });
        if moving {
            self.last_progress_s = self.now_s;
        }
        let waiting = self.jobs.iter().find(|job| job.completed_s.is_none());
        match waiting.filter(|_| self.now_s - self.last_progress_s > PATIENCE_S) {
            Some(job) => {
                let reason = format!("{} never gives it any GPUs", self.policy.name());
                Err(Error::CannotRun { job: job.spec.name.clone(), reason })
            }
            None => Ok(()),
        }
    }

    fn problem(&mut self, active: &[usize]) -> Result<Problem, Error> {
        let mut trials = Vec::with_capacity(active.len());
        let fair_gpus = self.settings.cluster.total_gpus().div_ceil(active.len() as u32);
        for &index in active {
            let request = self.request(index, fair_gpus)?;
            let job = &self.jobs[index];
            trials.push(TrialRequest {
                current: job.allocation.clone(),
                age_s: self.now_s - job.spec.submitted_s,
                // What is on its way stays: to turn back then is a waste.
                pinned: !self.settings.rules.as_authors() && job.is_restarting(),
                reallocations: job.restarts.unwrap_or(0),
                realloc_delay_s: job.restart_s,
                horizon_s: self.horizon_s(job),
                attained_gpu_s: job.attained_gpu_s,
                requested_gpus: job.spec.requested_gpus,
                ..request
            });
        }
        // The authors' versions of the policies that do not adapt know nothing of interference.
        let aware = !self.settings.rules.in_rounds() || adapts(self.settings.policy);
        let mut problem = Problem {
            avoid_interference: self.settings.avoid_interference && aware,
            ..Problem::new(self.settings.cluster.clone(), trials)
        };
        match self.settings.aim {
            Aim::Speedup(fairness) => problem.fairness = fairness,
            Aim::Completion if adapts(self.settings.policy) => problem = problem.aim_at_completion()?,
            Aim::Completion => {}
        }
        Ok(problem)
    }

    /// In how many seconds a change of a job's GPUs has to pay off under `goodput`: in the mean time between its changes so far,
    /// which comes to the paper's factor, or until it ends, at its pace so far.
    fn horizon_s(&self, job: &Job) -> Option<f64> {
        let past = job.past_share().filter(|_| self.settings.policy == PolicyKind::Goodput)?;
        let (age_s, restarts) = (self.now_s - job.spec.submitted_s, f64::from(job.restarts.unwrap_or(0)));
        let between_s = (age_s - restarts * job.restart_s).max(0.0) / (restarts + 1.0);
        Some(between_s.min(age_s * (1.0 - past) / past))
    }

    fn request(&mut self, index: usize, fair_gpus: u32) -> Result<TrialRequest, Error> {
        let (id, cluster) = (TrialId(index as u32), &self.settings.cluster);
        let job = &self.jobs[index];
        let (spec, alone) = (job.spec, self.settings.rules.keeps_on_one_gpu(job.spec.application));
        match self.settings.policy {
            PolicyKind::Goodput | PolicyKind::Pollux => {
                let mut request = job.agent.request(id, cluster, fair_gpus)?;
                if job.agent.is_profiled() {
                    request.remaining = job.remaining();
                }
                Ok(if alone { TrialRequest { max_gpus: 1, ..request } } else { request })
            }
            PolicyKind::Optimus => {
                let (rules, table) = (self.settings.rules, &mut self.tables[index]);
                let table = table.get_or_insert_with(|| Arc::new(true_table(spec, cluster, rules)));
                let max_gpus = if alone { 1 } else { u32::MAX };
                let left = spec.application.iterations_after(job.epoch, spec.requested_batch).max(1.0);
                let remaining = RemainingWork::Iterations(left);
                Ok(TrialRequest { max_gpus, remaining, ..TrialRequest::new(id, table.clone()) })
            }
            PolicyKind::Static | PolicyKind::Tiresias => {
                let table = &mut self.tables[index];
                let table = table.get_or_insert_with(|| Arc::new(any_table(spec, cluster)));
                Ok(TrialRequest::new(id, table.clone()))
            }
        }
    }

    /// By our rules: lets jobs train until something happens that the policy should know of.
    fn advance_to_event(&mut self) -> Result<(), Error> {
        loop {
            let before = self.completed;
            let next_job =
                self.jobs.iter().map(|job| job.spec.submitted_s).find(|&time_s| time_s > self.now_s);
            let mut until_s = next_job.unwrap_or(f64::INFINITY);
            let crowded = self.crowded_nodes();
            let mut active = false;
            for job in self.jobs.iter().filter(|job| job.is_active(self.now_s)) {
                active = true;
                let slowed = slowdown(&job.allocation, &crowded, self.settings.interference);
                if let Some(seconds) = job.next_epoch_s(slowed)? {
                    until_s = until_s.min(self.now_s + seconds);
                }
            }
            if active {
                until_s = until_s.min(self.last_question_s + self.settings.interval_s);
            }
            let was_s = self.now_s;
            self.advance((until_s - self.now_s).max(0.0))?;
            self.now_s = until_s;
            let submitted = self
                .jobs
                .iter()
                .any(|job| (was_s..=until_s).contains(&job.spec.submitted_s) && job.spec.submitted_s > was_s);
            if submitted
                || self.completed > before
                || (active && until_s >= self.last_question_s + self.settings.interval_s)
            {
                return Ok(());
            }
        }
    }

    fn report(&self) -> Report {
        let jobs = self.jobs.iter().map(|job| JobReport {
            name: job.spec.name.clone(),
            application: job.spec.application.name(),
            submitted_s: job.spec.submitted_s,
            completed_s: job.completed_s.unwrap_or(self.now_s),
            restarts: job.restarts.unwrap_or(0),
            gpu_hours: job.attained_gpu_s / 3600.0,
            rho: 0.0,
        });
        Report::new(jobs.collect(), &self.settings.cluster, self.settings.restart_delay_s)
    }
}

pub(super) fn adapts(policy: PolicyKind) -> bool {
    matches!(policy, PolicyKind::Goodput | PolicyKind::Pollux)
}

fn agent(spec: &JobSpec, settings: &Settings) -> Result<Agent, Error> {
    let batch = if !adapts(settings.policy) {
        Batch::Fixed(spec.requested_batch)
    } else if settings.rules.keeps_on_one_gpu(spec.application) {
        Batch::Fixed(spec.application.max_batch())
    } else {
        Batch::Adaptive
    };
    let mut agent = Agent::new(spec.application, settings.agent_rules(), batch, &settings.cluster);
    if settings.rules.profiles_first() && batch == Batch::Adaptive {
        agent.profile()?;
    }
    Ok(agent)
}

fn slowdown(allocation: &Allocation, crowded: &BTreeSet<NodeId>, interference: f64) -> f64 {
    let slowed = allocation.is_distributed() && allocation.iter().any(|(node, _)| crowded.contains(&node));
    if slowed { interference } else { 0.0 }
}

/// A table for a job that runs wherever it was measured.
fn any_table(spec: &JobSpec, cluster: &Cluster) -> GoodputTable {
    let room = spec.application.room(cluster, u32::MAX);
    room.map(|(gpu_type, largest, total)| (gpu_type, Curve::linear(total, largest))).collect()
}

/// What an oracle knows: steps per second at the requested batch, on as few nodes as hold the GPUs.
fn true_table(spec: &JobSpec, cluster: &Cluster, rules: Rules) -> GoodputTable {
    let mut table = GoodputTable::new();
    for (gpu_type, largest, total) in spec.application.room(cluster, u32::MAX) {
        let Some(limits) = spec.application.batch_limits(&gpu_type) else { continue };
        let max_gpus = total.min(spec.requested_batch / limits.per_gpu_min());
        let rate = |shape: Shape| {
            let gpus = shape.gpus();
            let passes = rules.min_passes(gpus);
            let plan = BatchPlan::split(spec.requested_batch, gpus, limits.per_gpu_max(), passes);
            let max = spec.application.max_batch() / (gpus * (plan.accumulation + 1));
            let mut placement = vec![largest; (gpus / largest) as usize];
            placement.extend(Some(gpus % largest).filter(|rest| *rest > 0));
            let time = spec.application.step_time(&gpu_type, &placement, plan.per_gpu.min(max));
            time.map_or(0.0, |time| 1.0 / time.with_accumulation_s(plan.accumulation))
        };
        if let Ok(curve) = Curve::build(max_gpus, largest, rate) {
            table.insert(gpu_type, curve);
        }
    }
    table
}

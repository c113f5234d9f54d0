//! The promise of a trial weighs in its share of the GPUs: what the allocator makes of it, and what a study gains.

use std::{collections::BTreeMap, sync::Arc};

use pollux_tune::{
    alloc::{Allocation, Cluster, GoodputOptions, GoodputPolicy, Plan, Policy, Problem, TrialRequest},
    goodput::{GoodputTable, NoiseScale},
    ids::{GpuType, NodeId, TrialId},
    space::{Direction, EarlyStopping, StoppingRule},
    trials::{
        engine::{AllocationSnapshot, TrialSnapshot},
        stopping::{EndKind, Stopper, Verdict, stopper},
        weigh,
    },
};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::{
    curves::{EPOCHS, LearningCurve, family},
    measured::{MODELS, Zoo},
};

fn plan(cluster: &Cluster, requests: Vec<TrialRequest>) -> Plan {
    let problem = Problem::new(cluster.clone(), requests);
    let mut policy = GoodputPolicy::new(GoodputOptions { exact_rows: 0, ..GoodputOptions::default() });
    policy.allocate(&problem, &mut ChaCha8Rng::seed_from_u64(0)).expect("the problem is valid")
}

/// Four trials on 16 GPUs; the first runs on one, the others wait.
fn requests(zoo: &Zoo, cluster: &Cluster) -> Vec<TrialRequest> {
    let table = Arc::new(zoo.table(1, 0.8, cluster, 16));
    let mut requests: Vec<TrialRequest> =
        (0..4).map(|id| TrialRequest::new(TrialId(id), Arc::clone(&table))).collect();
    requests[0].current = [(NodeId(0), 1)].into_iter().collect();
    requests
}

fn gpus(plan: &Plan) -> Vec<u32> {
    plan.placements.iter().map(|trial| trial.allocation.gpus()).collect()
}

#[test]
fn a_trial_without_promise_is_not_scaled_out() {
    let (zoo, cluster) = (Zoo::load(), Cluster::parse("4x4xt4").expect("it is well-formed"));
    let shares = |promise: f64| {
        let mut requests = requests(&zoo, &cluster);
        weigh(&mut requests, |id| if id == TrialId(0) { promise } else { 1.0 });
        gpus(&plan(&cluster, requests))
    };
    assert_eq!(shares(1.0), [4, 4, 4, 4]);
    let held_back = shares(0.2);
    assert_eq!(held_back[0], 1, "{held_back:?}");
    assert!(held_back[1..].iter().sum::<u32>() >= 12, "{held_back:?}");
    assert_eq!(shares(0.9), [4, 4, 4, 4], "it is scaled out once it does better");
}

#[test]
fn a_waiting_trial_without_promise_starts_small() {
    let (zoo, cluster) = (Zoo::load(), Cluster::parse("4x4xt4").expect("it is well-formed"));
    let mut requests = requests(&zoo, &cluster);
    requests[1].min_gpus = 2;
    weigh(&mut requests, |id| if id == TrialId(1) { 0.2 } else { 1.0 });
    assert_eq!(gpus(&plan(&cluster, requests))[1], 2);
}

#[test]
fn without_anything_better_nobody_is_held_back() {
    let (zoo, cluster) = (Zoo::load(), Cluster::parse("4x4xt4").expect("it is well-formed"));
    let mut requests = requests(&zoo, &cluster);
    weigh(&mut requests, |_| 0.2);
    assert_eq!(gpus(&plan(&cluster, requests)), [4, 4, 4, 4]);
}

#[test]
fn without_the_setting_nothing_changes() {
    let cluster = Cluster::parse("4x4xt4").expect("it is well-formed");
    let problem = |promise_weighting: bool, promises: [f64; 2]| {
        let yaml = format!(
            "{{space: {{x: {{float: [0, 1]}}}}, objective: {{minimize: loss}}, \
             scheduler: {{promise_weighting: {promise_weighting}}}}}"
        );
        let study = pollux_tune::space::Study::from_yaml("study.yaml", &yaml).expect("it is well-formed");
        let trials = [0, 1].map(|id| TrialSnapshot {
            id: TrialId(id),
            fit: None,
            noise: NoiseScale::ZERO.into(),
            current: Allocation::none(),
            age_s: 0.0,
            reallocations: 0,
            delay_s: 1.0,
            horizon_s: 10.0,
            attained_gpu_s: 0.0,
            promise: promises[id as usize],
            remaining_epochs: 10.0,
            pace: None,
        });
        let snapshot = AllocationSnapshot {
            cluster: cluster.clone(),
            trials: trials.to_vec(),
            batch_limits: BTreeMap::new(),
            to_come: 1,
        };
        snapshot.problem(&study).expect("its numbers are fine")
    };
    assert_eq!(problem(false, [0.0, 1.0]), problem(false, [1.0, 1.0]));
    assert_ne!(problem(true, [0.0, 1.0]), problem(true, [1.0, 1.0]));
}

/// Seconds that a trial loses whenever it gets other GPUs.
const RESTART_S: f64 = 30.0;
/// Seconds between two plans where no trial ends.
const INTERVAL_S: f64 = 300.0;
const EXAMPLES_PER_EPOCH: f64 = 3e5;
/// Goodput changes with progress; it is looked up in so many tables.
const STAGES: usize = 10;

/// A study of elastic trials in virtual time.
struct Study<'a> {
    cluster: &'a Cluster,
    gpu_type: GpuType,
    tables: Vec<Arc<GoodputTable>>,
    curves: Vec<LearningCurve>,
    stopper: Box<dyn Stopper>,
    promise_weighting: bool,
    now_s: f64,
    running: Vec<Running>,
    /// The trial that begins next.
    next: usize,
    seed: u64,
}

struct Running {
    trial: usize,
    progress: f64,
    current: Allocation,
    /// When it trains, after a restart.
    ready_s: f64,
    since_s: f64,
    moves: u32,
}

impl Running {
    fn table<'a>(&self, tables: &'a [Arc<GoodputTable>]) -> &'a Arc<GoodputTable> {
        &tables[((self.progress / EPOCHS * STAGES as f64) as usize).min(STAGES - 1)]
    }
}

impl Study<'_> {
    /// Epochs per second.
    fn speed(&self, trial: &Running) -> f64 {
        let curve = &trial.table(&self.tables)[&self.gpu_type];
        trial.current.shape().map_or(0.0, |shape| curve.goodput(shape) / EXAMPLES_PER_EPOCH)
    }

    fn start(&mut self, parallel: usize) {
        while self.running.len() < parallel && self.next < self.curves.len() {
            let (trial, current) = (self.next, Allocation::none());
            let since_s = self.now_s;
            self.running.push(Running { trial, progress: 0.0, current, ready_s: 0.0, since_s, moves: 0 });
            self.next += 1;
        }
    }

    fn share_gpus(&mut self) {
        let request = |trial: &Running| TrialRequest {
            current: trial.current.clone(),
            age_s: self.now_s - trial.since_s,
            reallocations: trial.moves,
            realloc_delay_s: RESTART_S,
            ..TrialRequest::new(TrialId(trial.trial as u32), Arc::clone(trial.table(&self.tables)))
        };
        let mut requests: Vec<TrialRequest> = self.running.iter().map(request).collect();
        if self.promise_weighting {
            weigh(&mut requests, |id| self.stopper.promise(id));
        }
        let plan = plan(self.cluster, requests);
        for (trial, decision) in self.running.iter_mut().zip(plan.placements) {
            if trial.current != decision.allocation {
                trial.moves += u32::from(!trial.current.is_empty());
                trial.current = decision.allocation;
                trial.ready_s = self.now_s + RESTART_S;
            }
        }
    }

    /// Goes on to the next report, or to `until_s`. Returns whether a trial ended.
    fn advance(&mut self, until_s: f64) -> bool {
        let report = |(at, trial): (usize, &Running)| {
            let left = trial.progress.floor() + 1.0 - trial.progress;
            (self.now_s.max(trial.ready_s) + left / self.speed(trial), at)
        };
        let first = self.running.iter().enumerate().map(report).min_by(|a, b| a.0.total_cmp(&b.0));
        let first = first.filter(|(at_s, _)| *at_s < until_s);
        let then_s = first.map_or(until_s, |(at_s, _)| at_s);
        let speeds: Vec<f64> = self.running.iter().map(|trial| self.speed(trial)).collect();
        for (at, (trial, speed)) in self.running.iter_mut().zip(speeds).enumerate() {
            let epoch = trial.progress.floor() + 1.0;
            let gone = trial.progress + speed * (then_s - self.now_s.max(trial.ready_s)).max(0.0);
            // Only the one that reports comes to the next epoch.
            let reports = first.is_some_and(|(_, first)| first == at);
            trial.progress = if reports { epoch } else { gone.min(epoch - 1e-9) };
        }
        self.now_s = then_s;
        first.is_some_and(|(_, at)| self.report(at))
    }

    fn report(&mut self, at: usize) -> bool {
        let (trial, progress) = (self.running[at].trial, self.running[at].progress);
        let id = TrialId(trial as u32);
        // The same noise whenever it comes here.
        let rng =
            &mut ChaCha8Rng::seed_from_u64((self.seed << 40) | ((trial as u64) << 20) | progress as u64);
        let value = self.curves[trial].measured(progress, rng);
        let end = match self.stopper.report(id, progress, value).expect("it is running") {
            Verdict::Stop(_) => EndKind::Stopped,
            Verdict::Continue if progress >= EPOCHS => EndKind::Done,
            Verdict::Continue => return false,
        };
        self.stopper.end(id, end).expect("it ends once");
        self.running.remove(at);
        true
    }

    fn run(mut self, parallel: usize) -> f64 {
        loop {
            self.start(parallel);
            if self.running.is_empty() {
                return self.now_s;
            }
            self.share_gpus();
            let until_s = self.now_s + INTERVAL_S;
            while self.now_s < until_s && !self.advance(until_s) {}
        }
    }
}

struct Case {
    model: usize,
    cluster: &'static str,
    parallel: usize,
    trials: u32,
    grace: f64,
    reduction: f64,
}

/// Seconds until all trials have ended, with weighting over without, one ratio for each seed; the smallest first.
fn ratios(zoo: &Zoo, case: &Case, seeds: u64) -> Vec<f64> {
    let cluster = Cluster::parse(case.cluster).expect("it is well-formed");
    let stage = |stage: usize| zoo.table(case.model, stage as f64 / STAGES as f64, &cluster, u32::MAX);
    let tables: Vec<Arc<GoodputTable>> = (0..STAGES).map(|at| Arc::new(stage(at))).collect();
    let (rule, grace, reduction) = (StoppingRule::Asha, case.grace, case.reduction);
    let settings = EarlyStopping { rule, grace, reduction, patience: 10.0, threshold: None };
    let seconds = |seed: u64, promise_weighting: bool| {
        let study = Study {
            cluster: &cluster,
            gpu_type: GpuType::new("t4").expect("a plain name"),
            tables: tables.clone(),
            curves: family(case.trials, seed),
            stopper: stopper(&settings, EPOCHS, Direction::Minimize).expect("the settings are fine"),
            promise_weighting,
            now_s: 0.0,
            running: Vec::new(),
            next: 0,
            seed,
        };
        study.run(case.parallel)
    };
    let mut ratios: Vec<f64> = (0..seeds).map(|seed| seconds(seed, true) / seconds(seed, false)).collect();
    ratios.sort_by(f64::total_cmp);
    ratios
}

fn mean(ratios: &[f64]) -> f64 {
    ratios.iter().sum::<f64>() / ratios.len() as f64
}

/// Weighting changes the order of the work, not the work: it must not make studies slower.
#[test]
fn weighting_does_not_slow_a_study_down() {
    let zoo = Zoo::load();
    for (model, parallel) in [(1, 8), (2, 8), (1, 16)] {
        let case = Case { model, cluster: "4x4xt4", parallel, trials: 48, grace: 4.0, reduction: 2.0 };
        let ratios = ratios(&zoo, &case, 4);
        assert!(mean(&ratios) < 1.02, "{}: {ratios:?}", MODELS[model]);
    }
}

#[test]
#[ignore = "prints a table of docs/search.md"]
#[expect(clippy::print_stdout, reason = "it prints a table")]
fn table() {
    let zoo = Zoo::load();
    for (model, cluster, parallel) in [
        (1, "4x4xt4", 8),
        (1, "4x4xt4", 16),
        (2, "4x4xt4", 8),
        (3, "16x4xt4", 16),
        (2, "16x4xt4", 8),
        (5, "16x4xt4", 8),
    ] {
        for (grace, reduction) in [(1.0, 3.0), (4.0, 2.0)] {
            let case = Case { model, cluster, parallel, trials: 64, grace, reduction };
            let ratios = ratios(&zoo, &case, 20);
            let gpus = Cluster::parse(cluster).expect("it is well-formed").total_gpus();
            let figures =
                [mean(&ratios), ratios[0], ratios[19]].map(|ratio| format!("{ratio:.3}")).join(" | ");
            println!("| {} | {gpus} | {parallel} | {grace}, {reduction} | {figures} |", MODELS[model]);
        }
    }
}

//! Allocation problems as studies pose them: measured models on A100 and T4 clusters, at random points of training.

use std::path::Path;

use pollux_tune::{
    alloc::{Allocation, Cluster, Plan, Problem, TrialRequest},
    goodput::{
        BatchLimits, BatchMode, GoodputModel, GoodputTable, NoiseScale, Observations, Shape,
        ThroughputParams, fit,
    },
    ids::{GpuType, TrialId},
};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

/// One row of a measured profile.
pub(crate) struct Measured {
    pub(crate) shape: Shape,
    pub(crate) per_gpu: u32,
    pub(crate) step_s: f64,
}

pub(crate) const MODELS: [&str; 6] = ["bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3"];

/// Initial batch, largest batch, and per-GPU bounds (least, T4, A100) of each model, as in the measurements.
const BATCHES: [[u32; 5]; 6] = [
    [12, 384, 4, 12, 48],
    [128, 4096, 32, 1024, 4096],
    [20, 640, 10, 80, 320],
    [200, 12800, 20, 200, 800],
    [256, 32768, 32, 32768, 32768],
    [8, 512, 4, 8, 32],
];

/// All measured step times of a model on a GPU type.
pub(crate) fn measured(model: &str, gpu: &str) -> Vec<Measured> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/profiles").join(model);
    let mut rows = Vec::new();
    for kind in ["placements", "scalability"] {
        // On A100 the placements cover all shapes, except for ncf.
        let path = folder.join(format!("{kind}-{gpu}.csv"));
        if kind == "scalability" && !path.exists() {
            continue;
        }
        let mut reader = csv::Reader::from_path(&path).expect("the profile is there");
        let header = reader.headers().expect("it has a header").clone();
        let column = |name: &str| header.iter().position(|field| field == name);
        for record in reader.records() {
            let record = record.expect("the profile is well-formed");
            let number = |name: &str| -> f64 {
                record[column(name).expect("the column is there")].parse().expect("it holds numbers")
            };
            let (gpus, nodes) = match column("placement") {
                Some(placement) => {
                    let digits = &record[placement];
                    (digits.bytes().map(|digit| u32::from(digit - b'0')).sum(), digits.len() as u32)
                }
                None => (number("num_replicas") as u32, number("num_nodes") as u32),
            };
            let shape = Shape::new(gpus, nodes).expect("each node has a GPU");
            rows.push(Measured { shape, per_gpu: number("local_bsz") as u32, step_s: number("step_time") });
        }
    }
    rows
}

/// The throughput model of a measured profile.
pub(crate) fn fitted(rows: &[Measured]) -> ThroughputParams {
    let mut seen = Observations::default();
    for row in rows {
        seen.record(row.shape, row.per_gpu, 0, row.step_s).expect("times are positive");
    }
    fit(&seen, None, None).expect("the profile can be fitted").params
}

/// The six measured models on T4 and A100.
pub(crate) struct Zoo {
    models: Vec<[(ThroughputParams, BatchLimits); 2]>,
    types: [GpuType; 2],
}

impl Zoo {
    pub(crate) fn load() -> Self {
        let types = ["t4", "a100"].map(|name| GpuType::new(name).expect("a plain name"));
        let models = MODELS
            .iter()
            .zip(BATCHES)
            .map(|(model, [initial, max, low, t4, a100])| {
                let limits = |high| {
                    BatchLimits::new(initial, BatchMode::Adaptive { max }, low, high)
                        .expect("limits are in order")
                };
                [("t4", t4), ("a100", a100)].map(|(gpu, high)| (fitted(&measured(model, gpu)), limits(high)))
            })
            .collect();
        Self { models, types }
    }

    /// The goodput function of a model at a point of training: 0 is the start, 1 the end.
    pub(crate) fn goodput(&self, model: usize, progress: f64) -> GoodputModel {
        let [t4, a100] = self.models[model];
        let initial = f64::from(t4.1.initial());
        // Noise scales grow by about two decades while training (Pollux OSDI'21 fig. 2).
        let noise = NoiseScale::new(initial * 100f64.powf(progress)).expect("finite");
        GoodputModel::new(noise).with_type(self.types[0].clone(), t4.0, t4.1).with_type(
            self.types[1].clone(),
            a100.0,
            a100.1,
        )
    }

    pub(crate) fn table(&self, model: usize, progress: f64, cluster: &Cluster, most: u32) -> GoodputTable {
        self.goodput(model, progress).table(cluster.room(most)).expect("goodputs are finite")
    }

    /// A study of `trials` trials, all of them waiting.
    pub(crate) fn study(cluster: &Cluster, trials: u32, rng: &mut ChaCha8Rng) -> Study {
        let drafts = (0..trials)
            .map(|_| Draft {
                model: rng.random_range(0..MODELS.len()),
                progress: rng.random_range(0.0..1.0),
                // Exploration: twice the largest allocation so far.
                most: [1, 2, 4, 8, 16, 32, 64][rng.random_range(0..7usize)],
                current: Allocation::none(),
                age_s: 0.0,
                reallocations: 0,
            })
            .collect();
        Study { cluster: cluster.clone(), drafts }
    }
}

struct Draft {
    model: usize,
    progress: f64,
    most: u32,
    current: Allocation,
    age_s: f64,
    reallocations: u32,
}

pub(crate) struct Study {
    cluster: Cluster,
    drafts: Vec<Draft>,
}

impl Study {
    pub(crate) fn problem(&self, zoo: &Zoo) -> Problem {
        let trial = |(id, draft): (usize, &Draft)| TrialRequest {
            max_gpus: draft.most,
            current: draft.current.clone(),
            age_s: draft.age_s,
            reallocations: draft.reallocations,
            realloc_delay_s: 30.0,
            ..TrialRequest::new(
                TrialId(id as u32),
                zoo.table(draft.model, draft.progress, &self.cluster, draft.most),
            )
        };
        Problem::new(self.cluster.clone(), self.drafts.iter().enumerate().map(trial).collect())
    }

    /// Some minutes later: the plan was applied, trials went on, some were replaced by new ones.
    pub(crate) fn advance(&mut self, plan: &Plan, rng: &mut ChaCha8Rng) {
        for (draft, decision) in self.drafts.iter_mut().zip(&plan.placements) {
            draft.reallocations +=
                u32::from(!draft.current.is_empty() && draft.current != decision.allocation);
            draft.current = decision.allocation.clone();
            draft.age_s += rng.random_range(60.0..600.0);
            draft.progress += rng.random_range(0.0..0.2);
            draft.most = draft.most.max(2 * draft.current.gpus());
            if draft.progress >= 1.0 {
                (draft.progress, draft.most, draft.age_s, draft.reallocations) = (0.0, 1, 0.0, 0);
                draft.current = Allocation::none();
                draft.model = rng.random_range(0..MODELS.len());
            }
        }
    }
}

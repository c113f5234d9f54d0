//! `pollux-tune simulate study`: how long a study would take, and what brings how much.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
};

use crate::{
    alloc::{Cluster, PolicyKind},
    cli,
    sim::{SimulatedCluster, StudyReport, follow_study, simulate_study},
    space::{Parallel, Program, Study},
    store::{Folder, Journal, Store},
    trials::engine::JournalEntry,
};
use serde_json::{Value, json};

use super::{
    output::{Format, table},
    parallel::in_parallel,
    simulate::{self, Error},
    study,
};

/// What to simulate.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) study: PathBuf,
    pub(crate) cluster: Option<String>,
    pub(crate) policies: Vec<String>,
    pub(crate) ablation: bool,
    pub(crate) seeds: u32,
    pub(crate) realloc_s: f64,
    /// In place of that of the study.
    pub(crate) parallel: Option<Parallel>,
    pub(crate) threads: usize,
    /// Where what happened is kept as studies.
    pub(crate) keep: Option<PathBuf>,
    pub(crate) format: Format,
}

/// A study under one policy, with something switched off perhaps.
#[derive(Debug, Clone)]
pub(crate) struct Variant {
    /// What it is called in tables.
    pub(crate) name: String,
    study: Study,
    simulated: SimulatedCluster,
    /// Whether it is to have the best of all fixed batches.
    best_batch: bool,
}

/// What became of a variant.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) variant: Variant,
    /// One for each seed.
    pub(crate) reports: Vec<StudyReport>,
}

/// A figure over all seeds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spread {
    pub(crate) mean: f64,
    /// Standard deviation.
    pub(crate) spread: f64,
}

/// What can be compared: policies, `static` with the best fixed batch, `pollux` that decides as soon as something changes, and `goodput`
/// that chooses how many trials are active.
pub(crate) const POLICIES: [&str; 8] =
    ["static", "static-best", "pollux", "pollux-now", "goodput", "auto", "optimus", "tiresias"];
/// Those of the paper's table, and ours.
const DEFAULT: [&str; 6] = ["static", "static-best", "pollux", "pollux-now", "goodput", "auto"];
/// Table 3 of the paper: accuracy of the best 5 trials in percent, mean completion time in seconds, makespan in seconds.
const PAPER: [(&str, &str, f64, f64); 2] =
    [("static", "95.5 ± 0.3", 2040.0, 50_400.0), ("pollux", "95.4 ± 0.2", 1500.0, 36_000.0)];
/// So many facts are written at a time.
const AT_ONCE: usize = 4096;
/// The cost of a change of GPUs in the paper's simulator.
pub(crate) const PAPER_REALLOC_S: f64 = 30.0;

impl Variant {
    fn new(study: &Study, simulated: &SimulatedCluster, name: &str) -> Self {
        let (mut study, simulated) = (study.clone(), simulated.clone());
        let best_batch = name == "static-best";
        study.scheduler.policy = match name {
            "static-best" => PolicyKind::Static,
            "pollux-now" => PolicyKind::Pollux,
            "auto" => PolicyKind::Goodput,
            name => name.parse().unwrap_or_default(),
        };
        match study.scheduler.policy {
            PolicyKind::Goodput => {}
            // As in the paper: decisions in intervals, and each trial explores for itself.
            PolicyKind::Pollux => {
                (study.scheduler.immediate, study.scheduler.knowledge_sharing) =
                    (name == "pollux-now", false);
            }
            // What does not adapt GPUs does not adapt batches either, and need not know how fast trials are.
            PolicyKind::Static | PolicyKind::Optimus | PolicyKind::Tiresias => {
                study.trial.batch_per_gpu = study.trial.batch_per_gpu.or(Some(study.trial.initial_batch));
                study.scheduler.knowledge_sharing = study.scheduler.policy == PolicyKind::Optimus;
            }
        }
        // Only what adapts GPUs can choose how many trials are active.
        let adapts = matches!(study.scheduler.policy, PolicyKind::Goodput | PolicyKind::Pollux);
        study.search.parallel = match study.search.parallel {
            _ if name == "auto" => Parallel::Auto,
            Parallel::Auto if !adapts => Parallel::Fixed(Parallel::DEFAULT),
            parallel => parallel,
        };
        Self { name: name.to_owned(), study, simulated, best_batch }
    }

    fn named(mut self, name: &str, change: impl FnOnce(&mut Self)) -> Self {
        name.clone_into(&mut self.name);
        change(&mut self);
        self
    }

    /// The name of its folder.
    fn kept_as(&self) -> String {
        self.name.replace(' ', "-")
    }

    /// Keeps all that happened with the first seed as a study.
    fn keep(&self, folder: &Path) -> Result<(), cli::Error> {
        let folder = folder.join(self.kept_as());
        let cluster = &self.simulated.cluster;
        Folder::new(&folder).mark_emulated(&format!("{} GPUs in virtual time", cluster.total_gpus()))?;
        let mut store = Store::open(&folder)?;
        let (mut entries, mut written) = (Vec::new(), Ok(()));
        follow_study(&self.study, &self.simulated, &mut |entry: &JournalEntry| {
            entries.push(entry.clone());
            if entries.len() >= AT_ONCE && written.is_ok() {
                written = store.append(&std::mem::take(&mut entries));
            }
        })
        .map_err(Error::Simulation)?;
        written?;
        Ok(store.append(&entries)?)
    }

    /// What became of it with one seed.
    fn run(&self, seed: u32) -> Result<StudyReport, crate::sim::Error> {
        let mut study = self.study.clone();
        study.search.seed += u64::from(seed);
        simulate_study(&study, &self.simulated)
    }
}

/// Fails where a study of an earlier simulation would be continued.
fn check_kept(folder: &Path, variants: &[Variant]) -> Result<(), Error> {
    let there = variants.iter().map(|variant| folder.join(variant.kept_as())).find(|path| path.exists());
    there.map_or(Ok(()), |path| Err(Error::Exists(path)))
}

/// `goodput` without one of the things that make it fast, each in turn.
fn ablations(study: &Study, simulated: &SimulatedCluster) -> Vec<Variant> {
    let ours = || Variant::new(study, simulated, "goodput");
    vec![
        ours().named("fixed batch", |variant| variant.best_batch = true),
        ours().named("no moves", |variant| variant.study.scheduler.policy = PolicyKind::Static),
        ours().named("nothing shared", |variant| variant.study.scheduler.knowledge_sharing = false),
        ours().named("only at intervals", |variant| variant.study.scheduler.immediate = false),
        ours().named("expensive moves", |variant| variant.simulated.realloc_s = PAPER_REALLOC_S),
    ]
}

/// The study under the policies asked for, and without this or that.
pub(crate) fn variants(
    study: &Study,
    simulated: &SimulatedCluster,
    policies: &[String],
    ablation: bool,
) -> Vec<Variant> {
    let named = |names: &[&str]| names.iter().map(|name| Variant::new(study, simulated, name)).collect();
    let mut all: Vec<Variant> = if policies.is_empty() {
        named(&DEFAULT)
    } else {
        named(&policies.iter().map(String::as_str).collect::<Vec<_>>())
    };
    if ablation {
        all.extend(ablations(study, simulated));
    }
    all
}

/// Runs everything, each with the seeds from that of the study on.
pub(crate) fn run_all(
    mut variants: Vec<Variant>,
    seeds: u32,
    threads: usize,
    stderr: &mut (impl Write + Send),
) -> Result<Vec<Row>, Error> {
    if let Some(best) = best_batch(&variants, seeds, threads, stderr)? {
        for variant in variants.iter_mut().filter(|variant| variant.best_batch) {
            variant.study.trial.batch_per_gpu = Some(best);
        }
    }
    let mut reports = each_seed(&variants, seeds, threads, stderr)?.into_iter();
    Ok(variants
        .into_iter()
        .map(|variant| Row { variant, reports: reports.by_ref().take(seeds as usize).collect() })
        .collect())
}

fn each_seed(
    variants: &[Variant],
    seeds: u32,
    threads: usize,
    stderr: &mut (impl Write + Send),
) -> Result<Vec<StudyReport>, Error> {
    let jobs: Vec<(&Variant, u32)> =
        variants.iter().flat_map(|variant| (0..seeds).map(move |seed| (variant, seed))).collect();
    let reports = in_parallel(&jobs, threads, stderr, |(variant, seed)| variant.run(*seed));
    reports.into_iter().collect::<Result<_, _>>().map_err(Error::Simulation)
}

/// The fixed batch for each GPU with which `static` is done first, of all from the initial one on in steps of about 1.4; none
/// if no variant needs it.
fn best_batch(
    variants: &[Variant],
    seeds: u32,
    threads: usize,
    stderr: &mut (impl Write + Send),
) -> Result<Option<u32>, Error> {
    let Some(asked) = variants.iter().find(|variant| variant.best_batch) else { return Ok(None) };
    let trial = &asked.study.trial;
    let max = trial.max_batch_per_gpu.unwrap_or(trial.max_batch);
    let steps = (0..).map(|step| f64::from(trial.initial_batch) * libm::exp2(f64::from(step) / 2.0));
    let batches: Vec<u32> =
        steps.map(|batch| batch.round() as u32).take_while(|batch| *batch <= max).take(24).collect();
    let fixed = |batch: &u32| {
        Variant::new(&asked.study, &asked.simulated, "static")
            .named("", |variant| variant.study.trial.batch_per_gpu = Some(*batch))
    };
    let tries: Vec<Variant> = batches.iter().map(fixed).collect();
    let reports = each_seed(&tries, seeds, threads, stderr)?;
    let sums =
        reports.chunks(seeds as usize).map(|chunk| chunk.iter().map(|one| one.makespan_s).sum::<f64>());
    Ok(batches.into_iter().zip(sums).min_by(|a, b| a.1.total_cmp(&b.1)).map(|(batch, _)| batch))
}

impl Row {
    /// A figure of all seeds.
    pub(crate) fn of(&self, figure: impl Fn(&StudyReport) -> f64) -> Spread {
        let values: Vec<f64> = self.reports.iter().map(figure).collect();
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let squares = values.iter().map(|value| (value - mean) * (value - mean)).sum::<f64>();
        Spread { mean, spread: (squares / (count - 1.0).max(1.0)).sqrt() }
    }

    /// How long it takes in all, relative to another row.
    pub(crate) fn ratio(&self, other: Option<&Self>) -> Option<f64> {
        let makespan = |row: &Self| row.of(|report| report.makespan_s).mean;
        other.map(|other| makespan(self) / makespan(other))
    }

    /// The fixed batch for each GPU, as text.
    pub(crate) fn batch(&self) -> String {
        self.variant.study.trial.batch_per_gpu.map_or_else(|| "adapted".to_owned(), |batch| batch.to_string())
    }

    /// The share of its time that would be needed at least.
    pub(crate) fn of_possible(&self) -> f64 {
        self.of(|report| report.bound_s).mean / self.of(|report| report.makespan_s).mean
    }

    /// The figures, for programs.
    pub(crate) fn figures(&self) -> [(&'static str, Spread); 6] {
        [
            ("avg_jct_s", self.of(StudyReport::avg_jct_s)),
            ("makespan_s", self.of(|report| report.makespan_s)),
            ("top5_accuracy", self.of(|report| report.top(5))),
            ("gpu_hours", self.of(StudyReport::gpu_hours)),
            ("reallocations", self.of(StudyReport::reallocations)),
            ("bound_s", self.of(|report| report.bound_s)),
        ]
    }

    fn json(&self) -> Value {
        let mut object = serde_json::Map::new();
        object.insert("policy".to_owned(), json!(self.variant.name));
        object.insert("parallel".to_owned(), json!(self.variant.study.search.parallel.to_string()));
        object.insert("of_possible".to_owned(), json!(self.of_possible()));
        object.insert("seeds".to_owned(), json!(self.reports.len()));
        object.insert("batch_per_gpu".to_owned(), json!(self.variant.study.trial.batch_per_gpu));
        object.insert("restart_delay_s".to_owned(), json!(self.variant.simulated.realloc_s));
        for (name, Spread { mean, spread }) in self.figures() {
            object.insert(name.to_owned(), json!({"mean": mean, "spread": spread}));
        }
        Value::Object(object)
    }
}

/// The row of a variant of this name.
pub(crate) fn find<'a>(rows: &'a [Row], name: &str) -> Option<&'a Row> {
    rows.iter().find(|row| row.variant.name == name)
}

/// Simulates a study and prints what became of it.
pub(crate) fn run(
    settings: &Settings,
    out: &mut impl Write,
    stderr: &mut (impl Write + Send),
) -> Result<(), cli::Error> {
    let (_, mut study) = study::load(&settings.study, stderr)?;
    study.search.parallel = settings.parallel.unwrap_or(study.search.parallel);
    let cluster = match (&settings.cluster, &study.cluster) {
        (Some(text), _) => simulate::cluster(text, stderr)?,
        (None, Some(spec)) => Cluster::parse(&spec.to_string()).map_err(Error::Setting)?,
        (None, None) => return Err(Error::NoCluster { file: settings.study.clone() }.into()),
    };
    let simulated = SimulatedCluster { realloc_s: settings.realloc_s, ..SimulatedCluster::new(cluster) };
    let variants = variants(&study, &simulated, &settings.policies, settings.ablation);
    if let Some(folder) = &settings.keep {
        check_kept(folder, &variants)?;
    }
    let rows = run_all(variants, settings.seeds, settings.threads, stderr)?;
    if let Some(folder) = &settings.keep {
        rows.iter().try_for_each(|row| row.variant.keep(folder))?;
        let shown = folder.display();
        // Whether or not it is read.
        let _ = writeln!(stderr, "what happened with the first seed: pollux-tune dashboard {shown}");
    }
    match settings.format {
        Format::Text => print(settings, &study, &rows, out),
        Format::Json => rows.iter().try_for_each(|row| writeln!(out, "{}", row.json())),
    }
    .map_err(cli::Error::Stdout)
}

/// Rows of a table with its head: the figures of each variant, and how it compares with fixed batches.
pub(crate) fn cells(rows: &[Row]) -> Vec<Vec<String>> {
    let head = [
        "policy",
        "batch per GPU",
        "top 5",
        "mean trial",
        "makespan",
        "GPU hours",
        "moves",
        "to static",
        "to static-best",
        "of possible",
    ];
    let (fixed, best) = (find(rows, "static"), find(rows, "static-best"));
    let mut cells = vec![head.map(str::to_owned).to_vec()];
    for row in rows {
        let [jct, makespan, top, hours, moves, _] = row.figures().map(|(_, figure)| figure);
        let ratio =
            |other: Option<&Row>| row.ratio(other).map_or_else(String::new, |ratio| format!("{ratio:.3}"));
        cells.push(vec![
            row.variant.name.clone(),
            row.batch(),
            format!("{:.2} ± {:.2} %", 100.0 * top.mean, 100.0 * top.spread),
            format!("{:.0} ± {:.0} s", jct.mean, jct.spread),
            format!("{:.0} ± {:.0} s", makespan.mean, makespan.spread),
            format!("{:.1} ± {:.1}", hours.mean, hours.spread),
            format!("{:.1} ± {:.1}", moves.mean, moves.spread),
            ratio(fixed),
            ratio(best),
            format!("{:.1} %", 100.0 * row.of_possible()),
        ]);
    }
    cells
}

fn print(settings: &Settings, study: &Study, rows: &[Row], out: &mut impl Write) -> io::Result<()> {
    let search = &study.search;
    writeln!(
        out,
        "{}: {} trials, {} at a time, {} seeds, {} s for a change of GPUs",
        settings.study.display(),
        search.trials,
        search.parallel,
        settings.seeds,
        settings.realloc_s
    )?;
    writeln!(out)?;
    for line in table(&cells(rows)) {
        writeln!(out, "{line}")?;
    }
    writeln!(out)?;
    writeln!(out, "Step times and noise were measured; accuracy is from a synthetic surface.")?;
    writeln!(
        out,
        "Of possible: the time of a scheduler that knows everything and moves GPUs for free, with as many trials at a time, or any \
         number for `auto`."
    )?;
    if study.trial.program == Some(Program::Trainable("cifar10".to_owned())) {
        writeln!(out, "The paper's table, for its own search space and training:")?;
        for (policy, top, jct_s, makespan_s) in PAPER {
            let ratio = makespan_s / PAPER[0].3;
            writeln!(
                out,
                "  {policy:8} top 5 {top} %, mean trial {jct_s} s, makespan {makespan_s} s, {ratio:.2} of static"
            )?;
        }
    }
    Ok(())
}

/// Table 3 of the paper as the page of `simulate paper` shows it next to ours: policy and cells.
pub(crate) fn paper_cells() -> impl Iterator<Item = [String; 5]> {
    PAPER.into_iter().map(|(policy, top, jct_s, makespan_s)| {
        let ratio = format!("{:.2}", makespan_s / PAPER[0].3);
        [policy.to_owned(), format!("{top} %"), format!("{jct_s} s"), format!("{makespan_s} s"), ratio]
    })
}

//! Studies over learning curves that were measured before.

use std::{
    error::Error,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use flate2::read::GzDecoder;
use pollux_tune::{
    ids::TrialId,
    space::{Dim, Dims, Direction, EarlyStopping},
    tpe::{Outcome, Suggester, Tpe, TpeOptions},
    trials::stopping::{EndKind, Stopper, Verdict, stopper},
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Normal};

/// What each file begins its columns with.
const HYPERPARAMETERS: usize = 6;
/// The metrics of each file, as its columns name them.
const METRICS: [&str; 2] = ["loss", "error"];

/// Trainings of one task with different hyper-parameters, by one metric; less is better.
pub(crate) struct Table {
    /// The task and the metric, or the family.
    pub(crate) name: String,
    /// Of a full training.
    pub(crate) epochs: f64,
    /// Where values are reported, in epochs; evenly spaced.
    pub(crate) at: Vec<f64>,
    curves: Curves,
}

enum Curves {
    Measured(Vec<Row>),
    /// The value of a point after a share of the training.
    Synthetic(fn(&[f64], f64) -> f64),
}

/// One training.
#[derive(Clone)]
pub(crate) struct Row {
    /// The hyper-parameters, each from 0 to 1.
    point: Vec<f64>,
    /// On the validation images; NaN once it has diverged.
    pub(crate) values: Vec<f64>,
    /// What it is worth: the last of the values, without noise where that is known.
    pub(crate) end: f64,
}

/// How configurations are chosen.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Choice {
    /// Independently of each other: of a table, each row may come more than once, as if there were more rows like them.
    Random,
    /// What this suggests, with this number of random trials first; of a table, the row that is nearest to it of those that were not used
    /// since all were.
    Suggested(Begin, usize),
}

/// Begins a search with some random trials.
pub(crate) type Begin = fn(Dims, usize) -> Box<dyn Suggester>;

pub(crate) fn tpe(dims: Dims, startup: usize) -> Box<dyn Suggester> {
    let options = TpeOptions { startup, ..TpeOptions::default() };
    Box::new(Tpe::with_options(dims, options).expect("there is a random trial"))
}

/// How a study is done.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Conditions {
    pub(crate) choice: Choice,
    /// Trials at the same time.
    pub(crate) workers: usize,
    /// The number of reports of a training; all that were measured if there are fewer.
    pub(crate) reports: usize,
}

/// The tables of all files in `data/curves`, in the order of their names.
pub(crate) fn tables() -> Result<Vec<Table>, Box<dyn Error>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/curves");
    let files: io::Result<Vec<PathBuf>> =
        fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect();
    let mut files: Vec<PathBuf> =
        files?.into_iter().filter(|path| path.extension().is_some_and(|suffix| suffix == "gz")).collect();
    files.sort();
    let mut tables = Vec::new();
    for file in files {
        for metric in METRICS {
            tables.push(read(&file, metric).map_err(|error| format!("{}: {error}", file.display()))?);
        }
    }
    Ok(tables)
}

fn read(file: &Path, metric: &str) -> Result<Table, Box<dyn Error>> {
    let mut reader = csv::Reader::from_reader(GzDecoder::new(File::open(file)?));
    let prefix = format!("{metric}_");
    let header = reader.headers()?.clone();
    let columns: Vec<(usize, f64)> = header
        .iter()
        .enumerate()
        .filter_map(|(at, name)| Some((at, name.strip_prefix(&prefix)?.parse().ok()?)))
        .collect();
    let mut rows = Vec::new();
    for record in reader.records() {
        let record = record?;
        let number = |at: usize| record[at].parse::<f64>();
        let point: Result<Vec<f64>, _> = (0..HYPERPARAMETERS).map(number).collect();
        let values: Result<Vec<f64>, _> = columns.iter().map(|(at, _)| number(*at)).collect();
        let values = values?;
        let end = values.last().copied().filter(|value| value.is_finite()).unwrap_or(f64::INFINITY);
        rows.push(Row { point: point?, values, end });
    }
    scale(&header, &mut rows);
    let task = file.file_name().and_then(|name| name.to_str()?.strip_suffix(".csv.gz")).unwrap_or_default();
    let at: Vec<f64> = columns.into_iter().map(|(_, at)| at).collect();
    let epochs = at.last().copied().ok_or("no curves")?;
    Ok(Table { name: format!("{task} {metric}"), epochs, at, curves: Curves::Measured(rows) })
}

/// From 0 to 1, all but shares on a logarithmic scale, as they were drawn.
fn scale(header: &csv::StringRecord, rows: &mut [Row]) {
    for at in 0..HYPERPARAMETERS {
        let log = !matches!(&header[at], "momentum" | "dropout");
        let place = |row: &Row| if log { row.point[at].ln() } else { row.point[at] };
        let low = rows.iter().map(place).fold(f64::INFINITY, f64::min);
        let high = rows.iter().map(place).fold(f64::NEG_INFINITY, f64::max);
        for row in &mut *rows {
            row.point[at] = (place(row) - low) / (high - low);
        }
    }
}

/// Families of curves that cross. Two parameters shape the model and are best somewhere in the middle, the third is a rate that
/// makes a fast start and has to be paid for.
pub(crate) fn families() -> Vec<Table> {
    let family = |name: &str, curve: fn(&[f64], f64) -> f64| Table {
        name: name.to_owned(),
        epochs: 20.0,
        at: (1..=20).map(f64::from).collect(),
        curves: Curves::Synthetic(curve),
    };
    vec![
        family("floors", |x, done| {
            base(x) + 0.25 * x[2] * x[2] + (1.5 + x[3]) * decay(done, 81.0, 0.5 + 0.7 * x[2])
        }),
        family("steps", |x, done| {
            let noise = if done <= 0.5 { 1.0 } else { 0.1 };
            base(x)
                + 0.6 * x[2] * noise
                + 0.4 * (1.0 - x[2]).powi(2)
                + 1.5 * decay(done, 60.0, 0.4 + 0.8 * x[2])
        }),
        family("cosine", |x, done| {
            let rate = 0.5 + 0.5 * (std::f64::consts::PI * done).cos();
            base(x)
                + 0.8 * x[2] * rate
                + 0.5 * (1.0 - x[2]).powi(2)
                + 1.2 * decay(done, 40.0, 0.4 + 0.6 * x[2])
        }),
        family("overfitting", |x, done| {
            let late = 0.5 * x[2] * (1.0 - x[4]) * (done - 0.3).max(0.0);
            base(x) + late + 1.5 * decay(done, 50.0, 0.4 + x[2])
        }),
    ]
}

fn base(x: &[f64]) -> f64 {
    0.3 + 0.8 * (x[0] - 0.6).powi(2) + 0.6 * (x[1] - 0.3).powi(2)
}

fn decay(done: f64, speed: f64, rate: f64) -> f64 {
    (1.0 + speed * done).powf(-rate)
}

/// Of a reported value of a family, relative to it.
const NOISE: f64 = 0.01;

/// Which training comes next.
pub(crate) struct Chooser<'t> {
    table: &'t Table,
    suggester: Option<Box<dyn Suggester>>,
    /// Rows that it has not used.
    left: Vec<usize>,
    seed: u64,
}

impl<'t> Chooser<'t> {
    pub(crate) fn new(table: &'t Table, choice: Choice, seed: u64) -> Self {
        let suggester = match choice {
            Choice::Random => None,
            Choice::Suggested(begin, startup) => {
                let dims = Dims::flat(vec![Dim::Continuous; HYPERPARAMETERS]).expect("it is a space");
                Some(begin(dims, startup))
            }
        };
        Self { table, suggester, left: Vec::new(), seed }
    }

    pub(crate) fn next(&mut self, trial: TrialId) -> Row {
        let rng = &mut ChaCha8Rng::seed_from_u64(self.seed << 32 | u64::from(trial.0));
        let point: Option<Vec<f64>> = self.suggester.as_mut().map(|suggester| {
            let point = suggester.ask(trial, rng).expect("there are more points");
            point.into_iter().map(|x| x.expect("all parameters are active")).collect()
        });
        match &self.table.curves {
            Curves::Measured(rows) => match point {
                Some(point) => nearest(rows, &mut self.left, &point).clone(),
                None => rows[rng.random_range(0..rows.len())].clone(),
            },
            Curves::Synthetic(curve) => {
                let point = point.unwrap_or_else(|| (0..HYPERPARAMETERS).map(|_| rng.random()).collect());
                let noise = Normal::new(1.0, NOISE).expect("it is a distribution");
                let value = |at: &f64| curve(&point, at / self.table.epochs) * noise.sample(rng);
                let values = self.table.at.iter().map(value).collect();
                let end = curve(&point, 1.0);
                Row { point, values, end }
            }
        }
    }

    fn tell(&mut self, trial: TrialId, outcome: Outcome) {
        if let Some(suggester) = &mut self.suggester {
            suggester.tell(trial, outcome).expect("it is running");
        }
    }
}

fn nearest<'r>(rows: &'r [Row], left: &mut Vec<usize>, point: &[f64]) -> &'r Row {
    if left.is_empty() {
        left.extend(0..rows.len());
    }
    let distance =
        |at: usize| -> f64 { rows[at].point.iter().zip(point).map(|(a, b)| (a - b).powi(2)).sum() };
    let nearest = (0..left.len()).min_by(|&a, &b| distance(left[a]).total_cmp(&distance(left[b])));
    &rows[left.swap_remove(nearest.expect("a table has rows"))]
}

/// A trial under way.
struct Running {
    trial: TrialId,
    row: Row,
    /// How many values of its curve are trained.
    trained: usize,
}

/// What a study came to.
pub(crate) struct Found {
    /// What the finished trial with the best last report is worth, at each of the budgets; infinite where none has finished.
    pub(crate) best: Vec<f64>,
    /// What was trained, as a share of full trainings of the same trials.
    pub(crate) cost: f64,
}

/// A study that ends with the last budget. Budgets are in full trainings, and trainings of one table all take as long.
pub(crate) fn study(
    table: &Table,
    settings: &EarlyStopping,
    conditions: Conditions,
    budgets: &[f64],
    seed: u64,
) -> Found {
    let points = table.at.len();
    let mut stopper = stopper(settings, table.epochs, Direction::Minimize).expect("the settings are fine");
    let mut chooser = Chooser::new(table, conditions.choice, seed);
    let mut started = 0;
    let mut start = |chooser: &mut Chooser<'_>| {
        let trial = TrialId(started);
        started += 1;
        Running { trial, row: chooser.next(trial), trained: 0 }
    };
    let mut workers: Vec<Running> = (0..conditions.workers).map(|_| start(&mut chooser)).collect();
    let (mut used, mut found, mut best) = (0_u32, (f64::INFINITY, f64::INFINITY), Vec::new());
    while best.len() < budgets.len() {
        for worker in &mut workers {
            (worker.trained, used) = (worker.trained + 1, used + 1);
            if let Some(outcome) = report(table, worker, &mut *stopper, conditions.reports) {
                match &outcome {
                    Outcome::Done(values) if values[0] < found.0 => found = (values[0], worker.row.end),
                    _ => {}
                }
                chooser.tell(worker.trial, outcome);
                *worker = start(&mut chooser);
            }
            while budgets.get(best.len()).is_some_and(|budget| f64::from(used) >= budget * points as f64) {
                best.push(found.1);
            }
        }
    }
    Found { best, cost: f64::from(used) / f64::from(started) / points as f64 }
}

/// How the trial has ended, if it has.
fn report(table: &Table, running: &Running, stopper: &mut dyn Stopper, reports: usize) -> Option<Outcome> {
    let &Running { trial, ref row, trained } = running;
    let points = table.at.len();
    // Each time that another part of the training is complete.
    if reports < points && trained * reports / points == (trained - 1) * reports / points {
        return None;
    }
    let (at, value) = (table.at[trained - 1], row.values[trained - 1]);
    let (how, outcome) = match stopper.report(trial, at, value).expect("it is running") {
        Verdict::Stop(_) if value.is_finite() => {
            (EndKind::Stopped, Outcome::Stopped { value: Some(value), step: at as u64 })
        }
        Verdict::Stop(_) => (EndKind::Failed, Outcome::Failed),
        Verdict::Continue if trained == points && value.is_finite() => {
            (EndKind::Done, Outcome::Done(vec![value]))
        }
        Verdict::Continue if trained == points => (EndKind::Failed, Outcome::Failed),
        Verdict::Continue => return None,
    };
    stopper.end(trial, how).expect("it ends once");
    Some(outcome)
}

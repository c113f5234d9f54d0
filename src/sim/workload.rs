use std::collections::BTreeSet;

use csv::StringRecord;

use super::{Application, Error};

/// The columns of a workload.
pub(super) const COLUMNS: &str = "`name`, `time`, `application`, `num_replicas` and `batch_size`";

/// One job of a workload.
#[derive(Debug, Clone)]
pub struct JobSpec {
    /// Its name, different from all others.
    pub name: String,
    /// When it is submitted, in seconds.
    pub submitted_s: f64,
    /// What it trains.
    pub application: &'static Application,
    /// The GPUs its user asks for: what policies that do not adapt give it.
    pub requested_gpus: u32,
    /// The total batch its user asks for, for the same policies.
    pub requested_batch: u32,
}

/// Jobs that are submitted over some hours, in the order of submission.
///
/// ```
/// use pollux_tune::sim::Workload;
/// let text = "name,time,application,num_replicas,batch_size\nfirst,107,cifar10,6,2048\n";
/// assert_eq!(Workload::parse(text)?.jobs()[0].requested_gpus, 6);
/// let error = Workload::parse(&text.replace("cifar10", "mnist")).unwrap_err();
/// assert!(error.to_string().starts_with("line 2: application is `mnist`, allowed is bert,"));
/// # Ok::<(), pollux_tune::sim::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Workload {
    jobs: Vec<JobSpec>,
}

impl Workload {
    /// Jobs in the order of their submission; of those submitted at once, the first stays first.
    pub fn new(mut jobs: Vec<JobSpec>) -> Result<Self, Error> {
        if jobs.is_empty() {
            return Err(Error::NoJobs);
        }
        jobs.sort_by(|a, b| a.submitted_s.total_cmp(&b.submitted_s));
        Ok(Self { jobs })
    }

    /// Reads the text of a CSV file with the columns `name`, `time` (seconds), `application`, `num_replicas` and
    /// `batch_size`, in any order.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let mut reader =
            csv::ReaderBuilder::new().trim(csv::Trim::All).comment(Some(b'#')).from_reader(text.as_bytes());
        let header = reader.headers().map_err(|error| malformed(&error))?.clone();
        if header.is_empty() {
            return Err(Error::NoJobs);
        }
        let columns = Columns::find(&header)?;
        let (mut jobs, mut names) = (Vec::new(), BTreeSet::new());
        for record in reader.records() {
            let record = record.map_err(|error| malformed(&error))?;
            let line = record.position().map_or(0, csv::Position::line);
            let job = columns.job(&record, line)?;
            if !names.insert(job.name.clone()) {
                return Err(Error::DuplicateJob { line, name: job.name });
            }
            jobs.push(job);
        }
        Self::new(jobs)
    }

    /// The jobs, in the order of submission.
    #[must_use]
    pub fn jobs(&self) -> &[JobSpec] {
        &self.jobs
    }
}

fn malformed(error: &csv::Error) -> Error {
    let line = error.position().map_or(1, csv::Position::line);
    let reason = match *error.kind() {
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            format!("the row has {len} fields, the header has {expected_len}")
        }
        _ => "this is not CSV".to_owned(),
    };
    Error::Malformed { line, reason }
}

struct Columns([usize; 5]);

const NAMES: [&str; 5] = ["name", "time", "application", "num_replicas", "batch_size"];

impl Columns {
    fn find(header: &StringRecord) -> Result<Self, Error> {
        let mut places = [0; 5];
        for (place, column) in places.iter_mut().zip(NAMES) {
            *place = header.iter().position(|name| name == column).ok_or_else(|| {
                let present: Vec<_> = header.iter().map(|name| format!("`{name}`")).collect();
                let line = header.position().map_or(1, csv::Position::line);
                Error::MissingColumn { line, column, present: present.join(", ") }
            })?;
        }
        Ok(Self(places))
    }

    fn job(&self, record: &StringRecord, line: u64) -> Result<JobSpec, Error> {
        let field = |column: usize| record.get(self.0[column]).unwrap_or_default();
        let bad = |column: usize, allowed: &str| Error::BadField {
            line,
            column: NAMES[column],
            value: field(column).to_owned(),
            allowed: allowed.to_owned(),
        };
        let name = field(0).to_owned();
        if name.is_empty() {
            return Err(bad(0, "any name that no other job has"));
        }
        let time = field(1).parse().ok().filter(|time: &f64| (0.0..=TIME_MAX_S).contains(time));
        let submitted_s = time.ok_or_else(|| bad(1, "a number of seconds from 0 to 1e8"))?;
        let application = Application::get(field(2)).ok_or_else(|| bad(2, &application_names()))?;
        let gpus = field(3).parse().ok().filter(|gpus| (1..=GPUS_MAX).contains(gpus));
        let requested_gpus = gpus.ok_or_else(|| bad(3, "a whole number from 1 to 4096"))?;
        let (min, max) = (application.initial_batch(), application.max_batch());
        let batch = field(4).parse().ok().filter(|batch| (min..=max).contains(batch));
        let requested_batch = batch.ok_or_else(|| {
            bad(4, &format!("a whole number from {min} to {max} for {}", application.name()))
        })?;
        Ok(JobSpec { name, submitted_s, application, requested_gpus, requested_batch })
    }
}

/// About three years.
const TIME_MAX_S: f64 = 1e8;
const GPUS_MAX: u32 = 4096;

fn application_names() -> String {
    let names: Vec<_> = Application::all().iter().map(Application::name).collect();
    names.join(", ")
}

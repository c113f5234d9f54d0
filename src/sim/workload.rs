use std::collections::BTreeSet;

use csv::StringRecord;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

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
    /// How many epochs its user says that it trains, relative to the number that it does: 1 if that is right.
    pub declared: f64,
}

/// Jobs that are submitted over some hours, in the order of submission.
///
/// ```
/// use pollux_tune::sim::Workload;
/// let text = "name,time,application,num_replicas,batch_size\nfirst,107,cifar10,6,2048\n";
/// assert_eq!(Workload::parse(text)?.jobs()[0].requested_gpus, 6);
/// let error = Workload::parse(&text.replace("cifar10", "mnist")).unwrap_err();
/// assert!(error.to_string().starts_with("line 2: application is `mnist`; expected one of bert,"));
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

    /// Another workload like these: as many jobs as they have on average, each of them one of theirs, drawn at random with its time. The
    /// users of half of the jobs say that they train for `wrong` times as many epochs as they do, those of the others for
    /// `1 / wrong`.
    ///
    /// ```
    /// use pollux_tune::sim::Workload;
    /// let known = Workload::builtin("osdi21/load-1.0");
    /// let drawn = Workload::drawn(&known, 7, 2.0)?;
    /// assert_eq!(drawn.jobs().len(), 160);
    /// assert!(drawn.jobs().iter().all(|job| job.declared == 2.0 || job.declared == 0.5));
    /// # Ok::<(), pollux_tune::sim::Error>(())
    /// ```
    pub fn drawn(known: &[Self], seed: u64, wrong: f64) -> Result<Self, Error> {
        if !(wrong.is_finite() && wrong > 0.0) {
            let what = "the factor by which epochs are declared wrong";
            return Err(Error::OutOfRange { what, value: wrong, allowed: "a finite number above 0" });
        }
        let all: Vec<&JobSpec> = known.iter().flat_map(|workload| &workload.jobs).collect();
        // Which jobs are drawn does not depend on what is said of them.
        let (mut rng, mut says) = (ChaCha8Rng::seed_from_u64(seed), ChaCha8Rng::seed_from_u64(seed));
        says.set_stream(1);
        let job = |number: usize| {
            let job = all[rng.random_range(0..all.len())];
            let declared = if says.random::<bool>() { wrong } else { 1.0 / wrong };
            JobSpec { name: format!("{}-{number}", job.application.name()), declared, ..job.clone() }
        };
        let count = if known.is_empty() { 0 } else { all.len() / known.len() };
        Self::new((0..count).map(job).collect())
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
        Ok(JobSpec { name, submitted_s, application, requested_gpus, requested_batch, declared: 1.0 })
    }
}

/// About three years.
const TIME_MAX_S: f64 = 1e8;
const GPUS_MAX: u32 = 4096;

fn application_names() -> String {
    let names: Vec<_> = Application::all().iter().map(Application::name).collect();
    format!("one of {}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drawn_workloads_follow_from_their_seed_and_are_like_the_known_ones() {
        let known = Workload::builtin("osdi21/load-1.0");
        let jobs = |seed, wrong| {
            let drawn = Workload::drawn(&known, seed, wrong).unwrap();
            let job = |job: &JobSpec| (job.name.clone(), job.submitted_s.to_bits(), job.requested_batch);
            drawn.jobs().iter().map(job).collect::<Vec<_>>()
        };
        assert_eq!(jobs(3, 1.0), jobs(3, 2.0), "what is said of jobs does not change them");
        assert_ne!(jobs(3, 1.0), jobs(4, 1.0));
        let share = |workloads: &[Workload], name| {
            let all = || workloads.iter().flat_map(Workload::jobs);
            all().filter(|job| job.application.name() == name).count() as f64 / all().count() as f64
        };
        let drawn: Vec<Workload> = (0..20).map(|seed| Workload::drawn(&known, seed, 2.0).unwrap()).collect();
        for name in ["cifar10", "imagenet", "ncf"] {
            let (of_known, of_drawn) = (share(&known, name), share(&drawn, name));
            assert!((of_known - of_drawn).abs() < 0.05, "{name}: {of_known} {of_drawn}");
        }
        let long = drawn.iter().flat_map(Workload::jobs).filter(|job| job.declared > 1.0).count();
        assert!((1400..1800).contains(&long), "{long} of 3200 are said to be longer than they are");
    }

    #[test]
    fn nothing_can_be_drawn_from_nothing() {
        assert!(matches!(Workload::drawn(&[], 0, 1.0), Err(Error::NoJobs)));
        for wrong in [0.0, -2.0, f64::NAN, f64::INFINITY] {
            let known = Workload::builtin("sia/philly");
            assert!(matches!(Workload::drawn(&known, 0, wrong), Err(Error::OutOfRange { .. })), "{wrong}");
        }
    }
}

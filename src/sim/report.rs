use super::{Application, StepTime};
use crate::{alloc::Cluster, goodput::BatchPlan, ids::GpuType};

/// The result of one job.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct JobReport {
    /// Its name.
    pub name: String,
    /// What it trained.
    pub application: &'static str,
    /// When it was submitted, in seconds.
    pub submitted_s: f64,
    /// When it was done.
    pub completed_s: f64,
    /// How often its GPUs were changed after its start.
    pub restarts: u32,
    /// GPU-hours it had, those of its restarts included.
    pub gpu_hours: f64,
    /// Finish-time fairness (Mahajan et al., 2020): its completion time against that on a share of the cluster of its own,
    /// one part in as many as there were jobs on average while it was there. Above 1 it would have been better off so.
    pub rho: f64,
}

impl JobReport {
    /// Job completion time: seconds from submission to the end.
    #[must_use]
    pub fn jct_s(&self) -> f64 {
        self.completed_s - self.submitted_s
    }
}

/// The results of a workload.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Report {
    /// All jobs, in the order of submission.
    pub jobs: Vec<JobReport>,
}

impl Report {
    /// Fills in the fairness of jobs that ran on this cluster, where a start takes `delay_s`.
    pub(super) fn new(mut jobs: Vec<JobReport>, cluster: &Cluster, delay_s: f64) -> Self {
        let shares: Vec<f64> = jobs.iter().map(|job| concurrent_jobs(job, &jobs)).collect();
        for (job, concurrent_jobs) in jobs.iter_mut().zip(shares) {
            let application = Application::get(job.application).expect("jobs train what there is");
            job.rho = job.jct_s() / (delay_s + isolated_s(application, cluster, concurrent_jobs));
        }
        Self { jobs }
    }

    /// Mean job completion time in seconds.
    #[must_use]
    pub fn avg_jct_s(&self) -> f64 {
        self.mean(JobReport::jct_s)
    }

    /// The completion time in seconds that this share of the jobs does not exceed; between two jobs in proportion.
    #[must_use]
    pub fn jct_quantile_s(&self, share: f64) -> f64 {
        let mut times: Vec<f64> = self.jobs.iter().map(JobReport::jct_s).collect();
        times.sort_by(f64::total_cmp);
        let place = share.clamp(0.0, 1.0) * (times.len() - 1) as f64;
        let (below, above) = (times[place.floor() as usize], times[place.ceil() as usize]);
        (above - below).mul_add(place.fract(), below)
    }

    /// When the last job was done, in seconds.
    #[must_use]
    pub fn makespan_s(&self) -> f64 {
        self.jobs.iter().map(|job| job.completed_s).fold(0.0, f64::max)
    }

    /// GPU-hours of all jobs.
    #[must_use]
    pub fn gpu_hours(&self) -> f64 {
        self.jobs.iter().map(|job| job.gpu_hours).sum()
    }

    /// How often the GPUs of a job were changed, on the mean.
    #[must_use]
    pub fn restarts_per_job(&self) -> f64 {
        self.mean(|job| f64::from(job.restarts))
    }

    /// The largest rho of all jobs.
    #[must_use]
    pub fn worst_rho(&self) -> f64 {
        self.jobs.iter().map(|job| job.rho).fold(0.0, f64::max)
    }

    /// The share of jobs with a rho above 1.
    #[must_use]
    pub fn unfair_share(&self) -> f64 {
        self.mean(|job| f64::from(job.rho > 1.0))
    }

    fn mean(&self, of: impl Fn(&JobReport) -> f64) -> f64 {
        self.jobs.iter().map(of).sum::<f64>() / self.jobs.len() as f64
    }
}

/// How many jobs there were on average while this one was, itself included.
fn concurrent_jobs(job: &JobReport, all: &[JobReport]) -> f64 {
    let shared = |other: &JobReport| {
        (job.completed_s.min(other.completed_s) - job.submitted_s.max(other.submitted_s)).max(0.0)
    };
    (all.iter().map(shared).sum::<f64>() / job.jct_s()).max(1.0)
}

/// Total batches that are tried for the best one.
const SAMPLES: u32 = 40;

/// Seconds that a training takes alone on one part in `parts` of a cluster, always with the best batch; the mean over the
/// GPU types that it runs on, by their number of GPUs.
fn isolated_s(application: &Application, cluster: &Cluster, parts: f64) -> f64 {
    let share = (f64::from(cluster.total_gpus()) / parts).round().max(1.0) as u32;
    let (mut sum, mut weight) = (0.0, 0.0);
    for (gpu_type, node_gpus, total) in cluster.room(u32::MAX) {
        // It need not use all of its share: half of it may be faster.
        let sizes =
            std::iter::successors(Some(share.min(total)), |gpus| Some(gpus / 2).filter(|gpus| *gpus > 0));
        let times = sizes.filter_map(|gpus| alone_s(application, &gpu_type, node_gpus, gpus));
        if let Some(seconds) = times.min_by(f64::total_cmp) {
            sum += seconds * f64::from(total);
            weight += f64::from(total);
        }
    }
    if weight > 0.0 { sum / weight } else { f64::INFINITY }
}

fn alone_s(application: &Application, gpu_type: &GpuType, node_gpus: u32, gpus: u32) -> Option<f64> {
    let limits = application.batch_limits(gpu_type)?;
    let gpus = gpus.min(application.max_batch() / limits.per_gpu_min());
    let mut placement = vec![node_gpus; (gpus / node_gpus) as usize];
    placement.extend(Some(gpus % node_gpus).filter(|rest| *rest > 0));
    let low = f64::from(application.initial_batch().max(limits.per_gpu_min() * gpus));
    let ratio = f64::from(application.max_batch()) / low;
    let mut plans: Vec<(u32, f64)> = Vec::new();
    for sample in 0..SAMPLES {
        let total = (low * libm::pow(ratio, f64::from(sample) / f64::from(SAMPLES - 1))) as u32;
        let mut plan = BatchPlan::split(total, gpus, limits.per_gpu_max(), 1);
        plan.per_gpu = plan.per_gpu.min(application.max_batch() / (gpus * (plan.accumulation + 1)));
        let time: Option<StepTime> = application.step_time(gpu_type, &placement, plan.per_gpu);
        if let Some(time) = time {
            plans.push((plan.total(gpus) as u32, time.with_accumulation_s(plan.accumulation)));
        }
    }
    let initial = f64::from(application.initial_batch());
    let mut seconds = 0.0;
    for epoch in 0..application.epochs() {
        let rate = |&(total, time_s): &(u32, f64)| {
            application.noise(epoch, total).gain(initial, f64::from(total)) / time_s
        };
        let best = plans.iter().map(rate).fold(0.0, f64::max);
        seconds += (application.progress_after(epoch + 1) - application.progress_after(epoch)) / best;
    }
    seconds.is_finite().then_some(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(submitted_s: f64, completed_s: f64) -> JobReport {
        let (name, application) = (submitted_s.to_string(), "ncf");
        JobReport { name, application, submitted_s, completed_s, restarts: 3, gpu_hours: 0.5, rho: 0.0 }
    }

    #[test]
    fn figures_are_those_of_the_jobs() {
        let jobs = vec![job(0.0, 10.0), job(5.0, 25.0), job(20.0, 50.0)];
        assert!((concurrent_jobs(&jobs[1], &jobs) - (20.0 + 5.0 + 5.0) / 20.0).abs() < 1e-12);
        let report = Report { jobs };
        assert!((report.avg_jct_s() - 20.0).abs() < 1e-12);
        assert!((report.jct_quantile_s(0.75) - 25.0).abs() < 1e-12);
        assert!((report.makespan_s() - 50.0).abs() < 1e-12 && (report.gpu_hours() - 1.5).abs() < 1e-12);
        assert!((report.restarts_per_job() - 3.0).abs() < 1e-12);
    }

    #[test]
    fn a_larger_share_is_never_slower() {
        let (t4, cluster) = (GpuType::new("t4").unwrap(), Cluster::parse("16x4xt4").unwrap());
        for application in Application::all() {
            let times = [64.0, 32.0, 16.0, 8.0, 1.0].map(|parts| isolated_s(application, &cluster, parts));
            assert!(times.is_sorted_by(|a, b| a >= b), "{application:?}: {times:?}");
        }
        // The authors' description: 33 s for NCF on one GPU with its largest batch.
        let ncf = alone_s(Application::get("ncf").unwrap(), &t4, 4, 1).unwrap();
        assert!((25.0..33.5).contains(&ncf), "{ncf}");
    }
}

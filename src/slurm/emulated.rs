//! A queue that is not there: pilots wait in it for a while, run as processes of this machine, and are taken away as spot nodes are.

use std::{
    collections::BTreeMap,
    fs::OpenOptions,
    io,
    process::{Child, Command, Stdio},
};

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustix::process::{Pid, Signal, kill_process};

use super::{AgentPlace, Error, Provider, QueuedJob};
use crate::{
    ids::GpuType,
    space::PilotSpec,
    store::Folder,
    trials::pilots::{JobEnd, JobState},
};

/// An agent that was started for a pilot.
pub trait AgentProcess: Send {
    /// Whether it has come to its end.
    fn has_ended(&mut self) -> bool;

    /// Asks it to end: what Slurm does before it takes a node away.
    fn stop(&mut self);
}

/// Starts the agent of a pilot: of this kind, for this job.
pub type StartAgent = Box<dyn FnMut(usize, &str) -> Result<Box<dyn AgentProcess>, Error> + Send>;

/// Seconds on the clock of the emulation.
pub type QueueClock = Box<dyn Fn() -> f64 + Send>;

/// Mean seconds that pilots wait.
const WAIT_S: f64 = 60.0;
/// Mean seconds that spot nodes last.
const SPOT_LIFE_S: f64 = 1800.0;

/// How a queue that is not there behaves.
#[derive(Debug, Clone, PartialEq)]
pub struct QueueModel {
    /// Mean seconds that a pilot waits.
    pub wait_s: f64,
    /// Mean seconds after which a node of each kind is taken away; none for never.
    pub lives_s: Vec<Option<f64>>,
    /// What all random choices follow from.
    pub seed: u64,
}

impl QueueModel {
    /// That of a study: nodes of a partition that is named for it, such as `spot`, are taken away, others are not.
    #[must_use]
    pub fn of(specs: &[PilotSpec], seed: u64) -> Self {
        let is_spot = |spec: &PilotSpec| {
            let names = spec.partition.as_deref().unwrap_or_default();
            ["spot", "preempt", "scavenge"].iter().any(|word| names.contains(word))
        };
        let lives_s = specs.iter().map(|spec| is_spot(spec).then_some(SPOT_LIFE_S)).collect();
        Self { wait_s: WAIT_S, lives_s, seed }
    }
}

struct Job {
    kind: usize,
    starts_s: f64,
    ends_s: Option<f64>,
    agent: Option<Box<dyn AgentProcess>>,
    end: Option<(JobEnd, &'static str)>,
}

/// The queue.
pub struct EmulatedQueue {
    model: QueueModel,
    rng: ChaCha8Rng,
    jobs: BTreeMap<u32, Job>,
    next: u32,
    start: StartAgent,
    clock: QueueClock,
}

impl EmulatedQueue {
    /// An empty one.
    #[must_use]
    pub fn new(model: QueueModel, start: StartAgent, clock: QueueClock) -> Self {
        let rng = ChaCha8Rng::seed_from_u64(model.seed);
        Self { model, rng, jobs: BTreeMap::new(), next: 1, start, clock }
    }

    /// Times between events that do not know of each other.
    fn draw(&mut self, mean_s: f64) -> f64 {
        let uniform: f64 = self.rng.random();
        -mean_s * (1.0 - uniform).ln()
    }

    /// Brings all jobs up to the present.
    fn advance(&mut self) -> Result<(), Error> {
        let now_s = (self.clock)();
        for (number, job) in &mut self.jobs {
            if job.end.is_some() || now_s < job.starts_s {
                continue;
            }
            if job.agent.is_none() {
                job.agent = Some((self.start)(job.kind, &name(*number))?);
            }
            let Some(agent) = &mut job.agent else { continue };
            if agent.has_ended() {
                job.end = Some((JobEnd::Ended, "COMPLETED"));
            } else if job.ends_s.is_some_and(|ends_s| now_s >= ends_s) {
                agent.stop();
                job.end = Some((JobEnd::Preempted, "PREEMPTED"));
            }
        }
        Ok(())
    }
}

/// Agents as processes of this machine, which have what their kind says.
#[must_use]
pub fn local_agents(specs: &[PilotSpec], place: AgentPlace) -> StartAgent {
    let specs = specs.to_vec();
    Box::new(move |kind, job| {
        let failed =
            |error: io::Error| Error::Start { program: "pollux-tune agent", problem: error.to_string() };
        let spec = &specs[kind];
        let gpu_type = spec.gpu_type().unwrap_or_else(GpuType::cpu);
        let log = Folder::new(&place.folder).logs().join(format!("pilot-{job}.log"));
        let log = OpenOptions::new().create(true).append(true).open(log).map_err(failed)?;
        let mut command = Command::new(&place.program);
        command.arg("agent").arg("--join-file").arg(&place.join_file);
        command.args(["--name", &format!("emulated-{job}"), "--job", &format!("slurm:{job}")]);
        command.args(["--cpu", "--slots", &format!("{}x{gpu_type}", spec.slots())]);
        command.stdin(Stdio::null()).stdout(log.try_clone().map_err(failed)?).stderr(log);
        Ok(Box::new(LocalAgent(command.spawn().map_err(failed)?)))
    })
}

struct LocalAgent(Child);

impl AgentProcess for LocalAgent {
    fn has_ended(&mut self) -> bool {
        !matches!(self.0.try_wait(), Ok(None))
    }

    fn stop(&mut self) {
        let pid = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid.filter(|_| !self.has_ended()) {
            // Gone already, if this fails.
            let _ = kill_process(pid, Signal::TERM);
        }
    }
}

impl Drop for LocalAgent {
    fn drop(&mut self) {
        // It was asked to end, or nobody needs it any more.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn name(number: u32) -> String {
    format!("{number}_0")
}

impl Provider for EmulatedQueue {
    fn submit(&mut self, kind: usize) -> Result<String, Error> {
        let (number, now_s) = (self.next, (self.clock)());
        self.next += 1;
        let starts_s = now_s + self.draw(self.model.wait_s);
        let life_s = self.model.lives_s.get(kind).copied().flatten();
        let ends_s = life_s.map(|life_s| starts_s + self.draw(life_s));
        self.jobs.insert(number, Job { kind, starts_s, ends_s, agent: None, end: None });
        Ok(name(number))
    }

    fn poll(&mut self) -> Result<Vec<QueuedJob>, Error> {
        self.advance()?;
        let state = |job: &Job| match (job.end, &job.agent) {
            (Some((end, reason)), _) => {
                JobState::Ended { end, reason: reason.to_owned(), log: String::new() }
            }
            // Nobody is told when a spot node will be taken away.
            (None, Some(_)) => JobState::Running { since_s: job.starts_s, ends_s: None },
            (None, None) => JobState::Pending { reason: "Resources".to_owned() },
        };
        let queued = |(number, job): (&u32, &Job)| QueuedJob {
            job: name(*number),
            kind: Some(job.kind),
            node: String::new(),
            state: state(job),
        };
        Ok(self.jobs.iter().map(queued).collect())
    }

    fn cancel(&mut self, jobs: &[String]) -> Result<(), Error> {
        for (number, job) in &mut self.jobs {
            if job.end.is_none() && jobs.contains(&name(*number)) {
                if let Some(agent) = &mut job.agent {
                    agent.stop();
                }
                job.end = Some((JobEnd::Ended, "CANCELLED"));
            }
        }
        Ok(())
    }

    fn log(&mut self, _: &str) -> String {
        String::new()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    struct Fake(Arc<Mutex<Vec<String>>>, String);

    impl AgentProcess for Fake {
        fn has_ended(&mut self) -> bool {
            false
        }

        fn stop(&mut self) {
            self.0.lock().unwrap().push(format!("stop {}", self.1));
        }
    }

    #[test]
    fn pilots_wait_run_and_vanish_and_one_seed_is_one_story() {
        let story = |seed: u64| {
            let (log, now) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(0.0)));
            let (told, time) = (log.clone(), now.clone());
            let start: StartAgent = Box::new(move |kind, job| {
                told.lock().unwrap().push(format!("start {kind} {job}"));
                Ok(Box::new(Fake(told.clone(), job.to_owned())))
            });
            let model = QueueModel { wait_s: 30.0, lives_s: vec![Some(300.0); 4], seed };
            let mut queue = EmulatedQueue::new(model, start, Box::new(move || *time.lock().unwrap()));
            for kind in 0..4 {
                queue.submit(kind).unwrap();
            }
            assert!(queue.poll().unwrap().iter().all(|job| matches!(job.state, JobState::Pending { .. })));
            queue.cancel(&["4_0".to_owned()]).unwrap();
            for second in 0..5000 {
                *now.lock().unwrap() = f64::from(second);
                queue.poll().unwrap();
            }
            let ends: Vec<JobState> = queue.poll().unwrap().into_iter().map(|job| job.state).collect();
            let preempted =
                |state: &JobState| matches!(state, JobState::Ended { end: JobEnd::Preempted, .. });
            assert_eq!(ends.iter().filter(|state| preempted(state)).count(), 3);
            log.lock().unwrap().clone()
        };
        let one = story(1);
        assert_eq!(one.iter().filter(|line| line.starts_with("stop")).count(), 3);
        assert!(!one.iter().any(|line| line.contains("4_0")), "it was cancelled before it began: {one:?}");
        assert_eq!(one, story(1));
    }
}

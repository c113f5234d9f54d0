//! Random queues: jobs wait, start, are preempted, fail and run out of time; agents come, go and never come.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{tests::specs, *};

#[derive(Debug, Clone)]
enum Job {
    Waits,
    Runs { since_s: f64, ends_s: f64, agent: bool },
    Gone { end: JobEnd },
}

#[derive(Debug, Clone)]
struct Step {
    after_s: f64,
    /// What happens to which job.
    job: prop::sample::Index,
    deed: u8,
    gains: [f64; 2],
    busy: bool,
}

fn step() -> impl Strategy<Value = Step> {
    let gain = || prop_oneof![Just(1.0), Just(f64::INFINITY), 1.0..2.0];
    (0.0..40.0, any::<prop::sample::Index>(), 0_u8..16, [gain(), gain()], any::<bool>())
        .prop_map(|(after_s, job, deed, gains, busy)| Step { after_s, job, deed, gains, busy })
}

const TIME_S: f64 = 1800.0;
const RANGES: [(usize, usize); 2] = [(1, 2), (0, 4)];

struct World {
    controller: Controller,
    jobs: BTreeMap<String, Job>,
    submitting: Vec<PilotId>,
    submits_s: Vec<f64>,
    now_s: f64,
}

impl World {
    fn carry_out(&mut self, actions: Vec<PilotAction>) {
        for action in actions {
            match action {
                PilotAction::Submit { pilot, .. } => {
                    self.submits_s.push(self.now_s);
                    self.submitting.push(pilot);
                }
                PilotAction::Cancel { job } => {
                    let known = self.jobs.get_mut(&job).expect("only jobs that were submitted are cancelled");
                    *known = Job::Gone { end: JobEnd::Ended };
                }
                PilotAction::Drain { job, .. } => {
                    let known = self.jobs.get_mut(&job).expect("it was submitted");
                    *known = Job::Gone { end: JobEnd::Ended };
                }
                PilotAction::Notice(text) => assert!(!text.is_empty()),
            }
        }
    }

    fn tell(&mut self, event: PilotEvent) {
        let actions = self.controller.handle(event, self.now_s);
        self.carry_out(actions);
    }

    fn poll(&mut self) {
        let report = |(job, state): (&String, &Job)| JobReport {
            job: job.clone(),
            state: match state {
                Job::Waits => JobState::Pending { reason: "Resources".to_owned() },
                Job::Runs { since_s, ends_s, .. } => {
                    JobState::Running { since_s: *since_s, ends_s: Some(*ends_s) }
                }
                Job::Gone { end } => {
                    JobState::Ended { end: *end, reason: "GONE".to_owned(), log: String::new() }
                }
            },
        };
        let reports = self.jobs.iter().map(report).collect();
        self.tell(PilotEvent::Polled(reports));
    }

    /// Something happens to a job.
    fn happen(&mut self, step: &Step) {
        let now_s = self.now_s;
        for job in self.jobs.values_mut() {
            if matches!(job, Job::Runs { ends_s, .. } if now_s >= *ends_s) {
                *job = Job::Gone { end: JobEnd::TimeLimit };
            }
        }
        if self.jobs.is_empty() {
            return;
        }
        let place = step.job.index(self.jobs.len());
        let (name, job) = self.jobs.iter_mut().nth(place).expect("it is there");
        let name = name.clone();
        let event = match (step.deed, &mut *job) {
            (0..=6, Job::Waits) => {
                *job = Job::Runs { since_s: now_s, ends_s: now_s + TIME_S, agent: false };
                None
            }
            (0..=9, Job::Runs { agent, .. }) if !*agent => {
                *agent = true;
                let number = name.parse().expect("a number");
                Some(PilotEvent::AgentJoined { job: name, nodes: [NodeId(number)].into(), gpu_type: None })
            }
            (10, Job::Runs { agent, .. }) if *agent => {
                *agent = false;
                Some(PilotEvent::AgentLost { job: name })
            }
            (11, Job::Runs { agent: true, .. }) => Some(PilotEvent::AgentDraining { job: name }),
            (12, Job::Runs { .. }) => {
                *job = Job::Gone { end: JobEnd::Preempted };
                None
            }
            (13, Job::Waits | Job::Runs { .. }) => {
                *job = Job::Gone { end: JobEnd::Ended };
                None
            }
            _ => None,
        };
        if let Some(event) = event {
            self.tell(event);
        }
    }

    fn check(&self) -> Result<(), TestCaseError> {
        for (kind, (min, max)) in RANGES.into_iter().enumerate() {
            let held = self.controller.held(kind, self.now_s);
            prop_assert!(held <= max, "{} of {} at {}", held, max, self.now_s);
            let state = &self.controller.kinds[kind];
            let may = !state.has_given_up() && self.now_s >= state.retry_s;
            let paused = self.submits_s.last().is_some_and(|last| self.now_s < last + SUBMIT_EVERY_S);
            prop_assert!(held >= min || !may || paused, "{} of at least {}", held, min);
        }
        let queued = self.controller.pilots.values().filter(|pilot| pilot.is_queued()).count();
        prop_assert!(queued <= PENDING_MAX + RANGES[0].0, "{} wait", queued);
        for pair in self.submits_s.windows(2) {
            prop_assert!(pair[1] - pair[0] >= SUBMIT_EVERY_S, "{:?}", pair);
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn limits_hold_in_any_queue_and_nothing_is_left_at_the_end(steps in prop::collection::vec(step(), 1..120)) {
        let text = "{nodes: 1..2, gres: 'gpu:a100:8', time: 30m}, {nodes: 0..4, gres: 'gpu:t4:4', time: 30m}";
        let mut world = World {
            controller: Controller::new(&specs(text)),
            jobs: BTreeMap::new(),
            submitting: Vec::new(),
            submits_s: Vec::new(),
            now_s: 0.0,
        };
        for (number, step) in steps.iter().enumerate() {
            world.now_s += step.after_s;
            for pilot in std::mem::take(&mut world.submitting) {
                let job = pilot.to_string();
                if step.deed == 14 && number % 3 == 0 {
                    world.tell(PilotEvent::SubmitFailed { pilot, reason: "no".to_owned() });
                } else {
                    world.jobs.insert(job.clone(), Job::Waits);
                    world.tell(PilotEvent::Submitted { pilot, job });
                }
            }
            world.happen(step);
            world.poll();
            let busy = if step.busy { (0..1000).map(NodeId).collect() } else { BTreeSet::new() };
            world.tell(PilotEvent::Busy(busy));
            let coming = world.controller.coming();
            let gains = coming.iter().zip(step.gains);
            let gains = gains.map(|(coming, more)| Gain { more, last: (*coming > 0).then_some(more) });
            let gains = gains.collect();
            world.tell(PilotEvent::Gains { coming, gains });
            let actions = world.controller.tick(world.now_s);
            world.carry_out(actions);
            world.check()?;
        }
        world.tell(PilotEvent::Over);
        for pilot in std::mem::take(&mut world.submitting) {
            let job = pilot.to_string();
            world.jobs.insert(job.clone(), Job::Waits);
            world.tell(PilotEvent::Submitted { pilot, job });
        }
        prop_assert!(world.jobs.values().all(|job| matches!(job, Job::Gone { .. })), "{:?}", world.jobs);
        world.poll();
        prop_assert!(world.controller.is_empty());
        let submits = world.submits_s.len();
        world.now_s += 1e6;
        let actions = world.controller.tick(world.now_s);
        world.carry_out(actions);
        prop_assert_eq!(world.submits_s.len(), submits, "nothing is wanted after the end");
    }
}

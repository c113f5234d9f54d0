//! Where further machines come from: Slurm and ssh, as the study file says.

use std::path::Path;

use actix::{Actor, Addr, Arbiter, Recipient};

use super::{
    clock::Clock,
    error::Error,
    exit::{ExitSender, SessionExit},
    hosts::Hosts,
    pilots::{EndPilots, PilotContext, PilotNews, Pilots},
    session::Notify,
    supervisor::Supervisor,
};
use crate::{
    ids::StudyId,
    slurm::{AgentPlace, EmulatedQueue, Provider, QueueModel, Slurm, Tools, local_agents},
    space::{SshHost, Study},
};

/// Which machines are wanted, and for what.
pub(super) struct Wanted<'a> {
    pub(super) study: &'a Study,
    pub(super) study_id: StudyId,
    /// None if nobody can join.
    pub(super) folder: Option<&'a Path>,
    /// Real seconds in a second of the study, where devices are emulated: the queue is then, too.
    pub(super) time_scale: Option<f64>,
    pub(super) clock: Clock,
    pub(super) notify: Option<&'a Notify>,
}

/// Those who ask for machines.
pub(super) struct Provision {
    /// The thread of the pilots: a queue may take its time to answer.
    arbiter: Option<Arbiter>,
    pilots: Option<Addr<Pilots>>,
    /// Hosts that are to be called, and with what.
    calls: Option<(Vec<SshHost>, AgentPlace, Option<Notify>)>,
    hosts: Option<Hosts>,
}

impl Provision {
    /// Asks for the first pilots. Hosts are called when somebody listens to what answers.
    pub(super) fn new(
        wanted: &Wanted,
        supervisor: &Addr<Supervisor>,
        exit: &ExitSender,
    ) -> Result<Self, Error> {
        let none = Self { arbiter: None, pilots: None, calls: None, hosts: None };
        let (Some(folder), Some(machines)) = (wanted.folder, &wanted.study.machines) else { return Ok(none) };
        let place = AgentPlace::of(folder).map_err(Error::io("finding this program"))?;
        let is_called = !machines.hosts.is_empty() && wanted.time_scale.is_none();
        let calls = is_called.then(|| (machines.hosts.clone(), place.clone(), wanted.notify.cloned()));
        if machines.slurm.is_empty() {
            return Ok(Self { calls, ..none });
        }
        let (specs, clock) = (&machines.slurm, wanted.clock);
        let provider: Box<dyn Provider> = if wanted.time_scale.is_some() {
            let model = QueueModel::of(specs, wanted.study.search.seed);
            Box::new(EmulatedQueue::new(model, local_agents(specs, place), Box::new(move || clock.now_s())))
        } else {
            Box::new(Slurm::new(Tools::default(), wanted.study_id, specs, &place)?)
        };
        let around = PilotContext {
            study: wanted.study.clone(),
            clock,
            time_scale: wanted.time_scale.unwrap_or(1.0),
            demand: supervisor.clone().recipient(),
            supervisor: supervisor.clone().recipient(),
            notify: wanted.notify.cloned(),
            exit: exit.clone(),
        };
        let (arbiter, pilots) = (Arbiter::new(), Pilots::new(provider, around));
        let pilots = Pilots::start_in_arbiter(&arbiter.handle(), |_| pilots);
        Ok(Self { arbiter: Some(arbiter), pilots: Some(pilots), calls, hosts: None })
    }

    /// Who wants to know what becomes of agents.
    pub(super) fn news(&self) -> Option<Recipient<PilotNews>> {
        self.pilots.clone().map(Addr::recipient)
    }

    /// Starts agents on hosts.
    pub(super) fn call_hosts(&mut self) {
        let calls = self.calls.take();
        self.hosts = calls
            .map(|(hosts, place, notify)| Hosts::start(Path::new("ssh"), &hosts, &place, notify.as_ref()));
    }

    /// Gives all machines back. After the death of an actor the pilots stay: the next life of the actors finds them.
    pub(super) async fn end(self, ended: &SessionExit) {
        if let Some(hosts) = self.hosts {
            hosts.end().await;
        }
        if let Some(pilots) = self.pilots.filter(|_| !matches!(ended, SessionExit::Died(_))) {
            // If it is gone, so is the session.
            let _ = pilots.send(EndPilots).await;
        }
        if let Some(arbiter) = self.arbiter {
            arbiter.stop();
            let _ = arbiter.join();
        }
    }
}

//! One rank of a group that trains, from its first step to its last.

use std::collections::BTreeMap;

use tokio::time::Instant;

use super::{
    checkpoint,
    course::Course,
    desk::{Desk, Due},
    error::Error,
    hall::Chair,
    inbox::{Gone, Leave},
    light::{Stop, Woken, Worker},
    session::Session,
};
use crate::{
    goodput::Shape,
    ids::NodeId,
    trials::group::{Batch, Form, WorkerEvent},
};

/// A rank that trains.
///
/// Nothing happens at a step: what has happened by then follows from the time. It only wakes up for what others want to know.
pub(super) struct Training<'a, 'p> {
    worker: &'a mut Worker<'p>,
    form: &'a Form,
    session: &'a mut Session,
    chair: &'a mut Chair,
    /// How many members each node has.
    placement: Vec<u32>,
    course: Course,
    /// Of the first rank only.
    desk: Option<Desk>,
}

impl<'a, 'p> Training<'a, 'p> {
    /// Trains until the group is left, the trial is complete, or something fails.
    pub(super) async fn run(
        worker: &'a mut Worker<'p>,
        form: &'a Form,
        session: &'a mut Session,
        chair: &'a mut Chair,
        began: Instant,
    ) -> Stop {
        match Self::new(worker, form, session, chair, began) {
            Ok(mut training) => training.train().await.unwrap_or_else(|stop| stop),
            Err(error) => Stop::Failed(error),
        }
    }

    fn new(
        worker: &'a mut Worker<'p>,
        form: &'a Form,
        session: &'a mut Session,
        chair: &'a mut Chair,
        began: Instant,
    ) -> Result<Self, Error> {
        let mut nodes: BTreeMap<NodeId, u32> = BTreeMap::new();
        for member in &form.members {
            *nodes.entry(member.slot.node).or_default() += 1;
        }
        let shape = Shape::new(form.members.len() as u32, nodes.len() as u32)?;
        let placement: Vec<u32> = nodes.into_values().collect();
        let is_first = form.members.first().map(|member| member.slot) == Some(worker.seat());
        let desk = is_first.then(|| Desk::new(shape, began));
        let course = course(worker, session, &placement, form.batch, began)?;
        Ok(Self { worker, form, session, chair, placement, course, desk })
    }

    async fn train(&mut self) -> Result<Stop, Stop> {
        let (trial, round) = (self.form.trial, self.form.round);
        while self.course.taken < self.course.finish {
            if let Some(leave) = self.worker.inbox.leave(trial, round) {
                return self.leave(leave).await;
            }
            if let Some(batch) = self.worker.inbox.retuned(trial, round) {
                self.retune(batch)?;
                continue;
            }
            let time_scale = self.worker.place.time_scale;
            let due = self.desk.as_ref().map(|desk| desk.due(self.session, &self.course, time_scale));
            let next = due.map_or(self.course.finish, |due| due.first().min(self.course.finish));
            match self.worker.until(Some(self.course.end_of(next)), self.chair).await {
                Ok(Woken::Time) => {
                    self.take(next, Instant::now());
                    if let Some(due) = due.filter(|_| self.course.taken < self.course.finish) {
                        self.tell(due)?;
                    }
                }
                Ok(_) => {}
                Err(stop) => {
                    // The step under way has failed.
                    self.take(0, Instant::now());
                    return Err(stop);
                }
            }
        }
        self.finish()
    }

    /// Takes all steps that are over, and at least up to a certain one.
    fn take(&mut self, least: u64, now: Instant) {
        let last = self.course.whole(now).max(least);
        let steps = last - self.course.taken;
        let evaluated = self.session.advance(self.course.batch, steps);
        self.course.taken = last;
        if steps > 0 {
            self.session.stepped = Some(self.course.end_of(last));
        }
        if let Some(desk) = &mut self.desk {
            desk.observe(self.session, &self.course, steps);
            desk.metrics.extend(evaluated);
        }
    }

    /// Uses another batch from the next step on.
    fn retune(&mut self, batch: Batch) -> Result<(), Error> {
        let now = Instant::now();
        let next = self.course.next(now);
        if next >= self.course.finish || batch == self.course.batch {
            return Ok(());
        }
        self.take(next, now);
        let began = self.course.end_of(next);
        self.course = course(self.worker, self.session, &self.placement, batch, began)?;
        if let Some(desk) = &mut self.desk {
            desk.retuned();
        }
        Ok(())
    }

    /// Leaves the group at the end of the step, or at once if there will be no such end.
    async fn leave(&mut self, mut leave: Leave) -> Result<Stop, Stop> {
        let (trial, round) = (self.form.trial, self.form.round);
        let last = self.course.next(Instant::now());
        let end = self.course.end_of(last);
        while leave == Leave::Orderly && Instant::now() < end {
            match self.worker.until(Some(end), self.chair).await {
                Ok(_) => leave = self.worker.inbox.leave(trial, round).unwrap_or(leave),
                Err(Stop::Lost(_)) => leave = Leave::Broken,
                Err(stop) => return Err(stop),
            }
        }
        let is_orderly = leave == Leave::Orderly;
        self.take(if is_orderly { last } else { 0 }, Instant::now().min(end));
        if is_orderly && self.desk.as_ref().is_some_and(|desk| desk.has_news(self.session)) {
            self.report()?;
        }
        Ok(if is_orderly { Stop::Left } else { Stop::Aborted })
    }

    /// The trial is complete: the first rank evaluates, saves and tells.
    fn finish(&mut self) -> Result<Stop, Stop> {
        if let Some(desk) = &mut self.desk {
            let last = self.session.evaluate();
            let metrics = last.values.clone();
            desk.metrics.push(last);
            self.report()?;
            self.save()?;
            let (trial, round) = (self.form.trial, self.form.round);
            self.worker.say(WorkerEvent::Finished { trial, round, metrics })?;
        }
        Ok(Stop::Left)
    }

    /// What the first rank does about what is due.
    fn tell(&mut self, due: Due) -> Result<(), Stop> {
        if self.course.taken >= due.save {
            self.save()?;
        }
        let evaluated = self.desk.as_ref().is_some_and(|desk| !desk.metrics.is_empty());
        if evaluated || self.course.taken >= due.report {
            self.report()?;
        }
        Ok(())
    }

    fn report(&mut self) -> Result<(), Stop> {
        if let Some(desk) = &mut self.desk {
            let report = desk.report(self.session, &self.course, self.form, Instant::now())?;
            self.worker.say(WorkerEvent::Reported(Box::new(report)))?;
        }
        Ok(())
    }

    fn save(&mut self) -> Result<(), Stop> {
        if let Some(desk) = &mut self.desk {
            desk.saved(Instant::now());
        }
        let steps = checkpoint::save(self.session, self.worker.place.slot.index)?;
        let trial = self.form.trial;
        self.worker.say(WorkerEvent::Checkpointed { trial, steps }).map_err(|Gone| Stop::Gone)
    }
}

fn course(
    worker: &Worker,
    session: &Session,
    placement: &[u32],
    batch: Batch,
    began: Instant,
) -> Result<Course, Error> {
    let place = worker.place;
    Course::new(session, batch, (&place.gpu_type, placement), began, place.time_scale)
}

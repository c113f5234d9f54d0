use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use actix::{Actor, Addr, Recipient};
use tokio::{
    sync::{mpsc::UnboundedReceiver, oneshot},
    time::{self, Instant},
};

use super::{drain, exits, in_virtual_time, probe, study};
use crate::{
    actors::{
        clock::Clock,
        error::Error,
        exit::SessionExit,
        message::{EngineInput, FactsAppended, ForAllocator, ForSuggester, ForTrial},
        session::Notify,
        supervisor::{Begin, ServiceAddresses, Supervisor, TrialRunners, Watch},
    },
    ids::{Generation, GpuType, NodeId, TrialId},
    space::Params,
    store::{self, Journal},
    trials::{
        engine::{
            Engine, FailureCause, GroupCommand, GroupEvent, Input, JournalEntry, Metrics, Outcome,
            Suggestion, TrialKind,
        },
        group::{Batch, FinalState},
    },
};

/// Until everybody has done what there was to do; waits for the disk that are put off included.
async fn settle() {
    time::sleep(Duration::from_millis(10)).await;
}

/// What has happened, in its order.
type Log = Arc<Mutex<Vec<String>>>;

/// A journal that takes this many appends, and then fails.
struct FakeJournal {
    log: Log,
    room: usize,
    /// How often the disk is full before there is room for everything; none if the journal is lost.
    full: Option<usize>,
    /// How often facts cannot be brought to the disk.
    unsynced: usize,
}

fn full() -> store::Error {
    let source = std::io::Error::from(std::io::ErrorKind::StorageFull).into();
    store::Error::Full { path: "journal".into(), source }
}

impl Journal for FakeJournal {
    fn append(&mut self, entries: &[JournalEntry]) -> Result<(), store::Error> {
        match (self.room, &mut self.full) {
            (0, None) => return Err(store::Error::InUse("journal".into())),
            (0, Some(0)) => self.room = usize::MAX,
            (0, Some(full)) => {
                *full -= 1;
                return Err(self::full());
            }
            _ => self.room -= 1,
        }
        if !entries.is_empty() {
            let kinds: Vec<&str> = entries.iter().map(|entry| entry.fact.kind()).collect();
            self.log.lock().expect("a log").push(kinds.join(" "));
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<(), store::Error> {
        if self.unsynced > 0 {
            self.unsynced -= 1;
            return Err(full());
        }
        self.log.lock().expect("a log").push("sync".to_owned());
        Ok(())
    }

    fn entries(&self, _: u64) -> Result<Vec<JournalEntry>, store::Error> {
        Ok(Vec::new())
    }
}

struct FakeRunners(Log);

impl TrialRunners for FakeRunners {
    fn command(&mut self, trial: TrialId, command: GroupCommand, _: &Recipient<EngineInput>) {
        let command = match command {
            GroupCommand::Launch(_) => "launch",
            GroupCommand::Reshape { .. } => "reshape",
            GroupCommand::Retune { .. } => "retune",
            GroupCommand::Stop(FinalState::Saved) => "save",
            GroupCommand::Stop(FinalState::Discarded) => "discard",
        };
        self.0.lock().expect("a log").push(format!("-> {command} {trial}"));
    }
}

struct Scene {
    supervisor: Addr<Supervisor>,
    suggest: UnboundedReceiver<ForSuggester>,
    facts: UnboundedReceiver<FactsAppended>,
    settled: UnboundedReceiver<FactsAppended>,
    exits: UnboundedReceiver<SessionExit>,
    log: Log,
}

impl Scene {
    /// A study of rigid trials that has begun, whose journal takes this many appends.
    fn new(settings: &str, room: usize, watch: Option<Watch>) -> Self {
        Self::with_disk(settings, room, None, 0, watch)
    }

    /// The same whose disk is then full for a number of tries, and which cannot be waited for a number of times.
    fn with_disk(
        settings: &str,
        room: usize,
        full: Option<usize>,
        unsynced: usize,
        watch: Option<Watch>,
    ) -> Self {
        let log = Log::default();
        let study = study(settings);
        let engine = Engine::new(&study, TrialKind::Rigid).expect("a study");
        let (exit, exits) = exits();
        let journal = Box::new(FakeJournal { log: log.clone(), room, full, unsynced });
        let notices = log.clone();
        let notify: Notify =
            Arc::new(move |notice: &str| notices.lock().expect("a log").push(notice.to_owned()));
        let supervisor = Supervisor::new(engine, journal, Clock::after(0.0, 1.0), watch, &exit);
        let supervisor = supervisor.notifying(Some(notify)).start();
        let (suggester, suggest) = probe::<ForSuggester>();
        let (allocator, _) = probe::<ForAllocator>();
        let (appended, facts) = probe::<FactsAppended>();
        let (on_disk, settled) = probe::<FactsAppended>();
        let (facts_to, settled_to) = (vec![appended], vec![on_disk]);
        let services =
            ServiceAddresses { suggester, allocator, facts: facts_to, settled: settled_to, nodes: None };
        supervisor.do_send(Begin { services, groups: Box::new(FakeRunners(log.clone())) });
        Self { supervisor, suggest, facts, settled, exits, log }
    }

    fn input(&self, input: Input) {
        self.supervisor.do_send(EngineInput::from(input));
    }

    fn join(&self) {
        self.join_with(1);
    }

    fn join_with(&self, slots: u32) {
        let gpu_type = GpuType::new("cpu").expect("a name");
        self.input(Input::NodeJoined { node: NodeId(0), name: String::new(), gpu_type, island: 0, slots });
    }

    /// Answers the question for a trial.
    async fn suggest(&mut self) {
        let ForSuggester(request) = self.suggest.recv().await.expect("a question");
        let params = Params::from_iter([("x", 0.5.into())]);
        let answer = Ok(Suggestion { params, point: vec![Some(0.5)] });
        self.input(Input::Suggested { revision: request.revision, answer });
    }

    fn finish(&self, trial: u32) {
        let metrics = Metrics::from([("loss".to_owned(), 0.5.into())]);
        self.input(Input::group(TrialId(trial), Generation(1), GroupEvent::Finished(metrics)));
    }

    /// The same without the waits for the disk.
    fn take_unsynced(&self) -> Vec<String> {
        self.take_log().into_iter().filter(|line| line != "sync").collect()
    }

    fn take_log(&self) -> Vec<String> {
        std::mem::take(&mut self.log.lock().expect("a log"))
    }
}

#[test]
fn facts_are_journaled_before_anybody_acts_on_them() {
    in_virtual_time(async {
        let mut scene = Scene::new("search: {trials: 2, parallel: 1}", usize::MAX, None);
        scene.join();
        settle().await;
        assert_eq!(scene.take_log(), ["study_created head_started", "node_joined", "sync"]);
        scene.suggest().await;
        settle().await;
        assert_eq!(scene.take_log(), ["trial_created trial_started", "sync", "-> launch 0"]);
        scene.finish(0);
        settle().await;
        // A group that has ended is dropped when that is written down.
        assert_eq!(scene.take_log(), ["trial_done", "sync", "-> discard 0"]);
        let seen: Vec<&str> = drain(&mut scene.facts)
            .iter()
            .flat_map(|FactsAppended(facts)| facts.iter().map(|entry| entry.fact.kind()).collect::<Vec<_>>())
            .collect();
        let all =
            ["study_created", "head_started", "node_joined", "trial_created", "trial_started", "trial_done"];
        assert_eq!(seen, all);
        scene.suggest().await;
        scene.finish(1);
        let exit = scene.exits.recv().await;
        assert!(matches!(exit, Some(SessionExit::Finished(Outcome::Done))), "{exit:?}");
    });
}

/// One wait for the disk is enough for all that ended and for those that take their places.
#[test]
fn trials_share_the_wait_for_the_disk() {
    in_virtual_time(async {
        let mut scene = Scene::new("search: {trials: 4, parallel: 2}", usize::MAX, None);
        scene.join_with(2);
        scene.suggest().await;
        scene.suggest().await;
        settle().await;
        let log = scene.take_log();
        assert_eq!(log.iter().filter(|line| *line == "sync").count(), 1, "{log:?}");
        assert_eq!(log[log.len() - 3..], ["sync", "-> launch 0", "-> launch 1"]);
        scene.finish(0);
        scene.finish(1);
        scene.suggest().await;
        scene.suggest().await;
        settle().await;
        let wanted = [
            "trial_done",
            "trial_done",
            "trial_created trial_started",
            "trial_created trial_started",
            "sync",
            "-> discard 0",
            "-> discard 1",
            "-> launch 2",
            "-> launch 3",
        ];
        assert_eq!(scene.take_log(), wanted);
    });
}

#[test]
fn who_acts_on_facts_hears_of_them_when_they_are_on_disk() {
    in_virtual_time(async {
        let mut scene = Scene::new("search: {trials: 2, parallel: 1}", usize::MAX, None);
        scene.join();
        scene.suggest().await;
        settle().await;
        drop((drain(&mut scene.facts), drain(&mut scene.settled)));
        // The next suggestion is on its way, so the wait for the disk is put off.
        scene.finish(0);
        time::sleep(Duration::from_millis(1)).await;
        assert_eq!((drain(&mut scene.facts).len(), drain(&mut scene.settled).len()), (1, 0));
        settle().await;
        let heard = drain(&mut scene.settled);
        assert_eq!(heard.iter().map(|facts| facts.0[0].fact.kind()).collect::<Vec<_>>(), ["trial_done"]);
    });
}

#[test]
fn a_slow_suggestion_does_not_hold_up_what_has_happened() {
    in_virtual_time(async {
        let mut scene = Scene::new("search: {trials: 2, parallel: 1}", usize::MAX, None);
        scene.join();
        scene.suggest().await;
        settle().await;
        scene.take_log();
        let (began, (ack, answer)) = (Instant::now(), oneshot::channel());
        let metrics = Metrics::from([("loss".to_owned(), 0.5.into())]);
        let input = Input::group(TrialId(0), Generation(1), GroupEvent::Finished(metrics));
        scene.supervisor.do_send(EngineInput { input, ack: Some(ack) });
        answer.await.expect("it is acknowledged though the next trial is not known yet");
        assert!(began.elapsed() < Duration::from_millis(10));
        assert_eq!(scene.take_log(), ["trial_done", "sync", "-> discard 0"]);
    });
}

#[test]
fn after_a_failed_journal_nothing_happens() {
    in_virtual_time(async {
        // Begin and the node; then somebody else has it.
        let mut scene = Scene::new("search: {trials: 2, parallel: 1}", 2, None);
        scene.join();
        scene.suggest().await;
        let exit = scene.exits.recv().await;
        assert!(matches!(exit, Some(SessionExit::Failed(Error::Store(_)))), "{exit:?}");
        scene.finish(0);
        scene.input(Input::StopRequested);
        settle().await;
        assert_eq!(scene.take_log(), ["study_created head_started", "node_joined"]);
        assert_eq!(drain(&mut scene.facts).len(), 2);
        assert!(drain(&mut scene.exits).is_empty());
    });
}

const BLOCKED: &str =
    "the study waits: no space left for journal; it tries again at least every 30 s, and continues by itself";
const WRITTEN: &str = "the study continues: its journal can be written again";

/// Nobody acts on what is not written down, nothing is forgotten, and all of it happens when there is room again.
#[test]
fn a_full_disk_is_waited_for() {
    in_virtual_time(async {
        let settings = "search: {trials: 2, parallel: 1}";
        let mut scene = Scene::with_disk(settings, 2, Some(7), 0, None);
        scene.join();
        let began = Instant::now();
        scene.suggest().await;
        settle().await;
        assert_eq!(scene.take_unsynced(), ["study_created head_started", "node_joined", BLOCKED]);
        // It happens while the study waits, and somebody wants to know when it is settled.
        let (ack, answer) = oneshot::channel();
        let event = GroupEvent::Failed { reason: "NaN".to_owned(), cause: FailureCause::Trial };
        let input = Input::group(TrialId(0), Generation(1), event);
        scene.supervisor.do_send(EngineInput { input, ack: Some(ack) });
        time::sleep(Duration::from_secs(60)).await;
        assert!(scene.take_log().is_empty(), "nobody is told twice, and nobody acts");
        answer.await.expect("it is acknowledged in the end");
        assert_eq!(began.elapsed().as_secs(), 1 + 2 + 4 + 8 + 16 + 30 + 30);
        let log = ["trial_created trial_started", WRITTEN, "trial_failed", "-> launch 0", "-> discard 0"];
        assert_eq!(scene.take_unsynced(), log);
        scene.suggest().await;
        scene.finish(1);
        let exit = scene.exits.recv().await;
        assert!(matches!(exit, Some(SessionExit::Finished(Outcome::Done))), "{exit:?}");
    });
}

/// Facts that are in the journal, but not safe from a loss of power, are not acted on either.
#[test]
fn a_disk_that_cannot_be_waited_for_is_tried_again() {
    in_virtual_time(async {
        let mut scene = Scene::with_disk("search: {trials: 2, parallel: 1}", usize::MAX, None, 2, None);
        settle().await;
        assert_eq!(scene.take_log(), ["study_created head_started", BLOCKED]);
        assert!(drain(&mut scene.exits).is_empty());
        scene.join();
        time::sleep(Duration::from_secs(2)).await;
        assert!(scene.take_log().is_empty());
        time::sleep(Duration::from_secs(2)).await;
        assert_eq!(scene.take_log(), ["sync", WRITTEN, "node_joined"]);
        scene.suggest().await;
        scene.finish(0);
        scene.suggest().await;
        scene.finish(1);
        let exit = scene.exits.recv().await;
        assert!(matches!(exit, Some(SessionExit::Finished(Outcome::Done))), "{exit:?}");
    });
}

#[test]
fn a_study_that_waits_for_its_journal_can_be_stopped() {
    in_virtual_time(async {
        let mut scene = Scene::with_disk("search: {trials: 2, parallel: 1}", 2, Some(usize::MAX), 0, None);
        scene.join();
        scene.suggest().await;
        time::sleep(Duration::from_secs(1000)).await;
        assert!(drain(&mut scene.exits).is_empty());
        scene.input(Input::StopRequested);
        let exit = scene.exits.recv().await;
        assert!(
            matches!(exit, Some(SessionExit::Failed(Error::Store(store::Error::Full { .. })))),
            "{exit:?}"
        );
    });
}

#[test]
fn the_engine_is_woken_at_the_time_it_names() {
    in_virtual_time(async {
        let began = Instant::now();
        let settings = "search: {trials: 9, parallel: 1, timeout: 60s}\ntrial: {timeout: 20s}";
        let mut scene = Scene::new(settings, usize::MAX, None);
        scene.join();
        scene.suggest().await;
        settle().await;
        scene.take_log();
        time::sleep(Duration::from_secs(19)).await;
        assert!(scene.take_log().is_empty());
        time::sleep(Duration::from_secs(2)).await;
        // The fact says that it has no group any more, and the engine that it is to stop.
        assert_eq!(scene.take_log(), ["trial_failed", "sync", "-> discard 0", "-> discard 0"]);
        // The next trial ends in time: its alarm is replaced by that of the study.
        scene.suggest().await;
        time::sleep(Duration::from_secs(5)).await;
        scene.finish(1);
        settle().await;
        assert_eq!(
            scene.take_log(),
            ["trial_created trial_started", "sync", "-> launch 1", "trial_done", "sync", "-> discard 1"]
        );
        let exit = scene.exits.recv().await;
        assert!(matches!(exit, Some(SessionExit::Finished(Outcome::Done))), "{exit:?}");
        assert_eq!(began.elapsed().as_secs(), 60);
        assert_eq!(scene.take_log(), ["suggestions_ended study_done", "sync"]);
    });
}

#[test]
fn an_acknowledged_input_has_reached_everybody() {
    in_virtual_time(async {
        let mut scene = Scene::new("search: {trials: 2, parallel: 1}", usize::MAX, None);
        scene.join();
        scene.suggest().await;
        let (ack, answer) = oneshot::channel();
        let event = GroupEvent::Failed { reason: "NaN".to_owned(), cause: FailureCause::Trial };
        let input = Input::group(TrialId(0), Generation(1), event);
        scene.supervisor.do_send(EngineInput { input, ack: Some(ack) });
        answer.await.expect("it is acknowledged");
        assert_eq!(scene.take_log()[3..], ["trial_failed", "sync", "-> launch 0", "-> discard 0"]);
    });
}

#[test]
fn commands_of_others_than_the_engine_go_to_the_group() {
    in_virtual_time(async {
        let scene = Scene::new("", usize::MAX, None);
        let command = GroupCommand::Retune { batch: Batch { total: 8, accumulation: 0 } };
        scene.supervisor.do_send(ForTrial { trial: TrialId(0), command });
        settle().await;
        assert_eq!(scene.take_log(), ["study_created head_started", "sync", "-> retune 0"]);
    });
}

/// A panic in a handler ends an actor silently; its guard tells.
#[test]
fn a_dead_actor_ends_the_session() {
    in_virtual_time(async {
        let watch: Watch = Box::new(|_, entries| assert!(entries.len() > 1, "a mistake, says the test"));
        let mut scene = Scene::new("", usize::MAX, Some(watch));
        settle().await;
        assert!(drain(&mut scene.exits).is_empty());
        scene.join();
        let exit = scene.exits.recv().await;
        assert!(matches!(exit, Some(SessionExit::Died("supervisor"))), "{exit:?}");
    });
}

#[test]
fn actors_that_end_with_the_session_are_not_missed() {
    in_virtual_time(async {
        let (exit, mut exits) = exits();
        let mut released = exit.guard("group");
        released.release();
        drop(released);
        drop(exit.guard("node"));
        exit.close();
        drop(exit.guard("supervisor"));
        let seen = drain(&mut exits);
        assert!(matches!(seen[..], [SessionExit::Died("node")]), "{seen:?}");
    });
}

//! The books of a study on disk: what was asked for, what came of each trial, and that nothing is left over.

use std::{collections::BTreeMap, path::Path, sync::mpsc, thread, time::Duration};

use pollux_tune::{
    space::{Params, Study},
    store::Reader,
    trials::{
        End,
        engine::{Engine, Fact, JournalEntry, State, TrialKind},
    },
};

/// What came of a trial.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Account {
    pub(crate) params: Params,
    pub(crate) end: End,
}

/// Checks the journal of a study that has come to its end, with exactly so many trials: it can be replayed, each trial was created and
/// ended once, and nothing runs or holds a slot. Gives what came of each trial.
pub(crate) fn settle(folder: &Path, trials: u32) -> BTreeMap<u32, Account> {
    let reader = Reader::open(folder).expect("a study");
    let entries = reader.entries(0).expect("a journal");
    let (mut created, mut ended) = (Vec::new(), BTreeMap::<u32, u32>::new());
    for JournalEntry { fact, .. } in &entries {
        match fact {
            Fact::TrialCreated { trial, .. } => created.push(trial.0),
            Fact::TrialDone { trial, .. }
            | Fact::TrialStopped { trial, .. }
            | Fact::TrialFailed { trial, .. }
            | Fact::TrialCancelled { trial, .. } => *ended.entry(trial.0).or_default() += 1,
            _ => {}
        }
    }
    assert_eq!(created, (0..trials).collect::<Vec<_>>(), "trials that were created");
    assert_eq!(ended, (0..trials).map(|trial| (trial, 1)).collect(), "each trial ends once");
    let state = replay(&entries);
    assert!(state.active.is_empty(), "{:?}", state.active);
    assert!(reader.status().expect("a status").done, "the study is done");
    let shown = reader.trials().expect("trials");
    assert!(shown.iter().all(|trial| trial.state.is_end() && trial.slots == 0), "{shown:?}");
    let account = |trial: &pollux_tune::trials::engine::EndedTrial| Account {
        params: trial.params.clone(),
        end: trial.end.clone(),
    };
    state.ended.iter().map(|(trial, ended)| (trial.0, account(ended))).collect()
}

/// What follows from the facts, for the engine as for those who only look.
fn replay(entries: &[JournalEntry]) -> State {
    let Some(Fact::StudyCreated { yaml }) = entries.first().map(|entry| &entry.fact) else {
        panic!("a journal begins with its study")
    };
    let study = Study::from_yaml("study.yaml", yaml).expect("a study");
    let mut engine = Engine::new(&study, TrialKind::of(&study)).expect("a study that can be run");
    let mut state = State::default();
    for entry in entries {
        engine.apply(entry).unwrap_or_else(|error| panic!("{error}: {entry:?}"));
        state.apply(entry).unwrap_or_else(|error| panic!("{error}: {entry:?}"));
    }
    assert_eq!(*engine.state(), state);
    engine.check().expect("the rules hold");
    state
}

/// Does something that must come to an end. The limit is only so that a test that hangs fails some time.
pub(crate) fn in_time<T: Send + 'static>(what: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, done) = mpsc::channel();
    let doing = thread::spawn(move || {
        let _ = tell.send(what());
    });
    match done.recv_timeout(Duration::from_secs(600)) {
        Ok(value) => value,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("it hangs"),
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            doing.join().expect("no panic");
            unreachable!("it has sent nothing and not panicked")
        }
    }
}

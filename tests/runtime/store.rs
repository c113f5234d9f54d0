//! Studies on disk: what every journal promises, what survives a kill, and what can be asked.

use std::{
    collections::BTreeSet,
    env, fs,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use pollux_tune::{
    ids::{Generation, StudyId, TrialId},
    space::{Params, Study},
    store::{Error, Folder, Journal, Memory, Reader, Store, TrialState},
    trials::{
        End,
        engine::{Engine, Fact, JournalEntry, TrialKind},
    },
};

use crate::world::{Faults, NONE, World};

/// An empty folder for one test.
fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    if path.exists() {
        fs::remove_dir_all(&path).expect("what an earlier run left can be removed");
    }
    path
}

fn study() -> Study {
    let yaml = "
space: {x: {float: [0, 1]}, act: [relu, gelu]}
objective: {minimize: loss}
trial: {trainable: toy, epochs: 6, initial_batch: 64, max_batch: 512}
search: {trials: 12, parallel: 4, algorithm: random, early_stopping: {rule: asha, grace: 1, reduction: 2}}
scheduler: {interval: 5s}
";
    Study::from_yaml("study.yaml", yaml).expect("it is a study")
}

/// Everything that happens in a study in which much goes wrong: of the first of some in which it does.
fn eventful() -> World {
    (11..60).find_map(eventful_of).expect("of so many studies one waits and has failed trials")
}

fn eventful_of(seed: u64) -> Option<World> {
    let faults = Faults {
        worker: 20,
        node: 5,
        drain: 10,
        group: 20,
        environment: 20,
        trial: 20,
        head: 3,
        messages: 100,
    };
    let mut world = World::new(&study(), TrialKind::Elastic, &[("t4", 3), ("a100", 2)], seed);
    for _ in 0..600 {
        world.step(faults);
    }
    while world.outcome.is_none() {
        world.step(NONE);
    }
    if world.waits == 0 || world.retry() == 0 {
        return None;
    }
    while world.outcome.is_none() {
        world.step(NONE);
    }
    Some(world)
}

fn conforms(journal: &mut dyn Journal, facts: &[JournalEntry]) {
    assert_eq!(journal.entries(0).expect("it can be read"), []);
    journal.append(&[]).expect("nothing is easily written");
    let mut written = 0;
    for size in (1..6).cycle() {
        let batch = &facts[written..(written + size).min(facts.len())];
        if batch.is_empty() {
            break;
        }
        journal.append(batch).expect("it can be written");
        written += batch.len();
        let place = written.saturating_sub(3);
        assert_eq!(journal.entries(place as u64).expect("it can be read"), facts[place..written]);
    }
    assert_eq!(journal.entries(0).expect("it can be read"), facts);
    assert_eq!(journal.entries(facts.len() as u64 + 5).expect("it can be read"), []);
}

#[test]
fn journals_keep_their_promises() {
    let facts = eventful().journal;
    conforms(&mut Memory::default(), &facts);
    let root = folder("conforms");
    conforms(&mut Store::open(&root).expect("it can be made"), &facts);
    let again = Store::open(&root).expect("it can be opened again");
    assert_eq!((again.len(), again.is_empty()), (facts.len() as u64, false));
    assert_eq!(again.entries(0).expect("it can be read"), facts);
}

#[test]
fn a_study_is_replayed_and_its_tables_agree() {
    let world = eventful();
    let root = folder("tables");
    let mut store = Store::open(&root).expect("it can be made");
    let mut engine = Engine::new(&study(), TrialKind::Elastic).expect("it is a good study");
    let mut shortages = BTreeSet::new();
    for entry in &world.journal {
        store.append(std::slice::from_ref(entry)).expect("it can be written");
        engine.apply(entry).expect("it can be replayed");
        let reader = Reader::open(&root).expect("it can be read while it is written");
        let (status, state) = (reader.status().expect("it has a status"), engine.state());
        let count = |end: bool| -> u32 {
            status.trials.iter().filter(|(state, _)| state.is_end() == end).map(|(_, count)| count).sum()
        };
        assert_eq!((count(false), count(true)), (state.active.len() as u32, state.ended.len() as u32));
        assert_eq!((status.facts, status.done, status.is_run), (state.facts, state.done, true));
        assert_eq!(status.slots as usize, state.slot_count());
        let waits: Vec<String> = status.waits.into_iter().map(|(_, reason)| reason).collect();
        let broken = state.waiting.iter().map(|wait| wait.reason.clone());
        assert_eq!(waits, broken.chain(state.shortage(&study())).collect::<Vec<_>>());
        shortages.extend(state.shortage(&study()));
        for row in
            entry.fact.trial().map(|trial| reader.trial(trial).expect("it can be read")).iter().flatten()
        {
            assert_eq!(row.ended_s.is_some(), row.state.is_end(), "{row:?}");
        }
    }
    assert_eq!(engine.state(), world.engine.state());
    assert!(shortages.contains("no machine has joined yet"), "{shortages:?}");
    let reader = Reader::open(&root).expect("it can be read");
    for row in reader.trials().expect("there are trials") {
        let ended = &engine.state().ended[&row.trial];
        let values = if let End::Done(values) = &ended.end { Some(values.clone()) } else { None };
        assert_eq!((row.values, Generation(row.generation)), (values, ended.generation));
        assert!((row.epochs - ended.epochs).abs() < 1e-12 && row.ended_s.is_some());
    }
    let best = reader.best(3).expect("there are results");
    let values: Vec<f64> = best.iter().map(|row| row.values.as_ref().expect("it is done")[0]).collect();
    assert!(values.is_sorted() && !values.is_empty(), "{values:?}");
    assert_eq!(reader.trial(best[0].trial).expect("it can be read"), Some(best[0].clone()));
    assert_eq!(reader.trial(TrialId(99)).expect("it can be read"), None);
}

#[test]
fn tables_do_not_depend_on_how_facts_are_batched() {
    let facts = eventful().journal;
    let tables = |size: usize| {
        let root = folder(&format!("batches-{size}"));
        let mut store = Store::open(&root).expect("it can be made");
        for batch in facts.chunks(size) {
            store.append(batch).expect("it can be written");
        }
        let reader = Reader::open(&root).expect("it can be read");
        let (trials, spans) = (reader.trials().expect("trials"), reader.timeline().expect("spans"));
        (trials, spans, reader.status().expect("it has a status"))
    };
    let one_by_one = tables(1);
    assert!([3, 50, facts.len()].into_iter().all(|size| tables(size) == one_by_one));
}

#[test]
fn a_fact_that_does_not_follow_is_refused_and_nothing_of_its_batch_is_kept() {
    let facts = eventful().journal;
    let root = folder("refused");
    let mut store = Store::open(&root).expect("it can be made");
    store.append(&facts[..20]).expect("it can be written");
    let again = [facts[20].clone(), facts[1].clone()];
    let error = store.append(&again).expect_err("time does not go back");
    assert!(matches!(error, Error::OutOfPlace { .. }), "{error}");
    assert_eq!((store.len(), store.state()), (20, None));
    store.append(&facts[20..]).expect("the rest follows");
    let state = store.state().expect("it was read again");
    assert_eq!((state.facts, state.done), (facts.len() as u64, true));
}

/// No slot belongs to two trials at a time, in the picture either.
#[test]
fn the_timeline_has_no_overlaps() {
    let world = eventful();
    let root = folder("timeline");
    let mut store = Store::open(&root).expect("it can be made");
    store.append(&world.journal).expect("it can be written");
    let spans = Reader::open(&root).expect("it can be read").timeline().expect("there is one");
    let starts = world.journal.iter().filter(|entry| entry.fact.kind() == "trial_started").count();
    assert!(spans.len() >= starts && starts > 12, "{} spans of {starts} starts", spans.len());
    for (place, span) in spans.iter().enumerate() {
        let to_s = span.to_s.expect("all have ended");
        assert!(to_s >= span.from_s);
        let later = spans[place + 1..].iter().filter(|other| other.slot == span.slot);
        later.take(1).for_each(|other| assert!(other.from_s >= to_s, "{span:?} and {other:?}"));
    }
}

#[test]
fn one_process_writes() {
    let root = folder("lock");
    let store = Store::open(&root).expect("it can be made");
    let error = Store::open(&root).expect_err("it is in use");
    assert!(
        error
            .to_string()
            .ends_with("is run by another process: wait for it to end, or stop it (`pollux-tune stop`)"),
        "{error}"
    );
    let reader = Reader::open(&root).expect("others may look");
    assert!(reader.is_run());
    drop(store);
    assert!(!reader.is_run());
    Store::open(&root).expect("it is free again");
}

#[test]
fn a_study_keeps_its_id_and_no_two_have_the_same() {
    let (root, other) = (folder("id"), folder("other-id"));
    let store = Store::open(&root).expect("it can be made");
    let id = store.study_id();
    assert_ne!(id, Store::open(&other).expect("it can be made").study_id());
    assert_ne!(id, StudyId::default());
    let runner = Reader::open(&root).expect("others may look").runner().expect("it is named");
    assert_eq!(runner.expect("it is run").study, Some(id), "the lock names it");
    drop(store);
    assert_eq!(Store::open(&root).expect("it is there").study_id(), id);
}

#[test]
fn what_is_no_study_is_left_alone() {
    let root = folder("other");
    assert!(matches!(Reader::open(&root), Err(Error::NoStudy(_))));
    assert!(!root.exists(), "looking makes nothing");
    fs::create_dir_all(&root).expect("it can be made");
    let journal = Folder::new(&root).journal();
    let text = "something else, and longer than the header of a database has to be, so that there is no mistake about it";
    fs::write(&journal, text.repeat(9)).expect("it can be written");
    for error in [Store::open(&root).err(), Reader::open(&root).err()] {
        assert!(matches!(error, Some(Error::NotAJournal(_))), "{error:?}");
    }
    assert_eq!(fs::read_to_string(&journal).expect("it is there"), text.repeat(9));
    // A writer that was killed before its first word leaves an empty file.
    fs::write(&journal, "").expect("it can be written");
    assert!(matches!(Reader::open(&root), Err(Error::NoStudy(_))));
    Store::open(&root).expect("it begins anew");
    let below = journal.join("deeper");
    assert!(matches!(Store::open(&below), Err(Error::NotWritable { .. })));
}

#[test]
fn a_newer_journal_is_refused_and_left_as_it_was() {
    let root = folder("newer");
    Store::open(&root).expect("it can be made").append(&eventful().journal[..5]).expect("it can be written");
    let journal = Folder::new(&root).journal();
    // The version is in bytes 60 to 63 of the header.
    let mut bytes = fs::read(&journal).expect("it is there");
    bytes[60..64].copy_from_slice(&7_u32.to_be_bytes());
    fs::write(&journal, &bytes).expect("it can be written");
    for error in [Store::open(&root).err(), Reader::open(&root).err()] {
        let text = error.expect("it is newer").to_string();
        assert!(
            text.ends_with("was written by a newer pollux-tune (form 7, this one knows 3): use a newer one"),
            "{text}"
        );
    }
    assert_eq!(fs::read(&journal).expect("it is there"), bytes);
}

#[test]
fn the_study_file_is_replaced_as_a_whole() {
    let root = folder("yaml");
    let store = Store::open(&root).expect("it can be made");
    for yaml in ["space: {}\n", "space: {x: 1}\n"] {
        store.write_study(yaml).expect("it can be written");
        assert_eq!(fs::read_to_string(store.folder().study()).expect("it is there"), yaml);
    }
    assert!(store.folder().checkpoints().is_dir() && store.folder().logs().is_dir());
}

#[test]
fn with_several_objectives_the_best_are_those_in_front() {
    let root = folder("several");
    let yaml = "space: {x: {float: [0, 1]}}\nobjective: [{minimize: loss}, {maximize: speed}]\n".to_owned();
    let mut facts = vec![Fact::StudyCreated { yaml }, Fact::HeadStarted {}];
    for (trial, values) in (0..).map(TrialId).zip([[3.0, 1.0], [1.0, 1.0], [2.0, 9.0]]) {
        let (params, point) = ([("x", 0.5.into())].into_iter().collect(), vec![Some(0.5)]);
        facts.push(Fact::TrialCreated { trial, params, point });
        facts.push(Fact::TrialDone { trial, values: values.to_vec() });
    }
    let entries: Vec<JournalEntry> = facts.into_iter().map(|fact| JournalEntry { at_s: 1.0, fact }).collect();
    Store::open(&root).expect("it can be made").append(&entries).expect("it can be written");
    let reader = Reader::open(&root).expect("it can be read");
    let order: Vec<u32> = reader.best(9).expect("there are results").iter().map(|row| row.trial.0).collect();
    assert_eq!(order, [1, 2, 0]);
    assert_eq!(reader.status().expect("it has one").trials[&TrialState::Done], 3);
}

/// Where the process that is to be killed writes, if this is that process.
const VICTIM: &str = "POLLUX_TUNE_TEST_VICTIM";
const BATCH: u64 = 7;

/// A study, its first trial, and what that measures.
fn numbered(number: u64) -> JournalEntry {
    let (trial, generation) = (TrialId(0), 1);
    let fact = match number {
        0 => Fact::StudyCreated { yaml: study().to_yaml() },
        1 => Fact::TrialCreated { trial, params: Params::default(), point: vec![] },
        number => Fact::Measured {
            trial,
            generation: Generation(generation),
            number: number as u32,
            epochs: number as f64,
            metrics: [("loss".to_owned(), (1.0 / (1.0 + number as f64)).into())].into(),
            gpu_type: None,
            steps: vec![],
            noise: None,
            noise_batch: None,
        },
    };
    JournalEntry { at_s: number as f64, fact }
}

/// Writes until it is killed, and says after each batch how many facts are safe.
#[test]
fn victim() {
    let Some(root) = env::var_os(VICTIM) else { return };
    let mut store = Store::open(Path::new(&root)).expect("its predecessor is dead");
    let mut out = std::io::stdout().lock();
    loop {
        let from = store.len();
        let batch: Vec<JournalEntry> = (from..from + BATCH).map(numbered).collect();
        store.append(&batch).expect("it can be written");
        writeln!(out, "safe {}", store.len()).and_then(|()| out.flush()).expect("somebody listens");
    }
}

#[test]
fn a_killed_writer_loses_nothing_that_it_has_promised() {
    let root = folder("killed");
    let program = env::current_exe().expect("this is a program");
    for round in 0..8 {
        let mut victim = Command::new(&program)
            .args(["--exact", "store::victim", "--nocapture", "--test-threads=1"])
            .env(VICTIM, &root)
            .stdout(Stdio::piped())
            .spawn()
            .expect("it can be started");
        let mut lines = BufReader::new(victim.stdout.take().expect("it is piped")).lines();
        let mut safe = 0;
        for _ in 0..40 + 37 * round {
            let line = lines.next().expect("it goes on").expect("it is text");
            // The harness may have begun the line.
            if let Some((_, count)) = line.split_once("safe ") {
                safe = count.parse().expect("it is a number");
            }
        }
        victim.kill().expect("it can be killed");
        victim.wait().expect("it is dead");
        let last =
            lines.map_while(Result::ok).filter_map(|line| line.strip_prefix("safe ")?.parse().ok()).last();
        let safe: u64 = last.unwrap_or(safe);
        let kept = Reader::open(&root).expect("it can be read").entries(0).expect("it is whole");
        assert!(safe > 0 && kept.len() as u64 >= safe, "{} of {safe}", kept.len());
        assert_eq!(kept.len() as u64 % BATCH, 0, "a batch is written as a whole");
        assert_eq!(kept, (0..kept.len() as u64).map(numbered).collect::<Vec<_>>());
    }
}

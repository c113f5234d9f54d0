//! Journals that were removed, cut, replaced or changed: what was written is read, or it is refused, and `fsck` tells what is whole.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use pollux_tune::{
    actors::{Error as RunError, Runner},
    ids::TrialId,
    space::Study,
    store::{self, Error, Folder, Journal, Reader, Span, Status, Store, TrialRow},
    trials::engine::{Fact, JournalEntry},
};

use crate::common::{ends, folder};

const YAML: &str =
    "space: {x: {float: [0, 1]}}\nobjective: {minimize: loss}\nsearch: {trials: 40, parallel: 1}\n";
const TRIALS: u32 = 24;

/// A study in which trials are created and end.
fn facts(trials: u32) -> Vec<JournalEntry> {
    let mut facts = vec![Fact::StudyCreated { yaml: YAML.to_owned() }, Fact::HeadStarted {}];
    for number in 0..trials {
        let (trial, x) = (TrialId(number), f64::from(number) / 64.0);
        let params = [("x", x.into())].into_iter().collect();
        facts.push(Fact::TrialCreated { trial, params, point: vec![Some(x)] });
        facts.push(Fact::TrialDone { trial, values: vec![x * x] });
    }
    (0..).zip(facts).map(|(at_s, fact)| JournalEntry { at_s: f64::from(at_s), fact }).collect()
}

/// A study whose process has ended.
fn finished(name: &str) -> PathBuf {
    let root = folder(name);
    let mut store = Store::open(&root).unwrap();
    for facts in facts(TRIALS).chunks(5) {
        store.append(facts).unwrap();
        store.sync().unwrap();
    }
    root
}

/// A study whose process was killed: the newest facts are not in their places yet. The last of them were never waited for.
fn killed(name: &str) -> PathBuf {
    let (running, root) = (folder(&format!("{name}-running")), folder(name));
    let (facts, mut store) = (facts(TRIALS), Store::open(&running).unwrap());
    store.append(&facts[..9]).unwrap();
    drop(store);
    let mut store = Store::open(&running).unwrap();
    store.append(&facts[9..30]).unwrap();
    store.sync().unwrap();
    store.append(&facts[30..]).unwrap();
    copy(&running, &root);
    drop(store);
    fs::remove_dir_all(&running).unwrap();
    assert!(fs::metadata(wal(&root)).unwrap().len() > 0);
    root
}

fn copy(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    fs::create_dir_all(to).unwrap();
    for file in ["journal.sqlite", "journal.sqlite-wal", "journal.seal", "lock"] {
        if from.join(file).exists() {
            fs::copy(from.join(file), to.join(file)).unwrap();
        }
    }
}

fn wal(root: &Path) -> PathBuf {
    root.join("journal.sqlite-wal")
}

type Shown = (Vec<TrialRow>, Vec<TrialRow>, Vec<Span>, Status, Vec<JournalEntry>, Option<TrialRow>);

/// All that readers show of a study.
fn shown(root: &Path) -> Result<Shown, Error> {
    let reader = Reader::open(root)?;
    Ok((
        reader.trials()?,
        reader.best(5)?,
        reader.timeline()?,
        reader.status()?,
        reader.entries(0)?,
        reader.trial(TrialId(3))?,
    ))
}

/// What is shown and what a new head would begin with are refused, or the same as before.
fn same_or_refused(root: &Path, before: &Shown, what: &str) -> bool {
    let after = shown(root);
    if let Ok(after) = &after {
        assert!(after == before, "{what}: shown are other results");
    }
    let opened = load(root);
    if let Ok((_, entries)) = &opened {
        assert!(*entries == before.4, "{what}: the next head begins with other facts");
    }
    after.is_err() || opened.is_err()
}

/// A study as the next head finds it: with the facts that it is shown.
fn load(root: &Path) -> Result<(Store, Vec<JournalEntry>), Error> {
    let mut entries = Vec::new();
    let store = Store::begin(root)?.replay(|entry| {
        entries.push(entry.clone());
        Ok::<(), Error>(())
    })?;
    Ok((store, entries))
}

fn refused(root: &Path, because: &str) {
    for error in [shown(root).err(), load(root).err()] {
        let error = error.expect("it is refused").to_string();
        assert!(error.contains(because) && error.contains("pollux-tune fsck"), "{error}");
    }
}

fn flip(path: &Path, bit: u64) {
    let mut bytes = fs::read(path).unwrap();
    bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
    fs::write(path, bytes).unwrap();
}

/// Numbers that look random, and are the same each time.
fn scattered(below: u64) -> impl Iterator<Item = u64> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    })
}

#[test]
fn a_flipped_bit_is_never_read_as_another_result() {
    let (whole, root) = (finished("flips"), folder("flipped"));
    let before = shown(&whole).unwrap();
    let bits = 8 * fs::metadata(Folder::new(&whole).journal()).unwrap().len();
    let mut noticed = 0;
    for bit in scattered(bits).take(300) {
        copy(&whole, &root);
        flip(&Folder::new(&root).journal(), bit);
        noticed += u32::from(same_or_refused(&root, &before, &format!("bit {bit}")));
    }
    // Others are in free space.
    assert!(noticed > 40, "{noticed}");
}

#[test]
fn a_flipped_bit_in_the_newest_facts_is_noticed() {
    let (whole, root) = (killed("wal-flips"), folder("wal-flipped"));
    let (before, bytes) = (shown(&whole).unwrap(), fs::metadata(wal(&whole)).unwrap().len());
    // The header, that of the first page, a page, and places anywhere.
    let places = [0, 9, 17, 25, 33, 41, 49, 57, 500, bytes - 1];
    let mut noticed = 0;
    for bit in places.map(|byte| 8 * byte).into_iter().chain(scattered(8 * bytes).take(60)) {
        copy(&whole, &root);
        flip(&wal(&root), bit);
        noticed += u32::from(same_or_refused(&root, &before, &format!("bit {bit}")));
    }
    assert!(noticed >= 60, "{noticed}");
}

#[test]
fn newest_facts_that_were_cut_or_removed_are_missed() {
    let (whole, root) = (killed("wal-cuts"), folder("wal-cut"));
    let (before, bytes) = (shown(&whole).unwrap(), fs::read(wal(&whole)).unwrap());
    let page = 4096 + 24;
    let lengths = [0, 1, 31, 32, 33, 32 + page, 32 + page + 7, bytes.len() / 2, bytes.len() - 1];
    for length in lengths {
        copy(&whole, &root);
        fs::write(wal(&root), &bytes[..length]).unwrap();
        assert!(same_or_refused(&root, &before, &format!("cut to {length} bytes")), "{length}");
    }
    copy(&whole, &root);
    fs::remove_file(wal(&root)).unwrap();
    refused(&root, "it has 9 of 50 facts");
}

#[test]
fn a_seal_that_was_changed_or_removed_is_noticed() {
    let (whole, root) = (killed("seals"), folder("seal"));
    let before = shown(&whole).unwrap();
    let seal = |root: &Path| Folder::new(root).seal();
    for bit in scattered(8 * fs::metadata(seal(&whole)).unwrap().len()).take(40) {
        copy(&whole, &root);
        flip(&seal(&root), bit);
        same_or_refused(&root, &before, &format!("bit {bit} of the seal"));
    }
    copy(&whole, &root);
    fs::remove_file(seal(&root)).unwrap();
    refused(&root, "journal.seal");
    copy(&whole, &root);
    fs::write(seal(&root), "nonsense").unwrap();
    refused(&root, "it does not say what the journal must hold");
}

#[test]
fn the_journal_of_another_study_is_not_taken_for_this_one() {
    let (whole, other) = (finished("replaced"), finished("replacing"));
    fs::copy(Folder::new(&other).journal(), Folder::new(&whole).journal()).unwrap();
    refused(&whole, "it is that of the study");
}

#[test]
fn an_older_copy_of_the_journal_is_not_taken_for_the_newest() {
    let root = folder("older");
    let facts = facts(TRIALS);
    let mut store = Store::open(&root).unwrap();
    store.append(&facts[..20]).unwrap();
    drop(store);
    let (journal, kept) = (Folder::new(&root).journal(), root.join("copy"));
    fs::copy(&journal, &kept).unwrap();
    let mut store = Store::open(&root).unwrap();
    store.append(&facts[20..]).unwrap();
    store.sync().unwrap();
    drop(store);
    fs::copy(&kept, &journal).unwrap();
    refused(&root, "it has 20 of 50 facts");
}

#[test]
fn a_missing_journal_is_not_begun_anew_where_a_study_was() {
    for trace in ["journal.seal", "checkpoints/trial-0", "logs/trial-0.log", "journal.sqlite-wal"] {
        for is_empty in [false, true] {
            let root = folder("missing");
            let folder = Folder::new(&root);
            for path in [folder.checkpoints(), folder.logs()] {
                fs::create_dir_all(path).unwrap();
            }
            let text = if trace == "journal.seal" {
                fs::read(Folder::new(&finished("sealed")).seal()).unwrap()
            } else {
                b"x".to_vec()
            };
            fs::write(root.join(trace), text).unwrap();
            if is_empty {
                fs::write(folder.journal(), "").unwrap();
            }
            for error in [Store::open(&root).err(), Reader::open(&root).err(), store::repair(&root).err()] {
                let error = error.expect("it is refused");
                assert!(matches!(error, Error::NoJournal { .. }), "{trace}: {error}");
                let text = error.to_string();
                assert!(
                    text.contains("restore journal.sqlite") && text.contains("remove the folder"),
                    "{text}"
                );
            }
        }
    }
}

fn study(trials: u32) -> Study {
    let yaml =
        YAML.replace("trials: 40, parallel: 1", &format!("trials: {trials}, parallel: 1, algorithm: random"));
    Study::from_yaml("study.yaml", &yaml).unwrap()
}

/// Runs a study of which a trial does a deed, and returns how it ended.
fn run_with(root: &Path, trials: u32, deed: impl Fn(&Path) + Send + Sync + 'static) -> RunError {
    let (at, seen) = (root.to_owned(), Arc::new(Mutex::new(0_u32)));
    let run = Runner::new(study(trials)).folder(root).run_function(move |trial| {
        let mut seen = seen.lock().unwrap();
        *seen += 1;
        if *seen == 4 {
            deed(&at);
        }
        Ok([("loss".to_owned(), trial.params().float("x")?.into())].into())
    });
    run.err().expect("it is not done")
}

fn rescued(root: &Path) -> PathBuf {
    let mut path = root.as_os_str().to_owned();
    path.push(".rescued-1");
    let path = PathBuf::from(path);
    let _ = fs::remove_dir_all(&path);
    path
}

#[test]
fn a_folder_that_is_removed_while_the_study_runs_is_missed_and_its_results_are_saved() {
    // With trials to come, and by the last one.
    for trials in [9, 4] {
        let root = folder("removed");
        let rescued = rescued(&root);
        let error = run_with(&root, trials, |root| fs::remove_dir_all(root).unwrap());
        assert!(matches!(error, RunError::Store(Error::Removed { .. })), "{error}");
        assert!(!error.is_of_input(), "it exits with 1");
        let text = error.to_string();
        assert!(text.contains("was removed or replaced while the study ran"), "{text}");
        assert!(text.contains(&format!("the study is saved in {}", rescued.display())), "{text}");
        assert!(!root.exists(), "nothing is put where it was removed");
        assert_eq!(ends(&rescued).into_keys().collect::<Vec<_>>(), [0, 1, 2, 3]);
        let finished = Runner::new(study(9))
            .folder(&rescued)
            .run_function(|trial| Ok([("loss".to_owned(), trial.params().float("x")?.into())].into()));
        assert_eq!(finished.unwrap().search().trials().len(), 9, "it can be resumed there");
        fs::remove_dir_all(&rescued).unwrap();
    }
}

#[test]
fn a_journal_that_is_replaced_while_the_study_runs_is_missed() {
    let root = folder("swapped");
    let rescued = rescued(&root);
    let error = run_with(&root, 9, |root| {
        let journal = Folder::new(root).journal();
        let bytes = fs::read(&journal).unwrap();
        fs::remove_file(&journal).unwrap();
        fs::write(&journal, bytes).unwrap();
    });
    assert!(matches!(error, RunError::Store(Error::Removed { .. })), "{error}");
    assert_eq!(ends(&rescued).len(), 4);
    fs::remove_dir_all(&rescued).unwrap();
}

#[test]
fn what_is_whole_is_told_and_kept() {
    let whole = killed("fsck");
    let found = store::examine(&whole).unwrap();
    assert_eq!((found.facts, found.written, found.results), (50, 50, 24));
    assert_eq!((found.problems.len(), found.study.is_some()), (0, true), "{found:?}");
    let repair = store::repair(&whole).unwrap();
    assert_eq!((repair.damaged, repair.found), (None, found.clone()), "there is nothing to do");
    // The newest facts are gone.
    let root = folder("fsck-cut");
    copy(&killed("fsck-again"), &root);
    fs::remove_file(wal(&root)).unwrap();
    let found = store::examine(&root).unwrap();
    assert_eq!((found.facts, found.written, found.results), (9, 50, 3));
    assert!(found.problems.iter().any(|problem| problem == "it has 9 of 50 facts"), "{found:?}");
    let repair = store::repair(&root).unwrap();
    assert_eq!(repair.found, found);
    let damaged = repair.damaged.unwrap();
    assert!(damaged.join("journal.sqlite").exists() && damaged.join("journal.seal").exists());
    assert_eq!(shown(&root).unwrap().4, facts(TRIALS)[..9]);
    let (mut store, entries) = load(&root).unwrap();
    assert_eq!((entries.len(), Some(store.study_id())), (9, found.study), "it is the same study");
    store.append(&facts(TRIALS)[9..]).unwrap();
    drop(store);
    assert_eq!(store::examine(&root).unwrap().problems, [""; 0]);
}

#[test]
fn facts_after_a_damaged_one_are_lost_and_named() {
    let (whole, root) = (finished("middle"), folder("middle-damaged"));
    copy(&whole, &root);
    let journal = Folder::new(&root).journal();
    let bytes = fs::read(&journal).unwrap();
    let needle = b"\"trial\":20,\"values\":[0.0";
    let place = bytes.windows(needle.len()).position(|window| window == needle).unwrap() + needle.len();
    flip(&journal, 8 * place as u64);
    refused(&root, "fact 44 cannot be read: it is not what was written");
    let found = store::examine(&root).unwrap();
    assert_eq!((found.facts, found.written, found.results), (43, 50, 20));
    assert_eq!(found.lost, [20, 21, 22, 23].map(TrialId));
    store::repair(&root).unwrap();
    let (trials, best, ..) = shown(&root).unwrap();
    assert_eq!((trials.len(), best.len()), (21, 5));
    assert_eq!(load(&root).unwrap().1, facts(TRIALS)[..43]);
}

#[test]
fn whatever_is_flipped_can_be_repaired_to_a_beginning_of_what_was_written() {
    let (whole, root) = (finished("repairs"), folder("repaired"));
    let all = facts(TRIALS);
    let bits = 8 * fs::metadata(Folder::new(&whole).journal()).unwrap().len();
    for bit in scattered(bits).skip(1000).take(60) {
        copy(&whole, &root);
        flip(&Folder::new(&root).journal(), bit);
        // What is no journal any more is not repaired.
        if store::repair(&root).is_ok() {
            let (_, entries) = load(&root).unwrap();
            assert_eq!(entries, all[..entries.len()], "bit {bit}");
            assert_eq!(store::examine(&root).unwrap().problems, [""; 0], "bit {bit}");
            shown(&root).unwrap();
        }
    }
}

#[test]
fn a_study_that_runs_is_not_repaired() {
    let root = folder("runs");
    let _store = Store::open(&root).unwrap();
    assert!(matches!(store::repair(&root), Err(Error::InUse(_))));
    assert_eq!(store::examine(&root).unwrap().problems, [""; 0], "but looked at");
}

#[test]
fn an_interrupted_upgrade_of_an_earlier_form_is_completed() {
    let root = folder("upgrade");
    let earlier = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/earlier/run/journal.sqlite");
    fs::create_dir_all(&root).unwrap();
    let journal = Folder::new(&root).journal();
    fs::copy(&earlier, &journal).unwrap();
    assert_eq!(store::examine(&root).unwrap().problems, [""; 0], "it is whole as it is");
    let (store, entries) = load(&root).unwrap();
    let id = store.study_id();
    drop(store);
    assert_eq!(store::examine(&root).unwrap().study, Some(id));
    // As if only the seal had been written.
    fs::copy(&earlier, &journal).unwrap();
    let (store, again) = load(&root).unwrap();
    assert_eq!((store.study_id(), again), (id, entries));
}

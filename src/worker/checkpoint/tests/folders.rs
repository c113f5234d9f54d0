//! The checkpoints of a trial in its folder.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    process,
    sync::mpsc,
    thread,
};

use super::*;

/// A folder that is removed in the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = env::temp_dir().join(format!("pollux-checkpoints-{}-{number}", process::id()));
        fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    fn checkpoints(&self) -> CheckpointFolder {
        self.of(&task())
    }

    fn of(&self, task: &Task) -> CheckpointFolder {
        let task = Task { checkpoint: self.trial(), ..task.clone() };
        CheckpointFolder::of(&task, Kind::Trained)
    }

    fn trial(&self) -> PathBuf {
        self.0.join("trial-7")
    }

    /// Names in the folder of the trial, in order.
    fn names(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.trial()) else { return Vec::new() };
        let mut names: Vec<String> =
            entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("text")).collect();
        names.sort();
        names
    }

    /// Steps of the checkpoints of the trial, in order.
    fn steps(&self) -> Vec<u64> {
        let whole = self.names().into_iter().filter(|name| name.ends_with(".checkpoint"));
        whole.map(|name| name[..12].parse().expect("steps")).collect()
    }

    /// The only file with so many steps.
    fn file(&self, steps: u64) -> PathBuf {
        let name = self.names().into_iter().find(|name| name.starts_with(&format!("{steps:012}-")));
        self.trial().join(name.expect("it is there"))
    }

    fn flip(&self, steps: u64) {
        let path = self.file(steps);
        let mut bytes = fs::read(&path).expect("a file");
        let at = bytes.len() - 40;
        bytes[at] ^= 4;
        fs::write(path, bytes).expect("a file");
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn save(folder: &CheckpointFolder, steps: u64) -> Result<(), NotSaved> {
    let state = State { contents: contents(steps), durability: Durability::OnDisk };
    folder.write(&state, |out| out.write_all(&numbers()))
}

/// The steps of what is loaded, and the warning.
fn load(folder: &CheckpointFolder) -> (Option<u64>, String) {
    let loaded = folder.load(
        |unreadable| unreadable,
        |contents, input| {
            let mut bytes = vec![0; 32];
            input.read_exact(&mut bytes).expect("32 bytes");
            assert_eq!(bytes, numbers());
            Ok(Ok(contents.position.steps))
        },
    );
    let Loaded { state, warning } = loaded.expect("it can be looked into");
    (state, warning.unwrap_or_default())
}

#[test]
fn the_last_two_are_kept_and_the_last_one_counts() {
    let folder = Folder::new();
    let checkpoints = folder.checkpoints();
    assert_eq!(load(&checkpoints), (None, String::new()));
    for steps in [10, 20, 30] {
        save(&checkpoints, steps).expect("it is written");
    }
    assert_eq!(folder.steps(), [20, 30]);
    assert_eq!(load(&checkpoints), (Some(30), String::new()));
}

#[test]
fn a_damaged_one_is_told_of_and_the_one_before_it_counts() {
    let folder = Folder::new();
    let checkpoints = folder.checkpoints();
    (1..=2).for_each(|at| save(&checkpoints, 10 * at).expect("it is written"));
    folder.flip(20);
    let (steps, warning) = load(&checkpoints);
    assert_eq!(steps, Some(10));
    assert!(
        warning.contains("is damaged: its checksum is wrong; the trial resumes from the one of step 10"),
        "{warning}"
    );
    // It does not stand in the way of new ones, though it had come further.
    (11..=13).for_each(|steps| save(&checkpoints, steps).expect("it is written"));
    assert_eq!(folder.steps(), [12, 13]);
    assert_eq!(load(&checkpoints), (Some(13), String::new()));
    assert!(folder.names().iter().any(|name| name.ends_with(".unusable")), "{:?}", folder.names());
}

/// A disk, or the server of a network file system, that fails for a while.
#[test]
fn what_the_system_cannot_read_now_is_not_damaged() {
    let folder = Folder::new();
    let checkpoints = folder.checkpoints();
    (1..=2).for_each(|at| save(&checkpoints, 10 * at).expect("it is written"));
    let (newest, kept) = (folder.file(20), folder.0.join("kept"));
    fs::rename(&newest, &kept).expect("it is there");
    // It can be opened, and no byte of it be read: an error of the system that every user can have.
    std::os::unix::fs::symlink("/proc/self/mem", &newest).expect("a link");
    let before = folder.names();
    let loaded = checkpoints.load::<u64, _>(|unreadable| unreadable, |_, _| panic!("an older one was used"));
    assert_eq!(loaded.expect_err("it cannot be read").path, newest);
    assert_eq!(folder.names(), before, "nothing was put aside");
    fs::remove_file(&newest).and_then(|()| fs::rename(&kept, &newest)).expect("the disk is mended");
    assert_eq!(load(&checkpoints), (Some(20), String::new()));
}

#[test]
fn if_all_are_damaged_the_trial_starts_over() {
    let folder = Folder::new();
    let checkpoints = folder.checkpoints();
    (1..=2).for_each(|at| save(&checkpoints, 10 * at).expect("it is written"));
    folder.flip(10);
    let newest = folder.file(20);
    fs::write(&newest, &fs::read(&newest).expect("a file")[..100]).expect("a file");
    let (steps, warning) = load(&checkpoints);
    assert_eq!(steps, None);
    assert!(warning.contains("is cut off: it has 100 of") && warning.contains("is damaged"), "{warning}");
    assert!(warning.ends_with("; the trial starts from the beginning"), "{warning}");
    assert_eq!(load(&checkpoints), (None, String::new()), "said once");
}

#[test]
fn those_of_others_are_neither_used_nor_touched() {
    let folder = Folder::new();
    for (other, problem) in [
        (Task { study: StudyId(2), ..task() }, "is of another study"),
        (Task { trial: TrialId(8), ..task() }, "is of another trial (8)"),
        (Task { params: params(json!({"lr": 5})), ..task() }, "is of a trial with other parameters"),
    ] {
        save(&folder.of(&other), 1000).expect("it is written");
        let before = folder.names();
        let (steps, warning) = load(&folder.checkpoints());
        assert!(steps.is_none() && warning.contains(problem), "{warning}");
        (1..=3).for_each(|steps| save(&folder.checkpoints(), steps).expect("it is written"));
        assert_eq!(load(&folder.checkpoints()).0, Some(3));
        folder.checkpoints().discard().expect("they are removed");
        assert_eq!(folder.names(), before, "{problem}");
        assert_eq!(load(&folder.of(&other)), (Some(1000), String::new()));
        folder.of(&other).discard().expect("they are removed");
        assert!(!folder.trial().exists());
    }
}

/// A worker that was stopped (SIGSTOP) in the middle of a checkpoint, or has lost its head, goes on while others train.
#[test]
fn a_late_writer_replaces_nothing() {
    let folder = Folder::new();
    let (reached, held) = mpsc::channel();
    let (go, gone) = mpsc::channel::<()>();
    let late = folder.checkpoints();
    let late = thread::spawn(move || {
        let state = State { contents: contents(15), durability: Durability::OnDisk };
        late.write(&state, |out| {
            out.write_all(&numbers()[..10])?;
            reached.send(()).expect("the test waits");
            gone.recv().expect("it is let go");
            out.write_all(&numbers()[10..])
        })
    });
    held.recv().expect("it writes");
    (1..=3).for_each(|at| save(&folder.checkpoints(), 10 * at).expect("it is written"));
    go.send(()).expect("it waits");
    late.join().expect("no panic").expect("it is written");
    assert_eq!(folder.steps(), [20, 30], "nobody needs that of step 15");
    assert_eq!(load(&folder.checkpoints()), (Some(30), String::new()));
}

#[test]
fn two_writers_of_the_same_step_do_not_disturb_each_other() {
    let folder = Folder::new();
    let (reached, held) = mpsc::channel();
    let (go, gone) = mpsc::channel::<()>();
    let first = folder.checkpoints();
    let first = thread::spawn(move || {
        let state = State { contents: contents(10), durability: Durability::OnDisk };
        first.write(&state, |out| {
            out.write_all(&numbers()[..10])?;
            reached.send(()).expect("the test waits");
            gone.recv().expect("it is let go");
            out.write_all(&numbers()[10..])
        })
    });
    held.recv().expect("it writes");
    save(&folder.checkpoints(), 10).expect("it is written");
    go.send(()).expect("it waits");
    first.join().expect("no panic").expect("it is written");
    assert_eq!(load(&folder.checkpoints()), (Some(10), String::new()));
}

#[test]
fn what_a_dead_writer_has_left_is_removed_at_the_next_start() {
    let folder = Folder::new();
    save(&folder.checkpoints(), 10).expect("it is written");
    let whole = folder.names()[0].clone();
    let part = folder.trial().join(format!("{}.00000000000000ff.part", whole.replace("0010-", "0020-")));
    let others = ["notes.txt", "000000000010-x.checkpoint", &format!("{whole}.part"), &whole[1..]];
    for file in others.iter().map(|name| folder.trial().join(name)).chain([part.clone()]) {
        fs::write(file, "half").expect("a file");
    }
    assert_eq!(load(&folder.checkpoints()), (Some(10), String::new()));
    assert!(!part.exists());
    folder.checkpoints().discard().expect("they are removed");
    assert_eq!(folder.names().len(), others.len(), "unknown files stay: {:?}", folder.names());
}

#[test]
fn a_file_of_an_earlier_version_is_refused_and_kept() {
    let folder = Folder::new();
    fs::write(folder.trial(), "{\"emulated\":\"net\"}").expect("a file");
    let (steps, warning) = load(&folder.checkpoints());
    assert!(
        steps.is_none() && warning.contains("trial-7 has neither an identity nor a checksum"),
        "{warning}"
    );
    folder.checkpoints().discard().expect("nothing to do");
    (1..=3).for_each(|steps| save(&folder.checkpoints(), steps).expect("it is written"));
    assert_eq!(load(&folder.checkpoints()), (Some(3), String::new()));
    let kept = fs::read_to_string(folder.0.join("trial-7.earlier")).expect("it is kept");
    assert_eq!(kept, "{\"emulated\":\"net\"}");
}

#[test]
fn a_failed_write_leaves_nothing_behind() {
    let folder = Folder::new();
    let checkpoints = folder.checkpoints();
    save(&checkpoints, 10).expect("it is written");
    let before = folder.names();
    let state = State { contents: contents(20), durability: Durability::OnDisk };
    let full = checkpoints.write(&state, |out| {
        out.write_all(&numbers()[..10])?;
        Err(io::ErrorKind::StorageFull.into())
    });
    let problem = full.expect_err("the disk is full").to_string();
    assert!(
        problem.starts_with("the checkpoint of step 20 cannot be written to ")
            && problem.contains("no storage space"),
        "{problem}"
    );
    assert_eq!(folder.names(), before);
    assert_eq!(load(&checkpoints), (Some(10), String::new()));
}

#[test]
fn a_state_that_does_not_fit_is_one_that_cannot_be_used() {
    let folder = Folder::new();
    (1..=2).for_each(|at| save(&folder.checkpoints(), 10 * at).expect("it is written"));
    let loaded = folder.checkpoints().load(
        |unreadable| unreadable,
        |contents, _| {
            let steps = contents.position.steps;
            Ok(if steps > 10 { Err(Problem::State("it is too far".to_owned())) } else { Ok(steps) })
        },
    );
    let Loaded { state, warning } = loaded.expect("it can be looked into");
    assert_eq!(state, Some(10));
    assert!(
        warning
            .expect("a warning")
            .contains("has a state that does not fit: it is too far; the trial resumes")
    );
}

#[test]
fn a_folder_that_cannot_be_looked_into_is_not_taken_for_an_empty_one() {
    let folder = Folder::new();
    // A loop of links: the way to it has no end.
    std::os::unix::fs::symlink(folder.trial(), folder.trial()).expect("a link");
    assert!(
        folder.checkpoints().load::<u64, _>(|unreadable| unreadable, |_, _| panic!("there is none")).is_err()
    );
    assert!(save(&folder.checkpoints(), 1).is_err());
    assert!(Path::new(&folder.trial()).is_symlink());
}

use std::{
    env, fs,
    io::Write,
    path::{Path, PathBuf},
    process,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use actix::{Recipient, System};
use tokio::sync::mpsc::UnboundedReceiver;

use super::{exits, probe, slot, study};
use crate::{
    actors::{
        clock::Clock,
        exit::SessionExit,
        message::EngineInput,
        programs::{ProgramSpec, Programs},
        runtime::{Around, Runtime},
        supervisor::TrialRunners,
    },
    agent::{Machine, SystemSpawner},
    ids::{Generation, GpuType, StudyId, TrialId},
    space::{Params, Study},
    trials::{
        agent::{AgentNode, AgentSlot},
        engine::{FailureCause, GroupCommand, GroupEvent, Input, Launch, Metrics, Outcome, Report},
        group::FinalState,
    },
};

/// A folder that is gone at the end.
struct TempFolder(PathBuf);

impl TempFolder {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = env::temp_dir().join(format!("pollux-commands-{}-{number}", process::id()));
        for part in ["", "logs", "checkpoints"] {
            fs::create_dir_all(path.join(part)).expect("a folder");
        }
        Self(path)
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

struct Scene {
    programs: Programs,
    /// None when it has ended.
    runtime: Option<Runtime>,
    supervisor: Recipient<EngineInput>,
    inputs: UnboundedReceiver<EngineInput>,
    _exits: UnboundedReceiver<SessionExit>,
    folder: TempFolder,
}

fn spec(script: &str) -> ProgramSpec {
    let words = ["sh", "-c", script].map(str::to_owned).into();
    ProgramSpec { words, folder: None, grace: PATIENCE }
}

/// No program of a test needs that long to end, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(300);

impl Scene {
    fn new(script: &str) -> Self {
        Self::with(&spec(script), &study("trial: {command: [sh]}"))
    }

    fn with(spec: &ProgramSpec, study: &Study) -> Self {
        Self::on(0, spec, study)
    }

    /// On a machine with so many GPUs.
    fn on(gpus: u32, spec: &ProgramSpec, study: &Study) -> Self {
        let folder = TempFolder::new();
        let device = |index: u32| (index < gpus).then(|| index.to_string());
        let slot = |index| AgentSlot { device: device(index), memory_bytes: None, threads: 1 };
        let nodes = vec![AgentNode { gpu_type: GpuType::cpu(), slots: (0..2).map(slot).collect() }];
        let (arguments, spawner) = (Vec::new(), Arc::new(SystemSpawner));
        let machine = Machine { nodes, address: None, arguments, is_sole: false, spawner };
        let ((supervisor, inputs), (exit, exits)) = (probe::<EngineInput>(), exits());
        let (study_id, path) = (StudyId::default(), Some(folder.0.as_path()));
        let (machine, exit, to, clock) = (&machine, &exit, &supervisor, Clock::after(0.0, 1.0));
        let around = Around {
            study,
            study_id,
            folder: path,
            machine,
            listen: None,
            notify: None,
            clock,
            pilots: None,
            supervisor: to,
            exit,
        };
        let (programs, runtime) = Runtime::programs(&around, spec.clone()).expect("it can be opened");
        Self { programs, runtime: Some(runtime), supervisor, inputs, _exits: exits, folder }
    }

    /// Waits until there is a machine.
    async fn open(&mut self) {
        let input = self.inputs.recv().await.expect("an input").input;
        assert!(matches!(input, Input::NodeJoined { slots: 2, .. }), "{input:?}");
    }

    fn launch(&mut self, trial: u32, x: f64) {
        self.launch_on(trial, 1, 1, x);
    }

    fn launch_on(&mut self, trial: u32, generation: u32, index: u32, x: f64) {
        let params = Params::from_iter([("x", x.into())]);
        let (generation, slots) = (Generation(generation), vec![slot(0, index)]);
        let launch = Launch { generation, slots, params, batch: None, checkpoint: None };
        self.programs.command(TrialId(trial), GroupCommand::Launch(launch), &self.supervisor);
    }

    /// The end of the session.
    async fn end(&mut self) {
        self.runtime
            .take()
            .expect("it has not ended")
            .end(&SessionExit::Finished(Outcome::Done), |_| {})
            .await;
    }

    /// A file that programs find as `$POLLUX_TUNE_FOLDER/../name`.
    fn file(&self, name: &str) -> PathBuf {
        self.folder.0.join("checkpoints").join(name)
    }

    /// The process whose number a program has written into a file.
    fn process(&self, name: &str) -> String {
        fs::read_to_string(self.file(name)).expect("it was written").trim().to_owned()
    }

    fn stop(&mut self, trial: u32) {
        let command = GroupCommand::Stop(FinalState::Discarded);
        self.programs.command(TrialId(trial), command, &self.supervisor);
    }

    /// The next thing that a program does.
    async fn event(&mut self) -> (u32, GroupEvent) {
        let input = self.inputs.recv().await.expect("an input").input;
        let Input::Group { trial, event, .. } = input else { panic!("{input:?}") };
        (trial.0, event)
    }
}

/// Programs are real, and so is their time.
fn in_real_time<F: Future>(test: F) -> F::Output {
    System::new().block_on(test)
}

fn metrics(values: &[(&str, f64)]) -> Metrics {
    values.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect()
}

#[test]
fn a_program_gets_its_parameters_and_prints_metrics() {
    in_real_time(async {
        let script = r#"echo starting; echo "{\"epoch\": 2, \"loss\": {x}}"; echo "{\"pollux\": {\"accuracy\": 0.5, \"gpu\": $CUDA_VISIBLE_DEVICES}}""#;
        let mut scene = Scene::on(2, &spec(script), &study("trial: {command: [sh]}"));
        scene.open().await;
        scene.launch(0, 0.25);
        assert_eq!(scene.event().await, (0, GroupEvent::Formed));
        let report = |number, epochs, metrics| Report { number, epochs, metrics, ..Report::default() };
        let first = report(1, 2.0, metrics(&[("loss", 0.25)]));
        assert_eq!(scene.event().await, (0, GroupEvent::Reported(first)));
        let second = report(2, 2.0, metrics(&[("accuracy", 0.5), ("gpu", 1.0)]));
        assert_eq!(scene.event().await, (0, GroupEvent::Reported(second)));
        let last = metrics(&[("accuracy", 0.5), ("gpu", 1.0), ("loss", 0.25)]);
        assert_eq!(scene.event().await, (0, GroupEvent::Finished(last)));
    });
}

#[test]
fn how_a_program_ends_tells_whose_fault_it_is() {
    in_real_time(async {
        for (script, cause, text) in [
            ("echo no data >&2; exit 3", FailureCause::Trial, "exit code 3"),
            ("kill -9 $$", FailureCause::Infrastructure, "it was killed"),
        ] {
            let mut scene = Scene::new(script);
            scene.open().await;
            scene.launch(0, 0.0);
            assert_eq!(scene.event().await, (0, GroupEvent::Formed));
            let (0, GroupEvent::Failed { reason, cause: found }) = scene.event().await else {
                panic!("{script}")
            };
            assert_eq!(found, cause, "{reason}");
            assert!(reason.contains(text), "{reason}");
            assert_eq!(reason.contains("no data"), cause == FailureCause::Trial, "{reason}");
        }
    });
}

/// A program that is stopped is asked to end, and the next one of its slot begins when it has.
#[test]
fn a_slot_has_one_program_at_a_time() {
    in_real_time(async {
        let folder = TempFolder::new();
        let mark = folder.0.join("ended");
        // The first one waits for the signal to end, and says when it has.
        let script = format!(
            r#"if [ {{trial}} = 0 ]; then trap 'touch {0}; exit 0' TERM; echo '{{"loss": 1}}'; while :; do read line < {1} || :; done; else test -e {0}; fi"#,
            mark.display(),
            fifo(&folder.0).display()
        );
        let mut scene = Scene::new(&script);
        scene.open().await;
        scene.launch(0, 0.0);
        scene.launch(1, 0.0);
        assert_eq!(scene.event().await, (0, GroupEvent::Formed));
        assert!(matches!(scene.event().await, (0, GroupEvent::Reported(_))));
        scene.stop(0);
        assert_eq!(scene.event().await, (1, GroupEvent::Formed), "nothing more is heard of the first one");
        assert_eq!(scene.event().await, (1, GroupEvent::Finished(Metrics::new())));
    });
}

/// What nobody writes to: whoever reads from it waits.
fn fifo(folder: &Path) -> PathBuf {
    let path = folder.join("fifo");
    assert!(process::Command::new("mkfifo").arg(&path).status().expect("mkfifo").success());
    path
}

/// Whether a process runs; one that has ended and waits for its parent does not.
fn is_alive(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
}

/// The output of the program is held open by what it leaves behind. It counted as running until that had ended.
#[test]
fn children_neither_hold_up_the_end_of_a_program_nor_outlive_it() {
    in_real_time(async {
        let mut scene = Scene::new(
            "cd $POLLUX_TUNE_FOLDER/..; sleep 10000 & echo $! > group; setsid sleep 10000 & echo $! > session; echo '{\"loss\": 1}'",
        );
        scene.open().await;
        scene.launch(0, 0.0);
        assert_eq!(scene.event().await, (0, GroupEvent::Formed));
        assert!(matches!(scene.event().await, (0, GroupEvent::Reported(_))));
        assert_eq!(scene.event().await, (0, GroupEvent::Finished(metrics(&[("loss", 1.0)]))));
        scene.end().await;
        for child in ["group", "session"] {
            assert!(!is_alive(&scene.process(child)), "{child}");
        }
    });
}

/// The shell ends at once; what it has started needs its time.
#[test]
fn all_of_a_program_has_time_to_end() {
    in_real_time(async {
        let child = r#"trap "read go < release; touch saved; exit" TERM; echo "{\"loss\": 1}"; while :; do read line < never; done"#;
        let mut scene =
            Scene::new(&format!("cd $POLLUX_TUNE_FOLDER/..; mkfifo never release; sh -c '{child}'; true"));
        scene.open().await;
        scene.launch(0, 0.0);
        assert_eq!(scene.event().await, (0, GroupEvent::Formed));
        assert!(matches!(scene.event().await, (0, GroupEvent::Reported(_))));
        scene.stop(0);
        let release = scene.file("release");
        let released = tokio::task::spawn_blocking(move || fs::write(release, "go\n"));
        released.await.expect("no panic").expect("it reads");
        scene.end().await;
        assert!(scene.file("saved").exists(), "it had no time to end");
    });
}

/// A process that was asked to end may start others for that. Only those that it has left behind are asked, too.
#[test]
fn what_a_program_starts_to_end_well_is_left_alone() {
    in_real_time(async {
        // Of `held` the one left behind is the last writer: its end shows that all were looked at.
        let end = r#"exec 9> held; sh -c "read go < release; touch saved" 9>&- & saving=$!; (sleep 10000 &); exec 9>&-; wait $saving; exit"#;
        let mut scene = Scene::new(&format!(
            "cd $POLLUX_TUNE_FOLDER/..; mkfifo never held release; trap '{end}' TERM; echo '{{\"loss\": 1}}'; while :; do read line < never; done"
        ));
        scene.open().await;
        scene.launch(0, 0.0);
        assert_eq!(scene.event().await, (0, GroupEvent::Formed));
        assert!(matches!(scene.event().await, (0, GroupEvent::Reported(_))));
        // With both ends open nobody waits for the other.
        let mut release =
            fs::File::options().read(true).write(true).open(scene.file("release")).expect("it is there");
        scene.stop(0);
        let held = scene.file("held");
        let looked = tokio::task::spawn_blocking(move || fs::read(held));
        looked.await.expect("no panic").expect("a pipe");
        release.write_all(b"go\n").expect("a pipe");
        scene.end().await;
        assert!(scene.file("saved").exists(), "it had no time to end");
    });
}

#[test]
fn who_does_not_end_in_time_is_killed() {
    in_real_time(async {
        let grace = Duration::from_millis(50);
        let script = "cd $POLLUX_TUNE_FOLDER/..; trap '' TERM; mkfifo never; echo $$ > program; echo '{\"loss\": 1}'; while :; do read line < never; done";
        let mut scene = Scene::with(&ProgramSpec { grace, ..spec(script) }, &study("trial: {command: [sh]}"));
        scene.open().await;
        scene.launch(0, 0.0);
        assert_eq!(scene.event().await, (0, GroupEvent::Formed));
        assert!(matches!(scene.event().await, (0, GroupEvent::Reported(_))));
        scene.stop(0);
        scene.end().await;
        assert!(!is_alive(&scene.process("program")));
        assert!(!scene.file("trial-0/process").exists(), "nothing is left to look for");
    });
}

/// What the last attempt has left behind does not want to end, and the next one waits for it, though it has another slot.
#[test]
fn a_trial_has_one_attempt_at_a_time() {
    in_real_time(async {
        let script = "cd $POLLUX_TUNE_FOLDER/..; if [ -e child ]; then readlink /proc/$(cat child)/exe && exit 1; exit 0; fi; \
                      mkfifo never ready; (trap '' TERM; echo > ready; exec sleep 10000) & echo $! > child; read line < ready; kill -9 $$";
        let grace = Duration::from_millis(50);
        let mut scene = Scene::with(&ProgramSpec { grace, ..spec(script) }, &study("trial: {command: [sh]}"));
        scene.open().await;
        scene.launch(0, 0.0);
        assert_eq!(scene.event().await, (0, GroupEvent::Formed));
        assert!(matches!(
            scene.event().await,
            (0, GroupEvent::Failed { cause: FailureCause::Infrastructure, .. })
        ));
        scene.launch_on(0, 2, 0, 0.0);
        assert_eq!(scene.event().await, (0, GroupEvent::Formed));
        assert_eq!(scene.event().await, (0, GroupEvent::Finished(Metrics::new())), "both ran at once");
    });
}

#[test]
fn a_silent_program_is_ended_and_the_reason_told() {
    in_real_time(async {
        // One waits for what never comes, the other one stands still.
        for script in ["cd $POLLUX_TUNE_FOLDER; mkfifo never; read line < never", "kill -STOP $$"] {
            let mut scene = Scene::with(&spec(script), &study("trial: {command: [sh], silence: 100ms}"));
            scene.open().await;
            scene.launch(0, 0.0);
            assert_eq!(scene.event().await, (0, GroupEvent::Formed));
            let (0, GroupEvent::Failed { reason, cause }) = scene.event().await else { panic!("{script}") };
            assert_eq!(cause, FailureCause::Infrastructure);
            assert!(reason.contains("printed nothing for 100ms (`trial.silence`)"), "{reason}");
        }
    });
}

/// There were as many facts as lines.
#[test]
fn many_lines_are_few_reports_and_all_are_logged() {
    in_real_time(async {
        let mut scene = Scene::new("seq 300000 | sed 's/.*/{\"loss\": &}/'");
        scene.open().await;
        scene.launch(0, 0.0);
        assert_eq!(scene.event().await, (0, GroupEvent::Formed));
        let mut reports = 0;
        let last = loop {
            match scene.event().await.1 {
                GroupEvent::Reported(_) => reports += 1,
                GroupEvent::Finished(last) => break last,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(last, metrics(&[("loss", 300_000.0)]));
        assert!((11..10_000).contains(&reports), "{reports}");
        let log = fs::read_to_string(scene.folder.0.join("logs/trial-0.log")).expect("a log");
        assert_eq!(log.lines().count(), 300_001, "and the command");
    });
}

#[test]
fn a_line_without_an_end_is_cut() {
    in_real_time(async {
        let mut scene = Scene::new("head -c 5000000 /dev/zero | tr '\\0' x; echo; echo '{\"loss\": 1}'");
        scene.open().await;
        scene.launch(0, 0.0);
        assert_eq!(scene.event().await, (0, GroupEvent::Formed));
        assert!(matches!(scene.event().await, (0, GroupEvent::Reported(_))));
        assert_eq!(scene.event().await, (0, GroupEvent::Finished(metrics(&[("loss", 1.0)]))));
        let log = fs::read_to_string(scene.folder.0.join("logs/trial-0.log")).expect("a log");
        let cut = format!("x [{} bytes more, cut off]\n{{\"loss\": 1}}\n", 5_000_000 - (1 << 20));
        assert!(log.ends_with(&cut), "{}", &log[log.len() - 100..]);
    });
}

#[test]
fn a_folder_that_is_gone_is_not_the_fault_of_a_trial() {
    in_real_time(async {
        let mut scene = Scene::new("true");
        scene.open().await;
        fs::remove_dir_all(scene.folder.0.join("logs")).expect("it is there");
        scene.launch(0, 0.0);
        let (0, GroupEvent::Failed { cause, .. }) = scene.event().await else { panic!("it has a log") };
        assert_eq!(cause, FailureCause::Environment);
    });
}

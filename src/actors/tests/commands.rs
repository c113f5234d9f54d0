use std::{
    env, fs,
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU32, Ordering},
};

use actix::{Recipient, System};
use tokio::sync::mpsc::UnboundedReceiver;

use super::{probe, slot};
use crate::{
    actors::{command::Commands, error::Error, message::EngineInput, supervisor::TrialRunners},
    ids::{Generation, TrialId},
    space::Params,
    trials::{
        engine::{FailureCause, GroupCommand, GroupEvent, Input, Launch, Metrics, Report},
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
    commands: Commands,
    supervisor: Recipient<EngineInput>,
    inputs: UnboundedReceiver<EngineInput>,
    _folder: TempFolder,
}

impl Scene {
    fn new(script: &str, gpus: u32) -> Self {
        let folder = TempFolder::new();
        let words = ["sh", "-c", script].map(str::to_owned);
        let commands = Commands::new(&words, &folder.0, gpus).expect("there is a shell");
        let (supervisor, inputs) = probe::<EngineInput>();
        Self { commands, supervisor, inputs, _folder: folder }
    }

    fn launch(&mut self, trial: u32, x: f64) {
        let params = Params::from_iter([("x", x.into())]);
        let (generation, slots) = (Generation(1), vec![slot(0, 1)]);
        let launch = Launch { generation, slots, params, batch: None, checkpoint: None };
        self.commands.command(TrialId(trial), GroupCommand::Launch(launch), &self.supervisor);
    }

    fn stop(&mut self, trial: u32) {
        let command = GroupCommand::Stop(FinalState::Discarded);
        self.commands.command(TrialId(trial), command, &self.supervisor);
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
        let script = r#"echo starting; echo "{\"epoch\": 2, \"loss\": {x}}"; echo "{\"accuracy\": 0.5, \"gpu\": $CUDA_VISIBLE_DEVICES}""#;
        let mut scene = Scene::new(script, 2);
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
            let mut scene = Scene::new(script, 0);
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
        let mut scene = Scene::new(&script, 0);
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

#[test]
fn a_program_that_is_not_there_is_noticed_at_once() {
    let folder = TempFolder::new();
    let missing = Commands::new(&["no-such-program".to_owned()], &folder.0, 0);
    assert!(matches!(missing, Err(Error::NoSuchProgram(name)) if name == "no-such-program"));
    assert!(matches!(Commands::new(&[], &folder.0, 0), Err(Error::NoProgram)));
}

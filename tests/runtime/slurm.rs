//! Pilots in a real Slurm, which the test starts.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    path::Path,
    process::{Command, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::Instant,
};

use pollux_tune::{
    ids::StudyId,
    internal::slurm::{AgentPlace, Partitions, Provider, Slurm as Queue, Tools},
    space::Machines,
    store::Reader,
    trials::{
        engine::Fact,
        pilots::{JobEnd, JobState},
    },
};

use crate::{
    common::{ends, folder},
    slurm_cluster::Slurm,
};

const STUDY: StudyId = StudyId(0xfeed);

#[test]
fn pilots_are_checked_submitted_found_again_signalled_and_cancelled() {
    let root = folder("cluster");
    let Some(slurm) = Slurm::start(&root) else { return };
    let tools = Tools { conf: Some(slurm.conf()), ..Tools::default() };
    checks_name_what_there_is(&tools);
    a_dry_run_asks_slurm(&slurm);
    jobs_go_their_way(&slurm, &tools);
}

fn checks_name_what_there_is(tools: &Tools) {
    let machines =
        |text: &str| Machines::from_yaml("c.yaml", &format!("cluster: {{slurm: {{{text}}}}}")).unwrap();
    let partitions = Partitions::ask(tools).unwrap();
    let check = |text: &str| partitions.check("cluster.slurm[0]", &machines(text).slurm[0]);
    let checked = check("gres: 'gpu:t4:2', partition: spot, nodes: 0..4, time: 1h").unwrap();
    assert_eq!(checked.gpu_type.unwrap().name(), "t4");
    assert_eq!(check("gres: 'gpu:2'").unwrap().gpu_type.unwrap().name(), "a100", "the default partition");
    for (text, field) in [
        ("gres: 'gpu:t4:2', partition: nowhere", "partition"),
        ("gres: 'gpu:v100:2', partition: spot", "gres"),
        ("gres: 'gpu:t4:3', partition: spot", "gres"),
        ("gres: 'gpu:t4:2', partition: spot, time: 2h", "time"),
        ("gres: 'gpu:t4:2', partition: spot, nodes: 5", "nodes"),
        ("gres: 'gpu:t4:2', partition: spot, cpus: 17", "cpus"),
    ] {
        let message = check(text).unwrap_err().to_string();
        assert!(message.starts_with(&format!("cluster.slurm[0].{field}: ")), "{message}");
    }
}

/// Partitions alone do not tell whether a job would be taken.
fn a_dry_run_asks_slurm(slurm: &Slurm) {
    let place = folder("dry");
    fs::create_dir_all(&place).unwrap();
    let run = |more: &str| {
        let yaml = format!(
            "space: {{x: {{float: [0, 1]}}}}\nobjective: {{minimize: loss}}\ntrial: {{command: [true]}}\n\
             cluster: {{slurm: [{{gres: 'gpu:t4:2', partition: spot{more}}}]}}\n"
        );
        fs::write(place.join("study.yaml"), yaml).unwrap();
        let mut run = slurm.command(env!("CARGO_BIN_EXE_pollux-tune"));
        run.arg("run")
            .arg(place.join("study.yaml"))
            .arg("--folder")
            .arg(place.join("study"))
            .arg("--dry-run");
        let output = run.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code(), text + &String::from_utf8_lossy(&output.stderr))
    };
    let (code, text) = run("");
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("sbatch --test-only: Job ") && text.contains(" in partition spot"), "{text}");
    let (code, text) = run(", extra: [--mem=100T]");
    assert!(code != Some(0) && text.contains("`sbatch` says: "), "{text}");
    assert!(slurm.queue().is_empty() && !place.join("study").exists(), "nothing was begun");
    fs::remove_dir_all(place).unwrap();
}

fn jobs_go_their_way(slurm: &Slurm, tools: &Tools) {
    let study = folder("study");
    let agent = study.join("agent.sh");
    fs::create_dir_all(&study).unwrap();
    // Stands for the agent: says what it was started with, and leaves when it is told to.
    let text = "#!/bin/bash\ntrap 'echo warned' USR1\ntrap 'echo told to end; exit 0' TERM\necho \"$@\"\n\
                pwd > place\necho devices $CUDA_VISIBLE_DEVICES\nwhile :; do sleep 0.1; done\n";
    write_program(&agent, text);
    let place = AgentPlace {
        program: agent,
        folder: study.clone(),
        join_file: study.join("cluster/join.json"),
        directory: study.clone(),
    };
    let machines = Machines::from_yaml(
        "c.yaml",
        "cluster: {slurm: [{gres: 'gpu:t4:2', partition: spot, time: 1h}, {gres: 'gpu:a100:2', partition: gpu, slots: 2xcpu, \
         setup: \"export X=1\\necho ready $X\"}]}",
    );
    let specs = machines.unwrap().slurm;
    let mut queue = Queue::new(tools.clone(), STUDY, &specs, &place).unwrap();
    let (first, second) = (queue.submit(0).unwrap(), queue.submit(1).unwrap());
    let state = |queue: &mut Queue, job: &str| {
        queue.poll().unwrap().into_iter().find(|known| known.job == job).map(|known| known.state)
    };
    let log = |job: &str| fs::read_to_string(study.join(format!("logs/pilot-{job}.log"))).unwrap_or_default();
    slurm.wait_until("both agents run", |_| {
        [&first, &second].iter().all(|job| log(job).contains("devices 0,1"))
    });
    let joined = format!("agent --join-file {}", place.join_file.display());
    assert!(log(&first).starts_with(&joined), "{}", log(&first));
    assert!(log(&second).starts_with("ready 1\n"), "{}", log(&second));
    assert_eq!(
        fs::read_to_string(study.join("place")).unwrap().trim(),
        study.display().to_string(),
        "where the head runs"
    );
    let number = second.trim_end_matches("_0");
    assert!(
        log(&second).contains(&format!("-{number} --job slurm:{second} --slots 2xcpu")),
        "{}",
        log(&second)
    );
    assert!(matches!(state(&mut queue, &first), Some(JobState::Running { ends_s: Some(_), .. })));

    // Another head finds them, and knows their kinds.
    let mut next = Queue::new(tools.clone(), STUDY, &specs, &place).unwrap();
    let mut found: Vec<_> = next.poll().unwrap().into_iter().map(|known| (known.job, known.kind)).collect();
    found.sort();
    let mut wanted = vec![(first.clone(), Some(0)), (second.clone(), Some(1))];
    wanted.sort();
    assert_eq!(found, wanted);
    assert!(Queue::jobs(tools, StudyId(1)).unwrap().is_empty(), "those of another study are not its own");

    // Somebody more important takes the node.
    let node = slurm.text("squeue", &["-h", "-j", first.trim_end_matches("_0"), "-o", "%N"]);
    let urgent =
        ["-p", "urgent", "--gres=gpu:t4:2", "-w", node.trim(), "-o", "/dev/null", "--wrap", "sleep 1000"];
    slurm.text("sbatch", &urgent);
    slurm.wait_until("the first one is preempted", |_| log(&first).contains("told to end"));
    slurm.wait_until("Slurm says so", |_| {
        let mut queue = Queue::new(tools.clone(), STUDY, &specs, &place).unwrap();
        matches!(state(&mut queue, &first), Some(JobState::Ended { end: JobEnd::Preempted, .. }))
    });
    assert!(queue.log(&first).contains("told to end"));

    // Those that are gone are no error, and those that are there have time to end.
    queue.cancel(&[first, second.clone()]).unwrap();
    slurm.wait_until("the second one has ended by itself", |_| log(&second).contains("told to end"));
    assert!(Queue::cancel_all(tools, STUDY).is_ok());
    slurm.wait_until("the queue has nothing of this study", |_| {
        let gone = |state: &JobState| matches!(state, JobState::Ended { .. });
        Queue::jobs(tools, STUDY).unwrap().iter().all(|known| gone(&known.state))
    });
    fs::remove_dir_all(study).unwrap();
}

fn write_program(path: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt;
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// All facts so far; none before there is a study.
fn facts(study: &Path) -> Vec<Fact> {
    let entries = Reader::open(study).and_then(|reader| reader.entries(0));
    entries.unwrap_or_default().into_iter().map(|entry| entry.fact).collect()
}

/// Everything that anybody could read of this study: processes, jobs, scripts, logs and the journal.
fn readable(slurm: &Slurm, study: &Path) -> String {
    let mut text = slurm.text("scontrol", &["show", "jobs", "--details"]);
    text += &slurm.text("scontrol", &["show", "config"]);
    text += &String::from_utf8_lossy(
        &Command::new("ps").args(["axeww"]).output().map_or_else(|_| Vec::new(), |ps| ps.stdout),
    );
    for folder in [study.join("logs"), study.join("cluster"), study.to_owned()] {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let is_secret = fs::metadata(entry.path()).is_ok_and(|file| {
                use std::os::unix::fs::PermissionsExt;
                file.permissions().mode().trailing_zeros() >= 6
            });
            if entry.path().is_file() && !is_secret {
                text += &String::from_utf8_lossy(&fs::read(entry.path()).unwrap());
            }
        }
    }
    text
}

/// A study on one node of the best kind and up to two others.
fn write_study(place: &Path, gate: &Path, trials: u32) {
    // Trials wait until the test has done its deeds.
    let script = format!("while [ ! -e {} ]; do sleep 0.1; done; echo '{{\"loss\": 0.5}}'", gate.display());
    fs::write(place.join("trial.sh"), script).unwrap();
    let yaml = format!(
        "space: {{x: {{float: [0, 1]}}}}\nobjective: {{minimize: loss}}\ntrial: {{command: [sh, {}/trial.sh]}}\n\
         search: {{trials: {trials}, parallel: 6}}\ncluster:\n  listen: 127.0.0.1\n  slurm:\n    \
         - {{nodes: 1, gres: 'gpu:a100:2', partition: gpu, time: 1m, slots: 2xcpu}}\n    \
         - {{nodes: 0..2, gres: 'gpu:t4:2', partition: spot, slots: 2xcpu}}\n",
        place.display()
    );
    fs::write(place.join("study.yaml"), yaml).unwrap();
}

#[test]
fn a_study_grows_and_survives_preemption_and_the_end_of_its_time() {
    const TRIALS: u32 = 12;
    let root = folder("whole");
    let Some(slurm) = Slurm::start(&root) else { return };
    let began = Instant::now();
    let place = folder("whole-study");
    fs::create_dir_all(&place).unwrap();
    let (study, gate) = (place.join("study"), place.join("gate"));
    write_study(&place, &gate, TRIALS);
    let mut run = slurm.command(env!("CARGO_BIN_EXE_pollux-tune"));
    run.arg("run").arg(place.join("study.yaml")).arg("--folder").arg(&study);
    // As in a job of Slurm, whose variables are none of the pilots' business.
    run.env("SLURM_JOB_ID", "1").env("SLURM_CPUS_PER_TASK", "9999").env("SBATCH_ARRAY_INX", "0-99");
    let mut head = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stderr = head.stderr.take().unwrap();
    let notices = thread::spawn(move || {
        let mut text = String::new();
        let _ = stderr.read_to_string(&mut text);
        text
    });

    let joined = |facts: &[Fact]| facts.iter().filter(|fact| matches!(fact, Fact::NodeJoined { .. })).count();
    slurm.wait_until("one pilot", |_| joined(&facts(&study)) >= 1);
    slurm.wait_until("it grows to three", |_| joined(&facts(&study)) >= 3);
    let token = fs::read_to_string(study.join("cluster/join.json")).unwrap();
    let token: serde_json::Value = serde_json::from_str(&token).unwrap();
    let token = token["token"].as_str().unwrap().to_owned();
    assert!(token.len() >= 32 && !readable(&slurm, &study).contains(&token), "the token can be read");

    // Somebody more important takes one of the spot nodes.
    let node = slurm.text("squeue", &["-h", "-p", "spot", "-t", "running", "-o", "%N"]);
    let node = node.lines().next().unwrap().trim().to_owned();
    let urgent = [
        "--parsable",
        "-p",
        "urgent",
        "--gres=gpu:t4:2",
        "-w",
        &node,
        "-o",
        "/dev/null",
        "--wrap",
        "sleep 1000",
    ];
    let urgent = slurm.text("sbatch", &urgent).trim().to_owned();
    let lost = |facts: &[Fact]| facts.iter().any(|fact| matches!(fact, Fact::NodeLost { .. }));
    slurm.wait_until("its agent is gone", |_| lost(&facts(&study)));
    slurm.wait_until("another one has come", |_| joined(&facts(&study)) >= 4);
    let warned = |facts: &[Fact]| {
        let is_warning =
            |fact: &Fact| matches!(fact, Fact::NodeDraining { reason, .. } if reason.contains("SIGUSR1"));
        facts.iter().any(is_warning)
    };
    slurm.wait_until("the time of the first one is almost over", |_| warned(&facts(&study)));
    slurm.wait_until("another one takes its place", |_| joined(&facts(&study)) >= 5);
    fs::write(&gate, "").unwrap();

    let status = head.wait().unwrap();
    let took = began.elapsed();
    let notices = notices.join().unwrap();
    assert!(status.success(), "{notices}");
    let ends = ends(&study);
    assert_eq!((ends.len(), ends.values().sum::<u32>()), (TRIALS as usize, TRIALS), "{ends:?}");
    assert!(
        notices.contains("asking Slurm for one more node of gpu:t4:2 (spot): the study would run about"),
        "{notices}"
    );
    assert!(notices.contains("was preempted"), "{notices}");
    let left: Vec<(String, String)> = slurm.queue().into_iter().filter(|(job, _)| *job != urgent).collect();
    assert!(left.is_empty(), "{left:?}");
    assert!(!readable(&slurm, &study).contains(&token), "the token can be read");
    let _ = writeln!(std::io::stderr(), "from the first submission to the end: {took:?}");
    fs::remove_dir_all(place).unwrap();
}

/// What runs goes on, and when the controller is back, nothing is left in its queue.
#[test]
fn a_study_survives_the_loss_of_the_controller() {
    const TRIALS: u32 = 6;
    let root = folder("controller");
    let Some(mut slurm) = Slurm::start(&root) else { return };
    let place = folder("controller-study");
    fs::create_dir_all(&place).unwrap();
    let (study, gate) = (place.join("study"), place.join("gate"));
    write_study(&place, &gate, TRIALS);
    // One node, which lasts.
    let yaml = fs::read_to_string(place.join("study.yaml")).unwrap();
    let (yaml, _) = yaml.split_once("    - {nodes: 0..2").unwrap();
    fs::write(place.join("study.yaml"), yaml.replace("time: 1m", "time: 1h")).unwrap();
    let mut run = slurm.command(env!("CARGO_BIN_EXE_pollux-tune"));
    run.arg("run").arg(place.join("study.yaml")).arg("--folder").arg(&study);
    let mut head = run.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let notices = Notices::read(head.stderr.take().unwrap());
    let runs = |facts: &[Fact]| facts.iter().any(|fact| matches!(fact, Fact::TrialStarted { .. }));
    slurm.wait_until("its trials run", |_| runs(&facts(&study)));

    slurm.kill_controller();
    let killed = Instant::now();
    slurm.wait_until("people are told", |_| notices.contain("the queue cannot be asked"));
    let _ = writeln!(std::io::stderr(), "told of the loss of the controller after {:?}", killed.elapsed());
    fs::write(&gate, "").unwrap();
    let ended = || ends(&study).values().sum::<u32>() == TRIALS;
    slurm.wait_until("all trials end", |_| ended());

    slurm.start_controller();
    let status = head.wait().unwrap();
    assert!(status.success(), "{}", notices.text());
    slurm.wait_until("no job is left", |slurm| slurm.queue().is_empty());
    fs::remove_dir_all(place).unwrap();
}

#[test]
fn a_wrong_setup_is_told_before_anything_is_waited_for() {
    let place = folder("no-slurm");
    fs::create_dir_all(&place).unwrap();
    write_study(&place, &place.join("gate"), 1);
    let mut run = Command::new(env!("CARGO_BIN_EXE_pollux-tune"));
    run.arg("run")
        .arg(place.join("study.yaml"))
        .arg("--folder")
        .arg(place.join("study"))
        .stdin(Stdio::null());
    let output = run.env("SLURM_CONF", "/no/such/slurm.conf").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("SLURM_CONF names /no/such/slurm.conf, which is not there"), "{said}");
    assert!(!place.join("study").exists(), "nothing was begun");
    fs::remove_dir_all(place).unwrap();
}

/// What a head says, while it runs.
struct Notices(Arc<Mutex<String>>);

impl Notices {
    fn read(from: impl Read + Send + 'static) -> Self {
        let text = Arc::<Mutex<String>>::default();
        let lines = text.clone();
        thread::spawn(move || {
            for line in BufReader::new(from).lines().map_while(Result::ok) {
                *lines.lock().unwrap() += &(line + "\n");
            }
        });
        Self(text)
    }

    fn contain(&self, words: &str) -> bool {
        self.0.lock().unwrap().contains(words)
    }

    fn text(&self) -> String {
        self.0.lock().unwrap().clone()
    }
}

/// Agents by an `ssh` that runs its command here: they join, serve and end with the study.
#[test]
fn agents_that_ssh_starts_serve_a_study() {
    let place = folder("ssh");
    fs::create_dir_all(place.join("bin")).unwrap();
    let study = place.join("study");
    // Only the last argument is the command; all are written down.
    let ssh = format!(
        "#!/bin/sh\necho \"$@\" >> {0}/arguments\nfor last; do :; done\nsh -c \"$last\"\necho \"ended $?\" >> {0}/arguments\n",
        place.display()
    );
    write_program(&place.join("bin/ssh"), &ssh);
    let yaml = "space: {x: {float: [0, 1]}}\nobjective: {minimize: loss}\ntrial: {command: [sh, -c, \"echo '{\\\"loss\\\": 0.5}'\"]}\n\
                search: {trials: 6, parallel: 4}\ncluster: {listen: 127.0.0.1, hosts: [{host: gpu1, slots: 2xcpu}, {host: me@gpu2, slots: \
                1xcpu}]}\n";
    fs::write(place.join("study.yaml"), yaml).unwrap();
    let path = format!("{}:{}", place.join("bin").display(), std::env::var("PATH").unwrap());
    let mut run = Command::new(env!("CARGO_BIN_EXE_pollux-tune"));
    run.arg("run").arg(place.join("study.yaml")).arg("--folder").arg(&study).env("PATH", path);
    let output = run.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    assert_eq!(ends(&study).values().sum::<u32>(), 6);
    assert!(
        said.contains("gpu1 has joined: 2 x cpu") || said.contains("me@gpu2 has joined: 1 x cpu"),
        "{said}"
    );
    let arguments = fs::read_to_string(place.join("arguments")).unwrap();
    let join: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(study.join("cluster/join.json")).unwrap()).unwrap();
    assert!(!arguments.contains(join["token"].as_str().unwrap()), "{arguments}");
    assert_eq!(arguments.matches("BatchMode=yes").count(), 2, "{arguments}");
    assert_eq!(arguments.matches("ended 0").count(), 2, "both have left in peace: {arguments}");
    fs::remove_dir_all(place).unwrap();
}

/// The same agents, controller and protocol, with a queue and devices that are none.
#[test]
fn a_whole_cluster_with_its_queue_runs_emulated() {
    let place = folder("emulated");
    fs::create_dir_all(&place).unwrap();
    let study = place.join("study");
    let yaml = "space: {lr: {log: [1e-4, 1e-1]}}\nobjective: {maximize: accuracy}\ntrial: {trainable: cifar10, epochs: 3}\n\
                search: {trials: 8, parallel: 4}\ncluster:\n  slurm:\n    - {nodes: 1, gres: 'gpu:a100:2', partition: gpu}\n    \
                - {nodes: 0..2, gres: 'gpu:t4:4', partition: spot}\n";
    fs::write(place.join("study.yaml"), yaml).unwrap();
    let mut run = Command::new(env!("CARGO_BIN_EXE_pollux-tune"));
    run.arg("run").arg(place.join("study.yaml")).arg("--folder").arg(&study).stdin(Stdio::null());
    let output = run.args(["--emulate", "--time-scale", "0.02"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    assert_eq!(ends(&study).values().sum::<u32>(), 8);
    assert!(
        said.contains("asking Slurm for one more node of gpu:a100:2 (gpu): the study holds at least 1"),
        "{said}"
    );
    assert!(said.contains("has joined: 2 x a100"), "{said}");
    fs::remove_dir_all(place).unwrap();
}

//! Pilots in a real Slurm, which the test starts.

use std::{fs, path::Path};

use pollux_tune::{
    ids::StudyId,
    internal::slurm::{AgentPlace, Partitions, Provider, Slurm as Queue, Tools},
    space::Machines,
    trials::pilots::{JobEnd, JobState},
};

use crate::{common::folder, slurm_cluster::Slurm};

const STUDY: StudyId = StudyId(0xfeed);

#[test]
fn pilots_are_checked_submitted_found_again_signalled_and_cancelled() {
    let root = folder("cluster");
    let Some(slurm) = Slurm::start(&root) else { return };
    let tools = Tools { conf: Some(slurm.conf()) };
    checks_name_what_there_is(&tools);
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

fn jobs_go_their_way(slurm: &Slurm, tools: &Tools) {
    let study = folder("study");
    let agent = study.join("agent.sh");
    fs::create_dir_all(&study).unwrap();
    // Stands for the agent: says what it was started with, and leaves when it is told to.
    let text = "#!/bin/bash\ntrap 'echo warned' USR1\ntrap 'echo told to end; exit 0' TERM\necho \"$@\"\n\
                echo devices $CUDA_VISIBLE_DEVICES\nwhile :; do sleep 0.1; done\n";
    write_program(&agent, text);
    let place =
        AgentPlace { program: agent, folder: study.clone(), join_file: study.join("cluster/join.json") };
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

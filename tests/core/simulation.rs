//! The simulator against the published results of the authors', job by job.

use std::{collections::BTreeMap, fs, io::Read, thread};

use pollux_tune::{
    alloc::{Cluster, PolicyKind},
    sim::{Report, Rules, Settings, Workload, simulate},
};

fn workload(setting: &str, number: u32) -> Workload {
    let path = format!("data/workloads/osdi21/{setting}/workload-{number}.csv");
    Workload::parse(&fs::read_to_string(path).expect("it is there")).expect("it is a workload")
}

/// Completion times in seconds by job.
fn published(policy: &str, setting: &str, number: u32) -> BTreeMap<String, f64> {
    let packed = fs::read("data/workloads/osdi21/published-jct-per-job.csv.gz").expect("it is there");
    let mut text = String::new();
    flate2::read::GzDecoder::new(&packed[..]).read_to_string(&mut text).expect("it is text");
    let prefix = format!("{policy},{setting},workload-{number},");
    let job = |line: &str| {
        let (name, seconds) = line.strip_prefix(&prefix)?.split_once(',')?;
        Some((name.to_owned(), seconds.parse().expect("it is a number")))
    };
    text.lines().filter_map(job).collect()
}

fn settings(policy: PolicyKind, rules: Rules) -> Settings {
    Settings::new(Cluster::parse("16x4xt4").expect("it is a cluster"), policy, rules)
}

fn run(policy: PolicyKind, rules: Rules, workload: &Workload) -> Report {
    simulate(workload, &settings(policy, rules), &mut |_| {}).expect("every job ends")
}

#[test]
fn tiresias_and_optimus_complete_every_job_at_the_published_second() {
    for policy in [PolicyKind::Tiresias, PolicyKind::Optimus] {
        for (setting, jobs) in [("load-1.0", 160), ("load-0.5", 80)] {
            for number in 1..=4 {
                let report = run(policy, Rules::Osdi21, &workload(setting, number));
                let expected = published(policy.name(), setting, number);
                assert_eq!((report.jobs.len(), expected.len()), (jobs, jobs));
                for job in &report.jobs {
                    let off = job.jct_s() - expected[&job.name];
                    assert!(
                        off == 0.0,
                        "{policy}, {setting}, workload {number}, {}: off by {off} s",
                        job.name
                    );
                }
            }
        }
    }
}

#[test]
fn pollux_comes_within_two_percent_of_the_published_means() {
    for number in [2, 3] {
        let report = run(PolicyKind::Pollux, Rules::Osdi21, &workload("load-0.5", number));
        let expected = published("pollux", "load-0.5", number);
        let mean = expected.values().sum::<f64>() / expected.len() as f64;
        let off = report.avg_jct_s() / mean - 1.0;
        assert!(off.abs() < 0.02, "workload {number}: {:+.2} %", 100.0 * off);
    }
}

#[test]
fn goodput_is_ten_percent_below_the_published_pollux() {
    let (mut ours, mut theirs) = (0.0, 0.0);
    for number in 1..=4 {
        ours += run(PolicyKind::Goodput, Rules::Osdi21, &workload("load-1.0", number)).avg_jct_s();
        let expected = published("pollux", "load-1.0", number);
        theirs += expected.values().sum::<f64>() / expected.len() as f64;
    }
    assert!(ours < 0.9 * theirs, "{ours} against {theirs}");
}

#[test]
fn a_run_depends_on_its_arguments_alone_also_between_threads() {
    let small = Workload::new(workload("load-0.5", 1).jobs()[..20].to_vec()).unwrap();
    for (policy, rules) in [
        (PolicyKind::Pollux, Rules::Osdi21),
        (PolicyKind::Pollux, Rules::Own),
        (PolicyKind::Goodput, Rules::Own),
    ] {
        let alone = run(policy, rules, &small);
        thread::scope(|scope| {
            let runs: Vec<_> = (0..3).map(|_| scope.spawn(|| run(policy, rules, &small))).collect();
            for other in runs {
                assert!(alone == other.join().unwrap(), "{policy}, {rules:?}");
            }
        });
    }
}

#[test]
fn every_policy_finishes_every_job_with_the_gpus_there_are() {
    let small = Workload::new(workload("load-1.0", 2).jobs()[..12].to_vec()).unwrap();
    for policy in PolicyKind::ALL {
        for cluster in ["16x4xt4", "1x1xt4", "2x4xt4,1x8xa100", "1x8xa100,1x4xrtx2080ti"] {
            let mut settings = settings(policy, Rules::Own);
            settings.cluster = Cluster::parse(cluster).unwrap();
            let mut last = 0;
            let report = simulate(&small, &settings, &mut |moment| {
                assert!(moment.completed >= last && moment.completed + moment.active <= moment.jobs);
                last = moment.completed;
            })
            .unwrap();
            let capacity_h = f64::from(settings.cluster.total_gpus()) * report.makespan_s() / 3600.0;
            assert!(report.gpu_hours() <= capacity_h * (1.0 + 1e-9), "{policy} on {cluster}");
            for job in &report.jobs {
                assert!(job.jct_s() > settings.restart_delay_s, "{policy} on {cluster}: {job:?}");
                assert!(job.gpu_hours > 0.0 && job.rho.is_finite() && job.rho > 0.0);
            }
        }
    }
}

#[test]
fn interference_slows_only_distributed_jobs_that_share_a_node() {
    let text = "name,time,application,num_replicas,batch_size\na,0,cifar10,6,2048\nb,0,cifar10,6,2048\n";
    let jobs = Workload::parse(text).unwrap();
    let mut settings = settings(PolicyKind::Tiresias, Rules::Osdi21);
    settings.cluster = Cluster::parse("3x4xt4").unwrap();
    let free = simulate(&jobs, &settings, &mut |_| {}).unwrap();
    settings.interference = 0.5;
    let slowed = simulate(&jobs, &settings, &mut |_| {}).unwrap();
    // They share the third node, and train for all of their time but the first round and the restart.
    let trained = |report: &Report| report.jobs[0].jct_s() - 90.0;
    assert!(
        (trained(&slowed) / trained(&free) - 2.0).abs() < 0.05,
        "{} {}",
        trained(&slowed),
        trained(&free)
    );
    settings.cluster = Cluster::parse("4x4xt4").unwrap();
    settings.interference = 0.0;
    let apart = simulate(&jobs, &settings, &mut |_| {}).unwrap();
    settings.interference = 0.5;
    assert!(apart == simulate(&jobs, &settings, &mut |_| {}).unwrap());
}

#[test]
fn a_job_of_the_first_second_starts_at_once_by_our_rules() {
    let text = "name,time,application,num_replicas,batch_size\na,0,ncf,1,32768\n";
    let report = run(PolicyKind::Static, Rules::Own, &Workload::parse(text).unwrap());
    // 30 s of restart, and 33 s of training on one GPU.
    assert!((60.0..66.0).contains(&report.jobs[0].jct_s()), "{}", report.jobs[0].jct_s());
}

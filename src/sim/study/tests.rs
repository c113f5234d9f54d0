use super::*;

const STUDY: &str = "
space: {lr: {log: [1e-3, 1]}, width: [48, 64, 80]}
objective: {maximize: accuracy}
trial: {trainable: cifar10, epochs: 100, max_batch: 4Ki, max_batch_per_gpu: 1Ki}
search: {trials: 8, parallel: 2}
";

fn study(change: impl FnOnce(&mut Study)) -> Study {
    let mut study = Study::from_yaml("study.yaml", STUDY).expect("it is a study");
    change(&mut study);
    study
}

fn simulated(cluster: &str) -> SimulatedCluster {
    SimulatedCluster::new(Cluster::parse(cluster).expect("it is a cluster"))
}

/// The 380 s of `Modelled`, and the tenth of a second to form a group; then again.
#[test]
fn trials_with_fixed_gpus_and_batch_take_as_long_as_was_measured() {
    let fixed = Study::from_yaml(
        "study.yaml",
        "
space: {lr: {log: [1e-3, 1]}}
objective: {minimize: error}
trial: {trainable: cifar10, epochs: 100, batch_per_gpu: 128}
search: {trials: 2, parallel: 1}
scheduler: {policy: static}
",
    )
    .expect("it is a study");
    let report = simulate_study(&fixed, &simulated("1x4xa100")).unwrap();
    let [first, second] = &report.trials[..] else { panic!("{report:?}") };
    assert!((first.ended_s / 380.1 - 1.0).abs() < 0.005, "{report:?}");
    assert!((second.ended_s - 2.0 * first.ended_s).abs() < 1e-6 && report.makespan_s >= second.ended_s);
    assert!((report.gpu_hours() - 4.0 * report.makespan_s / 3600.0).abs() < 1e-9);
    assert_eq!((report.reallocations(), second.created_s), (0.0, first.ended_s));
    // An objective of another name is as much as a loss.
    assert!(report.trials.iter().all(|trial| trial.values.as_ref().is_some_and(|values| values[0] > 0.0)));
}

#[test]
fn a_study_depends_on_nothing_but_its_seed() {
    let run =
        |seed| simulate_study(&study(|study| study.search.seed = seed), &simulated("1x8xa100")).unwrap();
    assert_eq!(run(3), run(3));
    assert_ne!(run(3), run(4));
}

/// All that makes it fast pays: less time than with any fixed batch, and most when moves are cheap.
#[test]
fn goodput_is_faster_than_fixed_batches() {
    use crate::alloc::PolicyKind::{Goodput, Static};
    let makespan = |policy, batch: Option<u32>, realloc_s| {
        let study = study(|study| {
            study.search.algorithm = crate::space::Algorithm::Random;
            (study.scheduler.policy, study.trial.batch_per_gpu) = (policy, batch);
        });
        let simulated = SimulatedCluster { realloc_s, ..simulated("1x8xa100") };
        simulate_study(&study, &simulated).unwrap().makespan_s
    };
    let ours = makespan(Goodput, None, 0.1);
    for batch in [128, 256, 512, 1024] {
        let fixed = makespan(Static, Some(batch), 0.1);
        assert!(ours < 0.95 * fixed, "{batch}: {ours} {fixed}");
    }
    assert!(ours < makespan(Goodput, None, 30.0));
}

#[test]
fn what_cannot_be_simulated_says_why() {
    let error =
        |study: &Study, cluster: &str| simulate_study(study, &simulated(cluster)).unwrap_err().to_string();
    let large = study(|study| study.trial.min_gpus = 9);
    assert!(error(&large, "1x8xa100").contains("`trial.min_gpus` is 9, the cluster has 8 GPUs"));
    let spread = study(|study| study.trial.min_gpus = 9);
    assert!(error(&spread, "8x1xa100,8x1xt4").contains("no trial ever gets GPUs that it can use"));
    let other = error(&study(|_| ()), "1x8xh100");
    assert!(
        other.contains("nothing was measured on GPUs of type h100; expected one of a100, rtx2080ti, t4"),
        "{other}"
    );
    let command = study(|study| study.trial.program = Some(Program::Command(vec!["train".to_owned()])));
    assert!(error(&command, "1x8xa100").contains("only studies with `trial.trainable`"));
    let mnist = study(|study| study.trial.program = Some(Program::Trainable("mnist".to_owned())));
    assert!(error(&mnist, "1x8xa100").contains("no measurements of `mnist`"));
    let never = SimulatedCluster { report_s: 0.0, ..simulated("1x8xa100") };
    assert!(simulate_study(&study(|_| ()), &never).is_err());
}

/// Smoothed noise lags behind, which costs next to nothing.
#[test]
fn smoothed_noise_leads_to_about_the_same_batches() {
    let makespan = |smooth_noise| {
        let study = study(|study| {
            (study.search.trials, study.search.parallel) = (4, crate::space::Parallel::Fixed(1));
            study.search.algorithm = crate::space::Algorithm::Random;
        });
        simulate_study(&study, &SimulatedCluster { smooth_noise, ..simulated("1x1xa100") })
            .unwrap()
            .makespan_s
    };
    let (exact_s, smoothed_s) = (makespan(false), makespan(true));
    assert!((smoothed_s - exact_s).abs() > 0.0 && smoothed_s < 1.03 * exact_s, "{smoothed_s} {exact_s}");
}

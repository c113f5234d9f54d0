//! Slots that move among trials while they run.

use super::*;
use crate::{
    goodput::{ComputeCost, NoiseScale, Observation, Shape, SyncCost, ThroughputParams},
    space::Parallel,
    trials::group::{Batch, FinalState},
};

fn steps_on_two(per_gpu: f64, iter_time_s: f64, steps: f64) -> Observation {
    let shape = Shape::new(2, 1).expect("two GPUs of a node");
    Observation { shape, per_gpu, accumulation: 0, iter_time_s, steps }
}

pub(super) fn refit(noise: f64, cap: u32) -> Refit {
    let sync = [SyncCost { alpha_s: 0.01, beta_s: 0.0 }; 2];
    let params = ThroughputParams::new(ComputeCost { alpha_s: 0.1, beta_s: 0.001 }, sync, 1.0);
    let models = BTreeMap::from([(GpuType::new("t4").expect("a name"), params.expect("they are fine"))]);
    Refit { models, noise: Some(NoiseScale::new(noise).expect("it is finite")), cap, ..Refit::default() }
}

fn reshape(trial: u32, generation: u32, to: &[(u32, u32)]) -> Command {
    let (generation, slots, batch) =
        (Generation(generation), slots(to), Batch { total: 64, accumulation: 0 });
    let command = GroupCommand::Reshape { generation, slots, batch };
    Command::Group { trial: TrialId(trial), command }
}

impl Scene {
    /// A trial is to become another group, with the state of these slots.
    fn assert_reshape(
        &self,
        command: &Command,
        trial: u32,
        generation: u32,
        to: &[(u32, u32)],
        from: &[(u32, u32)],
    ) {
        assert_eq!(*command, reshape(trial, generation, to));
        assert_eq!(self.trial(trial).phase.holders(), slots(from));
    }
}

#[test]
fn a_trial_is_suggested_fitted_planned_and_launched() {
    let mut scene = Scene::with_nodes(ELASTIC, &[4]);
    let (facts, commands) = scene.suggest();
    assert_eq!(kinds(&facts), ["trial_created"]);
    assert!(
        matches!(
            commands[..],
            [
                Command::Suggest(SuggestRequest { trial: TrialId(1), .. }),
                Command::Allocate(AllocatorRequest::Fit { trial: TrialId(0), .. })
            ]
        ),
        "{commands:?}"
    );
    assert_eq!(scene.fit(0, None), (vec![], vec![]), "who comes with it is not known yet");
    scene.suggest();
    let (facts, commands) = scene.fit(1, None);
    let [Command::Allocate(AllocatorRequest::Solve { snapshot, .. })] = &commands[..] else {
        panic!("{commands:?}")
    };
    assert_eq!((facts.len(), snapshot.trials.len(), snapshot.cluster.total_gpus()), (0, 2, 4));
    let (facts, commands) = scene.plan(&[(0, &[(0, 2)])]);
    assert_eq!(kinds(&facts), ["plan_adopted", "trial_started"]);
    let launch = Command::Group {
        trial: TrialId(0),
        command: GroupCommand::Launch(Launch {
            generation: Generation(1),
            slots: slots(&[(0, 0), (0, 1)]),
            params: scene.trial(0).params.clone(),
            batch: Some(Batch { total: 64, accumulation: 0 }),
            checkpoint: None,
        }),
    };
    assert_eq!(commands, [launch, Command::WakeAt { at_s: 60.0 }]);
    let ready = vec![Fact::GroupFormed { trial: TrialId(0), generation: Generation(1) }];
    assert_eq!(scene.ready(0, 1), (ready, vec![]));
}

#[test]
fn a_plan_that_changes_nothing_is_no_fact() {
    let mut scene = Scene::two_running(2);
    scene.ask_for_plan();
    let (facts, commands) = scene.plan(&[(0, &[(0, 2)]), (1, &[(1, 2)])]);
    assert_eq!((facts, commands), (vec![], vec![Command::WakeAt { at_s: 120.0 }]));
    scene.ask_for_plan();
    let revision = scene.engine.pending.solve.expect("it has asked");
    let failed = Input::PlanSolved { revision, answer: Err("it took too long".to_owned()), places: None };
    assert_eq!(scene.input(failed), (vec![], vec![Command::WakeAt { at_s: 180.0 }]), "the old one stays");
}

/// A slot goes from one trial to another: the one that gets it waits until the other has given it up.
#[test]
fn a_slot_is_handed_over() {
    let mut scene = Scene::two_running(2);
    scene.ask_for_plan();
    let (facts, commands) = scene.plan(&[(0, &[(0, 2), (1, 1)]), (1, &[(1, 1)])]);
    assert_eq!(kinds(&facts), ["plan_adopted", "trial_started"]);
    scene.assert_reshape(&commands[0], 1, 2, &[(1, 0)], &[(1, 0), (1, 1)]);
    let (facts, commands) = scene.ready(1, 2);
    assert_eq!(kinds(&facts), ["group_formed", "trial_started"]);
    let mut to_three = reshape(0, 2, &[(0, 0), (0, 1), (1, 1)]);
    if let Command::Group { command: GroupCommand::Reshape { batch, .. }, .. } = &mut to_three {
        batch.total = 66;
    }
    assert_eq!(commands, [to_three]);
    assert_eq!(scene.trial(0).phase.holders(), slots(&[(0, 0), (0, 1)]));
    assert_eq!(scene.trial(0).reallocations, 1);
}

/// Both wait for the other's slots: the first one writes its state to disk and makes room.
#[test]
fn a_circle_is_broken_by_a_pause() {
    let mut scene = Scene::two_running(2);
    scene.ask_for_plan();
    let (facts, commands) = scene.plan(&[(0, &[(1, 2)]), (1, &[(0, 2)])]);
    assert_eq!(kinds(&facts), ["plan_adopted", "trial_pausing"]);
    assert_eq!(
        commands[0],
        Command::Group { trial: TrialId(0), command: GroupCommand::Stop(FinalState::Saved) }
    );
    let checkpoint = Checkpoint { name: "0/1".to_owned(), epochs: 2.5 };
    let paused = Input::group(TrialId(0), Generation(1), GroupEvent::Paused(checkpoint.clone()));
    let (facts, commands) = scene.input(paused);
    assert_eq!(kinds(&facts), ["trial_paused", "trial_started"]);
    assert_eq!(commands.len(), 1);
    scene.assert_reshape(&commands[0], 1, 2, &[(0, 0), (0, 1)], &[(1, 0), (1, 1)]);
    let (facts, commands) = scene.ready(1, 2);
    assert_eq!(kinds(&facts), ["group_formed", "trial_started"]);
    let [
        Command::Group {
            command: GroupCommand::Launch(Launch { generation: Generation(2), checkpoint: Some(from), .. }),
            ..
        },
    ] = &commands[..]
    else {
        panic!("{commands:?}")
    };
    assert_eq!(*from, checkpoint);
}

/// Where something can be kept, nobody has to go to disk.
#[test]
fn a_circle_is_broken_by_giving_up_what_is_not_kept() {
    let mut scene = Scene::two_running(2);
    scene.ask_for_plan();
    let (_, commands) = scene.plan(&[(0, &[(0, 1), (1, 1)]), (1, &[(0, 1), (1, 1)])]);
    scene.assert_reshape(&commands[0], 0, 2, &[(0, 0)], &[(0, 0), (0, 1)]);
    let (_, commands) = scene.ready(0, 2);
    assert_eq!(commands.len(), 1);
    scene.assert_reshape(&commands[0], 1, 2, &[(0, 1), (1, 0)], &[(1, 0), (1, 1)]);
    let (_, commands) = scene.ready(1, 2);
    assert_eq!(commands.len(), 1);
    scene.assert_reshape(&commands[0], 0, 3, &[(0, 0), (1, 1)], &[(0, 0)]);
}

/// A trial that only gets more has nothing to release, and forming again would not help anybody.
#[test]
fn a_circle_is_not_broken_by_who_only_wants_more() {
    let three = ELASTIC.replace("parallel: 2", "parallel: 3");
    let mut scene = Scene::with_nodes(&three, &[2, 2, 2]);
    for trial in 0..3 {
        scene.suggest();
        scene.fit(trial, None);
    }
    scene.plan(&[(0, &[(0, 2)]), (1, &[(1, 2)]), (2, &[(2, 2)])]);
    for trial in 0..3 {
        scene.ready(trial, 1);
    }
    scene.ask_for_plan();
    let (facts, commands) = scene.plan(&[(0, &[(0, 2), (1, 1)]), (1, &[(2, 2)]), (2, &[(1, 1)])]);
    assert_eq!(kinds(&facts), ["plan_adopted", "trial_pausing"]);
    assert_eq!(
        commands[0],
        Command::Group { trial: TrialId(1), command: GroupCommand::Stop(FinalState::Saved) }
    );
}

#[test]
fn a_trial_without_a_share_waits_on_disk_and_comes_back() {
    let mut scene = Scene::two_running(1);
    scene.ask_for_plan();
    let (facts, _) = scene.plan(&[(0, &[]), (1, &[(1, 1)])]);
    assert_eq!(kinds(&facts), ["plan_adopted", "trial_pausing"]);
    let checkpoint = Checkpoint { name: "0/1".to_owned(), epochs: 2.5 };
    scene.input(Input::group(TrialId(0), Generation(1), GroupEvent::Paused(checkpoint)));
    assert_eq!((scene.trial(0).phase.name(), scene.trial(0).slots().len()), ("waiting", 0));
    scene.ask_for_plan();
    let (facts, commands) = scene.plan(&[(0, &[(0, 1)]), (1, &[(1, 1)])]);
    assert_eq!(kinds(&facts), ["plan_adopted", "trial_started"]);
    assert!(matches!(
        commands[0],
        Command::Group {
            command: GroupCommand::Launch(Launch { generation: Generation(2), checkpoint: Some(_), .. }),
            ..
        }
    ));
}

#[test]
fn a_plan_for_what_is_gone_is_adopted_as_far_as_it_goes() {
    let mut scene = Scene::two_running(2);
    scene.ask_for_plan();
    scene.input(Input::NodeLost { node: NodeId(1), reason: "power".to_owned() });
    let (facts, commands) = scene.plan(&[(0, &[(0, 1)]), (1, &[(1, 1), (0, 1)])]);
    assert_eq!(kinds(&facts), ["plan_adopted", "trial_started"]);
    scene.assert_reshape(&commands[0], 0, 2, &[(0, 0)], &[(0, 0), (0, 1)]);
    assert!(
        matches!(commands[1], Command::Allocate(AllocatorRequest::Solve { .. })),
        "and it asks again: {commands:?}"
    );
    assert_eq!(scene.trial(1).target, slots(&[(0, 1)]));
}

#[test]
fn the_batch_follows_the_noise() {
    let mut scene = Scene::two_running(2);
    let (trial, generation) = (TrialId(0), Generation(1));
    let steps = vec![steps_on_two(32.0, 0.142, 50.0)];
    let report = Report { number: 1, epochs: 0.5, steps, ..Report::default() };
    let (facts, commands) = scene.input(Input::group(trial, generation, GroupEvent::Reported(report)));
    assert_eq!(kinds(&facts), ["measured"]);
    assert!(
        matches!(commands[..], [Command::Allocate(AllocatorRequest::Fit { trial: TrialId(0), .. })]),
        "{commands:?}"
    );
    let (facts, commands) = scene.fit(0, Some(refit(5000.0, 4)));
    assert_eq!(kinds(&facts), ["refitted", "retuned"]);
    let [
        Command::Group { command: GroupCommand::Retune { batch }, .. },
        Command::Allocate(AllocatorRequest::Solve { .. }),
    ] = &commands[..]
    else {
        panic!("{commands:?}")
    };
    assert_eq!(batch.total, 512, "as large as the study allows");
    // A little less noise does not change it again.
    scene.plan(&[(0, &[(0, 2)]), (1, &[(1, 2)])]);
    scene.now_s += 15.0;
    let report =
        Report { number: 2, epochs: 0.6, steps: vec![steps_on_two(256.0, 0.366, 9.0)], ..Report::default() };
    scene.input(Input::group(trial, generation, GroupEvent::Reported(report)));
    assert_eq!(kinds(&scene.fit(0, Some(refit(4900.0, 4))).0), ["refitted"]);
}

#[test]
fn what_is_known_decides_the_first_batch() {
    let mut scene = Scene::with_nodes(ELASTIC, &[4]);
    scene.suggest();
    scene.fit(0, Some(refit(5000.0, 4)));
    scene.suggest();
    scene.fit(1, None);
    let (_, commands) = scene.plan(&[(0, &[(0, 4)])]);
    let [Command::Group { command: GroupCommand::Launch(Launch { batch: Some(batch), .. }), .. }, ..] =
        &commands[..]
    else {
        panic!("{commands:?}")
    };
    assert_eq!(batch.total, 512);
}

#[test]
fn a_stopped_study_keeps_the_state_of_its_trials() {
    let mut scene = Scene::two_running(2);
    let (facts, commands) = scene.input(Input::StopRequested);
    assert_eq!(kinds(&facts), ["stop_requested", "trial_pausing", "trial_pausing"]);
    let stop =
        |trial| Command::Group { trial: TrialId(trial), command: GroupCommand::Stop(FinalState::Saved) };
    assert_eq!(commands, [stop(0), stop(1)]);
    let checkpoint = Checkpoint { name: "0/1".to_owned(), epochs: 2.5 };
    scene.input(Input::group(TrialId(0), Generation(1), GroupEvent::Paused(checkpoint)));
    // One that fails on the way out goes back to its last checkpoint.
    let (facts, commands) = scene.input(Input::group(
        TrialId(1),
        Generation(1),
        GroupEvent::Failed { reason: "no space left".to_owned(), cause: FailureCause::Infrastructure },
    ));
    assert_eq!(kinds(&facts), ["trial_interrupted"]);
    assert_eq!(commands, [Command::Finished(Outcome::Stopped)]);
    assert_eq!(scene.trial(0).checkpoint.as_ref().map(|checkpoint| checkpoint.epochs), Some(2.5));
}

/// The question of each policy has an answer, and the answer of `static` is the same share for all.
#[test]
fn every_policy_answers() {
    for policy in ["goodput", "pollux", "static", "optimus", "tiresias"] {
        let scene = Scene::two_running(2);
        let mut study = study(&ELASTIC.replace("interval: 60s", &format!("policy: {policy}")));
        study.search.parallel = Parallel::Fixed(2);
        let mut snapshot = scene.engine.snapshot(10.0);
        snapshot.trials[0].fit = Some(refit(1000.0, 4));
        let problem = snapshot.problem(&study).expect("it is a good question");
        let mut solving = SolveService::new(&study).expect("it is a policy");
        let plan = solving.solve(1, &snapshot).expect("it has an answer");
        plan.check(&problem).expect("it keeps the rules");
        if policy == "static" {
            let shares: Vec<u32> = plan.placements.iter().map(|trial| trial.allocation.gpus()).collect();
            assert_eq!(shares, [2, 2]);
        }
    }
}

/// What a generation has measured up to its end counts, even if it comes after the order to change.
#[test]
fn a_report_that_crosses_a_change_is_not_lost() {
    let mut scene = Scene::two_running(2);
    scene.report(0, 1, 1, (0.5, 0.5));
    scene.ask_for_plan();
    scene.plan(&[(0, &[(0, 1)]), (1, &[(1, 2)])]);
    assert_eq!((scene.trial(0).generation, scene.trial(0).phase.name()), (Generation(2), "forming"));
    assert_eq!(scene.report(0, 1, 1, (0.5, 0.5)).0, [], "it came before");
    let (facts, _) = scene.report(0, 1, 2, (1.0, 0.25));
    assert_eq!(kinds(&facts), ["measured"]);
    assert_eq!(
        (scene.trial(0).epochs, scene.trial(0).phase.name()),
        (1.0, "forming"),
        "it is not together yet"
    );
    assert_eq!(kinds(&scene.ready(0, 2).0), ["group_formed"]);
    assert_eq!(scene.report(0, 1, 3, (1.1, 0.2)).0, [], "it is long gone");
    assert_eq!(kinds(&scene.report(0, 2, 1, (1.2, 0.2)).0), ["measured"]);
}

#[test]
fn nothing_is_decided_before_a_new_trial_is_known() {
    let mut scene = Scene::two_running(2);
    let done = Input::group(TrialId(0), Generation(1), GroupEvent::Finished(loss(0.5)));
    let (_, commands) = scene.input(done);
    assert!(
        matches!(commands[..], [Command::Suggest(SuggestRequest { trial: TrialId(2), .. })]),
        "{commands:?}"
    );
    scene.suggest();
    let (_, commands) = scene.fit(2, None);
    let [Command::Allocate(AllocatorRequest::Solve { snapshot, .. })] = &commands[..] else {
        panic!("{commands:?}")
    };
    assert_eq!(snapshot.trials.iter().map(|trial| trial.id.0).collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn gpus_are_divided_again_when_gradients_have_become_noisier() {
    let mut scene = Scene::two_running(2);
    let report = |scene: &mut Scene, number, noise| {
        let noise = Some(NoiseScale::new(noise).unwrap());
        let report = Report { number, epochs: 1.0, noise, ..Report::default() };
        let (_, commands) =
            scene.input(Input::group(TrialId(0), Generation(1), GroupEvent::Reported(report)));
        commands.iter().any(|command| matches!(command, Command::Allocate(AllocatorRequest::Solve { .. })))
    };
    assert!(report(&mut scene, 1, 100.0), "nothing was known of it at the last decision");
    scene.plan(&[(0, &[(0, 2)]), (1, &[(1, 2)])]);
    assert!(!report(&mut scene, 2, 140.0));
    assert!(report(&mut scene, 3, 160.0));
}

/// A trial that runs alone would have to wait for the next interval: nothing else happens.
#[test]
fn gpus_are_divided_again_when_gradients_are_noisier_than_was_expected_of_a_new_trial() {
    let mut scene = Scene::with_nodes(&ELASTIC.replace("parallel: 2", "parallel: 1"), &[4]);
    scene.suggest();
    scene.fit(0, Some(refit(100.0, 4)));
    scene.plan(&[(0, &[(0, 2)])]);
    scene.ready(0, 1);
    let report = |scene: &mut Scene, number, noise| {
        let noise = Some(NoiseScale::new(noise).unwrap());
        let report = Report { number, epochs: 1.0, noise, ..Report::default() };
        scene.input(Input::group(TrialId(0), Generation(1), GroupEvent::Reported(report)));
        scene.engine.pending.solve.is_some()
    };
    assert!(!report(&mut scene, 1, 140.0));
    assert!(report(&mut scene, 2, 160.0));
}

#[test]
fn where_nothing_is_immediate_decisions_wait_for_the_interval() {
    let mut scene =
        Scene::with_nodes(&ELASTIC.replace("interval: 60s", "interval: 60s, immediate: false"), &[4]);
    scene.suggest();
    scene.fit(0, None);
    scene.suggest();
    let (_, commands) = scene.fit(1, None);
    assert_eq!(commands, []);
    assert_eq!(scene.engine.pending.wake_s, Some(60.0));
    scene.ask_for_plan();
    scene.plan(&[(0, &[(0, 2)]), (1, &[(0, 2)])]);
    scene.ready(0, 1);
    // A trial ends, and its GPUs wait too.
    scene.now_s = 70.0;
    scene.input(Input::group(TrialId(0), Generation(1), GroupEvent::Finished(loss(0.5))));
    scene.suggest();
    let (_, commands) = scene.fit(2, None);
    assert_eq!(commands, []);
    scene.now_s = 119.0;
    assert_eq!(scene.input(Input::Tick).1, []);
    scene.now_s = 120.0;
    assert!(matches!(scene.input(Input::Tick).1[..], [Command::Allocate(AllocatorRequest::Solve { .. })]));
}

#[test]
fn a_fixed_batch_for_each_gpu_stays() {
    let fixed = ELASTIC.replace("max_batch: 512", "batch_per_gpu: 96, max_batch_per_gpu: 64");
    let mut scene = Scene::with_nodes(&fixed, &[4]);
    scene.suggest();
    scene.suggest();
    scene.fit(1, None);
    scene.fit(0, Some(refit(200.0, 4)));
    let (_, commands) = scene.plan(&[(0, &[(0, 2)]), (1, &[(0, 1)])]);
    for (command, gpus) in commands[..2].iter().zip([2, 1]) {
        let Command::Group { command: GroupCommand::Launch(Launch { batch, .. }), .. } = command else {
            panic!("{command:?}")
        };
        assert_eq!(*batch, Some(Batch { total: gpus * 48 * 2, accumulation: 1 }));
    }
}

/// A change of GPUs is judged by what it brings until the next decision or the end of the trial.
#[test]
fn changes_have_to_pay_off_before_the_end() {
    let mut scene = Scene::two_running(2);
    scene.now_s = 30.0;
    scene.report(0, 1, 1, (7.5, 0.5));
    scene.now_s = 60.0;
    let (_, commands) = scene.input(Input::Tick);
    let [Command::Allocate(AllocatorRequest::Solve { snapshot, .. })] = &commands[..] else {
        panic!("{commands:?}")
    };
    // 7.5 of 8 epochs in 60 s; of the other trial nothing is known.
    let horizons: Vec<f64> = snapshot.trials.iter().map(|trial| trial.horizon_s).collect();
    assert!((horizons[0] - 4.0).abs() < 1e-9 && (horizons[1] - 15.0).abs() < 1e-9, "{horizons:?}");
}

/// How many slots a trial has in the end that reports steps of so many seconds on one GPU, in a study with a batch that does not change.
fn slots_with_one_batch(step_s: f64) -> usize {
    let study = study(
        "
space: {x: {float: [0, 1]}}
objective: {minimize: loss}
trial: {trainable: toy, epochs: 1000, initial_batch: 32, max_batch: 32}
search: {trials: 1, algorithm: random}
",
    );
    let mut engine = Engine::new(&study, TrialKind::Elastic).expect("it is a good study");
    let mut services = Services::new(&study).expect("it can be searched");
    let mut inputs = vec![Input::Started, node_joined(0, 2)];
    for number in 1..=30 {
        let now_s = 10.0 * f64::from(number);
        while !inputs.is_empty() {
            let step = engine.handle(inputs.remove(0), now_s);
            step.facts.iter().for_each(|entry| services.apply(entry).expect("it understands"));
            for command in step.commands {
                inputs.extend(services.answer(&command));
                match command {
                    Command::Group { command: GroupCommand::Launch(launch), .. } => {
                        assert_eq!(launch.slots.len(), 1, "nothing was explored yet");
                        inputs.push(Input::group(TrialId(0), launch.generation, GroupEvent::Formed));
                    }
                    Command::Group { command: GroupCommand::Reshape { slots, .. }, .. } => {
                        return slots.len();
                    }
                    _ => {}
                }
            }
        }
        let (shape, per_gpu, accumulation) = (Shape::single(), 32.0, 0);
        let steps = Observation { shape, per_gpu, accumulation, iter_time_s: step_s, steps: 20.0 };
        let noise = NoiseScale::new(1e4).ok();
        let report = Report { number, epochs: now_s, steps: vec![steps], noise, ..Report::default() };
        inputs.push(Input::group(TrialId(0), Generation(1), GroupEvent::Reported(report)));
        inputs.push(Input::Tick);
    }
    1
}

/// From one batch on one GPU it cannot be told how a trial scales: half of a step is taken to become shorter, which is a gain of a third on
/// two GPUs. It has to be tried, although nobody knows yet what a change costs; once it was a matter of rounding.
#[test]
fn a_batch_that_does_not_change_is_tried_on_two_gpus() {
    let tried = (1..=20).map(|tenths| slots_with_one_batch(0.013 * f64::from(tenths)));
    assert_eq!(tried.collect::<Vec<_>>(), [2; 20]);
}

//! One trial, with commands by hand.

use std::fs;

use tokio::time::Instant;

use super::{TRIAL, World, batch, form, since, slot};
use crate::{
    goodput::Shape,
    ids::{Round, StudyId, TrialId},
    sim::Modelled,
    trials::{
        engine::FailureCause,
        group::{Batch, FinalState, Form, Task, WorkerCommand, WorkerEvent},
    },
};

/// Seconds of a step as it was measured.
fn step_s(world: &World, placement: &[u32], per_gpu: f64) -> f64 {
    let Task { trainable, params, seed, epochs, .. } = world.task();
    let model = Modelled::new(&trainable, &params, seed, epochs).unwrap();
    model.step_time_s(&world.gpu_type, placement, per_gpu, 0).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_training_takes_as_long_as_its_steps() {
    // Timers are exact to a millisecond, which is 0.1 emulated seconds at the smaller scale.
    for (time_scale, exact_s) in [(1.0, 0.005), (0.01, 0.2)] {
        let mut world = World::new(1, time_scale);
        let before = Instant::now();
        world.prepare(&[0]).await;
        assert!((since(&world, before) - 1.0).abs() <= exact_s);
        let before = Instant::now();
        assert_eq!(world.form(form(1, &[0], &[], 128)).await, 0);
        assert!((since(&world, before) - 0.5).abs() <= exact_s);
        let (before, mut reports, mut checkpoints) = (Instant::now(), Vec::new(), Vec::new());
        let metrics = loop {
            match world.next(1e6).await.unwrap().1 {
                WorkerEvent::Reported(report) => reports.push((since(&world, before), *report)),
                WorkerEvent::Checkpointed { steps, .. } => checkpoints.push(steps),
                WorkerEvent::Finished { trial: TRIAL, round: Round(1), metrics } => break metrics,
                other => panic!("{other:?}"),
            }
        };
        let took_s = since(&world, before);
        let (_, last) = reports.last().unwrap();
        let step_s = step_s(&world, &[1], 128.0);
        assert!((took_s - last.steps as f64 * step_s).abs() <= exact_s, "{took_s} for {} steps", last.steps);
        // 2 epochs at full efficiency.
        assert_eq!((last.steps, last.examples), (782, 782 * 128));
        assert_eq!(last.evaluations.last().unwrap().values, metrics);
        assert_eq!(checkpoints.last(), Some(&782));
        // One every 5 seconds, at the end of a step, and one at the end.
        let (min, max) = (took_s / (5.0 + step_s + exact_s), took_s / 5.0);
        let saved = (checkpoints.len() - 1) as f64;
        assert!((min.floor()..=max).contains(&saved), "{saved} in {took_s} s");
        let evaluated: Vec<f64> = reports
            .iter()
            .flat_map(|(_, report)| &report.evaluations)
            .map(|metric| (2.0 * metric.epochs).floor() / 2.0)
            .collect();
        assert_eq!(evaluated, [0.5, 1.0, 1.5, 2.0]);
        // One each second, at the end of a step, and one for each evaluation.
        assert!(reports.windows(2).all(|two| two[1].0 - two[0].0 <= 1.0 + step_s + exact_s));
        assert!(reports.len() as f64 <= took_s + 4.0);
        for (_, report) in &reports {
            assert_eq!(report.batch, Some(batch(128)));
            assert!(report.noise.is_some_and(|noise| noise.var > 0.0));
            for times in &report.step_times {
                assert_eq!((times.shape, times.accumulation), (Shape::single(), 0));
                assert!((times.per_gpu - 128.0).abs() < 1e-9);
                let error = times.iter_time_s / step_s - 1.0;
                assert!(error.abs() <= 0.01 && error != 0.0, "{error}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_group_grows_shrinks_and_moves_without_losing_a_step() {
    let mut world = World::new(9, 1.0);
    assert_eq!(world.begin(&[0], 128).await, 0);
    let before = world.report().await;
    // Growth, over two nodes: the placement is four GPUs and one.
    world.prepare(&[1, 2, 3, 4]).await;
    let all: Vec<u32> = vec![0, 1, 2, 3, 4];
    world.send_all(&all, &WorkerCommand::Form(form(2, &all, &[], 640)));
    let (grown, pause) = world
        .find(|slot, event| match event {
            WorkerEvent::Formed { round: Round(2), steps, pause, .. } if slot == 0 => Some((*steps, *pause)),
            _ => None,
        })
        .await;
    assert!(grown >= before.steps);
    assert!((pause.total_s - 0.1).abs() < 0.01 && pause.hand_over_s <= pause.total_s, "{pause:?}");
    let report = world.report().await;
    assert_eq!((report.round, report.batch), (Round(2), Some(batch(640))));
    let times = report.step_times[0];
    assert_eq!(times.shape, Shape::new(5, 2).unwrap());
    assert!((times.iter_time_s / step_s(&world, &[4, 1], 128.0) - 1.0).abs() <= 0.01);
    // Shrink: who leaves is free.
    world.send_all(&all, &WorkerCommand::Form(form(3, &[0, 1], &[], 256)));
    let mut free = Vec::new();
    let (mut formed, mut shrunk) = (0, 0);
    while free.len() < 3 || formed < 2 {
        match world.next(10.0).await.unwrap() {
            (slot, WorkerEvent::Released { trial: TRIAL }) => free.push(slot),
            (_, WorkerEvent::Formed { round: Round(3), steps, .. }) => {
                formed += 1;
                shrunk = steps;
            }
            (0, WorkerEvent::Reported(last)) => assert!(last.steps >= report.steps),
            (slot, other) => panic!("{slot}: {other:?}"),
        }
    }
    free.sort_unstable();
    assert_eq!(free, [2, 3, 4]);
    assert!(shrunk >= report.steps);
    // Elsewhere: one of the old ones hands over.
    let report = world.report().await;
    world.prepare(&[8]).await;
    world.send_all(&[0, 1, 8], &WorkerCommand::Form(form(4, &[8], &[1], 128)));
    // Who hands over is free before the pause is over.
    world
        .find(|slot, event| (slot == 1 && *event == WorkerEvent::Released { trial: TRIAL }).then_some(()))
        .await;
    let formed = |slot: u32, event: &WorkerEvent| match event {
        WorkerEvent::Formed { round: Round(4), steps, .. } if slot == 8 => Some(*steps),
        _ => None,
    };
    let moved = world.find(formed).await;
    assert!(moved >= report.steps);
    let last = world.report().await;
    assert!(last.steps > moved && last.round == Round(4));
    assert_eq!(last.step_times[0].shape.nodes(), 1);
}

#[tokio::test(start_paused = true)]
async fn another_batch_counts_from_the_next_step_on() {
    let mut world = World::new(2, 1.0);
    world.begin(&[0, 1], 128).await;
    let before = world.report().await;
    let other = Batch { total: 1024, accumulation: 1 };
    for round in [0, 1, 2] {
        // Only its own group is meant.
        let (round, batch) = (Round(round), if round == 1 { other } else { batch(64) });
        world.send_all(&[0, 1], &WorkerCommand::Retune { trial: TRIAL, round, batch });
    }
    let first = world.report().await;
    assert_eq!(first.batch, Some(other));
    let after = world.report().await;
    let steps = after.steps - first.steps;
    assert_eq!(after.examples - first.examples, steps * 1024);
    assert!(before.examples == before.steps * 128 && steps > 0);
    let times = after.step_times[0];
    assert_eq!((after.step_times.len(), times.shape.gpus(), times.accumulation), (1, 2, 1));
    assert!((times.per_gpu - 256.0).abs() < 1e-9);
    // A step of a larger batch is worth less for each example, but more in all.
    let per_example = |epochs: f64, examples: u64| epochs / examples as f64;
    assert!(
        per_example(after.epochs - first.epochs, steps * 1024) < per_example(before.epochs, before.examples)
    );
    assert!(after.epochs - first.epochs > steps as f64 * before.epochs / before.steps as f64);
}

#[tokio::test(start_paused = true)]
async fn a_released_trial_goes_on_from_its_checkpoint() {
    let mut world = World::new(3, 1.0);
    world.begin(&[0, 1], 256).await;
    world.report().await;
    world.send_to(0, WorkerCommand::Release { trial: TRIAL, state: FinalState::Saved });
    world.send_to(1, WorkerCommand::Release { trial: TRIAL, state: FinalState::Discarded });
    let saved = world
        .find(|slot, event| match event {
            WorkerEvent::Checkpointed { trial: TRIAL, steps } => Some((slot, *steps)),
            _ => None,
        })
        .await;
    assert_eq!(saved.0, 0);
    world
        .find(|slot, event| (slot == 0 && *event == WorkerEvent::Released { trial: TRIAL }).then_some(()))
        .await;
    // Elsewhere, later, with other members.
    world.prepare(&[1, 2]).await;
    assert_eq!(world.form(form(9, &[2, 1], &[], 256)).await, saved.1);
    let report = world.report().await;
    assert!(report.steps > saved.1 && report.examples == report.steps * 256);
}

/// Has one worker save the trial and forget it.
async fn save(world: &mut World, round: u64) -> u64 {
    world.prepare(&[0]).await;
    world.form(form(round, &[0], &[], 256)).await;
    world.report().await;
    world.send_to(0, WorkerCommand::Release { trial: TRIAL, state: FinalState::Saved });
    let is_saved = |_, event: &WorkerEvent| match event {
        WorkerEvent::Checkpointed { trial: TRIAL, steps } => Some(*steps),
        _ => None,
    };
    world.find(is_saved).await
}

/// Has one worker resume the trial. Gives what it says of checkpoints, if anything, and where it starts.
async fn resume(world: &mut World, round: u64) -> (Option<String>, u64) {
    world.prepare(&[0]).await;
    world.send_to(0, WorkerCommand::Form(form(round, &[0], &[], 256)));
    let mut warning = None;
    let steps = world
        .find(|_, event| match event {
            WorkerEvent::CheckpointFailed { trial: TRIAL, reason } => {
                warning = Some(reason.clone());
                None
            }
            WorkerEvent::Formed { steps, .. } => Some(*steps),
            _ => None,
        })
        .await;
    (warning, steps)
}

/// The checkpoints of the trial, the last one first.
fn checkpoints(world: &World) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(world.task().checkpoint).expect("a folder");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "checkpoint"));
    paths.sort();
    paths.reverse();
    paths
}

fn damage(path: &std::path::Path) {
    let mut bytes = fs::read(path).expect("a checkpoint");
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    fs::write(path, bytes).expect("it can be written");
}

#[tokio::test(start_paused = true)]
async fn a_damaged_checkpoint_is_told_of_and_the_one_before_it_resumed_from() {
    let mut world = World::new(1, 1.0);
    let first = save(&mut world, 1).await;
    let second = save(&mut world, 2).await;
    assert!(second > first);
    let both = checkpoints(&world);
    assert_eq!(both.len(), 2);
    damage(&both[0]);
    let (warning, steps) = resume(&mut world, 3).await;
    assert_eq!(steps, first);
    let warning = warning.expect("the user is told");
    let expected =
        format!("is damaged: its checksum is wrong; the trial resumes from the one of step {first}");
    assert!(warning.ends_with(&expected), "{warning}");
    // And it trains.
    assert!(world.report().await.steps > first);
}

#[tokio::test(start_paused = true)]
async fn a_trial_without_a_whole_checkpoint_starts_over() {
    let mut world = World::new(1, 1.0);
    save(&mut world, 1).await;
    save(&mut world, 2).await;
    for path in checkpoints(&world) {
        damage(&path);
    }
    let (warning, steps) = resume(&mut world, 3).await;
    assert_eq!(steps, 0);
    let warning = warning.expect("the user is told");
    assert!(warning.ends_with("; the trial starts from the beginning"), "{warning}");
}

#[tokio::test(start_paused = true)]
async fn what_an_earlier_version_or_another_study_has_left_is_not_resumed_from() {
    let mut world = World::new(1, 1.0);
    // As earlier versions wrote it.
    let state =
        r#"{"emulated":"cifar10","state":{"steps":452,"examples":211072,"useful":200351.4,"evaluations":5}}"#;
    fs::write(world.task().checkpoint, state).expect("a file");
    let (warning, steps) = resume(&mut world, 1).await;
    assert_eq!(steps, 0);
    assert!(warning.expect("the user is told").contains("has neither an identity nor a checksum"));
    // It does not keep the trial from being saved.
    world.report().await;
    world.send_to(0, WorkerCommand::Release { trial: TRIAL, state: FinalState::Saved });
    let is_released =
        |_, event: &WorkerEvent| (*event == WorkerEvent::Released { trial: TRIAL }).then_some(());
    world.find(is_released).await;
    assert_eq!(checkpoints(&world).len(), 1);
    // The same trial of another study in the same folder.
    let other = Task { study: StudyId(99), ..world.task() };
    world.send_to(0, WorkerCommand::Prepare(Box::new(other)));
    world.send_to(0, WorkerCommand::Form(form(2, &[0], &[], 256)));
    let warning = world
        .find(|_, event| match event {
            WorkerEvent::CheckpointFailed { reason, .. } => Some(reason.clone()),
            WorkerEvent::Formed { .. } => panic!("nothing was said"),
            _ => None,
        })
        .await;
    assert!(warning.contains("is of another study"), "{warning}");
    assert_eq!(world.report().await.steps.min(1), 1);
    assert_eq!(checkpoints(&world).len(), 1, "it is left alone");
}

/// A file in the way of the folder of checkpoints stands for a disk that takes nothing.
#[tokio::test(start_paused = true)]
async fn checkpoints_that_cannot_be_written_do_not_disturb_the_training() {
    let mut world = World::new(1, 1.0);
    let folder = world.task().checkpoint.join("no").join("folder");
    let task = Task { checkpoint: folder, checkpoint_every_s: 5.0, epochs: 1000.0, ..world.task() };
    world.send_to(0, WorkerCommand::Prepare(Box::new(task)));
    world.send_to(0, WorkerCommand::Form(form(1, &[0], &[], 256)));
    world.find(|_, event| matches!(event, WorkerEvent::Formed { .. }).then_some(())).await;
    fs::write(&world.task().checkpoint, "in the way").expect("a file");
    let (mut failed, mut reports) = (0, 0);
    // Five intervals at least.
    while reports < 30 {
        match world.next(1e6).await.expect("it trains").1 {
            WorkerEvent::CheckpointFailed { reason, .. } => {
                assert!(reason.contains("cannot be written to"), "{reason}");
                failed += 1;
            }
            WorkerEvent::Reported(_) => reports += 1,
            WorkerEvent::Checkpointed { .. } | WorkerEvent::Failed { .. } => panic!("nothing can be written"),
            _ => {}
        }
    }
    assert_eq!(failed, 1, "it is told once");
    // It is tried again at every interval, and told when it works.
    fs::remove_file(world.task().checkpoint).expect("it is there");
    world.find(|_, event| matches!(event, WorkerEvent::Checkpointed { .. }).then_some(())).await;
    fs::remove_dir_all(world.task().checkpoint).expect("it is there");
    fs::write(&world.task().checkpoint, "in the way").expect("a file");
    world.find(|_, event| matches!(event, WorkerEvent::CheckpointFailed { .. }).then_some(())).await;
    // What cannot be saved on the way out is not the trial's fault.
    world.send_to(0, WorkerCommand::Release { trial: TRIAL, state: FinalState::Saved });
    let cause = world
        .find(|_, event| match event {
            WorkerEvent::Failed { cause, .. } => Some(*cause),
            WorkerEvent::Released { .. } => panic!("it was not saved"),
            _ => None,
        })
        .await;
    assert_eq!(cause, FailureCause::Environment);
}

#[tokio::test(start_paused = true)]
async fn survivors_notice_a_loss_and_go_on() {
    // The first rank, at whose node they meet, and another one.
    for dead in [0, 2] {
        let mut world = World::new(3, 1.0);
        world.begin(&[0, 1, 2], 384).await;
        let report = world.report().await;
        world.kill(dead);
        let mut survivors: Vec<u32> = vec![0, 1, 2];
        survivors.retain(|slot| *slot != dead);
        for _ in &survivors {
            let (round, steps, reason) = world
                .find(|_, event| match event {
                    WorkerEvent::Broken { round, steps, reason, .. } => {
                        Some((*round, *steps, reason.clone()))
                    }
                    _ => None,
                })
                .await;
            assert_eq!(round, Round(1));
            assert!(
                steps >= Some(report.steps) && reason.contains(&format!("slot {}", slot(dead))),
                "{reason}"
            );
        }
        let going_on = world.form(Form { broken: true, ..form(2, &survivors, &[], 256) }).await;
        assert!(going_on >= report.steps);
        assert!(world.report().await.steps > going_on);
    }
}

#[tokio::test(start_paused = true)]
async fn a_group_that_is_broken_is_left_in_the_middle_of_a_step() {
    let mut world = World::of("t4", 2, 1.0);
    // Steps of many seconds.
    let slow = Batch { total: 8192, accumulation: 7 };
    world.prepare(&[0, 1]).await;
    world.form(Form { batch: slow, ..form(1, &[0, 1], &[], 0) }).await;
    assert_eq!(world.next(0.5).await, None);
    let before = Instant::now();
    let orderly = world.form(form(2, &[0, 1], &[], 128)).await;
    assert_eq!(orderly, 1, "the step was taken to its end");
    assert!(since(&world, before) > 2.0);
    let again = world.form(Form { batch: slow, ..form(3, &[0, 1], &[], 0) }).await;
    assert_eq!(world.next(0.5).await, None);
    let before = Instant::now();
    let broken = world.form(Form { broken: true, ..form(4, &[0, 1], &[], 128) }).await;
    assert!(since(&world, before) < 0.2);
    assert_eq!(broken, again, "the step was given up");
}

/// Who leaves a group for good does not get to know that it is broken, and must not take a step that the others have given up.
#[tokio::test(start_paused = true)]
async fn a_step_that_others_have_given_up_is_not_taken() {
    let mut world = World::of("t4", 2, 1.0);
    world.prepare(&[0, 1]).await;
    world.form(Form { batch: Batch { total: 8192, accumulation: 7 }, ..form(1, &[0, 1], &[], 0) }).await;
    assert_eq!(world.next(0.5).await, None);
    // Both are to leave after the step, but then it is the end of the group for one of them.
    world.send_all(&[0, 1], &WorkerCommand::Form(form(2, &[1], &[], 128)));
    assert_eq!(world.next(0.5).await, None);
    world.send_to(1, WorkerCommand::Form(Form { broken: true, ..form(3, &[1], &[], 128) }));
    let mut events = [world.next(0.2).await.unwrap(), world.next(0.2).await.unwrap()];
    events.sort_by_key(|(slot, _)| *slot);
    assert_eq!(events[0], (0, WorkerEvent::Released { trial: TRIAL }), "without a report of the step");
    assert!(matches!(events[1], (1, WorkerEvent::Formed { round: Round(3), steps: 0, .. })), "{events:?}");
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_in_vain_is_called_off() {
    let mut world = World::new(2, 1.0);
    world.prepare(&[0, 1]).await;
    world.send_to(0, WorkerCommand::Form(form(1, &[0, 1], &[], 256)));
    assert_eq!(world.next(100.0).await, None);
    // Another group instead.
    world.send_to(0, WorkerCommand::Form(form(2, &[0], &[], 128)));
    world.find(|_, event| matches!(event, WorkerEvent::Formed { round: Round(2), .. }).then_some(())).await;
    world.send_to(1, WorkerCommand::Form(form(3, &[0, 1], &[], 256)));
    world.send_to(1, WorkerCommand::Release { trial: TRIAL, state: FinalState::Saved });
    // It has nothing to save.
    let free = |slot, event: &WorkerEvent| (slot == 1).then(|| event.clone());
    assert_eq!(world.find(free).await, WorkerEvent::Released { trial: TRIAL });
}

#[tokio::test(start_paused = true)]
async fn a_complete_trial_is_complete_in_any_group() {
    let mut world = World::new(2, 1.0);
    world.begin(&[0, 1], 2048).await;
    let finished = |slot: u32, event: &WorkerEvent| match event {
        WorkerEvent::Finished { round, metrics, .. } => Some((slot, *round, metrics.clone())),
        _ => None,
    };
    let (first, round, metrics) = world.find(finished).await;
    assert_eq!((first, round), (0, Round(1)));
    assert_eq!(world.next(1e5).await, None, "it is reported once");
    // The one who reported it is lost before the head knows.
    world.kill(0);
    world.send_to(1, WorkerCommand::Form(form(2, &[1], &[], 2048)));
    assert_eq!(world.find(finished).await, (1, Round(2), metrics));
}

#[tokio::test(start_paused = true)]
async fn bad_orders_are_answered() {
    let mut world = World::new(1, 1.0);
    world.send_to(0, WorkerCommand::Form(form(1, &[0], &[], 128)));
    let early = world.next(1.0).await.unwrap().1;
    assert!(matches!(&early, WorkerEvent::Broken { steps: None, reason, .. } if reason.contains("prepared")));
    let unknown = Task { trainable: "mnist".to_owned(), ..world.task() };
    world.send_to(0, WorkerCommand::Prepare(Box::new(unknown)));
    let unknown = world.next(1.0).await.unwrap().1;
    assert!(
        matches!(&unknown, WorkerEvent::Failed { trial: TRIAL, reason, .. } if reason.contains("cifar10"))
    );
    world.send_to(0, WorkerCommand::Release { trial: TrialId(8), state: FinalState::Saved });
    assert_eq!(world.next(1.0).await, Some((0, WorkerEvent::Released { trial: TrialId(8) })));
    // A batch without examples, and a GPU that nobody has measured.
    world.prepare(&[0]).await;
    world.send_to(0, WorkerCommand::Form(form(1, &[0], &[], 0)));
    let failed = |_, event: &WorkerEvent| match event {
        WorkerEvent::Failed { reason, .. } => Some(reason.clone()),
        _ => None,
    };
    assert!(world.find(failed).await.contains("was not measured"));
    let mut world = World::of("h100", 1, 1.0);
    world.prepare(&[0]).await;
    world.send_to(0, WorkerCommand::Form(form(1, &[0], &[], 128)));
    assert!(world.find(failed).await.contains("a100, rtx2080ti, t4"));
}

#[tokio::test(start_paused = true)]
async fn a_group_of_the_past_is_not_joined() {
    let mut world = World::new(1, 1.0);
    world.begin(&[0], 128).await;
    world.form(form(5, &[0], &[], 128)).await;
    world.send_to(0, WorkerCommand::Form(form(4, &[], &[], 128)));
    world.send_to(0, WorkerCommand::Form(form(5, &[], &[], 128)));
    world.report().await;
    assert_eq!(world.report().await.round, Round(5));
}

#[tokio::test(start_paused = true)]
async fn a_worker_ends_with_its_head() {
    let mut world = World::new(1, 1.0);
    world.begin(&[0], 128).await;
    let worker = world.workers.remove(&0).unwrap();
    drop(worker.commands);
    worker.running.await.unwrap();
}

use super::*;
use crate::{
    space::{Machines, Study},
    trials::engine::{Engine, Input, TrialKind},
};

pub(super) fn specs(text: &str) -> Vec<PilotSpec> {
    Machines::from_yaml("cluster.yaml", &format!("cluster: {{slurm: [{text}]}}")).unwrap().slurm
}

fn notices(actions: &[PilotAction]) -> Vec<&str> {
    let text = |action: &PilotAction| match action {
        PilotAction::Notice(text) => Some(text.clone()),
        _ => None,
    };
    let all: Vec<String> = actions.iter().filter_map(text).collect();
    all.into_iter().map(|text| &*text.leak()).collect()
}

fn submitted(actions: &[PilotAction]) -> Option<(PilotId, usize)> {
    actions.iter().find_map(|action| match action {
        PilotAction::Submit { pilot, kind } => Some((*pilot, *kind)),
        _ => None,
    })
}

fn cancelled(actions: &[PilotAction]) -> Vec<&str> {
    let job = |action: &PilotAction| match action {
        PilotAction::Cancel { job } => Some(job.clone()),
        _ => None,
    };
    actions.iter().filter_map(job).map(|job| &*job.leak()).collect()
}

fn enter(controller: &mut Controller, pilot: PilotId, job: &str, now_s: f64) -> Vec<PilotAction> {
    controller.handle(PilotEvent::Submitted { pilot, job: job.to_owned() }, now_s)
}

fn poll(controller: &mut Controller, job: &str, state: JobState, now_s: f64) -> Vec<PilotAction> {
    controller.handle(PilotEvent::Polled(vec![JobReport { job: job.to_owned(), state }]), now_s)
}

fn running(since_s: f64, ends_s: Option<f64>) -> JobState {
    JobState::Running { since_s, ends_s }
}

fn ended(end: JobEnd, reason: &str, log: &str) -> JobState {
    JobState::Ended { end, reason: reason.to_owned(), log: log.to_owned() }
}

fn join(controller: &mut Controller, job: &str, node: u32, now_s: f64) -> Vec<PilotAction> {
    let event = PilotEvent::AgentJoined { job: job.to_owned(), nodes: [NodeId(node)].into(), gpu_type: None };
    controller.handle(event, now_s)
}

fn gains(controller: &mut Controller, all: &[(f64, Option<f64>)], now_s: f64) -> Vec<PilotAction> {
    let gains = all.iter().map(|(more, last)| Gain { more: *more, last: *last }).collect();
    controller.handle(PilotEvent::Gains { coming: controller.coming(), gains }, now_s)
}

/// A controller with one pilot that has joined as node 7.
fn with_one(text: &str) -> Controller {
    let mut controller = Controller::new(&specs(text));
    let (pilot, _) = submitted(&controller.tick(0.0)).expect("the first one");
    enter(&mut controller, pilot, "1_0", 0.0);
    poll(&mut controller, "1_0", running(1.0, None), 1.0);
    join(&mut controller, "1_0", 7, 2.0);
    controller
}

#[test]
fn the_minimum_is_held_one_submission_in_ten_seconds() {
    let mut controller = Controller::new(&specs("{nodes: 2..3, gres: 'gpu:a100:8', partition: gpu}"));
    let first = controller.tick(0.0);
    assert_eq!(
        notices(&first),
        ["asking Slurm for one more node of gpu:a100:8 (gpu): the study holds at least 2"]
    );
    assert_eq!(submitted(&first), Some((PilotId(0), 0)));
    assert_eq!(controller.tick(9.9), []);
    assert_eq!(submitted(&controller.tick(10.0)), Some((PilotId(1), 0)));
    assert_eq!(controller.tick(100.0), [], "two are on their way");
}

#[test]
fn the_kind_that_brings_most_is_asked_for_with_the_speedup_it_brings() {
    let mut controller = with_one(
        "{nodes: 1..2, gres: 'gpu:a100:8', partition: gpu}, {nodes: 0..4, gres: 'gpu:t4:4', partition: spot}",
    );
    assert_eq!(gains(&mut controller, &[(1.01, None), (1.04, None)], 20.0), [], "not worth it");
    let actions = gains(&mut controller, &[(1.2, None), (1.31, None)], 30.0);
    assert_eq!(
        notices(&actions),
        ["asking Slurm for one more node of gpu:t4:4 (spot): the study would run about 1.3 times as fast"]
    );
    let (pilot, kind) = submitted(&actions).expect("it is worth it");
    assert_eq!(kind, 1);
    enter(&mut controller, pilot, "2_0", 30.0);
    assert_eq!(controller.tick(60.0), [], "the gain was for the one that was asked for");
    let (pilot, _) = submitted(&gains(&mut controller, &[(1.2, None), (1.3, Some(1.3))], 60.0)).unwrap();
    enter(&mut controller, pilot, "3_0", 60.0);
    assert_eq!(gains(&mut controller, &[(9.0, None), (9.0, Some(9.0))], 90.0), [], "two wait already");
}

#[test]
fn an_answer_to_another_question_does_not_count() {
    let mut controller = with_one("{nodes: 1..3, gres: 'gpu:8'}");
    let gains = vec![Gain { more: 2.0, last: None }];
    let stale = PilotEvent::Gains { coming: vec![1], gains: gains.clone() };
    assert_eq!(controller.handle(stale, 50.0), []);
    assert!(submitted(&controller.handle(PilotEvent::Gains { coming: vec![0], gains }, 50.0)).is_some());
}

#[test]
fn an_agent_whose_workers_are_not_there_yet_is_on_its_way() {
    let controller = with_one("{nodes: 1..3, gres: 'gpu:8'}");
    let coming = |present: &[u32]| {
        controller.offers(&GpuType::cpu(), &present.iter().map(|node| NodeId(*node)).collect())[0].coming
    };
    assert_eq!((coming(&[]), coming(&[7])), (1, 0));
}

#[test]
fn what_waits_is_given_up_when_it_would_bring_nothing_any_more() {
    let mut controller = with_one("{nodes: 1..3, gres: 'gpu:8'}");
    let (pilot, _) = submitted(&gains(&mut controller, &[(1.5, None)], 20.0)).unwrap();
    enter(&mut controller, pilot, "2_0", 20.0);
    assert_eq!(gains(&mut controller, &[(1.0, Some(1.03))], 30.0), []);
    let actions = gains(&mut controller, &[(1.0, Some(1.0))], 40.0);
    assert_eq!(
        notices(&actions),
        ["no longer asking Slurm for a node of gpu:8 (job 2_0): the study would run only 1.00 times as fast"]
    );
    assert_eq!(cancelled(&actions), ["2_0"]);
    assert_eq!(poll(&mut controller, "2_0", ended(JobEnd::Ended, "CANCELLED", ""), 41.0), []);
}

#[test]
fn a_node_without_work_is_given_back_and_the_last_of_the_minimum_is_not() {
    let mut controller = Controller::new(&specs("{nodes: 1..2, gres: 'gpu:8'}"));
    for (pilot, node) in [(0, 7), (1, 8)] {
        let job = format!("{pilot}_0");
        controller.adopt(0, &job, 0.0);
        poll(&mut controller, &job, running(0.0, None), 0.0);
        join(&mut controller, &job, node, 0.0);
    }
    let busy = |controller: &mut Controller, nodes: &[u32], now_s| {
        controller.handle(PilotEvent::Busy(nodes.iter().map(|node| NodeId(*node)).collect()), now_s)
    };
    assert_eq!(busy(&mut controller, &[8], 299.0), []);
    let actions = busy(&mut controller, &[8], 300.0);
    assert!(
        matches!(&actions[1], PilotAction::Drain { job, nodes, .. } if job == "0_0" && nodes.contains(&NodeId(7)))
    );
    assert!(notices(&actions)[0].contains("no trial has used it for 5 minutes"), "{actions:?}");
    assert_eq!(busy(&mut controller, &[7, 8], 310.0), [], "a trial came at the last moment");
    let mut hung = controller.clone();
    assert_eq!(cancelled(&hung.tick(360.0)), ["0_0"], "that trial does not go");
    assert_eq!(cancelled(&busy(&mut controller, &[8], 320.0)), ["0_0"]);
    assert_eq!(busy(&mut controller, &[], 9999.0), [], "one is held");
}

#[test]
fn a_pilot_is_replaced_before_its_time_ends() {
    let mut controller = with_one("{nodes: 1, gres: 'gpu:8', time: 4h}");
    poll(&mut controller, "1_0", running(0.0, Some(14_400.0)), 100.0);
    assert_eq!(controller.tick(13_799.0), []);
    assert_eq!(controller.leaving(13_800.0), [NodeId(7)].into());
    let actions = controller.tick(13_800.0);
    assert_eq!(
        notices(&actions),
        ["asking Slurm for one more node of gpu:8: another one ends soon, and the study holds at least 1"]
    );
    let (pilot, _) = submitted(&actions).unwrap();
    enter(&mut controller, pilot, "2_0", 13_801.0);
    assert_eq!(controller.tick(14_000.0), []);
    controller.handle(PilotEvent::AgentDraining { job: "1_0".to_owned() }, 14_300.0);
    let actions = poll(&mut controller, "1_0", ended(JobEnd::TimeLimit, "TIMEOUT", ""), 14_401.0);
    assert_eq!(notices(&actions), ["a node of gpu:8 (job 1_0) is gone: its time was up"]);
}

#[test]
fn three_that_come_to_nothing_are_enough_and_the_reason_is_told_with_the_log() {
    let mut controller = Controller::new(&specs("{nodes: 1, gres: 'gpu:8', partition: gpu}"));
    let mut now_s = 0.0;
    for (round, pause_s) in [30.0, 60.0, 120.0].into_iter().enumerate() {
        let job = format!("{round}_0");
        let (pilot, _) = submitted(&controller.tick(now_s)).expect("another try");
        enter(&mut controller, pilot, &job, now_s);
        let log = "module: command not found";
        let actions = poll(&mut controller, &job, ended(JobEnd::Ended, "FAILED", log), now_s);
        let notice = notices(&actions)[0];
        let begins =
            format!("a node of gpu:8 (gpu) (job {job}) failed: it ended before its agent came (FAILED); ");
        assert!(notice.starts_with(&begins), "{notice}");
        assert!(notice.ends_with("it printed\n    module: command not found"), "{notice}");
        assert_eq!(notice.contains("number 3 in a row"), round == 2, "{notice}");
        assert_eq!(controller.tick(now_s + pause_s - 0.1), []);
        assert_eq!(controller.hopeless().is_some(), round == 2);
        now_s += pause_s;
    }
    assert_eq!(controller.tick(1e9), []);
    let wanted = "a node of gpu:8 (gpu) failed 3 times in a row: it ended before its agent came (FAILED); its last line: module: \
                  command not found";
    assert_eq!(controller.hopeless().as_deref(), Some(wanted));
}

#[test]
fn an_agent_that_does_not_come_costs_the_pilot_its_node() {
    let mut controller = Controller::new(&specs("{nodes: 1, gres: 'gpu:8'}"));
    let (pilot, _) = submitted(&controller.tick(0.0)).unwrap();
    enter(&mut controller, pilot, "1_0", 0.0);
    poll(&mut controller, "1_0", running(5.0, None), 5.0);
    assert_eq!(controller.tick(304.0), []);
    assert_eq!(cancelled(&controller.tick(305.0)), ["1_0"]);
    let actions = poll(&mut controller, "1_0", ended(JobEnd::Ended, "CANCELLED", "no route to host"), 310.0);
    let notice = notices(&actions)[0];
    assert!(
        notice.contains("its agent did not come within 300 s") && notice.contains("no route"),
        "{notice}"
    );
}

#[test]
fn what_can_never_start_is_not_waited_for() {
    let mut controller = Controller::new(&specs("{nodes: 1, gres: 'gpu:8'}"));
    let (pilot, _) = submitted(&controller.tick(0.0)).unwrap();
    enter(&mut controller, pilot, "1_0", 0.0);
    let pending = |reason: &str| JobState::Pending { reason: reason.to_owned() };
    assert_eq!(poll(&mut controller, "1_0", pending("Resources"), 10.0), []);
    let actions = poll(&mut controller, "1_0", pending("Priority"), 60.0);
    assert_eq!(notices(&actions), ["a node of gpu:8 (job 1_0) waits in the queue of Slurm: Priority"]);
    assert_eq!(poll(&mut controller, "1_0", pending("Priority"), 70.0), [], "once is enough");
    assert_eq!(cancelled(&poll(&mut controller, "1_0", pending("PartitionTimeLimit"), 80.0)), ["1_0"]);
}

#[test]
fn preemption_is_no_failure_and_the_place_is_taken_again() {
    let mut controller = with_one("{nodes: 1..2, gres: 'gpu:8', partition: spot}");
    // Draining already makes room.
    let actions = controller.handle(PilotEvent::AgentDraining { job: "1_0".to_owned() }, 50.0);
    let (pilot, _) = submitted(&actions).expect("another one");
    enter(&mut controller, pilot, "2_0", 50.0);
    let actions = poll(&mut controller, "1_0", ended(JobEnd::Preempted, "PREEMPTED", ""), 55.0);
    assert_eq!(notices(&actions), ["a node of gpu:8 (spot) (job 1_0) was preempted"]);
}

#[test]
fn at_the_end_nothing_is_left_not_even_what_was_being_submitted() {
    let mut controller = with_one("{nodes: 2, gres: 'gpu:8'}");
    let (late, _) = submitted(&controller.tick(10.0)).unwrap();
    assert_eq!(cancelled(&controller.handle(PilotEvent::Over, 11.0)), ["1_0"]);
    assert_eq!(cancelled(&enter(&mut controller, late, "2_0", 12.0)), ["2_0"]);
    for job in ["1_0", "2_0"] {
        assert_eq!(poll(&mut controller, job, ended(JobEnd::Ended, "CANCELLED", ""), 13.0), []);
    }
    assert!(controller.is_empty());
    assert_eq!(controller.tick(1e6), []);
}

#[test]
fn gains_follow_from_what_the_policy_would_do() {
    let yaml = "{space: {x: {float: [0, 1]}}, objective: {minimize: loss}, search: {trials: 12, parallel: 6}, \
                trial: {trainable: net}}";
    let study = Study::from_yaml("study.yaml", yaml).unwrap();
    let cpu = GpuType::cpu();
    let offer = |coming| vec![Offer { gpu_type: GpuType::cpu(), slots: 2, coming }];
    let mut engine = Engine::new(&study, TrialKind::Elastic).unwrap();
    engine.handle(Input::Started, 0.0);
    let nothing = engine.demand(1.0);
    assert_eq!((nothing.to_come, nothing.is_over), (6, false));
    assert!(nothing.gains(&study, &offer(0))[0].more.is_infinite(), "there is no node at all");
    engine.handle(
        Input::NodeJoined { node: NodeId(3), name: String::new(), gpu_type: cpu, island: 0, slots: 2 },
        1.0,
    );
    let demand = engine.demand(2.0);
    assert_eq!(demand.gains(&study, &offer(0)), [Gain { more: 2.0, last: None }]);
    assert_eq!(demand.gains(&study, &offer(1)), [Gain { more: 1.5, last: Some(2.0) }]);
    assert_eq!(
        demand.gains(&study, &offer(2)),
        [Gain { more: 1.0, last: Some(1.5) }],
        "six trials at a time"
    );
    let alone = demand.without(&[NodeId(3)].into());
    assert_eq!(alone.gains(&study, &offer(1)), [Gain { more: 2.0, last: Some(f64::INFINITY) }]);
}

#[test]
fn programs_can_use_as_many_slots_as_trials_are_left() {
    let yaml = "{space: {x: {float: [0, 1]}}, objective: {minimize: loss}, search: {trials: 3, parallel: 6}, \
                trial: {command: [true]}}";
    let study = Study::from_yaml("study.yaml", yaml).unwrap();
    let mut engine = Engine::new(&study, TrialKind::Rigid).unwrap();
    engine.handle(Input::Started, 0.0);
    engine.handle(
        Input::NodeJoined {
            node: NodeId(0),
            name: String::new(),
            gpu_type: GpuType::cpu(),
            island: 0,
            slots: 2,
        },
        1.0,
    );
    let offers = [Offer { gpu_type: GpuType::cpu(), slots: 2, coming: 0 }];
    assert_eq!(engine.demand(2.0).gains(&study, &offers), [Gain { more: 1.5, last: None }]);
}

//! Machines that are not placed together.

use super::{nodes::lost, *};

/// A trial on both of two machines of one slot each.
fn spanning() -> Scene {
    let mut scene = Scene::with_nodes(ELASTIC, &[1, 1]);
    for trial in 0..2 {
        scene.suggest();
        scene.fit(trial, None);
    }
    scene.plan(&[(0, &[(0, 1), (1, 1)])]);
    scene.ready(0, 1);
    scene
}

impl Scene {
    /// The group of trial 0 fails though all its workers live, and it is launched again.
    fn break_group(&mut self) {
        let generation = self.trial(0).generation.0;
        self.fail(0, generation, FailureCause::Infrastructure);
        let pause_s = self.trial(0).failures.retry_s - self.now_s;
        self.pass(pause_s.max(0.0));
    }

    /// Whether the two machines are one island, as the allocator sees them.
    fn is_together(&self) -> bool {
        let islands: Vec<u32> = self.engine.state.cluster().iter().map(|(_, node)| node.island).collect();
        islands[0] == islands[1]
    }
}

#[test]
fn machines_whose_group_gives_up_are_not_placed_together_for_a_while() {
    let mut scene = spanning();
    let broken_s = scene.now_s;
    scene.break_group();
    assert!(!scene.is_together());
    let need = "trials need 2 GPUs of one type, the most that are together are 1";
    assert_eq!(scene.engine.state.shortage_of(2).as_deref(), Some(need));
    assert!(scene.engine.pending.solve.is_some(), "the next plan has one of them for it");
    scene.now_s = broken_s + 59.0;
    scene.input(node_joined(5, 1));
    assert!(!scene.is_together());
    scene.now_s = broken_s + 61.0;
    scene.input(node_joined(6, 1));
    assert!(scene.is_together(), "their time is over");
    let (mut state, both) = (State::default(), slots(&[(0, 0), (1, 0)]));
    for (at_s, until_s) in [(0.0, 60.0), (100.0, 220.0), (300.0, 540.0)] {
        state.break_links(at_s, &both);
        let until = state.rifts.values().map(|rift| rift.until_s);
        assert!(until.eq([until_s]), "longer each time");
    }
}

#[test]
fn progress_and_new_machines_mend_links_and_lost_workers_do_not_break_them() {
    let mut scene = spanning();
    scene.break_group();
    scene.ready(0, 2);
    scene.report(0, 2, 1, (0.5, 0.5));
    assert!(scene.is_together(), "they work together");
    scene.break_group();
    assert!(!scene.is_together());
    scene.input(lost(1));
    scene.input(node_joined(1, 1));
    assert!(scene.engine.state.rifts.is_empty(), "another machine");

    let mut scene = spanning();
    for _ in 0..3 {
        scene.lose(1, 0);
        scene.input(Input::WorkerJoined { slot: slots(&[(1, 0)])[0] });
    }
    assert!(scene.engine.state.rifts.is_empty());
}

/// One machine is cut off from two others: it is the one that is apart.
#[test]
fn the_machine_with_the_most_rifts_is_apart() {
    let mut state = State::default();
    for others in [[(0, 0), (1, 0)], [(1, 0), (2, 0)]] {
        for _ in 0..2 {
            state.break_links(0.0, &slots(&others));
        }
    }
    assert_eq!(state.apart(), [NodeId(1)].into());
}

//! A worker whose head, or agent, is gone: what its trial has learned is saved.

use super::*;

impl World {
    /// The head is gone. Gives what the worker then asks of its backend.
    async fn lose_head(&mut self) -> Vec<Call> {
        // Nobody sends to the new one.
        self.commands = mpsc::unbounded_channel().0;
        self.settle().await;
        self.script.calls()
    }

    /// It has nothing more to do.
    async fn assert_over(&mut self) {
        self.settle().await;
        assert!(self.step.is_closed(), "the worker goes on");
    }
}

const LEFT: StepProgress =
    StepProgress { left: true, retuned: false, evaluations: Vec::new(), wants_evaluation: false };

fn wants_to_leave(calls: &[Call]) -> bool {
    matches!(calls, [Call::Train(request)] if request.leave)
}

#[tokio::test]
async fn a_worker_without_a_trial_ends_at_once() {
    let mut world = World::new();
    assert_eq!(world.lose_head().await, []);
    world.assert_over().await;
    // There is nothing to save yet.
    let mut world = World::new();
    world.prepare().await;
    assert_eq!(world.lose_head().await, [Call::Drop]);
    world.assert_over().await;
}

#[tokio::test]
async fn a_group_leaves_together_and_its_first_rank_saves() {
    for (members, saves) in [([0, 1], true), ([1, 0], false)] {
        let mut world = World::training(&members).await;
        let calls = world.lose_head().await;
        assert!(wants_to_leave(&calls), "{calls:?}");
        // Not all members know of it yet.
        world.step(StepProgress::default()).await;
        let calls = world.script.calls();
        assert!(wants_to_leave(&calls), "{calls:?}");
        world.step(LEFT).await;
        let calls = world.script.calls();
        let saved = [Call::Leave, Call::Save, Call::Wait, Call::Drop];
        let expected = if saves { &saved[..] } else { &[Call::Leave, Call::Drop] };
        assert_eq!(calls, expected);
        world.assert_over().await;
    }
}

#[tokio::test]
async fn who_is_left_alone_saves_alone() {
    for members in [[0, 1], [1, 0]] {
        let mut world = World::training(&members).await;
        world.lose_head().await;
        world.step.send(Err(Failure::Group("slot 0.1 is gone".to_owned()))).unwrap();
        world.settle().await;
        assert_eq!(world.script.calls(), [Call::Abort, Call::Save, Call::Wait, Call::Drop]);
        world.assert_over().await;
    }
}

/// It may be that no other worker has heard of it.
#[tokio::test]
async fn no_new_group_is_joined() {
    let mut world = World::training(&[1, 0]).await;
    world.commands.send(WorkerCommand::Form(form(4, &[0, 1, 2], &[]))).unwrap();
    world.lose_head().await;
    world.step(LEFT).await;
    assert_eq!(world.script.calls(), [Call::Leave, Call::Drop]);
    world.assert_over().await;
}

#[tokio::test]
async fn what_was_to_be_discarded_is_not_saved() {
    let mut world = World::training(&[0]).await;
    world.commands.send(release(FinalState::Discarded)).unwrap();
    world.lose_head().await;
    world.step(LEFT).await;
    assert_eq!(world.script.calls(), [Call::Leave, Call::Drop]);
    world.assert_over().await;
}

/// Those who come from another group have its state, and those who give it away do not know who keeps it.
#[tokio::test]
async fn who_has_the_state_saves_it_in_the_middle_of_a_hand_over() {
    for (form, meets) in
        [(form(4, &[0, 1], &[]), false), (form(4, &[1], &[0]), false), (form(4, &[1], &[0]), true)]
    {
        let mut world = World::training(&[0]).await;
        world.command(WorkerCommand::Form(form)).await;
        world.step(LEFT).await;
        world.script.calls();
        if meets {
            world.meet.send(Ok(6)).unwrap();
        }
        assert_eq!(world.lose_head().await, [Call::Leave, Call::Save, Call::Wait, Call::Drop]);
        world.assert_over().await;
    }
}

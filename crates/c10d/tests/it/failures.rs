//! Peers that die, hang or never come.

use std::time::Duration;

use c10d::{Error, ProcessGroup, ReduceOp, Reducer, ReducerOptions, Result, Store};
use tch::{Device, Kind, Tensor};

use crate::common::{FOREVER, Member, SOON, ranks, staged};

const SHORT: Duration = Duration::from_millis(300);

/// Reduces 4 MB again and again, until it fails.
fn reduce_until_failure(me: &Member, group: &ProcessGroup) -> Error {
    let mut tensor = Tensor::zeros([1 << 20], (Kind::Float, Device::Cpu));
    for step in 0.. {
        if let Err(error) = group.all_reduce(&mut tensor, ReduceOp::Avg) {
            return error;
        }
        if step == 3 {
            me.say("busy");
        }
    }
    unreachable!("some step fails")
}

/// The survivors fail at once, although the timeout is far away, and go on without the dead one.
fn survive(test: &'static str, size: usize, victim: usize) {
    let body = |me: &Member| {
        let group = me.group("gen0");
        let error = reduce_until_failure(me, &group);
        assert!(matches!(error, Error::PeerLost { .. }), "{error}");
        let error = group.barrier().expect_err("the group is over");
        assert!(matches!(error, Error::Aborted { .. }), "{error}");
        drop(group);
        let rank = if me.rank > victim { me.rank - 1 } else { me.rank };
        let group = me.group_of("gen1", rank, size - 1, FOREVER);
        let mut count = Tensor::from_slice(&[1_i64]);
        group.all_reduce(&mut count, ReduceOp::Sum).expect("the survivors are there");
        assert_eq!(count.int64_value(&[0]), size as i64 - 1);
        group.leave().expect("the survivors are there");
    };
    staged(test, size, body, |mut world| {
        world.hear("busy");
        world.kill(victim);
        world.join(&[victim]);
    });
}

#[test]
fn two_ranks_survive_the_death_of_one() {
    survive("failures::two_ranks_survive_the_death_of_one", 2, 1);
}

#[test]
fn three_ranks_survive_the_death_of_the_first() {
    survive("failures::three_ranks_survive_the_death_of_the_first", 3, 0);
}

#[test]
fn four_ranks_survive_the_death_of_one() {
    survive("failures::four_ranks_survive_the_death_of_one", 4, 2);
}

/// One of two dies in the middle of a message, where Gloo by itself waits until the timeout.
fn survive_in_the_middle(
    test: &'static str,
    step: impl FnOnce(&ProcessGroup) -> Box<dyn FnMut() -> Result<()>>,
) {
    let body = |me: &Member| {
        let group = me.group("gen0");
        let mut run = step(&group);
        let error = (0..).find_map(|number| {
            if number == 2 {
                me.say("busy");
            }
            run().err()
        });
        assert!(matches!(error, Some(Error::PeerLost { .. })), "{error:?}");
        drop((run, group));
        let group = me.group_of("gen1", 0, 1, FOREVER);
        group.barrier().expect("it is alone");
    };
    staged(test, 2, body, |mut world| {
        world.hear("busy");
        world.kill(1);
        world.join(&[1]);
    });
}

/// 256 MB: there is nearly always a message on its way.
fn large() -> Tensor {
    Tensor::zeros([1 << 26], (Kind::Float, Device::Cpu))
}

#[test]
fn a_peer_that_dies_in_the_middle_of_a_reduction_is_noticed() {
    survive_in_the_middle("failures::a_peer_that_dies_in_the_middle_of_a_reduction_is_noticed", |group| {
        let (group, mut tensor) = (group.clone(), large());
        Box::new(move || group.all_reduce(&mut tensor, ReduceOp::Sum))
    });
}

#[test]
fn a_peer_that_dies_in_the_middle_of_a_broadcast_is_noticed() {
    survive_in_the_middle("failures::a_peer_that_dies_in_the_middle_of_a_broadcast_is_noticed", |group| {
        let (group, mut tensors) = (group.clone(), [large()]);
        // From the one that is killed.
        Box::new(move || group.broadcast_all(&mut tensors, 1))
    });
}

#[test]
fn a_peer_that_dies_in_the_middle_of_a_backward_pass_is_noticed() {
    survive_in_the_middle(
        "failures::a_peer_that_dies_in_the_middle_of_a_backward_pass_is_noticed",
        |group| {
            let parameters = [large().set_requires_grad(true)];
            let mut reducer =
                Reducer::new(group, &parameters, &ReducerOptions::default()).expect("fine parameters");
            Box::new(move || reducer.backward(&parameters[0].sum(Kind::Float)).map(drop))
        },
    );
}

#[test]
fn a_peer_that_never_comes_is_a_timeout() {
    ranks("failures::a_peer_that_never_comes_is_a_timeout", 1, |me| {
        let mut options = me.options(FOREVER);
        options.connect_timeout = SHORT;
        for rank in [0, 1] {
            let prefix = me.store.prefix(&format!("rank{rank}")).expect("a prefix");
            let error = ProcessGroup::form(&prefix, rank, 2, &options).expect_err("there is no other");
            assert!(matches!(error, Error::Timeout { .. }), "{error}");
        }
    });
}

#[test]
fn a_peer_that_does_not_join_in_is_a_timeout() {
    ranks("failures::a_peer_that_does_not_join_in_is_a_timeout", 2, |me| {
        let group = me.group_of("gen0", me.rank, 2, SHORT);
        if me.rank == 0 {
            let mut tensor = Tensor::from_slice(&[1.0_f32]);
            let error = group.all_reduce(&mut tensor, ReduceOp::Sum).expect_err("the peer sleeps");
            assert!(matches!(error, Error::Timeout { .. }), "{error}");
            me.say("over");
        } else {
            me.hear("over");
            let error = group.barrier().expect_err("the peer has left");
            assert!(matches!(error, Error::PeerLost { .. }), "{error}");
        }
    });
}

#[test]
fn waiting_for_work_has_a_timeout_of_its_own() {
    ranks("failures::waiting_for_work_has_a_timeout_of_its_own", 2, |me| {
        let group = me.group("gen0");
        if me.rank == 0 {
            let work = group.all_reduce_async(Tensor::from_slice(&[1.0_f32]), ReduceOp::Sum).expect("fine");
            let error = work.wait(Some(SHORT)).expect_err("the peer sleeps");
            assert!(matches!(error, Error::Timeout { .. }), "{error}");
            me.say("over");
        } else {
            me.hear("over");
        }
    });
}

#[test]
fn a_stopped_process_is_a_timeout() {
    let body = |me: &Member| {
        let group = me.group_of("gen0", me.rank, 2, SHORT);
        me.say(&format!("here{}", me.rank));
        me.hear("stopped");
        let mut tensor = Tensor::zeros([1 << 20], (Kind::Float, Device::Cpu));
        let error = group.all_reduce(&mut tensor, ReduceOp::Sum).expect_err("the peer is stopped");
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
        drop(group);
        me.say("over");
    };
    staged("failures::a_stopped_process_is_a_timeout", 2, body, |mut world| {
        world.hear("here1");
        world.stop(1);
        world.say("stopped");
        world.hear("over");
        world.kill(1);
        world.join(&[1]);
    });
}

/// A host that is not the process of the test, so that it can be killed.
#[test]
fn the_death_of_the_host_is_an_error_for_clients() {
    let body = |me: &Member| {
        if me.rank == 0 {
            let hosted = Store::host("127.0.0.1:0").expect("a free port");
            hosted.set("here", b"").expect("it is ours");
            me.store.set("address", hosted.address().as_bytes()).expect("the store is there");
            me.hear("never");
        }
        let address = String::from_utf8(me.store.get("address", SOON).expect("it comes")).expect("text");
        let client = Store::connect(&address, SOON).expect("it is there");
        client.wait(&["here"], SOON).expect("it is there");
        me.say("connected");
        // Waiting when it dies, and afterwards.
        let lost = |result: Result<()>| assert!(matches!(result, Err(Error::PeerLost { .. })), "{result:?}");
        lost(client.wait(&["never"], FOREVER));
        lost(client.get("here", SOON).map(drop));
        lost(client.add("counter", 1).map(drop));
        lost(client.contains(&["here"]).map(drop));
        lost(client.delete("here").map(drop));
        lost(client.set("key", b"value"));
    };
    staged("failures::the_death_of_the_host_is_an_error_for_clients", 2, body, |mut world| {
        world.hear("connected");
        world.kill(0);
        world.join(&[0]);
    });
}

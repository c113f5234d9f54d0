//! Ranks on several machines, and the links between them. They are network namespaces: without root these tests are skipped.

use std::time::{Duration, Instant};

use c10d::{Error, ProcessGroup, ReduceOp};
use tch::{Device, Kind, Tensor};

use crate::{
    common::{FOREVER, Member, SOON, World, on_machines},
    machines::Machines,
};

/// A lost link is noticed after 10 s. Left to itself the system would take a quarter of an hour, or for ever.
const NOTICED: Duration = Duration::from_secs(30);

fn tensor() -> Tensor {
    Tensor::zeros([1 << 18], (Kind::Float, Device::Cpu))
}

/// Reduces 1 MB again and again, until it fails.
fn reduce_until_failure(me: &Member, group: &ProcessGroup) -> Error {
    let mut tensor = tensor();
    for step in 0.. {
        if let Err(error) = group.all_reduce(&mut tensor, ReduceOp::Avg) {
            return error;
        }
        if step == 3 {
            me.say(&format!("busy{}", me.rank));
        }
    }
    unreachable!("some step fails")
}

fn assert_lost(me: &Member, error: &Error) {
    assert!(matches!(error, Error::PeerLost { .. }), "rank {}: {error}", me.rank);
    me.say(&format!("failed{}", me.rank));
}

/// Two machines cannot reach each other, and both ranks notice.
fn cut(world: &World, machines: &Machines, what: &str) {
    machines.set_parted(&[0, 1], true);
    let cut = Instant::now();
    for rank in 0..2 {
        world.hear(&format!("failed{rank}"));
        let took = cut.elapsed();
        println!("{what}: rank {rank} has noticed it after {:.1} s", took.as_secs_f64());
        assert!(took < NOTICED, "rank {rank} has noticed it after {took:?}");
    }
}

#[test]
fn a_link_that_is_cut_in_the_middle_of_a_reduction_is_noticed_by_both() {
    let body = |me: &Member| {
        let group = me.group("gen0");
        assert_lost(me, &reduce_until_failure(me, &group));
        drop(group);
        me.hear("healed");
        let group = me.group("gen1");
        group.all_reduce(&mut tensor(), ReduceOp::Sum).expect("both are there");
        group.leave().expect("both are there");
    };
    let test = "links::a_link_that_is_cut_in_the_middle_of_a_reduction_is_noticed_by_both";
    on_machines(test, 2, body, |world, machines| {
        world.hear("busy0");
        world.hear("busy1");
        cut(&world, machines, "a link is cut in a reduction");
        machines.set_parted(&[0, 1], false);
        world.say("healed");
        world.join(&[]);
    });
}

/// Nothing is on its way that could be missed: one rank waits, the other one computes.
#[test]
fn a_link_that_is_cut_while_nothing_is_said_is_noticed_by_both() {
    let body = |me: &Member| {
        let group = me.group("gen0");
        if me.rank == 0 {
            let work = group.all_reduce_async(tensor(), ReduceOp::Sum).expect("it begins");
            me.say("waiting");
            assert_lost(me, &work.wait(None).expect_err("the peer is not there"));
        } else {
            me.hear("failed0");
            assert_lost(me, &group.barrier().expect_err("the peer is not there"));
        }
    };
    let test = "links::a_link_that_is_cut_while_nothing_is_said_is_noticed_by_both";
    on_machines(test, 2, body, |world, machines| {
        world.hear("waiting");
        cut(&world, machines, "a link is cut while nothing is said");
        world.join(&[]);
    });
}

#[test]
fn a_rank_that_is_killed_on_another_machine_is_noticed_at_once() {
    let body = |me: &Member| {
        let group = me.group("gen0");
        assert_lost(me, &reduce_until_failure(me, &group));
    };
    let test = "links::a_rank_that_is_killed_on_another_machine_is_noticed_at_once";
    on_machines(test, 2, body, |mut world, _| {
        world.hear("busy0");
        let killed = Instant::now();
        world.kill(1);
        world.hear("failed0");
        println!("a rank is killed: the other has noticed it after {:.3} s", killed.elapsed().as_secs_f64());
        world.join(&[1]);
    });
}

/// As one without power: nothing comes from it any more, not even the end of its connections.
#[test]
fn those_who_are_left_go_on_without_a_machine_that_falls_silent() {
    let body = |me: &Member| {
        let group = me.group("gen0");
        let error = reduce_until_failure(me, &group);
        if me.rank == 2 {
            loop {
                // Until it is killed.
                std::thread::park();
            }
        }
        assert_lost(me, &error);
        drop(group);
        let group = me.group_of("gen1", me.rank, 2, FOREVER);
        group.all_reduce(&mut tensor(), ReduceOp::Sum).expect("both are there");
        group.leave().expect("both are there");
    };
    let test = "links::those_who_are_left_go_on_without_a_machine_that_falls_silent";
    on_machines(test, 3, body, |mut world, machines| {
        world.hear("busy0");
        world.hear("busy1");
        machines.set_cut_off(2, true);
        let cut = Instant::now();
        world.hear("gen1/formed");
        println!("a machine falls silent: the others go on after {:.1} s", cut.elapsed().as_secs_f64());
        world.kill(2);
        world.join(&[2]);
        machines.set_cut_off(2, false);
    });
}

/// Gloo takes five times as long as it is told.
#[test]
fn a_group_that_cannot_connect_takes_no_longer_than_it_may() {
    const CONNECT: Duration = Duration::from_secs(8);
    let body = |me: &Member| {
        me.hear("cut");
        let mut options = me.options(FOREVER);
        options.connect_timeout = CONNECT;
        let began = Instant::now();
        let error =
            ProcessGroup::form(&me.store, me.rank, 2, &options).expect_err("they cannot reach each other");
        let took = began.elapsed();
        assert!(matches!(error, Error::Timeout { .. } | Error::PeerLost { .. }), "{error}");
        eprintln!(
            "rank {} of a group that cannot connect gave up after {:.1} s",
            me.rank,
            took.as_secs_f64()
        );
        assert!(took < CONNECT * 3, "{took:?}");
    };
    let test = "links::a_group_that_cannot_connect_takes_no_longer_than_it_may";
    on_machines(test, 2, body, |world, machines| {
        machines.set_parted(&[0, 1], true);
        world.say("cut");
        world.join(&[]);
    });
}

/// From another thread, while the step waits for a peer that does not join in.
#[test]
fn a_step_that_waits_for_a_peer_is_aborted_at_once() {
    let body = |me: &Member| {
        let group = me.group("gen0");
        if me.rank == 0 {
            let work = group.all_reduce_async(tensor(), ReduceOp::Sum).expect("it begins");
            let handle = group.abort_handle();
            let aborts = std::thread::spawn(move || {
                handle.abort();
                Instant::now()
            });
            let error = work.wait(None).expect_err("it was aborted");
            let failed = Instant::now();
            assert!(matches!(error, Error::Aborted { .. }), "{error}");
            let took = failed.saturating_duration_since(aborts.join().expect("no panic"));
            eprintln!("a step has failed {:.3} s after its abort", took.as_secs_f64());
            assert!(took < SOON, "{took:?}");
            me.say("aborted");
        } else {
            me.hear("aborted");
            assert_lost(me, &group.barrier().expect_err("the peer has left"));
        }
    };
    let test = "links::a_step_that_waits_for_a_peer_is_aborted_at_once";
    on_machines(test, 2, body, |world, _| world.join(&[]));
}

//! Collectives in one to four processes.

use std::{sync::mpsc, thread, time::Duration};

use c10d::{Error, ProcessGroup, ReduceOp, Store};
use tch::{Kind, Tensor};

use crate::common::{FOREVER, Member, options, ranks};

/// All collectives, with results that can be worked out by hand.
fn collectives(me: &Member) {
    let group = me.group("gen0");
    let (rank, size) = (me.rank as i64, me.size as i64);
    assert_eq!((group.rank(), group.size()), (me.rank, me.size));
    let mine = || Tensor::from_slice(&[rank as f32, 10.0 - rank as f32]);
    let sum = (size * (size - 1) / 2) as f32;
    for (op, expected) in [
        (ReduceOp::Sum, [sum, 10.0 * size as f32 - sum]),
        (ReduceOp::Avg, [sum / size as f32, 10.0 - sum / size as f32]),
        (ReduceOp::Min, [0.0, 11.0 - size as f32]),
        (ReduceOp::Max, [size as f32 - 1.0, 10.0]),
    ] {
        let mut tensor = mine();
        group.all_reduce(&mut tensor, op).expect("all are there");
        assert_eq!(tensor, Tensor::from_slice(&expected), "{op:?}");
    }
    let mut whole = Tensor::from_slice(&[rank]);
    group.all_reduce(&mut whole, ReduceOp::Sum).expect("integers can be added");
    assert_eq!(whole, Tensor::from_slice(&[size * (size - 1) / 2]));

    let root = me.size - 1;
    let mut tensor = mine();
    group.broadcast(&mut tensor, root).expect("all are there");
    assert_eq!(tensor, Tensor::from_slice(&[root as f32, 10.0 - root as f32]));

    let parameter =
        |value: i64| Tensor::full([3, 2], value, (Kind::Float, tch::Device::Cpu)).set_requires_grad(true);
    let counter = |value: i64| Tensor::from_slice(&[value]);
    let mut model = [parameter(rank), counter(rank), parameter(10 * rank)];
    group.broadcast_all(&mut model, 0).expect("all are there");
    assert_eq!(model.each_ref().map(|tensor| tensor.sum(Kind::Double).double_value(&[])), [0.0; 3]);

    let gathered = group.all_gather(&mine()).expect("all are there");
    let expected = |other: i64| Tensor::from_slice(&[other as f32, 10.0 - other as f32]);
    assert_eq!(gathered, (0..size).map(expected).collect::<Vec<_>>());
    group.barrier().expect("all are there");
    group.leave().expect("all are there");
}

#[test]
fn collectives_of_one() {
    ranks("group::collectives_of_one", 1, collectives);
}

#[test]
fn collectives_of_two() {
    ranks("group::collectives_of_two", 2, collectives);
}

#[test]
fn collectives_of_three() {
    ranks("group::collectives_of_three", 3, collectives);
}

#[test]
fn collectives_of_four() {
    ranks("group::collectives_of_four", 4, collectives);
}

#[test]
fn several_reductions_can_be_under_way() {
    ranks("group::several_reductions_can_be_under_way", 2, |me| {
        let group = me.group("gen0");
        let begin = |value: i64| {
            group
                .all_reduce_async(Tensor::full([1000], value, (Kind::Float, tch::Device::Cpu)), ReduceOp::Avg)
        };
        let works: Vec<_> =
            (0..8).map(|value| begin(value + me.rank as i64).expect("a fine tensor")).collect();
        for (value, work) in works.into_iter().enumerate() {
            let mean = work.wait(Some(FOREVER)).expect("all are there");
            assert_eq!(mean.mean(Kind::Double).double_value(&[]), value as f64 + 0.5);
        }
        group.leave().expect("all are there");
    });
}

#[test]
fn bad_arguments_are_errors_and_the_group_goes_on() {
    ranks("group::bad_arguments_are_errors_and_the_group_goes_on", 2, |me| {
        let group = me.group("gen0");
        let wrong_rank = ProcessGroup::form(&me.store, 2, 2, &options(FOREVER));
        let mut whole = Tensor::from_slice(&[1_i64]);
        let mean_of_integers = group.all_reduce(&mut whole, ReduceOp::Avg);
        let no_such_root = group.broadcast(&mut whole, 2);
        let mut sparse = Tensor::from_slice(&[1.0_f32, 0.0]).to_sparse(None, None::<&[i64]>, None);
        let minimum_of_sparse = group.all_reduce(&mut sparse, ReduceOp::Min);
        for result in [wrong_rank.map(drop), mean_of_integers, no_such_root, minimum_of_sparse] {
            assert!(matches!(result, Err(Error::Invalid { .. })), "{result:?}");
        }
        group.all_reduce(&mut whole, ReduceOp::Sum).expect("the group goes on");
        assert_eq!(whole, Tensor::from_slice(&[2_i64]));
        group.leave().expect("all are there");
    });
}

#[test]
fn another_thread_can_abort_a_wait() {
    ranks("group::another_thread_can_abort_a_wait", 2, |me| {
        let group = me.group("gen0");
        if me.rank == 0 {
            let handle = group.abort_handle();
            let (begun, begin) = mpsc::channel();
            let aborter = thread::spawn(move || {
                begin.recv().expect("it begins");
                handle.abort();
            });
            let work =
                group.all_reduce_async(Tensor::from_slice(&[1.0_f32]), ReduceOp::Sum).expect("a fine tensor");
            begun.send(()).expect("somebody listens");
            let error = work.wait(None).expect_err("the peer does not join in");
            assert!(matches!(error, Error::Aborted { .. }), "{error}");
            aborter.join().expect("it does not panic");
            let error = group.barrier().expect_err("the group is over");
            assert!(matches!(error, Error::Aborted { .. }), "{error}");
        } else {
            let error = loop {
                // The peer's part of the reduction may have arrived before it aborted.
                if let Err(error) = group.barrier() {
                    break error;
                }
            };
            assert!(matches!(error, Error::PeerLost { .. }), "{error}");
        }
        // Aborting what is gone does nothing.
        let handle = group.abort_handle();
        drop(group);
        handle.abort();
    });
}

#[test]
fn dropping_a_group_does_not_wait_for_its_work() {
    ranks("group::dropping_a_group_does_not_wait_for_its_work", 2, |me| {
        let group = me.group("gen0");
        if me.rank == 0 {
            let begin =
                |_| group.all_reduce_async(Tensor::from_slice(&[1.0_f32]), ReduceOp::Sum).expect("fine");
            let mut works: Vec<_> = (0..5).map(begin).collect();
            // Some work is given up, some is still held.
            works.truncate(2);
            let last = works.pop();
            drop(works);
            drop(group);
            drop(last);
            me.say("dropped");
        } else {
            me.hear("dropped");
        }
    });
}

#[test]
fn an_aborted_group_of_one_is_over_as_well() {
    let store = Store::host("127.0.0.1:0").expect("a free port");
    let group = ProcessGroup::form(&store, 0, 1, &options(Duration::from_secs(10))).expect("nobody else");
    group.barrier().expect("nobody else");
    group.abort_handle().abort();
    assert!(matches!(group.barrier(), Err(Error::Aborted { .. })));
}

#[test]
fn nobody_leaves_before_all_do() {
    ranks("group::nobody_leaves_before_all_do", 2, |me| {
        let group = me.group("gen0");
        if me.rank == 0 {
            group.leave().expect("the other leaves as well");
            assert!(
                me.store.contains(&["leaving"]).expect("the store is there"),
                "rank 1 was not waited for"
            );
        } else {
            me.say("leaving");
            group.leave().expect("the other leaves as well");
        }
    });
}

#[test]
fn leaving_alone_is_a_timeout() {
    ranks("group::leaving_alone_is_a_timeout", 2, |me| {
        let group = me.group_of("gen0", me.rank, 2, Duration::from_millis(300));
        if me.rank == 0 {
            let error = group.leave().expect_err("the other stays");
            assert!(matches!(error, Error::Timeout { .. }), "{error}");
            me.say("left");
        } else {
            me.hear("left");
        }
    });
}

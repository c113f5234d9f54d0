//! Groups come and go, and leave nothing behind.

use std::fs;

use c10d::{ReduceOp, Reducer, ReducerOptions};
use tch::{Device, Kind, Tensor};

use crate::common::{Member, ranks};

/// What this process uses.
#[derive(Debug, Clone, Copy)]
struct Usage {
    threads: usize,
    files: usize,
    memory_kb: usize,
}

impl Usage {
    fn now() -> Usage {
        let count = |folder: &str| fs::read_dir(folder).expect("there is /proc").count();
        let status = fs::read_to_string("/proc/self/status").expect("there is /proc");
        let memory = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it is said there");
        let memory_kb = memory.trim().trim_end_matches(" kB").parse().expect("a number");
        Usage { threads: count("/proc/self/task"), files: count("/proc/self/fd"), memory_kb }
    }
}

/// One generation of a group: form, reduce, train a step, and part in peace or leave work behind.
fn generation(me: &Member, name: &str, in_peace: bool, parameter: &Tensor) {
    let group = me.group(name);
    let mut tensor = Tensor::zeros([1 << 16], (Kind::Float, Device::Cpu));
    group.all_reduce(&mut tensor, ReduceOp::Avg).expect("all are there");
    let parameters = [parameter.shallow_clone()];
    let mut reducer = Reducer::new(&group, &parameters, &ReducerOptions::default()).expect("fine parameters");
    reducer.backward(&parameter.sum(Kind::Float)).expect("all are there");
    if in_peace {
        group.leave().expect("all are there");
    } else {
        me.say(&format!("{name}/{}", me.rank));
        me.hear(&format!("{name}/{}", 1 - me.rank));
        drop(group.all_reduce_async(tensor, ReduceOp::Sum));
    }
}

#[test]
fn a_hundred_groups_leave_no_threads_sockets_or_memory() {
    ranks("leaks::a_hundred_groups_leave_no_threads_sockets_or_memory", 2, |me| {
        let parameter = Tensor::zeros([1 << 16], (Kind::Float, Device::Cpu)).set_requires_grad(true);
        // The first ones start what stays: thread pools, caches, profilers.
        (0..20).for_each(|at| generation(me, &format!("early{at}"), at % 2 == 0, &parameter));
        let before = Usage::now();
        (0..100).for_each(|at| generation(me, &format!("gen{at}"), at % 2 == 0, &parameter));
        let after = Usage::now();
        assert!(after.threads <= before.threads, "{before:?} {after:?}");
        assert!(after.files <= before.files, "{before:?} {after:?}");
        // Less than 41 kB for each, while one gradient has 256 kB; usually it is nothing at all.
        assert!(after.memory_kb <= before.memory_kb + 4 * 1024, "{before:?} {after:?}");
    });
}

//! With the feature `torch`, programs find libtorch by themselves.

use c10d::{GroupOptions, ProcessGroup, ReduceOp, Store};
use tch::Tensor;

#[test]
fn tensors_and_groups_work_without_further_settings() {
    let store = Store::host("127.0.0.1:0").expect("a free port");
    let group = ProcessGroup::form(&store, 0, 1, &GroupOptions::default()).expect("nobody else");
    let mut tensor = Tensor::from_slice(&[1.0, 2.0]);
    group.all_reduce(&mut tensor, ReduceOp::Sum).expect("nobody else");
    assert_eq!(tensor, Tensor::from_slice(&[1.0, 2.0]));
}

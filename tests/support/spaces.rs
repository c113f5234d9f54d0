//! Random spaces.

#![expect(clippy::unwrap_used, reason = "a test that cannot build its space has failed")]

use pollux_tune::space::{Dim, Domain, Space, Value};
use proptest::prelude::*;

fn texts(most: usize) -> impl Strategy<Value = Vec<Value>> {
    let text =
        prop_oneof!["[a-z]{1,6}", "[ -~]{0,8}", Just("no".to_owned()), Just("1e-4".to_owned()), "\\PC{1,4}"];
    prop::collection::btree_set(text, 1..=most).prop_map(|all| all.into_iter().map(Value::from).collect())
}

fn numbers(most: usize) -> impl Strategy<Value = Vec<Value>> {
    prop::collection::btree_set(-1000_i64..1000, 1..=most).prop_map(|all| {
        let value = |number: i64| if number % 3 == 0 { number.into() } else { (number as f64 / 7.0).into() };
        all.into_iter().map(value).collect()
    })
}

fn float() -> impl Strategy<Value = Domain> {
    (-1e6..1e6, 1e-3..1e6, prop::option::of(1_u32..50)).prop_map(|(low, width, steps): (f64, f64, _)| {
        // Two decimals, as people write them.
        let round = |number: f64| (number * 100.0).round() / 100.0;
        let (low, width) = (round(low), round(width).max(0.01));
        let domain = Domain::float(low, low + width).unwrap();
        match steps {
            Some(steps) => domain.with_step(width / f64::from(steps)).unwrap(),
            None => domain,
        }
    })
}

fn log() -> impl Strategy<Value = Domain> {
    (-12.0..12.0, 0.01..12.0)
        .prop_map(|(low, ratio): (f64, f64)| Domain::log(low.exp(), (low + ratio).exp()).unwrap())
}

fn int() -> impl Strategy<Value = Domain> {
    (-(1_i64 << 40)..1 << 40, 0_i64..1 << 20, prop::option::of(1_i64..1000)).prop_map(|(low, width, step)| {
        let domain = Domain::int(low, low + width).unwrap();
        match step {
            Some(step) => domain.with_step(step.min(width.max(1))).unwrap(),
            None => domain,
        }
    })
}

fn log_int() -> impl Strategy<Value = Domain> {
    (0_u32..30, 0_u32..20, 0_i64..1000)
        .prop_map(|(low, ratio, more)| Domain::log_int(1 << low, (1 << (low + ratio)) + more).unwrap())
}

fn listed() -> impl Strategy<Value = Domain> {
    prop_oneof![
        texts(5).prop_map(|values| Domain::choice(values).unwrap()),
        numbers(5).prop_map(|values| Domain::choice(values).unwrap()),
        texts(4).prop_map(|values| Domain::ordinal(values).unwrap()),
        numbers(4).prop_map(|values| Domain::ordinal(values).unwrap()),
        Just(Domain::bool()),
        (1_i64..6).prop_map(|high| Domain::int(1, high).unwrap()),
    ]
}

fn domain() -> impl Strategy<Value = Domain> {
    let fixed = prop_oneof![texts(1), numbers(1)].prop_map(|mut one| Domain::fixed(one.remove(0)).unwrap());
    prop_oneof![2 => float(), 2 => log(), 2 => int(), 2 => log_int(), 3 => listed(), 1 => fixed]
}

/// A parameter, which earlier one it may depend on, and which of its cells.
type Piece = (Domain, Option<(prop::sample::Index, Vec<prop::sample::Index>)>);

fn piece() -> impl Strategy<Value = Piece> {
    let index = any::<prop::sample::Index>;
    (domain(), prop::option::of((index(), prop::collection::vec(index(), 1..4))))
}

/// Random spaces: about half of the parameters depend on an earlier one, where there is one that can decide.
pub(crate) fn space() -> impl Strategy<Value = Space> {
    prop::collection::vec(piece(), 1..10).prop_map(|pieces| {
        let mut builder = Space::builder();
        let mut deciding: Vec<(String, Domain)> = Vec::new();
        for (place, (domain, condition)) in pieces.into_iter().enumerate() {
            let name = format!("{}{place}", ["p", "group.p-", "_"][place % 3]);
            builder = match condition.filter(|_| !deciding.is_empty()) {
                Some((parent, cells)) => {
                    let (parent, parent_domain) = &deciding[parent.index(deciding.len())];
                    let count = parent_domain.dim().and_then(Dim::cells).unwrap() as usize;
                    let value = |cell: &prop::sample::Index| parent_domain.decode(cell.index(count) as f64);
                    let values: Vec<Value> = cells.iter().filter_map(value).collect();
                    builder.add_when(&name, domain.clone(), parent, values)
                }
                None => builder.add(&name, domain.clone()),
            };
            if domain.dim().and_then(Dim::cells).is_some() {
                deciding.push((name, domain));
            }
        }
        builder.build().unwrap()
    })
}

//! Properties of search spaces: whatever is decoded lies inside, and round trips lead back.

#![expect(clippy::unwrap_used, reason = "a test that cannot build its space has failed")]

use pollux_tune::space::{Dim, Domain, Error, Params, Point, Space, Value};
use proptest::prelude::*;

use crate::spaces::space;

/// A point with a coordinate in every dimension, active or not.
fn full_point(space: &Space, parts: &[f64]) -> Point {
    let coordinate = |(dim, part): (Dim, &f64)| match dim.cells() {
        None => *part,
        Some(count) => (part * count as f64).floor().min(count as f64 - 1.0),
    };
    space.dims().into_iter().zip(parts).map(|pair| Some(coordinate(pair))).collect()
}

fn parts() -> impl Strategy<Value = Vec<f64>> {
    prop::collection::vec(prop_oneof![5 => 0.0..=1.0, 1 => Just(0.0), 1 => Just(1.0)], 10)
}

proptest! {
    #[test]
    fn what_is_decoded_lies_inside_and_is_encoded_again(space in space(), parts in parts()) {
        let point = full_point(&space, &parts);
        let assignment = space.decode(&point).unwrap();
        let again = space.encode(&assignment).unwrap();
        for dim in 0..point.len() {
            let name = space.name(dim);
            prop_assert_eq!(space.is_active(dim, &point), again[dim].is_some(), "{}", name);
            prop_assert_eq!(assignment.get(name).is_some(), again[dim].is_some(), "{}", name);
            if let Some((parent, cells)) = space.parent(dim) {
                prop_assert!(parent < dim);
                let holds = again[parent].is_some_and(|cell| cells.contains(&(cell as u64)));
                prop_assert_eq!(again[dim].is_some(), holds);
            }
            let Some(coordinate) = again[dim] else { continue };
            let wanted = point[dim].unwrap();
            match space.dims()[dim] {
                Dim::Continuous => prop_assert!((coordinate - wanted).abs() < 1e-6, "{coordinate} {wanted}"),
                _ => prop_assert!((coordinate - wanted).abs() < f64::EPSILON, "{coordinate} {wanted}"),
            }
        }
        prop_assert_eq!(space.decode(&again).unwrap().len(), assignment.len());
        prop_assert_eq!(&space.complete(&assignment).unwrap(), &assignment);
    }

    #[test]
    fn steps_hit_the_grid_and_stay_below_high(low in -1000_i64..1000, width in 1_i64..5000, step in 1_i64..500,
                                              part in 0.0..=1.0) {
        let step = step.min(width);
        let high = low + width;
        let space = Space::builder().add("x", Domain::int(low, high).unwrap().with_step(step).unwrap());
        let space = space.build().unwrap();
        let x = space.decode(&full_point(&space, &[part])).unwrap().int("x").unwrap();
        prop_assert!((low..=high).contains(&x) && (x - low) % step == 0);

        let [low, high, step] = [low, high, step].map(|number| number as f64 / 100.0);
        let space = Space::builder().add("x", Domain::float(low, high).unwrap().with_step(step).unwrap());
        let space = space.build().unwrap();
        let x = space.decode(&full_point(&space, &[part])).unwrap().float("x").unwrap();
        prop_assert!((low..=high).contains(&x));
        prop_assert!(((x - low) / step - ((x - low) / step).round()).abs() < 1e-6);
        prop_assert!(x.to_string().len() <= 6, "{} is not in the decimals of the step", x);
    }

    #[test]
    fn log_cells_are_in_order_and_about_equally_wide(low in 1_i64..5000, ratio in 1.0..1e5) {
        let high = (low as f64 * ratio) as i64;
        let domain = Domain::log_int(low, high).unwrap();
        let count = domain.dim().and_then(Dim::cells).unwrap();
        let cell = |place: u64| domain.decode(place as f64).unwrap().as_int().unwrap();
        prop_assert_eq!((cell(0), cell(count - 1)), (low, high));
        for place in 1..count {
            prop_assert!(cell(place - 1) < cell(place));
            let wide = cell(place) as f64 / cell(place - 1) as f64;
            prop_assert!(wide <= 1.25 || cell(place) - cell(place - 1) == 1, "{}", wide);
        }
    }
}

fn message<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    result.unwrap_err().to_string()
}

fn example() -> Space {
    let choices = Domain::choice(["sgd", "adam"]).unwrap();
    Space::builder()
        .add("optimizer", choices)
        .add_when("nesterov", Domain::bool(), "optimizer", ["sgd"])
        .add_when("momentum", Domain::float(0.5, 1.0).unwrap(), "nesterov", [true])
        .add_when("damping", Domain::fixed(0).unwrap(), "optimizer", ["sgd"])
        .build()
        .unwrap()
}

#[test]
fn conditions_reach_through_several_levels() {
    let space = example();
    let all = [Some(0.0), Some(1.0), Some(0.5)];
    assert_eq!(
        space.decode(&all).unwrap().to_string(),
        "optimizer=sgd nesterov=true momentum=0.75 damping=0"
    );
    let adam = [Some(1.0), Some(1.0), Some(0.5)];
    assert_eq!(space.decode(&adam).unwrap().to_string(), "optimizer=adam");
    assert!(!space.is_active(2, &adam));
    assert_eq!(space.parent(2), Some((1, &[1][..])));
    assert_eq!(space.parent(0), None);
}

#[test]
fn wrong_points_and_assignments_are_explained() {
    let space = example();
    assert_eq!(message(space.decode(&[])), "the point has 0 coordinates, the space has 3 dimensions");
    assert_eq!(
        message(space.decode(&[Some(2.0), None, None])),
        "the coordinate of `optimizer` is 2; expected a whole number from 0 to 1"
    );
    assert_eq!(
        message(space.decode(&[Some(0.0), Some(1.0), None])),
        "the coordinate of `momentum` is missing; expected a number from 0 to 1"
    );
    let encode = |values: &[(&str, Value)]| {
        let named = values.iter().map(|(name, value)| (*name, value.clone()));
        message(space.encode(&named.collect::<Params>()))
    };
    assert_eq!(encode(&[]), "`optimizer` has no value");
    let adam = ("optimizer", Value::from("adam"));
    assert_eq!(
        encode(&[adam.clone(), ("nestrov", true.into())]),
        "there is no parameter `nestrov` in the space; did you mean `nesterov`?"
    );
    assert_eq!(
        encode(&[adam, ("nesterov", true.into())]),
        "`nesterov` has a value, but its condition does not hold"
    );
    assert_eq!(
        encode(&[("optimizer", "lamb".into())]),
        "`optimizer` is lamb; expected a value of {choice: [sgd, adam]}"
    );
}

#[test]
fn wrong_spaces_are_explained() {
    let build = |name: &str, parent: &str, value: &str| {
        let lr = Domain::float(0.0, 1.0).unwrap();
        let act = Domain::choice(["relu", "gelu"]).unwrap();
        let builder = Space::builder().add("lr", lr).add("act", act);
        message(builder.add_when(name, Domain::bool(), parent, [value]).build())
    };
    assert!(build("2x", "act", "relu").starts_with("`2x` is not a valid parameter name"));
    assert!(build("lr", "act", "relu").starts_with("`lr` is there twice"));
    assert!(build("x", "acct", "relu").ends_with("before this one; did you mean `act`?"));
    assert!(build("x", "lr", "relu").starts_with("`lr` cannot decide about others"));
    assert_eq!(build("x", "act", "tanh"), "`act` is never tanh; expected a value of {choice: [relu, gelu]}");
    let none =
        Space::builder().add("a", Domain::bool()).add_when("b", Domain::bool(), "a", Vec::<Value>::new());
    assert!(message(none.build()).contains("never hold"));
}

#[test]
fn combinations_are_counted_where_they_can_be() {
    assert_eq!(example().combinations(), None);
    assert_eq!(Space::default().combinations(), Some(1));
    let wide = (0..8).fold(Space::builder(), |builder, place| {
        builder.add(&format!("x{place}"), Domain::int(0, 1 << 40).unwrap())
    });
    assert_eq!(wide.build().unwrap().combinations(), None);
}

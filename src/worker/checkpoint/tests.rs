use std::{
    io::{Cursor, Seek},
    sync::atomic::{AtomicU32, Ordering},
};

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::{envelope::write, *};
use crate::{
    ids::{Round, StudyId, TrialId},
    trials::group::Task,
};

mod bytes;
mod folders;

fn params(value: Value) -> Map<String, Value> {
    let Value::Object(params) = value else { panic!("parameters have names") };
    params
}

fn task() -> Task {
    let params = params(json!({"lr": 0.1, "layers": 3}));
    Task { study: StudyId(0xfeed), params, ..Task::new(TrialId(7), "net") }
}

fn position(steps: u64) -> Position {
    Position { steps, round: Round((3 << 32) + 1) }
}

/// A state with two vectors, whose numbers are 0, 1, 2 and so on.
fn contents(steps: u64) -> Contents {
    let vectors = vec![Stored::numbers("weights", 5), Stored::numbers("moments.0", 3)];
    Contents { position: position(steps), state: "{\"epochs\": 1.5}".to_owned(), vectors }
}

fn numbers() -> Vec<u8> {
    (0..8_u8).flat_map(|number| f32::from(number).to_le_bytes()).collect()
}

fn written(steps: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(&mut bytes, &Identity::of(&task()), Kind::Trained, &contents(steps), |out| {
        out.write_all(&numbers())
    })
    .expect("memory takes all");
    bytes
}

fn verify(bytes: &[u8]) -> Result<Contents, Problem> {
    envelope::verify(&mut Cursor::new(bytes), &Identity::of(&task()), Kind::Trained)
}

//! The bytes of one checkpoint.

use super::*;

#[test]
fn what_was_written_is_read() {
    let bytes = written(40);
    let mut input = Cursor::new(&bytes);
    let read = envelope::verify(&mut input, &Identity::of(&task()), Kind::Trained).expect("it is whole");
    assert_eq!(read, contents(40));
    let begin = input.stream_position().expect("memory") as usize;
    assert_eq!(bytes[begin..begin + 32], numbers(), "the numbers are next");
    assert_eq!(begin % 8, 0);
}

#[test]
fn what_is_not_the_trials_own_is_told_apart() {
    let bytes = written(40);
    let of = |task: &Task, kind| {
        let problem = envelope::verify(&mut Cursor::new(&bytes), &Identity::of(task), kind);
        problem.expect_err("it is not its own").to_string()
    };
    let study = format!("is of another study ({})", StudyId(0xfeed));
    for (other, problem) in [
        (Task { study: StudyId(1), ..task() }, study.as_str()),
        (Task { trial: TrialId(8), ..task() }, "is of another trial (7)"),
        (Task { trainable: "nut".to_owned(), ..task() }, "is of another trainable (`net`)"),
        (
            Task { params: params(json!({"lr": 0.2, "layers": 3})), ..task() },
            "is of a trial with other parameters",
        ),
    ] {
        assert_eq!(of(&other, Kind::Trained), problem);
    }
    assert_eq!(of(&task(), Kind::Emulated), "is of a training that was not emulated");
    // What may change while a trial lives.
    for same in [
        Task { epochs: 99.0, seed: 5, checkpoint: "elsewhere".into(), ..task() },
        Task { params: params(json!({"layers": 3, "lr": 0.1})), ..task() },
    ] {
        assert!(
            envelope::verify(&mut Cursor::new(&bytes), &Identity::of(&same), Kind::Trained).is_ok(),
            "{same:?}"
        );
    }
}

#[test]
fn parameters_that_only_look_alike_are_others() {
    let tag = |value| Identity::new(StudyId(1), TrialId(0), "net", &params(value)).tag();
    let all = [
        json!({"a": "bc"}),
        json!({"ab": "c"}),
        json!({"a": 1}),
        json!({"a": "1"}),
        json!({"a": 1.0}),
        json!({}),
    ];
    let tags: std::collections::BTreeSet<u64> = all.iter().cloned().map(tag).collect();
    assert_eq!(tags.len(), all.len());
}

#[test]
fn what_is_cut_off_or_from_elsewhere_is_said_so() {
    let bytes = written(40);
    let cut = verify(&bytes[..bytes.len() - 40]).expect_err("it is cut").to_string();
    assert_eq!(cut, format!("is cut off: it has {} of {} bytes", bytes.len() - 40, bytes.len()));
    assert_eq!(verify(b"").expect_err("nothing").to_string(), "is cut off: it has 0 of 40 bytes");
    let mut flipped = bytes.clone();
    flipped[bytes.len() - 50] ^= 1;
    assert!(matches!(verify(&flipped), Err(Problem::Damaged)));
    // The checksum is right, but the rest is not ours.
    let sealed = |text: String| {
        let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
        bytes.extend(text.bytes());
        let checksum = blake3::hash(&bytes);
        bytes.extend(checksum.as_bytes());
        verify(&bytes).expect_err("it is not ours").to_string()
    };
    assert!(sealed("{}".to_owned()).starts_with("is no checkpoint: missing field `__metadata__`"));
    let header_end = 8 + u64::from_le_bytes(bytes[..8].try_into().expect("eight")) as usize;
    let header = String::from_utf8(bytes[8..header_end].to_vec()).expect("text");
    assert!(sealed(header.clone()).contains("instead of"), "numbers are missing");
    let empty = header.replace("[0,20]", "[0,0]").replace("[20,32]", "[0,0]").replace("[32,64]", "[0,32]");
    let of = |from: &str, to: &str| sealed(empty.replace(from, to));
    assert_eq!(
        of("\"version\":\"1\"", "\"version\":\"2\""),
        "is of version 2 of the format, and this program reads version 1"
    );
    assert_eq!(of("\"trial\":\"7\"", "\"trial\":\"x\""), "is no checkpoint: its trial is `x`");
    assert_eq!(of("pollux-tune checkpoint", "other"), "is no checkpoint: it is of the format `other`");
    assert!(sealed(String::new()).starts_with("is no checkpoint: EOF"));
}

#[test]
fn a_writer_that_writes_too_little_is_noticed() {
    let wrote =
        write(Vec::new(), &Identity::of(&task()), Kind::Trained, &contents(1), |out| out.write_all(b"abcd"));
    assert!(wrote.expect_err("28 bytes are missing").to_string().contains("bytes were written instead of"));
}

#[test]
fn every_flip_of_a_bit_is_found() {
    let bytes = written(40);
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << bit;
            assert!(verify(&flipped).is_err(), "byte {at}, bit {bit}");
        }
    }
}

#[test]
fn every_cut_is_found() {
    let bytes = written(40);
    for length in 0..bytes.len() {
        let problem = verify(&bytes[..length]).expect_err("it is cut");
        assert!(matches!(problem, Problem::Truncated { .. } | Problem::Damaged), "{length}: {problem}");
    }
    let longer = [&bytes[..], &[0]].concat();
    assert!(matches!(verify(&longer), Err(Problem::Damaged)));
}

proptest! {
    /// Whatever else becomes of a file, it is never taken for a checkpoint, and nothing panics.
    #[test]
    fn no_other_bytes_are_a_checkpoint(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
        cut in prop::option::of(any::<prop::sample::Index>()),
        tail in prop::collection::vec(any::<u8>(), 0..50),
    ) {
        let bytes = written(40);
        let mut other = bytes.clone();
        for (at, value) in edits {
            let at = at.index(other.len());
            other[at] = value;
        }
        if let Some(cut) = cut {
            other.truncate(cut.index(bytes.len()));
        }
        other.extend(tail);
        prop_assert_eq!(verify(&other).is_ok(), other == bytes);
    }

    #[test]
    fn arbitrary_bytes_are_no_checkpoint(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(verify(&bytes).is_err());
    }
}

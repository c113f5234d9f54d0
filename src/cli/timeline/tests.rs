use std::{env, fs, process};

use super::*;
use crate::{
    ids::{Generation, GpuType, NodeId, SlotId, TrialId},
    store::{Journal, Store},
    trials::engine::{Fact, JournalEntry, Metrics},
};

const YAML: &str = "space: {x: {float: [0, 1]}}\nobjective: {minimize: loss}\nsearch: {trials: 2}\n";

fn slot(index: u32) -> SlotId {
    SlotId { node: NodeId(0), index }
}

fn started(trial: u32, generation: u32, slots: &[u32], holders: &[u32]) -> Fact {
    let (slots, holders) = [slots, holders].map(|all| all.iter().map(|&index| slot(index)).collect()).into();
    Fact::TrialStarted {
        trial: TrialId(trial),
        generation: Generation(generation),
        slots,
        batch: None,
        holders,
    }
}

fn created(trial: u32) -> Fact {
    let params = [("x", 0.5.into())].into_iter().collect();
    Fact::TrialCreated { trial: TrialId(trial), params, point: vec![Some(0.5)] }
}

/// Trial 1 takes a slot over from trial 0; an hour passes in which nobody runs the study.
fn facts() -> Vec<(f64, Fact)> {
    let trial = TrialId(0);
    let joined = || {
        let gpu_type = GpuType::new("t4").unwrap();
        Fact::NodeJoined { node: NodeId(0), name: String::new(), gpu_type, island: 0, slots: 2 }
    };
    let metrics = |loss: f64| Metrics::from([("loss".to_owned(), loss.into())]);
    let measured = |loss| Fact::Measured {
        trial,
        generation: Generation(1),
        number: 1,
        epochs: 1.0,
        metrics: metrics(loss),
        gpu_type: None,
        steps: vec![],
        noise: None,
        noise_batch: None,
    };
    vec![
        (500.0, Fact::StudyCreated { yaml: YAML.to_owned() }),
        (500.0, Fact::HeadStarted {}),
        (500.0, joined()),
        (500.0, created(0)),
        (500.0, created(1)),
        (500.0, started(0, 1, &[0, 1], &[])),
        (502.0, Fact::GroupFormed { trial, generation: Generation(1) }),
        (505.0, measured(3.0)),
        (510.0, started(0, 2, &[0], &[0, 1])),
        (510.0, started(1, 1, &[1], &[])),
        (515.0, measured(2.0)),
        (520.0, Fact::TrialDone { trial, values: vec![2.0] }),
        (4120.0, Fact::HeadStarted {}),
        (4121.0, joined()),
        (4121.0, started(1, 2, &[1], &[])),
        (4123.0, Fact::SlotLost { slot: slot(0), reason: "killed".to_owned() }),
        (4125.0, Fact::GroupFormed { trial: TrialId(1), generation: Generation(2) }),
    ]
}

fn with_reader<T>(name: &str, look: impl FnOnce(&Reader) -> T) -> T {
    let root = env::temp_dir().join(format!("pollux-tune-timeline-{name}-{}", process::id()));
    let mut store = Store::open(&root).unwrap();
    let entries: Vec<JournalEntry> =
        facts().into_iter().map(|(at_s, fact)| JournalEntry { at_s, fact }).collect();
    store.append(&entries).unwrap();
    let seen = look(&Reader::open(&root).unwrap());
    drop(store);
    fs::remove_dir_all(&root).unwrap();
    seen
}

#[test]
fn time_stands_still_while_nobody_runs_the_study() {
    let history = with_reader("clock", |reader| History::read(reader).unwrap());
    assert_eq!((history.length_s, history.resumed.as_slice()), (25.0, &[20.0][..]));
    let occupancies: Vec<_> = history
        .occupancies
        .iter()
        .map(|occupancy| {
            (
                occupancy.at.slot.index,
                occupancy.trial.0,
                occupancy.at.from_s,
                occupancy.formed_s,
                occupancy.at.to_s,
            )
        })
        .collect();
    let expected = [
        (0, 0, 0.0, 2.0, 10.0),
        (1, 0, 0.0, 2.0, 10.0),
        (0, 0, 10.0, 20.0, 20.0),
        (1, 1, 10.0, 20.0, 20.0),
        (1, 1, 21.0, 25.0, 25.0),
    ];
    assert_eq!(occupancies, expected);
    let up: Vec<_> =
        history.up.iter().map(|interval| (interval.slot.index, interval.from_s, interval.to_s)).collect();
    assert_eq!(up, [(0, 0.0, 20.0), (1, 0.0, 20.0), (0, 21.0, 23.0), (1, 21.0, 25.0)]);
    assert_eq!((history.reshapes, history.best.as_slice()), (1, &[TrialId(0)][..]));
    assert_eq!(history.curves[&TrialId(0)], [(5.0, 3.0), (15.0, 2.0)]);
    assert_eq!(history.results, [(20.0, TrialId(0), 2.0)]);
}

#[test]
fn the_picture_names_what_is_emulated_and_counts() {
    let text = with_reader("title", |reader| draw(reader, Some("2x8xa100, time scale 0.01")).unwrap());
    let title = "2 trials to minimize loss (emulated: 2x8xa100, time scale 0.01)";
    assert_eq!(text.matches(title).count(), 2, "{text}");
    // 44 of 46 slot-seconds.
    let caption = [
        "1 running, 1 done",
        "best: trial 0, loss 2",
        "slots in use 96 % of the time",
        "1 change of groups that trained",
    ];
    assert!(text.contains(&caption.join("  ·  ")), "{text}");
    let plain = with_reader("plain", |reader| draw(reader, None).unwrap());
    assert!(!plain.contains("emulated"), "{plain}");
}

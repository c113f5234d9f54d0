//! `pollux-tune nodes`, `drain` and `remove`: the machines of a study.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write,
    path::Path,
    time::Duration,
};

use serde_json::json;
use thiserror::Error;

use super::{
    inspect::duration,
    json,
    output::{Format, quoted, table},
    stop::LATER,
};
use crate::{
    cli,
    ids::{NodeId, TrialId},
    store::{Reader, Runner},
    trials::engine::{NodeState, State},
    wire::{self, ControlRequest, Heard},
};

/// What can be wrong with a question about machines.
#[derive(Debug, Error)]
pub(crate) enum Error {
    #[error("there is no machine `{name}` in the study, there are: {known}")]
    NoNode { name: String, known: String },
    #[error("nobody runs the study in {folder}: machines can be taken from it only while it runs")]
    NotRun { folder: String },
    #[error("the study in {folder} is run by process {process} on {host}: give the command there")]
    Elsewhere { folder: String, process: u32, host: String },
}

/// A machine, as the user sees it.
struct Row {
    node: NodeId,
    name: String,
    state: &'static str,
    gpu_type: String,
    /// Those in use, and all.
    slots: (usize, u32),
    trials: BTreeSet<TrialId>,
    since_s: f64,
    note: String,
}

/// Where the study stands, by its journal.
fn state(reader: &Reader) -> Result<State, cli::Error> {
    let mut state = State::default();
    reader.replay(|entry| state.apply(&entry).map_err(cli::Error::from))?;
    Ok(state)
}

/// Shows all machines: those that are here, that are about to leave, that cannot start workers, and that are gone.
pub(crate) fn list(folder: &Path, format: Format, out: &mut impl Write) -> Result<(), cli::Error> {
    let reader = Reader::open(folder)?;
    let (state, is_run) = (state(&reader)?, reader.is_run());
    let rows = rows(&state);
    let text = match format {
        Format::Json => {
            rows.iter().map(|row| json::object(row_json(row, &state))).collect::<Vec<_>>().join("\n")
        }
        Format::Text => {
            let mut lines = Vec::new();
            if !is_run {
                lines.push("nobody runs the study: these are the machines of its last run".to_owned());
            }
            if rows.is_empty() {
                lines.push("no machine has joined yet".to_owned());
            } else {
                lines.extend(table(&cells(&rows, &state)));
            }
            lines.join("\n")
        }
    };
    if text.is_empty() {
        return Ok(());
    }
    writeln!(out, "{text}").map_err(cli::Error::Stdout)
}

/// The machines of a study, one object for each.
pub(super) fn machines(state: &State) -> Vec<serde_json::Value> {
    rows(state).iter().map(|row| row_json(row, state)).collect()
}

fn rows(state: &State) -> Vec<Row> {
    let mut used: BTreeMap<NodeId, (usize, BTreeSet<TrialId>)> = BTreeMap::new();
    for (slot, trial) in state.reserved() {
        let (slots, trials) = used.entry(slot.node).or_default();
        *slots += 1;
        trials.insert(trial);
    }
    let mut rows = Vec::new();
    for (&node, known) in &state.nodes {
        let (in_use, trials) = used.remove(&node).unwrap_or_default();
        let (name, note) = (known.name.clone(), note(state, node, known));
        rows.push(Row {
            node,
            name,
            state: state_of(state, node, known),
            gpu_type: known.gpu_type.name().to_owned(),
            slots: (in_use, known.slots),
            trials,
            since_s: known.draining.as_ref().map_or(known.since_s, |draining| draining.since_s),
            note,
        });
    }
    // Those that have not come so far as to join.
    for (&node, reason) in state.blocked.iter().filter(|(node, _)| !state.nodes.contains_key(node)) {
        let (name, gpu_type, note) = (String::new(), String::new(), reason.clone());
        let (slots, trials, since_s) = ((0, 0), BTreeSet::new(), state.started_s);
        rows.push(Row { node, name, state: "blocked", gpu_type, slots, trials, since_s, note });
    }
    for (&node, lost) in &state.lost {
        rows.push(Row {
            node,
            name: lost.name.clone(),
            state: "lost",
            gpu_type: lost.gpu_type.name().to_owned(),
            slots: (0, lost.slots),
            trials: BTreeSet::new(),
            since_s: lost.at_s,
            note: lost.reason.clone(),
        });
    }
    rows.sort_by_key(|row| row.node);
    rows
}

fn state_of(state: &State, node: NodeId, known: &NodeState) -> &'static str {
    if known.draining.is_some() {
        "draining"
    } else if state.blocked.contains_key(&node) {
        "blocked"
    } else if known.up.len() < known.slots as usize {
        "partly up"
    } else {
        "up"
    }
}

fn note(state: &State, node: NodeId, known: &NodeState) -> String {
    if let Some(draining) = &known.draining {
        let when = match draining.deadline_s() {
            Some(until_s) => format!("at the latest in {}", duration((until_s - state.at_s).max(0.0))),
            None => "when nothing runs there any more".to_owned(),
        };
        return format!("{}; it leaves {when}", draining.reason);
    }
    if let Some(reason) = state.blocked.get(&node) {
        return reason.clone();
    }
    let missing = known.slots as usize - known.up.len();
    if missing > 0 { format!("{missing} without a worker") } else { String::new() }
}

fn row_json(row: &Row, state: &State) -> serde_json::Value {
    json!({
        "node": row.node.0,
        "name": row.name,
        "state": row.state,
        "type": row.gpu_type,
        "slots": row.slots.1,
        "busy": row.slots.0,
        "trials": row.trials.iter().map(|trial| trial.0).collect::<Vec<_>>(),
        "since": row.since_s,
        "seconds": (state.at_s - row.since_s).max(0.0),
        "note": row.note,
    })
}

fn cells(rows: &[Row], state: &State) -> Vec<Vec<String>> {
    let heading = ["node", "name", "state", "type", "slots", "trials", "since", ""];
    let mut all = vec![heading.map(str::to_owned).to_vec()];
    let nothing = |text: String| if text.is_empty() { "-".to_owned() } else { text };
    for row in rows {
        let trials: Vec<String> = row.trials.iter().map(ToString::to_string).collect();
        all.push(vec![
            row.node.to_string(),
            nothing(quoted(&row.name)),
            row.state.to_owned(),
            nothing(row.gpu_type.clone()),
            format!("{}/{}", row.slots.0, row.slots.1),
            nothing(trials.join(" ")),
            format!("{} ago", duration((state.at_s - row.since_s).max(0.0))),
            row.note.lines().next().unwrap_or_default().to_owned(),
        ]);
    }
    all
}

/// The machines that are here of these numbers or names. A name may stand for several.
fn named(state: &State, names: &[String]) -> Result<Vec<NodeId>, Error> {
    let mut nodes = BTreeSet::new();
    for name in names {
        let number = name.parse().ok().map(NodeId).filter(|node| state.nodes.contains_key(node));
        // A machine with GPUs of several types is several nodes, `name/type` each.
        let is_it = |known: &str| {
            known == name || known.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with('/'))
        };
        let by_name = state.nodes.iter().filter(|(_, known)| is_it(&known.name)).map(|(node, _)| *node);
        let found: Vec<NodeId> = number.map_or_else(|| by_name.collect(), |node| vec![node]);
        if found.is_empty() {
            let known: Vec<String> = state.nodes.keys().map(|node| state.node_label(*node)).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            return Err(Error::NoNode { name: quoted(name), known });
        }
        nodes.extend(found);
    }
    Ok(nodes.into_iter().collect())
}

/// Takes machines from a study that runs: at the latest after a time, or when nothing runs there any more.
pub(crate) fn drain(
    folder: &Path,
    names: &[String],
    within: Option<Duration>,
    out: &mut impl Write,
) -> Result<(), cli::Error> {
    let reader = Reader::open(folder)?;
    let shown = || folder.display().to_string();
    let Some(Runner { process, host, .. }) = reader.runner()? else {
        return Err(Error::NotRun { folder: shown() }.into());
    };
    if host != Runner::this().host {
        return Err(Error::Elsewhere { folder: shown(), process, host }.into());
    }
    let state = state(&reader)?;
    let nodes = named(&state, names)?;
    let within_s = within.map(|within| within.as_secs_f64());
    let request = ControlRequest::Drain { nodes: nodes.clone(), within_s };
    let heard = wire::ask_head(&reader.folder().control(), request)?;
    let labels: Vec<String> = nodes.iter().map(|node| state.node_label(*node)).collect();
    let (labels, verb) = (labels.join(", "), if nodes.len() == 1 { "leaves" } else { "leave" });
    let when = within_s.map_or_else(
        || "when nothing runs there any more".to_owned(),
        |within_s| format!("at the latest in {}", duration(within_s)),
    );
    let line = match heard {
        Heard::Done => format!("{labels} {verb} {when}; pollux-tune nodes {} shows how far it is", shown()),
        Heard::Noted => format!("{labels}: {LATER}"),
    };
    writeln!(out, "{line}").map_err(cli::Error::Stdout)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ids::GpuType,
        trials::engine::{Fact, JournalEntry},
    };

    fn at(state: &mut State, at_s: f64, fact: Fact) {
        state.apply(&JournalEntry { at_s, fact }).expect("it follows");
    }

    fn machines() -> State {
        let mut state = State::default();
        at(&mut state, 100.0, Fact::HeadStarted {});
        for (node, name, gpu_type) in
            [(0, "gpu1/a100", "a100"), (1, "gpu1/t4", "t4"), (2, "", "t4"), (7, "2", "t4")]
        {
            let (name, gpu_type) = (name.to_owned(), GpuType::new(gpu_type).unwrap());
            let joined = Fact::NodeJoined { node: NodeId(node), name, gpu_type, island: 0, slots: 2 };
            at(&mut state, 110.0 + f64::from(node), joined);
        }
        state
    }

    #[test]
    fn machines_are_found_by_number_and_name() {
        let state = machines();
        let find = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            named(&state, &names).map(|nodes| nodes.iter().map(|node| node.0).collect::<Vec<_>>())
        };
        assert_eq!(find(&["gpu1/t4", "0"]).unwrap(), [0, 1]);
        assert_eq!(find(&["gpu1"]).unwrap(), [0, 1], "a machine of two types");
        assert_eq!(find(&["2"]).unwrap(), [2], "a number counts before a name");
        let error = find(&["gpu", "2"]).unwrap_err().to_string();
        let known = "node 0 (gpu1/a100), node 1 (gpu1/t4), node 2, node 7 (2)";
        assert_eq!(error, format!("there is no machine `gpu` in the study, there are: {known}"));
    }

    #[test]
    fn each_machine_has_a_row() {
        let mut state = machines();
        let slot = crate::ids::SlotId { node: NodeId(2), index: 1 };
        at(&mut state, 130.0, Fact::SlotLost { slot, reason: "killed".to_owned() });
        let draining = |node, until_s| Fact::NodeDraining {
            node: NodeId(node),
            until_s,
            reason: "its time ends".to_owned(),
        };
        at(&mut state, 130.0, draining(0, 190.0));
        at(&mut state, 131.0, draining(7, 1e12));
        at(&mut state, 140.0, Fact::NodeLost { node: NodeId(1), reason: "no word\nfrom it".to_owned() });
        at(&mut state, 150.0, Fact::NodeBlocked { node: NodeId(9), reason: "no more processes".to_owned() });
        let rows = rows(&state);
        let shown = table(&cells(&rows, &state)).join("\n");
        let wanted = "  node       name      state  type  slots  trials       since
     0  gpu1/a100   draining  a100    0/2       -  20.0 s ago  its time ends; it leaves at the latest in 40.0 s
     1    gpu1/t4       lost    t4    0/2       -  10.0 s ago  no word
     2          -  partly up    t4    0/2       -  38.0 s ago  1 without a worker
     7          2   draining    t4    0/2       -  19.0 s ago  its time ends; it leaves when nothing runs there any more
     9          -    blocked     -    0/0       -  50.0 s ago  no more processes";
        assert_eq!(shown, wanted);
        let json = row_json(&rows[1], &state);
        assert_eq!(
            (&json["state"], &json["since"], &json["seconds"]),
            (&json!("lost"), &json!(140.0), &json!(10.0))
        );
    }
}

//! `pollux-tune explain`: why a trial has the GPUs that it has, what it would do with others, and why it was stopped.

use std::{collections::BTreeMap, io::Write, path::Path};

use serde_json::json;

use super::{
    inspect::{self, duration, of_emulation},
    json,
    output::{Format, pluralize, table},
    terminal::folded,
};
use crate::{
    cli,
    ids::{SlotId, TrialId},
    space::{Objective, Study, Value},
    store::{Reader, TrialState},
    trials::{
        End,
        engine::{Engine, Fact, JournalEntry, Prospect, Prospects, State, Target, TrialKind},
        stopping::{Reason, StopReason, value_at_rung},
    },
};

/// So many plans are shown, the last ones.
const PLANS: usize = 8;

/// What a newcomer does not know.
const TERMS: &str = "  goodput: examples per second, each counted by how much it teaches; a fair share: the same part of the slots for \
                     each trial";

/// What the journal says about a trial.
struct Account {
    engine: Engine,
    trial: TrialId,
    /// The plans that meant another number of GPUs for it, with their times.
    plans: Vec<(f64, Target)>,
    /// The same ones that left it as it was.
    kept: usize,
    /// What every trial has reported of the first objective, as a loss, until this one was stopped.
    losses: BTreeMap<TrialId, Vec<(f64, f64)>>,
    /// Those of them that count for no other trial.
    withdrawn: Vec<TrialId>,
    created_s: f64,
    /// When it first had a slot.
    first_s: Option<f64>,
    /// What was known of it when it ended, else is known now.
    prospects: Option<Prospects>,
    slots: Vec<SlotId>,
}

/// Explains a trial.
pub(super) fn run(folder: &Path, trial: u32, format: Format, out: &mut impl Write) -> Result<(), cli::Error> {
    let reader = Reader::open(folder)?;
    let (study, id) = (reader.study()?, TrialId(trial));
    if reader.trial(id)?.is_none() {
        let (folder, count) = (folder.display().to_string(), reader.trials()?.len());
        return Err(inspect::Error::NoTrial { trial, folder, count }.into());
    }
    let account = Account::read(&reader, &study, id)?;
    let emulated = reader.folder().emulated();
    let text = match format {
        Format::Json => {
            let mut object = account.json(&study);
            object["emulated"] = json!(emulated);
            json::object(object)
        }
        Format::Text => {
            let mut lines = account.lines(&study);
            lines.extend(emulated.map(|devices| of_emulation(&devices)));
            folded(&lines.join("\n"))
        }
    };
    writeln!(out, "{text}").map_err(cli::Error::Stdout)
}

impl Account {
    fn read(reader: &Reader, study: &Study, trial: TrialId) -> Result<Self, cli::Error> {
        let engine = Engine::new(study, TrialKind::of(study))?;
        let mut account = Self {
            engine,
            trial,
            plans: Vec::new(),
            kept: 0,
            losses: BTreeMap::new(),
            withdrawn: Vec::new(),
            created_s: reader.status()?.created_s,
            first_s: None,
            prospects: None,
            slots: Vec::new(),
        };
        reader.replay(|entry| account.take(study, &entry))?;
        if let Some(active) = account.engine.state().active.get(&trial) {
            account.slots = active.slots().to_vec();
            account.prospects = account.engine.prospects(trial);
        }
        Ok(account)
    }

    fn take(&mut self, study: &Study, entry: &JournalEntry) -> Result<(), cli::Error> {
        let JournalEntry { at_s, fact } = entry;
        let is_over = self.engine.state().ended.contains_key(&self.trial);
        match fact {
            Fact::PlanAdopted { targets, .. } => {
                for target in targets.iter().filter(|target| target.trial == self.trial) {
                    let before = self.plans.last().map(|(_, before)| &before.slots);
                    if before == Some(&target.slots) {
                        self.kept += 1;
                    } else {
                        self.plans.push((at_s - self.created_s, target.clone()));
                    }
                }
            }
            Fact::TrialStarted { trial, slots, .. } if *trial == self.trial => {
                self.first_s.get_or_insert(at_s - self.created_s);
                self.slots.clone_from(slots);
            }
            Fact::Measured { trial, epochs, metrics, .. } if !is_over => {
                if let Some((objective, value)) =
                    study.objectives.first().and_then(|it| Some((it, metrics.get(&it.metric)?)))
                {
                    self.losses.entry(*trial).or_default().push((*epochs, objective.loss(value.value())));
                }
            }
            Fact::TrialRetried { trial } => {
                self.losses.remove(trial);
                self.withdrawn.retain(|known| known != trial);
            }
            _ => {}
        }
        match fact.end() {
            Some((trial, _)) if trial == self.trial => self.prospects = self.engine.prospects(trial),
            Some((trial, End::Failed(_) | End::Cancelled(_))) if !is_over => self.withdrawn.push(trial),
            _ => {}
        }
        Ok(self.engine.apply(entry)?)
    }

    fn lines(&self, study: &Study) -> Vec<String> {
        let state = self.engine.state();
        let (params, text) = match (state.active.get(&self.trial), state.ended.get(&self.trial)) {
            (Some(active), _) => (&active.params, self.now(state, TrialState::of(active))),
            (None, Some(ended)) => (&ended.params, ended.end.to_string()),
            (None, None) => return Vec::new(),
        };
        let mut lines = vec![format!("trial {}: {params}", self.trial), format!("  state  {text}")];
        lines.extend(self.allocations(study));
        lines.extend(self.speeds(study));
        if let Some(End::Stopped(reason)) = state.ended.get(&self.trial).map(|ended| &ended.end) {
            lines.push("why it was stopped:".to_owned());
            lines.extend(self.stopped(study, reason).into_iter().map(|line| format!("  {line}")));
        }
        lines
    }

    /// The same for programs.
    fn json(&self, study: &Study) -> serde_json::Value {
        let state = self.engine.state();
        let (active, ended) = (state.active.get(&self.trial), state.ended.get(&self.trial));
        let params = active.map(|active| &active.params).or_else(|| ended.map(|ended| &ended.params));
        let now = active.map(TrialState::of).or_else(|| ended.map(|ended| TrialState::of_end(&ended.end)));
        let slots = |slots: &[SlotId]| slots.iter().map(ToString::to_string).collect::<Vec<_>>();
        let plan = |(at_s, target): &(f64, Target)| json!({"seconds": at_s, "slots": slots(&target.slots), "speedup": target.speedup, "reason": target.reason.to_string()});
        let prospects = self.prospects.as_ref().map(|Prospects { all, cap }| {
            let one = |it: &Prospect| {
                json!({"slots": it.gpus, "type": it.gpu_type.to_string(), "machines": it.nodes, "goodput": it.goodput, "batch": it.batch, "explored": it.gpus <= *cap})
            };
            all.iter().map(one).collect::<Vec<_>>()
        });
        let stopped = match ended.map(|ended| &ended.end) {
            Some(End::Stopped(reason)) => Some(self.stopped(study, reason)),
            _ => None,
        };
        json!({
            "id": self.trial.0,
            "params": params.map(json::params),
            "state": now.map(TrialState::name),
            "slots": slots(&self.slots),
            "plans": self.plans.iter().map(plan).collect::<Vec<_>>(),
            "kept": self.kept,
            "prospects": prospects,
            "stopped": stopped,
        })
    }

    fn now(&self, state: &State, phase: TrialState) -> String {
        let gpu_type = state.gpu_type(&self.slots).map_or_else(String::new, |known| format!(" ({known})"));
        let slots: Vec<String> = self.slots.iter().map(ToString::to_string).collect();
        if slots.is_empty() {
            phase.to_string()
        } else {
            format!("{phase} on {}{gpu_type}: {}", pluralize(slots.len(), "slot"), slots.join(" "))
        }
    }

    /// Why it had which GPUs.
    fn allocations(&self, study: &Study) -> Vec<String> {
        let mut lines = vec!["why it has these slots:".to_owned()];
        if TrialKind::of(study) == TrialKind::Rigid {
            let each = pluralize(study.trial.slots() as usize, "slot");
            let began = self.first_s.map_or_else(
                || "it has not had any yet".to_owned(),
                |at_s| format!("this one began at {}", duration(at_s)),
            );
            lines.push(format!("  every trial of this study runs on {each}, in the order of their numbers, when so many are free; {began}"));
            return lines;
        }
        if self.plans.is_empty() {
            lines.push("  no plan has named it yet".to_owned());
            return lines;
        }
        let policy = study.scheduler.policy;
        let left_out = self.plans.len().saturating_sub(PLANS);
        if left_out > 0 {
            lines.push(format!("  {left_out} earlier plans of the policy `{policy}` are left out"));
        }
        let row = |(at_s, target): &(f64, Target)| {
            let slots = match target.slots.len() {
                0 => "none".to_owned(),
                count => pluralize(count, "slot"),
            };
            let speedup = if target.slots.is_empty() {
                String::new()
            } else {
                format!("{:.2}x of its fair share", target.speedup)
            };
            vec![duration(*at_s), slots, speedup, target.reason.to_string()]
        };
        let mut rows =
            vec![["at", "slots", "expected goodput", "reason of the plan"].map(str::to_owned).to_vec()];
        rows.extend(self.plans[left_out..].iter().map(row));
        lines.extend(table(&rows));
        if self.kept > 0 {
            let plans = pluralize(self.kept, "other plan");
            lines.push(format!("  {plans} left it where it was"));
        }
        lines.push(TERMS.to_owned());
        lines
    }

    /// What it would do with other numbers of GPUs.
    fn speeds(&self, study: &Study) -> Vec<String> {
        let is_over = self.engine.state().ended.contains_key(&self.trial);
        let mut lines = vec!["with other numbers of slots:".to_owned()];
        let kind = TrialKind::of(study);
        let Some(Prospects { all, cap }) = &self.prospects else {
            lines.push(match kind {
                TrialKind::Rigid => {
                    "  a program without `trial.elastic` keeps the number that it has".to_owned()
                }
                _ => "  nothing is known of its speed yet: that takes a report with step times".to_owned(),
            });
            return lines;
        };
        let own_type = self.engine.state().gpu_type(&self.slots);
        let own = self.slots.len() as u32;
        let is_own = |gpu_type, gpus| own_type == Some(gpu_type) && own == gpus;
        let reference =
            all.iter().find(|it| is_own(&it.gpu_type, it.gpus)).or_else(|| all.first()).map(|it| it.goodput);
        let mut rows =
            vec![["slots", "type", "machines", "goodput", "batch", ""].map(str::to_owned).to_vec()];
        for known in all {
            let share = reference.filter(|of| *of > 0.0).map_or(0.0, |of| known.goodput / of);
            let mut notes = Vec::new();
            if is_own(&known.gpu_type, known.gpus) {
                notes.push(if is_over { "what it had" } else { "what it has" });
            }
            if known.gpus > *cap {
                notes.push("not explored yet");
            }
            rows.push(vec![
                known.gpus.to_string(),
                known.gpu_type.to_string(),
                known.nodes.to_string(),
                format!("{share:.2}x"),
                known.batch.map_or_else(|| "-".to_owned(), |batch| batch.to_string()),
                notes.join(", "),
            ]);
        }
        lines.extend(table(&rows));
        let when = if is_over { "when it ended" } else { "now" };
        lines.push(format!(
            "  by what was known of its speed {when}; the scheduler gives at most {cap} until more were tried"
        ));
        lines
    }

    /// Why it was stopped early.
    fn stopped(&self, study: &Study, reason: &StopReason) -> Vec<String> {
        let StopReason::Rule(reason) = reason else { return vec![reason.to_string()] };
        let rule = format!("early stopping `{}`: {reason}", study.search.early_stopping.rule);
        let mut lines = vec![rule];
        let (Reason::Rung { rung, kept, .. }, Some(objective)) = (reason, study.objectives.first()) else {
            return lines;
        };
        let Objective { metric, .. } = objective;
        let at_rung = |trial: &TrialId| value_at_rung(self.losses.get(trial)?.iter().copied(), *rung);
        let others =
            self.losses.keys().filter(|trial| **trial != self.trial && !self.withdrawn.contains(trial));
        let mut others: Vec<f64> = others.filter_map(at_rung).collect();
        others.sort_by(f64::total_cmp);
        // A loss has the sign of what is minimized.
        let shown = |loss: f64| Value::from(objective.loss(loss)).short();
        if let Some(own) = at_rung(&self.trial) {
            lines.push(format!("its {metric} there was {}", shown(own)));
        }
        if let Some(last) = kept.checked_sub(1).and_then(|last| others.get(last)) {
            let threshold = format!("to continue, it would have needed {metric} {} or better", shown(*last));
            lines.push(threshold);
        }
        lines
    }
}

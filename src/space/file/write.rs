//! A study as a file again.

use std::{fmt::Write, time::Duration};

use super::{
    super::value::text_to_yaml,
    settings::{Objective, Program, SchedulerSettings, SearchSettings, TrialSettings},
    study::Study,
};

impl Study {
    /// A study file with every setting written out, which is read as the same study again.
    ///
    /// ```
    /// use pollux_tune::space::Study;
    /// let yaml = "{space: {lr: {log: [1e-5, 1]}}, objective: {minimize: loss}}";
    /// let study = Study::from_yaml("study.yaml", yaml)?;
    /// let whole = study.to_yaml();
    /// assert!(whole.contains("\n  trials: 100\n"), "{whole}");
    /// assert_eq!(Study::from_yaml("study.yaml", &whole)?, study);
    /// # Ok::<(), pollux_tune::space::Diagnostics>(())
    /// ```
    #[must_use]
    pub fn to_yaml(&self) -> String {
        let mut yaml = self.space.to_yaml();
        yaml.push_str("objective:\n");
        for Objective { metric, direction } in &self.objectives {
            let _ = writeln!(yaml, "  - {{{direction}: {}}}", text_to_yaml(metric));
        }
        section(&mut yaml, "trial", trial(&self.trial));
        section(&mut yaml, "search", search(&self.search));
        section(&mut yaml, "scheduler", scheduler(&self.scheduler));
        if let Some(cluster) = &self.cluster {
            let _ = writeln!(yaml, "cluster: {}", text_to_yaml(&cluster.to_string()));
        }
        yaml
    }
}

/// Keys whose value is none are left out.
type Entries<const N: usize> = [(&'static str, Option<String>); N];

fn section<const N: usize>(yaml: &mut String, name: &str, entries: Entries<N>) {
    let _ = writeln!(yaml, "{name}:");
    for (key, value) in entries {
        if let Some(value) = value {
            let _ = writeln!(yaml, "  {key}: {value}");
        }
    }
}

fn duration(duration: Duration) -> String {
    let whole = format!("{}s", duration.as_secs());
    match duration.subsec_nanos() {
        0 => whole,
        nanos => format!("{whole}{}ms", f64::from(nanos) / 1e6),
    }
}

fn number(number: f64) -> String {
    format!("{number:?}")
}

fn trial(trial: &TrialSettings) -> Entries<14> {
    let (trainable, command) = match &trial.program {
        Some(Program::Trainable(name)) => (Some(text_to_yaml(name)), None),
        Some(Program::Command(words)) => {
            let words: Vec<String> = words.iter().map(|word| text_to_yaml(word)).collect();
            (None, Some(format!("[{}]", words.join(", "))))
        }
        None => (None, None),
    };
    [
        ("trainable", trainable),
        ("command", command),
        ("epochs", Some(number(trial.epochs))),
        ("initial_batch", Some(trial.initial_batch.to_string())),
        ("max_batch", Some(trial.max_batch.to_string())),
        ("max_batch_per_gpu", trial.max_batch_per_gpu.map(|batch| batch.to_string())),
        ("batch_per_gpu", trial.batch_per_gpu.map(|batch| batch.to_string())),
        ("scaling", Some(trial.scaling.to_string())),
        ("checkpoint_interval", Some(duration(trial.checkpoint_interval))),
        ("keep_checkpoints", Some(trial.keep_checkpoints.to_string())),
        ("min_gpus", Some(trial.min_gpus.to_string())),
        ("max_gpus", trial.max_gpus.map(|gpus| gpus.to_string())),
        ("timeout", trial.timeout.map(duration)),
        ("silence", trial.silence.map(duration)),
    ]
}

fn search(search: &SearchSettings) -> Entries<7> {
    let stopping = &search.early_stopping;
    let threshold =
        stopping.threshold.map_or_else(String::new, |bound| format!(", threshold: {}", number(bound)));
    let stopping = format!(
        "{{rule: {}, grace: {}, reduction: {}, patience: {}{threshold}}}",
        stopping.rule,
        number(stopping.grace),
        stopping.reduction,
        number(stopping.patience)
    );
    [
        ("algorithm", Some(search.algorithm.to_string())),
        ("trials", Some(search.trials.to_string())),
        ("parallel", Some(search.parallel.to_string())),
        ("seed", Some(search.seed.to_string())),
        ("timeout", search.timeout.map(duration)),
        ("max_failures", Some(search.max_failures.to_string())),
        ("early_stopping", Some(stopping)),
    ]
}

fn scheduler(scheduler: &SchedulerSettings) -> Entries<7> {
    [
        ("policy", Some(scheduler.policy.to_string())),
        ("interval", Some(duration(scheduler.interval))),
        ("immediate", Some(scheduler.immediate.to_string())),
        ("p", Some(number(scheduler.p))),
        ("avoid_interference", Some(scheduler.avoid_interference.to_string())),
        ("knowledge_sharing", Some(scheduler.knowledge_sharing.to_string())),
        ("promise_weighting", Some(scheduler.promise_weighting.to_string())),
    ]
}

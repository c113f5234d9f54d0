//! A study as a file again.

use std::{collections::BTreeMap, fmt::Write, time::Duration};

use super::{
    super::value::text_to_yaml,
    machines::{Machines, PilotSpec, SshHost},
    settings::{Objective, Program, PythonEntry, SchedulerSettings, TrialSettings},
    study::{Study, default_grace, default_reduction},
};

impl Study {
    /// A study file with every setting written out that does not follow from others, which is read as the same study again.
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
        section(&mut yaml, "search", search(self));
        section(&mut yaml, "scheduler", scheduler(&self.scheduler));
        if let Some(cluster) = &self.cluster {
            let _ = writeln!(yaml, "cluster: {}", text_to_yaml(&cluster.to_string()));
        }
        if let Some(machines) = &self.machines {
            write_machines(&mut yaml, machines);
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

fn write_machines(yaml: &mut String, Machines { listen, slurm, hosts }: &Machines) {
    yaml.push_str("cluster:\n");
    if let Some(listen) = listen {
        let _ = writeln!(yaml, "  listen: {}", text_to_yaml(listen));
    }
    let list = |yaml: &mut String, name: &str, entries: Vec<String>| {
        if !entries.is_empty() {
            let _ = writeln!(yaml, "  {name}:");
            for entry in &entries {
                let _ = writeln!(yaml, "    - {{{entry}}}");
            }
        }
    };
    list(yaml, "slurm", slurm.iter().map(|spec| flow(pilots(spec))).collect());
    list(yaml, "hosts", hosts.iter().map(|entry| flow(host(entry))).collect());
}

/// Entries of a mapping in one line.
fn flow<const N: usize>(entries: Entries<N>) -> String {
    let given = entries.into_iter().filter_map(|(key, value)| Some(format!("{key}: {}", value?)));
    given.collect::<Vec<_>>().join(", ")
}

fn words(words: &[String]) -> String {
    let words: Vec<String> = words.iter().map(|word| text_to_yaml(word)).collect();
    format!("[{}]", words.join(", "))
}

fn variables(env: &BTreeMap<String, String>) -> String {
    let each = env.iter().map(|(name, value)| format!("{}: {}", text_to_yaml(name), text_to_yaml(value)));
    each.collect::<Vec<_>>().join(", ")
}

fn pilots(spec: &PilotSpec) -> Entries<10> {
    let text = |text: &Option<String>| text.as_deref().map(text_to_yaml);
    [
        ("nodes", Some(spec.nodes.to_string())),
        ("gres", spec.gres.as_ref().map(|gres| text_to_yaml(&gres.to_string()))),
        ("slots", spec.slots.as_ref().map(|slots| text_to_yaml(&slots.to_string()))),
        ("partition", text(&spec.partition)),
        ("time", spec.time.map(duration)),
        ("setup", text(&spec.setup)),
        ("account", text(&spec.account)),
        ("qos", text(&spec.qos)),
        ("cpus", spec.cpus.map(|cpus| cpus.to_string())),
        ("extra", (!spec.extra.is_empty()).then(|| words(&spec.extra))),
    ]
}

fn host(host: &SshHost) -> Entries<3> {
    [
        ("host", Some(text_to_yaml(&host.host))),
        ("program", host.program.as_deref().map(text_to_yaml)),
        ("slots", host.slots.as_ref().map(|slots| text_to_yaml(&slots.to_string()))),
    ]
}

fn trial(trial: &TrialSettings) -> Entries<22> {
    let (mut trainable, mut command, mut python, mut module, mut interpreter) =
        (None, None, None, None, None);
    match &trial.program {
        Some(Program::Trainable(name)) => trainable = Some(text_to_yaml(name)),
        Some(Program::Command(all)) => command = Some(words(all)),
        Some(Program::Python(program)) => {
            match &program.entry {
                PythonEntry::Script(path) => python = Some(text_to_yaml(path)),
                PythonEntry::Function(name) => module = Some(text_to_yaml(name)),
            }
            interpreter = program.interpreter.as_deref().map(text_to_yaml);
        }
        None => {}
    }
    // The GPUs of programs have a key of their own.
    let is_program = command.is_some();
    let max_gpus = trial.max_gpus.unwrap_or(trial.min_gpus);
    let gpus = match trial.elastic {
        _ if trial.share > 1 => number(1.0 / f64::from(trial.share)),
        Some(_) => format!("{}..{max_gpus}", trial.min_gpus),
        None => trial.min_gpus.to_string(),
    };
    [
        ("trainable", trainable),
        ("command", command),
        ("python", python),
        ("module", module),
        ("interpreter", interpreter),
        ("epochs", Some(number(trial.epochs))),
        ("initial_batch", Some(trial.initial_batch.to_string())),
        ("max_batch", Some(trial.max_batch.to_string())),
        ("max_batch_per_gpu", trial.max_batch_per_gpu.map(|batch| batch.to_string())),
        ("batch_per_gpu", trial.batch_per_gpu.map(|batch| batch.to_string())),
        ("scaling", Some(trial.scaling.to_string())),
        ("checkpoint_interval", Some(duration(trial.checkpoint_interval))),
        ("keep_checkpoints", Some(trial.keep_checkpoints.to_string())),
        ("min_gpus", (!is_program).then(|| trial.min_gpus.to_string())),
        ("max_gpus", trial.max_gpus.filter(|_| !is_program).map(|gpus| gpus.to_string())),
        ("gpus", is_program.then_some(gpus)),
        ("elastic", trial.elastic.map(|elastic| elastic.to_string())),
        ("result", Some(trial.result.to_string())),
        ("timeout", trial.timeout.map(duration)),
        ("silence", trial.silence.map(duration)),
        ("env", (!trial.env.is_empty()).then(|| format!("{{{}}}", variables(&trial.env)))),
        ("folder", trial.folder.as_ref().map(|folder| text_to_yaml(&folder.to_string_lossy()))),
    ]
}

fn search(study: &Study) -> Entries<7> {
    let search = &study.search;
    let stopping = &search.early_stopping;
    // What follows from the epochs and the rule still does so in the file, and is no setting of its own.
    let own = |value: f64, usual: f64| value.total_cmp(&usual).is_ne().then(|| number(value));
    let settings = [
        ("grace", own(stopping.grace, default_grace(study.trial.epochs))),
        ("reduction", own(stopping.reduction, default_reduction(stopping.rule))),
        ("patience", Some(number(stopping.patience))),
        ("threshold", stopping.threshold.map(number)),
    ];
    let settings = settings.into_iter().filter_map(|(key, value)| Some(format!(", {key}: {}", value?)));
    let stopping = format!("{{rule: {}{}}}", stopping.rule, settings.collect::<String>());
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
        ("p", scheduler.p.map(number)),
        ("avoid_interference", Some(scheduler.avoid_interference.to_string())),
        ("knowledge_sharing", Some(scheduler.knowledge_sharing.to_string())),
        ("promise_weighting", Some(scheduler.promise_weighting.to_string())),
    ]
}

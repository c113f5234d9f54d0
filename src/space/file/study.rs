use std::path::Path;

use super::{
    super::Space,
    cluster::Cluster,
    diagnostic::{DiagnosticKind, Diagnostics, Place},
    foreign,
    machines::Machines,
    node::{self, Content, Node},
    program::Gpus,
    read::{Reader, Values},
    scalar::bad,
    settings::{
        Algorithm, Direction, EarlyStopping, Objective, Parallel, Program, PythonEntry, PythonProgram,
        ResultValue, SchedulerSettings, SearchSettings, StoppingRule, TrialSettings,
    },
    table::{OBJECTIVE, STUDY},
    trainable::document,
};
use crate::alloc::{ClusterSpec, PolicyKind};

/// Of the epochs of a trial, before the first decision where a file says nothing else. `docs/search.md` says why.
const GRACE_SHARE: f64 = 1.0 / 16.0;

pub(super) const fn default_grace(epochs: f64) -> f64 {
    epochs * GRACE_SHARE
}

/// The brackets of Hyperband are gentle as they are.
pub(super) const fn default_reduction(rule: StoppingRule) -> f64 {
    match rule {
        StoppingRule::Hyperband => 2.0,
        _ => 1.25,
    }
}

/// All of a study file.
///
/// ```
/// use pollux_tune::space::{Direction, Parallel, Study};
/// let study = Study::from_yaml("study.yaml", "
/// space:
///   lr: {log: [1e-5, 1e-1]}
///   optimizer:
///     choice:
///       sgd: {momentum: {float: [0.0, 0.99]}}
///       adam:
/// objective: {maximize: accuracy}
/// search: {trials: 50}
/// ")?;
/// assert_eq!(study.space.dims().len(), 3);
/// assert_eq!(study.objectives[0].direction, Direction::Maximize);
/// assert_eq!((study.search.trials, study.search.parallel), (50, Parallel::Fixed(4)));
/// # Ok::<(), pollux_tune::space::Diagnostics>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Study {
    /// What is searched.
    pub space: Space,
    /// What is to be optimized, at least one.
    pub objectives: Vec<Objective>,
    /// How a trial is trained.
    pub trial: TrialSettings,
    /// How parameters are chosen.
    pub search: SearchSettings,
    /// How GPUs are divided.
    pub scheduler: SchedulerSettings,
    /// The GPUs, if the file describes them: `cluster` as a text.
    pub cluster: Option<ClusterSpec>,
    /// Where machines come from, if the file says so: `cluster` as a mapping.
    pub machines: Option<Machines>,
}

impl Study {
    /// Reads the text of a study file, whose name is for messages only. All mistakes are returned at once.
    pub fn from_yaml(file: &str, text: &str) -> Result<Self, Diagnostics> {
        let open = |_: &str| Err("only a study file on disk can name other files".to_owned());
        read(file, text, |reader| reader.study(text, open, false))
    }

    /// The same for a file on disk, which will be run as it is: it may name another one as its `cluster`, of which `open` gets the text or
    /// says why it cannot, and settings that can have no effect are mistakes.
    ///
    /// ```
    /// use pollux_tune::space::Study;
    /// let yaml = "{space: {x: {float: [0, 1]}}, objective: {minimize: loss}, cluster: dgx.yaml}";
    /// let open = |name: &str| if name == "dgx.yaml" { Ok("cluster: 2x8xa100".to_owned()) } else { Err("not there".to_owned()) };
    /// let study = Study::from_yaml_with("study.yaml", yaml, open)?;
    /// assert_eq!(study.cluster.unwrap().to_string(), "2x8xa100");
    /// # Ok::<(), pollux_tune::space::Diagnostics>(())
    /// ```
    pub fn from_yaml_with(
        file: &str,
        text: &str,
        open: impl FnOnce(&str) -> Result<String, String>,
    ) -> Result<Self, Diagnostics> {
        read(file, text, |reader| reader.study(text, open, true))
    }
}

impl Study {
    /// Whether the files that a study file runs are there, as `exists` says of their paths. Other mistakes of the file are not looked for.
    ///
    /// ```
    /// use pollux_tune::space::Study;
    /// let yaml = "{space: {x: {float: [0, 1]}}, objective: {minimize: loss}, trial: {python: train.py}}";
    /// assert!(Study::check_files("study.yaml", yaml, |path| path == "train.py").is_ok());
    /// let wrong = Study::check_files("study.yaml", yaml, |_| false).unwrap_err();
    /// assert!(wrong.to_string().contains("trial.python"));
    /// ```
    pub fn check_files(file: &str, text: &str, exists: impl Fn(&str) -> bool) -> Result<(), Diagnostics> {
        read(file, text, |reader| {
            let Some(node) = document(text) else { return Some(()) };
            let values = Reader::new(text).section(&node, STUDY, "");
            let trial = values.section("trial")?;
            let folder = Path::new(trial.text("folder").unwrap_or_default());
            let is_there = |script: &&str| folder.join(script).to_str().is_some_and(&exists);
            if let Some(script) = trial.text("python").filter(|script| !is_there(script)) {
                let found = format!("`{script}`, which does not exist");
                let allowed = match trial.text("folder") {
                    Some(_) => "the path of a Python script, relative to `trial.folder`",
                    None => "the path of a Python script, relative to the folder of the study file",
                };
                reader.wrong(trial.place("python"), "trial.python", bad(found, allowed));
            }
            Some(())
        })
    }
}

impl Space {
    /// Reads `space` and `constraints` of a study file. Of the rest only keys and types are checked.
    ///
    /// ```
    /// use pollux_tune::space::Space;
    /// let space = Space::from_yaml("space.yaml", "space: {lr: {log: [1e-5, 1e-1]}, act: [relu, gelu]}")?;
    /// assert_eq!(Space::from_yaml("space.yaml", &space.to_yaml())?, space);
    /// # Ok::<(), pollux_tune::space::Diagnostics>(())
    /// ```
    pub fn from_yaml(file: &str, text: &str) -> Result<Self, Diagnostics> {
        read(file, text, |reader| {
            let node = reader.document(text)?;
            let values = reader.section(&node, STUDY, "");
            Some(reader.space(&values))
        })
    }
}

/// What is found in the text of a file, if nothing is wrong with it.
pub(super) fn read<'t, T>(
    file: &str,
    text: &'t str,
    find: impl FnOnce(&mut Reader<'t>) -> Option<T>,
) -> Result<T, Diagnostics> {
    let mut reader = Reader::new(text);
    match find(&mut reader) {
        Some(found) if reader.is_clean() => Ok(found),
        _ => Err(reader.finish(file)),
    }
}

const START: Place = Place { line: 1, column: 1, width: 1 };

impl Reader<'_> {
    pub(super) fn document(&mut self, text: &str) -> Option<Node> {
        match node::parse(text) {
            Ok(Some(node)) if !node.is_null() => Some(node),
            Ok(_) => {
                let allowed = "a mapping with at least `space` and `objective`";
                self.wrong(START, "", bad("an empty file".to_owned(), allowed));
                None
            }
            Err((place, mistake)) => {
                self.wrong(place, "", mistake);
                None
            }
        }
    }

    /// The study of a file; strictly for one that will be run as it is.
    fn study(
        &mut self,
        text: &str,
        open: impl FnOnce(&str) -> Result<String, String>,
        is_strict: bool,
    ) -> Option<Study> {
        let node = self.document(text)?;
        let values = self.section(&node, STUDY, "");
        let space = self.space(&values);
        let objectives = self.objectives(&values);
        let trial = self.trial(values.section("trial")?)?;
        self.check_result(values.section("trial")?, &trial, objectives.len());
        let search = self.search(values.section("search")?, trial.epochs, objectives.len())?;
        let scheduler = scheduler(values.section("scheduler")?)?;
        let search = self.parallel(values.section("search")?, search, &trial, &scheduler);
        let (cluster, machines) = match self.cluster(&values, open) {
            Some(Cluster::Described(spec)) => (Some(spec), None),
            Some(Cluster::Machines(machines)) => (None, Some(machines)),
            None => (None, None),
        };
        let study = Study { space, objectives, trial, search, scheduler, cluster, machines };
        if is_strict {
            if study.search.algorithm != Algorithm::Grid {
                self.refuse_infeasible(&values, &study.space);
            }
            self.refuse_idle(&values, &study);
        }
        Some(study)
    }

    fn objectives(&mut self, values: &Values<'_>) -> Vec<Objective> {
        let allowed = "a metric and its direction, such as {minimize: loss}, or a list of them";
        let Some(node) = values.raw("objective").filter(|node| !node.is_null()) else {
            self.wrong(values.place, "objective", DiagnosticKind::Missing { allowed: allowed.to_owned() });
            return Vec::new();
        };
        match &node.content {
            Content::Map(_) => self.objective(node, "objective").into_iter().collect(),
            Content::List(nodes) if !nodes.is_empty() => {
                let mut all: Vec<Objective> = Vec::new();
                for (place, node) in nodes.iter().enumerate() {
                    let path = format!("objective[{place}]");
                    let Some(objective) = self.objective(node, &path) else { continue };
                    if all.iter().any(|known| known.metric == objective.metric) {
                        let found = format!("the metric `{}` is given twice", objective.metric);
                        let allowed = "each metric once";
                        self.wrong(node.place, &path, DiagnosticKind::Conflict { found, allowed });
                    }
                    all.push(objective);
                }
                all
            }
            _ => {
                let hint = foreign::section(node, "objective", OBJECTIVE);
                let (found, allowed) = (node.shown(), allowed.to_owned());
                self.wrong(node.place, "objective", DiagnosticKind::BadValue { found, allowed, hint });
                Vec::new()
            }
        }
    }

    fn objective(&mut self, node: &Node, path: &str) -> Option<Objective> {
        let clean = self.count();
        let values = self.section(node, OBJECTIVE, path);
        let text = |key: &str| values.text(key);
        let direction = text("direction").and_then(Direction::from_name);
        let found = match (text("metric"), direction, text("minimize"), text("maximize")) {
            (Some(metric), Some(direction), None, None) => Some((metric, direction)),
            (None, None, Some(metric), None) => Some((metric, Direction::Minimize)),
            (None, None, None, Some(metric)) => Some((metric, Direction::Maximize)),
            _ => None,
        };
        if let Some((metric, direction)) = found {
            return Some(Objective { metric: metric.to_owned(), direction });
        }
        if self.count() == clean {
            let allowed = "either `metric` and `direction`, or `minimize`, or `maximize`";
            let keys: Vec<_> =
                OBJECTIVE.iter().map(|field| field.key).filter(|key| values.get(key).is_some()).collect();
            let found =
                if keys.is_empty() { "nothing".to_owned() } else { format!("only {}", keys.join(" and ")) };
            self.wrong(node.place, path, bad(found, allowed));
        }
        None
    }

    fn trial(&mut self, values: &Values<'_>) -> Option<TrialSettings> {
        let size = |key: &str| values.count(key);
        let initial_batch = size("initial_batch")?;
        let max_batch = size("max_batch").unwrap_or_else(|| initial_batch.saturating_mul(32));
        let program = self.program(values);
        let (Gpus { min: min_gpus, max: max_gpus, share }, elastic) = self.gpus(values, program.as_ref())?;
        if max_batch < initial_batch {
            let found = format!("max_batch is {max_batch} and initial_batch is {initial_batch}");
            let mistake =
                DiagnosticKind::Conflict { found, allowed: "max_batch to be at least initial_batch" };
            self.wrong(values.place("max_batch"), "trial.max_batch", mistake);
        }
        if max_gpus.is_some_and(|max| max < min_gpus) {
            let found = format!("max_gpus is {} and min_gpus is {min_gpus}", max_gpus?);
            let mistake = DiagnosticKind::Conflict { found, allowed: "max_gpus to be at least min_gpus" };
            self.wrong(values.place("max_gpus"), "trial.max_gpus", mistake);
        }
        let silence = values.duration("silence");
        if silence.is_some_and(|silence| silence.is_zero()) {
            let found = "silence is 0s, and nothing prints all the time".to_owned();
            let mistake = DiagnosticKind::Conflict { found, allowed: "a silence above 0s" };
            self.wrong(values.place("silence"), "trial.silence", mistake);
        }
        if silence.is_some() && program.is_none() {
            let allowed = "it with a command or a trainable";
            self.no_effect(values, "trial", "silence", "without a program".to_owned(), allowed);
        }
        let (env, folder) = self.surroundings(values, program.as_ref());
        Some(TrialSettings {
            program,
            epochs: values.number("epochs")?,
            initial_batch,
            max_batch,
            max_batch_per_gpu: size("max_batch_per_gpu"),
            batch_per_gpu: size("batch_per_gpu"),
            scaling: values.text("scaling")?.parse().ok()?,
            checkpoint_interval: values.duration("checkpoint_interval")?,
            keep_checkpoints: values.text("keep_checkpoints")?.parse().ok()?,
            min_gpus,
            max_gpus,
            timeout: values.duration("timeout"),
            silence,
            result: ResultValue::from_name(values.text("result")?)?,
            share,
            elastic,
            env,
            folder,
        })
    }

    fn program(&mut self, values: &Values<'_>) -> Option<Program> {
        let interpreter = values.text("interpreter").map(str::to_owned);
        let python = |entry| Program::Python(PythonProgram { entry, interpreter: interpreter.clone() });
        let text = |key: &str| values.text(key).map(str::to_owned);
        let programs = [
            ("trainable", "a trainable", text("trainable").map(Program::Trainable)),
            ("command", "a command", values.words("command").map(|words| Program::Command(words.to_vec()))),
            ("python", "a Python script", text("python").map(|path| python(PythonEntry::Script(path)))),
            ("module", "a Python module", text("module").map(|name| python(PythonEntry::Function(name)))),
        ];
        let mut given = programs.into_iter().filter_map(|(key, what, found)| Some((key, what, found?)));
        let program = match (given.next(), given.next()) {
            (Some((_, first, _)), Some((key, second, _))) => {
                let found = format!("there are both {first} and {second}");
                let mistake = DiagnosticKind::Conflict { found, allowed: "one of them" };
                self.wrong(values.place(key), &format!("trial.{key}"), mistake);
                None
            }
            (first, _) => first.map(|(_, _, program)| program),
        };
        if interpreter.is_some() && !matches!(program, None | Some(Program::Python(_))) {
            let (place, allowed) = ("without Python code", "it with `python` or `module`");
            self.no_effect(values, "trial", "interpreter", place.to_owned(), allowed);
        }
        program
    }

    /// Only trials that share GPUs by what they make of them can be given as many places as pay off.
    fn parallel(
        &mut self,
        values: &Values<'_>,
        mut search: SearchSettings,
        trial: &TrialSettings,
        scheduler: &SchedulerSettings,
    ) -> SearchSettings {
        let is_elastic = matches!(trial.program, Some(Program::Trainable(_) | Program::Python(_)));
        let adapts = matches!(scheduler.policy, PolicyKind::Goodput | PolicyKind::Pollux);
        if search.parallel == Parallel::Auto && !(is_elastic && adapts) {
            search.parallel = Parallel::Fixed(Parallel::DEFAULT);
            if values.text("parallel").is_some() {
                let found = if is_elastic {
                    format!("`auto` with the policy {}", scheduler.policy)
                } else {
                    "`auto` with trials that keep their slots".to_owned()
                };
                let allowed = "a number, or trials that train elastically under the policy goodput or pollux";
                self.wrong(
                    values.place("parallel"),
                    "search.parallel",
                    DiagnosticKind::Conflict { found, allowed },
                );
            }
        }
        search
    }

    fn search(&mut self, values: &Values<'_>, epochs: f64, objectives: usize) -> Option<SearchSettings> {
        let stopping = values.section("early_stopping")?;
        let rule = StoppingRule::from_name(stopping.text("rule")?)?;
        let threshold = stopping.number("threshold");
        if rule == StoppingRule::Threshold && threshold.is_none() {
            let allowed = "a number for the rule `threshold`".to_owned();
            self.wrong(
                stopping.place("rule"),
                "search.early_stopping.threshold",
                DiagnosticKind::Missing { allowed },
            );
        }
        let early_stopping = EarlyStopping {
            rule,
            grace: stopping.number("grace").unwrap_or_else(|| default_grace(epochs)),
            reduction: stopping.number("reduction").unwrap_or_else(|| default_reduction(rule)),
            patience: stopping.number("patience")?,
            threshold,
        };
        if rule != StoppingRule::Never && early_stopping.grace >= epochs {
            let found = format!("grace is {} and the epochs of a trial are {epochs}", early_stopping.grace);
            let mistake = DiagnosticKind::Conflict { found, allowed: "a grace below the epochs of a trial" };
            self.wrong(stopping.place("grace"), "search.early_stopping.grace", mistake);
        }
        let algorithm = Algorithm::from_name(values.text("algorithm")?)?;
        if algorithm == Algorithm::Gp && objectives > 1 {
            let found = format!("the algorithm gp with {objectives} objectives");
            let mistake = DiagnosticKind::Conflict { found, allowed: "tpe or auto, or one objective" };
            self.wrong(values.place("algorithm"), "search.algorithm", mistake);
        }
        Some(SearchSettings {
            algorithm,
            trials: values.count("trials")?,
            parallel: match values.text("parallel") {
                Some(text) => text.parse().ok()?,
                None => Parallel::Auto,
            },
            seed: values.whole("seed")?,
            timeout: values.duration("timeout"),
            max_failures: values.count("max_failures")?,
            early_stopping,
        })
    }
}

fn scheduler(values: &Values<'_>) -> Option<SchedulerSettings> {
    Some(SchedulerSettings {
        policy: values.text("policy")?.parse().ok()?,
        interval: values.duration("interval")?,
        immediate: values.flag("immediate")?,
        p: values.number("p"),
        avoid_interference: values.flag("avoid_interference")?,
        knowledge_sharing: values.flag("knowledge_sharing")?,
        promise_weighting: values.flag("promise_weighting")?,
    })
}

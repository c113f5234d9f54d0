//! Study files: what they mean, what is wrong with them, and that no text makes the reader fall over.

#![expect(clippy::unwrap_used, reason = "a test that cannot build its study has failed")]

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use pollux_tune::{
    alloc::{Cluster, ClusterSpec, Fairness, Node, NodeSet, PolicyKind},
    goodput::LrRule,
    ids::GpuType,
    space::{
        Algorithm, Diagnostics, Direction, Domain, Elasticity, Machines, Objective, Parallel, Program,
        PythonEntry, PythonProgram, ResultValue, Space, StoppingRule, Study, schema,
    },
};
use proptest::prelude::*;
use serde_json::Value;

use crate::spaces::space;

pub(crate) const MINIMAL: &str = "space: {lr: {log: [1e-5, 1e-1]}}\nobjective: {minimize: loss}\n";

pub(crate) fn read(text: &str) -> Result<Study, Diagnostics> {
    Study::from_yaml("study.yaml", text)
}

/// The messages about a minimal file with this added.
fn wrong(more: &str) -> Vec<String> {
    read(&format!("{MINIMAL}{more}")).unwrap_err().to_string().lines().map(str::to_owned).collect()
}

fn example(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("search-spaces").join(name)).unwrap()
}

/// Every place must exist.
fn check_places(problems: &Diagnostics) {
    assert!(!problems.list().is_empty());
    for problem in problems.list() {
        assert!(problem.line() >= 1 && problem.column() >= 1, "{problem}");
        assert!(!problem.mistake().to_string().is_empty());
    }
    assert!(problems.report().lines().count() >= 3 * problems.list().len());
}

#[test]
fn a_minimal_file_has_defaults() {
    let study = read(MINIMAL).unwrap();
    assert_eq!(study.objectives[0].direction, Direction::Minimize);
    assert_eq!(study.trial.program, None);
    assert_eq!((study.trial.initial_batch, study.trial.max_batch), (128, 4096));
    assert_eq!((study.trial.min_gpus, study.trial.max_gpus), (1, None));
    assert_eq!(study.trial.scaling, LrRule::AdaScale);
    assert_eq!(study.trial.checkpoint_interval, Duration::from_secs(300));
    assert_eq!((study.search.trials, study.search.parallel, study.search.seed), (100, Parallel::Fixed(4), 0));
    assert_eq!(study.search.algorithm, Algorithm::Auto);
    assert_eq!(study.search.early_stopping.rule, StoppingRule::Never);
    assert_eq!(study.scheduler.policy, PolicyKind::Goodput);
    assert!(study.scheduler.avoid_interference && !study.scheduler.promise_weighting);
    assert_eq!(study.cluster, None);
    assert_eq!(read(&format!("{MINIMAL}trial:\nsearch: {{}}\n")).unwrap(), study);
}

#[test]
fn the_examples_say_what_they_look_like() {
    let cifar = read(&example("cifar10.yaml")).unwrap();
    assert_eq!(cifar.space.dims().len(), 5);
    assert_eq!(cifar.trial.program, Some(Program::Trainable("cifar10".to_owned())));
    assert_eq!((cifar.trial.max_batch, cifar.trial.max_batch_per_gpu), (4096, Some(1024)));
    let transformer = read(&example("transformer.yaml")).unwrap();
    assert_eq!(transformer.space.constraints().len(), 3);
    assert_eq!(transformer.objectives.len(), 2);
    assert_eq!(transformer.trial.timeout, Some(Duration::from_secs(6 * 3600)));
    assert!(matches!(&transformer.trial.program, Some(Program::Command(words)) if words.len() == 4));
    let momentum = transformer.space.parameters().iter().find(|known| known.name() == "momentum").unwrap();
    assert_eq!(transformer.space.parent(momentum.dim().unwrap()), Some((0, &[0][..])));
    let beta2 = transformer.space.parameters().iter().find(|known| known.name() == "beta2").unwrap();
    assert_eq!(transformer.space.parent(beta2.dim().unwrap()), Some((0, &[1][..])));
}

/// Machines with and without what can be left out.
fn machines(count: u32, time: Option<Duration>) -> Machines {
    let text = format!(
        "cluster: {{listen: '[::]:7000', slurm: [{{nodes: 0..{count}, gres: 'gpu:a100:8', partition: 'a,b', setup: \"module load \\\"x\\\"\\n\
         exit 3\", account: me, qos: low, cpus: {count}, extra: [--mem=1G]}}, {{slots: 4xcpu}}], hosts: [gpu1, {{host: u@gpu2, \
         program: '/a b', slots: 2xcpu}}]}}"
    );
    let mut machines = Machines::from_yaml("cluster.yaml", &text).unwrap();
    machines.slurm[0].time = time.filter(|time| time.as_secs() >= 60);
    machines
}

/// A study with other settings than the defaults.
fn studies() -> impl Strategy<Value = Study> {
    let texts = ("[a-z]{1,8}", "\\PC{1,6}", prop::collection::vec("\\PC{1,5}", 1..4));
    let numbers = (1e-6_f64..1e6, -20.0..20.0, 1_u32..1000, 1_u32..5000, 0_u64..1 << 53);
    let lists = (0..Algorithm::NAMES.len(), 0..StoppingRule::NAMES.len(), 0..3_usize);
    let durations = (1_u64..1 << 40, prop::option::of(1_u64..1 << 40));
    let settings = (texts, numbers, lists, durations, any::<bool>());
    (space(), settings).prop_map(|(space, ((metric, other, words), numbers, lists, durations, flag))| {
        let mut study = read(MINIMAL).unwrap();
        study.space = space;
        study.objectives[0].metric.clone_from(&metric);
        if flag && study.objectives[0].metric != other && !other.trim().is_empty() {
            study.objectives.push(Objective { metric: other.clone(), direction: Direction::Maximize });
        }
        study.trial.program = match lists.2 {
            0 => None,
            1 if flag => {
                let entry = PythonEntry::Script(format!("{}.py", words[0]));
                let interpreter = durations.1.map(|_| "python3.12".to_owned());
                Some(Program::Python(PythonProgram { entry, interpreter }))
            }
            1 => Some(Program::Trainable(format!("t{}", words[0]))),
            _ => Some(Program::Command(words)),
        };
        // More than the grace of early stopping.
        study.trial.epochs = 1.0 + numbers.0;
        (study.trial.min_gpus, study.trial.max_gpus) = (numbers.2, flag.then_some(numbers.2 + 1));
        (study.trial.initial_batch, study.trial.max_batch) = (numbers.3, numbers.3 + numbers.2);
        study.trial.batch_per_gpu = flag.then_some(numbers.3);
        study.trial.checkpoint_interval = Duration::from_millis(durations.0);
        study.trial.timeout = durations.1.map(Duration::from_micros);
        if lists.2 == 2 {
            study.trial.silence = durations.1.map(Duration::from_millis);
            let (share, elastic) = (1 + numbers.3 % 64, flag.then_some(Elasticity::Restart));
            (study.trial.share, study.trial.elastic) = (if flag { 1 } else { share }, elastic);
            let least = if share > 1 && !flag { 1 } else { numbers.2 };
            (study.trial.min_gpus, study.trial.max_gpus) = (least, Some(least + u32::from(flag)));
            study.trial.env =
                [(other.clone(), metric.clone())].into_iter().filter(|_| !other.contains('=')).collect();
            study.trial.folder = flag.then(|| PathBuf::from(&metric));
        }
        if study.objectives.len() == 1 && flag {
            study.trial.result = ResultValue::Best;
        }
        (study.search.trials, study.search.seed) = (numbers.3, numbers.4);
        study.search.algorithm = Algorithm::from_name(Algorithm::NAMES[lists.0]).unwrap();
        if study.objectives.len() > 1 && study.search.algorithm == Algorithm::Gp {
            study.search.algorithm = Algorithm::Tpe;
        }
        study.search.early_stopping.rule = StoppingRule::from_name(StoppingRule::NAMES[lists.1]).unwrap();
        study.search.early_stopping.threshold = Some(-numbers.0);
        (study.scheduler.p, study.scheduler.knowledge_sharing) = (Some(numbers.1), flag);
        study.scheduler.immediate = flag;
        let gpu_type = GpuType::new("a100").unwrap();
        let node_sets = vec![NodeSet { nodes: 2, gpus: numbers.2, gpu_type }];
        study.cluster = flag.then_some(ClusterSpec { node_sets });
        if lists.2 == 0 && !flag {
            study.machines = Some(machines(numbers.2, durations.1.map(Duration::from_millis)));
        }
        study
    })
}

#[test]
fn the_files_in_the_documentation_are_right() {
    let document = include_str!("../../docs/search-spaces.md");
    let files = document.split("```yaml\n").skip(1).filter_map(|rest| rest.split_once("```"));
    let mut count = 0;
    for (text, _) in files {
        read(text).map_err(|problems| problems.report()).unwrap();
        count += 1;
    }
    assert_eq!(count, 6);
}

#[test]
fn short_forms_mean_the_same_as_long_ones() {
    let space = |text: &str| Space::from_yaml("s", &format!("space: {text}")).unwrap();
    for (short, long) in [
        ("{x: {log: [1e-5, 1]}}", "{x: {float: [1e-5, 1.0], log: true}}"),
        ("{x: [a, b]}", "{x: {choice: [a, b]}}"),
        ("{x: 5}", "{x: {fixed: 5}}"),
        ("{x: [true, false]}", "{x: {choice: [false, true]}}"),
        ("{x: {choice: {a: {y: {int: [1, 3]}}, b: }}}", "{x: [a, b], y: {int: [1, 3], when: {x: a}}}"),
        (
            "{x: {choice: {1: {y: {choice: {true: {z: 1}, false: {}}}}, 2: {}}}}",
            "{x: [1, 2], y: {choice: [true, false], when: {x: [1]}}, z: {fixed: 1, when: {y: [true]}}}",
        ),
        ("{x: &r [0, 1], y: {int: *r}}", "{x: [0, 1], y: {int: [0, 1]}}"),
    ] {
        assert_eq!(space(short), space(long), "{short}");
    }
    let quoted = space("{x: [\"no\", 'yes', \"1\"]}");
    assert_eq!(quoted.parameters()[0].domain(), &Domain::choice(["no", "yes", "1"]).unwrap());
}

#[test]
#[expect(clippy::too_many_lines, reason = "a list of mistakes")]
fn mistakes_name_place_path_and_what_is_allowed() {
    for (more, message) in [
        ("trial: {epochs: 0}", "study.yaml:3:17: trial.epochs: found `0`; expected a number above 0"),
        ("trial: {epochs: .inf}", "study.yaml:3:17: trial.epochs: found `.inf`; expected a number above 0"),
        (
            "search: {seed: 1.5}",
            "study.yaml:3:16: search.seed: found `1.5`; expected a whole number from 0 to 9007199254740991",
        ),
        (
            "search: 5",
            "study.yaml:3:9: search: found `5`; expected a mapping with the keys algorithm, trials, \
          parallel, seed, timeout, max_failures, early_stopping",
        ),
        (
            "search: {early_stopping: {rule: threshold}}",
            "study.yaml:3:33: search.early_stopping.threshold: missing; \
          expected a number for the rule `threshold`",
        ),
        (
            "trial: {epochs: 2}\nsearch: {early_stopping: {rule: asha, grace: 2}}",
            "study.yaml:4:46: search.early_stopping.grace: grace is 2 and the epochs of a trial are 2; \
          expected a grace below the epochs of a trial",
        ),
        (
            "trial: {epochs: 3, silence: 10m}",
            "study.yaml:3:29: trial.silence: `silence` has no effect without a program; \
          use it with a command or a trainable",
        ),
        (
            "trial: {command: a, silence: 0s}",
            "study.yaml:3:30: trial.silence: silence is 0s, and nothing prints all the time; expected a silence above 0s",
        ),
        (
            "trial: {trainable: a, command: b}",
            "study.yaml:3:32: trial.command: there are both a trainable and a \
          command; expected one of them",
        ),
        (
            "trial: {python: a.py, module: 'b:c'}",
            "study.yaml:3:31: trial.module: there are both a Python script and a Python module; expected one of them",
        ),
        (
            "trial: {module: train}",
            "study.yaml:3:17: trial.module: found `train`; expected a function of a module, such as package.train:main",
        ),
        (
            "trial: {command: a, interpreter: python3.12}",
            "study.yaml:3:34: trial.interpreter: `interpreter` has no effect without Python code; use it with `python` or `module`",
        ),
        (
            "trial: {trainable: a, folder: x}",
            "study.yaml:3:31: trial.folder: `folder` has no effect on a trainable; use it with a \
          command or Python code",
        ),
        (
            "trial: {env: {A: 1}}",
            "study.yaml:3:14: trial.env: `env` has no effect without a program; use it with a command or Python code",
        ),
        (
            "trial: {command: a, env: {POLLUX_TUNE_TRIAL: 1}}",
            "study.yaml:3:27: trial.env.POLLUX_TUNE_TRIAL: found `POLLUX_TUNE_TRIAL`; expected a name without `=`, and not one \
          of our own (POLLUX_TUNE_...)",
        ),
        (
            "trial: {command: a, gpus: 1..4}",
            "study.yaml:3:27: trial.gpus: a program keeps its number of GPUs; expected one number, or a range with \
          `elastic: restart`",
        ),
        (
            "trial: {command: a, gpus: 2, elastic: restart}",
            "study.yaml:3:39: trial.elastic: `elastic` has no effect with one number of GPUs; use it with a range, such as `gpus: 1..4`",
        ),
        (
            "trial: {min_gpus: 4, max_gpus: 2}",
            "study.yaml:3:32: trial.max_gpus: max_gpus is 2 and min_gpus is 4; expected \
          max_gpus to be at least min_gpus",
        ),
        (
            "trial: {command: \"a 'b c'\"}",
            "study.yaml:3:18: trial.command: found `\"a 'b c'\"`; expected a list of \
          texts: the program and its arguments",
        ),
        ("cluster: !x 4x4xt4", "study.yaml:3:10: a tag (`!`) cannot be used; expected a value without it"),
        ("---\na: 1", "study.yaml:3:1: a second document cannot be used; expected one document in a file"),
        (
            "space: 5",
            "study.yaml:3:1: space: the key `space` is given twice, first in line 1; expected each key once",
        ),
        (
            "constraints: lr ** 2 < 1",
            "study.yaml:3:18: constraints[0]: `*` is misplaced; expected a number, name, \
          text or `(` at column 5 of `lr ** 2 < 1`",
        ),
        (
            "constraints: 'lr < 1 and'",
            "study.yaml:3:25: constraints[0]: the constraint ends too early; expected a \
          number, name, text or `(` at column 11 of `lr < 1 and`",
        ),
    ] {
        assert_eq!(wrong(more), [message], "{more}");
    }
}

#[test]
fn mistakes_in_machines_are_found() {
    for (cluster, message) in [
        ("{}", "3:10: cluster: found no machines; expected `cluster` as a mapping with `slurm`, `hosts` or"),
        (
            "[a]",
            "3:10: cluster: found a list; expected a line such as `cluster: 2x8xa100,4x4xt4`, or `cluster` as",
        ),
        (
            "{slurm: [{nodes: 4..2, gres: 'gpu:8'}]}",
            "3:27: cluster.slurm[0].nodes: found `4..2`; expected a number of nodes",
        ),
        (
            "{slurm: [{slots: 1xcpu}, {gres: a100}]}",
            "3:42: cluster.slurm[1].gres: found `a100`; expected the GPUs of a node",
        ),
        (
            "{slurm: [{nodes: 2}]}",
            "3:19: cluster.slurm[0].gres: missing; expected the GPUs of a node, such as gpu:a100:8, or",
        ),
        (
            "{slurm: {slots: 4xcpu, time: 30s}}",
            "3:39: cluster.slurm.time: Slurm counts in minutes; expected a time of at",
        ),
        (
            "{slurm: [{slots: 4xcpu, time: 4}]}",
            "3:40: cluster.slurm[0].time: found `4`; expected a duration with units",
        ),
        (
            "{slurm: [{slots: 4xcpu, extra: [--array=1]}]}",
            "3:41: cluster.slurm[0].extra: found `--array=1`; expected options of sbatch such as --mem=32G",
        ),
        (
            "{slurm: [{gress: 'gpu:8'}]}",
            "3:20: cluster.slurm[0].gress: unknown key `gress`; expected one of nodes, gres,",
        ),
        (
            "{hosts: ['-oProxyCommand=x']}",
            "3:19: cluster.hosts[0]: found `\"-oProxyCommand=x\"`; expected a host as ssh",
        ),
        ("{hosts: [{program: p}]}", "3:19: cluster.hosts[0].host: missing; expected a host as ssh takes it"),
        (
            "{listen: 'head:x'}",
            "3:19: cluster.listen: found `\"head:x\"`; expected a name or an address of this machine",
        ),
    ] {
        let problems = wrong(&format!("cluster: {cluster}"));
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].starts_with(&format!("study.yaml:{message}")), "{cluster}: {problems:?}");
    }
}

#[test]
fn machines_may_be_in_a_file_of_their_own_and_change_from_run_to_run() {
    let study = |cluster: &str| {
        let open = |_: &str| Ok("cluster: {hosts: [gpu1]}".to_owned());
        Study::from_yaml_with("study.yaml", &format!("{MINIMAL}cluster: {cluster}"), open).unwrap()
    };
    let (file, other) = (study("lab.yaml"), study("{slurm: {slots: 2xcpu}}"));
    assert_eq!(file.machines.as_ref().unwrap().hosts[0].host, "gpu1");
    assert_eq!(file.cluster, None);
    assert_eq!(other.continuing(&file).unwrap().machines, other.machines);
    assert_eq!(other.machines.unwrap().most().unwrap().to_string(), "1x2xcpu");
}

#[test]
fn mistakes_in_spaces_are_found() {
    for (space, message) in [
        (
            "{x: {}}",
            "1:12: space.x: found no domain; expected exactly one of float, int, log, choice, ordinal, fixed",
        ),
        ("{x: {int: [1, 2], float: [1, 2]}}", "1:12: space.x: found float and int; expected exactly one of"),
        ("{x: {log: true}}", "1:12: space.x: found no domain"),
        ("{x: {log: [1, 2], step: 1}}", "1:32: space.x.log: `step` has no effect with `log`"),
        ("{x: {choice: [a], step: 1}}", "1:32: space.x.choice: `step` has no effect here"),
        (
            "{x: {choice: [a], log: true}}",
            "1:31: space.x.log: found `true`; expected true or false with float",
        ),
        ("{x: {int: [1, 5], step: 9}}", "1:32: space.x.step: the step is 9; expected a whole number from 1"),
        ("{x: {int: 5}}", "1:18: space.x.int: found `5`; expected a list of two whole numbers"),
        ("{x: [a, a]}", "1:16: space.x[1]: a choice is given twice: a; expected distinct values"),
        ("{x: [a, [b]]}", "1:16: space.x[1]: found a list; expected a number, a text, true or false"),
        ("{x: }", "1:10: space.x: found nothing; expected a number, a text, true or false"),
        ("{2x: 5}", "1:9: space.2x: `2x` is not a valid parameter name"),
        ("{x: {choice: {a: {x: 5}}}}", "1:26: space.x.choice.a.x: `x` is there twice"),
        (
            "{x: {choice: {a: {y: {fixed: 1, when: {x: a}}}}}}",
            "1:46: space.x.choice.a.y.when: `when` stands inside",
        ),
        ("{x: [a, b], y: {fixed: 1, when: {x: c}}}", "1:44: space.y: `x` is never c; expected a value of"),
        ("{x: {fixed: 1, when: {}}}", "1:29: space.x.when: found 0 parameters; expected one parameter"),
        ("5", "1:8: space: found `5`; expected a mapping of parameters"),
    ] {
        let text = format!("space: {space}\nobjective: {{minimize: loss}}\n");
        let problems = read(&text).unwrap_err().to_string();
        assert!(problems.starts_with(&format!("study.yaml:{message}")), "{space}: {problems}");
        assert_eq!(problems.lines().count(), 1, "{problems}");
    }
}

#[test]
fn mistakes_in_objectives_are_found() {
    for (objective, message) in [
        ("{metric: loss}", "objective: found only metric; expected either `metric` and `direction`, or"),
        ("{minimize: a, maximize: b}", "objective: found only minimize and maximize; expected either"),
        ("{minimize: a, direction: minimize}", "objective: found only direction and minimize"),
        ("loss", "objective: found `loss`; expected a metric and its direction"),
        ("[]", "objective: found a list; expected a metric and its direction"),
        ("[{minimize: a}, {maximize: a}]", "objective[1]: the metric `a` is given twice; expected each"),
        ("", "objective: missing; expected a metric and its direction"),
    ] {
        let problems = read(&format!("space: {{x: 1}}\nobjective: {objective}\n")).unwrap_err();
        let text = problems.to_string();
        assert!(text.contains(message), "{objective}: {text}");
        assert_eq!(problems.list().len(), 1, "{text}");
    }
}

#[test]
fn what_depends_on_a_mistake_is_not_blamed() {
    let text = "space:\n  a: {choice: [x, x]}\n  b: {int: [1, 3], when: {a: x}}\nconstraints: [a == 'x']\n\
                objective: {minimize: loss}\n";
    let problems = read(text).unwrap_err();
    assert_eq!(problems.list().len(), 1, "{problems}");
}

#[test]
fn names_are_those_of_the_modules_they_choose_from() {
    for name in PolicyKind::NAMES {
        let study = read(&format!("{MINIMAL}scheduler: {{policy: {name}}}")).unwrap();
        assert_eq!(study.scheduler.policy.name(), *name);
    }
    for name in LrRule::NAMES {
        let study = read(&format!("{MINIMAL}trial: {{scaling: {name}}}")).unwrap();
        assert_eq!(study.trial.scaling.name(), *name);
    }
    let old = read(&format!("{MINIMAL}search: {{algorithm: quasi}}")).unwrap();
    assert_eq!(old.search.algorithm, Algorithm::Halton, "its earlier name");
    let cluster = read(&format!("{MINIMAL}cluster: 2x8xA100, 4x4xt4")).unwrap().cluster.unwrap();
    assert_eq!(Cluster::parse(&cluster.to_string()).unwrap().total_gpus(), 32);
    assert_eq!(cluster.to_string(), "2x8xa100,4x4xt4");
    let (nodes, gpus) = (NodeSet::NODES_MAX, Node::GPUS_MAX);
    assert!(read(&format!("{MINIMAL}cluster: {nodes}x{gpus}xt4")).is_ok());
    assert!(read(&format!("{MINIMAL}cluster: {}x1xt4", nodes + 1)).is_err());
    assert!(read(&format!("{MINIMAL}cluster: 1x{}xt4", gpus + 1)).is_err());
    assert!(Fairness::new(20.0).is_ok() && read(&format!("{MINIMAL}scheduler: {{p: 20}}")).is_ok());
    assert!(Fairness::new(20.1).is_err() && read(&format!("{MINIMAL}scheduler: {{p: 20.1}}")).is_err());
}

/// The reader lists as allowed just the keys that the schema has, section by section.
#[test]
fn schema_and_reader_know_the_same_keys() {
    let schema = schema();
    let keys = |value: &Value| {
        let mut keys: Vec<String> = value["properties"].as_object().unwrap().keys().cloned().collect();
        keys.sort();
        keys
    };
    let defs = &schema["$defs"];
    let sections = &schema["properties"];
    for (object, text) in [
        (&schema, format!("{MINIMAL}zzzzzz: 1")),
        (&sections["trial"], format!("{MINIMAL}trial: {{zzzzzz: 1}}")),
        (&sections["search"], format!("{MINIMAL}search: {{zzzzzz: 1}}")),
        (
            &sections["search"]["properties"]["early_stopping"],
            format!("{MINIMAL}search: {{early_stopping: {{zzzzzz: 1}}}}"),
        ),
        (&sections["scheduler"], format!("{MINIMAL}scheduler: {{zzzzzz: 1}}")),
        (&defs["machines"], format!("{MINIMAL}cluster: {{zzzzzz: 1}}")),
        (&defs["pilots"], format!("{MINIMAL}cluster: {{slurm: [{{zzzzzz: 1}}]}}")),
        (&defs["host"], format!("{MINIMAL}cluster: {{hosts: [{{zzzzzz: 1}}]}}")),
        (&defs["objective"], "space: {x: 1}\nobjective: {zzzzzz: 1}".to_owned()),
        (&defs["parameter"]["anyOf"][0], "space: {x: {zzzzzz: 1}}\nobjective: {minimize: loss}".to_owned()),
    ] {
        let message = read(&text).unwrap_err().to_string();
        let (_, allowed) = message.split_once("`zzzzzz`; expected one of ").unwrap();
        let mut allowed: Vec<_> = allowed.lines().next().unwrap().split(", ").map(str::to_owned).collect();
        allowed.sort();
        assert_eq!(allowed, keys(object));
    }
    // Every default can be read back.
    for (section, object) in sections.as_object().unwrap() {
        for (key, field) in object["properties"].as_object().into_iter().flatten() {
            let Some(default) = field.get("default") else { continue };
            let text = format!("{MINIMAL}{section}: {{{key}: {default}}}");
            assert_eq!(read(&text).unwrap(), read(MINIMAL).unwrap(), "{text}");
        }
    }
}

#[test]
fn floods_are_refused() {
    let deep = format!("space: {}", "[".repeat(100_000));
    check_places(&read(&deep).unwrap_err());
    let block: Vec<String> = (0..500).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect();
    check_places(&read(&block.concat()).unwrap_err());
    let mut laughs = vec!["a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned()];
    for level in 1..10 {
        let inner = vec![format!("*a{}", level - 1); 9].join(", ");
        laughs.push(format!("a{level}: &a{level} [{inner}]\n"));
    }
    check_places(&read(&laughs.concat()).unwrap_err());
    check_places(&read(&"x: 1\n".repeat(30_000)).unwrap_err());
    check_places(&read("a: &a [*a]").unwrap_err());
}

/// A slip: a character put in, taken out or changed, or a part lost or doubled.
fn mutate(text: &str, slips: &[(prop::sample::Index, u8, char)]) -> String {
    let mut chars: Vec<char> = text.chars().collect();
    for (at, kind, c) in slips {
        if chars.is_empty() {
            break;
        }
        let at = at.index(chars.len());
        match kind % 6 {
            0 => chars.truncate(at),
            1 => chars[at] = *c,
            2 => chars.insert(at, *c),
            3 => {
                chars.remove(at);
            }
            4 => {
                let end = (at + 7).min(chars.len());
                chars.drain(at..end);
            }
            _ => {
                let end = (at + 9).min(chars.len());
                let part = chars[at..end].to_vec();
                chars.splice(at..at, part);
            }
        }
    }
    chars.into_iter().collect()
}

fn character() -> impl Strategy<Value = char> {
    prop_oneof![
        4 => prop::sample::select("{}[],:-#&*!|>'\"%@`~?= \n\t\r\0\u{feff}\u{85}.0e+_\\".chars().collect::<Vec<_>>()),
        1 => any::<char>(),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn yaml_to_space_to_yaml_is_the_identity(space in space()) {
        let yaml = space.to_yaml();
        let again = Space::from_yaml("s", &yaml);
        prop_assert!(again.is_ok(), "{}\n{}", yaml, again.unwrap_err());
        let again = again.unwrap();
        prop_assert_eq!(&again, &space, "{}", yaml);
        prop_assert_eq!(again.to_yaml(), yaml);
    }

    #[test]
    fn a_study_is_read_as_it_was_written(study in studies()) {
        let yaml = study.to_yaml();
        let again = read(&yaml).map_err(|problems| TestCaseError::fail(format!("{problems}\n{yaml}")))?;
        prop_assert_eq!(again, study);
    }

    #[test]
    fn broken_files_never_panic_and_every_mistake_has_a_place(
        which in 0..2_usize,
        slips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), character()), 1..6),
    ) {
        let text = mutate(&example(["cifar10.yaml", "transformer.yaml"][which]), &slips);
        if let Err(problems) = read(&text) {
            check_places(&problems);
        }
    }

    #[test]
    fn garbage_never_panics(chars in prop::collection::vec(character(), 0..200)) {
        let text: String = chars.into_iter().collect();
        check_places(&read(&text).unwrap_err());
        let constraint = format!("space: {{a: 1, b: [x, y]}}\nobjective: {{minimize: l}}\nconstraints:\n - |\n   {text}");
        if let Err(problems) = read(&constraint) {
            check_places(&problems);
        }
    }
}

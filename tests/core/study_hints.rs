//! What `check` says to newcomers from other tools, and what only a run would meet otherwise.

#![expect(clippy::unwrap_used, reason = "a test that cannot read its study has failed")]

use pollux_tune::space::Study;

use crate::study::read;

/// What a strict reader says of a minimal file with another space and more below it, without the name of the file.
fn strictly(space: &str, more: &str) -> Vec<String> {
    let text = format!("space: {space}\n{more}\nobjective: {{minimize: loss}}\n");
    let wrong = Study::from_yaml_with("", &text, |_| Err(String::new())).unwrap_err().to_string();
    wrong.lines().map(|line| line.trim_start_matches(':').to_owned()).collect()
}

#[test]
fn words_of_other_tools_are_translated() {
    for (domain, written) in [
        ("{loguniform: [1e-5, 1]}", "log: [1e-5, 1]"),
        ("{uniform: [1e-5, 1], log: true}", "log: [1e-5, 1]"),
        ("{uniform: {low: 0, high: 1}}", "float: [0, 1]"),
        ("{suggest_float: {low: 1e-5, high: 1, log: true}}", "log: [1e-5, 1]"),
        ("{quniform: [0, 1, 0.1]}", "float: [0, 1], step: 0.1"),
        ("{randint: [1, 8]}", "int: [1, 8]"),
        ("{lograndint: [1, 8]}", "int: [1, 8], log: true"),
        ("{categorical: [sgd, adam]}", "choice: [sgd, adam]"),
        ("{values: [0.1, 0.2]}", "choice: [0.1, 0.2]"),
        ("{value: 3}", "fixed: 3"),
        ("{type: float, low: 1e-5, high: 1, log: true}", "log: [1e-5, 1]"),
        ("{distribution: log_uniform_values, min: 1e-5, max: 1}", "log: [1e-5, 1]"),
        ("{_type: quniform, _value: [0, 1, 0.5]}", "float: [0, 1], step: 0.5"),
        ("{min: 1, max: 8}", "int: [1, 8]"),
        ("tune.loguniform(1e-5, 1)", "{log: [1e-5, 1]}"),
        ("'suggest_float(\"lr\", 1e-5, 1, log=True)'", "{log: [1e-5, 1]}"),
        ("'tune.choice([\"sgd\", \"adam\"])'", "{choice: [\"sgd\", \"adam\"]}"),
        ("tag(log, interval(1e-5, 1))", "{log: [1e-5, 1]}"),
        ("1..8", "{int: [1, 8]}"),
    ] {
        // Alone in its line, where commas and brackets do not end a text.
        let problems = strictly(&format!("\n  x: {domain}"), "");
        assert_eq!(problems.len(), 1, "{domain}: {problems:?}");
        assert!(problems[0].ends_with(&format!("; write `{written}`")), "{domain}: {problems:?}");
    }
    // Texts that look a little like it.
    for fixed in ["relu", "gelu(tanh)", "v1..v2", "f(x)", "'1, 2'"] {
        let text = format!("space:\n  x: {fixed}\nobjective: {{minimize: loss}}");
        assert!(read(&text).is_ok(), "{fixed}");
    }
}

#[test]
fn keys_of_other_tools_and_in_other_sections_have_their_place() {
    for (more, written) in [
        ("num_samples: 50", "write `search: {trials: 50}`"),
        ("search: {n_trials: 50}", "write `trials: 50`"),
        ("trial: {n_trials: 50}", "write `search: {trials: 50}` at the top of the file"),
        ("mode: max", "write `objective: {maximize: loss}`"),
        ("metric: accuracy", "write `objective: {minimize: accuracy}`"),
        ("trials: 20", "write `search: {trials: 20}`"),
        ("timeout: 1h", "write `trial: {timeout: 1h}` or `search: {timeout: 1h}`"),
        ("sampler: TPESampler", "write `search: {algorithm: tpe}`"),
        ("method: bayes", "write `search: {algorithm: gp}`"),
        ("program: train.py", "write `trial: {command: [python, train.py]}`"),
        ("pruner: median", "write `search: {early_stopping: {rule: median}}`"),
        ("search: {early_stopping: asha}", "write `search: {early_stopping: {rule: asha}}`"),
        ("scheduler: asha", "write `search: {early_stopping: {rule: asha}}`"),
        ("scheduler: pollux", "write `scheduler: {policy: pollux}`"),
        ("trial: train.py", "write `trial: {python: train.py}`"),
        ("search: {algorithm: bayesopt}", "write `gp`"),
        ("search: {timeout: 3600}", "write `3600s` for seconds"),
        ("search: {trials: '50'}", "write it without quotes"),
        ("search: {algorithm: tpee}", "did you mean `tpe`?"),
        ("serach: {trials: 5}", "did you mean `search`?"),
    ] {
        let problems = strictly("{x: {float: [0, 1]}}", more);
        assert_eq!(problems.len(), 1, "{more}: {problems:?}");
        assert!(problems[0].ends_with(&format!("; {written}")), "{more}: {problems:?}");
    }
    // Metric and direction in two keys are one objective.
    for problem in strictly("{x: {float: [0, 1]}}", "metric: accuracy\nmode: max") {
        assert!(problem.ends_with("; write `objective: {maximize: accuracy}`"), "{problem}");
    }
    for (objective, written) in [
        ("accuracy", "write `{minimize: accuracy}` or `{maximize: accuracy}`"),
        ("{metric: accuracy, mode: max}", "write `direction: maximize`"),
        ("{accuracy: max}", "write `maximize: accuracy`"),
        ("{metric: accuracy, direction: max}", "write `maximize`"),
    ] {
        let text = format!("space: {{x: {{float: [0, 1]}}}}\nobjective: {objective}");
        let problems = read(&text).unwrap_err();
        assert_eq!(problems.list().len(), 1, "{problems}");
        assert!(problems.to_string().ends_with(&format!("; {written}")), "{problems}");
    }
}

#[test]
fn constraints_that_leave_nothing_are_named() {
    let space = "{a: {float: [0, 1]}, b: {float: [0, 1]}}";
    for (constraints, message) in [
        (
            "[a < b, a + b > 3]",
            "2:22: constraints[1]: none of 10000 random points satisfies this constraint;",
        ),
        ("[a < b, b < a]", "2:22: constraints[1]: none of 10000 random points satisfies this constraint and"),
        ("a > 1", "2:14: constraints[0]: none of 10000 random points satisfies this constraint;"),
    ] {
        let problems = strictly(space, &format!("constraints: {constraints}"));
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].starts_with(message), "{problems:?}");
    }
    // A grid has points that are never drawn at random, and journals are read as they are.
    let exact = "space: {a: {float: [0, 1]}}\nconstraints: a == 1\nobjective: {minimize: loss}";
    let strict = |text: &str| Study::from_yaml_with("", text, |_| Err(String::new()));
    assert!(read(exact).is_ok() && strict(exact).is_err());
    assert!(strict(&format!("{exact}\nsearch: {{algorithm: grid}}")).is_ok());
}

#[test]
fn settings_of_other_rules_and_schedulers_of_fixed_commands_have_no_effect() {
    let space = "{x: {float: [0, 1]}}";
    for (more, message) in [
        (
            "search: {early_stopping: {grace: 3}}",
            "2:34: search.early_stopping.grace: `grace` has no effect with",
        ),
        (
            "search: {early_stopping: {rule: median, reduction: 4}}",
            "2:52: search.early_stopping.reduction: `reduction` has no effect with the rule `median`; use it with",
        ),
        (
            "search: {early_stopping: {rule: asha, patience: 2}}",
            "2:49: search.early_stopping.patience: `patience` has no effect with the rule `asha`; use it with",
        ),
        (
            "trial: {command: a}\nscheduler: {policy: pollux}",
            "3:21: scheduler.policy: `policy` has no effect on a command whose number of GPUs does not change",
        ),
    ] {
        let problems = strictly(space, more);
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].starts_with(message), "{problems:?}");
    }
    let restarted = "trial: {command: a, gpus: 1..2, elastic: restart}\nscheduler: {policy: pollux}";
    let text = format!("space: {space}\n{restarted}\nobjective: {{minimize: loss}}");
    assert!(Study::from_yaml_with("", &text, |_| Err(String::new())).is_ok());
}

#[test]
fn marks_are_at_the_value_that_is_wrong() {
    for (space, place) in [
        ("{x: {log: [0, 1]}}", (1, 19)),
        ("{x: {log: [1, 0.1]}}", (1, 22)),
        ("{x: {int: [8, 1]}}", (1, 22)),
        ("{x: {int: [1, 2.5]}}", (1, 22)),
        ("{x: [a, b, a]}", (1, 19)),
        ("{x: {ordinal: [1, 2, 2]}}", (1, 29)),
        ("{x: [a, b], y: {fixed: 1, when: {x: [a, c]}}}", (1, 48)),
    ] {
        let text = format!("space: {space}\nobjective: {{minimize: loss}}\n");
        let problems = read(&text).unwrap_err();
        assert_eq!(problems.list().len(), 1, "{problems}");
        let problem = &problems.list()[0];
        assert_eq!((problem.line(), problem.column()), place, "{problems}");
    }
}

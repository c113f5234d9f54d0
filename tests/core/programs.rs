//! What study files say of programs.

use pollux_tune::space::{Elasticity, ResultValue, Study};

use crate::study::{MINIMAL, read};

#[test]
fn gpus_of_programs_are_numbers_parts_or_ranges() {
    let trial =
        |gpus: &str| read(&format!("{MINIMAL}trial: {{command: a, gpus: {gpus}}}")).map(|study| study.trial);
    for (gpus, expected) in [("1", (1, 1)), ("2", (2, 1)), ("0.5", (1, 2)), ("0.33", (1, 3)), ("0.3", (1, 3))]
    {
        let trial = trial(gpus).unwrap();
        assert_eq!((trial.min_gpus, trial.share), expected, "{gpus}");
        assert_eq!((trial.max_gpus, trial.slots()), (Some(trial.min_gpus), trial.min_gpus), "{gpus}");
    }
    let elastic = trial("1..4, elastic: restart").unwrap();
    assert_eq!(
        (elastic.min_gpus, elastic.max_gpus, elastic.elastic),
        (1, Some(4), Some(Elasticity::Restart))
    );
    for wrong in ["0", "-1", "1.5", "0.001", "4..1", "2..2", "a", "[1]", "1e3", "5000"] {
        let problem = trial(wrong).unwrap_err().to_string();
        assert!(problem.contains("trial.gpus: found"), "{wrong}: {problem}");
    }
}

#[test]
fn what_can_have_no_effect_is_refused_in_files_and_not_in_journals() {
    let strict = |trial: &str| {
        let text =
            format!("space: {{lr: {{log: [1e-5, 1]}}}}\nobjective: {{minimize: loss}}\ntrial: {{{trial}}}");
        assert!(read(&text).is_ok(), "{trial}");
        let read = Study::from_yaml_with("study.yaml", &text, |_| Err(String::new()));
        read.map(drop).map_err(|problems| problems.to_string())
    };
    for (trial, expected) in [
        (
            "initial_batch: 64",
            "3:50: trial.initial_batch: `initial_batch` has no effect on a command; use it with `trainable`, `python` or `module`",
        ),
        ("min_gpus: 2", "3:45: trial.min_gpus: `min_gpus` has no effect on a command; use `gpus` instead"),
        ("keep_checkpoints: all", "trial.keep_checkpoints"),
        ("scaling: none", "trial.scaling"),
    ] {
        let problem = strict(&format!("command: [train, '{{lr}}'], {trial}")).unwrap_err();
        assert!(problem.contains(expected) && problem.lines().count() == 1, "{problem}");
    }
    // Those that are as by default do no harm.
    let whole = "command: [train, '{lr}', '{trial}', '{slots}', '${x}', '{{x}}'], initial_batch: 128, min_gpus: 1, scaling: adascale";
    assert_eq!(strict(whole), Ok(()));
    let unknown = strict("command: [train, '--lr={rate}']").unwrap_err();
    let expected = "trial.command: found the placeholder `{rate}`; expected one of lr, trial, slots, folder, port; or `{{rate}}` for the \
                    text `{rate}` itself";
    assert!(unknown.ends_with(expected), "{unknown}");
}

#[test]
fn the_best_value_counts_with_one_objective_only() {
    assert_eq!(read(&format!("{MINIMAL}trial: {{result: best}}")).unwrap().trial.result, ResultValue::Best);
    let two = "space: {x: {float: [0, 1]}}\nobjective: [{minimize: a}, {minimize: b}]\ntrial: {result: best}";
    let problem = read(two).unwrap_err().to_string();
    assert_eq!(
        problem,
        "study.yaml:3:17: trial.result: `result: best` with 2 objectives; expected `result: last`, or one objective"
    );
}

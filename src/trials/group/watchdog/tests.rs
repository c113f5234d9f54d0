use super::*;

const ALL: [Stage; 9] = [
    Stage::Idle,
    Stage::Preparing,
    Stage::Answering,
    Stage::Joining,
    Stage::Forming,
    Stage::FirstStep,
    Stage::Stepping,
    Stage::Evaluating,
    Stage::Saving,
];

#[test]
fn limits_are_several_times_the_longest_and_never_below_what_is_least() {
    let limits = Limits::default();
    for (stage, first_s, least_s) in [
        (Stage::Preparing, 600.0, 600.0),
        (Stage::Answering, 60.0, 60.0),
        (Stage::Forming, 300.0, 60.0),
        (Stage::FirstStep, 300.0, 300.0),
        (Stage::Stepping, 60.0, 60.0),
        (Stage::Evaluating, 600.0, 60.0),
        (Stage::Saving, 600.0, 600.0),
    ] {
        assert_eq!(limits.limit_s(stage, None), Some(first_s), "{stage:?}");
        assert_eq!(limits.limit_s(stage, Some(0.01)), Some(least_s), "{stage:?}");
        assert_eq!(limits.limit_s(stage, Some(500.0)), Some(5000.0), "{stage:?}");
    }
    for stage in [Stage::Idle, Stage::Joining] {
        assert_eq!(limits.limit_s(stage, Some(1.0)), None, "{stage:?}");
    }
}

#[test]
fn a_study_sets_the_least_limit_of_steps_and_nothing_gets_less_than_a_step() {
    for silence_s in [2.0, 7200.0] {
        let limits = Limits { silence_s: Some(silence_s), ..Limits::default() };
        assert_eq!(limits.limit_s(Stage::Stepping, Some(0.01)), Some(silence_s));
        assert_eq!(limits.limit_s(Stage::Stepping, Some(1000.0)), Some(10_000.0));
        for stage in ALL.into_iter().filter(|stage| *stage != Stage::Stepping) {
            let default_s = Limits::default().limit_s(stage, None);
            assert_eq!(
                limits.limit_s(stage, None),
                default_s.map(|limit_s| limit_s.max(silence_s)),
                "{stage:?}"
            );
        }
    }
}

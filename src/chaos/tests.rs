use super::*;

/// As many as `make test` has time for.
const SEEDS: u64 = 300;

#[test]
fn every_seed_keeps_all_rules_and_comes_to_its_end() {
    let mut total: BTreeMap<Fault, u64> = BTreeMap::new();
    for seed in 0..SEEDS {
        let summary = run(seed).unwrap_or_else(|violation| panic!("{violation}"));
        for (fault, count) in summary.faults {
            *total.entry(fault).or_default() += count;
        }
    }
    for fault in Fault::ALL {
        assert!(total.contains_key(&fault), "{fault} never happened: {total:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_events() {
    for seed in 0..5 {
        assert_eq!(run(seed).unwrap(), run(seed).unwrap());
    }
}

/// The rules that are broken by a defect, among some seeds.
fn found(mutant: Mutant) -> Vec<String> {
    (0..60).filter_map(|seed| run_with(seed, Some(mutant)).err()).map(|violation| violation.rule).collect()
}

#[test]
fn a_dead_group_that_prepares_again_is_found() {
    let rules = found(Mutant::DeadGroupPrepares);
    assert!(rules.iter().any(|rule| rule.contains("the study does not end")), "{rules:?}");
}

#[test]
fn a_second_writer_of_a_checkpoint_is_found() {
    let rules = found(Mutant::WriterIsDropped);
    assert!(
        rules.iter().any(|rule| rule.contains("is torn") || rule.contains("was replaced by")),
        "{rules:?}"
    );
}

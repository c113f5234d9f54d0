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

/// The first rule among all seeds that is broken by a defect.
fn found(defects: Defects) -> String {
    let broken = (0..SEEDS).find_map(|seed| run_with(seed, defects).err());
    let violation = broken.unwrap_or_else(|| panic!("{defects:?} was not found"));
    assert!(violation.to_string().ends_with(&format!("pollux-tune chaos --seed {}", violation.seed)));
    violation.rule
}

#[test]
fn a_dead_group_that_prepares_again_is_found() {
    let rule = found(Defects { prepares_the_dead: true, ..Defects::default() });
    let known = ["the study does not end", "nothing will ever happen again", "which has ended"];
    assert!(known.iter().any(|text| rule.contains(text)), "{rule}");
}

#[test]
fn a_second_writer_of_a_checkpoint_is_found() {
    let rule = found(Defects { drops_writers: true, ..Defects::default() });
    let known = ["is torn", "was reported"];
    assert!(known.iter().any(|text| rule.contains(text)), "{rule}");
}

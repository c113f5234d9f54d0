use proptest::prelude::*;

use super::{subset::select, *};

/// Up to nine results of a number of objectives with few different values, so that ties are common.
fn results(objectives: usize) -> impl Strategy<Value = Vec<Vec<f64>>> {
    let value = (0_u8..6).prop_map(f64::from);
    prop::collection::vec(prop::collection::vec(value, objectives), 0..10)
}

fn sets() -> impl Strategy<Value = Vec<Vec<f64>>> {
    (1_usize..=5).prop_flat_map(results)
}

/// The order in which up to ten results come.
fn orders() -> impl Strategy<Value = Vec<usize>> {
    Just((0..10).collect::<Vec<usize>>()).prop_shuffle()
}

/// The volume of a union of boxes by inclusion and exclusion of all their intersections.
fn volume_by_inclusion_exclusion(results: &[Vec<f64>], reference: &[f64]) -> f64 {
    (1_u32..1 << results.len())
        .map(|set| {
            let worst = |objective: usize| {
                let members = (0..results.len()).filter(|at| set >> at & 1 == 1);
                members.map(|at| results[at][objective]).fold(f64::NEG_INFINITY, f64::max)
            };
            let sides = reference.iter().enumerate().map(|(at, limit)| (limit - worst(at)).max(0.0));
            let sign = if set.count_ones() % 2 == 1 { 1.0 } else { -1.0 };
            sign * sides.product::<f64>()
        })
        .sum()
}

/// By the definition: the longest chain of results that each dominate the next.
fn rank_by_chains(results: &[Vec<f64>], at: usize) -> usize {
    let before = (0..results.len()).filter(|&other| dominates(&results[other], &results[at]));
    before.map(|other| rank_by_chains(results, other) + 1).max().unwrap_or(0)
}

proptest! {
    #[test]
    fn volumes_are_those_of_inclusion_and_exclusion(results in sets()) {
        let reference = vec![4.5; results.first().map_or(2, Vec::len)];
        let expected = volume_by_inclusion_exclusion(&results, &reference);
        let found = hypervolume(&results, &reference);
        prop_assert!((found - expected).abs() <= 1e-9 * expected.max(1.0), "{found} {expected}");
    }

    #[test]
    fn ranks_are_lengths_of_chains(results in sets()) {
        let expected: Vec<_> = (0..results.len()).map(|at| Some(rank_by_chains(&results, at))).collect();
        prop_assert_eq!(&non_dominated_ranks(&results), &expected);
        let front: Vec<usize> = (0..results.len()).filter(|&at| expected[at] == Some(0)).collect();
        prop_assert_eq!(pareto_front(&results), front);
    }

    #[test]
    fn fronts_that_grow_are_those_of_the_whole(results in sets(), order in orders()) {
        let mut fronts = Fronts::new(results.first().map_or(1, Vec::len));
        for &row in order.iter().filter(|&&row| row < results.len()) {
            fronts.insert(row as u32, &results[row]);
        }
        let ranks = non_dominated_ranks(&results);
        prop_assert_eq!(fronts.len(), results.len());
        for (rank, level) in fronts.levels().iter().enumerate() {
            let rows = (0..results.len() as u32).filter(|&row| ranks[row as usize] == Some(rank));
            prop_assert_eq!(level, &rows.collect::<Vec<_>>());
        }
    }

    /// Each choice adds as much as any other would, however the objectives are scaled.
    #[test]
    fn choices_add_the_most(results in (2_usize..=4).prop_flat_map(results)) {
        let front: Vec<&[f64]> = pareto_front(&results).iter().map(|&at| results[at].as_slice()).collect();
        let chosen = select(&front, 4);
        prop_assert_eq!(chosen.len(), front.len().min(4));
        let range = |at: usize| {
            let values = || front.iter().map(|result| result[at]);
            (values().fold(f64::INFINITY, f64::min), values().fold(f64::NEG_INFINITY, f64::max))
        };
        let reference: Vec<f64> = (0..front.first().map_or(0, |result| result.len()))
            .map(range)
            .map(|(low, high)| high + if high > low { 0.2 * (high - low) } else { 1.2 })
            .collect();
        for count in 0..chosen.len() {
            let with = |next: usize| {
                let set: Vec<&[f64]> = chosen[..count].iter().chain([&next]).map(|&at| front[at]).collect();
                hypervolume(&set, &reference)
            };
            let max = (0..front.len()).map(with).fold(0.0, f64::max);
            prop_assert!(with(chosen[count]) >= max - 1e-9, "choice {count} of {chosen:?} from {front:?}");
        }
        let scaled: Vec<Vec<f64>> =
            front.iter().map(|result| result.iter().map(|value| 1024.0 * value - 512.0).collect()).collect();
        let scaled: Vec<&[f64]> = scaled.iter().map(Vec::as_slice).collect();
        prop_assert_eq!(select(&scaled, 4), chosen);
    }
}

#[test]
fn odd_results_count_for_nothing() {
    let results = [vec![f64::NAN, 0.0], vec![1.0], vec![1.0, 1.0], vec![2.0, 0.5], vec![0.0, 3.0]];
    assert!(!dominates(&results[0], &results[2]) && !dominates(&results[2], &results[0]));
    assert!(!dominates(&results[1], &results[3]));
    assert!((hypervolume(&results, &[2.0, 2.0]) - 1.0).abs() < 1e-12, "others do not reach into the square");
    assert!(hypervolume(&results, &[]).abs() < f64::EPSILON);
    assert!(hypervolume(&[[f64::NEG_INFINITY, 0.0, 0.0]], &[1.0; 3]).is_infinite());
    assert!(pareto_front::<Vec<f64>>(&[]).is_empty());
}

/// Hand-worked with the reference (1.2, 1.2): alone, the middle has 1 x 1 and its neighbours 1.1 x 0.8. Next to it,
/// they add 0.1 x 0.8, and the ends 0.2 x 0.2.
#[test]
fn a_convex_front_is_chosen_from_its_middle() {
    let front: [&[f64]; 5] = [&[0.0, 1.0], &[0.1, 0.4], &[0.2, 0.2], &[0.4, 0.1], &[1.0, 0.0]];
    assert_eq!(select(&front, 3), [2, 1, 3]);
    assert_eq!(select(&front, 9).len(), 5);
    let overflow: [&[f64]; 3] = [&[-1e308, 1e308], &[0.0, 0.0], &[1e308, -1e308]];
    assert_eq!(select(&overflow, 2), [1, 0]);
}

#[test]
fn large_fronts_are_chosen_from_evenly() {
    for objectives in [2, 3, 6] {
        let front = |at: u32| {
            let along = f64::from(at) / 2999.0;
            let mut result = vec![along; objectives];
            result[0] = 1.0 - along;
            result
        };
        let front: Vec<Vec<f64>> = (0..3000).map(front).collect();
        let front: Vec<&[f64]> = front.iter().map(Vec::as_slice).collect();
        let mut chosen = select(&front, 40);
        chosen.sort_unstable();
        chosen.dedup();
        assert_eq!(chosen.len(), 40, "none twice");
        let gap = chosen.windows(2).map(|pair| pair[1] - pair[0]).max();
        assert!(gap < Some(300), "{objectives}: {chosen:?}");
        let ends = (chosen[0], chosen[39]);
        assert!(objectives > 2 || ends == (0, 2999), "{ends:?}");
    }
}

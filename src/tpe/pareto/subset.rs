use super::volume::exclusive;

/// Where the reference point is, as a share of the range of a front beyond its worst values.
const MARGIN: f64 = 0.2;
/// The number of results of a front that are looked at, with two objectives.
const MAX_OF_TWO: usize = 1000;
/// The same with more objectives, where each of them costs more.
const MAX_OF_MORE: usize = 200;
/// Up to this number of objectives, what a result adds is exact.
const MAX_EXACT: usize = 4;

/// Chooses `count` results of one front that dominate as much as possible together: one after the other, always the
/// one that adds most (Guerreiro et al. 2016, "Greedy Hypervolume Subset Selection in Low Dimensions"). The
/// order is that of the choice. It does not change if objectives are scaled or shifted.
///
/// With more than four objectives it is an approximation. Of a large front, those are looked at that are best in
/// an objective, and others evenly spaced along the first one: about 1 000, with more than two objectives 200, or as
/// many as asked for.
pub(in crate::tpe) fn select(front: &[&[f64]], count: usize) -> Vec<usize> {
    let objectives = front.first().map_or(0, |result| result.len());
    let max = if objectives == 2 { MAX_OF_TWO } else { MAX_OF_MORE };
    let places = thinned(front, max.max(count));
    let scaled = scale(front);
    let scaled: Vec<&[f64]> = places.iter().map(|&at| scaled[at].as_slice()).collect();
    let count = count.min(places.len());
    let chosen = if objectives == 2 { of_two(&scaled, count) } else { of_more(&scaled, count) };
    chosen.into_iter().map(|at| places[at]).collect()
}

/// Places of about `max` results of a front: all if there are not more.
fn thinned(front: &[&[f64]], max: usize) -> Vec<usize> {
    let mut places: Vec<usize> = (0..front.len()).collect();
    if front.len() <= max {
        return places;
    }
    let by = |objective: usize| {
        move |&a: &usize, &b: &usize| front[a][objective].total_cmp(&front[b][objective]).then(a.cmp(&b))
    };
    places.sort_by(by(0));
    let mut kept: Vec<usize> = (0..max).map(|at| places[at * places.len() / max]).collect();
    kept.extend((1..front[0].len()).filter_map(|objective| places.iter().copied().min_by(by(objective))));
    kept.sort_unstable();
    kept.dedup();
    kept
}

/// The range of each objective becomes 0 to 1; then the reference point is 1 + the margin.
fn scale(front: &[&[f64]]) -> Vec<Vec<f64>> {
    let Some(first) = front.first() else { return Vec::new() };
    let (mut low, mut high) = (first.to_vec(), first.to_vec());
    for result in front {
        for (at, &value) in result.iter().enumerate() {
            low[at] = low[at].min(value);
            high[at] = high[at].max(value);
        }
    }
    // Halves do not overflow.
    let share = |at: usize, value: f64| {
        let range = high[at] / 2.0 - low[at] / 2.0;
        if range > 0.0 { (value / 2.0 - low[at] / 2.0) / range } else { 0.0 }
    };
    front.iter().map(|result| result.iter().enumerate().map(|(at, &v)| share(at, v)).collect()).collect()
}

/// Two objectives: what a result adds is a rectangle between its neighbours among the chosen ones.
fn of_two(front: &[&[f64]], count: usize) -> Vec<usize> {
    let mut left: Vec<usize> = (0..front.len()).collect();
    left.sort_by(|&a, &b| front[a][0].total_cmp(&front[b][0]));
    let mut corners = vec![[1.0 + MARGIN; 2]; front.len()];
    let mut chosen = Vec::with_capacity(count);
    while chosen.len() < count {
        let (mut best, mut max) = (0, f64::NEG_INFINITY);
        for (place, &at) in left.iter().enumerate() {
            let added = (corners[at][0] - front[at][0]) * (corners[at][1] - front[at][1]);
            if added > max {
                (best, max) = (place, added);
            }
        }
        let next = left.remove(best);
        for &before in &left[..best] {
            corners[before][0] = corners[before][0].min(front[next][0]);
        }
        for &behind in &left[best..] {
            corners[behind][1] = corners[behind][1].min(front[next][1]);
        }
        chosen.push(next);
    }
    chosen
}

/// More objectives: what a result adds becomes less with every choice, so what it added before is a bound, and so
/// is what it adds to a single one of the chosen. With many objectives, where volumes take too long, the
/// bound has to do.
fn of_more(front: &[&[f64]], count: usize) -> Vec<usize> {
    let reference = vec![1.0 + MARGIN; front.first().map_or(0, |result| result.len())];
    let mut bounds: Vec<f64> = front.iter().map(|result| exclusive(result, &[], &reference)).collect();
    let mut left: Vec<usize> = (0..front.len()).collect();
    let (mut chosen, mut results) = (Vec::with_capacity(count), Vec::with_capacity(count));
    while chosen.len() < count {
        left.sort_by(|&a, &b| bounds[b].total_cmp(&bounds[a]).then(a.cmp(&b)));
        let (mut best, mut max) = (0, f64::NEG_INFINITY);
        for (place, &at) in left.iter().enumerate() {
            if bounds[at] <= max {
                break;
            }
            if reference.len() <= MAX_EXACT {
                bounds[at] = exclusive(front[at], &results, &reference);
            }
            if bounds[at] > max {
                (best, max) = (place, bounds[at]);
            }
        }
        let next = left.remove(best);
        for &at in &left {
            bounds[at] = bounds[at].min(exclusive(front[at], &[front[next]], &reference));
        }
        results.push(front[next]);
        chosen.push(next);
    }
    chosen
}

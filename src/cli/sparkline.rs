//! Curves in one line of text.

/// From the smallest value to the largest.
const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// A curve through points of growing `x`, in at most so many columns. Each column shows the last value in its part of the range;
/// a part without one shows what was known before. Values that are not finite are left out.
pub(super) fn sparkline(points: &[(f64, f64)], columns: usize) -> String {
    let points: Vec<(f64, f64)> =
        points.iter().copied().filter(|(x, y)| x.is_finite() && y.is_finite()).collect();
    let (Some(&(first, _)), Some(&(last, _))) = (points.first(), points.last()) else { return String::new() };
    let low = points.iter().map(|(_, y)| *y).fold(f64::INFINITY, f64::min);
    let high = points.iter().map(|(_, y)| *y).fold(f64::NEG_INFINITY, f64::max);
    let columns = columns.min(points.len()).max(1);
    let mut line = String::with_capacity(3 * columns);
    let mut known = points[0].1;
    let mut next = 0;
    for column in 1..=columns {
        let end = first + (last - first) * (column as f64 / columns as f64);
        while next < points.len() && (points[next].0 <= end || column == columns) {
            known = points[next].1;
            next += 1;
        }
        // Halves, so that no difference is too large for a number.
        let share = if high > low { (known / 2.0 - low / 2.0) / (high / 2.0 - low / 2.0) } else { 0.5 };
        line.push(LEVELS[((share * LEVELS.len() as f64) as usize).min(LEVELS.len() - 1)]);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_go_from_the_lowest_level_to_the_highest() {
        let points: Vec<(f64, f64)> = (0..8).map(|x| (f64::from(x), f64::from(x))).collect();
        assert_eq!(sparkline(&points, 80), "▁▂▃▄▅▆▇█");
        assert_eq!(sparkline(&points, 4), "▂▄▆█");
        assert_eq!(sparkline(&[(1.0, 3.0), (2.0, 3.0)], 10), "▅▅");
        assert_eq!(sparkline(&[(1.0, f64::NAN), (2.0, 1.0)], 10), "▅");
        assert_eq!(sparkline(&[], 10), "");
        assert_eq!(sparkline(&[(0.0, f64::MIN), (1.0, f64::MAX)], 10), "▁█");
    }

    #[test]
    fn a_column_without_a_report_shows_what_was_known() {
        let points = [(0.0, 0.0), (1.0, 1.0), (6.0, 0.0), (10.0, 1.0)];
        assert_eq!(sparkline(&points, 4), "██▁█");
    }
}

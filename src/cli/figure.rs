//! The two panels that show how well a throughput model fits: step time by GPUs, and throughput by batch.

use std::collections::{BTreeMap, BTreeSet};

use crate::goodput::{Shape, ThroughputParams, Tier};

use super::{
    fit::place,
    output::pluralize,
    plot::{Figure, Panel, Point, Scale, Series},
    profile::Row,
};

/// The maximum number of lines of the panel on throughput.
const SHAPES: usize = 4;
/// The maximum number of points of a fitted line.
const SAMPLES: u32 = 48;

/// Measured and fitted step times and throughputs.
pub(crate) fn of_fit(title: &str, rows: &[Row], params: &ThroughputParams, mean_error: f64) -> Figure {
    // One drawing is for one accumulation: the smallest, which is none in most measurements.
    let accumulation = rows.iter().map(|row| row.accumulation).min().unwrap_or(0);
    let drawn: Vec<&Row> = rows.iter().filter(|row| row.accumulation == accumulation).collect();
    let passes =
        if accumulation == 0 { String::new() } else { format!(", {} passes", u64::from(accumulation) + 1) };
    Figure {
        title: format!("{title}: mean error {:.1} %", 100.0 * mean_error),
        caption: format!(
            "Points are medians of measured steps, bars their range, lines the fitted model ({rows}{passes})",
            rows = pluralize(drawn.len(), "row")
        ),
        panels: [step_times(&drawn, params, accumulation), throughputs(&drawn, params, accumulation)],
    }
}

fn step_times(rows: &[&Row], params: &ThroughputParams, accumulation: u32) -> Panel {
    let per_gpu = best_measured_batch(rows);
    let at_batch: Vec<_> = rows.iter().copied().filter(|row| row.per_gpu == per_gpu).collect();
    let longest_s = at_batch.iter().map(|row| row.step_s).fold(0.0, f64::max);
    let (unit, scale) = if longest_s < 1.0 { ("ms", 1e3) } else { ("s", 1.0) };
    let series = Tier::ALL.iter().filter_map(|&tier| {
        let at_tier = at_batch.iter().filter(|row| tier_of(row.shape) == tier);
        let points = medians(at_tier.map(|row| (row.shape.gpus(), scale * row.step_s)));
        let counts = whole_numbers(points.first()?.x as u32, points.last()?.x as u32);
        let fitted = |gpus: u32| {
            let time = params.iter_time_s(Shape::at_tier(gpus, tier), f64::from(per_gpu), accumulation);
            (f64::from(gpus), scale * time)
        };
        Some(Series { label: place(tier).to_owned(), points, line: counts.into_iter().map(fitted).collect() })
    });
    Panel {
        title: format!("Step time, {per_gpu} examples per GPU"),
        x_label: "GPUs".to_owned(),
        x_scale: Scale::Log2,
        y_label: format!("step time ({unit})"),
        y_scale: Scale::Linear,
        series: series.collect(),
    }
}

fn throughputs(rows: &[&Row], params: &ThroughputParams, accumulation: u32) -> Panel {
    let series = drawn_shapes(rows).into_iter().filter_map(|(gpus, tier)| {
        let shape = Shape::at_tier(gpus, tier);
        let examples = |per_gpu: u32| f64::from(gpus) * f64::from(per_gpu) * (f64::from(accumulation) + 1.0);
        let of_shape = rows.iter().filter(|row| (row.shape.gpus(), tier_of(row.shape)) == (gpus, tier));
        let points = medians(of_shape.map(|row| (row.per_gpu, examples(row.per_gpu) / row.step_s)));
        let batches = whole_numbers(points.first()?.x as u32, points.last()?.x as u32);
        let fitted =
            |per_gpu: u32| (f64::from(per_gpu), params.throughput(shape, f64::from(per_gpu), accumulation));
        let label = match gpus {
            1 => "1 GPU".to_owned(),
            _ => format!("{gpus} GPUs, {}", place(tier)),
        };
        Some(Series { label, points, line: batches.into_iter().map(fitted).collect() })
    });
    Panel {
        title: "Throughput".to_owned(),
        x_label: "examples per GPU".to_owned(),
        x_scale: Scale::Log2,
        y_label: "throughput (examples/s)".to_owned(),
        y_scale: Scale::Log10,
        series: series.collect(),
    }
}

/// A single GPU needs no tier, and is drawn with the near ones.
fn tier_of(shape: Shape) -> Tier {
    shape.tier().unwrap_or(Tier::Local)
}

/// The per-GPU batch that was measured on the largest number of GPU counts and tiers; in the middle if several are.
fn best_measured_batch(rows: &[&Row]) -> u32 {
    let mut places: BTreeMap<u32, BTreeSet<(u32, Tier)>> = BTreeMap::new();
    for row in rows {
        places.entry(row.per_gpu).or_default().insert((row.shape.gpus(), tier_of(row.shape)));
    }
    let max = places.values().map(BTreeSet::len).max().unwrap_or(0);
    let best: Vec<u32> =
        places.iter().filter(|(_, set)| set.len() == max).map(|(&per_gpu, _)| per_gpu).collect();
    best.get(best.len().saturating_sub(1) / 2).copied().unwrap_or(1)
}

/// A few counts of GPUs from the smallest to the largest, powers of two if there are enough, each at its
/// nearest tier.
fn drawn_shapes(rows: &[&Row]) -> Vec<(u32, Tier)> {
    let mut nearest: BTreeMap<u32, Tier> = BTreeMap::new();
    for row in rows {
        let tier = tier_of(row.shape);
        nearest.entry(row.shape.gpus()).and_modify(|nearest| *nearest = tier.min(*nearest)).or_insert(tier);
    }
    let all: Vec<_> = nearest.into_iter().collect();
    let round: Vec<_> = all.iter().copied().filter(|(gpus, _)| gpus.is_power_of_two()).collect();
    let from = if round.len() >= SHAPES { round } else { all };
    if from.len() <= SHAPES {
        return from;
    }
    let last = from.len() - 1;
    (0..SHAPES).map(|place| from[(place * last + (SHAPES - 1) / 2) / (SHAPES - 1)]).collect()
}

/// The median and range of the values at each place.
fn medians(values: impl Iterator<Item = (u32, f64)>) -> Vec<Point> {
    let mut by_place: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    for (place, value) in values {
        by_place.entry(place).or_default().push(value);
    }
    let point = |(place, mut values): (u32, Vec<f64>)| {
        values.sort_by(f64::total_cmp);
        let (below, above) = (values[(values.len() - 1) / 2], values[values.len() / 2]);
        Point {
            x: f64::from(place),
            y: f64::midpoint(below, above),
            low: values[0],
            high: values[values.len() - 1],
        }
    };
    by_place.into_iter().map(point).collect()
}

/// Whole numbers from `first` to `last`, dense enough for a smooth line on a logarithmic axis.
fn whole_numbers(first: u32, last: u32) -> BTreeSet<u32> {
    let ratio = f64::from(last) / f64::from(first);
    let between = (0..=SAMPLES).map(|step| {
        let share = f64::from(step) / f64::from(SAMPLES);
        (f64::from(first) * ratio.powf(share)).round() as u32
    });
    between.map(|number| number.clamp(first, last)).collect()
}

#[cfg(test)]
mod tests;

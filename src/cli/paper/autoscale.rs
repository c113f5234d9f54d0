//! The training of `ImageNet` that asks for nodes by itself: by goodput, and by throughput.

use std::fmt::Write as _;

use crate::{
    ids::GpuType,
    sim::{Application, Cloud, ScaleBy, ScaleReport, Thresholds, autoscale},
};

use super::{
    super::{
        plot::{Figure, Panel, Scale, Series},
        simulate::Error,
    },
    Experiment,
};

/// The paper: what goodput costs and takes, relative to throughput.
const PAPER: [f64; 2] = [0.75, 1.06];

/// Simulates both, on nodes of 4 T4 as in the paper.
pub(super) fn run() -> Result<Experiment, Error> {
    let imagenet = Application::get("imagenet").expect("its measurements come along");
    let gpu_type = GpuType::new("t4").expect("it is a name");
    let cloud = Cloud { gpu_type, node_gpus: 4, max_nodes: 16, restart_s: 30.0 };
    let run = |by| autoscale(imagenet, &cloud, by, Thresholds::default()).map_err(Error::Simulation);
    let reports = [("goodput", run(ScaleBy::Goodput)?), ("throughput", run(ScaleBy::Throughput)?)];
    Ok(Experiment { csv: csv(&reports), figure: figure(&reports), page: markdown(&reports) })
}

fn csv(reports: &[(&str, ScaleReport); 2]) -> String {
    let mut text = "by,from_s,nodes,batch,efficiency\n".to_owned();
    for (by, report) in reports {
        for segment in &report.segments {
            let _ = writeln!(
                text,
                "{by},{},{},{},{}",
                segment.from_s, segment.nodes, segment.batch, segment.efficiency
            );
        }
    }
    text
}

fn markdown(reports: &[(&str, ScaleReport); 2]) -> String {
    let mut text = "## ImageNet in the cloud: nodes of 4 T4, up to 16 of them\n\n".to_owned();
    text.push_str(
        "More nodes once each GPU brings more than 2/3 of what one alone would, enough that it is about 1/2: by goodput \
         (Pollux), and by throughput (Or et al.).\n\n",
    );
    text.push_str(
        "| by | hours | node hours | nodes | batch | mean efficiency |\n|---|---|---|---|---|---|\n",
    );
    for (by, report) in reports {
        let ends = || report.segments.first().into_iter().chain(report.segments.last());
        let [nodes, batch] = [0, 1].map(|which| {
            let values: Vec<String> =
                ends().map(|segment| [segment.nodes, segment.batch][which].to_string()).collect();
            values.join(" to ")
        });
        let _ = writeln!(
            text,
            "| {by} | {:.2} | {:.1} | {nodes} | {batch} | {:.2} |",
            report.time_s / 3600.0,
            report.node_hours,
            efficiency(report),
        );
    }
    let [(_, goodput), (_, throughput)] = reports;
    let ratios = [goodput.node_hours / throughput.node_hours, goodput.time_s / throughput.time_s];
    text.push_str("\n| goodput, relative to throughput | the paper | ours | ratio |\n|---|---|---|---|\n");
    for ((what, paper), ours) in ["cost", "time"].into_iter().zip(PAPER).zip(ratios) {
        let _ = writeln!(text, "| {what} | {paper:.2} | {ours:.2} | {:.2} |", ours / paper);
    }
    text
}

/// Mean over the time.
fn efficiency(report: &ScaleReport) -> f64 {
    let ends = report.segments.iter().skip(1).map(|segment| segment.from_s).chain([report.time_s]);
    let parts = report.segments.iter().zip(ends);
    parts.map(|(segment, end_s)| segment.efficiency * (end_s - segment.from_s)).sum::<f64>() / report.time_s
}

fn figure(reports: &[(&str, ScaleReport); 2]) -> Figure {
    let steps = |of: fn(&crate::sim::Segment) -> f64| {
        let series = |(by, report): &(&str, ScaleReport)| {
            let mut line: Vec<(f64, f64)> = Vec::new();
            for segment in &report.segments {
                let (hours, value) = (segment.from_s / 3600.0, of(segment));
                if let Some(&(_, before)) = line.last() {
                    line.push((hours, before));
                }
                line.push((hours, value));
            }
            line.extend(line.last().map(|&(_, value)| (report.time_s / 3600.0, value)));
            Series { label: format!("by {by}"), points: Vec::new(), line }
        };
        reports.iter().map(series).collect()
    };
    let panel = |title: &str, series| Panel {
        title: title.to_owned(),
        x_label: "hours".to_owned(),
        x_scale: Scale::Linear,
        y_label: title.to_lowercase(),
        y_scale: Scale::Linear,
        series,
    };
    Figure {
        title: "ImageNet in the cloud".to_owned(),
        caption: "nodes of 4 T4; more of them once each GPU brings 2/3 of what one alone would".to_owned(),
        panels: [
            panel("Nodes", steps(|segment| f64::from(segment.nodes))),
            panel("Statistical efficiency", steps(|segment| segment.efficiency)),
        ],
    }
}

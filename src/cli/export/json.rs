//! A study as one JSON object.

use std::io::{self, Write};

use serde_json::{Value, json};

use super::{
    record::{Record, Report, Trial},
    time,
};

pub(super) fn write(record: &Record, to: &mut impl Write) -> io::Result<()> {
    let objectives = record.study.objectives.iter();
    let objectives = objectives
        .map(|objective| json!({"metric": objective.metric, "direction": objective.direction.to_string()}));
    let whole = json!({
        "study": {
            "name": record.name,
            "id": record.id.to_string(),
            "created": time::utc(record.created_s),
            "objectives": objectives.collect::<Vec<_>>(),
            "yaml": record.study.to_yaml(),
        },
        "enqueued": record.queue,
        "trials": record.trials.iter().map(|trial| of_trial(record, trial)).collect::<Vec<_>>(),
    });
    serde_json::to_writer_pretty(&mut *to, &whole)?;
    to.write_all(b"\n")
}

fn of_trial(record: &Record, trial: &Trial) -> Value {
    let report = |Report { at_s, epochs, values }: &Report| {
        let metrics: serde_json::Map<_, _> =
            values.iter().map(|(place, value)| (record.metrics[*place].clone(), json!(value))).collect();
        json!({"time": time::utc(*at_s), "epochs": epochs, "metrics": metrics})
    };
    let row = &trial.row;
    let values: serde_json::Map<_, _> =
        record.results(trial).map(|(metric, value)| (metric.to_owned(), json!(value))).collect();
    json!({
        "id": row.trial.0,
        "state": row.state.to_string(),
        "params": row.params,
        "values": (!values.is_empty()).then_some(values),
        "metrics": row.metrics,
        "epochs": row.epochs,
        "created": time::utc(row.created_s),
        "started": trial.began_s().map(time::utc),
        "ended": trial.ended_s().map(time::utc),
        "slot_seconds": row.slot_s,
        "slots": row.slots,
        "batch": row.batch,
        "generation": row.generation,
        "reason": row.reason,
        "reports": trial.reports.iter().map(report).collect::<Vec<_>>(),
    })
}

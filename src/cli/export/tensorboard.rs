//! Event files of TensorBoard: a curve for each metric, and what the page HPARAMS shows.
//!
//! The messages are those of `event.proto`, `summary.proto`, and the plugin's `plugin_data.proto` and `api.proto`, of which only a few
//! fields are needed.

use super::record::{Point, Record, Trial};
use crate::{
    space::{Form, Parameter, Value},
    store::TrialState,
};

/// Files of a folder, by their paths below it; one that ends in `/` is a folder, which may stay empty.
pub(super) type Files = Vec<(String, Vec<u8>)>;

/// The folder of a study: one for each trial, and a file about the parameters.
pub(super) fn files(record: &Record) -> Files {
    let name = format!("events.out.tfevents.{:010}.pollux-tune", record.created_s as u64);
    let of_trial = |trial: &Trial| (format!("trial-{}/{name}", trial.row.trial), trial_events(record, trial));
    let study = (name.clone(), study_events(record));
    std::iter::once(study).chain(record.trials.iter().map(of_trial)).collect()
}

/// The value that a trial has been given, besides what it has reported.
pub(super) fn result_tag(metric: &str) -> String {
    format!("result/{metric}")
}

fn trial_events(record: &Record, trial: &Trial) -> Vec<u8> {
    let created_s = trial.row.created_s;
    let mut file = File::begin(created_s);
    file.add(created_s, 0, &hparams("session_start_info", 3, &session_start(record, trial)));
    for (place, name) in record.metrics.iter().enumerate() {
        for Point { step, at_s, value } in trial.curve(place, record.steps) {
            file.add(at_s, step, &scalar(name, value));
        }
    }
    let ended_s = trial.ended_s();
    let step = record.steps.step(trial.row.epochs);
    for (metric, value) in record.results(trial) {
        file.add(ended_s.unwrap_or(created_s), step, &scalar(&result_tag(metric), value));
    }
    if let Some(ended_s) = ended_s {
        let status = match trial.row.state {
            TrialState::Done | TrialState::Stopped => 1,
            _ => 2,
        };
        let end = Message::new().int(1, status).double(2, ended_s);
        file.add(ended_s, 0, &hparams("session_end_info", 4, &end));
    }
    file.0
}

fn study_events(record: &Record) -> Vec<u8> {
    let mut experiment = Message::new().text(6, &record.name).double(3, record.created_s);
    for parameter in record.study.space.parameters() {
        experiment = experiment.message(4, &parameter_info(parameter));
    }
    for objective in &record.study.objectives {
        for (tag, title) in [
            (result_tag(&objective.metric), objective.metric.clone()),
            (objective.metric.clone(), format!("{} (last)", objective.metric)),
        ] {
            let info = Message::new().message(1, &Message::new().text(2, &tag)).text(3, &title);
            experiment = experiment.message(5, &info);
        }
    }
    let mut file = File::begin(record.created_s);
    file.add(record.created_s, 0, &hparams("experiment", 2, &experiment));
    file.0
}

fn parameter_info(parameter: &Parameter) -> Message {
    let [text, bool, number] = [1, 2, 3];
    let info = Message::new().text(1, parameter.name());
    let interval = |low: f64, high: f64| Message::new().double(1, low).double(2, high);
    match parameter.domain().form() {
        Form::Float { low, high, .. } => info.int(4, number).message(6, &interval(low, high)),
        Form::Int { low, high, .. } => info.int(4, number).message(6, &interval(low as f64, high as f64)),
        Form::Values(values) => {
            let kind = match values {
                all if all.iter().all(|value| value.as_bool().is_some()) => bool,
                all if all.iter().all(|value| value.as_float().is_some()) => number,
                _ => text,
            };
            let plain = |value: &Value| {
                if kind == text { json(&Value::Text(value.to_string())) } else { json(value) }
            };
            let list = values.iter().fold(Message::new(), |list, value| list.message(1, &plain(value)));
            info.int(4, kind).message(5, &list)
        }
    }
}

/// A map of the parameters to their values.
fn session_start(record: &Record, trial: &Trial) -> Message {
    let mut start = Message::new();
    for parameter in record.study.space.parameters() {
        let Some(value) = trial.param(parameter.name()) else { continue };
        // All values of a parameter are of one kind.
        let is_mixed = matches!(parameter.domain().form(), Form::Values(all)
            if !all.iter().all(|value| value.as_float().is_some()) && !all.iter().all(|value| value.as_bool().is_some()));
        let value = if is_mixed { json(&Value::Text(value.to_string())) } else { json(value) };
        start = start.message(1, &Message::new().text(1, parameter.name()).message(2, &value));
    }
    start.text(4, &format!("trial-{}", trial.row.trial)).double(5, trial.row.created_s)
}

/// `google.protobuf.Value`.
fn json(value: &Value) -> Message {
    match value {
        Value::Bool(value) => Message::new().int(4, (*value).into()),
        Value::Text(text) => Message::new().text(3, text),
        Value::Int(_) | Value::Float(_) => Message::new().double(2, value.as_float().unwrap_or(f64::NAN)),
    }
}

/// A `Summary` with one value.
fn summary(value: &Message) -> Message {
    Message::new().message(1, value)
}

fn scalar(tag: &str, value: f64) -> Message {
    summary(&Message::new().text(1, tag).float(2, value as f32))
}

/// What the plugin of the page HPARAMS reads.
fn hparams(tag: &str, field: u32, data: &Message) -> Message {
    let content = Message::new().message(field, data);
    let plugin = Message::new().text(1, "hparams").message(2, &content);
    let metadata = Message::new().message(1, &plugin);
    // A tensor of no meaning, which has to be there: of floats, with one dimension.
    let tensor = Message::new().int(1, 1).message(2, &Message::new().message(2, &Message::new()));
    let value = Message::new().text(1, &format!("_hparams_/{tag}")).message(9, &metadata);
    summary(&value.message(8, &tensor))
}

/// A message in the encoding of protocol buffers.
struct Message(Vec<u8>);

impl Message {
    const fn new() -> Self {
        Self(Vec::new())
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn key(&mut self, field: u32, wire: u32) {
        self.varint(u64::from(field << 3 | wire));
    }

    fn int(mut self, field: u32, value: u64) -> Self {
        self.key(field, 0);
        self.varint(value);
        self
    }

    fn double(mut self, field: u32, value: f64) -> Self {
        self.key(field, 1);
        self.0.extend(value.to_le_bytes());
        self
    }

    fn float(mut self, field: u32, value: f32) -> Self {
        self.key(field, 5);
        self.0.extend(value.to_le_bytes());
        self
    }

    fn bytes(mut self, field: u32, bytes: &[u8]) -> Self {
        self.key(field, 2);
        self.varint(bytes.len() as u64);
        self.0.extend(bytes);
        self
    }

    fn text(self, field: u32, text: &str) -> Self {
        self.bytes(field, text.as_bytes())
    }

    fn message(self, field: u32, message: &Self) -> Self {
        self.bytes(field, &message.0)
    }
}

/// Records of TensorFlow, each an event: length, checksum of the length, bytes, checksum of the bytes.
struct File(Vec<u8>);

impl File {
    fn begin(at_s: f64) -> Self {
        let mut file = Self(Vec::new());
        file.record(&Message::new().double(1, at_s).text(3, "brain.Event:2"));
        file
    }

    fn add(&mut self, at_s: f64, step: i64, summary: &Message) {
        self.record(&Message::new().double(1, at_s).int(2, step.cast_unsigned()).message(5, summary));
    }

    fn record(&mut self, Message(bytes): &Message) {
        let length = (bytes.len() as u64).to_le_bytes();
        self.0.extend(length);
        self.0.extend(masked(&length).to_le_bytes());
        self.0.extend(bytes);
        self.0.extend(masked(bytes).to_le_bytes());
    }
}

/// A checksum that does not become a simple one where checksums are checked again.
fn masked(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// The polynomial of Castagnoli.
fn crc32c(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut place = 0;
        while place < 256 {
            let (mut value, mut bit) = (place as u32, 0);
            while bit < 8 {
                value = if value & 1 == 1 { value >> 1 ^ 0x82f6_3b78 } else { value >> 1 };
                bit += 1;
            }
            table[place] = value;
            place += 1;
        }
        table
    };
    let step = |sum: u32, byte: &u8| sum >> 8 ^ TABLE[((sum ^ u32::from(*byte)) & 0xff) as usize];
    !bytes.iter().fold(!0, step)
}

#[cfg(test)]
mod tests {
    use super::{super::record::tests::record, *};

    /// From RFC 3720, appendix B.4.
    #[test]
    fn checksums_are_those_of_the_standard() {
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn numbers_are_encoded_as_in_the_specification() {
        assert_eq!(Message::new().int(1, 150).0, [0x08, 0x96, 0x01]);
        assert_eq!(Message::new().text(2, "testing").0, *b"\x12\x07testing");
    }

    #[test]
    fn records_follow_each_other() {
        let files = files(&record());
        assert_eq!(files.len(), 4);
        assert!(files[1].0.starts_with("trial-0/events.out.tfevents."), "{}", files[1].0);
        let (mut rest, mut records) = (&files[1].1[..], 0);
        while let Some((head, tail)) = rest.split_first_chunk::<12>() {
            let length = u64::from_le_bytes(head[..8].try_into().expect("eight bytes")) as usize;
            assert_eq!(head[8..], masked(&head[..8]).to_le_bytes());
            assert_eq!(tail[length..length + 4], masked(&tail[..length]).to_le_bytes());
            (rest, records) = (&tail[length + 4..], records + 1);
        }
        // The version, the parameters, two values of each of two metrics, the result, and the end.
        assert_eq!((records, rest.len()), (8, 0));
    }
}

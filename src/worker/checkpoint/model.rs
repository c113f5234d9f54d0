//! The model in a checkpoint: its variables by their names, without what only training needs.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{
    ALIGNMENT,
    envelope::{self, Contents, Kind, Position, Problem, Stored},
    files::{self, Found},
};
use crate::ids::{StudyId, TrialId};

/// How the tensors of a model in Python begin, before its own names.
const PYTHON_MODEL: &str = "model.";
/// What a checkpoint of Python code has besides.
const PYTHON_REST: &str = "pollux_tune.rest";
/// The vectors of a model in Rust: what is trained, and what is kept.
const VECTORS: [&str; 2] = ["weights", "buffers"];
const NUMBER_BYTES: u64 = 4;
const HEADER_ALIGNMENT: usize = 8;

/// A variable of a model, and where its numbers are after the header of the checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Variable {
    stored: Stored,
    begin: u64,
}

/// What a layout says of each variable: its name, its shape, and whether it is trained.
type Described = (String, Vec<u64>, bool);

#[derive(Deserialize)]
struct RustState {
    layout: RustLayout,
}

#[derive(Deserialize)]
struct RustLayout {
    variables: Vec<Described>,
}

#[derive(Serialize)]
struct Header<'a> {
    #[serde(rename = "__metadata__")]
    metadata: &'a BTreeMap<String, String>,
    #[serde(flatten)]
    tensors: BTreeMap<&'a str, Place<'a>>,
}

#[derive(Serialize)]
struct Place<'a> {
    dtype: &'a str,
    shape: &'a [u64],
    data_offsets: (u64, u64),
}

/// The last checkpoint of a trial that is whole, with the model in it.
#[derive(Debug)]
pub(crate) struct SavedModel {
    /// How far the trial had come.
    pub(crate) position: Position,
    file: File,
    /// Where numbers begin.
    data: u64,
    variables: Vec<Variable>,
}

/// What was looked for and not found.
#[derive(Debug)]
pub(crate) enum NoModel {
    /// There is no checkpoint.
    Nothing,
    /// The last one that there is cannot be used.
    Unusable(PathBuf, Problem),
}

impl SavedModel {
    /// Finds the one in the folder of a trial that has come furthest. Changes nothing there.
    pub(crate) fn find(folder: &Path, study: StudyId, trial: TrialId) -> Result<Self, NoModel> {
        let found = match files::list(folder) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(NoModel::Nothing),
            Err(error) => return Err(NoModel::Unusable(folder.to_owned(), error.into())),
        };
        let mut names: Vec<files::Name> = found.iter().filter_map(Found::whole).collect();
        names.sort();
        let mut first = NoModel::Nothing;
        for name in names.into_iter().rev() {
            let path = folder.join(name.whole());
            match Self::open(&path, study, trial) {
                Ok(model) => return Ok(model),
                // A study that runs removes those that it needs no longer.
                Err(Problem::Io(error)) if error.kind() == io::ErrorKind::NotFound => {}
                Err(problem) if matches!(first, NoModel::Nothing) => {
                    first = NoModel::Unusable(path, problem);
                }
                Err(_) => {}
            }
        }
        Err(first)
    }

    fn open(path: &Path, study: StudyId, trial: TrialId) -> Result<Self, Problem> {
        let mut file = File::open(path)?;
        let (owner, contents) = envelope::read(&mut file)?;
        if owner.study != study {
            return Err(Problem::OtherStudy(owner.study));
        }
        if owner.trial != trial {
            return Err(Problem::OtherTrial(owner.trial));
        }
        if owner.kind != Kind::Trained {
            return Err(Problem::OtherKind(owner.kind));
        }
        let data = file.stream_position()?;
        let variables = variables(&contents)?;
        Ok(Self { position: contents.position, file, data, variables })
    }

    /// How many tensors it has, and how many numbers they have.
    pub(crate) fn size(&self) -> (usize, u64) {
        let numbers = |variable: &Variable| variable.stored.shape.iter().product::<u64>();
        (self.variables.len(), self.variables.iter().map(numbers).sum())
    }

    /// Writes it as safetensors, with these texts about it.
    pub(crate) fn write(
        &mut self,
        metadata: &BTreeMap<String, String>,
        out: &mut impl Write,
    ) -> io::Result<()> {
        out.write_all(&header(metadata, &self.variables)?)?;
        for Variable { stored, begin } in &self.variables {
            self.file.seek(SeekFrom::Start(self.data + begin))?;
            if io::copy(&mut (&mut self.file).take(stored.bytes), out)? != stored.bytes {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }
}

/// Bytes of a number; none if there is no such type.
fn number_bytes(dtype: &str) -> Option<u64> {
    Some(match dtype {
        "F64" | "I64" | "U64" | "C64" => 8,
        "F32" | "I32" | "U32" => 4,
        "F16" | "BF16" | "I16" | "U16" => 2,
        "I8" | "U8" | "BOOL" | "F8_E4M3" | "F8_E5M2" => 1,
        _ => return None,
    })
}

/// The variables of the model in a checkpoint, in the order that they are to be written in: those with the longest numbers first, so that all
/// begin where they may.
fn variables(contents: &Contents) -> Result<Vec<Variable>, Problem> {
    let mut begin: u64 = 0;
    let mut stored = BTreeMap::new();
    for vector in &contents.vectors {
        stored.insert(vector.name.as_str(), Variable { stored: vector.clone(), begin });
        begin = begin.saturating_add(vector.bytes);
    }
    let mut variables = if stored.contains_key(PYTHON_REST) {
        python_variables(stored.into_values())
    } else {
        rust_variables(&contents.state, &stored)?
    };
    if variables.is_empty() {
        return Err(Problem::State("it has no model".to_owned()));
    }
    for Variable { stored: Stored { name, dtype, shape, bytes }, .. } in &variables {
        let length = number_bytes(dtype)
            .and_then(|number| shape.iter().try_fold(number, |product, side| product.checked_mul(*side)));
        if length != Some(*bytes) {
            let problem = format!("`{name}` has {bytes} bytes for the shape {shape:?} of {dtype}");
            return Err(Problem::State(problem));
        }
    }
    variables.sort_by(|one, two| {
        let order = |of: &Variable| std::cmp::Reverse(number_bytes(&of.stored.dtype));
        (order(one), &one.stored.name).cmp(&(order(two), &two.stored.name))
    });
    Ok(variables)
}

fn python_variables(stored: impl Iterator<Item = Variable>) -> Vec<Variable> {
    let of_model = |variable: Variable| {
        let name = variable.stored.name.strip_prefix(PYTHON_MODEL)?.to_owned();
        Some(Variable { stored: Stored { name, ..variable.stored }, ..variable })
    };
    stored.filter_map(of_model).collect()
}

/// Cuts vectors into what they were made of.
fn rust_variables(state: &str, stored: &BTreeMap<&str, Variable>) -> Result<Vec<Variable>, Problem> {
    let no_model = |error: serde_json::Error| Problem::State(format!("it has no model: {error}"));
    let described = serde_json::from_str::<RustState>(state).map_err(no_model)?.layout.variables;
    let mut at = [0_u64; VECTORS.len()];
    let mut variables = Vec::with_capacity(described.len());
    for (name, shape, is_trained) in described {
        let which = usize::from(!is_trained);
        let vector = stored.get(VECTORS[which]);
        let outside = || Problem::State(format!("`{name}` is not in `{}`", VECTORS[which]));
        let vector = vector.ok_or_else(outside)?;
        let numbers = shape.iter().try_fold(1_u64, |product, side| product.checked_mul(*side));
        let end = numbers.and_then(|numbers| at[which].checked_add(numbers)).ok_or_else(outside)?;
        if end > vector.stored.bytes / NUMBER_BYTES {
            return Err(outside());
        }
        let begin = vector.begin + at[which] * NUMBER_BYTES;
        let bytes = (end - at[which]) * NUMBER_BYTES;
        at[which] = end.next_multiple_of(ALIGNMENT);
        variables.push(Variable { stored: Stored { name, dtype: "F32".to_owned(), shape, bytes }, begin });
    }
    Ok(variables)
}

/// The length of the header, and the header.
fn header(metadata: &BTreeMap<String, String>, variables: &[Variable]) -> io::Result<Vec<u8>> {
    let mut begin = 0;
    let mut tensors = BTreeMap::new();
    for Variable { stored: Stored { name, dtype, shape, bytes }, .. } in variables {
        tensors.insert(name.as_str(), Place { dtype, shape, data_offsets: (begin, begin + bytes) });
        begin += bytes;
    }
    let mut text = serde_json::to_vec(&Header { metadata, tensors })?;
    text.resize(text.len().next_multiple_of(HEADER_ALIGNMENT), b' ');
    Ok([&(text.len() as u64).to_le_bytes()[..], &text].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Round;

    fn contents(state: &str, vectors: Vec<Stored>) -> Contents {
        Contents { position: Position { steps: 3, round: Round(1) }, state: state.to_owned(), vectors }
    }

    fn tensor(name: &str, dtype: &str, shape: &[u64], bytes: u64) -> Stored {
        Stored { name: name.to_owned(), dtype: dtype.to_owned(), shape: shape.to_owned(), bytes }
    }

    /// Name, type, shape and place.
    type Found = (String, String, Vec<u64>, u64);

    fn found(contents: &Contents) -> Result<Vec<Found>, String> {
        let described =
            |Variable { stored: Stored { name, dtype, shape, .. }, begin }| (name, dtype, shape, begin);
        let variables = variables(contents).map_err(|problem| problem.to_string())?;
        Ok(variables.into_iter().map(described).collect())
    }

    const LAYOUT: &str = r#"{"layout": {"variables": [["a.bias", [2], true], ["a.mean", [3], false], ["a.weight", [3, 2], true], ["b", [], false]]}}"#;

    #[test]
    fn vectors_of_rust_are_cut_at_their_variables() {
        let vectors = vec![
            Stored::numbers("weights", 32),
            Stored::numbers("buffers", 32),
            Stored::numbers("moments.0", 32),
        ];
        let f32 = || "F32".to_owned();
        let expected = [
            ("a.bias".to_owned(), f32(), vec![2], 0),
            ("a.mean".to_owned(), f32(), vec![3], 128),
            ("a.weight".to_owned(), f32(), vec![3, 2], 64),
            ("b".to_owned(), f32(), vec![], 192),
        ];
        assert_eq!(found(&contents(LAYOUT, vectors)).expect("a model"), expected);
    }

    #[test]
    fn tensors_of_python_lose_their_prefix_and_the_longest_numbers_come_first() {
        let vectors = vec![
            tensor(PYTHON_REST, "U8", &[7], 7),
            tensor("model.flag", "BOOL", &[3], 3),
            tensor("state.0", "F32", &[4], 16),
            tensor("model.weight", "F32", &[2, 2], 16),
            tensor("model.count", "I64", &[], 8),
            tensor("model.empty", "F32", &[0, 5], 0),
        ];
        let expected = [
            ("count".to_owned(), "I64".to_owned(), vec![], 42),
            ("empty".to_owned(), "F32".to_owned(), vec![0, 5], 50),
            ("weight".to_owned(), "F32".to_owned(), vec![2, 2], 26),
            ("flag".to_owned(), "BOOL".to_owned(), vec![3], 7),
        ];
        assert_eq!(found(&contents("{}", vectors)).expect("a model"), expected);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let weights = |count| vec![Stored::numbers("weights", count), Stored::numbers("buffers", 32)];
        let python = |stored: Stored| vec![tensor(PYTHON_REST, "U8", &[0], 0), stored];
        let huge = r#"{"layout": {"variables": [["a", [4294967296, 4294967296], true]]}}"#;
        for (state, vectors, problem) in [
            ("{}", weights(32), "it has no model: missing field `layout` at line 1 column 2"),
            (LAYOUT, weights(20), "`a.weight` is not in `weights`"),
            (LAYOUT, vec![Stored::numbers("weights", 32)], "`a.mean` is not in `buffers`"),
            (huge, weights(32), "`a` is not in `weights`"),
            ("{}", python(tensor("state.0", "F32", &[1], 4)), "it has no model"),
            ("{}", python(tensor("model.a", "F32", &[2], 4)), "`a` has 4 bytes for the shape [2] of F32"),
            ("{}", python(tensor("model.a", "F3", &[1], 4)), "`a` has 4 bytes for the shape [1] of F3"),
        ] {
            let told = found(&contents(state, vectors)).expect_err("it does not fit");
            assert_eq!(told, format!("has a state that does not fit: {problem}"));
        }
    }
}

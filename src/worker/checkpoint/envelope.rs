//! The bytes of a checkpoint: a file in the format of safetensors, which many programs can open.
//!
//! ```text
//! 8 bytes   length of the header
//! header    JSON: whose state it is and how far it has come as `__metadata__`, then names and places of all tensors
//! tensors   the numbers of one after the other; those of Rust trainables are vectors of 32 bits
//! 32 bytes  the tensor `checksum`: BLAKE3 of everything before
//! ```

use std::{
    collections::BTreeMap,
    io::{self, Read, Seek, SeekFrom, Write},
};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::identity::{Identity, ParamsHash};
use crate::ids::{Round, StudyId, TrialId};

const FORMAT: &str = "pollux-tune checkpoint";
/// Grows with every change that older programs would misunderstand.
const VERSION: &str = "1";
const CHECKSUM: &str = "checksum";
const CHECKSUM_BYTES: u64 = blake3::OUT_LEN as u64;
const LENGTH_BYTES: u64 = 8;
/// Bytes of a number in a vector.
const NUMBER_BYTES: u64 = 4;
/// No header is longer: what says so is damaged.
const HEADER_MAX: u64 = 1 << 30;
/// As much is read at once.
const READ_BYTES: usize = 1 << 20;

/// What has trained: the state of one means nothing to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    Trained,
    Emulated,
}

/// How far a trial has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    /// Optimizer steps.
    pub(crate) steps: u64,
    /// The group that took the last of them.
    pub(crate) round: Round,
}

/// What is in a checkpoint, besides the numbers themselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Contents {
    pub(crate) position: Position,
    /// What else the backend knows of the state, as JSON.
    pub(crate) state: String,
    /// In the order of the file.
    pub(crate) vectors: Vec<Stored>,
}

/// A tensor of a checkpoint, without its numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) name: String,
    /// The type of its numbers as safetensors calls it, such as `F32`.
    pub(crate) dtype: String,
    pub(crate) shape: Vec<u64>,
    pub(crate) bytes: u64,
}

impl Stored {
    /// A vector of numbers of 32 bits.
    pub(crate) fn numbers(name: &str, count: u64) -> Self {
        let (name, dtype) = (name.to_owned(), "F32".to_owned());
        Self { name, dtype, shape: vec![count], bytes: count * NUMBER_BYTES }
    }
}

/// Why a file cannot be used as the checkpoint of a trial.
#[derive(Debug, Error)]
pub(crate) enum Problem {
    #[error("has neither an identity nor a checksum: an earlier version wrote it, or another program")]
    Earlier,
    #[error("is no checkpoint: {0}")]
    Format(String),
    #[error("is of version {0} of the format, and this program reads version {VERSION}")]
    Version(String),
    #[error("is cut off: it has {found} of {expected} bytes")]
    Truncated { found: u64, expected: u64 },
    #[error("is damaged: its checksum is wrong")]
    Damaged,
    #[error("is of another study ({0})")]
    OtherStudy(StudyId),
    #[error("is of another trial ({0})")]
    OtherTrial(TrialId),
    #[error("is of another trainable (`{0}`)")]
    OtherTrainable(String),
    #[error("is of a trial with other parameters")]
    OtherParams,
    #[error("is of {}", match .0 { Kind::Trained => "a training that was not emulated", Kind::Emulated => "an emulated training" })]
    OtherKind(Kind),
    #[error("has a state that does not fit: {0}")]
    State(String),
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
}

impl Problem {
    /// What the system says, if it is not the file that is to blame: it may be whole.
    pub(super) fn into_system_error(self) -> Result<io::Error, Self> {
        match self {
            // It became shorter meanwhile, or is no file at all.
            Self::Io(error)
                if matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::IsADirectory) =>
            {
                Err(Self::Io(error))
            }
            Self::Io(error) => Ok(error),
            problem => Err(problem),
        }
    }
}

/// Texts only, as the format wants it.
#[derive(Debug, Serialize, Deserialize)]
struct Metadata {
    format: String,
    version: String,
    study: StudyId,
    trial: String,
    trainable: String,
    params: ParamsHash,
    kind: Kind,
    round: String,
    steps: String,
    state: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct Tensor {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

#[derive(Debug, Serialize, Deserialize)]
struct Header {
    #[serde(rename = "__metadata__")]
    metadata: Metadata,
    #[serde(flatten)]
    tensors: BTreeMap<String, Tensor>,
}

impl Header {
    fn new(identity: &Identity, kind: Kind, contents: &Contents) -> Self {
        let Identity { study, trial, trainable, params } = identity.clone();
        let Position { steps, round } = contents.position;
        let mut begin = 0;
        let mut tensors = BTreeMap::new();
        let mut add = |Stored { name, dtype, shape, bytes }: &Stored| {
            let data_offsets = (begin, begin + bytes);
            begin = data_offsets.1;
            tensors.insert(name.clone(), Tensor { dtype: dtype.clone(), shape: shape.clone(), data_offsets });
        };
        contents.vectors.iter().for_each(&mut add);
        let (name, dtype) = (CHECKSUM.to_owned(), "U8".to_owned());
        add(&Stored { name, dtype, shape: vec![CHECKSUM_BYTES], bytes: CHECKSUM_BYTES });
        let metadata = Metadata {
            format: FORMAT.to_owned(),
            version: VERSION.to_owned(),
            study,
            trial: trial.to_string(),
            trainable,
            params,
            kind,
            round: round.to_string(),
            steps: steps.to_string(),
            state: contents.state.clone(),
        };
        Self { metadata, tensors }
    }

    /// Bytes after the header.
    fn data_bytes(&self) -> u64 {
        self.tensors.values().map(|tensor| tensor.data_offsets.1).max().unwrap_or(0)
    }

    /// Whether it is the state of this trial.
    fn check(&self, identity: &Identity, kind: Kind) -> Result<(), Problem> {
        let Metadata { study, trial, trainable, params, .. } = &self.metadata;
        let trial = TrialId(number(trial, "trial")?);
        if *study != identity.study {
            return Err(Problem::OtherStudy(*study));
        }
        if trial != identity.trial {
            return Err(Problem::OtherTrial(trial));
        }
        if self.metadata.kind != kind {
            return Err(Problem::OtherKind(self.metadata.kind));
        }
        if *trainable != identity.trainable {
            return Err(Problem::OtherTrainable(trainable.clone()));
        }
        if *params != identity.params {
            return Err(Problem::OtherParams);
        }
        Ok(())
    }

    fn into_contents(self) -> Result<Contents, Problem> {
        let Self { metadata, tensors } = self;
        let position = Position {
            steps: number(&metadata.steps, "steps")?,
            round: Round(number(&metadata.round, "round")?),
        };
        let mut vectors: Vec<(u64, Stored)> = tensors
            .into_iter()
            .filter(|(name, _)| name != CHECKSUM)
            .map(|(name, Tensor { dtype, shape, data_offsets: (begin, end) })| {
                (begin, Stored { name, dtype, shape, bytes: end.saturating_sub(begin) })
            })
            .collect();
        // Those without numbers begin where the next one does.
        vectors.sort_by(|(begin, one), (other, two)| {
            (begin, one.bytes, &one.name).cmp(&(other, two.bytes, &two.name))
        });
        let vectors = vectors.into_iter().map(|(_, stored)| stored).collect();
        Ok(Contents { position, state: metadata.state, vectors })
    }
}

fn number<T: std::str::FromStr>(text: &str, what: &str) -> Result<T, Problem> {
    text.parse().map_err(|_| Problem::Format(format!("its {what} is `{text}`")))
}

/// Writes a checkpoint. `data` writes the numbers of all vectors, in their order and the lowest byte first.
pub(super) fn write(
    out: impl Write,
    identity: &Identity,
    kind: Kind,
    contents: &Contents,
    data: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let header = Header::new(identity, kind, contents);
    let mut text = serde_json::to_vec(&header)?;
    // Numbers begin where vector instructions like them.
    text.resize(text.len().next_multiple_of(LENGTH_BYTES as usize), b' ');
    let mut out = HashingWriter { out, hasher: blake3::Hasher::new(), written: 0 };
    out.write_all(&(text.len() as u64).to_le_bytes())?;
    out.write_all(&text)?;
    data(&mut out)?;
    let expected = LENGTH_BYTES + text.len() as u64 + header.data_bytes() - CHECKSUM_BYTES;
    if out.written != expected {
        let problem = format!("{} bytes were written instead of {expected}", out.written);
        return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
    }
    let HashingWriter { mut out, hasher, .. } = out;
    out.write_all(hasher.finalize().as_bytes())?;
    out.flush()
}

/// Reads and checks all of a checkpoint, and gives what is in it; the numbers are next.
pub(super) fn verify(
    input: &mut (impl Read + Seek),
    identity: &Identity,
    kind: Kind,
) -> Result<Contents, Problem> {
    let header = read_header(input)?;
    header.check(identity, kind)?;
    header.into_contents()
}

/// Whose a checkpoint is, as far as that can be seen without its parameters.
#[cfg(feature = "cli")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) study: StudyId,
    pub(super) trial: TrialId,
    pub(super) kind: Kind,
}

/// Reads and checks all of a checkpoint of any trial; the numbers are next.
#[cfg(feature = "cli")]
pub(super) fn read(input: &mut (impl Read + Seek)) -> Result<(Owner, Contents), Problem> {
    let header = read_header(input)?;
    let Metadata { study, trial, kind, .. } = &header.metadata;
    let owner = Owner { study: *study, trial: TrialId(number(trial, "trial")?), kind: *kind };
    Ok((owner, header.into_contents()?))
}

/// The header of a checkpoint that is whole.
fn read_header(input: &mut (impl Read + Seek)) -> Result<Header, Problem> {
    let found = input.seek(SeekFrom::End(0))?;
    input.rewind()?;
    if found < LENGTH_BYTES + CHECKSUM_BYTES {
        return Err(Problem::Truncated { found, expected: LENGTH_BYTES + CHECKSUM_BYTES });
    }
    let is_whole = has_checksum(input, found - CHECKSUM_BYTES)?;
    input.rewind()?;
    let mut length = [0; LENGTH_BYTES as usize];
    input.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    let header = if length <= found - LENGTH_BYTES {
        let mut text = vec![0; length as usize];
        input.read_exact(&mut text)?;
        serde_json::from_slice::<Header>(&text).map_err(|error| Problem::Format(error.to_string()))
    } else {
        Err(Problem::Format(format!("its header has {length} bytes, and all of it {found}")))
    };
    let expected = |header: &Header| header.data_bytes().saturating_add(length).saturating_add(LENGTH_BYTES);
    if !is_whole {
        // What can be read of a damaged file may still tell what has happened to it.
        let least = if length <= HEADER_MAX { LENGTH_BYTES + length + CHECKSUM_BYTES } else { found };
        let expected = header.as_ref().map_or(least, expected);
        let is_short = found < expected;
        return Err(if is_short { Problem::Truncated { found, expected } } else { Problem::Damaged });
    }
    let header = header?;
    if found != expected(&header) {
        return Err(Problem::Format(format!("it has {found} bytes instead of {}", expected(&header))));
    }
    if header.metadata.format != FORMAT {
        return Err(Problem::Format(format!("it is of the format `{}`", header.metadata.format)));
    }
    if header.metadata.version != VERSION {
        return Err(Problem::Version(header.metadata.version));
    }
    Ok(header)
}

/// Whether the bytes after these are their checksum.
fn has_checksum(input: &mut impl Read, bytes: u64) -> io::Result<bool> {
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; READ_BYTES.min(bytes as usize)];
    let mut left = bytes;
    while left > 0 {
        let piece = &mut buffer[..READ_BYTES.min(left as usize)];
        input.read_exact(piece)?;
        hasher.update(piece);
        left -= piece.len() as u64;
    }
    let mut checksum = [0; blake3::OUT_LEN];
    input.read_exact(&mut checksum)?;
    Ok(hasher.finalize() == checksum)
}

struct HashingWriter<W> {
    out: W,
    hasher: blake3::Hasher,
    written: u64,
}

impl<W: Write> Write for HashingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        self.written += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

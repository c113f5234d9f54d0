//! The measurements that come with the program: see `data/profiles/README.md`.

use std::io::Read;

/// Step times of one model on one GPU type.
pub(super) struct ProfileFile {
    pub(super) gpu: &'static str,
    pub(super) placements: &'static str,
    /// Step times where only the numbers of nodes and GPUs are known; may be empty.
    pub(super) scalability: &'static str,
}

macro_rules! profile {
    ($model:literal, $gpu:literal) => {
        ProfileFile {
            gpu: $gpu,
            placements: include_str!(concat!("../../data/profiles/", $model, "/placements-", $gpu, ".csv")),
            scalability: "",
        }
    };
    ($model:literal, $gpu:literal, spread) => {
        ProfileFile {
            scalability: include_str!(concat!("../../data/profiles/", $model, "/scalability-", $gpu, ".csv")),
            ..profile!($model, $gpu)
        }
    };
}

macro_rules! model {
    ($model:literal) => {
        (
            $model,
            [profile!($model, "t4", spread), profile!($model, "a100"), profile!($model, "rtx2080ti", spread)],
        )
    };
}

/// Every model, by name, with its step times.
pub(super) static PROFILES: [(&str, [ProfileFile; 3]); 6] = [
    model!("bert"),
    model!("cifar10"),
    model!("deepspeech2"),
    model!("imagenet"),
    model!("ncf"),
    model!("yolov3"),
];

/// The tetrahedra between measured points, by GPU type. On A100 every placement was measured.
pub(super) static MESHES: [(&str, &[u8]); 2] = [
    ("t4", include_bytes!("../../data/profiles/mesh-t4.csv.gz")),
    ("rtx2080ti", include_bytes!("../../data/profiles/mesh-rtx2080ti.csv.gz")),
];

/// Trainings from beginning to end at several batch sizes, of all models.
pub(super) static TRAINING: &[u8] = include_bytes!("../../data/profiles/training.csv.gz");

/// The text of a compressed file that is part of the program.
pub(super) fn unpacked(bytes: &[u8]) -> String {
    let mut text = String::new();
    flate2::read::GzDecoder::new(bytes).read_to_string(&mut text).expect("the file was compressed by us");
    text
}

/// The rows of a table that is part of the program, with the fields of the columns asked for.
pub(super) fn rows<const N: usize>(text: &str, columns: [&str; N]) -> Vec<[String; N]> {
    let mut lines = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let header = lines.next().unwrap_or_default();
    let places = columns.map(|column| {
        header.iter().position(|name| *name == column).expect("the table has the columns of its README")
    });
    lines.map(|fields| places.map(|place| fields[place].to_owned())).collect()
}

/// A number of a table that is part of the program.
pub(super) fn number<T: std::str::FromStr>(text: &str) -> T {
    let Ok(number) = text.parse() else { panic!("`{text}` is in a table of numbers") };
    number
}

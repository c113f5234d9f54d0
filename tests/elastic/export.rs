//! Weights that others can use: what `export` writes is the model that the study has reported about.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use pollux_tune::{
    space::{Params, Study},
    store::Reader,
    worker::{Example, Trainable},
};
use tch::{Device, Kind, Tensor, nn};

use crate::{
    common::{Folder, run_study},
    net::Net,
};

fn study(keep: &str) -> Study {
    let yaml = format!(
        "
space: {{lr: {{log: [1e-2, 1e-1]}}, hidden: {{int: [20, 40]}}, batch_norm: [true]}}
objective: {{maximize: accuracy}}
trial: {{trainable: net, epochs: 4, initial_batch: 24, max_batch: 100, keep_checkpoints: {keep}}}
search: {{trials: 2, parallel: 2}}
"
    );
    Study::from_yaml("study.yaml", &yaml).expect("a study")
}

fn export(folder: &Path, arguments: &[&str], output: &Path) -> Output {
    let program = env!("CARGO_BIN_EXE_pollux-tune");
    let mut command = Command::new(program);
    command.arg("export").arg(folder).args(arguments).arg("-o").arg(output);
    command.output().expect("the program runs")
}

fn complaint(folder: &Path, arguments: &[&str], output: &Path) -> String {
    let done = export(folder, arguments, output);
    assert_eq!(done.status.code(), Some(2), "{done:?}");
    String::from_utf8(done.stderr).expect("text")
}

/// The accuracy of a model with the weights in a file.
fn accuracy(file: &Path, params: &Params) -> f64 {
    let mut store = nn::VarStore::new(Device::Cpu);
    let net = Net::new(&store.root(), params).expect("a model");
    store.load(file).expect("tch reads all of its variables");
    let mut data = net.test_data().expect("data").expect("there are some");
    let all: Vec<Example> = (0..data.len()).map(|index| Example { index, augment: None }).collect();
    let examples = data.load(&all).expect("they can be read");
    let metrics = net.evaluate(&examples).expect("it can be evaluated");
    metrics[0].1.to_kind(Kind::Double).mean(Kind::Double).double_value(&[])
}

#[test]
fn exported_weights_give_the_result_of_the_study() {
    let folder = Folder::new();
    let (place, output) = (folder.path().join("study"), folder.path().join("model.safetensors"));
    run_study(study("1"), place.as_os_str(), |_| {});
    let reader = Reader::open(&place).expect("a study");
    let [best, other] = &reader.best(2).expect("results")[..] else { panic!("two trials") };

    let done = export(&place, &[], &output);
    assert!(done.status.success(), "{done:?}");
    let said = String::from_utf8(done.stdout).expect("text");
    assert!(said.contains(&format!("trial {} after ", best.trial)) && said.contains("8 tensors"), "{said}");
    let names: Vec<String> =
        Tensor::read_safetensors(&output).expect("safetensors").into_iter().map(|(name, _)| name).collect();
    for name in ["first.weight", "norm.running_mean", "last.bias"] {
        assert!(names.iter().any(|known| known == name), "{names:?}");
    }
    let value = best.values.as_ref().expect("a result")[0];
    assert!((accuracy(&output, &best.params) - value).abs() < 1e-9, "the study has reported {value}");

    let again = complaint(&place, &[], &output);
    assert!(again.contains("model.safetensors exists; --force replaces it"), "{again}");
    fs::write(&output, "something else").expect("a file");
    assert!(export(&place, &["--force", "--trial", &best.trial.to_string()], &output).status.success());
    assert!((accuracy(&output, &best.params) - value).abs() < 1e-9);

    let gone = folder.path().join("gone.safetensors");
    let dropped = complaint(&place, &["--trial", &other.trial.to_string()], &gone);
    let told = "has no checkpoint: after their end the study keeps that of the best trial; `run --keep-checkpoints all`";
    assert!(dropped.contains(told), "{dropped}");
    let unknown = complaint(&place, &["--trial", "9"], &gone);
    assert!(unknown.contains("there is no trial 9 in ") && unknown.contains("2 trials so far"), "{unknown}");
    let strange = complaint(&place, &["--trial", "last"], &gone);
    assert!(strange.contains("expected `best` or the number of a trial"), "{strange}");
    let files: Vec<_> = fs::read_dir(folder.path())
        .expect("a folder")
        .map(|file| file.expect("a file").file_name())
        .collect();
    assert_eq!(files.len(), 2, "nothing half-written is left: {files:?}");
}

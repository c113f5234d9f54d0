//! The Python that trains scripts.

use std::{
    io::Read,
    path::Path,
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use serde_json::Value;

use super::Finding;
use crate::{
    space::{Program, Study},
    worker,
};

const CHECK: &str = "python";
/// Importing PyTorch from a network drive takes its time.
const PATIENCE: Duration = Duration::from_secs(120);

/// Says as JSON what is there.
const QUESTION: &str = r#"
import json, sys
found = {"python": sys.version.split()[0]}
for name in ("pollux_tune", "torch"):
    try:
        found[name] = getattr(__import__(name), "__version__", "")
    except BaseException as error:
        found[name + "_error"] = f"{type(error).__name__}: {error}"
if "torch" in found:
    import torch
    found["cuda"] = torch.version.cuda
    found["gpus"] = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if found["cuda"]:
        found["nccl"] = torch.distributed.is_available() and torch.distributed.is_nccl_available()
    found["gloo"] = torch.distributed.is_available() and torch.distributed.is_gloo_available()
print(json.dumps(found))
"#;

/// Whether scripts can be trained, on that number of GPUs.
pub(super) fn check(study: Option<&Study>, paths_from: &Path, gpus: usize) -> Finding {
    let program = study.and_then(|study| study.trial.program.as_ref());
    let python = match program {
        Some(Program::Python(python)) => Some(python),
        _ => None,
    };
    let interpreter = python.and_then(|python| python.interpreter_from(paths_from));
    let interpreter = worker::interpreter(interpreter.as_deref());
    let answer = answer(&interpreter);
    judge(&interpreter, answer.as_deref(), python.is_some(), gpus)
}

/// What it prints, if it can be started and comes to an end.
fn answer(interpreter: &Path) -> Option<String> {
    let mut python = Command::new(interpreter);
    python.args(["-c", QUESTION]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = python.spawn().ok()?;
    let mut stdout = child.stdout.take()?;
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut text = String::new();
        let read = stdout.read_to_string(&mut text);
        // Nobody waits any more if it took too long.
        let _ = sender.send(read.map(|_| text));
    });
    let text = receiver.recv_timeout(PATIENCE);
    // Already over, unless it hangs.
    let _ = child.kill();
    let _ = child.wait();
    text.ok()?.ok()
}

/// What follows from its answer.
fn judge(interpreter: &Path, answer: Option<&str>, is_needed: bool, gpus: usize) -> Finding {
    let name = interpreter.display();
    let missing = |found: String, remedy: &str| Finding::missing(CHECK, is_needed, found, remedy);
    let answer = answer.and_then(|text| serde_json::from_str::<Value>(text).ok());
    let Some(answer) = answer else {
        return missing(
            format!("`{name}` cannot be started, or does not answer: no elastic Python trials"),
            "install Python 3.10 or later, or name another one as `trial.interpreter`",
        );
    };
    let text = |key: &str| answer[key].as_str();
    let version = text("python").unwrap_or("?");
    let python = format!("`{name}` is Python {version}");
    if let Some(error) = text("pollux_tune_error") {
        return missing(
            format!("{python}, without the package pollux_tune ({error})"),
            "install the wheel of `make wheel` there, or name another Python as `trial.interpreter`",
        );
    }
    if let Some(error) = text("torch_error") {
        return missing(
            format!("{python}, without PyTorch ({error}): no elastic trials"),
            "install it there: `pip install torch`",
        );
    }
    let torch = format!("{python} with pollux_tune and PyTorch {}", text("torch").unwrap_or("?"));
    if answer["gloo"] != true {
        return missing(
            format!("{torch}, which has no Gloo"),
            "install a PyTorch from PyPI, which is built with it",
        );
    }
    if gpus == 0 {
        return Finding::ok(CHECK, torch);
    }
    match (text("cuda"), answer["gpus"].as_u64()) {
        (None, _) => missing(
            format!("{torch}, which has no CUDA: trials would not use the GPUs"),
            "install a PyTorch with CUDA there",
        ),
        (Some(cuda), None | Some(0)) => missing(
            format!("{torch} for CUDA {cuda}, which sees no GPU"),
            "look at `python3 -c 'import torch; torch.cuda.init()'`: often the driver is older than this CUDA",
        ),
        (Some(_), Some(1..)) if answer["nccl"] != true => missing(
            format!("{torch}, which has no NCCL: trials cannot have several GPUs"),
            "install a PyTorch from PyPI, which is built with it",
        ),
        (Some(cuda), Some(seen)) => {
            Finding::ok(CHECK, format!("{torch}, CUDA {cuda} and NCCL, which sees {seen} GPUs"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::doctor::Level;

    fn judged(answer: &str, is_needed: bool, gpus: usize) -> (Level, String) {
        let finding = judge(Path::new("python3"), Some(answer), is_needed, gpus);
        (finding.level, finding.found)
    }

    const CPU: &str = r#"{"python": "3.12.1", "pollux_tune": "", "torch": "2.13.0", "cuda": null, "gpus": 0, "gloo": true}"#;
    const CUDA: &str = r#"{"python": "3.12.1", "pollux_tune": "", "torch": "2.13.0", "cuda": "13.0", "gpus": 2, "gloo": true, "nccl": true}"#;

    #[test]
    fn what_is_missing_is_a_problem_only_for_those_who_need_it() {
        let bare =
            r#"{"python": "3.12.1", "pollux_tune_error": "ModuleNotFoundError: no", "torch": "2.13.0"}"#;
        let (level, found) = judged(bare, true, 0);
        assert_eq!(level, Level::Problem);
        assert!(found.contains("without the package pollux_tune (ModuleNotFoundError: no)"), "{found}");
        assert_eq!(judged(bare, false, 0).0, Level::Note);
        assert_eq!(judge(Path::new("python3"), None, true, 0).level, Level::Problem);
        let no_torch = r#"{"python": "3.12.1", "pollux_tune": "", "torch_error": "ImportError: x"}"#;
        assert!(judged(no_torch, true, 0).1.contains("without PyTorch (ImportError: x)"));
    }

    #[test]
    fn gpus_want_a_pytorch_that_sees_them() {
        assert_eq!(judged(CPU, true, 0).0, Level::Ok);
        assert_eq!(judged(CPU, true, 2).0, Level::Problem);
        assert_eq!(judged(CUDA, true, 2).0, Level::Ok);
        let blind = CUDA.replace("\"gpus\": 2", "\"gpus\": 0");
        assert!(judged(&blind, true, 2).1.contains("for CUDA 13.0, which sees no GPU"));
        let alone = CUDA.replace("\"nccl\": true", "\"nccl\": false");
        assert!(judged(&alone, true, 2).1.contains("no NCCL"));
    }

    #[test]
    fn the_question_is_answered_by_whatever_can_be_started() {
        assert_eq!(answer(Path::new("/nonexistent/python")), None);
        // Another program, which says nothing.
        assert_eq!(answer(Path::new("true")).as_deref(), Some(""));
        assert_eq!(judge(Path::new("true"), Some(""), false, 0).level, Level::Note);
    }
}

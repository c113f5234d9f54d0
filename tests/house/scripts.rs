//! Which libtorch the scripts would take.

use std::{
    env, fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{self, Command},
    sync::atomic::{AtomicU32, Ordering},
};

/// The flavour on a machine where `nvidia-smi` prints this and ends with a code.
fn flavour(nvidia_smi: Option<(&str, i32)>, variables: &[(&str, &str)]) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let folder = env::temp_dir().join(format!("pollux-flavour-{}-{number}", process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    if let Some((text, code)) = nvidia_smi {
        let fake = folder.join("nvidia-smi");
        fs::write(&fake, format!("#!/bin/sh\necho '{text}'\nexit {code}\n")).expect("a file");
        fs::set_permissions(&fake, fs::Permissions::from_mode(0o755)).expect("a program");
    }
    let path = env::var("PATH").expect("a path");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/with-libtorch.sh");
    let mut command = Command::new(script);
    command.arg("--flavour").env("PATH", format!("{}:{path}", folder.display()));
    for name in ["LIBTORCH", "LIBTORCH_FLAVOUR", "CUDA_VISIBLE_DEVICES"] {
        command.env_remove(name);
    }
    let printed = command.envs(variables.iter().copied()).output().expect("it runs");
    fs::remove_dir_all(&folder).expect("it is there");
    String::from_utf8(printed.stdout).expect("a word").trim().to_owned()
}

#[test]
fn a_libtorch_for_gpus_is_taken_where_there_are_some() {
    let auto = ("LIBTORCH_FLAVOUR", "auto");
    let t4 = Some(("GPU 0: Tesla T4 (UUID: GPU-77c0c1de-5b6a-4f7d-a1a2-b3c4d5e6f700)", 0));
    assert_eq!(flavour(t4, &[auto]), "gpu");
    assert_eq!(flavour(t4, &[auto, ("CUDA_VISIBLE_DEVICES", "0")]), "gpu");
    // Hidden, not working, or not wanted.
    for hidden in ["", "-1", "NoDevFiles"] {
        assert_eq!(flavour(t4, &[auto, ("CUDA_VISIBLE_DEVICES", hidden)]), "cpu");
    }
    let broken = "NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver.";
    assert_eq!(flavour(Some((broken, 9)), &[auto]), "cpu");
    assert_eq!(flavour(Some(("No devices were found", 0)), &[auto]), "cpu");
    assert_eq!(flavour(t4, &[("LIBTORCH_FLAVOUR", "cpu")]), "cpu");
    // Tests and checks stay as they are.
    assert_eq!(flavour(t4, &[]), "cpu");
    // A libtorch of one's own that has no CUDA.
    assert_eq!(flavour(t4, &[auto, ("LIBTORCH", "/nowhere")]), "cpu");
    assert_eq!(flavour(t4, &[("LIBTORCH_FLAVOUR", "other")]), "");
}

//! The code in `src/wire/proto.rs` is what `proto/pollux_tune.proto` says.

use std::{env, fs, path::Path, process};

const REMEDY: &str = "UPDATE_PROTO=1 cargo test --test house";

#[test]
fn the_generated_code_is_up_to_date() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = protox::compile(["pollux_tune.proto"], [root.join("proto")]).expect("the file is right");
    let out = env::temp_dir().join(format!("pollux-tune-proto-{}", process::id()));
    fs::create_dir_all(&out).expect("a folder");
    tonic_prost_build::configure()
        .btree_map(".")
        .out_dir(&out)
        .compile_fds(files)
        .expect("code can be written");
    let code = fs::read_to_string(out.join("pollux_tune.v1.rs")).expect("code was written");
    fs::remove_dir_all(&out).expect("the folder can be removed");
    let code = format!("// Made from proto/pollux_tune.proto. To make it again: {REMEDY}\n{code}");
    let committed = root.join("src/wire/proto.rs");
    if env::var_os("UPDATE_PROTO").is_some() {
        fs::write(&committed, &code).expect("the file can be written");
    }
    let found = fs::read_to_string(&committed).unwrap_or_default();
    assert!(found == code, "src/wire/proto.rs is not what the proto file says; the remedy: {REMEDY}");
}

//! Compiles the C++ shim against libtorch and says where libtorch's libraries are.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::exit,
};

/// The libtorch that tch 0.26 is made for.
const VERSION: &str = "2.13.0";
const HEADER: &str = "include/torch/headeronly/version.h";
const SOURCES: [&str; 8] = [
    "shim.cpp",
    "status.h",
    "environment.inc",
    "sockets.inc",
    "store.inc",
    "watch.inc",
    "group.inc",
    "reducer.inc",
];

fn main() {
    for name in SOURCES {
        println!("cargo::rerun-if-changed=shim/{name}");
    }
    println!("cargo::rerun-if-changed=shim/gloo");
    println!("cargo::rerun-if-env-changed=LIBTORCH");
    let cuda = env::var_os("CARGO_FEATURE_CUDA").is_some();
    match libtorch().and_then(|libtorch| headers(&libtorch, cuda).map(|headers| (libtorch, headers))) {
        Ok((libtorch, headers)) => build(&libtorch, &headers, cuda),
        Err(problem) => {
            println!("cargo::error={problem}");
            exit(1);
        }
    }
}

/// The libtorch to build with, if it is the right one.
fn libtorch() -> Result<PathBuf, String> {
    let remedy = format!("run `make libtorch`, or set LIBTORCH to a libtorch {VERSION}");
    let Some(chosen) = env::var_os("LIBTORCH") else { return Err(format!("LIBTORCH is not set: {remedy}")) };
    let given = Path::new(&chosen);
    let folder = fs::canonicalize(given)
        .map_err(|_| format!("there is no libtorch at {}: {remedy}", given.display()))?;
    let text = fs::read_to_string(folder.join(HEADER))
        .map_err(|_| format!("{} is not a libtorch, it has no {HEADER}: {remedy}", folder.display()))?;
    let number = |part: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("#define TORCH_VERSION_{part} ")));
        line.map_or("?", str::trim).to_owned()
    };
    let found = ["MAJOR", "MINOR", "PATCH"].map(number).join(".");
    if found == VERSION {
        return Ok(folder);
    }
    Err(format!("{} is libtorch {found}, needed is {VERSION}: {remedy}", folder.display()))
}

/// Folders of headers: libtorch's, and CUDA's as its Python packages have them.
fn headers(libtorch: &Path, cuda: bool) -> Result<Vec<PathBuf>, String> {
    let mut headers = vec![libtorch.join("include"), libtorch.join("include/torch/csrc/api/include")];
    if cuda {
        let packages = libtorch.parent().unwrap_or(libtorch).join("nvidia");
        for (folder, file) in [("cu13/include", "cuda_runtime_api.h"), ("nccl/include", "nccl.h")] {
            let folder = packages.join(folder);
            if !folder.join(file).exists() {
                return Err(format!(
                    "the feature `cuda` needs {file} in {}: see \"GPUs\" in the README of c10d",
                    folder.display()
                ));
            }
            headers.push(folder);
        }
    }
    Ok(headers)
}

fn build(libtorch: &Path, headers: &[PathBuf], cuda: bool) {
    let mut shim = cc::Build::new();
    shim.cpp(true).std("c++20").file("shim/shim.cpp").include("shim");
    for folder in headers {
        shim.flag("-isystem").flag(folder);
    }
    shim.define("USE_C10D_GLOO", None).opt_level(1).debug(false);
    if cuda {
        shim.define("USE_C10D_NCCL", None);
    }
    shim.compile("c10d_shim");

    let libraries = libtorch.join("lib");
    println!("cargo::rustc-link-search=native={}", libraries.display());
    for library in ["torch_cpu", "c10"] {
        println!("cargo::rustc-link-lib=dylib={library}");
    }
    if cuda {
        println!("cargo::rustc-link-lib=dylib=torch_cuda");
        println!("cargo::rustc-link-lib=dylib=c10_cuda");
    }
    // For the tests and examples of this crate, and for build scripts of crates that use it.
    println!("cargo::rustc-link-arg=-Wl,-rpath,{}", libraries.display());
    println!("cargo::metadata=libraries={}", libraries.display());
}

//! With the feature `torch`, tells programs and tests where libtorch's libraries are, so that no one needs `LD_LIBRARY_PATH`.
//!
//! Cargo passes link arguments on to nobody, and metadata only to the build scripts of direct dependents. So what c10d has found is
//! handed on: the build script of a program that depends on this crate reads `DEP_POLLUX_TUNE_LIBRARIES`.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Set by the build script of c10d, which has found them.
    if let Ok(libraries) = env::var("DEP_C10D_LIBRARIES") {
        println!("cargo::rustc-link-arg=-Wl,-rpath,{libraries}");
        println!("cargo::metadata=libraries={libraries}");
    }
}

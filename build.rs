//! With the feature `torch`, tells programs and tests where libtorch's libraries are, so that no one needs `LD_LIBRARY_PATH`.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Set by the build script of c10d, which has found them.
    if let Ok(libraries) = env::var("DEP_C10D_LIBRARIES") {
        println!("cargo::rustc-link-arg=-Wl,-rpath,{libraries}");
    }
}

//! Lets this program find the libraries of libtorch, so that no one needs `LD_LIBRARY_PATH`.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Where they are is known to the build script of pollux-tune.
    if let Ok(libraries) = std::env::var("DEP_POLLUX_TUNE_LIBRARIES") {
        println!("cargo::rustc-link-arg=-Wl,-rpath,{libraries}");
    }
}

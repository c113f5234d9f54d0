//! The `pollux-tune` program.
fn main() {}

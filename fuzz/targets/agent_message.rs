#![no_main]

#[path = "../../tests/support/fuzz.rs"]
mod fuzz;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::run("agent_message", bytes));

//! What holds for the repository as a whole: its rules, its public interface, its documentation, its generated code.

mod architecture;
mod docs;
mod items;
mod kubernetes;
mod proto;
mod public_api;
mod scripts;
mod source;

#![doc = include_str!("../README.md")]
#![expect(unsafe_code, reason = "the crate exists to call C++ safely")]
#![deny(clippy::undocumented_unsafe_blocks, clippy::multiple_unsafe_ops_per_block)]

mod custom;
mod error;
mod ffi;
mod group;
mod reducer;
mod store;
mod work;

pub use custom::KeyValueStore;
pub use error::{Error, Result};
pub use group::{AbortHandle, Backend, GroupOptions, Interface, ProcessGroup, ReduceOp};
pub use reducer::{BucketNorms, GradNorms, Reducer, ReducerOptions};
pub use store::Store;
pub use work::Work;

use serde::{Deserialize, Serialize};

use crate::ids::SlotId;

/// The version of the messages. Head and worker must have the same.
pub const VERSION: u32 = 5;

/// The first message of a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The version of its messages: [`VERSION`], unless it is of another program.
    pub version: u32,
    /// Its slot.
    pub slot: SlotId,
    /// Its process.
    pub pid: u32,
}

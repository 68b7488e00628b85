//! Faults on purpose: for tests of what is built on ledgers, and for audits that must prove that they notice.
//!
//! [`FaultTransport`] spoils the way to bookies, [`FaultStore`] the way to the metadata store; what a bookie in memory
//! loses, and when it is down, wiped or in limbo, is said to [`MemoryBookies`](crate::MemoryBookies) itself.

mod copies;
mod disk;
mod store;
#[cfg(test)]
mod tests;
mod transport;

pub use disk::{CrashDisk, DiskFault, Unsynced};
pub use store::{FaultStore, StoreFault};
pub use transport::{Delivery, Fault, FaultTransport, ReleaseOrder};

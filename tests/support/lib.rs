//! What the tests share: harness, models and faults.

pub mod conformance;

pub mod explore;

#[cfg(feature = "interop")]
pub mod proxy;

#[cfg(feature = "interop")]
pub mod rig;

pub mod shared;

mod topics;

pub use topics::entries;

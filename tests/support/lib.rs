//! What the tests share: harness, models and faults.

pub mod conformance;

pub mod explore;

pub mod shared;

mod topics;

pub use topics::entries;

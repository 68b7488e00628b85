//! Bookies: what they must do, and bookies in memory that do it.

#[cfg(feature = "io")]
mod memory;
pub mod rules;

#[cfg(feature = "io")]
pub use memory::{LAC_WAITS_MAX, MemoryBookies};

//! Bookies: what they must do, and bookies in this process that do it, in memory and on disk.

#[cfg(all(test, feature = "io"))]
pub(crate) mod conformance;
#[cfg(feature = "io")]
mod durable;
#[cfg(feature = "io")]
mod lac_waits;
#[cfg(feature = "io")]
mod memory;
pub mod rules;

#[cfg(feature = "io")]
pub use durable::{
    DeleteLedgersError, DurableBookies, DurableConfig, OpenBookieError, RenewBookieError,
};
#[cfg(feature = "io")]
pub use lac_waits::LAC_WAITS_MAX;
#[cfg(feature = "io")]
pub use memory::MemoryBookies;

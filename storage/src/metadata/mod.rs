//! The record of a ledger, its stored format, and the store that keeps it.

mod format;
mod ledger;
#[cfg(feature = "io")]
mod memory;
#[cfg(feature = "io")]
mod store;

pub use format::{FormatError, decode, encode};
pub use ledger::{InvalidMetadata, InvalidTransition, LedgerEnd, LedgerMetadata, LedgerState};
#[cfg(feature = "io")]
pub use memory::{MemoryBookieRegistry, MemoryMetadataStore};
#[cfg(feature = "io")]
pub use store::{
    BookieRegistry, Expected, MetadataError, MetadataStore, Version, Versioned, ledger_key,
};

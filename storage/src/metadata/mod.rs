//! The record of a ledger, its stored format, and the store that keeps it.

mod exchange;
mod format;
mod ledger;
#[cfg(feature = "io")]
mod local;
#[cfg(feature = "io")]
mod memory;
#[cfg(feature = "io")]
mod store;

pub use exchange::{RecordAnswer, RecordRequest, Version};
pub use format::{FormatError, decode, encode};
pub use ledger::{
    FormatVersion, InvalidMetadata, InvalidTransition, LedgerEnd, LedgerMetadata, LedgerState,
    LengthIs,
};
#[cfg(feature = "io")]
pub use local::LocalMetadataStore;
#[cfg(feature = "io")]
pub use memory::MemoryMetadataStore;
#[cfg(feature = "io")]
pub use store::{Expected, MetadataError, MetadataStore, Versioned, ledger_key};

//! The record of a ledger, its stored format, and the store that keeps it.

mod exchange;
mod format;
#[cfg(feature = "zookeeper")]
mod layout;
mod ledger;
#[cfg(feature = "io")]
mod local;
#[cfg(feature = "io")]
mod memory;
#[cfg(feature = "zookeeper")]
mod service_uri;
#[cfg(feature = "io")]
mod store;
#[cfg(feature = "zookeeper")]
mod zookeeper;

pub use exchange::{RecordAnswer, RecordRequest, Version};
pub use format::{FormatError, decode, encode};
#[cfg(feature = "zookeeper")]
pub use layout::{LedgerLayout, UnsupportedLayout};
pub use ledger::{
    FormatVersion, InvalidMetadata, InvalidTransition, LedgerEnd, LedgerMetadata, LedgerState,
    LengthIs,
};
#[cfg(feature = "io")]
pub use local::LocalMetadataStore;
#[cfg(feature = "io")]
pub use memory::MemoryMetadataStore;
#[cfg(feature = "zookeeper")]
pub use service_uri::{InvalidMetadataServiceUri, MetadataServiceUri};
#[cfg(feature = "io")]
pub use store::{Expected, MetadataError, MetadataStore, Versioned, ledger_key};
#[cfg(feature = "zookeeper")]
pub(crate) use zookeeper::Session;
#[cfg(feature = "zookeeper")]
pub use zookeeper::{ConnectError, DigestAuth, ZooKeeperConfig, ZooKeeperMetadata};

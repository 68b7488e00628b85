//! A stored entry as Apache Pulsar stores it, and how it is changed on its way to a remote.
//!
//! ```text
//!  ┌────────┬──────┬────────────┬ ┬────────┬────────┬──────┬──────────┬─────────┐
//!  │ 0x0e02 │ size │   broker   │ │ 0x0e01 │ CRC32C │ size │ metadata │ payload │
//!  │        │ u32  │ entry meta │ │        │  u32   │ u32  │          │         │
//!  └────────┴──────┴────────────┴ ┴────────┴────────┴──────┴──────────┴─────────┘
//!   optional: written by the       optional:                └─ [`MessageMetadata`]
//!   broker that stored the entry   covers all that follows it
//! ```
//!
//! All numbers are big-endian. A replicator reads a few [`Facts`] off the metadata and appends two
//! fields to it ([`Splicer`]). Nothing is decoded and encoded again, so fields that this build does
//! not know survive, and the payload (batch, compression, encryption) passes byte for byte.

mod checksum;
mod facts;
mod frame;
mod metadata;
mod splice;
mod stamp;
#[cfg(test)]
mod tests;

pub use facts::Facts;
pub use frame::{Frame, FrameError, compose, verify};
pub use metadata::{
    BrokerEntryMetadata, Compression, EncryptionKey, MessageMetadata, Origin, Property,
    SOURCE_POSITION_PROPERTY,
};
pub use splice::{Spliced, Splicer};
pub use stamp::Unstamped;

//! Ledgers on bookies: append-only logs, each entry on a quorum of bookies, with the protocol of Apache BookKeeper.
//!
//! The modules stand from ground to roof; each imports only from those above it. What decides is pure and builds
//! without the default feature `io`; what waits, sends and stores is behind it.

mod time;
mod id;
#[cfg(feature = "io")]
mod mailbox;
mod config;
mod error;
mod entry;
mod quorum;
mod metadata;
mod transport;

#[cfg(feature = "io")]
pub use crate::{
    mailbox::{Mailbox, MailboxClosed},
    metadata::{
        BookieRegistry, Expected, MemoryBookieRegistry, MemoryMetadataStore, MetadataError, MetadataStore, Version,
        Versioned, ledger_key,
    },
    time::Clock,
    transport::{BookieTransport, CompletionSink},
};
pub use crate::{
    config::ClientConfig,
    entry::{DigestType, Entry, EntryError, MasterKey, Password},
    error::Advice,
    id::{BookieId, EntryId, LedgerId},
    metadata::{
        FormatError, InvalidMetadata, InvalidTransition, LedgerEnd, LedgerMetadata, LedgerState,
        decode as decode_metadata, encode as encode_metadata,
    },
    quorum::{
        AckQuorum, AckSet, Coverage, ENSEMBLE_SIZE_MAX, InvalidQuorumSizes, LacAnswers, LacQuorum, QuorumSizes, Slot,
        SlotSet,
    },
    time::Time,
    transport::{AddKind, BookieError, Evidence, Request, RequestBody, RequestId, Response, ResponseBody},
};

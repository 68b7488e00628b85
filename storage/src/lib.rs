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

#[cfg(feature = "io")]
mod disk;

mod metadata;

mod transport;

mod replica;

#[cfg(feature = "io")]
mod lac;

mod bookie;

mod registry;

pub mod wire;

mod placement;

mod shortfall;

#[cfg(feature = "io")]
mod read;

#[cfg(feature = "io")]
mod marks;

#[cfg(feature = "io")]
mod exchange;

pub mod write;

pub mod recover;

mod fragments;

#[cfg(feature = "io")]
mod check;

#[cfg(feature = "io")]
mod client;

#[cfg(feature = "zookeeper")]
mod storage;

#[cfg(feature = "io")]
pub mod fault;

pub use crate::{
    bookie::rules as bookie_rules,
    config::{ClientConfig, RecoveryStart},
    entry::{DigestType, Entry, EntryError, MasterKey, Password},
    error::Advice,
    fragments::{Fragment, FragmentEnd, fragments, is_closed},
    id::{BookieId, EntryId, Instance, LedgerId},
    metadata::{
        FormatError, FormatVersion, InvalidMetadata, InvalidTransition, LedgerEnd, LedgerMetadata,
        LedgerState, LengthIs, RecordAnswer, RecordRequest, Version, decode as decode_metadata,
        encode as encode_metadata,
    },
    placement::{NotEnoughBookies, choose_ensemble},
    quorum::{
        AckQuorum, AckSet, Coverage, ENSEMBLE_SIZE_MAX, InvalidQuorumSizes, LacAnswers, LacQuorum,
        QuorumSizes, Slot, SlotSet,
    },
    registry::RegisteredBookie,
    replica::{Answers, ReplicaError},
    shortfall::Shortfall,
    time::Time,
    transport::{
        AddKind, BookieError, Evidence, Request, RequestBody, RequestId, Response, ResponseBody,
    },
    write::{CloseError, ClosedElsewhere, WriterStats},
};
#[cfg(feature = "io")]
pub use crate::{
    bookie::{
        DeleteLedgersError, DurableBookies, DurableConfig, LAC_WAITS_MAX, MemoryBookies,
        OpenBookieError, RenewBookieError,
    },
    check::{CheckError, CheckReport, CopyRun, CopyState, FragmentReport},
    client::{CreateError, LedgerClient, LedgerOptions, LedgerWriter, OpenError},
    disk::{DirectoryDisk, Disk, OpenFileError, Presence, Remedy},
    mailbox::{Mailbox, MailboxClosed},
    marks::Mark,
    metadata::{
        Expected, LocalMetadataStore, MemoryMetadataStore, MetadataError, MetadataStore, Versioned,
        ledger_key,
    },
    read::{LacError, LacUnknown, LedgerEntry, LedgerReader, ReadError, RecordError, Tail},
    registry::{BookieRegistry, MemoryBookieRegistry},
    time::Clock,
    transport::{BookieTransport, CompletionSink},
    write::AppendSink,
};
#[cfg(feature = "zookeeper")]
pub use crate::{
    metadata::{
        ConnectError, DigestAuth, InvalidMetadataServiceUri, LedgerLayout, MetadataServiceUri,
        UnsupportedLayout, ZooKeeperConfig, ZooKeeperMetadata,
    },
    registry::ZooKeeperRegistry,
    storage::{BookKeeperConfig, Storage},
};

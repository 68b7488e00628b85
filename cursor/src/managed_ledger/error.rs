//! Why the operations of a topic fail, and what to do about it.

use std::sync::Arc;

use georepl_storage as storage;
use georepl_storage::{Advice, MetadataError};

use crate::chain::LedgerOutOfOrder;
use crate::names::InvalidName;
use crate::position::{Offset, Position};
use crate::records::RecordError;

/// Why a topic could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The name is none.
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// The topic's record was not understood.
    #[error("the record of topic {topic}: {error}")]
    Record {
        /// The topic.
        topic: Arc<str>,
        /// Why.
        #[source]
        error: RecordError,
    },
    /// The record lists ledgers out of order.
    #[error("the record of topic {topic}: {error}")]
    OutOfOrder {
        /// The topic.
        topic: Arc<str>,
        /// Which.
        #[source]
        error: LedgerOutOfOrder,
    },
    /// Somebody else opened the topic at the same time, and won.
    #[error("topic {topic} was opened by somebody else; open it again only if it is to move here")]
    Fenced {
        /// The topic.
        topic: Arc<str>,
    },
    /// A ledger that the last owner did not close could not be recovered.
    #[error(transparent)]
    Ledger(#[from] storage::recover::Error),
    /// No ledger could be created.
    #[error(transparent)]
    Create(#[from] storage::CreateError),
    /// The metadata store failed.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
}

impl OpenError {
    /// What to do about it.
    pub const fn advice(&self) -> Advice {
        match self {
            Self::Name(_) | Self::Record { .. } | Self::OutOfOrder { .. } => Advice::GiveUp,
            Self::Fenced { .. } => Advice::Reopen,
            Self::Ledger(error) => error.advice(),
            Self::Create(error) => error.advice(),
            // Opening decides afresh from what is stored.
            Self::Metadata(_) => Advice::Retry,
        }
    }
}

/// Why a topic takes no appends. The gravest reason stays until the topic is opened again, and of those alike the first:
/// that entries are lost, that somebody else owns it, that a write failed, that it was ended here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Somebody else owns the topic now.
    #[error("topic {topic} is fenced: somebody else owns it now; open it again to take it back")]
    Fenced {
        /// The topic.
        topic: Arc<str>,
    },
    /// Somebody else owns the topic now, and has closed its last ledger before entries that were acknowledged here.
    #[error(
        "topic {topic} has lost entries: {elsewhere}; look for bookies that were wiped or rolled back"
    )]
    Lost {
        /// The topic.
        topic: Arc<str>,
        /// The ledger, where it ends and where it should have ended.
        elsewhere: storage::ClosedElsewhere,
    },
    /// Ledgers failed, or the next could not be created or listed.
    #[error("topic {topic} takes no appends since a write failed: {reason}; close and reopen it")]
    WriteFailed {
        /// The topic.
        topic: Arc<str>,
        /// What failed.
        reason: Arc<str>,
    },
    /// It was closed.
    #[error("topic {topic} is closed; open it again")]
    Closed {
        /// The topic.
        topic: Arc<str>,
    },
    /// It was terminated: it has its last entry.
    #[error("topic {topic} is terminated: it takes no entry any more")]
    Terminated {
        /// The topic.
        topic: Arc<str>,
    },
}

impl Refusal {
    /// Which of two reasons is to be said.
    pub(super) const fn gravity(&self) -> u8 {
        match self {
            Self::Closed { .. } | Self::Terminated { .. } => 1,
            Self::WriteFailed { .. } => 2,
            Self::Fenced { .. } => 3,
            Self::Lost { .. } => 4,
        }
    }

    /// What to do about it.
    pub const fn advice(&self) -> Advice {
        match self {
            Self::Fenced { .. }
            | Self::Lost { .. }
            | Self::WriteFailed { .. }
            | Self::Closed { .. } => Advice::Reopen,
            Self::Terminated { .. } => Advice::GiveUp,
        }
    }
}

/// Why what is recorded of a topic was not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// The topic is closed, or somebody else's. Nothing was changed.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The name is for the topic's own use. Nothing was changed.
    #[error("property {name} is for the topic's own use; choose another name")]
    ReservedProperty {
        /// The name.
        name: String,
    },
    /// The metadata store did not answer.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
}

impl ChangeError {
    /// What to do about it.
    pub const fn advice(&self) -> Advice {
        match self {
            Self::Refused(refusal) => refusal.advice(),
            Self::ReservedProperty { .. } => Advice::GiveUp,
            // Doing it twice changes nothing more.
            Self::Metadata(_) => Advice::Retry,
        }
    }
}

/// A topic's slowest cursor is too far behind, and publishers wait or are refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "topic {topic} has a backlog of {backlog} bytes, and its quota is {bytes_max}; let its slowest \
     cursor acknowledge more, remove it, or raise the quota"
)]
pub struct BacklogFull {
    /// The topic.
    pub topic: Arc<str>,
    /// Bytes of payload that some cursor has not acknowledged.
    pub backlog: u64,
    /// The quota.
    pub bytes_max: u64,
}

/// Why an append failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// The topic takes no appends. Nothing was written.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The append was under way when the topic stopped: each entry may be in it or not.
    #[error(
        "the outcome of the append is unknown: {0}; read the end of the topic before repeating it"
    )]
    OutcomeUnknown(#[source] Refusal),
    /// An entry is too large. Nothing was written.
    #[error("an entry of {bytes} bytes is above the limit of {bytes_max}; split it")]
    EntryTooLarge {
        /// Its size.
        bytes: usize,
        /// The limit, `entry_bytes_max`.
        bytes_max: usize,
    },
    /// The slowest cursor is too far behind, and the topic is set to refuse publishers then. Nothing was written.
    #[error(transparent)]
    BacklogFull(#[from] BacklogFull),
    /// The batch is larger than what was reserved for it. Nothing was written.
    #[error("a batch of {bytes} bytes came with a permit for {reserved}; reserve its whole size")]
    BeyondPermit {
        /// Its size.
        bytes: u64,
        /// What was reserved.
        reserved: u64,
    },
}

impl AppendError {
    /// True when nothing was written; false when each entry may be in the topic or not.
    pub const fn outcome_known(&self) -> bool {
        !matches!(self, Self::OutcomeUnknown(_))
    }

    /// What to do about it.
    pub const fn advice(&self) -> Advice {
        match self {
            Self::Refused(refusal) | Self::OutcomeUnknown(refusal) => refusal.advice(),
            Self::BacklogFull(_) => Advice::Retry,
            Self::EntryTooLarge { .. } | Self::BeyondPermit { .. } => Advice::GiveUp,
        }
    }
}

/// Why entries could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The topic is closed.
    #[error("topic {topic} is closed; open it again")]
    Closed {
        /// The topic.
        topic: Arc<str>,
    },
    /// There is no such entry, or not yet.
    #[error("topic {topic} has no entry {position}")]
    NoSuchEntry {
        /// The topic.
        topic: Arc<str>,
        /// What was asked for.
        position: Position,
    },
    /// The entry at the offset was deleted.
    #[error("topic {topic} has no entry at offset {from} any more; it begins at {start}")]
    Trimmed {
        /// The topic.
        topic: Arc<str>,
        /// What was asked for.
        from: Offset,
        /// Where the topic begins.
        start: Offset,
    },
    /// There is no entry at the offset, or not yet.
    #[error("topic {topic} has no entry at offset {from}; it ends at {end}")]
    BeyondEnd {
        /// The topic.
        topic: Arc<str>,
        /// What was asked for.
        from: Offset,
        /// Where the topic ends.
        end: Offset,
    },
    /// A closed ledger could not be opened.
    #[error(transparent)]
    Open(#[from] storage::OpenError),
    /// Storage could not read an entry.
    #[error(transparent)]
    Storage(#[from] storage::ReadError),
}

impl ReadError {
    /// What to do about it.
    pub const fn advice(&self) -> Advice {
        match self {
            Self::Closed { .. } => Advice::Reopen,
            Self::NoSuchEntry { .. } | Self::Trimmed { .. } | Self::BeyondEnd { .. } => {
                Advice::GiveUp
            }
            Self::Open(error) => error.advice(),
            Self::Storage(error) => error.advice(),
        }
    }
}

/// Why closing a topic did not record its end. The topic is closed for appends and reads.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseError {
    /// Somebody else owns the topic; its end is for them to decide.
    #[error("topic {topic} is fenced: somebody else owns it now and decides where it ends")]
    Fenced {
        /// The topic.
        topic: Arc<str>,
    },
    /// Somebody else owns the topic, and has closed its last ledger before entries that were acknowledged here.
    #[error(
        "topic {topic} has lost entries: {elsewhere}; look for bookies that were wiped or rolled back"
    )]
    Lost {
        /// The topic.
        topic: Arc<str>,
        /// The ledger, where it ends and where it should have ended.
        elsewhere: storage::ClosedElsewhere,
    },
    /// It ended for another reason before it could be terminated.
    #[error("the topic was not terminated: {0}")]
    Refused(#[source] Refusal),
    /// The last ledger could not be closed.
    #[error(transparent)]
    Ledger(#[from] storage::CloseError),
    /// The topic had begun to recover its last ledger, whose writer could not tell where it ends, and that did not
    /// succeed yet.
    #[error("the last ledger has to be recovered before the topic is closed: {0}")]
    Recovery(#[from] storage::recover::Error),
    /// The end could not be written into the topic's record.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
}

impl CloseError {
    /// What to do about it.
    pub const fn advice(&self) -> Advice {
        match self {
            Self::Fenced { .. } => Advice::Reopen,
            Self::Lost { .. } => Advice::GiveUp,
            Self::Refused(refusal) => refusal.advice(),
            Self::Ledger(error) => error.advice(),
            Self::Recovery(error) => error.advice(),
            // Closing again writes the same end.
            Self::Metadata(_) => Advice::Retry,
        }
    }
}

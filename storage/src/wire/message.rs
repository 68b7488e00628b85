//! What clients and bookies say to each other, apart from how it is put into bytes.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;

use crate::entry::{Entry, EntryError, MasterKey};
use crate::id::{EntryId, LedgerId};
use crate::transport::{AddKind, BookieError};

/// A request and what comes with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestFrame {
    /// Comes back with the answer. Unique per connection in v3; in v2 it is sent for [`Request::BatchRead`] only, and 0
    /// otherwise.
    pub transaction: u64,
    /// Whether it may go ahead of others.
    pub priority: Priority,
    /// What is asked for.
    pub request: Request,
}

/// Whether a request may go ahead of others at the bookie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Priority {
    /// In its turn.
    #[default]
    Normal,
    /// Before others, and taken by a bookie that is read-only: recovery and repair.
    High,
}

/// When a bookie may answer an add.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Once the entry is durable.
    #[default]
    Synced,
    /// Before that; [`Request::Force`] makes it durable. v3 only.
    Deferred,
}

/// What can be asked of a bookie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Store an entry.
    Add {
        /// The entry.
        entry: Entry,
        /// The ledger's key.
        key: MasterKey,
        /// Who adds.
        kind: AddKind,
        /// When to answer.
        durability: Durability,
    },
    /// Return an entry.
    Read {
        /// The ledger.
        ledger: LedgerId,
        /// Which of its entries.
        entry: EntryId,
        /// With a key: first fence the ledger.
        fence: Option<MasterKey>,
    },
    /// Return the last entry there is; its header tells the LAC.
    ReadLast {
        /// The ledger.
        ledger: LedgerId,
        /// With a key: first fence the ledger.
        fence: Option<MasterKey>,
    },
    /// Return entries in a row. v2 only, since release 4.17.
    BatchRead {
        /// The ledger.
        ledger: LedgerId,
        /// The first entry wanted.
        first: EntryId,
        /// How many at most.
        entries_max: u32,
        /// How many bytes at most.
        bytes_max: u64,
        /// With a key: first fence the ledger.
        fence: Option<MasterKey>,
    },
    /// Return the last entry and the LAC that was written by itself. v3 only, like all that follow but
    /// [`Auth`](Self::Auth).
    ReadLac {
        /// The ledger.
        ledger: LedgerId,
    },
    /// Remember a LAC.
    WriteLac {
        /// The ledger.
        ledger: LedgerId,
        /// The LAC.
        lac: EntryId,
        /// The ledger's key.
        key: MasterKey,
        /// Ledger, LAC and a digest over both, as it is told to readers.
        body: Bytes,
    },
    /// Answer once the LAC is beyond `beyond`, or when the time is over.
    WaitLac {
        /// The ledger.
        ledger: LedgerId,
        /// What is known already.
        beyond: Option<EntryId>,
        /// When to answer at the latest; whole milliseconds are sent.
        within: Duration,
    },
    /// Make all entries of a ledger durable that were added so far.
    Force {
        /// The ledger.
        ledger: LedgerId,
    },
    /// Tell the size of the disk and what is free of it.
    BookieInfo,
    /// Tell which entries of a ledger there are.
    ListEntries {
        /// The ledger.
        ledger: LedgerId,
    },
    /// A step of the exchange that proves who the client is.
    Auth(AuthMessage),
    /// Go on in TLS.
    StartTls,
    /// Something that is not known here.
    Other {
        /// Its number.
        operation: u32,
    },
}

/// An answer and what comes with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseFrame {
    /// The request's; in v2 0 but for [`ResponseBody::BatchRead`].
    pub transaction: u64,
    /// What was asked for.
    pub operation: Operation,
    /// How it went.
    pub status: Result<(), BookieError>,
    /// What belongs to it.
    pub body: ResponseBody,
}

/// What an answer carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResponseBody {
    /// Nothing: the request was not looked at.
    None,
    /// To an add.
    Add {
        /// The ledger.
        ledger: LedgerId,
        /// The entry.
        entry: EntryId,
    },
    /// To a read, a read of the last entry and a wait for the LAC.
    Read {
        /// The ledger.
        ledger: LedgerId,
        /// The entry that was asked for; none for the last one.
        entry: Option<EntryId>,
        /// The entry as it is stored.
        bytes: Option<Bytes>,
        /// The LAC that the bookie knows, if it tells it.
        lac: Option<EntryId>,
        /// When the bookie learned of that LAC, in milliseconds since 1970.
        lac_since_ms: Option<i64>,
    },
    /// To a batch read.
    BatchRead {
        /// The ledger.
        ledger: LedgerId,
        /// The first entry that was asked for.
        first: EntryId,
        /// The entries as they are stored, in a row.
        entries: Vec<Bytes>,
    },
    /// To a LAC read.
    ReadLac {
        /// The ledger.
        ledger: LedgerId,
        /// The body of the last LAC that was written by itself.
        explicit: Option<Bytes>,
        /// The last entry.
        last: Option<Bytes>,
    },
    /// To a LAC that was written.
    WriteLac {
        /// The ledger.
        ledger: LedgerId,
    },
    /// To a force.
    Force {
        /// The ledger.
        ledger: LedgerId,
    },
    /// To a question for space.
    BookieInfo {
        /// The size of the disks, in bytes.
        total_bytes: Option<i64>,
        /// What is free of it, in bytes.
        free_bytes: Option<i64>,
    },
    /// To a list of entries.
    ListEntries {
        /// The ledger.
        ledger: LedgerId,
        /// Which entries there are, in the bookie's own packing.
        availability: Option<Bytes>,
    },
    /// To a step of the authentication.
    Auth(AuthMessage),
    /// To START_TLS.
    StartTls,
}

/// A step of the exchange that proves who the client is. The payload is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct AuthMessage {
    /// The name of the plugin that speaks. A bookie that wants no proof answers with
    /// [`AUTH_DISABLED`](super::AUTH_DISABLED).
    pub plugin: String,
    /// What it says.
    pub payload: Bytes,
}

impl fmt::Debug for AuthMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.payload.len();
        f.debug_struct("AuthMessage").field("plugin", &self.plugin).field("bytes", &bytes).finish()
    }
}

/// The kinds of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// [`Request::Add`].
    Add,
    /// [`Request::Read`], [`Request::ReadLast`] and [`Request::WaitLac`].
    Read,
    /// [`Request::BatchRead`].
    BatchRead,
    /// [`Request::ReadLac`].
    ReadLac,
    /// [`Request::WriteLac`].
    WriteLac,
    /// [`Request::Force`].
    Force,
    /// [`Request::BookieInfo`].
    BookieInfo,
    /// [`Request::ListEntries`].
    ListEntries,
    /// [`Request::Auth`].
    Auth,
    /// [`Request::StartTls`].
    StartTls,
    /// [`Request::Other`], by its number.
    Other(u32),
}

/// Bytes that are no message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// They end too early.
    #[error("a {what} has at least {needed} bytes, these are {bytes}")]
    TooShort {
        /// What they should be.
        what: &'static str,
        /// How many it needs.
        needed: usize,
        /// How many there are.
        bytes: usize,
    },
    /// A version of the header that is not known.
    #[error("version {0} of the protocol is not spoken here, only 2 and 3 are")]
    UnsupportedVersion(u8),
    /// An operation that has no form in this protocol.
    #[error("operation {0} is not known in protocol 2")]
    UnknownOperation(u8),
    /// Not protobuf, or of other types.
    #[error("the protobuf message is damaged: {0}")]
    Malformed(String),
    /// A field that has to be there is not.
    #[error("the message lacks its {0}")]
    Missing(&'static str),
    /// A number outside its range.
    #[error("the {field} is {value}, which is out of range")]
    OutOfRange {
        /// Its name.
        field: &'static str,
        /// What it says.
        value: i64,
    },
    /// The key of a ledger has another length.
    #[error("a ledger's key has 20 bytes, this one has {bytes}")]
    KeyLength {
        /// How many it has.
        bytes: usize,
    },
    /// What should be an entry is none.
    #[error(transparent)]
    Entry(#[from] EntryError),
    /// An entry that is added under the ids of another.
    #[error("the request names another entry than it carries")]
    OtherEntry,
}

impl Request {
    /// The kind of request.
    #[must_use]
    pub const fn operation(&self) -> Operation {
        match self {
            Self::Add { .. } => Operation::Add,
            Self::Read { .. } | Self::ReadLast { .. } | Self::WaitLac { .. } => Operation::Read,
            Self::BatchRead { .. } => Operation::BatchRead,
            Self::ReadLac { .. } => Operation::ReadLac,
            Self::WriteLac { .. } => Operation::WriteLac,
            Self::Force { .. } => Operation::Force,
            Self::BookieInfo => Operation::BookieInfo,
            Self::ListEntries { .. } => Operation::ListEntries,
            Self::Auth(_) => Operation::Auth,
            Self::StartTls => Operation::StartTls,
            Self::Other { operation } => Operation::Other(*operation),
        }
    }
}

/// "The last entry" and "none" where an entry id stands on the wire.
const NONE: i64 = -1;

pub(super) fn ledger_id(value: i64) -> Result<LedgerId, DecodeError> {
    Ok(LedgerId(unsigned("ledger id", value)?))
}

/// An entry id, or none for the -1 that stands for the last entry or for no entry at all.
pub(super) fn entry_id(value: i64) -> Result<Option<EntryId>, DecodeError> {
    match value {
        NONE => Ok(None),
        _ => Ok(Some(EntryId(unsigned("entry id", value)?))),
    }
}

pub(super) fn some_entry_id(value: i64) -> Result<EntryId, DecodeError> {
    Ok(EntryId(unsigned("entry id", value)?))
}

pub(super) fn unsigned(field: &'static str, value: i64) -> Result<u64, DecodeError> {
    u64::try_from(value).map_err(|_| DecodeError::OutOfRange { field, value })
}

pub(super) fn sent(id: u64) -> i64 {
    i64::try_from(id).expect("ids stay below 2^63")
}

pub(super) fn sent_or_none(id: Option<EntryId>) -> i64 {
    id.map_or(NONE, |id| sent(id.get()))
}

pub(super) fn master_key(bytes: &[u8]) -> Result<MasterKey, DecodeError> {
    let key: Result<[u8; 20], _> = bytes.try_into();
    key.map(MasterKey::from).map_err(|_| DecodeError::KeyLength { bytes: bytes.len() })
}

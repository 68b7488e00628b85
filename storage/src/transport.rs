//! The words every bookie speaks, and the seam they travel through.

#[cfg(feature = "io")]
use std::sync::Arc;

use crate::entry::{Entry, MasterKey};
use crate::id::{BookieId, EntryId, Instance, LedgerId};
#[cfg(feature = "io")]
use crate::mailbox::Mailbox;

/// A way to reach bookies.
#[cfg(feature = "io")]
pub trait BookieTransport: Send + Sync {
    /// Sends a batch of requests to one bookie and returns at once; `batch` is left empty, with its capacity.
    ///
    /// Each request gets exactly one response through `sink`, unless the transport loses it: callers have a timeout
    /// of their own. A bookie that cannot be reached is a response too. Requests to one bookie arrive in the order
    /// they were submitted in; responses come in any order. The sink may be called before `submit` returns.
    fn submit(&self, bookie: &BookieId, batch: &mut Vec<Request>, sink: &Arc<dyn CompletionSink>);
}

/// Where the responses to a batch of requests go.
#[cfg(feature = "io")]
pub trait CompletionSink: Send + Sync {
    /// Takes the responses out of `batch`. Must be short and must not call the transport.
    fn complete(&self, batch: &mut Vec<Response>);
}

#[cfg(feature = "io")]
impl CompletionSink for Mailbox<Response> {
    fn complete(&self, batch: &mut Vec<Response>) {
        self.extend(batch.drain(..));
    }
}

/// Tells the responses of one sink apart. Chosen by who sends; nothing else gives it a meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// One request to a bookie.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// Comes back in the response.
    pub id: RequestId,
    /// The ledger concerned.
    pub ledger: LedgerId,
    /// What is asked for.
    pub body: RequestBody,
}

/// What a bookie can be asked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RequestBody {
    /// Store an entry, durably.
    Add {
        /// The entry.
        entry: Entry,
        /// The ledger's key. The first one a bookie sees for a ledger binds it.
        key: MasterKey,
        /// Who adds.
        kind: AddKind,
    },
    /// Return an entry.
    Read {
        /// Its id.
        entry: EntryId,
        /// With a key: first fence the ledger, durably.
        fence: Option<MasterKey>,
    },
    /// Return the bookie's idea of the ledger's LAC.
    ReadLac {
        /// With a key: first fence the ledger, durably.
        fence: Option<MasterKey>,
    },
    /// Return the bookie's idea of the ledger's LAC once it is beyond this one. A bookie may answer earlier, with
    /// what it has; who asks stops waiting when it likes.
    WaitLac {
        /// What who asks knows already.
        beyond: Option<EntryId>,
    },
    /// Remember that everything up to this entry is confirmed, for readers of a writer that is idle.
    WriteLac {
        /// The writer's LAC.
        lac: EntryId,
        /// The ledger's key.
        key: MasterKey,
    },
}

/// Who adds an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AddKind {
    /// The ledger's writer. Refused once the ledger is fenced.
    Normal,
    /// A recovery or repair that writes back what it found. Allowed after the fence and on a read-only bookie.
    Recovery,
}

/// One response of a bookie.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Response {
    /// The request's id.
    pub id: RequestId,
    /// Who answers, or who could not be reached.
    pub bookie: BookieId,
    /// Which life of it answers, if the transport can tell.
    pub instance: Option<Instance>,
    /// The answer.
    pub result: Result<ResponseBody, BookieError>,
}

/// A bookie's positive answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ResponseBody {
    /// The entry is durable.
    Added,
    /// The LAC is remembered.
    LacWritten,
    /// The entry, as it is stored; its digest has not been checked.
    Entry(Entry),
    /// What the bookie knows of the ledger's LAC: to `ReadLac` and `WaitLac`.
    LastAddConfirmed {
        /// The highest LAC it has seen, in entries or by `WriteLac`; none if it has seen none. Everything up to it is
        /// confirmed; more may be.
        lac: Option<EntryId>,
    },
}

/// A bookie's refusal, or the want of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum BookieError {
    /// It has never acknowledged anything of the ledger.
    #[error("has no such ledger")]
    NoSuchLedger,
    /// It has never acknowledged the entry.
    #[error("has no such entry")]
    NoSuchEntry,
    /// It did not understand the request.
    #[error("refused the request as malformed")]
    BadRequest,
    /// Its disk failed.
    #[error("had an I/O error")]
    Io,
    /// The key is not the ledger's.
    #[error("refused the ledger's key")]
    Unauthorized,
    /// It does not speak the version of the protocol.
    #[error("does not speak this version of the protocol")]
    BadVersion,
    /// The ledger is fenced; its writer must stop.
    #[error("has fenced the ledger")]
    Fenced,
    /// It takes no new entries.
    #[error("is read-only")]
    ReadOnly,
    /// It has too much to do.
    #[error("is overloaded")]
    TooManyRequests,
    /// It may have lost entries of the ledger and cannot say that it has none.
    #[error("does not know the state of the ledger")]
    UnknownLedgerState,
    /// It did not answer in time; the request may have been carried out.
    #[error("did not answer in time")]
    Timeout,
    /// There is no connection to it; the request may have been carried out.
    #[error("cannot be reached")]
    Unreachable,
}

/// What a refusal says about the entry that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// The bookie says that it never acknowledged the entry.
    Absent,
    /// Nothing: it may have the entry or not. Must never be counted as absent.
    Unknown,
}

impl BookieError {
    /// What the refusal says about the entry that was asked for.
    #[must_use]
    pub const fn evidence(self) -> Evidence {
        match self {
            Self::NoSuchLedger | Self::NoSuchEntry => Evidence::Absent,
            Self::BadRequest
            | Self::Io
            | Self::Unauthorized
            | Self::BadVersion
            | Self::Fenced
            | Self::ReadOnly
            | Self::TooManyRequests
            | Self::UnknownLedgerState
            | Self::Timeout
            | Self::Unreachable => Evidence::Unknown,
        }
    }
}

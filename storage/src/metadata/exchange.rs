//! What a machine asks of the metadata store about the one record it works on, and what it is told.
//!
//! A machine has at most one such question outstanding. The driver answers each exactly once; a question that times
//! out is answered with [`RecordAnswer::Unknown`], and its write may still land afterwards.

use std::sync::Arc;

use super::ledger::LedgerMetadata;

/// The version of a value. Grows with each change; a key never has the same one twice while the store lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u64);

/// A question about a ledger's record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RecordRequest {
    /// What is it? The answer must not be older than anything this machine was told or wrote.
    Read,
    /// Store this one, if the record still has the expected version.
    Write {
        /// The new record.
        record: Arc<LedgerMetadata>,
        /// The version that it replaces.
        expected: Version,
    },
}

/// The answer to a [`RecordRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RecordAnswer {
    /// To a read: the record and its version.
    Found(Arc<LedgerMetadata>, Version),
    /// To either: there is no such record. Nothing was changed.
    Missing,
    /// To a write: the record is stored and has this version.
    Written(Version),
    /// To a write: the record has another version. Nothing was changed.
    Conflict,
    /// To a read: it cannot be used. The text says why, for people.
    Unusable(Arc<str>),
    /// To either: no answer came. A write may have been carried out, or may still be.
    Unknown(Arc<str>),
}

//! The seam to the metadata store: small values under keys, changed by compare-and-set.

use async_trait::async_trait;
use bytes::Bytes;

use super::exchange::Version;
use crate::error::Advice;
use crate::id::LedgerId;

/// A versioned key-value store, as ZooKeeper is one. The only place where decisions about a ledger are made.
///
/// Keys are paths of names joined by `/`; a value has at least one byte. Implementations need no timeouts of their own; callers have them, so every
/// future may be dropped, after which the outcome of a change is unknown.
///
/// A handle on a store is a session with it. Keys stay when the session ends that made them, but for ephemeral ones.
#[async_trait]
pub trait MetadataStore: Send + Sync {
    /// The value under `key`, none if there is none. The answer may be older than the newest value.
    ///
    /// # Errors
    /// [`MetadataError::Unavailable`].
    async fn get(&self, key: &str) -> Result<Option<Versioned>, MetadataError>;

    /// Stores `value` if the key's version is the expected one, and returns its new version.
    ///
    /// # Errors
    /// [`MetadataError::VersionConflict`] and [`MetadataError::NotFound`]: nothing was changed.
    /// [`MetadataError::Unavailable`]: it may have been changed, or may still be.
    async fn put(
        &self,
        key: &str,
        value: Bytes,
        expected: Expected,
    ) -> Result<Version, MetadataError>;

    /// Stores `value` under a key that is not there, for as long as the session of this handle lasts, and returns its
    /// version: for owners and locks, which must not outlive their holder.
    ///
    /// Until then it is a key like any other, to every session; a [`put`](Self::put) leaves it ephemeral. Nothing may be
    /// kept below it. When the session ends it is gone without a word to its holder, so what it guards has to be
    /// refused to a holder who does not know that yet, as a fence or a version does it.
    ///
    /// # Errors
    /// [`MetadataError::VersionConflict`]: the key is there, and nothing was changed.
    /// [`MetadataError::Unavailable`]: it may have been made, or may still be while the session lasts.
    async fn create_ephemeral(&self, key: &str, value: Bytes) -> Result<Version, MetadataError>;

    /// Removes the key if its version is the expected one.
    ///
    /// # Errors
    /// As for [`put`](Self::put).
    async fn delete(&self, key: &str, version: Version) -> Result<(), MetadataError>;

    /// The names directly under `key`, sorted.
    ///
    /// # Errors
    /// [`MetadataError::Unavailable`].
    async fn children(&self, key: &str) -> Result<Vec<String>, MetadataError>;

    /// A ledger id that was never given out before. It is used up even if nothing is created with it.
    ///
    /// # Errors
    /// [`MetadataError::Unavailable`].
    async fn allocate_ledger_id(&self) -> Result<LedgerId, MetadataError>;
}

/// A value and its version.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Versioned {
    /// The value.
    pub value: Bytes,
    /// Its version, for the change that follows.
    pub version: Version,
}

/// What a change expects to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Expected {
    /// No such key.
    Absent,
    /// The key at this version.
    Version(Version),
}

impl Expected {
    /// Whether a change of `key` may be made when its version is `found`.
    pub(super) fn check(self, key: &str, found: Option<Version>) -> Result<(), MetadataError> {
        match (found, self) {
            (None, Self::Absent) => Ok(()),
            (Some(found), Self::Version(version)) if found == version => Ok(()),
            (None, Self::Version(_)) => Err(MetadataError::NotFound { key: key.into() }),
            (Some(_), _) => Err(MetadataError::VersionConflict { key: key.into() }),
        }
    }
}

/// Why an operation of the metadata store failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MetadataError {
    /// Somebody else has changed the key. Nothing was changed by this call.
    #[error("{key} was changed by somebody else; read it again and decide afresh")]
    VersionConflict {
        /// The key.
        key: String,
    },
    /// There is no such key. Nothing was changed by this call.
    #[error("{key} does not exist")]
    NotFound {
        /// The key.
        key: String,
    },
    /// No answer came. A change may have been made or may still be made; read before deciding.
    #[error("the metadata store did not answer for {key}: {reason}; the outcome is unknown")]
    Unavailable {
        /// The key.
        key: String,
        /// What is known of the cause.
        reason: String,
    },
}

impl MetadataError {
    /// What to do about it.
    #[must_use]
    pub const fn advice(&self) -> Advice {
        match self {
            Self::VersionConflict { .. } | Self::Unavailable { .. } => Advice::Reopen,
            Self::NotFound { .. } => Advice::GiveUp,
        }
    }
}

/// The key of a ledger's record.
#[must_use]
pub fn ledger_key(ledger: LedgerId) -> String {
    format!("ledgers/L{:010}", ledger.get())
}

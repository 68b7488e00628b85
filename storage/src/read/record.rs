//! The record of a ledger as the store has it, and what all handles of a client share.

use std::sync::Arc;
use std::time::Duration;

use crate::config::ClientConfig;
use crate::entry::DigestType;
use crate::error::Advice;
use crate::id::LedgerId;
use crate::metadata::{
    self, FormatError, LedgerMetadata, MetadataError, MetadataStore, Version, Versioned, ledger_key,
};
use crate::time::Clock;
use crate::transport::BookieTransport;

/// How long after a read that found nothing the next one is made: long enough for a store that lags a little, and
/// short for whoever waits.
pub(crate) const READ_AGAIN_AFTER: Duration = Duration::from_millis(250);

/// What all handles of a client share.
pub(crate) struct Core {
    pub(crate) transport: Arc<dyn BookieTransport>,
    pub(crate) store: Arc<dyn MetadataStore>,
    pub(crate) config: ClientConfig,
    pub(crate) clock: Clock,
}

impl Core {
    /// Waits for the metadata store for the time it is given. After that the outcome is unknown.
    pub(crate) async fn metadata<T>(
        &self,
        key: &str,
        operation: impl Future<Output = Result<T, MetadataError>>,
    ) -> Result<T, MetadataError> {
        let timeout = self.config.metadata_timeout;
        tokio::time::timeout(timeout, operation).await.unwrap_or_else(|_| {
            Err(MetadataError::Unavailable {
                key: key.into(),
                reason: format!("no answer within {timeout:?}"),
            })
        })
    }

    /// What is stored under a key that was in use. That there is nothing any more is believed when a second read says
    /// so as well: a store may answer with what was there earlier, and that may be nothing. Cancel-safe.
    pub(crate) async fn known_value(&self, key: &str) -> Result<Option<Versioned>, MetadataError> {
        if let Some(found) = self.metadata(key, self.store.get(key)).await? {
            return Ok(Some(found));
        }
        tokio::time::sleep(READ_AGAIN_AFTER).await;
        self.metadata(key, self.store.get(key)).await
    }

    /// The record of a ledger and its version, as one read of the store has it.
    pub(crate) async fn record(
        &self,
        ledger: LedgerId,
    ) -> Result<(LedgerMetadata, Version), RecordError> {
        let key = ledger_key(ledger);
        decode(ledger, self.metadata(&key, self.store.get(&key)).await?)
    }

    /// The record of a ledger that was created, and its version. That the ledger is gone is believed at the second
    /// read. Cancel-safe.
    pub(crate) async fn known_record(
        &self,
        ledger: LedgerId,
    ) -> Result<(LedgerMetadata, Version), RecordError> {
        decode(ledger, self.known_value(&ledger_key(ledger)).await?)
    }
}

fn decode(
    ledger: LedgerId,
    found: Option<Versioned>,
) -> Result<(LedgerMetadata, Version), RecordError> {
    let found = found.ok_or(RecordError::NoSuchLedger { ledger })?;
    let unusable = |error| RecordError::Format { ledger, error };
    let metadata = metadata::decode(&found.value).map_err(unusable)?;
    match metadata.digest() {
        Some(DigestType::Crc32c) => Ok((metadata, found.version)),
        other => {
            let digest = other.map_or("(none stored)", DigestType::name);
            Err(unusable(FormatError::UnsupportedDigest(digest)))
        }
    }
}

/// Why the record of a ledger could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// There is no such ledger, or it was deleted.
    #[error("ledger {ledger} does not exist; it may have been deleted")]
    NoSuchLedger {
        /// The ledger.
        ledger: LedgerId,
    },
    /// The record is damaged or of an unknown kind.
    #[error("the record of ledger {ledger} cannot be used: {error}")]
    Format {
        /// The ledger.
        ledger: LedgerId,
        /// What is wrong with it.
        #[source]
        error: FormatError,
    },
    /// The metadata store failed.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
}

impl RecordError {
    /// What to do about it.
    #[must_use]
    pub const fn advice(&self) -> Advice {
        match self {
            Self::NoSuchLedger { .. } | Self::Format { .. } => Advice::GiveUp,
            // Reading changes nothing, so it may be repeated whatever became of it.
            Self::Metadata(_) => Advice::Retry,
        }
    }
}

//! A machine's questions about its ledger's record, put to the store.

use std::sync::Arc;

use crate::id::LedgerId;
use crate::metadata::{
    Expected, MetadataError, RecordAnswer, RecordRequest, Version, encode, ledger_key,
};
use crate::read::{Core, RecordError};

/// Asks the store, and keeps the promise that no answer is older than one before: a store may answer a read with a
/// value that has been replaced.
pub(crate) struct RecordExchange {
    core: Arc<Core>,
    ledger: LedgerId,
    /// No older version is believed.
    oldest: Version,
}

impl RecordExchange {
    pub(crate) const fn new(core: Arc<Core>, ledger: LedgerId) -> Self {
        Self { core, ledger, oldest: Version(0) }
    }

    /// The one answer to a question, at most a metadata timeout later. Dropping the future leaves the outcome unknown.
    pub(crate) async fn ask(&mut self, question: RecordRequest) -> RecordAnswer {
        match question {
            RecordRequest::Read => match self.core.record(self.ledger).await {
                Ok((_, version)) if version < self.oldest => {
                    RecordAnswer::Unknown("the store answered with an old record".into())
                }
                Ok((record, version)) => {
                    self.oldest = version;
                    RecordAnswer::Found(Arc::new(record), version)
                }
                Err(RecordError::NoSuchLedger { .. }) => RecordAnswer::Missing,
                Err(RecordError::Format { error, .. }) => {
                    RecordAnswer::Unusable(error.to_string().into())
                }
                Err(RecordError::Metadata(error)) => {
                    RecordAnswer::Unknown(error.to_string().into())
                }
            },
            RecordRequest::Write { record, expected } => {
                let key = ledger_key(self.ledger);
                let put = self.core.store.put(&key, encode(&record), Expected::Version(expected));
                match self.core.metadata(&key, put).await {
                    Ok(version) => {
                        self.oldest = self.oldest.max(version);
                        RecordAnswer::Written(version)
                    }
                    Err(MetadataError::VersionConflict { .. }) => {
                        self.oldest = self.oldest.max(Version(expected.0 + 1));
                        RecordAnswer::Conflict
                    }
                    Err(MetadataError::NotFound { .. }) => RecordAnswer::Missing,
                    Err(error @ MetadataError::Unavailable { .. }) => {
                        RecordAnswer::Unknown(error.to_string().into())
                    }
                }
            }
        }
    }
}

//! A record in the metadata store that only its owner writes.

use bytes::Bytes;
use georepl_storage::{Expected, MetadataError, Version};

use crate::store::Store;

/// Values that were put and whose answer was not seen, and which may still land. One more, and the oldest is
/// forgotten: should it land after all, it looks like somebody else's, which is safe.
const DOUBTS_MAX: usize = 16;

/// The owner's side of a record: it moves by compare-and-set, and a lost answer is told from a lost ownership.
///
/// Every value must be the owner's own: nobody else may ever write the same bytes.
pub(crate) struct OwnRecord {
    key: String,
    expected: Expected,
    in_doubt: Vec<Bytes>,
}

impl OwnRecord {
    /// The record under `key`, as it was found.
    pub(crate) fn new(key: String, found: Option<Version>) -> Self {
        let expected = found.map_or(Expected::Absent, Expected::Version);
        Self { key, expected, in_doubt: Vec::new() }
    }

    /// Whether something that was put may still land.
    pub(crate) fn is_in_doubt(&self) -> bool {
        !self.in_doubt.is_empty()
    }

    /// Writes the record. If the future is dropped, the outcome is found out by the next call.
    ///
    /// # Errors
    /// A conflict or a missing record is certain and for ever; without an answer, what was put may be there or not.
    pub(crate) async fn put(
        &mut self,
        store: &Store,
        value: Bytes,
    ) -> Result<Version, MetadataError> {
        if self.is_in_doubt() {
            self.settle(store).await?;
        }
        for last_attempt in [false, true] {
            if self.in_doubt.len() == DOUBTS_MAX {
                self.in_doubt.remove(0);
            }
            self.in_doubt.push(value.clone());
            match store.put(&self.key, value.clone(), self.expected).await {
                Ok(version) => {
                    // Whatever else is under way expects an older version.
                    self.in_doubt.clear();
                    self.expected = Expected::Version(version);
                    return Ok(version);
                }
                Err(error @ MetadataError::Unavailable { .. }) => {
                    // Perhaps only the answer is missing.
                    return match self.settle(store).await {
                        Ok(Some((landed, version))) if landed == value => Ok(version),
                        _ => Err(error),
                    };
                }
                Err(error) if last_attempt => {
                    self.in_doubt.clear();
                    return Err(error);
                }
                // Perhaps with a value of this owner that came late. One that is not there yet cannot be the reason.
                Err(_) if self.settle(store).await?.is_none() => return Err(self.stale()),
                Err(_) => {}
            }
        }
        unreachable!("the last attempt returns")
    }

    /// Whether nobody else has written the record.
    ///
    /// # Errors
    /// As [`OwnRecord::put`].
    pub(crate) async fn check(&mut self, store: &Store) -> Result<(), MetadataError> {
        self.settle(store).await.map(drop)
    }

    fn stale(&self) -> MetadataError {
        let reason = "it answered with an older record than the newest".into();
        MetadataError::Unavailable { key: self.key.clone(), reason }
    }

    /// Removes the record. There being none is a success.
    ///
    /// # Errors
    /// As [`OwnRecord::put`].
    pub(crate) async fn delete(&mut self, store: &Store) -> Result<(), MetadataError> {
        if self.is_in_doubt() {
            self.settle(store).await?;
        }
        let Expected::Version(version) = self.expected else { return Ok(()) };
        match store.delete(&self.key, version).await {
            Ok(()) | Err(MetadataError::NotFound { .. }) => {
                self.expected = Expected::Absent;
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Finds out what has become of the values in doubt: the one that has landed, if one has.
    async fn settle(&mut self, store: &Store) -> Result<Option<(Bytes, Version)>, MetadataError> {
        let stored = store.get(&self.key).await?;
        let error = match (stored, self.expected) {
            (None, Expected::Absent) => return Ok(None),
            // Older than what this owner has seen: it says nothing of what came later.
            (Some(stored), Expected::Version(expected)) if stored.version < expected => {
                return Err(self.stale());
            }
            (None, Expected::Version(_)) => MetadataError::NotFound { key: self.key.clone() },
            (Some(stored), expected) if expected == Expected::Version(stored.version) => {
                return Ok(None);
            }
            (Some(stored), _) if self.in_doubt.contains(&stored.value) => {
                self.in_doubt.clear();
                self.expected = Expected::Version(stored.version);
                return Ok(Some((stored.value, stored.version)));
            }
            (Some(_), _) => MetadataError::VersionConflict { key: self.key.clone() },
        };
        self.in_doubt.clear();
        Err(error)
    }
}

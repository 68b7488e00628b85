//! Whether a ledger still belongs to a topic or a cursor: a process that ended between the creation of a ledger and the
//! record that was to name it, or between a cursor's removal and that of its ledger, leaves one that nobody names.

use georepl_storage::{LedgerId, LedgerMetadata, MetadataError, MetadataStore};

use crate::managed_ledger::has_in_record;
use crate::names::{FOR_CURSOR, FOR_TOPIC, cursor_key, topic_key};
use crate::records::{CursorRecord, TopicRecord};
use crate::snapshots::names_in_record;

/// What is known of a ledger that some process has created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// It is somebody's, or nobody can tell: a record that should name it is not understood, or it was created by
    /// somebody else than topics and cursors.
    Kept,
    /// It was created for the snapshots of a cursor that does not name it.
    Abandoned,
    /// It was created for a topic that does not list it: entries are sent to a ledger only once it is listed, so it is
    /// empty.
    AbandonedEmpty,
}

/// Finds out whose a ledger is, by its record. Only for one that nobody is creating: it is named after it is created.
/// Cancel-safe.
///
/// # Errors
/// [`MetadataError`].
pub async fn claim(
    store: &dyn MetadataStore,
    ledger: LedgerId,
    record: &LedgerMetadata,
) -> Result<Claim, MetadataError> {
    let noted = |name: &str| record.custom().get(name).map(|value| str::from_utf8(value));
    match (noted(FOR_TOPIC), noted(FOR_CURSOR)) {
        (Some(Ok(topic)), None) => {
            let stored = store.get(&topic_key(topic)).await?;
            let listed = stored.map(|stored| TopicRecord::decode(&stored.value));
            Ok(match listed {
                Some(Ok(record)) if !has_in_record(&record, ledger) => Claim::AbandonedEmpty,
                None => Claim::AbandonedEmpty,
                Some(_) => Claim::Kept,
            })
        }
        (Some(Ok(topic)), Some(Ok(cursor))) => {
            let Ok(key) = cursor_key(topic, cursor) else { return Ok(Claim::Kept) };
            let stored = store.get(&key).await?;
            let named = stored.map(|stored| CursorRecord::decode(&stored.value));
            Ok(match named {
                Some(Ok(record)) if !names_in_record(&record, ledger) => Claim::Abandoned,
                None => Claim::Abandoned,
                Some(_) => Claim::Kept,
            })
        }
        _ => Ok(Claim::Kept),
    }
}

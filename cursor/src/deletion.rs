//! Deleting ledgers that nothing names any more.

use futures::StreamExt as _;
use georepl_storage::{LedgerClient, LedgerId};

/// Ledgers that are deleted at once: each costs several answers of the metadata store, one after the other, and one that
/// is gone already a pause. More would keep those waiting who need the store meanwhile.
const AT_ONCE: usize = 16;

/// Deletes these ledgers; those that are gone by now, in any order. Of the others the log says why.
pub(crate) async fn deleted(
    client: &LedgerClient,
    ledgers: impl IntoIterator<Item = LedgerId>,
) -> Vec<LedgerId> {
    let deletions = ledgers.into_iter().map(|ledger| async move {
        match client.delete(ledger).await {
            Ok(()) => Some(ledger),
            Err(error) => {
                tracing::warn!(%ledger, "is deleted later: {error}");
                None
            }
        }
    });
    let gone = futures::stream::iter(deletions).buffer_unordered(AT_ONCE);
    gone.filter_map(std::future::ready).collect().await
}

//! What topics hold.

use georepl_cursor::{Entry, ManagedLedger};

/// Every entry of a topic, in order, as its own readers see them.
///
/// # Panics
/// If one of them cannot be read.
pub async fn entries(ledger: &ManagedLedger) -> Vec<Entry> {
    let (mut at, end) = (ledger.start(), ledger.end());
    let mut entries = Vec::new();
    while at < end {
        let read = ledger.read(at, end, 1 << 20).await.expect("what was answered is readable");
        at = read.last().expect("there are entries before the end").offset.plus(1);
        entries.extend(read);
    }
    entries
}

//! When bookies that had no space left look for some again.

use std::sync::{Arc, Weak};
use std::time::Duration;

use georepl_storage::RegisteredBookie;
use georepl_storage::bookie_rules::Mode;

use super::Bookies;

/// Lets bookies that are read-only look whether there is space by now, as long as the region is there. Space that
/// somebody else makes on their disk tells nobody. While all are writable no timer is armed.
pub(super) async fn look_for_it(bookies: Weak<Bookies>) {
    let Some(mut registered) = bookies.upgrade().map(|bookies| bookies.registry().bookies()) else {
        return;
    };
    let full = |registered: &Arc<[RegisteredBookie]>| {
        registered.iter().any(|bookie| bookie.mode == Mode::ReadOnly)
    };
    while registered.wait_for(full).await.is_ok() {
        tokio::time::sleep(PAUSE).await;
        let Some(bookies) = bookies.upgrade() else { return };
        // They look for space after every deletion, and one of nothing is enough.
        if let Err(error) = bookies.delete_ledgers([].into()).await {
            tracing::debug!("no space was found: {error}");
        }
    }
}

/// On a disk that stays full each look is one write that fails.
const PAUSE: Duration = Duration::from_secs(2);

//! When bookies that had no space left, or whose disk failed, try their disk again.

use std::sync::{Arc, Weak};
use std::time::Duration;

use georepl_storage::RegisteredBookie;
use georepl_storage::bookie_rules::Mode;

use super::Bookies;

/// Lets bookies that are read-only or have failed look whether their disk is better by now, as long as the region is
/// there. What somebody else does for their disk tells nobody, and where new ledgers do without them nobody asks them
/// for anything. While all are writable no timer is armed.
pub(super) async fn look_for_it(bookies: Weak<Bookies>) {
    let Some(mut registered) = bookies.upgrade().map(|bookies| bookies.registry().bookies()) else {
        return;
    };
    let opened = bookies.upgrade().map_or(0, |bookies| bookies.ids().len());
    let ailing = |registered: &Arc<[RegisteredBookie]>| {
        registered.len() < opened || registered.iter().any(|bookie| bookie.mode == Mode::ReadOnly)
    };
    while registered.wait_for(ailing).await.is_ok() {
        tokio::time::sleep(PAUSE).await;
        let Some(bookies) = bookies.upgrade() else { return };
        // To say what it holds one that has failed opens its file again, if it can.
        bookies.ledgers().await;
        // They look for space after every deletion, and one of nothing is enough.
        if let Err(error) = bookies.delete_ledgers([].into()).await {
            tracing::debug!("no space was found: {error}");
        }
    }
}

/// On a disk that stays full each look is one write that fails; on one that stays away, an opening that does.
const PAUSE: Duration = Duration::from_secs(2);

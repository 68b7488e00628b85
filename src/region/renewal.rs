//! Another life for a bookie whose file is lost.

use std::path::PathBuf;

use georepl_storage::{BookieId, DurableBookies};

use super::Region;
use super::builder::{Held, hold};
use super::directory::{Absent, Wanted};
use super::error::RenewRegionBookieError;

impl Region {
    /// Lets a bookie whose file is lost begin another life, empty, when the region in this directory is next opened.
    /// Nobody may hold the region.
    ///
    /// What the bookie had has one copy less then, and its old file is refused for ever. Check the region's ledgers
    /// before and afterwards ([`LedgerClient::check`](georepl_storage::LedgerClient::check)).
    ///
    /// If the future is dropped, the bookie may be renewed or not.
    ///
    /// # Errors
    /// [`RenewRegionBookieError`], also if the bookie's file is there.
    ///
    /// # Panics
    /// Outside a tokio runtime, and if threads cannot be started.
    pub async fn renew_bookie(
        directory: impl Into<PathBuf>,
        bookie: &BookieId,
    ) -> Result<(), RenewRegionBookieError> {
        // One that is not there is not begun, so it needs no bookies.
        let wanted = Wanted { name: None, bookies: 0, absent: Absent::Refuse };
        let Held { name, ids, disk, store } = hold(&directory.into(), wanted).await?;
        if !ids.contains(bookie) {
            return Err(RenewRegionBookieError::NotItsOwn {
                region: name,
                bookie: bookie.clone(),
                ids,
            });
        }
        Ok(DurableBookies::renew(disk, bookie, &store).await?)
    }
}

//! Ids of new ledgers, given out by ZooKeeper as Java clients have it do so.
//!
//! A sequential, ephemeral node is made and removed; its number is the id. Numbers of one folder are used up at
//! 2^31 - 1. Then, and where Java clients have come to that before, the folder is one of `idgen-long`, whose own number
//! makes the upper half of the id.
//!
//! ```text
//! /ledgers/ID-0000000042                                      flat
//! /ledgers/idgen/ID-0000000042                                42
//! /ledgers/idgen-long/HOB-0000000001/ID-0000000042            2^32 + 42
//! ```

use parking_lot::Mutex;
use zookeeper_client as zk;

use super::session::{Session, unavailable};
use crate::id::LedgerId;
use crate::metadata::layout::{LedgerLayout, SHORT_IDS_END, Tree};
use crate::metadata::store::MetadataError;

/// Where the next id comes from. It only ever changes from short to long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Length {
    Short,
    Long,
}

/// Gives out ids.
#[derive(Debug, Default)]
pub(super) struct Ids {
    /// None before the first id.
    length: Mutex<Option<Length>>,
}

impl Ids {
    /// An id that nobody was given before. If the future is dropped, an id may be used up.
    pub(super) async fn next(
        &self,
        session: &Session,
        tree: &Tree,
    ) -> Result<LedgerId, MetadataError> {
        loop {
            let client = session.client(KEY).await?;
            match self.try_next(session, &client, tree).await {
                Ok(Some(ledger)) => return Ok(ledger),
                Ok(None) => {
                    let reason = "all ids of the cluster's layout are used up";
                    return Err(unavailable(KEY, reason));
                }
                // What was given out and not told is used up.
                Err(error) => session.after(KEY, &error).await?,
            }
        }
    }

    async fn try_next(
        &self,
        session: &Session,
        client: &zk::Client,
        tree: &Tree,
    ) -> Result<Option<LedgerId>, zk::Error> {
        let root = tree.root();
        let long_folder = format!("{root}/idgen-long");
        let short_prefix = match tree.layout() {
            LedgerLayout::Flat => format!("{root}/ID-"),
            _ => format!("{root}/idgen/ID-"),
        };
        let may_be_long = match tree.layout() {
            LedgerLayout::Flat | LedgerLayout::LegacyHierarchical => false,
            LedgerLayout::Hierarchical | LedgerLayout::LongHierarchical => true,
        };
        let known = *self.length.lock();
        let length = match known {
            Some(length) => length,
            None if may_be_long && client.check_stat(&long_folder).await?.is_some() => Length::Long,
            None => Length::Short,
        };
        if length == Length::Short {
            *self.length.lock() = Some(Length::Short);
            match sequence(session, client, &short_prefix).await? {
                Some(number) => return Ok(Some(LedgerId(number))),
                None if !may_be_long => return Ok(None),
                None => {}
            }
        }
        *self.length.lock() = Some(Length::Long);
        long(session, client, &long_folder).await.map(Some)
    }
}

/// An id of more than 31 bits.
async fn long(session: &Session, client: &zk::Client, folder: &str) -> Result<LedgerId, zk::Error> {
    let names = match client.list_children(folder).await {
        Err(zk::Error::NoNode) => Vec::new(),
        names => names?,
    };
    let number = |name: &String| name.strip_prefix(HIGH_PREFIX)?.parse::<u32>().ok();
    let mut high = names.iter().filter_map(number).max().unwrap_or(HIGH_FIRST);
    loop {
        let prefix = format!("{folder}/{HIGH_PREFIX}{high:010}/ID-");
        if let Some(low) = sequence(session, client, &prefix).await? {
            return Ok(LedgerId(u64::from(high) << 32 | low));
        }
        high += 1;
        // Tidying up, which another client may be doing as well.
        let kept = high.saturating_sub(HIGH_KEPT);
        for old in names.iter().filter(|name| number(name).is_some_and(|high| high <= kept)) {
            drop(client.delete(&format!("{folder}/{old}"), None).await);
        }
    }
}

/// The next number in a folder, which is made if need be; none if its numbers are used up.
async fn sequence(
    session: &Session,
    client: &zk::Client,
    prefix: &str,
) -> Result<Option<u64>, zk::Error> {
    let options = zk::CreateMode::EphemeralSequential.with_acls(session.acls());
    let number = loop {
        match client.create(prefix, &[], &options).await {
            Ok((_, number)) => break number,
            Err(zk::Error::NoNode) => {
                let (folder, _) = prefix.rsplit_once('/').expect("a prefix is below the root");
                session.make_folder(client, folder).await?;
            }
            Err(error) => return Err(error),
        }
    };
    // Sent before this returns; nobody waits for the answer, since the node ends with the session in any case.
    drop(client.delete(&format!("{prefix}{number}"), None));
    Ok(u64::try_from(number.into_i64()).ok().filter(|number| *number < SHORT_IDS_END))
}

/// What errors name.
const KEY: &str = "a ledger id";

const HIGH_PREFIX: &str = "HOB-";
const HIGH_FIRST: u32 = 1;
/// How many folders of long ids are kept, as Java clients keep them.
const HIGH_KEPT: u32 = 3;

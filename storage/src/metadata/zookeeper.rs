//! A metadata store in ZooKeeper, where Apache BookKeeper and Apache Pulsar keep the same records.
//!
//! - A key's version is the transaction that last changed its znode. ZooKeeper compares another number, the count of
//!   changes since the znode was made, which begins anew when it is made again; so the znode is looked at first.
//! - A znode without data is a folder, and no key: ZooKeeper has no path without the znodes above it.
//! - After a lost answer the znode is looked at. A change that stands there is this store's own if its bytes are, and
//!   if it is the one that followed what was replaced.

mod ids;
mod session;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use zookeeper_client as zk;

use self::ids::Ids;
pub(crate) use self::session::Session;
pub use self::session::{DigestAuth, ZooKeeperConfig};
use self::session::{is_lost, unavailable};
use super::exchange::Version;
use super::layout::{LedgerLayout, Listed, Tree, UnsupportedLayout, join};
use super::service_uri::MetadataServiceUri;
use super::store::{Expected, MetadataError, MetadataStore, Versioned, ledger_key};
use crate::id::LedgerId;

/// A [`MetadataStore`] in ZooKeeper. Its session is renewed when it has expired; what is ephemeral ends with the session
/// that made it. It has to be made and used within a tokio runtime; idle, it is the task of its connection.
pub struct ZooKeeperMetadata {
    session: Arc<Session>,
    tree: Tree,
    ids: Ids,
}

/// Why the metadata of a cluster cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// ZooKeeper cannot be reached, or refuses.
    #[error("the metadata at {uri} cannot be reached: {reason}")]
    Unreachable {
        /// Where it should be.
        uri: MetadataServiceUri,
        /// What is known of the cause.
        reason: String,
    },
    /// There is no cluster of Apache BookKeeper.
    #[error("there is no cluster at {uri}; `bookkeeper shell initnewcluster` makes one")]
    NoCluster {
        /// Where it should be.
        uri: MetadataServiceUri,
    },
    /// The cluster keeps its ledgers in an unknown way.
    #[error("the metadata at {uri} cannot be used: {error}")]
    Layout {
        /// Where it is.
        uri: MetadataServiceUri,
        /// What it says.
        #[source]
        error: UnsupportedLayout,
    },
    /// The cluster keeps its ledgers in another way than the address says.
    #[error(
        "the metadata at {uri} is laid out otherwise, as {found:?}; write zk:// to use what is there"
    )]
    OtherLayout {
        /// Where it is.
        uri: MetadataServiceUri,
        /// How it is laid out.
        found: LedgerLayout,
    },
}

impl ZooKeeperMetadata {
    /// Begins a session and finds out how the cluster keeps its ledgers. Cancel-safe.
    ///
    /// # Errors
    /// [`ConnectError`], after the operation timeout at the latest.
    pub async fn connect(config: ZooKeeperConfig) -> Result<Self, ConnectError> {
        let uri = config.uri.clone();
        let session = Arc::new(Session::new(config));
        let path = format!("{}/LAYOUT", uri.root());
        let found = session.in_time(&path, get(&session, &path, &path)).await;
        let found = found.map_err(|error| {
            let reason = match error {
                MetadataError::Unavailable { reason, .. } => reason,
                other => other.to_string(),
            };
            ConnectError::Unreachable { uri: uri.clone(), reason }
        })?;
        let Some(found) = found else { return Err(ConnectError::NoCluster { uri }) };
        let layout = LedgerLayout::read(&found.value)
            .map_err(|error| ConnectError::Layout { uri: uri.clone(), error })?;
        if uri.layout().is_some_and(|wanted| wanted != layout) {
            return Err(ConnectError::OtherLayout { uri, found: layout });
        }
        Ok(Self { session, tree: Tree::new(uri.root(), layout), ids: Ids::default() })
    }

    /// How the cluster keeps its ledgers.
    #[must_use]
    pub const fn layout(&self) -> LedgerLayout {
        self.tree.layout()
    }

    /// Ends the session, and with it what is ephemeral. Dropping the store does so too, a little later. If the future is
    /// dropped or ZooKeeper cannot be reached, the session expires. A registry that still follows the bookies begins
    /// another.
    pub async fn close(self) {
        self.session.close().await;
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    async fn create(
        &self,
        key: &str,
        value: &[u8],
        mode: zk::CreateMode,
    ) -> Result<Version, MetadataError> {
        let (path, session) = (self.tree.path(key), &*self.session);
        let options = mode.with_acls(session.acls());
        let mut may_have_landed = false;
        loop {
            let client = session.client(key).await?;
            let error = match client.create(&path, value, &options).await {
                Ok((stat, _)) => return Ok(version(&stat)),
                Err(zk::Error::NoNode) => {
                    let (folder, _) = path.rsplit_once('/').expect("a path begins with a slash");
                    match session.make_folder(&client, folder).await {
                        Ok(()) => continue,
                        Err(error) => error,
                    }
                }
                Err(zk::Error::NodeExists) => match client.get_data(&path).await {
                    Ok((_, stat)) if is_folder(&stat) && mode == zk::CreateMode::Persistent => {
                        match client.set_data(&path, value, Some(stat.version)).await {
                            Ok(stat) => return Ok(version(&stat)),
                            Err(zk::Error::BadVersion | zk::Error::NoNode) => continue,
                            Err(error) => error,
                        }
                    }
                    Ok((found, stat)) => {
                        let own_session = mode != zk::CreateMode::Ephemeral
                            || stat.ephemeral_owner == client.session_id().0;
                        let conflict = MetadataError::VersionConflict { key: key.into() };
                        return match may_have_landed {
                            false => Err(conflict),
                            true if found == value && own_session => Ok(version(&stat)),
                            true if found == value => Err(unavailable(key, OLD_SESSION)),
                            // It is as it was made, and not by this store.
                            true if stat.version == 0 => Err(conflict),
                            true => Err(unavailable(key, CHANGED_MEANWHILE)),
                        };
                    }
                    Err(zk::Error::NoNode) => continue,
                    Err(error) => error,
                },
                Err(error) => error,
            };
            may_have_landed |= is_lost(&error);
            session.after(key, &error).await?;
        }
    }

    async fn replace(
        &self,
        key: &str,
        value: &[u8],
        expected: Version,
    ) -> Result<Version, MetadataError> {
        let (path, session) = (self.tree.path(key), &*self.session);
        // The znode as it was when a change was sent whose answer was lost.
        let mut before: Option<zk::Stat> = None;
        let mut look = Look::AtOnce;
        loop {
            let client = session.client(key).await?;
            let error = match found(&client, &path, expected, &mut look).await {
                Ok(Found::Same(stat)) => {
                    match client.set_data(&path, value, Some(stat.version)).await {
                        Ok(stat) => return Ok(version(&stat)),
                        Err(zk::Error::BadVersion | zk::Error::NoNode) => continue,
                        Err(error) => {
                            before = Some(stat);
                            error
                        }
                    }
                }
                Ok(Found::Nothing) => return Err(MetadataError::NotFound { key: key.into() }),
                Ok(Found::Older) => return Err(unavailable(key, OLDER)),
                Ok(Found::Newer(stat)) => {
                    let conflict = MetadataError::VersionConflict { key: key.into() };
                    let Some(before) = before else { return Err(conflict) };
                    if stat.czxid != before.czxid || stat.version != before.version + 1 {
                        return Err(unavailable(key, CHANGED_MEANWHILE));
                    }
                    // There was one change since. Whose?
                    match client.get_data(&path).await {
                        Ok((found, now)) if now.mzxid == stat.mzxid => {
                            return if found == value { Ok(version(&now)) } else { Err(conflict) };
                        }
                        Ok(_) | Err(zk::Error::NoNode) => continue,
                        Err(error) => error,
                    }
                }
                Err(error) => error,
            };
            session.after(key, &error).await?;
        }
    }

    async fn remove(&self, key: &str, expected: Version) -> Result<(), MetadataError> {
        let (path, session) = (self.tree.path(key), &*self.session);
        let mut may_have_landed = false;
        let mut look = Look::AtOnce;
        loop {
            let client = session.client(key).await?;
            let error = match found(&client, &path, expected, &mut look).await {
                Ok(Found::Same(stat)) => {
                    let removed = match client.delete(&path, Some(stat.version)).await {
                        // It has keys below it, so it stays as their folder.
                        Err(zk::Error::NotEmpty) => {
                            client.set_data(&path, &[], Some(stat.version)).await.map(drop)
                        }
                        removed => removed,
                    };
                    match removed {
                        Ok(()) => break,
                        Err(zk::Error::BadVersion | zk::Error::NoNode) => continue,
                        Err(error) => error,
                    }
                }
                Ok(Found::Nothing) if may_have_landed => break,
                Ok(Found::Nothing) => return Err(MetadataError::NotFound { key: key.into() }),
                Ok(Found::Older) => return Err(unavailable(key, OLDER)),
                // Made again after it was removed, by whomever.
                Ok(Found::Newer(stat)) if may_have_landed && stat.czxid > signed(expected) => break,
                Ok(Found::Newer(_)) if may_have_landed => {
                    return Err(unavailable(key, CHANGED_MEANWHILE));
                }
                Ok(Found::Newer(_)) => {
                    return Err(MetadataError::VersionConflict { key: key.into() });
                }
                Err(error) => error,
            };
            may_have_landed |= is_lost(&error);
            session.after(key, &error).await?;
        }
        self.remove_folders(key).await;
        Ok(())
    }

    /// Removes the folders above a ledger's record that have nothing in them any more, which ZooKeeper sees to. Whoever
    /// makes a record there at the same time makes its folder again.
    async fn remove_folders(&self, key: &str) {
        let Ok(client) = self.session.connect().await else { return };
        for folder in self.tree.folders(key) {
            if client.delete(&folder, None).await.is_err() {
                return;
            }
        }
    }

    /// The names of all ledgers' records, asked for folder by folder. Each of the requests has the time of an operation.
    async fn ledgers(&self) -> Result<Vec<String>, MetadataError> {
        let mut names = Vec::new();
        let mut folders = vec![String::new()];
        let mut asked = FuturesUnordered::new();
        loop {
            while asked.len() < WALK_REQUESTS_MAX
                && let Some(folder) = folders.pop()
            {
                asked.push(async move {
                    let path = join(self.tree.root(), &folder);
                    let path = path.trim_end_matches('/');
                    let session = &self.session;
                    let found = session.in_time(path, children(session, path, path)).await;
                    found.map(|found| (folder, found))
                });
            }
            let Some(answer) = asked.next().await else { break };
            let (folder, found) = answer?;
            for name in found {
                match self.tree.listed(&folder, &name) {
                    Listed::Ledger(ledger) => names.push(name_of(ledger)),
                    Listed::Folder => folders.push(join(&folder, &name)),
                    Listed::Other => {}
                }
            }
        }
        names.sort_unstable();
        Ok(names)
    }
}

#[async_trait]
impl MetadataStore for ZooKeeperMetadata {
    async fn get(&self, key: &str) -> Result<Option<Versioned>, MetadataError> {
        let path = self.tree.path(key);
        self.session.in_time(key, get(&self.session, key, &path)).await
    }

    async fn put(
        &self,
        key: &str,
        value: Bytes,
        expected: Expected,
    ) -> Result<Version, MetadataError> {
        check(key, &value)?;
        match expected {
            Expected::Absent => {
                let create = self.create(key, &value, zk::CreateMode::Persistent);
                self.session.in_time(key, create).await
            }
            Expected::Version(version) => {
                self.session.in_time(key, self.replace(key, &value, version)).await
            }
        }
    }

    async fn create_ephemeral(&self, key: &str, value: Bytes) -> Result<Version, MetadataError> {
        check(key, &value)?;
        let create = self.create(key, &value, zk::CreateMode::Ephemeral);
        self.session.in_time(key, create).await
    }

    async fn delete(&self, key: &str, version: Version) -> Result<(), MetadataError> {
        self.session.in_time(key, self.remove(key, version)).await
    }

    async fn children(&self, key: &str) -> Result<Vec<String>, MetadataError> {
        if key == LEDGERS {
            return self.ledgers().await;
        }
        let path = self.tree.path(key);
        self.session.in_time(key, children(&self.session, key, &path)).await
    }

    async fn allocate_ledger_id(&self) -> Result<LedgerId, MetadataError> {
        let id = self.ids.next(&self.session, &self.tree);
        self.session.in_time("a ledger id", id).await
    }
}

impl fmt::Debug for ZooKeeperMetadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZooKeeperMetadata")
            .field("uri", &self.session.config().uri)
            .field("layout", &self.layout())
            .finish_non_exhaustive()
    }
}

async fn get(session: &Session, key: &str, path: &str) -> Result<Option<Versioned>, MetadataError> {
    loop {
        let client = session.client(key).await?;
        match client.get_data(path).await {
            Ok((_, stat)) if is_folder(&stat) => return Ok(None),
            Ok((value, stat)) => {
                return Ok(Some(Versioned { value: value.into(), version: version(&stat) }));
            }
            Err(zk::Error::NoNode) => return Ok(None),
            Err(error) => session.after(key, &error).await?,
        }
    }
}

async fn children(session: &Session, key: &str, path: &str) -> Result<Vec<String>, MetadataError> {
    loop {
        let client = session.client(key).await?;
        match client.list_children(path).await {
            Ok(mut names) => {
                names.sort_unstable();
                return Ok(names);
            }
            Err(zk::Error::NoNode) => return Ok(Vec::new()),
            Err(error) => session.after(key, &error).await?,
        }
    }
}

/// What stands where a version is expected.
enum Found {
    Same(zk::Stat),
    Newer(zk::Stat),
    Older,
    Nothing,
}

/// How a znode is looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    AtOnce,
    /// After the server has caught up with the others: it may be one that lags behind what this store was told before.
    CaughtUp,
}

/// Looks at a znode, and a second time if it seems to be older than what is expected.
async fn found(
    client: &zk::Client,
    path: &str,
    expected: Version,
    look: &mut Look,
) -> Result<Found, zk::Error> {
    loop {
        let stat = client.check_stat(path).await?;
        let stat = stat.filter(|stat| !is_folder(stat));
        let found = match stat.map(|stat| (stat.mzxid.cmp(&signed(expected)), stat)) {
            Some((std::cmp::Ordering::Equal, stat)) => return Ok(Found::Same(stat)),
            Some((std::cmp::Ordering::Greater, stat)) => return Ok(Found::Newer(stat)),
            Some((std::cmp::Ordering::Less, _)) => Found::Older,
            None => Found::Nothing,
        };
        if *look == Look::CaughtUp {
            return Ok(found);
        }
        client.sync(path).await?;
        *look = Look::CaughtUp;
    }
}

fn check(key: &str, value: &[u8]) -> Result<(), MetadataError> {
    assert!(!value.is_empty(), "{key} is given no value; ZooKeeper takes that for a folder");
    match value.len() {
        ..=VALUE_BYTES_MAX => Ok(()),
        bytes => Err(unavailable(
            key,
            format!(
                "ZooKeeper takes {VALUE_BYTES_MAX} bytes at most, not {bytes}; nothing was sent"
            ),
        )),
    }
}

const fn is_folder(stat: &zk::Stat) -> bool {
    stat.data_length == 0
}

fn version(stat: &zk::Stat) -> Version {
    Version(stat.mzxid.unsigned_abs())
}

fn signed(version: Version) -> i64 {
    i64::try_from(version.0).unwrap_or(i64::MAX)
}

/// The last part of a ledger's key.
fn name_of(ledger: LedgerId) -> String {
    let key = ledger_key(ledger);
    key.strip_prefix(LEDGERS_PREFIX).expect("records of ledgers are in their folder").to_owned()
}

const LEDGERS: &str = "ledgers";
const LEDGERS_PREFIX: &str = "ledgers/";

const CHANGED_MEANWHILE: &str = "an answer was lost, and somebody else has changed it since";
const OLD_SESSION: &str = "it was made in a session that has expired, and goes with it";
const OLDER: &str = "ZooKeeper answered with an older one than it had told before";

/// What ZooKeeper takes in one request with its default settings is 1,048,575 bytes; the rest is for what is around the
/// value. It closes the connection on who sends more.
const VALUE_BYTES_MAX: usize = 1_000_000;

/// How many folders are asked for at once. One at a time, a tree of a million ledgers takes minutes.
const WALK_REQUESTS_MAX: usize = 64;

//! The bookies that are registered in ZooKeeper.
//!
//! ```text
//! /ledgers/available/ID            ephemeral: takes new entries. The content says where it is reached
//! /ledgers/available/readonly/ID   ephemeral: is only read from
//! /ledgers/cookies/ID              stays: its creation is the instance of the bookie
//! ```
//! Everything is read anew whenever a watch fires, and after every reconnection: what is announced meanwhile may be lost.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures::future::{join_all, try_join_all};
use parking_lot::RwLock;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use zookeeper_client as zk;

use super::service_info::{address, address_of_id};
use super::{BookieRegistry, RegisteredBookie};
use crate::bookie::rules::Mode;
use crate::id::{BookieId, Instance};
use crate::metadata::{Session, ZooKeeperMetadata};

/// A [`BookieRegistry`] in ZooKeeper, kept up to date by a task. It shares the session of the metadata store that it was
/// made from, and keeps it open. Its task ends when it is dropped.
#[derive(Debug)]
pub struct ZooKeeperRegistry {
    bookies: watch::Receiver<Arc<[RegisteredBookie]>>,
    addresses: Arc<Addresses>,
    task: AbortHandle,
}

/// Where bookies are and in which life, or were when they were last seen: one that is not registered any more may still
/// answer, and one that is restarted is soon there again.
type Addresses = RwLock<HashMap<BookieId, (Arc<str>, Instance)>>;

/// Whether a bookie takes entries, and what it says of itself.
type Registration = (Mode, Vec<u8>);

impl ZooKeeperRegistry {
    /// Reads the list, and follows it from then on. The first list is there when this returns, unless it cannot be had
    /// within the time of an operation: then it is empty until it can. Cancel-safe.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn follow(metadata: &ZooKeeperMetadata) -> Self {
        let session = metadata.session().clone();
        let first_list_timeout = session.config().operation_timeout;
        let (list, mut bookies) = watch::channel::<Arc<[RegisteredBookie]>>(Arc::new([]));
        let addresses = Arc::default();
        let follower = Follower { session, list, addresses: Arc::clone(&addresses) };
        let task = tokio::spawn(follower.run()).abort_handle();
        let registry = Self { bookies: bookies.clone(), addresses, task };
        // The list is sent also if nobody is on it.
        let _ = tokio::time::timeout(first_list_timeout, bookies.changed()).await;
        registry
    }

    /// Where a bookie is reached, `host:port`: where it said when it was last registered, with the life that it was in
    /// then, or else where its id says. None if neither is known.
    pub(crate) fn address_of(&self, bookie: &BookieId) -> Option<(Arc<str>, Option<Instance>)> {
        let known = self.addresses.read().get(bookie).cloned();
        known
            .map(|(address, instance)| (address, Some(instance)))
            .or_else(|| Some((address_of_id(bookie)?, None)))
    }
}

impl BookieRegistry for ZooKeeperRegistry {
    fn bookies(&self) -> watch::Receiver<Arc<[RegisteredBookie]>> {
        self.bookies.clone()
    }
}

impl Drop for ZooKeeperRegistry {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What the task works with.
struct Follower {
    session: Arc<Session>,
    list: watch::Sender<Arc<[RegisteredBookie]>>,
    addresses: Arc<Addresses>,
}

impl Follower {
    async fn run(self) {
        loop {
            let followed = match self.session.connect().await {
                Ok(client) => self.follow(&client).await,
                Err(error) => Err(error),
            };
            if let Err(error) = followed {
                tracing::warn!(%error, "the list of bookies cannot be read; it stays as it was");
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        }
    }

    /// Reads the list, and waits until it may be another.
    async fn follow(&self, client: &zk::Client) -> Result<(), zk::Error> {
        let mut states = client.state_watcher();
        let root = self.session.config().uri.root();
        let available = format!("{root}/available");
        let read_only = format!("{available}/{READ_ONLY}");
        let (names, available_changed) = client.list_and_watch_children(&available).await?;
        let writable = self.registrations(client, &available, names).await?;
        let (read_only, read_only_changed) = self.read_only(client, &read_only).await?;
        // One that is in both lists is on its way to where it takes nothing any more.
        let writable = writable.into_iter().map(|(id, info)| (id, (Mode::Writable, info)));
        let read_only = read_only.into_iter().map(|(id, info)| (id, (Mode::ReadOnly, info)));
        let registered: BTreeMap<_, _> = writable.chain(read_only).collect();
        let cookies = registered.keys().map(|id| format!("{root}/cookies/{id}"));
        let cookies = cookies.collect::<Vec<_>>();
        let cookies = try_join_all(cookies.iter().map(|path| client.check_stat(path))).await?;
        self.publish(registered, cookies);
        tokio::select! {
            _ = available_changed.changed() => {}
            _ = read_only_changed.changed() => {}
            () = reconnected(&mut states) => {}
        }
        Ok(())
    }

    /// Makes the list known.
    fn publish(
        &self,
        registered: BTreeMap<BookieId, Registration>,
        cookies: Vec<Option<zk::Stat>>,
    ) {
        let mut addresses = self.addresses.write();
        let bookies = registered.into_iter().zip(cookies).map(|((id, (mode, info)), cookie)| {
            let instance = Instance(cookie.map_or(0, |cookie| cookie.czxid.unsigned_abs()));
            match address(&id, &info) {
                Some(address) => drop(addresses.insert(id.clone(), (address, instance))),
                None => tracing::warn!(bookie = %id, "the bookie does not say where it is"),
            }
            RegisteredBookie { id, instance, mode }
        });
        let bookies = bookies.collect();
        // Before the list is out, for who reads it asks for them.
        drop(addresses);
        self.list.send_replace(bookies);
    }

    /// The read-only bookies. Their folder is made by the first of them, so it may have to be waited for.
    async fn read_only(
        &self,
        client: &zk::Client,
        folder: &str,
    ) -> Result<(Vec<(BookieId, Vec<u8>)>, zk::OneshotWatcher), zk::Error> {
        match client.list_and_watch_children(folder).await {
            Ok((names, changed)) => Ok((self.registrations(client, folder, names).await?, changed)),
            Err(zk::Error::NoNode) => {
                let (_, made) = client.check_and_watch_stat(folder).await?;
                Ok((Vec::new(), made))
            }
            Err(error) => Err(error),
        }
    }

    /// Which of those are registered at the time, and what they say of themselves.
    async fn registrations(
        &self,
        client: &zk::Client,
        folder: &str,
        names: Vec<String>,
    ) -> Result<Vec<(BookieId, Vec<u8>)>, zk::Error> {
        let ids = names.into_iter().filter(|name| name != READ_ONLY).map(BookieId::from);
        let ids: Vec<_> = ids.collect();
        let paths: Vec<_> = ids.iter().map(|id| format!("{folder}/{id}")).collect();
        let infos = join_all(paths.iter().map(|path| client.get_data(path))).await;
        let mut found = Vec::new();
        for (id, info) in ids.into_iter().zip(infos) {
            match info {
                Ok((info, _)) => found.push((id, info)),
                // Gone since; the watch tells.
                Err(zk::Error::NoNode) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }
}

/// Waits for the connection to be lost and there again, or for the end of the session.
async fn reconnected(states: &mut zk::StateWatcher) {
    loop {
        match states.changed().await {
            zk::SessionState::Disconnected => {}
            _ => return,
        }
    }
}

/// The folder among the writable bookies that has the others in it.
const READ_ONLY: &str = "readonly";

/// How long to wait before the list is read again after that has failed.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

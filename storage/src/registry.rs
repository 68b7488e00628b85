//! Who the bookies are: which of them are there, in which of their lives.

#[cfg(feature = "zookeeper")]
mod service_info;
#[cfg(feature = "zookeeper")]
mod zookeeper;

#[cfg(feature = "io")]
use std::sync::Arc;

#[cfg(feature = "io")]
use tokio::sync::watch;

#[cfg(feature = "zookeeper")]
pub use self::zookeeper::ZooKeeperRegistry;
use crate::bookie::rules::Mode;
use crate::id::{BookieId, Instance};

/// A bookie that is registered, which says little about whether it answers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegisteredBookie {
    /// Its id.
    pub id: BookieId,
    /// Which of its lives this is.
    pub instance: Instance,
    /// Whether it takes new entries.
    pub mode: Mode,
}

/// The seam to the list of bookies.
#[cfg(feature = "io")]
pub trait BookieRegistry: Send + Sync {
    /// The registered bookies, in any order, now and whenever they change.
    ///
    /// While the store behind it cannot be reached the list stays as it was last seen: a bookie that cannot be asked
    /// for has not gone. When the sender is dropped, the list changes no more.
    fn bookies(&self) -> watch::Receiver<Arc<[RegisteredBookie]>>;
}

/// A [`BookieRegistry`] in memory: the list it was last given.
#[cfg(feature = "io")]
#[derive(Debug)]
pub struct MemoryBookieRegistry {
    bookies: watch::Sender<Arc<[RegisteredBookie]>>,
}

#[cfg(feature = "io")]
impl MemoryBookieRegistry {
    /// A registry of these bookies, all writable, in their first life.
    pub fn new(writable: impl IntoIterator<Item = BookieId>) -> Self {
        let first_life = |id| RegisteredBookie { id, instance: Instance(1), mode: Mode::Writable };
        Self { bookies: watch::Sender::new(writable.into_iter().map(first_life).collect()) }
    }

    /// Replaces the list.
    pub fn set(&self, bookies: impl IntoIterator<Item = RegisteredBookie>) {
        self.bookies.send_replace(bookies.into_iter().collect());
    }

    /// Adds a bookie, or gives the one of this id its new life or mode.
    pub fn register(&self, bookie: RegisteredBookie) {
        self.bookies.send_modify(|bookies| {
            let others = bookies.iter().filter(|other| other.id != bookie.id).cloned();
            *bookies = others.chain([bookie.clone()]).collect();
        });
    }

    /// Takes a bookie off the list.
    pub fn unregister(&self, id: &BookieId) {
        self.bookies.send_modify(|bookies| {
            *bookies = bookies.iter().filter(|bookie| bookie.id != *id).cloned().collect();
        });
    }
}

#[cfg(feature = "io")]
impl BookieRegistry for MemoryBookieRegistry {
    fn bookies(&self) -> watch::Receiver<Arc<[RegisteredBookie]>> {
        self.bookies.subscribe()
    }
}

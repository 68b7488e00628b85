//! The region that topics are replicated to, whoever holds it.
//!
//! Its holder may end while topics are on their way, and another process may hold it next, or none. So the way there is
//! looked for anew at every opening of a session, and a region that nobody holds is held by this process from then on.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use georepl::replicator::{
    EmbeddedRemote, OpenError, OpenedSession, Opening, RemoteProducer, SessionEvents,
};
use georepl::{Absent, Region};
use tokio::net::UnixStream;
use tokio::sync::Mutex;

use super::host::{Attached, Host, PATIENCE, PAUSE, attach, holder};
use super::receive;
use super::words::Purpose;
use crate::exit::{Exit, Failure};

/// Where topics go.
pub(super) struct Target {
    /// The region's name.
    pub(super) name: String,
    directory: PathBuf,
    hold: Arc<Mutex<Hold>>,
}

/// Whether this process holds the region for the purpose.
enum Hold {
    Elsewhere,
    Here(Arc<Host>),
    /// Nobody goes there any more. Who still looks for the way opens nothing that nobody would close.
    Closed,
}

/// The way to a region.
enum Way {
    Here(Arc<Region>),
    There(UnixStream),
}

impl Target {
    /// Finds the process that holds the region, or opens it, or begins it, for topics of the region `from`.
    pub(super) async fn reach(directory: PathBuf, from: &str) -> Result<Self, Failure> {
        let same = || {
            let message = format!("both regions are called {from}; names tell clusters apart");
            Failure::new(Exit::Usage, message)
        };
        // A new region takes the name of its directory. It is not begun to be refused.
        if is_empty(&directory) && directory.file_name().is_some_and(|name| name == from) {
            return Err(same());
        }
        let (name, hold) = loop {
            match Box::pin(attach(&directory, Absent::Create, PATIENCE, Purpose::Command)).await? {
                Attached::Local(host) => break (host.region.name().to_string(), Hold::Here(host)),
                Attached::Remote(stream) => {
                    // None if it was about to end.
                    if let Some(holder) = holder(&directory, stream).await? {
                        break (holder.region, Hold::Elsewhere);
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            }
        };
        let target = Self { name, directory, hold: Arc::new(Mutex::new(hold)) };
        if target.name == from {
            target.close().await?;
            return Err(same());
        }
        Ok(target)
    }

    /// Lets go of the region, if this process holds it. No session is opened any more.
    pub(super) async fn close(&self) -> Result<(), Failure> {
        match std::mem::replace(&mut *self.hold.lock().await, Hold::Closed) {
            Hold::Here(host) => Box::pin(host.close()).await,
            Hold::Elsewhere | Hold::Closed => Ok(()),
        }
    }

    async fn way(&self) -> Result<Way, Failure> {
        let (hold, directory) = (self.hold.clone(), self.directory.clone());
        // By a task of its own, which holds what it opened for the next who asks: this one may lose patience.
        let looking = tokio::spawn(async move {
            let mut hold = hold.lock().await;
            match &*hold {
                Hold::Here(host) => return Ok(Way::Here(host.region.clone())),
                Hold::Closed => return Err(Failure::failed("the replication has ended")),
                Hold::Elsewhere => {}
            }
            // It was there. If it is gone, an empty one does not take its place.
            match attach(&directory, Absent::Refuse, PATIENCE, Purpose::Command).await? {
                Attached::Remote(stream) => Ok(Way::There(stream)),
                Attached::Local(host) => {
                    let region = host.region.clone();
                    *hold = Hold::Here(host);
                    Ok(Way::Here(region))
                }
            }
        });
        looking.await.unwrap_or_else(|error| Err(Failure::failed(error)))
    }
}

#[async_trait]
impl RemoteProducer for Target {
    async fn open(
        &self,
        opening: Opening,
        events: SessionEvents,
    ) -> Result<OpenedSession, OpenError> {
        let unreachable = |failure: Failure| OpenError::Unreachable(failure.message.into());
        match self.way().await.map_err(unreachable)? {
            Way::Here(region) => EmbeddedRemote::new(region).open(opening, events).await,
            Way::There(stream) => receive::open(stream, opening, events).await,
        }
    }
}

fn is_empty(directory: &Path) -> bool {
    fs::read_dir(directory).map_or_else(|_| !directory.exists(), |mut files| files.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn closed_target_opens_no_region_again() {
        let temporary = tempfile::tempdir().unwrap();
        let directory = temporary.path().join("east");
        let target = Target::reach(directory.clone(), "west").await.unwrap();
        target.close().await.unwrap();
        assert!(target.way().await.is_err());
        Region::open(directory).await.expect("nobody holds it").close().await.unwrap();
    }
}

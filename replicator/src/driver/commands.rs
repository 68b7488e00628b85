//! Commands of operators, and the changes of the cursor that follow from them and from the policy.

use std::collections::BTreeMap;
use std::sync::Arc;

use georepl_cursor::{Kept, MarkDeleteError, PersistError, Position, StartAt};
use tokio::sync::oneshot;

use super::{Event, Replicator, ReplicatorConfig, Shared, Task};
use crate::change::{Change, Command, CommandRefused};
use crate::machine::Input;
use crate::producer::Prepared;
use crate::why::StopReason;

impl Replicator {
    /// Goes on from another place, back or forth, running or not, in a new incarnation: behind the
    /// place everything is sent again, also what the remote holds, and what lies before it is
    /// passed over. It is what ends [`Reason::RemoteBehind`](crate::Reason::RemoteBehind),
    /// [`Reason::RemoteAhead`](crate::Reason::RemoteAhead) and
    /// [`Reason::CursorBehind`](crate::Reason::CursorBehind). Returns how many entries are passed over.
    ///
    /// It returns when the change is durable; until then nothing is sent. If storage does not take
    /// it, it is tried again without an end, and [`Replicator::why`] says so. If the future is
    /// dropped it is carried out all the same.
    ///
    /// # Errors
    /// [`CommandRefused`].
    pub async fn seek(&self, to: StartAt) -> Result<u64, CommandRefused> {
        self.command(Command::Seek(to)).await
    }

    /// Passes over the next `entries` entries that are not acknowledged, for instance over one that
    /// the remote refuses, and returns how many there were. Those under way may be stored there all
    /// the same. As [`Replicator::seek`] otherwise; the incarnation stays.
    ///
    /// # Errors
    /// [`CommandRefused`].
    pub async fn skip(&self, entries: u64) -> Result<u64, CommandRefused> {
        self.command(Command::Skip(entries)).await
    }

    /// Passes over everything that the topic has now. As [`Replicator::skip`].
    ///
    /// # Errors
    /// [`CommandRefused`].
    pub async fn clear(&self) -> Result<u64, CommandRefused> {
        self.skip(u64::MAX).await
    }

    /// Sends an entry that lies in quarantine, before anything else. It returns when that is noted,
    /// durably; the entry is sent when what is under way is settled, also after a restart, and
    /// leaves the quarantine when the remote holds it. As [`Replicator::seek`] otherwise.
    ///
    /// # Errors
    /// [`CommandRefused`].
    pub async fn release(&self, position: Position) -> Result<(), CommandRefused> {
        self.command(Command::Release(position)).await.map(drop)
    }

    /// Gives an entry up that lies in quarantine: it is never sent. As [`Replicator::seek`]
    /// otherwise.
    ///
    /// # Errors
    /// [`CommandRefused`].
    pub async fn discard(&self, position: Position) -> Result<(), CommandRefused> {
        self.command(Command::Discard(position)).await.map(drop)
    }

    /// The entries that were passed over by the policy, and what is to become of them.
    pub fn quarantine(&self) -> BTreeMap<Position, Kept> {
        self.shared().machine.lock().progress().kept.clone()
    }

    async fn command(&self, command: Command) -> Result<u64, CommandRefused> {
        let (reply, answer) = oneshot::channel();
        let shared = self.shared();
        shared.events.push(Event::Command { command, reply });
        answer.await.unwrap_or_else(|_| {
            let ended = shared.machine.lock().ended().cloned();
            let gone = || StopReason::Failed("its task has ended".into());
            Err(CommandRefused::Ended(ended.unwrap_or_else(gone)))
        })
    }
}

impl Task {
    pub(super) fn stored(&self, stored: Result<(), MarkDeleteError>) -> Input<Prepared> {
        match stored {
            Ok(()) => {
                let acknowledged = self.shared.cursor.mark_delete_offset().get();
                Input::Stored(Ok(acknowledged.saturating_sub(self.changed_from.get())))
            }
            Err(MarkDeleteError::NotStored(error @ PersistError::Unavailable { .. })) => {
                Input::Stored(Err(error.to_string().into()))
            }
            // Closed, or taken by somebody else.
            Err(_) => Input::CursorClosed,
        }
    }
}

/// Makes the change. Not given up with the replicator: what is begun is stored.
pub(super) fn change(shared: &Arc<Shared>, change: Change) {
    let ReplicatorConfig { topic, remote_cluster, .. } = &shared.config;
    tracing::info!(%topic, remote = %remote_cluster, ?change, "the cursor is changed");
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        let cursor = &shared.cursor;
        let stored = match change {
            Change::Seek { to, .. } => {
                cursor.reset(to, |progress| change.apply(progress)).await.map(drop)
            }
            Change::Skip(entries) => cursor.skip(entries).await.map(drop),
            _ => cursor.store_progress(|progress| change.apply(progress)).await.map_err(Into::into),
        };
        shared.events.push(Event::Stored(stored));
    });
}

pub(super) fn persist(shared: &Arc<Shared>) {
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        let stored = shared.cursor.persist().await.map_err(Into::into);
        shared.events.push(Event::Stored(stored));
    });
}

pub(super) fn fetch(shared: &Arc<Shared>, position: Position) {
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        let fetched = shared.cursor.ledger().read_at(position).await;
        shared.events.push(Event::Fetched(fetched));
    });
}

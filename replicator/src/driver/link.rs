//! The driver's side of the remote: the session that is open, and the one that is being opened.

use std::sync::Arc;

use georepl_cursor::{ManagedCursor, Progress, ReadError};
use georepl_storage::MetadataError;
use tokio::task::JoinHandle;

use super::{Event, Shared};
use crate::machine::{Held, Input};
use crate::port::RemotePort;
use crate::producer::{
    EventSink, OpenedSession, Opening, Prepared, RemoteProducer, RemoteSession, SessionEvents,
};
use crate::session::{Incarnation, OpenError, Outgoing, Revision, SessionId, Source, Watermark};

/// The session that is open or being opened; at most one of each.
///
/// Outputs are carried out under the machine's lock. The code of the remote may be anybody's, and
/// ask the replicator something: it is called by [`Link::flush`], when the lock is released.
pub(super) struct Link {
    shared: Arc<Shared>,
    remote: Arc<dyn RemoteProducer>,
    opening: Option<(SessionId, JoinHandle<()>)>,
    session: Option<(SessionId, Box<dyn RemoteSession>)>,
    /// For the open session.
    unsent: Vec<Outgoing<Prepared>>,
    given_up: Vec<Box<dyn RemoteSession>>,
}

impl Link {
    pub(super) fn new(shared: Arc<Shared>, remote: Arc<dyn RemoteProducer>) -> Self {
        Self {
            shared,
            remote,
            opening: None,
            session: None,
            unsent: Vec::new(),
            given_up: Vec::new(),
        }
    }

    /// An opening was answered. False when it was given up meanwhile.
    pub(super) fn opened(&mut self, id: SessionId, session: Box<dyn RemoteSession>) -> bool {
        let expected = self.opening.as_ref().is_some_and(|(opening, _)| *opening == id);
        if expected {
            self.opening = None;
            self.session = Some((id, session));
        }
        expected
    }

    /// Calls the remote.
    pub(super) fn flush(&mut self) {
        self.given_up.clear();
        if !self.unsent.is_empty()
            && let Some((_, session)) = &mut self.session
        {
            session.submit(std::mem::take(&mut self.unsent));
        }
    }

    fn abort_opening(&mut self) {
        if let Some((_, task)) = self.opening.take() {
            task.abort();
        }
    }
}

impl RemotePort<Prepared> for Link {
    fn open(&mut self, session: SessionId, incarnation: Incarnation, revision: Revision) {
        self.abort_opening();
        let config = &self.shared.config;
        let source =
            Source { cluster: Arc::clone(&config.local_cluster), topic: Arc::clone(&config.topic) };
        let opening = Opening { source, session, incarnation, revision };
        let (shared, remote) = (Arc::clone(&self.shared), Arc::clone(&self.remote));
        let task = tokio::spawn(async move {
            let unanswered = Unanswered { shared: &shared, session };
            let event = opened(&shared, &*remote, opening).await;
            drop(unanswered);
            shared.events.push(event);
        });
        self.opening = Some((session, task));
    }

    fn send(&mut self, session: SessionId, batch: Vec<Outgoing<Prepared>>) {
        if self.session.as_ref().is_some_and(|(open, _)| *open == session) {
            if self.unsent.is_empty() {
                self.unsent = batch;
            } else {
                self.unsent.extend(batch);
            }
        }
    }

    fn close(&mut self, session: SessionId) {
        if self.opening.as_ref().is_some_and(|(opening, _)| *opening == session) {
            self.abort_opening();
        }
        if let Some((_, closed)) = self.session.take_if(|(open, _)| *open == session) {
            self.given_up.push(closed);
            self.unsent.clear();
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.abort_opening();
    }
}

/// An opening that the remote's code may end in a panic, which is no silence of the remote.
struct Unanswered<'a> {
    shared: &'a Shared,
    session: SessionId,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let message = "the code of the remote panicked while it opened a session; \
                           the panic's message is on standard error";
            let (session, error) = (self.session, OpenError::Unreachable(message.into()));
            self.shared.events.push(Event::Input(Input::OpenFailed { session, error }));
        }
    }
}

/// Opens a session, and compares what the remote holds with the source's own log.
async fn opened(shared: &Arc<Shared>, remote: &dyn RemoteProducer, opening: Opening) -> Event {
    let (id, next) = (opening.session, Incarnation(opening.incarnation.0 + 1));
    let sink: Arc<dyn EventSink> = shared.clone();
    let failed = |error| Event::Input(Input::OpenFailed { session: id, error });
    match remote.open(opening, SessionEvents::new(id, sink)).await {
        Ok(OpenedSession { watermark, session }) => match check(&shared.cursor, watermark).await {
            Ok(held) => {
                if held.checked(&shared.cursor.progress()).is_err() {
                    note_newest(shared, next).await;
                }
                Event::Opened { id, held, session }
            }
            // Not the remote's failure, and nothing that time would mend.
            Err(Unchecked { error: ReadError::Closed { .. }, .. }) => {
                Event::Input(Input::CursorClosed)
            }
            Err(unchecked) => failed(OpenError::Unreachable(unchecked.to_string().into())),
        },
        Err(error @ OpenError::LaterOwner { newest, .. }) => match follow(shared, newest).await {
            Ok(Some(owner)) => {
                let source = &shared.config.topic;
                tracing::warn!(%source, %newest, "the source was put back from an older copy");
                Event::Input(Input::SetBack { session: id, owner })
            }
            Ok(None) => failed(error),
            Err(message) => failed(OpenError::Unreachable(message.into())),
        },
        Err(OpenError::LaterIncarnation { newest, .. }) if newest.0 > NUMBER_MAX => {
            let message = format!("the remote names incarnation {}, which is none", newest.0);
            failed(OpenError::Unreachable(message.into()))
        }
        Err(error @ OpenError::LaterIncarnation { newest, .. }) => {
            note_newest(shared, newest).await;
            failed(error)
        }
        Err(error @ OpenError::LaterRevision { .. }) => {
            note_newest(shared, next).await;
            failed(error)
        }
        Err(error) => failed(error),
    }
}

/// For a seek by whoever has the cursor next: the incarnation that it begins is above this one. If it is not stored, the
/// next opening is answered in the same way.
async fn note_newest(shared: &Shared, newest: Incarnation) {
    let cursor = &shared.cursor;
    if cursor.progress().newest_incarnation >= newest.0 {
        return;
    }
    let note = |progress: &mut Progress| progress.newest_incarnation = newest.0;
    if let Err(unstored) = cursor.store_progress(note).await {
        tracing::warn!(newest = newest.0, "the incarnation was not noted: {unstored}");
    }
}

/// Puts the cursor's sessions after one that the remote knows, if this replicator still owns the
/// cursor: then that one is of a later state of the source than the one it was put back to, and nobody
/// will follow it there. Returns the owner from now on; none if there is a later one.
async fn follow(shared: &Shared, newest: SessionId) -> Result<Option<u64>, String> {
    let (cursor, taken) = (&shared.cursor, *shared.taken.lock());
    let before = cursor.progress().sessions_after;
    if newest.owner > NUMBER_MAX {
        return Ok(None);
    }
    let version = match cursor.keep_ownership(taken).await {
        Ok(Some(version)) => version,
        Ok(None) | Err(MetadataError::VersionConflict { .. } | MetadataError::NotFound { .. }) => {
            return Ok(None);
        }
        Err(error) => return Err(error.to_string()),
    };
    *shared.taken.lock() = version;
    let after = before.max(newest.owner);
    // Before any session that relies on it: the next owner begins from what is stored.
    let stored = cursor.store_progress(|progress| progress.sessions_after = after).await;
    stored.map_err(|error| error.to_string())?;
    Ok(Some(after + version))
}

/// No store gives out so many versions, and no source begins so many incarnations; a remote that knows one is not followed.
const NUMBER_MAX: u64 = 1 << 62;

#[derive(Debug, thiserror::Error)]
#[error("the entry that the remote holds last, {watermark}, was not read at the source: {error}")]
struct Unchecked {
    watermark: georepl_cursor::Position,
    error: ReadError,
}

/// A source that lost data may have used a position again for another entry; going on would leave
/// the two logs apart for good.
async fn check(cursor: &ManagedCursor, watermark: Option<Watermark>) -> Result<Held, Unchecked> {
    let Some(Watermark { position, checksum }) = watermark else {
        return Ok(Held::Through(None));
    };
    match cursor.ledger().read_at(position).await {
        Ok(own) if crc32c::crc32c(&own.payload) == checksum => Ok(Held::Through(Some(position))),
        // What was replicated may have been deleted here; there is nothing to compare it with.
        Err(ReadError::NoSuchEntry { .. }) if cursor.ledger().is_trimmed(position) => {
            Ok(Held::Through(Some(position)))
        }
        Ok(_) | Err(ReadError::NoSuchEntry { .. }) => Ok(Held::Foreign(position)),
        Err(error) => Err(Unchecked { watermark: position, error }),
    }
}

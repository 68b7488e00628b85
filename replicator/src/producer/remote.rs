//! The seam between a replicator and a remote cluster.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use crate::message::Spliced;
use crate::session::{Incarnation, OpenError, Outgoing, Receipt, SessionId, Source, Watermark};

/// A remote cluster.
#[async_trait]
pub trait RemoteProducer: Send + Sync {
    /// Opens a session for a source.
    ///
    /// It is answered when nothing that was sent in an older session of the source can land any
    /// more, and names what the remote then holds. From the call on, older sessions may be over.
    ///
    /// Cancel-safe: a dropped opening may still end older sessions, and nothing is ever sent in
    /// its own. Open again with a higher id.
    ///
    /// # Errors
    /// [`OpenError`].
    async fn open(
        &self,
        opening: Opening,
        events: SessionEvents,
    ) -> Result<OpenedSession, OpenError>;
}

/// An open session. Dropping it closes it; what was submitted before may still land until the
/// opening of a newer session is answered.
///
/// It is used, and dropped, by the task of the replicator, which it must not keep waiting.
pub trait RemoteSession: Send {
    /// Publishes entries in the order given. Never blocks: what may be outstanding is bounded by
    /// the replicator's window. Each entry is answered by a receipt, or the session is lost.
    fn submit(&mut self, batch: Vec<Outgoing<Prepared>>);
}

/// What is asked for by an opening.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opening {
    /// Whose entries will be sent.
    pub source: Source,
    /// The session's id, higher than all before it.
    pub session: SessionId,
    /// The source's incarnation.
    pub incarnation: Incarnation,
}

/// The answer to an opening.
pub struct OpenedSession {
    /// What the remote holds durably of the source's incarnation.
    pub watermark: Option<Watermark>,
    /// The session.
    pub session: Box<dyn RemoteSession>,
}

impl fmt::Debug for OpenedSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenedSession").field("watermark", &self.watermark).finish_non_exhaustive()
    }
}

/// An entry, ready to be published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepared {
    /// The frame before the payload.
    pub head: Bytes,
    /// The payload, shared with the stored entry.
    pub payload: Bytes,
    /// CRC32C of the source entry's stored bytes, which the remote keeps with its watermark.
    pub checksum: u32,
}

impl Prepared {
    /// A spliced entry whose stored bytes were `stored`.
    pub fn new(spliced: Spliced, stored: &[u8]) -> Self {
        let Spliced { head, payload } = spliced;
        Self { head, payload, checksum: crc32c::crc32c(stored) }
    }

    /// The frame's size in bytes.
    pub fn frame_bytes(&self) -> usize {
        self.head.len() + self.payload.len()
    }
}

/// What a remote says in a session, unasked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionEvent {
    /// Answers to sends, in any order.
    Receipts(Vec<Receipt>),
    /// The session is over; the reason is for people. What has no receipt may have landed or not.
    Lost(Arc<str>),
}

/// Where the events of sessions go.
pub trait EventSink: Send + Sync {
    /// Takes an event. It must only enqueue: it is called from the remote's tasks.
    fn session_event(&self, session: SessionId, event: SessionEvent);
}

/// Where the events of one session go.
#[derive(Clone)]
pub struct SessionEvents {
    session: SessionId,
    sink: Arc<dyn EventSink>,
}

impl SessionEvents {
    /// The events of `session` go to `sink`.
    pub fn new(session: SessionId, sink: Arc<dyn EventSink>) -> Self {
        Self { session, sink }
    }

    /// Which session it is.
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// The remote answers for entries.
    pub fn receipts(&self, receipts: Vec<Receipt>) {
        if !receipts.is_empty() {
            self.sink.session_event(self.session, SessionEvent::Receipts(receipts));
        }
    }

    /// The session is over.
    pub fn lost(&self, message: impl Into<Arc<str>>) {
        self.sink.session_event(self.session, SessionEvent::Lost(message.into()));
    }
}

impl fmt::Debug for SessionEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionEvents").field("session", &self.session).finish_non_exhaustive()
    }
}

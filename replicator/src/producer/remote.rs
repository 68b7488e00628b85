//! The seam between a replicator and a remote cluster.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use crate::message::Spliced;
use crate::session::{
    Incarnation, OpenError, Outgoing, Receipt, Revision, SessionId, Source, Watermark,
};

/// A remote cluster.
///
/// One of your own keeps a [`Target`](crate::target::Target) per source: it has the rules of sessions and watermarks.
/// This one holds what it is sent in memory, where an append is durable at once.
///
/// ```
/// use std::sync::{Arc, Mutex};
///
/// use async_trait::async_trait;
/// # use georepl_cursor::{ManagedCursor, ManagedLedger, ManagedLedgerConfig, StartAt};
/// # use georepl_replicator::message::{Frame, MessageMetadata, compose};
/// # use georepl_replicator::{Replicator, ReplicatorConfig};
/// use georepl_replicator::target::{self, Target, Verdict};
/// use georepl_replicator::{
///     Incarnation, OpenError, OpenedSession, Opening, Outgoing, Prepared, Receipt,
///     RemoteProducer, RemoteSession, Revision, SessionEvents, SessionId, Watermark,
/// };
/// # use georepl_storage::{
/// #     BookieId, ClientConfig, LedgerClient, MemoryBookieRegistry, MemoryBookies,
/// #     MemoryMetadataStore,
/// # };
///
/// /// A remote for one source. Clones are the same one.
/// #[derive(Clone)]
/// struct Shelf(Arc<Mutex<Kept>>);
///
/// struct Kept {
///     target: Target,
///     frames: Vec<Vec<u8>>,
/// }
///
/// struct ShelfSession {
///     shelf: Shelf,
///     events: SessionEvents,
/// }
///
/// #[async_trait]
/// impl RemoteProducer for Shelf {
///     async fn open(
///         &self,
///         Opening { session, incarnation, revision, .. }: Opening,
///         events: SessionEvents,
///     ) -> Result<OpenedSession, OpenError> {
///         let opening = self.0.lock().unwrap().target.open(session, incarnation, revision);
///         let watermark = match opening {
///             target::Opening::Answered(watermark) => watermark,
///             target::Opening::Refused(error) => return Err(error),
///             target::Opening::Waits => unreachable!("no append is in progress"),
///         };
///         let session = Box::new(ShelfSession { shelf: self.clone(), events });
///         Ok(OpenedSession { watermark, session })
///     }
/// }
///
/// impl RemoteSession for ShelfSession {
///     fn submit(&mut self, batch: Vec<Outgoing<Prepared>>) {
///         let mut receipts = Vec::new();
///         // The check of the session, the rule and the append are one step under one lock.
///         let mut kept = self.shelf.0.lock().unwrap();
///         for Outgoing { previous, position, entry } in batch {
///             let this = Watermark { position, checksum: entry.checksum };
///             match kept.target.offer(self.events.session(), previous, this) {
///                 Verdict::Take => {
///                     kept.frames.push([entry.head, entry.payload].concat());
///                     kept.target.durable(1);
///                     receipts.push(Receipt::Published(position));
///                 }
///                 Verdict::Duplicate => receipts.push(Receipt::Duplicate(position)),
///                 Verdict::InProgress => unreachable!("an append is durable at once"),
///                 Verdict::Gap => receipts.push(Receipt::Gap(position)),
///                 Verdict::Stale => return self.events.lost("a newer session was opened"),
///             }
///         }
///         self.events.receipts(receipts);
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let ids = ["b1", "b2", "b3"].map(BookieId::from);
/// # let bookies = Arc::new(MemoryBookies::new(ids.clone()));
/// # let store = Arc::new(MemoryMetadataStore::new());
/// # let registry = Arc::new(MemoryBookieRegistry::new(ids));
/// # let client = LedgerClient::new(bookies, store.clone(), registry, ClientConfig::default());
/// # let name = "persistent://acme/eu/orders";
/// # let topic = ManagedLedger::open(name, client, store, ManagedLedgerConfig::default()).await?;
/// let nothing = (SessionId::default(), Incarnation::default(), Revision::default());
/// let target = Target::new(nothing.0, nothing.1, nothing.2, None);
/// let shelf = Shelf(Arc::new(Mutex::new(Kept { target, frames: Vec::new() })));
/// let cursor = ManagedCursor::open(&topic, "pulsar.repl.shelf", StartAt::Earliest).await?;
/// let config = ReplicatorConfig::new("west", "shelf", name);
/// let replicator = Replicator::new(config, cursor, Arc::new(shelf.clone())).await?;
/// replicator.start();
///
/// topic.append(compose(&MessageMetadata::default(), b"first")).await?;
/// topic.append(compose(&MessageMetadata::default(), b"second")).await?;
/// replicator.drained().await?;
///
/// let frames = std::mem::take(&mut shelf.0.lock().unwrap().frames);
/// let payload = |frame: Vec<u8>| Frame::parse(frame.into()).map(|frame| frame.payload());
/// let payloads = frames.into_iter().map(payload).collect::<Result<Vec<_>, _>>()?;
/// assert_eq!(payloads, ["first", "second"]);
/// # Ok(())
/// # }
/// ```
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
    /// The revision of what the source has noted in it.
    pub revision: Revision,
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
    /// A spliced entry.
    pub fn new(spliced: Spliced) -> Self {
        let Spliced { head, payload, stored_checksum } = spliced;
        Self { head, payload, checksum: stored_checksum }
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
    /// What was sent waits, and nothing is wrong with it: why the remote takes no more for now, and
    /// what to do about it. Only for people; it is over with the next receipts.
    NotWritable(Arc<str>),
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

    /// What was sent waits until the remote takes more.
    pub fn not_writable(&self, message: impl Into<Arc<str>>) {
        self.sink.session_event(self.session, SessionEvent::NotWritable(message.into()));
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

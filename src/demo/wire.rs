//! The wire to east, behind the faults of the link: it delivers sends again, as networks do, and
//! counts what east refuses of them.
//!
//! A copy within its session is answered as a duplicate. One that comes when a newer session is
//! open has no answer; east ends its session, so that nothing of it can land any more.

use std::sync::Arc;

use async_trait::async_trait;
use georepl::replicator::{
    EmbeddedRemote, EventSink, OpenError, OpenedSession, Opening, Outgoing, Prepared, Receipt,
    RemoteProducer, RemoteSession, SessionEvent, SessionEvents, SessionId,
};
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::watch;

/// East, at the other end of the wire.
pub(crate) struct Wire {
    east: EmbeddedRemote,
    tap: Tap,
}

/// Switches a [`Wire`] and listens to it. Clones are the same tap.
#[derive(Clone, Default)]
pub(crate) struct Tap(Arc<Shared>);

/// Sends that east did not store because it had them or had ended their session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Refused {
    /// Answered as duplicates.
    pub(crate) duplicates: u64,
    /// Of a session that was over when they came.
    pub(crate) late: u64,
}

/// When the next batch comes a second time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    AtOnce,
    InNextSession,
}

#[derive(Default)]
struct Shared {
    repeat: Mutex<Option<Repeat>>,
    late: Mutex<Option<Late>>,
    refused: watch::Sender<Refused>,
}

/// A copy that is still on its way when the next session opens.
struct Late {
    session: SharedSession,
    ear: Arc<Ear>,
    batch: Vec<Outgoing<Prepared>>,
}

type SharedSession = Arc<Mutex<Box<dyn RemoteSession>>>;

impl Wire {
    pub(crate) fn new(east: EmbeddedRemote, tap: Tap) -> Self {
        Self { east, tap }
    }
}

impl Tap {
    /// Lets the next batch come a second time.
    pub(crate) fn repeat_next(&self, when: Repeat) {
        *self.0.repeat.lock() = Some(when);
    }

    /// What east refused so far.
    pub(crate) fn refused(&self) -> Refused {
        *self.0.refused.borrow()
    }

    /// Waits until what east refused satisfies `reached`. Cancel-safe.
    pub(crate) async fn until(&self, reached: impl Fn(&Refused) -> bool) -> Refused {
        let mut refused = self.0.refused.subscribe();
        let seen = refused.wait_for(|refused| reached(refused)).await;
        *seen.expect("the sender lives as long as this handle")
    }
}

#[async_trait]
impl RemoteProducer for Wire {
    async fn open(
        &self,
        opening: Opening,
        events: SessionEvents,
    ) -> Result<OpenedSession, OpenError> {
        let ear = Arc::new(Ear { events, tap: self.tap.clone(), hearing: Mutex::default() });
        let heard = SessionEvents::new(opening.session, ear.clone());
        let OpenedSession { watermark, session } = self.east.open(opening, heard).await?;
        // The session it was sent in is over by now.
        if let Some(Late { session, ear, batch }) = self.tap.0.late.lock().take() {
            ear.deliver_late(&session, batch);
        }
        let session = Arc::new(Mutex::new(session));
        Ok(OpenedSession { watermark, session: Box::new(WireSession { session, ear }) })
    }
}

struct WireSession {
    session: SharedSession,
    ear: Arc<Ear>,
}

impl RemoteSession for WireSession {
    fn submit(&mut self, batch: Vec<Outgoing<Prepared>>) {
        let shared = &self.ear.tap.0;
        let repeated = shared.repeat.lock().take();
        let copy = repeated.map(|when| (when, batch.clone()));
        self.session.lock().submit(batch);
        match copy {
            None => {}
            Some((Repeat::AtOnce, batch)) => self.session.lock().submit(batch),
            Some((Repeat::InNextSession, batch)) => {
                let (session, ear) = (self.session.clone(), self.ear.clone());
                *shared.late.lock() = Some(Late { session, ear, batch });
            }
        }
    }
}

/// Hears what east says in one session, and passes it on.
struct Ear {
    events: SessionEvents,
    tap: Tap,
    hearing: Mutex<Hearing>,
}

enum Hearing {
    /// With so many late sends under way.
    Open { late: u64 },
    /// East has ended the session.
    Over,
}

impl Default for Hearing {
    fn default() -> Self {
        Self::Open { late: 0 }
    }
}

impl Ear {
    /// What is late is refused when east says so, or at once when it has said so before.
    fn deliver_late(&self, session: &SharedSession, batch: Vec<Outgoing<Prepared>>) {
        let sends = batch.len() as u64;
        let mut hearing = self.hearing.lock();
        match &mut *hearing {
            Hearing::Open { late } => *late += sends,
            Hearing::Over => self.tap.0.refused.send_modify(|refused| refused.late += sends),
        }
        // Under the lock it only enqueues, so east's answer comes after.
        session.lock().submit(batch);
    }
}

impl EventSink for Ear {
    fn session_event(&self, _: SessionId, event: SessionEvent) {
        match event {
            SessionEvent::Receipts(receipts) => {
                let is_duplicate = |receipt: &&Receipt| matches!(receipt, Receipt::Duplicate(_));
                let duplicates = receipts.iter().filter(is_duplicate).count() as u64;
                // Passed on first: who waits for the count finds the receipts delivered.
                self.events.receipts(receipts);
                self.tap.0.refused.send_if_modified(|refused| {
                    refused.duplicates += duplicates;
                    duplicates > 0
                });
            }
            SessionEvent::NotWritable(message) => self.events.not_writable(message),
            SessionEvent::Lost(message) => {
                let before = std::mem::replace(&mut *self.hearing.lock(), Hearing::Over);
                if let Hearing::Open { late: late @ 1.. } = before {
                    self.tap.0.refused.send_modify(|refused| refused.late += late);
                }
                self.events.lost(message);
            }
        }
    }
}

//! The sessions of sources, one task each.

use std::pin::pin;
use std::sync::Arc;
use std::vec;

use bytes::BytesMut;
use futures::FutureExt;
use georepl_cursor::{AppendBatch, AppendError, AppendPermit};
use georepl_storage::Mailbox;
use tokio::sync::mpsc;

use super::{Checked, EmbeddedTopic, check};
use crate::message::{FrameError, Origin, Unstamped};
use crate::producer::remote::{Prepared, RemoteSession, SessionEvents};
use crate::producer::target::{Answered, Verdict};
use crate::session::{Incarnation, Outgoing, Receipt, Refusal, Watermark};

/// Serves a session that was opened, on the current runtime, until it is dropped.
pub(super) fn start(
    topic: &EmbeddedTopic,
    cluster: Arc<str>,
    incarnation: Incarnation,
    events: SessionEvents,
) -> Box<dyn RemoteSession> {
    let inbox = Arc::new(Mailbox::new());
    let topic = topic.clone();
    let serving = Serving { topic, cluster, incarnation, events, inbox: inbox.clone() };
    tokio::spawn(serving.run());
    Box::new(EmbeddedSession { inbox })
}

/// A session's sends on their way to its task.
struct EmbeddedSession {
    /// Bounded by the replicator's window.
    inbox: Arc<Mailbox<Outgoing<Prepared>>>,
}

impl RemoteSession for EmbeddedSession {
    fn submit(&mut self, batch: Vec<Outgoing<Prepared>>) {
        self.inbox.extend(batch);
    }
}

impl Drop for EmbeddedSession {
    fn drop(&mut self) {
        self.inbox.close();
    }
}

/// The task of one session.
struct Serving {
    topic: EmbeddedTopic,
    cluster: Arc<str>,
    incarnation: Incarnation,
    events: SessionEvents,
    inbox: Arc<Mailbox<Outgoing<Prepared>>>,
}

/// Sends that were decided on. The receipts leave when the append is durable; so do those of
/// duplicates among them, whose originals may be in an append before this one.
struct Decided {
    /// With the number of its entries.
    append: Option<(AppendBatch, usize)>,
    receipts: Vec<Receipt>,
}

/// Why a session's task takes no more sends.
enum Over {
    /// A newer session was opened.
    Stale,
    /// The source has dropped it.
    Dropped,
    /// The topic takes no appends.
    Failed(AppendError),
}

impl Serving {
    /// Runs until the session is dropped, or until it is lost. What was submitted before is decided
    /// if the topic takes it at once, and else given up.
    async fn run(self) {
        // Bounded by the topic's byte budget and the replicator's window.
        let (decided, decisions) = mpsc::unbounded_channel();
        tokio::join!(self.take_sends(decided), self.answer(decisions));
        // A session that was lost may be held for a while; what it submits goes nowhere.
        self.inbox.close();
    }

    async fn take_sends(&self, decided: mpsc::UnboundedSender<Decided>) {
        let mut sends = Vec::new();
        while self.inbox.recv_into(&mut sends).await.is_ok() {
            let mut rest = std::mem::take(&mut sends).into_iter();
            while !rest.as_slice().is_empty() {
                match self.decide(next_batch(&mut rest)).await {
                    // Nobody answers any more: the session was lost.
                    Ok(decision) => match decided.send(decision) {
                        Ok(()) => {}
                        Err(_) => return,
                    },
                    Err(Over::Stale) => {
                        return self.events.lost("a newer session of the source was opened");
                    }
                    Err(Over::Dropped) => return,
                    Err(Over::Failed(error)) => {
                        self.topic.0.append_failed(&error);
                        return self.events.lost(error.to_string());
                    }
                }
            }
        }
    }

    /// The right to append so many bytes. A topic at its quota may be so for long: the source is
    /// told, and when the session ends meanwhile, nobody goes on waiting for it.
    async fn reserve(&self, bytes: u64) -> Result<AppendPermit, Over> {
        let ledger = &self.topic.0.ledger;
        let mut permit = pin!(ledger.reserve(bytes));
        if let Some(permit) = permit.as_mut().now_or_never() {
            return permit.map_err(Over::Failed);
        }
        if let Some(full) = ledger.backlog_full() {
            self.events.not_writable(full.to_string());
        }
        // Safe to drop while waiting: nothing was decided.
        tokio::select! {
            biased;
            permit = permit => permit.map_err(Over::Failed),
            () = self.inbox.closed() => Err(Over::Dropped),
            () = self.superseded() => Err(Over::Stale),
        }
    }

    /// Waits until a newer session of the source is asked for.
    async fn superseded(&self) {
        loop {
            let (newer, newest) = {
                let state = self.topic.0.state.lock();
                let inbound = &state.sources[&self.cluster];
                // Made before the lock is released: what is asked for after it is not missed.
                (inbound.newer.clone().notified_owned(), inbound.target.newest())
            };
            if newest > self.events.session() {
                return;
            }
            newer.await;
        }
    }

    /// Session check, watermark rule and append are one step under the topic's lock.
    async fn decide(&self, batch: Vec<Outgoing<Prepared>>) -> Result<Decided, Over> {
        let inner = &*self.topic.0;
        let bytes = batch.iter().map(|sent| sent.entry.frame_bytes() + Unstamped::ROOM_BYTES).sum();
        let mut buffer = BytesMut::with_capacity(bytes);
        let checked: Vec<_> = batch.into_iter().map(|sent| self.check(&mut buffer, sent)).collect();
        let permit = self.reserve(bytes as u64).await?;

        let mut receipts = Vec::with_capacity(checked.len());
        let mut entries = Vec::with_capacity(checked.len());
        let mut state = inner.state.lock();
        let broker_timestamp = inner.timestamp_ms();
        for Outgoing { previous, position, entry } in checked {
            let (checksum, entry) = match entry {
                Ok(good) => good,
                // It is not offered, so it leaves no trace, and what follows it meets a gap.
                Err(refusal) => {
                    receipts.push(Receipt::Refused(position, refusal));
                    continue;
                }
            };
            let inbound = state.sources.get_mut(&self.cluster).expect("a source stays known");
            let entry_at_source = Watermark { position, checksum };
            receipts.push(
                match inbound.target.offer(self.events.session(), previous, entry_at_source) {
                    Verdict::Take => {
                        let origin = self.origin(entry_at_source);
                        entries.push(state.stamp(entry, broker_timestamp, Some(origin)));
                        Receipt::Published(position)
                    }
                    Verdict::Duplicate | Verdict::InProgress => Receipt::Duplicate(position),
                    Verdict::Gap => Receipt::Gap(position),
                    // The lock is held, so the first entry that is offered is stale or none is.
                    Verdict::Stale => return Err(Over::Stale),
                },
            );
        }
        if entries.is_empty() {
            return Ok(Decided { append: None, receipts });
        }
        let (taken, append) = (entries.len(), inner.ledger.append_batch(permit, entries));
        let inbound = state.sources.get_mut(&self.cluster).expect("a source stays known");
        inbound.in_doubt.extend((0..taken as u64).map(|n| append.first_offset().plus(n)));
        drop(state);
        self.topic.checkpoint_if_due();
        Ok(Decided { append: Some((append, taken)), receipts })
    }

    /// By which the entry is known again when the topic is opened.
    fn origin(&self, Watermark { position, checksum }: Watermark) -> Origin {
        let (ledger, entry) = (position.ledger.get(), position.entry.get());
        Origin { incarnation: self.incarnation.0, ledger, entry, checksum }
    }

    fn check(
        &self,
        buffer: &mut BytesMut,
        sent: Outgoing<Prepared>,
    ) -> Outgoing<Result<(u32, Checked), Refusal>> {
        let Outgoing { previous, position, entry } = sent;
        let checksum = entry.checksum;
        let entry = match self.checked(buffer, entry) {
            Ok(checked) => Ok((checksum, checked)),
            Err(message) => Err(Refusal { message: message.into() }),
        };
        Outgoing { previous, position, entry }
    }

    /// The entry, or what is wrong with it.
    fn checked(&self, buffer: &mut BytesMut, entry: Prepared) -> Result<Checked, String> {
        let bytes_max = self.topic.0.ledger.entry_bytes_max() - Unstamped::ROOM_BYTES;
        let bytes = entry.frame_bytes();
        if bytes > bytes_max {
            return Err(format!("a frame of {bytes} bytes is above the limit of {bytes_max}"));
        }
        let words = |error: FrameError| error.to_string();
        let (frame, message) = check(buffer, entry.head, &entry.payload).map_err(words)?;
        let facts = message.facts().map_err(words)?;
        // By this name the entry is known again when the topic is opened.
        if facts.replicated_from() != Some(&*self.cluster) {
            return Err(format!("the message does not say that it is from {}", self.cluster));
        }
        Ok(Checked { frame, messages: facts.messages() })
    }

    async fn answer(&self, mut decisions: mpsc::UnboundedReceiver<Decided>) {
        while let Some(Decided { append, receipts }) = decisions.recv().await {
            if let Some((append, taken)) = append {
                match append.await {
                    Ok(_) => self.durable(taken),
                    Err(error) => {
                        self.topic.0.append_failed(&error);
                        return self.events.lost(error.to_string());
                    }
                }
            }
            self.events.receipts(receipts);
        }
    }

    fn durable(&self, appends: usize) {
        let mut state = self.topic.0.state.lock();
        // After a failure the target counts no appends any more: what is stored is read from the
        // log when it is opened again.
        if state.failed.is_some() {
            return;
        }
        let inbound = state.sources.get_mut(&self.cluster).expect("a source stays known");
        inbound.in_doubt.drain(..appends);
        if let Some(Answered { session, watermark }) = inbound.target.durable(appends)
            && let Some((waits, waiting)) = inbound.waiting.take()
        {
            assert_eq!(waits, session, "only the newest opening waits");
            // Nobody may wait any more; then the session is open and nothing is sent in it.
            let _ = waiting.send(Ok(watermark));
        }
    }
}

/// The next sends up to [`BATCH_BYTES_MAX`], at least one if there is any.
pub(in crate::producer) fn next_batch(
    sends: &mut vec::IntoIter<Outgoing<Prepared>>,
) -> Vec<Outgoing<Prepared>> {
    let mut bytes = 0;
    let fits = |sent: &&Outgoing<Prepared>| {
        bytes += sent.entry.frame_bytes();
        bytes <= BATCH_BYTES_MAX
    };
    let count = sends.as_slice().iter().take_while(fits).count().max(1);
    sends.take(count).collect()
}

/// The largest append of a session: many entries, and a small part of the topic's byte budget, which
/// it must not take from local publishers at once.
pub(in crate::producer) const BATCH_BYTES_MAX: usize = 1 << 20;

//! A remote with faults that are switched on from outside, for demonstrations and tests.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use georepl_cursor::Position;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::remote::{
    EventSink, OpenedSession, Opening, Prepared, RemoteProducer, RemoteSession, SessionEvent,
    SessionEvents,
};
use crate::session::{OpenError, Outgoing, Receipt, Refusal, SessionId};

/// A remote behind a link that can fail in every way that links and remotes fail.
#[derive(Debug)]
pub struct FaultyRemote<R> {
    inner: R,
    faults: RemoteFaults,
}

impl<R: RemoteProducer> FaultyRemote<R> {
    /// `inner`, with the faults that `faults` is told.
    pub fn new(inner: R, faults: RemoteFaults) -> Self {
        Self { inner, faults }
    }
}

/// Switches the faults of the remotes it was given to. Clones are the same switch.
#[derive(Clone, Default)]
pub struct RemoteFaults(Arc<Shared>);

/// What the faults did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Openings that failed.
    pub opens_failed: u64,
    /// Sessions whose link was cut.
    pub sessions_cut: u64,
    /// Sends that were refused.
    pub entries_refused: u64,
    /// Receipts that were held back.
    pub receipts_held: u64,
    /// Receipts that came twice.
    pub receipts_duplicated: u64,
    /// Receipts that never came.
    pub receipts_lost: u64,
}

/// In which order held receipts are delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseOrder {
    /// As the remote gave them.
    Given,
    /// The last one first.
    Reversed,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    counts: watch::Sender<FaultCounts>,
}

#[derive(Default)]
struct State {
    opens_to_fail: u32,
    heads_to_refuse: u32,
    refused_positions: BTreeSet<Position>,
    delivery: Delivery,
    links: BTreeMap<LinkId, Link>,
    next_link: u64,
}

/// How receipts travel.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Delivery {
    #[default]
    Once,
    Twice,
    Held,
}

/// Tells links apart; ids of sessions repeat across sources.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct LinkId(u64);

struct Link {
    events: SessionEvents,
    hearing: Hearing,
    head: Head,
    held: Vec<Receipt>,
}

/// Whether the source hears the remote.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hearing {
    Fine,
    /// Sends arrive, answers do not.
    HalfOpen,
}

/// Whether an entry of this session was refused as its head.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Head {
    Untouched,
    Refused,
}

impl RemoteFaults {
    /// No faults yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets the next `n` openings fail as unreachable.
    pub fn fail_opens(&self, n: u32) {
        self.0.state.lock().opens_to_fail = n;
    }

    /// Cuts every open session. Receipts that are under way are lost; what was sent may land.
    pub fn cut_link(&self) {
        let links = std::mem::take(&mut self.0.state.lock().links);
        self.count(|counts| {
            counts.sessions_cut += links.len() as u64;
            counts.receipts_lost += links.values().map(|link| link.held.len() as u64).sum::<u64>();
        });
        for link in links.into_values().filter(|link| link.hearing == Hearing::Fine) {
            link.events.lost("the link was cut");
        }
    }

    /// From now on the open sessions hear nothing, neither answers nor errors. What they send
    /// arrives. Sessions that are opened later are not touched.
    pub fn half_open(&self) {
        for link in self.0.state.lock().links.values_mut() {
            link.hearing = Hearing::HalfOpen;
        }
    }

    /// Refuses the entry that is sent next, in each of the next `n` sessions that send one. What
    /// follows it in its session reaches the remote, which answers with a gap.
    pub fn refuse_next(&self, n: u32) {
        self.0.state.lock().heads_to_refuse = n;
    }

    /// Refuses the entry at `position` whenever it is sent.
    pub fn refuse_position(&self, position: Position) {
        self.0.state.lock().refused_positions.insert(position);
    }

    /// Ends [`RemoteFaults::refuse_position`].
    pub fn allow_position(&self, position: Position) {
        self.0.state.lock().refused_positions.remove(&position);
    }

    /// Holds receipts back from now on.
    pub fn hold_receipts(&self) {
        self.0.state.lock().delivery = Delivery::Held;
    }

    /// Delivers every receipt twice from now on.
    pub fn duplicate_receipts(&self) {
        self.0.state.lock().delivery = Delivery::Twice;
    }

    /// Delivers the receipts that were held, and later ones once and at once.
    pub fn release_receipts(&self, order: ReleaseOrder) {
        let mut state = self.0.state.lock();
        state.delivery = Delivery::Once;
        // Delivered under the lock, so that later receipts cannot overtake them. A sink only
        // enqueues.
        for link in state.links.values_mut().filter(|link| link.hearing == Hearing::Fine) {
            let mut receipts = std::mem::take(&mut link.held);
            if order == ReleaseOrder::Reversed {
                receipts.reverse();
            }
            link.events.receipts(receipts);
        }
    }

    /// What was done so far.
    pub fn counts(&self) -> FaultCounts {
        *self.0.counts.borrow()
    }

    /// Waits until what was done satisfies `reached`. Cancel-safe.
    pub async fn until(&self, reached: impl Fn(&FaultCounts) -> bool) -> FaultCounts {
        let mut counts = self.0.counts.subscribe();
        let seen = counts.wait_for(|counts| reached(counts)).await;
        *seen.expect("the sender lives as long as this handle")
    }

    fn count(&self, add: impl FnOnce(&mut FaultCounts)) {
        self.0.counts.send_modify(add);
    }

    fn add_link(&self, events: SessionEvents) -> LinkId {
        let mut state = self.0.state.lock();
        let id = LinkId(state.next_link);
        state.next_link += 1;
        let link = Link { events, hearing: Hearing::Fine, head: Head::Untouched, held: Vec::new() };
        state.links.insert(id, link);
        id
    }

    /// Keeps back what is refused. None when the link is cut.
    fn pass(&self, id: LinkId, batch: Vec<Outgoing<Prepared>>) -> Option<Vec<Outgoing<Prepared>>> {
        let mut state = self.0.state.lock();
        let State { links, heads_to_refuse, refused_positions, .. } = &mut *state;
        let link = links.get_mut(&id)?;
        let mut refused = Vec::new();
        let mut refuse = |position: Position| {
            let as_head = link.head == Head::Untouched && *heads_to_refuse > 0;
            if as_head {
                *heads_to_refuse -= 1;
                link.head = Head::Refused;
            } else if !refused_positions.contains(&position) {
                return false;
            }
            let refusal = Refusal { message: "refused by an injected fault".into() };
            refused.push(Receipt::Refused(position, refusal));
            true
        };
        let passed = batch.into_iter().filter(|sent| !refuse(sent.position)).collect();
        drop(state);
        self.count(|counts| counts.entries_refused += refused.len() as u64);
        self.deliver(id, refused);
        Some(passed)
    }

    fn deliver(&self, id: LinkId, receipts: Vec<Receipt>) {
        let n = receipts.len() as u64;
        let mut state = self.0.state.lock();
        let delivery = state.delivery;
        match (state.links.get_mut(&id), delivery) {
            (None, _) | (Some(Link { hearing: Hearing::HalfOpen, .. }), _) => {
                self.count(|counts| counts.receipts_lost += n);
            }
            (Some(link), Delivery::Once) => link.events.receipts(receipts),
            (Some(link), Delivery::Twice) => {
                link.events.receipts(receipts.clone());
                link.events.receipts(receipts);
                self.count(|counts| counts.receipts_duplicated += n);
            }
            (Some(link), Delivery::Held) => {
                link.held.extend(receipts);
                self.count(|counts| counts.receipts_held += n);
            }
        }
    }
}

impl fmt::Debug for RemoteFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteFaults").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

#[async_trait]
impl<R: RemoteProducer> RemoteProducer for FaultyRemote<R> {
    async fn open(
        &self,
        opening: Opening,
        events: SessionEvents,
    ) -> Result<OpenedSession, OpenError> {
        let faults = &self.faults;
        let fails = {
            let mut state = faults.0.state.lock();
            let fails = state.opens_to_fail > 0;
            state.opens_to_fail -= u32::from(fails);
            fails
        };
        if fails {
            faults.count(|counts| counts.opens_failed += 1);
            return Err(OpenError::Unreachable("an injected fault".into()));
        }
        let session = opening.session;
        let end = LinkEnd { faults: faults.clone(), id: faults.add_link(events) };
        let end = Arc::new(end);
        let opened = self.inner.open(opening, SessionEvents::new(session, end.clone())).await?;
        if !faults.0.state.lock().links.contains_key(&end.id) {
            return Err(OpenError::Unreachable("the link was cut".into()));
        }
        let session = Box::new(FaultySession { end, inner: opened.session });
        Ok(OpenedSession { watermark: opened.watermark, session })
    }
}

/// The remote's end of a link. The link goes when both the session and the remote let go of it.
struct LinkEnd {
    faults: RemoteFaults,
    id: LinkId,
}

impl LinkEnd {
    /// Unless the source hears nothing.
    fn tell(&self, say: impl FnOnce(&SessionEvents)) {
        let state = self.faults.0.state.lock();
        if let Some(link) = state.links.get(&self.id)
            && link.hearing == Hearing::Fine
        {
            say(&link.events);
        }
    }
}

impl EventSink for LinkEnd {
    fn session_event(&self, _: SessionId, event: SessionEvent) {
        match event {
            SessionEvent::Receipts(receipts) => self.faults.deliver(self.id, receipts),
            SessionEvent::NotWritable(message) => {
                self.tell(|events| events.not_writable(message));
            }
            SessionEvent::Lost(message) => self.tell(|events| events.lost(message)),
        }
    }
}

impl Drop for LinkEnd {
    fn drop(&mut self) {
        self.faults.0.state.lock().links.remove(&self.id);
    }
}

struct FaultySession {
    end: Arc<LinkEnd>,
    inner: Box<dyn RemoteSession>,
}

impl RemoteSession for FaultySession {
    fn submit(&mut self, batch: Vec<Outgoing<Prepared>>) {
        if let Some(passed) = self.end.faults.pass(self.end.id, batch) {
            self.inner.submit(passed);
        }
    }
}

//! The cursors of a topic: who is woken, and what must stay for whom.
//!
//! Locks are taken in this order: register, a cursor's state, the topic's state.

use std::any::Any;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use georepl_storage::MetadataError;

use super::error::ChangeError;
use super::{Door, Inner, Intake, ManagedLedger, Refusal};
use crate::chain::Chain;
use crate::names::{OWN_CURSORS, decoded};
use crate::position::{Offset, Place};
use crate::progress::Progress;
use crate::records::CursorRecord;
use crate::stats::CursorInternalStats;
use crate::store::Store;

/// What a cursor is to its topic. Called without any lock of the topic held.
pub(crate) trait Registered: Any + Send + Sync {
    /// The end of the topic moved. The cursor asks for it under its own lock, so that calls
    /// which overtake each other cannot make it go back.
    fn appended(self: Arc<Self>);
    /// No entry will follow.
    fn terminated(self: Arc<Self>);
    /// The topic was closed. Reads end at once; the future ends when the state is stored, or cannot
    /// be.
    fn closed(self: Arc<Self>) -> Pin<Box<dyn Future<Output = ()> + Send>>;
    /// Everything before `start` was deleted.
    fn trimmed(self: Arc<Self>, start: Offset);
    /// For the topic's stats; `opened_at` is where the topic ended when it was opened.
    fn stats(&self, opened_at: Offset) -> CursorInternalStats;
}

/// A cursor, open or not.
pub(super) struct Registration {
    /// Dangling while it is not open.
    cursor: Weak<dyn Registered>,
    /// The first entry that must stay in the topic for it, as far as is stored; none for a reader.
    floor: Option<Offset>,
}

impl Registration {
    /// Whether it has a record.
    pub(super) const fn is_durable(&self) -> bool {
        self.floor.is_some()
    }
}

/// Stands for a cursor that is not open.
struct Nobody;

impl Registered for Nobody {
    fn appended(self: Arc<Self>) {}
    fn terminated(self: Arc<Self>) {}
    fn closed(self: Arc<Self>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        unreachable!("nobody is no cursor")
    }
    fn trimmed(self: Arc<Self>, _: Offset) {}
    fn stats(&self, _: Offset) -> CursorInternalStats {
        unreachable!("nobody is no cursor")
    }
}

/// The cursors that the store lists. One whose state is all in its record holds back what that says. The newest state of
/// any other is unknown until it is opened: it holds back everything.
pub(super) async fn listed(
    store: &Store,
    topic_key: &str,
    chain: &Chain,
) -> Result<BTreeMap<String, Registration>, MetadataError> {
    let mut cursors = BTreeMap::new();
    for child in store.children(topic_key).await? {
        let stored = store.get(&format!("{topic_key}/{child}")).await?;
        let floor = stored.and_then(|stored| floor_of(&child, &stored.value, chain));
        let cursor: Weak<dyn Registered> = Weak::<Nobody>::new();
        let floor = Some(floor.unwrap_or_else(|| chain.start()));
        cursors.insert(decoded(&child), Registration { cursor, floor });
    }
    Ok(cursors)
}

/// What must stay for a cursor by its record; none when that does not tell.
fn floor_of(child: &str, record: &[u8], chain: &Chain) -> Option<Offset> {
    let state = match CursorRecord::decode(record) {
        Ok(CursorRecord { cursor_ledger: None, state, .. }) => state,
        Ok(_) => return None,
        Err(error) => {
            tracing::warn!(cursor = child, "holds back its whole topic: {error}");
            return None;
        }
    };
    let acknowledged = chain.locate(state.mark_delete?).offset();
    let progress = Progress::from_properties(state.properties).ok()?;
    let kept = progress.kept.into_keys().next();
    let kept = kept.map(|kept| chain.locate(Place::before(kept)).offset());
    Some(kept.map_or(acknowledged, |kept| kept.min(acknowledged)))
}

impl ManagedLedger {
    /// Held while a cursor is looked up and, if there is none, opened and registered; and while
    /// entries are deleted, so that no cursor begins where they were.
    pub(crate) async fn opening(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.0.opening.lock().await
    }

    /// Whether this is the topic's owner still, as far as the store can tell: only then may its cursors be touched.
    pub(crate) async fn still_owned(&self) -> Result<(), ChangeError> {
        let inner = &self.0;
        {
            let state = inner.state.lock();
            match &state.intake {
                Intake::Refused(
                    refusal @ (Refusal::Fenced { .. }
                    | Refusal::Lost { .. }
                    | Refusal::Closed { .. }),
                ) => return Err(refusal.clone().into()),
                Intake::Open
                | Intake::Refused(Refusal::WriteFailed { .. } | Refusal::Terminated { .. }) => {}
            }
        }
        let checked = inner.record.lock().await.own.check(&inner.store).await;
        inner.changed(checked)
    }

    /// The names of the cursors that have a record.
    pub fn cursors(&self) -> Vec<String> {
        let cursors = self.0.cursors.lock();
        let durable = cursors.iter().filter(|(_, cursor)| cursor.is_durable());
        durable.map(|(name, _)| name.clone()).collect()
    }

    /// The cursor of this name, if it is open.
    pub(crate) fn registered(&self, name: &str) -> Option<Arc<dyn Registered>> {
        self.0.cursors.lock().get(name)?.cursor.upgrade()
    }

    /// Wakes the cursor from now on, and keeps what it holds back; none for a reader. False when
    /// the topic is closed.
    pub(crate) fn register(
        &self,
        name: &str,
        cursor: Weak<dyn Registered>,
        floor: Option<Offset>,
    ) -> bool {
        {
            let mut cursors = self.0.cursors.lock();
            // Readers that were dropped.
            cursors.retain(|_, known| known.is_durable() || known.cursor.strong_count() > 0);
            if self.0.state.lock().door == Door::Closed {
                return false;
            }
            cursors.insert(name.to_owned(), Registration { cursor, floor });
        }
        // Until its state was found, it may have held back more: it moves no more if it has acknowledged all.
        self.0.let_go();
        true
    }

    /// The cursor is open no more, unless its name belongs to a later one by now. What it holds
    /// back stays.
    pub(crate) fn unregister(&self, name: &str, cursor: &Weak<dyn Registered>) {
        let mut cursors = self.0.cursors.lock();
        if let Some(known) = cursors.get_mut(name)
            && known.cursor.ptr_eq(cursor)
        {
            known.cursor = Weak::<Nobody>::new();
        }
    }

    /// There is no such cursor any more.
    pub(crate) fn forget(&self, name: &str) {
        self.0.cursors.lock().remove(name);
        self.0.let_go();
    }

    /// What the cursor holds back has changed. `floor` says it now: it is asked for while nobody else can say something,
    /// because what was true before a cursor went back would let go what it needs. Nothing changes if the name belongs
    /// to another cursor, or to one that is not open, by now.
    pub(crate) fn holds_back(
        &self,
        name: &str,
        cursor: &Weak<dyn Registered>,
        floor: impl FnOnce() -> Offset,
    ) {
        if let Some(known) = self.0.cursors.lock().get_mut(name)
            && known.cursor.ptr_eq(cursor)
        {
            known.floor = Some(floor());
        }
        self.0.let_go();
    }
}

impl Inner {
    /// The first entry that must stay for some cursor; the end when none holds anything back.
    pub(super) fn floor(&self) -> Offset {
        let floors = self.cursors.lock().values().filter_map(|cursor| cursor.floor).min();
        floors.unwrap_or_else(|| self.end())
    }

    /// The first entry that some reader of the topic has not acknowledged; the end when there is none.
    pub(super) fn backlog_start(&self) -> Offset {
        let cursors = self.cursors.lock();
        let readers = cursors.iter().filter(|(name, _)| !name.starts_with(OWN_CURSORS));
        let floor = readers.filter_map(|(_, cursor)| cursor.floor).min();
        drop(cursors);
        floor.unwrap_or_else(|| self.end())
    }

    /// What some cursor holds back, or a ledger's end, has changed: publishers that wait look again, and what nobody
    /// needs is deleted.
    pub(super) fn let_go(self: &Arc<Self>) {
        self.floor_moved.notify_waiters();
        if self.trim_is_due() && !self.trimming.swap(true, Ordering::AcqRel) {
            self.delete_in_task(trim_while_due(Arc::downgrade(self)));
        }
    }

    pub(super) fn registered_by_name(
        &self,
    ) -> impl Iterator<Item = (String, Arc<dyn Registered>)> + use<> {
        let cursors = self.cursors.lock();
        let open = cursors.iter().filter_map(|(name, c)| Some((name.clone(), c.cursor.upgrade()?)));
        open.collect::<Vec<_>>().into_iter()
    }

    pub(super) fn wake_cursors(&self) {
        // Cursors are woken under the lock of the register alone. One that was dropped meanwhile
        // is not dropped under it: nothing that a cursor's end does needs the register.
        for known in self.cursors.lock().values() {
            if let Some(cursor) = known.cursor.upgrade() {
                cursor.appended();
            }
        }
    }
}

/// Deletes what nobody needs until there is no more of it. A store that fails is asked again: a topic on which nothing
/// moves has nobody else to do so.
async fn trim_while_due(topic: Weak<Inner>) {
    loop {
        let Some(inner) = topic.upgrade() else { return };
        let trimmed = inner.trim().await;
        if let Err(error) = &trimmed {
            tracing::warn!(topic = &*inner.topic, "nothing was deleted: {error}");
        }
        drop(inner);
        if let Err(ChangeError::Metadata(_)) = trimmed {
            tokio::time::sleep(TRIM_AGAIN_AFTER).await;
        }
        let Some(inner) = topic.upgrade() else { return };
        inner.trimming.store(false, Ordering::Release);
        // Who moved on meanwhile found this task at work.
        if !inner.trim_is_due() || inner.trimming.swap(true, Ordering::AcqRel) {
            return;
        }
    }
}

/// Long enough for a store that is away, and short beside the time for which ledgers are kept.
const TRIM_AGAIN_AFTER: Duration = Duration::from_secs(10);

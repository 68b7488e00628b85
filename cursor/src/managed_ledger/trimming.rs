//! What a topic notes of itself, and what it forgets: properties, retention, the end.
//!
//! Ledgers are deleted oldest first, never the last, and only when every cursor has acknowledged them durably and
//! retention has let them go. First the record stops listing them and notes that they are to be deleted, in one
//! compare-and-set; a crash in between leaves them to the next owner.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use georepl_storage::{LedgerId, MetadataError};
use tokio::time::Instant;

use super::error::{AppendError, BacklogFull, ChangeError, CloseError, Refusal};
use super::{Inner, Intake, ManagedLedger, State, now_ms};
use crate::chain::LedgerState;
use crate::deletion::deleted;
use crate::own_record::OwnRecord;
use crate::position::{Offset, Place, Position};
use crate::records::{ListedLedger, TopicRecord};
use crate::store::Store;

/// For how long ledgers stay that every cursor has acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Younger than this, from when they were closed; none without a limit.
    pub time: Option<Duration>,
    /// And as long as what follows them has fewer bytes of payload than this; none without a limit.
    pub bytes: Option<u64>,
}

impl Retention {
    /// Nothing is deleted.
    pub const FOREVER: Self = Self { time: None, bytes: None };
    /// What every cursor has acknowledged is deleted.
    pub const NONE: Self = Self { time: Some(Duration::ZERO), bytes: Some(0) };

    /// As a property of a topic: milliseconds, `/`, bytes; `-` without a limit.
    fn to_property(self) -> String {
        let text = |limit: Option<u128>| limit.map_or_else(|| "-".to_owned(), |n| n.to_string());
        format!(
            "{}/{}",
            text(self.time.map(|time| time.as_millis())),
            text(self.bytes.map(u128::from))
        )
    }

    /// From a property of a topic; none if it is not understood.
    fn from_property(text: &str) -> Option<Self> {
        let limit = |text: &str| match text {
            "-" => Some(None),
            number => number.parse::<u64>().ok().map(Some),
        };
        let (time, bytes) = text.split_once('/')?;
        let time = limit(time)?.map(Duration::from_millis);
        Some(Self { time, bytes: limit(bytes)? })
    }
}

/// What retention lets go of a topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expired {
    /// Whole ledgers, the oldest.
    pub ledgers: u64,
    /// Entries in them.
    pub entries: u64,
}

/// How many bytes may wait for the slowest cursor, and what becomes of publishers beyond it. Cursors of the topic's own
/// ([`OWN_CURSORS`](crate::OWN_CURSORS)) do not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BacklogQuota {
    /// Bytes of payload from what the slowest cursor has acknowledged up to the end.
    pub bytes: u64,
    /// What becomes of publishers.
    pub beyond: BeyondQuota,
}

/// What becomes of publishers whose topic is at its quota. Nothing that was published is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BeyondQuota {
    /// They wait until the slowest cursor has moved on.
    Hold,
    /// Their appends are refused.
    Refuse,
}

/// The topic's record as its owner knows it. Whoever holds it may change the record.
pub(super) struct Recorded {
    pub(super) own: OwnRecord,
    pub(super) noted: Noted,
    deletion: Deletion,
    token: String,
}

/// What the record says besides its ledgers. It is changed by putting another, so that a put which fails or is dropped
/// leaves nothing behind that is not stored.
#[derive(Clone)]
pub(super) struct Noted {
    properties: BTreeMap<String, String>,
    pub(super) terminated: Option<Place>,
    /// Ledgers that the record lists no more and that may still be there.
    pub(super) deleting: Vec<LedgerId>,
    /// The topic's own, as it is stored: a later version may mean something by it that is not understood here. None if
    /// that of its owner's settings applies.
    retention: Option<String>,
}

/// Whether it is known what became of the last deletion.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Deletion {
    Decided,
    /// The store did not answer: the record may come to list less than it seems to.
    InDoubt,
}

/// The property with the token of the owner that wrote the record: nobody else ever writes the same bytes.
const OWNER: &str = "georepl.owner";
/// The property with the ledgers that are to be deleted.
const DELETING: &str = "georepl.deleting";
/// The property with the topic's own retention.
const RETENTION: &str = "georepl.retention";

/// Ledgers that are noted as to be deleted. A number that is none can only be somebody else's: it is left alone.
fn deleting_in(noted: Option<&str>) -> impl Iterator<Item = LedgerId> {
    let noted = noted.unwrap_or_default().split(',');
    noted.filter_map(|id| id.parse().ok()).map(LedgerId)
}

/// Whether the record of a topic lists a ledger, or notes that it is to be deleted.
pub(crate) fn has_in_record(record: &TopicRecord, ledger: LedgerId) -> bool {
    let mut deleting = deleting_in(record.properties.get(DELETING).map(String::as_str));
    record.ledgers.iter().any(|listed| listed.ledger == ledger)
        || deleting.any(|noted| noted == ledger)
}

impl Recorded {
    /// What was found under the topic's key, of which `record` was read.
    pub(super) fn new(own: OwnRecord, record: &TopicRecord) -> Self {
        let mut properties = record.properties.clone();
        properties.remove(OWNER);
        let deleting = deleting_in(properties.remove(DELETING).as_deref()).collect();
        let retention = properties.remove(RETENTION);
        let noted = Noted { properties, terminated: record.terminated, deleting, retention };
        let token = format!("{:016x}", fastrand::u64(..));
        Self { own, noted, deletion: Deletion::Decided, token }
    }

    /// Lists these ledgers, and notes what is noted.
    pub(super) async fn put(
        &mut self,
        store: &Store,
        ledgers: Vec<ListedLedger>,
    ) -> Result<(), MetadataError> {
        self.put_noting(store, ledgers, self.noted.clone()).await
    }

    /// Lists these ledgers, and notes this from then on.
    pub(super) async fn put_noting(
        &mut self,
        store: &Store,
        ledgers: Vec<ListedLedger>,
        noted: Noted,
    ) -> Result<(), MetadataError> {
        let mut properties = noted.properties.clone();
        properties.insert(OWNER.into(), self.token.clone());
        if !noted.deleting.is_empty() {
            let ids: Vec<_> =
                noted.deleting.iter().map(|ledger| ledger.get().to_string()).collect();
            properties.insert(DELETING.into(), ids.join(","));
        }
        if let Some(retention) = &noted.retention {
            properties.insert(RETENTION.into(), retention.clone());
        }
        let record = TopicRecord { ledgers, terminated: noted.terminated, properties };
        self.own.put(store, record.encode()).await?;
        self.noted = noted;
        // Nothing that was put earlier can land any more.
        self.deletion = Deletion::Decided;
        Ok(())
    }

    /// Lists these ledgers, and notes that those which are listed no more are to be deleted.
    async fn put_deleting(
        &mut self,
        store: &Store,
        kept: Vec<ListedLedger>,
        deleted: impl IntoIterator<Item = LedgerId>,
    ) -> Result<(), MetadataError> {
        let mut noted = self.noted.clone();
        for ledger in deleted {
            if !noted.deleting.contains(&ledger) {
                noted.deleting.push(ledger);
            }
        }
        // Before the put, which may be dropped, or not be answered.
        self.deletion = Deletion::InDoubt;
        self.put_noting(store, kept, noted).await
    }
}

impl Noted {
    /// The topic's retention, if that of its owner's settings is `default`.
    pub(super) fn retention(&self, default: Retention) -> Retention {
        let Some(text) = &self.retention else { return default };
        Retention::from_property(text).unwrap_or_else(|| {
            tracing::warn!(
                text,
                "the retention of a topic is not understood; nothing of it is deleted"
            );
            // Which can be made up for.
            Retention::FOREVER
        })
    }
}

impl ManagedLedger {
    /// What is noted with the topic.
    pub async fn properties(&self) -> BTreeMap<String, String> {
        self.0.record.lock().await.noted.properties.clone()
    }

    /// Changes what is noted with the topic, all or nothing: `None` removes a name. Durable when it returns.
    ///
    /// If the future is dropped, it may be changed or not.
    ///
    /// # Errors
    /// [`ChangeError`]; without an answer of the store, it may be changed or not.
    pub async fn set_properties(
        &self,
        changes: impl IntoIterator<Item = (String, Option<String>)>,
    ) -> Result<(), ChangeError> {
        let inner = &self.0;
        let changes: Vec<_> = changes.into_iter().collect();
        if let Some((name, _)) =
            changes.iter().find(|(name, _)| [OWNER, DELETING, RETENTION].contains(&&**name))
        {
            return Err(ChangeError::ReservedProperty { name: name.clone() });
        }
        let mut record = inner.record.lock().await;
        let listed = inner.listed_if_open()?;
        let mut noted = record.noted.clone();
        for (name, value) in changes {
            match value {
                Some(value) => noted.properties.insert(name, value),
                None => noted.properties.remove(&name),
            };
        }
        let put = record.put_noting(&inner.store, listed, noted).await;
        inner.changed(put)
    }

    /// For how long entries stay that every cursor has acknowledged.
    pub fn retention(&self) -> Retention {
        self.0.state.lock().retention
    }

    /// Gives the topic a retention of its own, which is stored with it and takes the place of
    /// [`ManagedLedgerConfig::retention`](crate::ManagedLedgerConfig::retention), also in later openings. Durable when
    /// it returns; what it lets go is deleted by the next [`trim`](Self::trim).
    ///
    /// If the future is dropped, it may be changed or not.
    ///
    /// # Errors
    /// [`ChangeError`]; without an answer of the store, it may be changed or not.
    pub async fn set_retention(&self, retention: Retention) -> Result<(), ChangeError> {
        let inner = &self.0;
        let mut record = inner.record.lock().await;
        let listed = inner.listed_if_open()?;
        let noted = Noted { retention: Some(retention.to_property()), ..record.noted.clone() };
        let put = record.put_noting(&inner.store, listed, noted).await;
        if put.is_ok() {
            inner.state.lock().retention = retention;
        }
        inner.changed(put)
    }

    /// What a trim would delete now if the topic had this retention.
    pub fn expired(&self, retention: &Retention) -> Expired {
        let floor = self.0.floor();
        let state = self.0.state.lock();
        let ledgers = state.expired(floor, retention, now_ms());
        let entries = state.chain.ledgers().take(ledgers).map(|info| info.entries).sum();
        Expired { ledgers: ledgers as u64, entries }
    }

    /// Deletes the oldest ledgers that every cursor has acknowledged and that retention has let go. Returns how many. It
    /// happens by itself when a cursor has moved on or a ledger is full; time alone does not bring it about.
    ///
    /// If the future is dropped, it goes on.
    ///
    /// # Errors
    /// [`ChangeError`]; nothing is lost that a cursor needs.
    pub async fn trim(&self) -> Result<u64, ChangeError> {
        let inner = self.0.clone();
        let trimming = self.0.runtime.spawn(async move { inner.trim().await });
        trimming
            .await
            .unwrap_or_else(|_| Err(self.0.write_failed("its runtime was shut down").into()))
    }

    /// Rules out that a deletion lands late which the store did not answer for. Only then may a cursor durably begin where
    /// it deletes, or go back there: else the next owner would find that place deleted. That no later deletion begins
    /// meanwhile is for the caller to see to.
    pub(crate) async fn decide_deletion(&self) -> Result<(), ChangeError> {
        let inner = &self.0;
        let mut record = inner.record.lock().await;
        if record.deletion == Deletion::Decided {
            return Ok(());
        }
        let listed = inner.listed_if_open()?;
        let put = record.put(&inner.store, listed).await;
        inner.changed(put)
    }

    /// Deletes the ledgers and the record of a topic whose cursors are gone. Refuses appends and reads from now on.
    pub(crate) async fn delete_without_cursors(&self) -> Result<(), ChangeError> {
        let inner = &self.0;
        // What it holds is not wanted; whether its end could be recorded does not matter.
        if let Err(error) = self.close().await {
            tracing::debug!(topic = &*inner.topic, "is deleted without its end: {error}");
        }
        inner.give_up_record().await?;
        inner.delete_ledgers().await;
        let mut record = inner.record.lock().await;
        if let Some(ledger) = record.noted.deleting.first() {
            let reason = "its bookkeeping is kept until it is deleted".into();
            let key = georepl_storage::ledger_key(*ledger);
            return Err(MetadataError::Unavailable { key, reason }.into());
        }
        let deleted = record.own.delete(&inner.store).await;
        inner.changed(deleted)
    }

    /// Ends the topic for ever: appends are refused, those that were taken are decided, and readers learn that nothing
    /// follows. Returns the last entry. May be called again.
    ///
    /// # Errors
    /// [`CloseError`]; call it again.
    pub async fn terminate(&self) -> Result<Option<Position>, CloseError> {
        let inner = &self.0;
        {
            let mut state = inner.state.lock();
            match &state.intake {
                Intake::Open => {
                    let topic = inner.topic.clone();
                    state.intake = Intake::Refused(Refusal::Terminated { topic });
                }
                Intake::Refused(Refusal::Terminated { .. }) => {}
                Intake::Refused(refusal) => return Err(CloseError::Refused(refusal.clone())),
            }
        }
        inner.stop_waiting();
        inner.close_current().await?;
        if !self.is_terminated() {
            // A failure or a close came in between.
            let refusal = self.refusal().expect("a topic that was terminated takes no appends");
            return Err(CloseError::Refused(refusal));
        }
        for (_, cursor) in inner.registered_by_name() {
            cursor.terminated();
        }
        Ok(self.last_confirmed())
    }

    /// Whether it was terminated.
    pub fn is_terminated(&self) -> bool {
        let state = self.0.state.lock();
        // Not before its end is recorded.
        matches!(state.intake, Intake::Refused(Refusal::Terminated { .. }))
            && state.current.is_none()
    }
}

impl Inner {
    /// Lists no ledger any more, so that it is an empty topic for whoever opens it, and notes that all are to be deleted.
    /// Whatever a handle of this topic is asked later is refused: it would write the record again.
    async fn give_up_record(&self) -> Result<(), ChangeError> {
        // A cursor that is being opened has its record before it is known here.
        let _opening = self.opening.lock().await;
        let mut record = self.record.lock().await;
        let closed = Refusal::Closed { topic: self.topic.clone() };
        let listed = {
            let is_needed = self.cursors.lock().values().any(|cursor| cursor.is_durable());
            let mut state = self.state.lock();
            match &state.intake {
                Intake::Refused(refusal @ (Refusal::Fenced { .. } | Refusal::Lost { .. })) => {
                    return Err(refusal.clone().into());
                }
                // One that was opened after the others were removed.
                Intake::Open | Intake::Refused(_) if is_needed => return Err(closed.into()),
                Intake::Open | Intake::Refused(_) => {}
            }
            state.intake = Intake::Refused(closed);
            state.listed()
        };
        let deleted = listed.into_iter().map(|listed| listed.ledger);
        let put = record.put_deleting(&self.store, Vec::new(), deleted).await;
        self.changed(put)?;
        // Nor is its end to be recorded any more, if that was not possible.
        self.state.lock().current = None;
        Ok(())
    }

    /// Wakes publishers that wait, so that they see why they must not.
    pub(super) fn stop_waiting(&self) {
        self.budget.close();
        self.floor_moved.notify_waiters();
    }

    pub(super) async fn trim(self: &Arc<Self>) -> Result<u64, ChangeError> {
        let deleted = {
            let _opening = self.opening.lock().await;
            let mut record = self.record.lock().await;
            let mut listed = self.listed_if_open()?;
            let floor = self.floor();
            let gone = {
                let state = self.state.lock();
                state.expired(floor, &state.retention, now_ms())
            };
            if gone == 0 {
                return Ok(0);
            }
            let kept = listed.split_off(gone);
            let first = kept[0].ledger;
            let deleted = listed.iter().map(|listed| listed.ledger);
            let put = record.put_deleting(&self.store, kept, deleted).await;
            self.changed(put)?;
            let start = {
                let mut state = self.state.lock();
                state.chain.trim(first);
                state.closed_at_ms = state.closed_at_ms.split_off(&first);
                state.chain.start()
            };
            for (_, cursor) in self.registered_by_name() {
                cursor.trimmed(start);
            }
            listed
        };
        for listed in &deleted {
            self.handles.remove(listed.ledger);
        }
        self.delete_ledgers().await;
        Ok(deleted.len() as u64)
    }

    /// Deletes, in a task, what the record lists no more.
    pub(super) fn start_deleting(self: &Arc<Self>) {
        let inner = self.clone();
        self.delete_in_task(async move { inner.delete_ledgers().await });
    }

    pub(super) fn delete_in_task(&self, deletion: impl Future<Output = ()> + Send + 'static) {
        let mut deletions = self.deletions.lock();
        // Those that have ended.
        while deletions.try_join_next().is_some() {}
        deletions.spawn_on(deletion, &self.runtime);
    }

    /// Ends the tasks that delete ledgers: those that do not end by then are dropped.
    pub(super) async fn end_deletions(&self, patience_until: Instant) {
        let mut deletions = std::mem::take(&mut *self.deletions.lock());
        let all = async { while deletions.join_next().await.is_some() {} };
        let _ = tokio::time::timeout_at(patience_until, all).await;
        deletions.shutdown().await;
    }

    /// Deletes what the record lists no more, without holding it up. What is not deleted stays noted.
    pub(super) async fn delete_ledgers(&self) {
        let _deletion = self.deletion.lock().await;
        let deleting = self.record.lock().await.noted.deleting.clone();
        let deleted = deleted(&self.client, deleting).await;
        self.record.lock().await.noted.deleting.retain(|ledger| !deleted.contains(ledger));
    }

    pub(super) fn trim_is_due(&self) -> bool {
        let floor = self.floor();
        let state = self.state.lock();
        let may_change =
            matches!(state.intake, Intake::Open | Intake::Refused(Refusal::Terminated { .. }));
        may_change && state.expired(floor, &state.retention, now_ms()) > 0
    }

    /// The ledgers as the record lists them, while this owner may change it.
    fn listed_if_open(&self) -> Result<Vec<ListedLedger>, ChangeError> {
        let state = self.state.lock();
        match &state.intake {
            Intake::Open | Intake::Refused(Refusal::Terminated { .. }) => Ok(state.listed()),
            Intake::Refused(refusal) => Err(refusal.clone().into()),
        }
    }

    /// Judges a change of the record.
    pub(super) fn changed(&self, put: Result<(), MetadataError>) -> Result<(), ChangeError> {
        match put {
            Ok(()) => Ok(()),
            Err(error @ MetadataError::Unavailable { .. }) => Err(error.into()),
            Err(_) => {
                self.fail(self.fenced());
                Err(self.fenced().into())
            }
        }
    }

    /// Waits while the topic is at its quota.
    pub(super) async fn within_quota(&self) -> Result<(), AppendError> {
        let Some(quota) = self.config.backlog_quota else { return Ok(()) };
        loop {
            // Made before the backlog is asked for: a move in between is not missed.
            let moved = self.floor_moved.notified();
            if let Intake::Refused(refusal) = &self.state.lock().intake {
                return Err(refusal.clone().into());
            }
            match (self.backlog_full(), quota.beyond) {
                (None, _) => return Ok(()),
                (Some(_), BeyondQuota::Hold) => moved.await,
                (Some(full), BeyondQuota::Refuse) => return Err(full.into()),
            }
        }
    }

    pub(super) fn backlog_full(&self) -> Option<BacklogFull> {
        let bytes_max = self.config.backlog_quota?.bytes;
        let start = self.backlog_start();
        let backlog = self.state.lock().chain.bytes_from(start);
        let topic = &self.topic;
        (backlog >= bytes_max).then(|| BacklogFull { topic: topic.clone(), backlog, bytes_max })
    }
}

impl State {
    /// How many of the oldest ledgers nobody needs: every cursor has acknowledged them, and they are too old, or what
    /// follows them is enough.
    fn expired(&self, floor: Offset, retention: &Retention, now_ms: u64) -> usize {
        let mut bytes_left = self.chain.bytes();
        let mut end = self.chain.start();
        let ledgers = self.chain.ledgers();
        let removable = ledgers.len().saturating_sub(1);
        let mut expired = 0;
        for info in ledgers.take(removable) {
            end = end.plus(info.entries);
            // A clock that was set back makes nothing older.
            let age_ms = now_ms
                .saturating_sub(self.closed_at_ms.get(&info.ledger).copied().unwrap_or(now_ms));
            let too_old = retention.time.is_some_and(|time| u128::from(age_ms) >= time.as_millis());
            bytes_left -= info.bytes;
            let enough_follows = retention.bytes.is_some_and(|bytes| bytes_left >= bytes);
            if info.state == LedgerState::Open || end > floor || !(too_old || enough_follows) {
                break;
            }
            expired += 1;
        }
        expired
    }
}

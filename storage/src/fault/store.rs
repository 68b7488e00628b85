//! A metadata store with faults.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::id::LedgerId;
use crate::metadata::{Expected, MetadataError, MetadataStore, Version, Versioned};

/// What is wrong with one operation of a metadata store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreFault {
    /// A change is carried out, but its answer is lost.
    LoseReply,
    /// A change is answered as unknown at once, and carried out only when it is [landed](FaultStore::land).
    LandLate,
    /// A read of one value sees it as it was before its last change.
    StaleRead,
    /// Any operation fails and changes nothing, as while a session is lost.
    Unavailable,
    /// Any operation waits until it is [released](FaultStore::release), and is carried out then.
    Hold,
}

/// A metadata store whose next operations fail as they are told. Each fault strikes the next operation that it can
/// strike, in the order the faults were given; without any it is the store it wraps.
pub struct FaultStore {
    inner: Arc<dyn MetadataStore>,
    state: Mutex<State>,
    released: Notify,
}

#[derive(Default)]
struct State {
    faults: VecDeque<StoreFault>,
    late: VecDeque<Change>,
    /// The value of a key before its last change through this store.
    before: BTreeMap<String, Option<Versioned>>,
    held: usize,
}

/// A change of one key.
struct Change {
    key: String,
    kind: ChangeKind,
}

enum ChangeKind {
    Put(Bytes, Expected),
    CreateEphemeral(Bytes),
    Delete(Version),
}

/// What an operation is, as far as faults can tell.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    Read,
    Change,
    Other,
}

impl StoreFault {
    const fn strikes(self, operation: Operation) -> bool {
        match self {
            Self::LoseReply | Self::LandLate => matches!(operation, Operation::Change),
            Self::StaleRead => matches!(operation, Operation::Read),
            Self::Unavailable | Self::Hold => true,
        }
    }
}

impl FaultStore {
    /// Wraps a store.
    #[must_use]
    pub fn new(inner: Arc<dyn MetadataStore>) -> Self {
        Self { inner, state: Mutex::default(), released: Notify::new() }
    }

    /// Lets a fault strike the next `times` operations that it can strike, behind the faults given before.
    pub fn inject(&self, fault: StoreFault, times: usize) {
        self.state.lock().faults.extend(std::iter::repeat_n(fault, times));
    }

    /// Takes back the faults that have not struck. What is held stays held, and what is to land late may still land.
    pub fn heal(&self) {
        self.state.lock().faults.clear();
    }

    /// How many changes may still land.
    #[must_use]
    pub fn late(&self) -> usize {
        self.state.lock().late.len()
    }

    /// Carries out the oldest change that was answered as unknown, as far as it still can be: `None` if there is none.
    pub async fn land(&self) -> Option<Result<(), MetadataError>> {
        let change = self.state.lock().late.pop_front()?;
        Some(self.carry_out(change).await.map(|_| ()))
    }

    /// Forgets the changes that may still land: they never will.
    pub fn drop_late(&self) {
        self.state.lock().late.clear();
    }

    /// How many operations wait to be released.
    #[must_use]
    pub fn held(&self) -> usize {
        self.state.lock().held
    }

    /// Lets the operations that wait go on.
    pub fn release(&self) {
        self.released.notify_waiters();
    }

    /// The fault that strikes an operation, after it has waited if it must.
    async fn meet(
        &self,
        key: &str,
        operation: Operation,
    ) -> Result<Option<StoreFault>, MetadataError> {
        let (fault, released) = {
            let mut state = self.state.lock();
            let at = state.faults.iter().position(|fault| fault.strikes(operation));
            let fault = at.and_then(|at| state.faults.remove(at));
            // Listens under the lock, so that whoever sees it held can release it.
            let released = (fault == Some(StoreFault::Hold)).then(|| self.hold(&mut state));
            (fault, released)
        };
        if let Some((released, _held)) = released {
            released.await;
        }
        match fault {
            Some(StoreFault::Unavailable) => Err(unknown(key, "the session is lost")),
            fault => Ok(fault),
        }
    }

    fn hold<'a>(&'a self, state: &mut State) -> (tokio::sync::futures::Notified<'a>, HeldOne<'a>) {
        state.held += 1;
        (self.released.notified(), HeldOne(self))
    }

    async fn carry_out(&self, change: Change) -> Result<Option<Version>, MetadataError> {
        let Change { key, kind } = change;
        let before = self.inner.get(&key).await?;
        let changed = match kind {
            ChangeKind::Put(value, expected) => {
                self.inner.put(&key, value, expected).await.map(Some)
            }
            ChangeKind::CreateEphemeral(value) => {
                self.inner.create_ephemeral(&key, value).await.map(Some)
            }
            ChangeKind::Delete(version) => self.inner.delete(&key, version).await.map(|()| None),
        };
        if changed.is_ok() {
            self.state.lock().before.insert(key, before);
        }
        changed
    }

    async fn change(&self, key: &str, kind: ChangeKind) -> Result<Option<Version>, MetadataError> {
        let fault = self.meet(key, Operation::Change).await?;
        let change = Change { key: key.into(), kind };
        match fault {
            Some(StoreFault::LandLate) => {
                self.state.lock().late.push_back(change);
                Err(unknown(key, "no answer in time"))
            }
            Some(StoreFault::LoseReply) => {
                self.carry_out(change).await?;
                Err(unknown(key, "the answer was lost"))
            }
            _ => self.carry_out(change).await,
        }
    }
}

/// Counts a held operation until it goes on or is dropped.
struct HeldOne<'a>(&'a FaultStore);

impl Drop for HeldOne<'_> {
    fn drop(&mut self) {
        self.0.state.lock().held -= 1;
    }
}

fn unknown(key: &str, reason: &str) -> MetadataError {
    MetadataError::Unavailable { key: key.into(), reason: reason.into() }
}

#[async_trait]
impl MetadataStore for FaultStore {
    async fn get(&self, key: &str) -> Result<Option<Versioned>, MetadataError> {
        if let Some(StoreFault::StaleRead) = self.meet(key, Operation::Read).await?
            && let Some(before) = self.state.lock().before.get(key)
        {
            return Ok(before.clone());
        }
        self.inner.get(key).await
    }

    async fn put(
        &self,
        key: &str,
        value: Bytes,
        expected: Expected,
    ) -> Result<Version, MetadataError> {
        let changed = self.change(key, ChangeKind::Put(value, expected)).await?;
        Ok(changed.expect("a put that is carried out gives a version"))
    }

    async fn create_ephemeral(&self, key: &str, value: Bytes) -> Result<Version, MetadataError> {
        let changed = self.change(key, ChangeKind::CreateEphemeral(value)).await?;
        Ok(changed.expect("a key that is created has a version"))
    }

    async fn delete(&self, key: &str, version: Version) -> Result<(), MetadataError> {
        self.change(key, ChangeKind::Delete(version)).await.map(|_| ())
    }

    async fn children(&self, key: &str) -> Result<Vec<String>, MetadataError> {
        self.meet(key, Operation::Other).await?;
        self.inner.children(key).await
    }

    async fn allocate_ledger_id(&self) -> Result<LedgerId, MetadataError> {
        self.meet("a ledger id", Operation::Other).await?;
        self.inner.allocate_ledger_id().await
    }
}

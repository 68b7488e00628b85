//! The thread that makes the changes.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::tables::{Snapshot, Stop, Turn};
use super::{Ask, Bookie, Standing};
use crate::bookie::lac_waits::{LacWait, LacWaits};
use crate::bookie::rules::Mode;
use crate::disk::{Changed, Door, FileError, Patience};
use crate::id::{EntryId, LedgerId};
use crate::transport::{BookieError, RequestBody, ResponseBody};

/// How many entries are deleted in one commit. More: who adds meanwhile waits longer. Less: more commits.
const DELETED_PER_COMMIT_MAX: usize = 10_000;

/// What the thread is asked for.
pub(super) enum Change {
    /// A request that changes something, or waits for a change.
    Ask(Ask),
    /// To delete ledgers.
    Delete(Deletion),
}

/// Ledgers to delete, and who asked for it.
pub(super) struct Deletion {
    keep: Arc<dyn Fn(LedgerId) -> bool + Send + Sync>,
    done: oneshot::Sender<Result<(), BookieError>>,
    /// What is left to delete, once it is known.
    doomed: Option<VecDeque<LedgerId>>,
}

impl Deletion {
    pub(super) fn new(
        keep: Arc<dyn Fn(LedgerId) -> bool + Send + Sync>,
        done: oneshot::Sender<Result<(), BookieError>>,
    ) -> Self {
        Self { keep, done, doomed: None }
    }
}

type Answer = Result<ResponseBody, BookieError>;

/// What the thread has still to do when its queue is empty.
#[derive(Default)]
struct Pending {
    waits: LacWaits,
    deletions: VecDeque<Deletion>,
}

impl Bookie {
    /// Makes changes until the queue is closed and everything that was taken is done.
    pub(super) fn make_changes(&self) {
        let mut pending = Pending::default();
        let mut changes = Vec::new();
        loop {
            let idle = pending.deletions.is_empty();
            let patience = if idle { Patience::Wait } else { Patience::GoOn };
            let door = self.changes.take_into(&mut changes, patience);
            if idle && changes.is_empty() && door == Door::Closed {
                break;
            }
            let mut asks = Vec::with_capacity(changes.len());
            for change in changes.drain(..) {
                match change {
                    Change::Ask(ask) => asks.push(ask),
                    Change::Delete(deletion) => pending.deletions.push_back(deletion),
                }
            }
            self.serve(asks, &mut pending.waits);
            self.delete_some(&mut pending.deletions);
        }
        self.end_waits(&mut pending.waits, BookieError::Unreachable);
    }

    /// Carries out requests in their order, and answers them when all is durable.
    fn serve(&self, asks: Vec<Ask>, waits: &mut LacWaits) {
        let answers = if asks.iter().any(changes_something) {
            self.commit(&asks)
        } else {
            vec![None; asks.len()]
        };
        let (mut answered, mut waiting) = (Vec::with_capacity(asks.len()), Vec::new());
        let mut moved = BTreeSet::new();
        for (ask, answer) in asks.into_iter().zip(answers) {
            if waits.contains(ask.request.ledger) || answer.is_none() {
                moved.insert(ask.request.ledger);
            }
            match answer {
                Some(answer) => answered.push((ask, answer)),
                None => waiting.push(ask),
            }
        }
        self.answer(answered);
        let mut evicted = Vec::new();
        for Ask { request, sink } in waiting {
            if let RequestBody::WaitLac { beyond } = request.body {
                let wait = LacWait { id: request.id, beyond, sink };
                evicted.extend(waits.push(request.ledger, wait).map(|wait| (request.ledger, wait)));
            }
        }
        self.wake(moved, evicted, waits);
        if *self.standing.lock() == Standing::Failed {
            self.end_waits(waits, BookieError::Io);
        }
    }

    /// Commits requests as one. Those that wait for a LAC have no answer yet.
    fn commit(&self, asks: &[Ask]) -> Vec<Option<Answer>> {
        let mode = match *self.standing.lock() {
            Standing::Serving(mode) => mode,
            Standing::Failed => Mode::Writable,
        };
        let mut committed = self.try_commit(asks, mode);
        if mode == Mode::Writable && matches!(committed, Err(FileError::Full { .. })) {
            // Fences and recoveries may still fit, all the more as a read-only bookie may use its reserve.
            self.stand(Standing::Serving(Mode::ReadOnly));
            committed = self.try_commit(asks, Mode::ReadOnly);
        }
        self.settle(committed).unwrap_or_else(|error| {
            asks.iter().map(|ask| (!waits(ask)).then_some(Err(error))).collect()
        })
    }

    fn try_commit(&self, asks: &[Ask], mode: Mode) -> Result<Vec<Option<Answer>>, FileError> {
        self.file.change(|transaction| {
            let mut turn = Turn::open(transaction, mode)?;
            let mut answers = Vec::with_capacity(asks.len());
            for ask in asks {
                if waits(ask) {
                    answers.push(None);
                    continue;
                }
                answers.push(Some(match turn.apply(ask.request.ledger, &ask.request.body) {
                    Ok(body) => Ok(body),
                    Err(Stop::Refused(error)) => Err(error),
                    Err(Stop::Failed(error)) => return Err(error),
                }));
            }
            Ok((answers, turn.changed))
        })
    }

    /// Answers the waits that the LACs of these ledgers have passed, and those that made room for others.
    fn wake(
        &self,
        moved: BTreeSet<LedgerId>,
        evicted: Vec<(LedgerId, LacWait)>,
        waits: &mut LacWaits,
    ) {
        if moved.is_empty() {
            return;
        }
        let lacs = self.file.read(|transaction| {
            let snapshot = Snapshot::open(transaction)?;
            let lac = |ledger: LedgerId| match snapshot.awaited_lac(ledger) {
                Ok(lac) => Ok((ledger, Ok(lac))),
                Err(Stop::Refused(error)) => Ok((ledger, Err(error))),
                Err(Stop::Failed(error)) => Err(error),
            };
            moved.iter().copied().map(lac).collect::<Result<Vec<_>, redb::Error>>()
        });
        let lacs = self
            .settle(lacs)
            .unwrap_or_else(|error| moved.into_iter().map(|ledger| (ledger, Err(error))).collect());
        for (ledger, wait) in evicted {
            let lac = lacs.iter().find(|(moved, _)| *moved == ledger).map(|(_, lac)| *lac);
            self.end_wait(wait, lac.unwrap_or(Ok(None)));
        }
        for (ledger, lac) in lacs {
            // A ledger whose LAC cannot be told ends its waits: who waits asks elsewhere.
            let passed = lac.map_or(Some(EntryId(u64::MAX)), |lac| lac);
            for wait in waits.take_passed(ledger, passed) {
                self.end_wait(wait, lac);
            }
        }
    }

    fn end_waits(&self, waits: &mut LacWaits, error: BookieError) {
        for wait in waits.take_all() {
            self.end_wait(wait, Err(error));
        }
    }

    fn end_wait(&self, wait: LacWait, lac: Result<Option<EntryId>, BookieError>) {
        let result = lac.map(|lac| ResponseBody::LastAddConfirmed { lac });
        wait.sink.complete(&mut vec![self.response(wait.id, result)]);
    }

    /// Goes on with the oldest deletion, for one commit.
    fn delete_some(&self, deletions: &mut VecDeque<Deletion>) {
        let Some(mut deletion) = deletions.pop_front() else {
            return;
        };
        let deleted = self.find_doomed(&mut deletion).and_then(|()| self.delete(&mut deletion));
        match self.settle(deleted) {
            Ok(Progress::More) => deletions.push_front(deletion),
            Ok(Progress::Done) => {
                let standing = *self.standing.lock();
                if standing == Standing::Serving(Mode::ReadOnly) {
                    self.stand(Standing::Serving(Mode::Writable));
                }
                // Who asked may have lost interest.
                let _ = deletion.done.send(Ok(()));
            }
            Err(error) => {
                let _ = deletion.done.send(Err(error));
            }
        }
    }

    fn find_doomed(&self, deletion: &mut Deletion) -> Result<(), FileError> {
        if deletion.doomed.is_none() {
            let ledgers = self.file.read(|transaction| Snapshot::open(transaction)?.ledgers())?;
            let doomed = ledgers.into_iter().filter(|ledger| !(deletion.keep)(*ledger));
            deletion.doomed = Some(doomed.collect());
        }
        Ok(())
    }

    /// Deletes what one commit may; what is gone is no longer doomed.
    fn delete(&self, deletion: &mut Deletion) -> Result<Progress, FileError> {
        let doomed = deletion.doomed.get_or_insert_default();
        if doomed.is_empty() {
            // The database lets go of pages two commits after the one that emptied them.
            for _ in 0..2 {
                self.file.change(|_| Ok(((), Changed::Something)))?;
            }
            return Ok(Progress::Done);
        }
        let gone = self.file.change(|transaction| {
            let mut turn = Turn::open(transaction, Mode::ReadOnly)?;
            let (mut gone, mut left) = (0, DELETED_PER_COMMIT_MAX);
            for ledger in &*doomed {
                let deleted = turn.delete(*ledger, left)?;
                if deleted == left {
                    break;
                }
                // A ledger without entries costs something as well.
                left = left.saturating_sub(deleted + 1);
                gone += 1;
                if left == 0 {
                    break;
                }
            }
            Ok((gone, Changed::Something))
        })?;
        doomed.drain(..gone);
        Ok(Progress::More)
    }
}

/// Whether a deletion is at its end.
enum Progress {
    More,
    Done,
}

const fn waits(ask: &Ask) -> bool {
    matches!(ask.request.body, RequestBody::WaitLac { .. })
}

const fn changes_something(ask: &Ask) -> bool {
    !waits(ask)
}

impl fmt::Debug for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ask(ask) => f.debug_tuple("Ask").field(&ask.request).finish(),
            Self::Delete(_) => f.write_str("Delete"),
        }
    }
}

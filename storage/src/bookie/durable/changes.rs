//! The thread that makes the changes.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;

use tokio::sync::oneshot;

use super::ANSWER_BYTES_MAX;
use super::serving::{Ask, Bookie, Standing, Stop};
use super::tables::{self, Snapshot, Turn};
use crate::bookie::lac_waits::{LacWait, LacWaits};
use crate::bookie::rules::Mode;
use crate::disk::{Door, FileError, Patience};
use crate::id::{EntryId, LedgerId};
use crate::transport::{BookieError, RequestBody, ResponseBody};

/// How many rows are deleted in one commit. More: who adds meanwhile waits longer. Less: more commits.
pub(super) const DELETED_PER_COMMIT_MAX: usize = 1_000;

/// What the thread is asked for.
pub(super) enum Change {
    /// A request that changes something, or waits for a change.
    Ask(Ask),
    /// To say which ledgers are held.
    List(oneshot::Sender<Vec<LedgerId>>),
    /// To delete ledgers.
    Delete(Deletion),
}

impl Change {
    pub(super) fn into_ask(self) -> Option<Ask> {
        match self {
            Self::Ask(ask) => Some(ask),
            Self::List(_) | Self::Delete(_) => None,
        }
    }
}

/// Ledgers to delete, and who asked for it.
pub(super) struct Deletion {
    /// What is left to delete.
    doomed: VecDeque<LedgerId>,
    done: oneshot::Sender<Result<(), BookieError>>,
}

impl Deletion {
    pub(super) fn new(
        ledgers: Vec<LedgerId>,
        done: oneshot::Sender<Result<(), BookieError>>,
    ) -> Self {
        Self { doomed: ledgers.into(), done }
    }
}

type Answer = Result<ResponseBody, BookieError>;

/// The thread that makes changes, as long as it runs, and what it has still to do when its queue is empty.
struct Writer<'b> {
    bookie: &'b Bookie,
    waits: LacWaits,
    deletions: VecDeque<Deletion>,
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        for wait in self.waits.take_all() {
            self.bookie.abandon(wait.id, &*wait.sink);
        }
        self.bookie.leave();
    }
}

impl Bookie {
    /// Makes changes until the queue is closed and everything that was taken is done, but for deletions.
    pub(super) fn make_changes(&self) {
        let (waits, deletions) = (LacWaits::default(), VecDeque::new());
        let mut writer = Writer { bookie: self, waits, deletions };
        let mut changes = Vec::new();
        loop {
            let idle = writer.deletions.is_empty();
            let patience = if idle { Patience::Wait } else { Patience::GoOn };
            let door = self.changes.take_into(&mut changes, patience);
            if changes.is_empty() && door == Door::Closed {
                return;
            }
            let mut asks = Vec::with_capacity(changes.len());
            for change in changes.drain(..) {
                match change {
                    Change::Ask(ask) => asks.push(ask),
                    Change::List(done) => self.list(done),
                    Change::Delete(deletion) => writer.deletions.push_back(deletion),
                }
            }
            while !asks.is_empty() {
                self.serve_some(&mut asks, &mut writer.waits);
            }
            if door == Door::Open {
                self.delete_some(&mut writer.deletions, &mut writer.waits);
            }
        }
    }

    /// Carries out the first of the requests in their order, as many as fit into one turn, and answers them when all is
    /// durable.
    fn serve_some(&self, asks: &mut Vec<Ask>, waits: &mut LacWaits) {
        let answers = if asks.iter().any(changes_something) {
            self.commit(asks)
        } else {
            vec![None; asks.len()]
        };
        let (mut answered, mut waiting) = (Vec::with_capacity(asks.len()), Vec::new());
        let mut moved = BTreeSet::new();
        for (ask, answer) in asks.drain(..answers.len()).zip(answers) {
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

    /// Commits the first of the requests as one. Those that wait for a LAC have no answer yet.
    fn commit(&self, asks: &[Ask]) -> Vec<Option<Answer>> {
        let mode = match *self.standing.lock() {
            Standing::Serving(mode) => mode,
            Standing::Failed | Standing::Ended => Mode::Writable,
        };
        let mut committed = self.try_commit(asks, mode);
        if mode == Mode::Writable && matches!(committed, Err(FileError::Full { .. })) {
            // Fences and recoveries may still fit, all the more as a read-only bookie may use its reserve.
            let [writable, read_only] = [Mode::Writable, Mode::ReadOnly].map(Standing::Serving);
            self.change_standing(writable, read_only);
            committed = self.try_commit(asks, Mode::ReadOnly);
        }
        self.settle(committed).unwrap_or_else(|error| {
            asks.iter().map(|ask| (!waits(ask)).then_some(Err(error))).collect()
        })
    }

    fn try_commit(&self, asks: &[Ask], mode: Mode) -> Result<Vec<Option<Answer>>, FileError> {
        self.file.change(|transaction| {
            let mut turn = Turn::open(transaction, mode)?;
            let (mut answers, mut bytes) = (Vec::with_capacity(asks.len()), 0);
            for ask in asks {
                if waits(ask) {
                    answers.push(None);
                    continue;
                }
                let answer = match turn.apply(ask.request.ledger, &ask.request.body) {
                    Ok(body) => Ok(body),
                    Err(Stop::Refused(error)) => Err(error),
                    Err(Stop::Failed(error)) => return Err(error),
                };
                if let Ok(ResponseBody::Entry(entry)) = &answer {
                    bytes += entry.size_bytes();
                }
                answers.push(Some(answer));
                if bytes >= ANSWER_BYTES_MAX {
                    break;
                }
            }
            Ok((answers, turn.finish()?))
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

    fn list(&self, done: oneshot::Sender<Vec<LedgerId>>) {
        let ledgers = self.file.read(|transaction| Snapshot::open(transaction)?.ledgers());
        if let Ok(ledgers) = self.settle(ledgers) {
            // Who asked may have lost interest.
            let _ = done.send(ledgers);
        }
    }

    /// Goes on with the oldest deletion, for one commit.
    fn delete_some(&self, deletions: &mut VecDeque<Deletion>, waits: &mut LacWaits) {
        let Some(mut deletion) = deletions.pop_front() else {
            return;
        };
        let gone = match self.settle(self.delete(&deletion.doomed)) {
            Ok(gone) => gone,
            Err(error) => {
                // Who asked may have lost interest.
                let _ = deletion.done.send(Err(error));
                return;
            }
        };
        for ledger in deletion.doomed.drain(..gone) {
            for wait in waits.take_passed(ledger, Some(EntryId(u64::MAX))) {
                self.end_wait(wait, Err(BookieError::NoSuchLedger));
            }
        }
        if !deletion.doomed.is_empty() {
            deletions.push_front(deletion);
            return;
        }
        if *self.standing.lock() == Standing::Serving(Mode::ReadOnly) {
            self.look_for_space();
        }
        let _ = deletion.done.send(Ok(()));
    }

    /// Deletes what one commit may. Returns how many of the ledgers are gone.
    fn delete(&self, doomed: &VecDeque<LedgerId>) -> Result<usize, FileError> {
        if doomed.is_empty() {
            return Ok(0);
        }
        self.file.change(|transaction| {
            let mut turn = Turn::open(transaction, Mode::ReadOnly)?;
            let (mut gone, mut left) = (0, DELETED_PER_COMMIT_MAX);
            for ledger in doomed {
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
            Ok((gone, turn.finish()?))
        })
    }

    /// Makes the bookie writable again if it finds that there is space.
    fn look_for_space(&self) {
        self.file.limit(self.limit(Mode::Writable));
        let found = self.file.change(tables::take_space);
        match found.and_then(|()| self.file.change(tables::free_space)) {
            Ok(()) => {
                let [writable, read_only] = [Mode::Writable, Mode::ReadOnly].map(Standing::Serving);
                self.change_standing(read_only, writable);
            }
            Err(error) => {
                self.file.limit(self.limit(Mode::ReadOnly));
                tracing::warn!(bookie = %self.id, %error, "the bookie stays read-only");
            }
        }
    }
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
            Self::List(_) => f.write_str("List"),
            Self::Delete(deletion) => f.debug_tuple("Delete").field(&deletion.doomed).finish(),
        }
    }
}

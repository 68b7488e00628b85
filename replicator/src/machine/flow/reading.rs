//! What is read next, and what reads bring.

use std::sync::Arc;
use std::time::Duration;

use georepl_cursor::{Offset, Progress, ReadId, ReadLimits, ReadStart};
use georepl_storage::Time;

use super::{Asking, Flow, Outstanding, Retry};
use crate::limits::Limits;
use crate::window::{Delivered, Settled};

impl<E> Flow<E> {
    pub(in crate::machine) fn has_reads(&self) -> bool {
        !self.reads.is_empty()
    }

    /// Reads that were not waiting when they were started. One that waited and was woken is not
    /// among them: storage's own timeouts bound it, and a machine is not told of every wake-up.
    pub(super) fn reads_in_storage(&self) -> usize {
        self.reads.len() - usize::from(self.asking == Asking::Waiting)
    }

    pub(in crate::machine) fn outstanding_reads(&self) -> impl Iterator<Item = ReadId> + '_ {
        self.reads.iter().map(|read| read.id)
    }

    /// The next read, if there is room for it. Nothing is read for a handful of free places:
    /// reads stay large while the window is full, and an empty window is filled at once.
    pub(in crate::machine) fn next_read(&mut self, limits: &Limits) -> Option<ReadLimits> {
        let idle = self.asking == Asking::Nothing
            && self.rewinding.is_none()
            && self.stop_at.is_none()
            && self.open_session().is_some()
            && self.reads.len() < self.reads_max(limits)
            && self.read_retry.is_none();
        if !idle {
            return None;
        }
        let reserved: u64 = self.reads.iter().map(|read| u64::from(read.limits.entries)).sum();
        let used = self.window.len() as u64 + reserved;
        let free = u64::from(limits.window_entries).saturating_sub(used);
        let reserved_bytes: u64 = self.reads.iter().map(|read| read.limits.bytes).sum();
        let free_bytes = limits.window_bytes.saturating_sub(self.window.bytes() + reserved_bytes);
        let enough = u64::from(limits.window_entries).div_ceil(10).min(limits.read_entries.into());
        if free < enough || free_bytes == 0 {
            return None;
        }
        let entries_max = if self.read_failures > 0 { 1 } else { limits.read_entries };
        let entries = u32::try_from(free).unwrap_or(u32::MAX).min(entries_max);
        let read = ReadLimits { entries, bytes: free_bytes.min(limits.read_bytes) };
        self.asking = Asking::For(read);
        Some(read)
    }

    /// After a failure one entry is asked for, alone, until one comes: what storage cannot give
    /// in bulk it may give singly, and an overloaded one is not pressed.
    fn reads_max(&self, limits: &Limits) -> usize {
        if self.read_failures > 0 { 1 } else { limits.reads_in_flight as usize }
    }

    /// Whether the read begins where the window ends, as far as that can be told already.
    pub(in crate::machine) fn read_started(
        &mut self,
        now: Time,
        start: ReadStart,
        timeout: Duration,
    ) -> bool {
        let Asking::For(limits) = self.asking else {
            panic!("a read is answered after it was asked for");
        };
        let (id, asking) = match start {
            ReadStart::Dispatched(id) => (id, Asking::Nothing),
            ReadStart::Waiting(id) => (id, Asking::Waiting),
        };
        self.asking = asking;
        let follows = self.has_reads() || id.from == self.window.tail();
        self.reads.push_back(Outstanding { id, limits });
        if asking == Asking::Nothing {
            self.read_due.get_or_insert(now + timeout);
        }
        follows
    }

    /// Whether the only read waits at a place that the window does not reach.
    pub(in crate::machine) fn waits_elsewhere(&self) -> bool {
        let only = self.reads.len() == 1 && self.asking == Asking::Waiting;
        only && self.reads.iter().any(|read| read.id.from != self.window.tail())
    }

    /// Whether the read was outstanding; it no longer is.
    pub(in crate::machine) fn read_ended(
        &mut self,
        now: Time,
        id: ReadId,
        timeout: Duration,
    ) -> bool {
        let Some(index) = self.reads.iter().position(|read| read.id == id) else {
            return false;
        };
        self.reads.remove(index);
        match self.asking {
            Asking::Waiting if index == self.reads.len() => self.asking = Asking::Nothing,
            // The read may have brought less than was there: the cursor is asked again.
            Asking::Ended(_) => self.asking = Asking::Nothing,
            _ => {}
        }
        // While a rewind is awaited, the bound on draining takes the place of this one.
        let timed = self.reads_in_storage() > 0 && self.may_send().is_some();
        self.read_due = timed.then_some(now + timeout);
        true
    }

    /// Whether there was one.
    pub(in crate::machine) fn forget_waiting_read(&mut self) -> bool {
        let waited = self.asking == Asking::Waiting;
        if waited {
            self.asking = Asking::Nothing;
            self.reads.pop_back();
        }
        waited
    }

    /// What the remote holds, and what was passed over, is not sent, readable or not.
    pub(in crate::machine) fn delivered(
        &mut self,
        entries: Vec<Delivered<E>>,
        progress: &Progress,
    ) {
        self.read_failures = 0;
        for entry in entries {
            let (held, passes) = (
                self.known >= Some(entry.position),
                matches!(entry.content, crate::window::Content::Pass(_)),
            );
            let settled = if progress.kept.contains_key(&entry.position) {
                Some(Settled::Quarantined)
            } else if progress.discarded.contains(&entry.position) {
                Some(Settled::Discarded)
            } else {
                (held && !passes).then_some(Settled::Duplicate)
            };
            self.window.push(entry, settled);
        }
    }

    pub(in crate::machine) fn read_failed(
        &mut self,
        now: Time,
        message: Arc<str>,
        limits: &Limits,
    ) {
        if let Asking::For(_) = self.asking {
            self.asking = Asking::Nothing;
        }
        self.read_failures = self.read_failures.saturating_add(1);
        let failures = self.read_failures;
        let at = now + limits.read_backoff.delay(failures);
        self.read_retry = Some(Retry { at, failures, message });
    }

    /// No failed read is waited for.
    pub(in crate::machine) fn may_fetch(&self) -> bool {
        self.read_retry.is_none()
    }

    /// A timer that has struck must go, or the driver would find it due for ever.
    pub(in crate::machine) fn end_read_retry(&mut self, now: Time) {
        self.read_retry.take_if(|retry| retry.at <= now);
    }

    pub(in crate::machine) fn log_ended(&mut self, end: Offset) {
        self.asking = Asking::Ended(end);
    }
}

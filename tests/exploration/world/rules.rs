//! What must hold after every step, and what an exploration must have met.

use std::time::Duration;

use georepl_cursor::{ReadId, ReadOutcome};
use georepl_replicator::{Reason, State, StopReason, Wake};
use georepl_storage::Time;

use super::outside::Topic;
use super::{ENTRY_BYTES, LONG, World, position};
use georepl_tests::explore;

/// What is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rules {
    /// Everything.
    All,
    /// Not what only keeps it tidy: reads that nobody waits for, timers for nothing, rewinds that
    /// are not needed. This shows what a step of the procedure is needed for.
    NoLossNoStall,
}

/// Which kinds of situation an exploration has to have seen.
pub mod mark {
    pub const DRAINED: u32 = 1;
    pub const REFUSED: u32 = 1 << 1;
    pub const STOPPED: u32 = 1 << 2;
    pub const STALE_READ: u32 = 1 << 3;
    pub const LATE_SEND: u32 = 1 << 4;
    pub const WAITING: u32 = 1 << 5;
    pub const STALE_COMPLETION: u32 = 1 << 6;
    pub const READ_FAILED: u32 = 1 << 7;
    pub const UNREADABLE: u32 = 1 << 8;
    pub const LATE_ANSWER: u32 = 1 << 9;
    pub const BEHIND: u32 = 1 << 10;
    pub const AHEAD: u32 = 1 << 11;
    pub const OPEN_FAILED: u32 = 1 << 12;
    pub const LATER_OWNER: u32 = 1 << 13;
    pub const DRAINED_FOR_GOOD: u32 = 1 << 14;
    pub const CLOSED: u32 = 1 << 15;
    pub const MOVED: u32 = 1 << 16;
    pub const RECEIPT_LATE: u32 = 1 << 17;
    pub const QUARANTINED: u32 = 1 << 18;
    pub const RELEASED: u32 = 1 << 19;
    pub const STORING: u32 = 1 << 20;
    pub const GIVEN_UP: u32 = 1 << 21;
    pub const SET_BACK: u32 = 1 << 22;
    pub const CURSOR_BEHIND: u32 = 1 << 23;
}

impl World {
    pub(super) fn check(&mut self, rewinding_before: bool) -> Result<(), String> {
        let effects = std::mem::take(&mut self.effects);
        if let Some(broken) = effects.broken {
            return Err(broken);
        }
        let rewinding = self.is_rewinding();
        self.moved &= effects.rewinds == 0;
        self.check_acknowledged()?;
        self.check_end()?;
        self.check_receipts()?;
        self.check_named()?;
        self.check_window(rewinding)?;
        if rewinding_before && rewinding && (effects.reads > 0 || effects.sends > 0) {
            return Err("S13: something was read or sent while a rewind was awaited".into());
        }
        // A cursor found closed ends the replicator in the step of its rewind.
        let session = self.replicator.session();
        let fenced = self.taken
            || session.is_none()
            || self.target.open_session() == session
            || self.is_outdone();
        if effects.rewinds > 0 && !fenced {
            return Err("S13: rewound before the old session's sends were settled".into());
        }
        if !self.replicator.accounting().balances() {
            return Err(format!("accounting: {:?}", self.replicator.accounting()));
        }
        self.check_reason()?;
        let one_rewind =
            effects.rewinds == 0 || effects.rewinds == 1 && std::mem::take(&mut self.failed);
        match self.bounds.rules {
            Rules::All if !one_rewind => Err("S13: two rewinds for one burst of failures".into()),
            Rules::All => self.check_tidy(),
            Rules::NoLossNoStall => Ok(()),
        }
    }

    /// L2, and that nobody is sent to wait for nothing.
    fn check_reason(&self) -> Result<(), String> {
        if self.replicator.state() == State::Stopped {
            return Ok(());
        }
        let backlog = self.cursor.backlog();
        let why = self.replicator.why(self.now, backlog);
        if why.reason == Reason::Unexplained || why.wake == Wake::Nothing {
            return Err(format!("L2: no reason or no wake-up: {why:?}"));
        }
        let named = match why.wake {
            Wake::Timer(after) | Wake::Remote(after) | Wake::Storage(after) => Some(after),
            Wake::Operator | Wake::Read | Wake::Append | Wake::Nothing => None,
        };
        let armed = self.replicator.wake_at().map(|at| at.saturating_since(self.now));
        if named.is_some_and(|named| armed.is_none_or(|armed| armed > named)) {
            return Err(format!("L2: the timer that is named does not run: {why:?}"));
        }
        if why.wake == Wake::Read && self.cursor.reads_in_flight() == 0 && self.is_quiet() {
            return Err("L2: nothing is read".into());
        }
        let moves = self.replicator.wake_at().is_some() || self.cursor.reads_in_flight() > 0;
        let operator = why.wake == Wake::Operator;
        if self.is_quiet() && backlog > 0 && !moves && !operator {
            let what = "entries behind, and nothing will move them";
            return Err(format!("L2: {backlog} {what}: {:?}", why.reason));
        }
        Ok(())
    }

    /// Rule 9: the first entry without a receipt has one timeout, whatever else is answered.
    fn check_receipts(&mut self) -> Result<(), String> {
        if self.bounds.waits == 0 {
            return Ok(());
        }
        let hears = self.replicator.connected() && !self.is_rewinding();
        let first = self.replicator.window().and_then(|window| window.first_unanswered());
        let passed = self.now.saturating_since(Time::ZERO);
        self.unanswered = first.filter(|_| hears).map(|first| match self.unanswered {
            Some((before, since)) if before == first => (first, since + passed),
            _ => (first, Duration::ZERO),
        });
        match self.unanswered {
            Some((first, since)) if since >= LONG => {
                Err(format!("rule 9: {first} has no receipt and no timeout"))
            }
            _ => Ok(()),
        }
    }

    /// S16 and L8: nothing is left behind, and no timer runs for nothing.
    fn check_tidy(&self) -> Result<(), String> {
        if self.replicator.wake_at().is_some_and(|at| at <= self.now) {
            return Err("L8: a timer that has struck is still armed".into());
        }
        if self.replicator.state() == State::Stopped {
            let wants = self.replicator.wake_at().is_some() || self.replicator.session().is_some();
            if wants || self.cursor.waiting_read().is_some() {
                return Err("S16: a stopped replicator wants something".into());
            }
        }
        let open = self.replicator.connected() && !self.is_rewinding();
        let waits_for_nothing = self.replicator.outstanding_reads().next().is_none()
            && self.replicator.window().is_some_and(|window| window.unanswered() == 0);
        if open && waits_for_nothing && self.retry_is_next() == Some(false) {
            return Err("L8: a timeout runs although nothing is awaited".into());
        }
        if explore::World::is_goal(self) && self.replicator.wake_at().is_some() {
            return Err("L8: a timer runs although nothing is under way".into());
        }
        Ok(())
    }

    fn check_acknowledged(&mut self) -> Result<(), String> {
        let mark_delete = self.cursor.mark_delete_offset();
        if mark_delete < self.mark_delete {
            return Err("S22: mark-delete moved back".into());
        }
        self.mark_delete = mark_delete;
        for entry in 0..self.mark_delete() {
            let kept = self.cursor.progress().kept.contains_key(&position(entry));
            let ordered = self.skipped | self.acknowledged_by_order;
            let excused = kept || (self.passed | ordered | self.lost) >> entry & 1 == 1;
            if !self.holds(entry) && !excused {
                return Err(format!(
                    "S1: {entry} is acknowledged, but not published and without a reason"
                ));
            }
        }
        Ok(())
    }

    /// S2, S3, S4, S9, S10.
    fn check_window(&self, rewinding: bool) -> Result<(), String> {
        let Some(window) = self.replicator.window() else {
            return Ok(());
        };
        if window.len() > self.bounds.window as usize {
            return Err(format!(
                "S9: {} entries in a window of {}",
                window.len(),
                self.bounds.window
            ));
        }
        if window.bytes() > self.bounds.window_bytes.saturating_add(ENTRY_BYTES) {
            return Err(format!("S10: {} bytes in the window", window.bytes()));
        }
        if rewinding || self.is_blocked() || self.replicator.state() != State::Started {
            return Ok(());
        }
        let counts = |id: &ReadId| self.replicator.outstanding_reads().any(|read| read == *id);
        let delivered: u64 = self
            .mailbox
            .iter()
            .filter(|(id, _)| counts(id))
            .map(|(_, outcome)| match outcome {
                ReadOutcome::Entries(entries) => entries.len() as u64,
                _ => 0,
            })
            .sum();
        let covered = window.head() == self.cursor.mark_delete_offset()
            && window.tail().plus(delivered) == self.cursor.read_position();
        if !covered && !self.moved && self.topic != Topic::Closed {
            return Err(format!(
                "S2: hole: mark-delete {}, window {}..{}, {delivered} delivered, read position {}",
                self.cursor.mark_delete_offset(),
                window.head(),
                window.tail(),
                self.cursor.read_position()
            ));
        }
        let believed = self.replicator.outstanding_reads().count();
        let real = self
            .replicator
            .outstanding_reads()
            .filter(|id| {
                self.open_reads.contains(id) || self.mailbox.iter().any(|(of, _)| of == id)
            })
            .count();
        if believed != real {
            return Err("S4: the replicator waits for a read that nobody will complete".into());
        }
        Ok(())
    }

    pub(super) fn seen(&self) -> u32 {
        let why = self.replicator.why(self.now, 0).reason;
        let stale =
            self.storage.iter().any(|fetch| fetch.id.generation != self.cursor.generation());
        let session = self.replicator.session();
        let completions = self.mailbox.iter();
        let stale_entries = |(id, outcome): &(ReadId, ReadOutcome<u8>)| {
            id.generation != self.cursor.generation() && matches!(outcome, ReadOutcome::Entries(_))
        };
        let ended = self.replicator.ended();
        [
            (explore::World::is_goal(self) && ended.is_none(), mark::DRAINED),
            (matches!(why, Reason::Refused { .. }), mark::REFUSED),
            (matches!(why, Reason::Stopped(StopReason::Requested)), mark::STOPPED),
            (stale, mark::STALE_READ),
            (self.sent.iter().any(|(of, _)| Some(*of) != session), mark::LATE_SEND),
            (matches!(why, Reason::WaitingForEntries), mark::WAITING),
            (completions.into_iter().any(stale_entries), mark::STALE_COMPLETION),
            (matches!(why, Reason::ReadFailed { .. }), mark::READ_FAILED),
            (matches!(why, Reason::Unreadable { .. }), mark::UNREADABLE),
            (self.answers.iter().any(|(of, _)| Some(*of) != session), mark::LATE_ANSWER),
            (matches!(why, Reason::RemoteBehind { .. }), mark::BEHIND),
            (matches!(why, Reason::RemoteAhead { .. }), mark::AHEAD),
            (matches!(why, Reason::Connecting { failures: 1, .. }), mark::OPEN_FAILED),
            (matches!(ended, Some(StopReason::LaterOwner(_))), mark::LATER_OWNER),
            (matches!(ended, Some(StopReason::Drained)), mark::DRAINED_FOR_GOOD),
            (matches!(ended, Some(StopReason::CursorClosed)), mark::CLOSED),
            (self.moved, mark::MOVED),
            (self.unanswered.is_some_and(|(_, since)| since > Duration::ZERO), mark::RECEIPT_LATE),
            (!self.replicator.progress().kept.is_empty(), mark::QUARANTINED),
            (self.is_releasing(), mark::RELEASED),
            (self.is_storing(), mark::STORING),
            (!self.cursor.progress().discarded.is_empty(), mark::GIVEN_UP),
            (self.cursor.progress().sessions_after > 0, mark::SET_BACK),
            (matches!(why, Reason::CursorBehind { .. }), mark::CURSOR_BEHIND),
        ]
        .into_iter()
        .filter_map(|(holds, mark)| holds.then_some(mark))
        .fold(0, |all, mark| all | mark)
    }
}

//! What must hold after every step, and what an exploration must have met.
//!
//! | invariant | where |
//! |---|---|
//! | S1, S2, S14, S15, S21: the record | [`World::check_write`], [`World::check_move`] |
//! | S3: one end | [`World::closed`], and S2 |
//! | S4, S5: acknowledged entries stay | [`World::check_acknowledged`] |
//! | S6, S7, S22: acknowledgements | [`World::acknowledge`] |
//! | S7, S8: what is stored | [`World::check_stored`] |
//! | S9, S10, S13, S20: what is closed | [`World::check_closed`] |
//! | S11, S12: where a recovery cuts | [`World::check_question`] |
//! | S16, S17, S18: who has ended | [`World::acknowledge`], [`World::check_question`], [`World::check_afterlife`] |
//!
//! Of S18 only adds, recoveries and the writer's end are machines' business; reads, opens and deletes are drivers',
//! which the simulation runs. S21's second half, that nothing reverts what AutoRecovery has changed, is S2 for whoever
//! is not AutoRecovery: earlier fragments stay as they are in the record that is replaced. S23 (memory) needs bytes, of which there
//! are too few here, and S24 (password, digest) damage; both have tests of their own. S19 follows from S7 and S13: a
//! closed ledger is a prefix of what was appended.

use georepl_storage::{
    AddKind, EntryId, LedgerEnd, LedgerMetadata, LedgerState, RecordAnswer, RecordRequest, Request,
    RequestBody, Response, ResponseBody, recover, write,
};

use super::bookie::{Presence, number};
use super::client::{Heard, Input, Seat, Standing, Wish, step};
use super::{WRITER, World};

/// Which kinds of situation an exploration has to have seen.
pub mod mark {
    /// A recovery closed the ledger with all its entries.
    pub const CLOSED_FULL: u32 = 1;
    /// A recovery closed the ledger without an entry that was appended.
    pub const CLOSED_SHORT: u32 = 1 << 1;
    /// The ensemble was changed.
    pub const CHANGED: u32 = 1 << 2;
    /// Everything was acknowledged.
    pub const ACKNOWLEDGED: u32 = 1 << 3;
    /// A write of a gone client landed late, or may.
    pub const LATE_WRITE: u32 = 1 << 4;
    /// The writer was fenced while entries were pending.
    pub const PENDING_IN_RECOVERY: u32 = 1 << 5;
    /// AutoRecovery has given a lost member's place to another bookie.
    pub const MOVED: u32 = 1 << 6;
    /// It has done so while the writer, whose ledger is open, was asking for a write.
    pub const MOVED_AMID_WRITE: u32 = 1 << 7;
    /// It has done so while a recovery was closing the ledger.
    pub const MOVED_AMID_RECOVERY: u32 = 1 << 8;
    /// A recovery closed the ledger with a spare in the place of a member, after a message was lost.
    pub const REPLACED_IN_RECOVERY: u32 = 1 << 9;
}

impl World {
    pub(super) fn check(&mut self) -> Result<(), String> {
        if let Some(broken) = self.broken.take() {
            return Err(broken);
        }
        self.check_acknowledged()?;
        self.check_stored()?;
        self.check_closed()
    }

    /// S6, S7, S16, S17 and S22 at the moment of the acknowledgement.
    pub(super) fn acknowledge(&mut self, through: EntryId) {
        let next = EntryId::following(self.acknowledged);
        let ack_quorum = self.bounds.sizes.2;
        for entry in (next.get()..=through.get()).map(EntryId) {
            let holders = self.holders(entry).count();
            if holders < ack_quorum {
                self.breaks(format!("S6: {entry} is acknowledged with {holders} named copies"));
            }
            let told = self.told[entry.get() as usize];
            let told = self.named(entry).filter(|bookie| told & 1 << bookie != 0).count();
            if told < ack_quorum {
                self.breaks(format!("S22: {entry} is acknowledged, and {told} members said so"));
            }
        }
        let (_, members) = self.record().last_ensemble();
        let is_dead = |bookie: usize| self.bookies[bookie].presence == Presence::Dead;
        let lost = members.iter().filter(|id| is_dead(number(id))).count();
        if lost >= ack_quorum && !self.bounds.zombies {
            self.breaks(format!("C4: {through} is acknowledged, and {lost} members are lost"));
        }
        if through < next {
            self.breaks(format!("S7: {through} is acknowledged after {:?}", self.acknowledged));
        }
        let standing = self.seats[WRITER].standing;
        if standing != Standing::Writing {
            self.breaks(format!("S16, S17: {through} is acknowledged by a writer {standing:?}"));
        }
        self.acknowledged = Some(through);
    }

    /// S11 and S12 when a recovery knows the end, and S16 for a writer.
    pub(super) fn check_question(&mut self, client: usize, question: &RecordRequest) {
        let RecordRequest::Write { record: next, .. } = question else { return };
        let LedgerState::Closed(LedgerEnd { last_entry, .. }) = next.state() else {
            if client == WRITER && self.seats[WRITER].standing == Standing::Fenced {
                self.breaks("S16: a fenced writer writes to the record".into());
            }
            return;
        };
        if client == WRITER {
            if self.seats[WRITER].standing == Standing::Fenced {
                self.breaks("S16: a fenced writer closes the record".into());
            }
            self.seats[WRITER].standing = Standing::Failing;
            return;
        }
        let absent = EntryId::following(last_entry);
        let Some(heard) = self.seats[client].heard.get_mut(absent.get() as usize) else { return };
        let heard = std::mem::replace(heard, Heard::Cut);
        // Who comes second may find other ensembles than it has asked.
        if self.is_closed() {
            return;
        }
        let denied = match heard {
            Heard::Denied(by) => by,
            Heard::Shown if self.bounds.delays > 0 => return,
            Heard::Shown => {
                return self.breaks(format!("S11: cut before {absent}, of which a copy was seen"));
            }
            Heard::Cut => return,
        };
        let denied = self.named(absent).filter(|bookie| denied & 1 << bookie != 0).count();
        let (_, write_quorum, ack_quorum) = self.bounds.sizes;
        if write_quorum - denied >= ack_quorum {
            self.breaks(format!("S12: cut before {absent}, which only {denied} fenced ones deny"));
        }
    }

    /// The floor of the LAC: what lies before the last ensemble is confirmed, so no recovery looks for it or moves it.
    pub(super) fn check_request(&mut self, request: &Request) {
        let entry = match &request.body {
            RequestBody::Read { entry, fence: Some(_) } => *entry,
            RequestBody::Add { entry, kind: AddKind::Recovery, .. } => entry.entry(),
            _ => return,
        };
        if !self.is_closed() && Some(entry) <= self.record().lac_floor() {
            self.breaks(format!("M5: a recovery doubts {entry}, which the record confirms"));
        }
    }

    /// S3 for what a recovery says.
    pub(super) fn closed(&mut self, client: usize, said: LedgerState) {
        let is = self.record().state();
        if said != is {
            self.breaks(format!("S3: closed at {said:?}, and the record says {is:?}"));
        }
        self.check_afterlife(client);
        self.leave_seat(client, super::Client::Ended);
    }

    /// S16, S17 and S18 for a client that has had its last word: whatever still comes, it does and says nothing.
    pub(super) fn check_afterlife(&mut self, client: usize) {
        let seat = &self.seats[client];
        let mut machine = seat.machine().expect("it has just spoken").clone();
        let mut inputs = Vec::new();
        for (bookie, request) in &seat.requests {
            let carried = super::carry_out(&self.bookies[*bookie], request);
            let added =
                Response { result: Ok(ResponseBody::Added), ..Response::clone(&carried.answer) };
            inputs.extend([carried.answer.clone(), added.into()].map(Input::Response));
        }
        inputs.extend(seat.answers.iter().map(|late| Input::Response(late.message.clone())));
        if client == WRITER {
            inputs.push(Input::Append(self.appended));
        }
        inputs.push(Input::Bookies(self.registry()));
        let found = RecordAnswer::Found(self.stored.record.clone(), self.stored.version);
        inputs.push(Input::Record(found));
        for input in inputs {
            let after = step(&machine, &input.into());
            machine = after.next.clone();
            for wish in &after.wishes {
                let is_quiet = match wish {
                    Wish::Ask(question) => **question == RecordRequest::Read,
                    Wish::Send(..) | Wish::Changed => false,
                    Wish::Confirmed(_) | Wish::Closed(_) => false,
                    Wish::WriterFailed(_) | Wish::RecoveryFailed(_) => false,
                };
                if !is_quiet {
                    self.breaks(format!("S16 to S18: after its end client {client} has {wish:?}"));
                }
            }
        }
    }

    /// A recovery that gives up must have had a reason: while so few bookies as no quorum needs have gone or not
    /// answered, it comes to an end (rule 9).
    pub(super) fn failed_recovery(&mut self, client: usize, error: &recover::Error) {
        self.check_afterlife(client);
        let (bounds, left) = (&*self.bounds, &*self.left);
        let early = bounds.delays - left.delays;
        let wipes = bounds.wipes - left.wipes;
        let missing =
            bounds.down - left.down + bounds.dead - left.dead + bounds.losses - left.losses;
        let (_, write_quorum, ack_quorum) = bounds.sizes;
        if early + wipes == 0 && usize::from(missing) <= write_quorum - ack_quorum {
            self.breaks(format!("C3: a recovery fails for {missing} missing: {error}"));
        }
    }

    /// A writer that ends for want of bookies must have wanted them: one that came back in the life that it knows, and
    /// has answered, is there.
    pub(super) fn failed_writer(&mut self, error: &write::Error) {
        if let write::Error::Fenced { .. } | write::Error::ClosedElsewhere(_) = error {
            return;
        }
        let faults = self.bounds.delays + self.bounds.losses + self.bounds.wipes;
        if self.gone_at_once < self.bounds.sizes.2 && faults == 0 {
            let gone = self.gone_at_once;
            self.breaks(format!("C5: never more than {gone} gone, and the writer ends: {error}"));
        }
    }

    /// L7: one failure, one change of the ensemble.
    pub(super) fn changed(&mut self) {
        if !self.bounds.zombies {
            return;
        }
        self.changes += 1;
        let (bounds, left) = (&*self.bounds, &*self.left);
        let failures = bounds.down - left.down + bounds.dead - left.dead + bounds.losses
            - left.losses
            + bounds.delays
            - left.delays;
        if self.changes > failures {
            let changes = self.changes;
            self.breaks(format!(
                "L7: {failures} failures, and the ensemble changed {changes} times"
            ));
        }
    }

    /// S1, S2, S14, S15, S21 for every version of the record.
    pub(super) fn check_write(&self, next: &LedgerMetadata) -> Result<(), String> {
        let now = self.record();
        let rank = |state| match state {
            LedgerState::Open => 0,
            LedgerState::InRecovery => 1,
            LedgerState::Closed(_) => 2,
        };
        if rank(next.state()) < rank(now.state()) {
            return Err(format!("S2: from {:?} to {:?}", now.state(), next.state()));
        }
        if let LedgerState::Closed(_) = now.state()
            && (now.state() != next.state() || now.ensembles() != next.ensembles())
        {
            return Err("S2: a closed record was changed".into());
        }
        let (last_key, _) = now.last_ensemble();
        let moved = now
            .ensembles()
            .range(..last_key)
            .find(|(key, members)| next.ensembles().get(*key) != Some(*members));
        if let Some((key, _)) = moved {
            return Err(format!("S2: the ensemble at {key} was changed"));
        }
        check_rewrite(now, next)?;
        if next.state() == LedgerState::InRecovery && next.ensembles() != now.ensembles() {
            return Err("S14: an ensemble of a recovery is stored before the close".into());
        }
        let changed = next.state() == LedgerState::Open && next.ensembles() != now.ensembles();
        let (key, _) = next.last_ensemble();
        if changed && key != EntryId::following(self.acknowledged) {
            let lac = self.acknowledged;
            return Err(format!("S15: an ensemble starts at {key}, and {lac:?} is acknowledged"));
        }
        Ok(())
    }

    /// S1, S2 and S21 for AutoRecovery's versions of it. Whether the fragment was one to move, the copies show.
    pub(super) fn check_move(&self, next: &LedgerMetadata) -> Result<(), String> {
        let now = self.record();
        check_rewrite(now, next)?;
        if now.state() != next.state() || !now.ensembles().keys().eq(next.ensembles().keys()) {
            return Err("S2: a move changed more than members".into());
        }
        Ok(())
    }

    /// S4 and S5 in every state.
    fn check_acknowledged(&self) -> Result<(), String> {
        let Some(last) = self.acknowledged else { return Ok(()) };
        if let LedgerState::Closed(LedgerEnd { last_entry, .. }) = self.record().state()
            && last_entry < Some(last)
        {
            return Err(format!("S4: closed at {last_entry:?}, and {last} is acknowledged"));
        }
        for entry in (0..=last.get()).map(EntryId) {
            let holders = self.holders(entry).count();
            let lost = usize::from(self.bounds.wipes - self.left.wipes);
            if holders + lost < self.bounds.sizes.2 {
                return Err(format!("S5: {entry} is acknowledged and has {holders} named copies"));
            }
        }
        Ok(())
    }

    /// S7 and S8: what is stored is what was appended, and no header says too much.
    fn check_stored(&mut self) -> Result<(), String> {
        let end = match self.record().state() {
            LedgerState::Closed(end) => end.last_entry.max(self.acknowledged),
            LedgerState::Open | LedgerState::InRecovery => self.acknowledged,
        };
        for entry in self.bookies.iter().flat_map(|at| at.entries()) {
            let id = entry.entry();
            let is_right = entry.payload().iter().all(|byte| u64::from(*byte) == id.get());
            if !is_right || entry.payload().len() as u64 != id.get() + 1 {
                return Err(format!("S7: {id} is stored with other bytes"));
            }
            if entry.lac() > end {
                let lac = entry.lac();
                return Err(format!("S8: the header of {id} says {lac:?}, beyond {end:?}"));
            }
        }
        if self.is_closed() {
            return Ok(());
        }
        let (_, members) = self.record().last_ensemble();
        let readable = members.iter().filter_map(|id| self.bookies[number(id)].stored_lac()).max();
        self.readable = self.readable.max(readable).max(self.record().lac_floor());
        Ok(())
    }

    /// S9, S10, S13 and S20 once the end is known.
    fn check_closed(&self) -> Result<(), String> {
        let LedgerState::Closed(LedgerEnd { last_entry, length }) = self.record().state() else {
            return Ok(());
        };
        if self.readable > last_entry {
            let readable = self.readable;
            return Err(format!("S9: a reader could know {readable:?}, closed at {last_entry:?}"));
        }
        let count = last_entry.map_or(0, |last| last.get() + 1);
        let exact: u64 = (0..count).map(|entry| entry + 1).sum();
        if length > exact || length < exact && self.bounds.dead + self.bounds.wipes == 0 {
            return Err(format!("S20: the length is {length} instead of {exact}"));
        }
        let lost = usize::from(self.bounds.wipes - self.left.wipes);
        for entry in (0..count).map(EntryId) {
            let holders = self.holders(entry).count();
            if holders + lost < self.bounds.sizes.2 {
                return Err(format!("S13: closed, and {entry} has {holders} named copies"));
            }
            let denies = |bookie: &usize| {
                let at = &self.bookies[*bookie];
                at.presence == Presence::Up && !at.holds(entry)
            };
            if lost == 0 && self.named(entry).all(|bookie| denies(&bookie)) {
                return Err(format!("S10: closed, and all members deny {entry}"));
            }
        }
        Ok(())
    }

    /// Whom the record names for the entry.
    fn named(&self, entry: EntryId) -> impl Iterator<Item = usize> + '_ {
        let record = self.record();
        let members = record.ensemble_of(entry);
        record.sizes().write_set(entry).map(|slot| number(&members[slot.index()]))
    }

    /// Who of them holds it.
    pub(super) fn holders(&self, entry: EntryId) -> impl Iterator<Item = usize> + '_ {
        self.named(entry).filter(move |bookie| self.bookies[*bookie].holds(entry))
    }

    pub(super) fn seen(&self) -> u32 {
        let appended = EntryId(self.appended.into()).checked_prev();
        let end = match self.record().state() {
            LedgerState::Closed(end) => Some(end.last_entry),
            LedgerState::Open | LedgerState::InRecovery => None,
        };
        let writes = self.seats[WRITER].machine().is_some();
        let in_recovery = self.record().state() == LedgerState::InRecovery;
        let is_open = self.record().state() == LedgerState::Open;
        // Whose write is too late because somebody else's came first.
        let is_late = |seat: &Seat| {
            seat.question.as_deref().is_some_and(|question| match question {
                RecordRequest::Write { expected, .. } => *expected < self.stored.version,
                RecordRequest::Read => false,
            })
        };
        let has_moved = self.moves > 0;
        let (_, members) = self.record().last_ensemble();
        let has_spare = members.iter().any(|id| number(id) >= self.bounds.sizes.0);
        let has_lost = self.left.losses < self.bounds.losses;
        [
            (appended.is_some() && end == Some(appended), mark::CLOSED_FULL),
            (end.is_some_and(|end| end < appended), mark::CLOSED_SHORT),
            (self.record().ensembles().len() > 1, mark::CHANGED),
            (appended.is_some() && self.acknowledged == appended, mark::ACKNOWLEDGED),
            (!self.late_writes.is_empty(), mark::LATE_WRITE),
            (in_recovery && writes && self.acknowledged < appended, mark::PENDING_IN_RECOVERY),
            (end.is_some() && has_spare && has_lost, mark::REPLACED_IN_RECOVERY),
            (has_moved, mark::MOVED),
            (has_moved && is_open && is_late(&self.seats[WRITER]), mark::MOVED_AMID_WRITE),
            (
                has_moved && in_recovery && self.seats[1..].iter().any(is_late),
                mark::MOVED_AMID_RECOVERY,
            ),
        ]
        .into_iter()
        .filter_map(|(holds, mark)| holds.then_some(mark))
        .fold(0, |all, mark| all | mark)
    }
}

/// S1 and what S21 says of everything but members, for whoever writes.
fn check_rewrite(now: &LedgerMetadata, next: &LedgerMetadata) -> Result<(), String> {
    for (key, members) in next.ensembles() {
        let mut distinct = members.clone();
        distinct.sort();
        distinct.dedup();
        if distinct.len() != members.len() {
            return Err(format!("S1: the ensemble at {key} has a member twice"));
        }
    }
    let kept = |of: &LedgerMetadata| {
        (of.sizes(), of.digest(), of.password().clone(), of.ctime(), of.creation_token())
    };
    let custom = now.custom().iter().all(|(key, value)| next.custom().get(key) == Some(value));
    if kept(now) != kept(next) || !custom {
        return Err("S21: a rewrite of the record lost something".into());
    }
    Ok(())
}

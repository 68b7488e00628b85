//! What must hold after every step, and what an exploration must have met.

use georepl_storage::{BookieId, EntryId, LedgerEnd, LedgerMetadata, LedgerState, recover, write};

use super::bookie::Presence;
use super::{Client, World, payload};

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

    /// S6 and S7 at the moment of the acknowledgement.
    pub(super) fn acknowledge(&mut self, through: EntryId) -> Result<(), String> {
        let next = EntryId::following(self.acknowledged);
        for entry in next.get()..=through.get() {
            let holders = self.holders(&self.record, EntryId(entry)).count();
            if holders < self.bounds.sizes.2 {
                return Err(format!("S6: {entry} is acknowledged with {holders} named copies"));
            }
        }
        let dead = |id: &BookieId| {
            self.bookies.iter().any(|at| at.id == *id && at.presence == Presence::Dead)
        };
        let (_, members) = self.record.last_ensemble();
        let lost = members.iter().filter(|id| dead(id)).count();
        if lost >= self.bounds.sizes.2 && !self.bounds.zombies {
            return Err(format!("C4: {through} is acknowledged, and {lost} members are lost"));
        }
        if through < next {
            return Err(format!("S7: {through} is acknowledged after {:?}", self.acknowledged));
        }
        self.acknowledged = Some(through);
        Ok(())
    }

    /// A recovery that gives up must have had a reason: S11 the other way round, rule 9.
    pub(super) fn failed_recovery(&mut self, error: &recover::Error) {
        let gone = self.bookies.iter().filter(|at| at.presence != Presence::Up).count();
        let faults = self.bounds.losses - self.left.losses + self.bounds.delays - self.left.delays
            + self.bounds.record_faults
            - self.left.record_faults
            + self.bounds.wipes
            - self.left.wipes;
        if gone == 0 && faults == 0 && self.bounds.down == self.left.down {
            self.breaks(format!("C3: a recovery fails for nothing: {error}"));
        }
    }

    /// A writer that ends for want of bookies must have wanted them: one that came back in the life that it knows, and
    /// has answered, is there.
    pub(super) fn failed_writer(&mut self, error: &write::Error) {
        let write::Error::QuorumLost { .. } = error else { return };
        let faults = self.bounds.delays + self.bounds.losses + self.bounds.wipes;
        if self.gone_at_once < self.bounds.sizes.2 && faults == 0 {
            let gone = self.gone_at_once;
            self.breaks(format!("C5: never more than {gone} gone, and the writer ends: {error}"));
        }
    }

    /// S1, S2, S14, S15 for every version of the record.
    pub(super) fn check_write(&self, next: &LedgerMetadata) -> Result<(), String> {
        let now = &self.record;
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
        for (key, members) in next.ensembles() {
            let mut distinct = members.clone();
            distinct.sort();
            distinct.dedup();
            if distinct.len() != members.len() {
                return Err(format!("S1: the ensemble at {key} has a member twice"));
            }
        }
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

    /// S4 and S5 in every state.
    fn check_acknowledged(&self) -> Result<(), String> {
        let Some(last) = self.acknowledged else { return Ok(()) };
        if let LedgerState::Closed(LedgerEnd { last_entry, .. }) = self.record.state()
            && last_entry < Some(last)
        {
            return Err(format!("S4: closed at {last_entry:?}, and {last} is acknowledged"));
        }
        for entry in 0..=last.get() {
            let holders = self.holders(&self.record, EntryId(entry)).count();
            let lost = usize::from(self.bounds.wipes - self.left.wipes)
                + self.bookies.iter().filter(|at| at.presence == Presence::Dead).count();
            if holders + lost < self.bounds.sizes.2 {
                return Err(format!("S5: {entry} is acknowledged and has {holders} named copies"));
            }
        }
        Ok(())
    }

    /// S7 and S8: what is stored is what was appended, and no header says too much.
    fn check_stored(&mut self) -> Result<(), String> {
        let end = match self.record.state() {
            LedgerState::Closed(end) => end.last_entry.max(self.acknowledged),
            LedgerState::Open | LedgerState::InRecovery => self.acknowledged,
        };
        for entry in self.bookies.iter().flat_map(|at| at.entries()) {
            let id = entry.entry();
            if *entry.payload() != payload(id.get() as u8) {
                return Err(format!("S7: {id} is stored with other bytes"));
            }
            if entry.lac() > end {
                return Err(format!(
                    "S8: the header of {id} says {:?}, beyond {end:?}",
                    entry.lac()
                ));
            }
        }
        if self.is_closed() {
            return Ok(());
        }
        let (_, members) = self.record.last_ensemble();
        let named = self.bookies.iter().filter(|at| members.contains(&at.id));
        let readable = named.filter_map(|at| at.stored_lac()).max();
        self.readable = self.readable.max(readable).max(self.record.lac_floor());
        Ok(())
    }

    /// S9, S13 and S20 once the end is known.
    fn check_closed(&self) -> Result<(), String> {
        let LedgerState::Closed(LedgerEnd { last_entry, length }) = self.record.state() else {
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
        for entry in 0..count {
            let holders = self.holders(&self.record, EntryId(entry)).count();
            let lost = usize::from(self.bounds.wipes - self.left.wipes);
            if holders + lost < self.bounds.sizes.2 {
                return Err(format!("S13: closed, and {entry} has {holders} named copies"));
            }
        }
        Ok(())
    }

    /// Who holds the entry, of those that the record names for it.
    fn holders<'a>(
        &'a self,
        record: &'a LedgerMetadata,
        entry: EntryId,
    ) -> impl Iterator<Item = &'a super::Bookie> + 'a {
        let members = record.ensemble_of(entry);
        let named = record.sizes().write_set(entry).map(|slot| &members[slot.index()]);
        let ids: Vec<_> = named.collect();
        self.bookies.iter().filter(move |at| ids.contains(&&at.id) && at.holds(entry))
    }

    pub(super) fn seen(&self) -> u32 {
        let appended = EntryId(self.appended.into()).checked_prev();
        let end = match self.record.state() {
            LedgerState::Closed(end) => Some(end.last_entry),
            LedgerState::Open | LedgerState::InRecovery => None,
        };
        let writes = matches!(self.clients[super::WRITER], Client::Writer(_));
        let in_recovery = self.record.state() == LedgerState::InRecovery;
        [
            (appended.is_some() && end == Some(appended), mark::CLOSED_FULL),
            (end.is_some_and(|end| end < appended), mark::CLOSED_SHORT),
            (self.record.ensembles().len() > 1, mark::CHANGED),
            (appended.is_some() && self.acknowledged == appended, mark::ACKNOWLEDGED),
            (!self.late_writes.is_empty(), mark::LATE_WRITE),
            (in_recovery && writes && self.acknowledged < appended, mark::PENDING_IN_RECOVERY),
        ]
        .into_iter()
        .filter_map(|(holds, mark)| holds.then_some(mark))
        .fold(0, |all, mark| all | mark)
    }
}

//! The source's own state: what is stored of the cursor, crashes, and what operators ask for.

use georepl_cursor::{Kept, Offset, Position, Progress, StartAt};
use georepl_replicator::{Change, Command, Input, State};

use super::{Cursor, Fault, Replicator, World, position};

/// When what is acknowledged is durable. A change is durable when that is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Persistence {
    AtOnce,
    /// A crash forgets it.
    Later,
}

/// What an operator asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// Pass over the next entry.
    Skip,
    SeekBack,
    SeekForward,
    /// Go on from the second entry, back or forth.
    SeekToSecond,
    /// Send, or give up, any entry in quarantine.
    Release,
    Discard,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    Persist,
    PersistFails,
    /// Storage has read the entry that was released.
    Fetched,
    Crash,
    /// Somebody copies the source, while it runs.
    Copy,
    /// The source is put back to what was copied last.
    PutBack,
    Order(Command),
}

/// What is durable of the cursor, and what is under way to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Stored {
    pub(super) mark_delete: Offset,
    pub(super) progress: Progress,
    passed_over: u8,
    changing: Option<(Change, Offset)>,
    storing: Storing,
    pub(super) fetching: Option<u8>,
    /// A change that the world has not seen yet.
    fresh: Option<(Change, Offset)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Storing {
    #[default]
    Idle,
    UnderWay,
}

impl Stored {
    pub(super) fn begin(&mut self, change: Change, before: Offset) {
        self.changing = Some((change, before));
        self.fresh = self.changing;
        self.storing = Storing::UnderWay;
    }

    pub(super) fn again(&mut self) {
        self.storing = Storing::UnderWay;
    }

    pub(super) fn is_settled(&self) -> bool {
        self.storing == Storing::Idle && self.fetching.is_none()
    }

    /// Entries (bits) of which it is durable, or was once, that they were passed over: sends of that
    /// time may land late.
    pub(super) fn kept(&self) -> u8 {
        self.passed_over
    }
}

pub(super) fn offset_of(to: StartAt, end: Offset) -> Offset {
    match to {
        StartAt::Earliest => Offset::ZERO,
        StartAt::Latest => end,
        StartAt::Position(position) => Offset::new(position.entry.get()),
    }
}

fn bits<'a>(positions: impl IntoIterator<Item = &'a Position>) -> u8 {
    positions.into_iter().map(|at| 1 << at.entry.get()).sum()
}

/// Entries (bits) from one place to another.
fn between(from: Offset, to: Offset) -> u8 {
    (from.get()..to.get()).map(|entry| 1 << entry).sum()
}

impl World {
    pub(super) fn owner_actions(&self) -> Vec<Owner> {
        let mut actions = Vec::new();
        let mut on = |enabled: bool, action| {
            if enabled {
                actions.push(action)
            }
        };
        let storing = self.stored.storing == Storing::UnderWay;
        // What is acknowledged is stored by itself now and then, which matters before a crash only.
        let later = self.bounds.persistence == Persistence::Later
            && self.faults > 0
            && self.stored.mark_delete != self.cursor.mark_delete_offset();
        on(storing || later, Owner::Persist);
        on(storing && self.may(Fault::PersistFails), Owner::PersistFails);
        on(self.stored.fetching.is_some(), Owner::Fetched);
        on(self.may(Fault::Crash), Owner::Crash);
        on(self.may(Fault::PutBack) && self.put_back == 0, Owner::Copy);
        on(self.may(Fault::PutBack), Owner::PutBack);
        if self.orders > 0 && self.stored.changing.is_none() {
            for &order in self.bounds.commands {
                for command in self.commands(order) {
                    on(true, Owner::Order(command));
                }
            }
        }
        actions
    }

    fn commands(&self, order: Order) -> Vec<Command> {
        let kept = self.replicator.progress().kept.iter();
        let quarantined = kept.clone().filter(|(_, kept)| !kept.is_released());
        let with_backlog = |command| match self.cursor.backlog() {
            0 => Vec::new(),
            _ => vec![command],
        };
        match order {
            Order::Skip => with_backlog(Command::Skip(1)),
            Order::SeekBack => vec![Command::Seek(StartAt::Earliest)],
            Order::SeekForward => with_backlog(Command::Seek(StartAt::Latest)),
            Order::SeekToSecond => vec![Command::Seek(StartAt::Position(position(1)))],
            Order::Release => quarantined.map(|(at, _)| Command::Release(*at)).collect(),
            Order::Discard => kept.map(|(at, _)| Command::Discard(*at)).collect(),
        }
    }

    pub(super) fn own(&mut self, action: Owner) {
        match action {
            Owner::Persist => self.persist(),
            Owner::PersistFails => {
                self.fault().stored.storing = Storing::Idle;
                self.input(Input::Stored(Err("no bookie answers".into())));
            }
            Owner::Fetched => {
                let entry = self.stored.fetching.take().expect("enabled when there is one");
                let delivered = self.decide(self.entry_at(entry));
                self.input(Input::Fetched(Ok(delivered)));
            }
            Owner::Crash => {
                let end = self.cursor.end();
                self.fault().restart(end);
            }
            Owner::Copy => self.copy_source(),
            Owner::PutBack => self.fault().put_back(),
            Owner::Order(command) => {
                self.orders -= 1;
                self.input(Input::Command(command));
            }
        }
    }

    /// A snapshot takes along all that there is.
    fn persist(&mut self) {
        self.keep();
        self.stored.storing = Storing::Idle;
        if let Some((change, before)) = self.stored.changing.take() {
            if let Change::Discard(position) = change {
                self.skipped |= bits([&position]);
                self.given_up |= bits([&position]);
            }
            let acknowledged = self.stored.mark_delete.get().saturating_sub(before.get());
            self.skipped |= between(before, self.stored.mark_delete);
            self.input(Input::Stored(Ok(acknowledged)));
        }
    }

    pub(super) fn keep(&mut self) {
        let acknowledged = self.cursor.mark_delete_offset();
        let is_past = |at: Position| at.entry.get() < acknowledged.get();
        self.cursor.progress_mut().forget_discarded(is_past);
        self.stored.mark_delete = self.cursor.mark_delete_offset();
        self.stored.progress = self.cursor.progress().clone();
        self.stored.passed_over |= bits(self.stored.progress.kept.keys());
    }

    /// As the replicator's driver does, for a seek by whoever has the cursor next.
    pub(super) fn note_block(&mut self) {
        if self.is_blocked() {
            let progress = self.cursor.progress_mut();
            progress.newest_incarnation = progress.newest_incarnation.max(progress.incarnation + 1);
            self.keep();
        }
    }

    /// What followed from a change at once; and without crashes everything is stored at once.
    pub(super) fn follow_change(&mut self) {
        if let Some((change, before)) = self.stored.fresh.take() {
            self.effects.changes += 1;
            if let Change::Seek { to, .. } = change {
                let to = offset_of(to, self.cursor.end());
                let again = between(to, self.cursor.end());
                self.given_up &= !again;
                for (entry, seeks) in self.seeks.iter_mut().enumerate() {
                    *seeks += again >> entry & 1;
                }
                self.mark_delete = self.mark_delete.min(self.cursor.mark_delete_offset());
            }
            if let Change::Discard(position) = change {
                self.acknowledged_by_order |= bits([&position]);
            }
            // Acknowledged in memory; nothing may be sent before it is durable.
            self.acknowledged_by_order |= between(before, self.cursor.mark_delete_offset());
        }
        if self.bounds.persistence == Persistence::AtOnce && self.stored.changing.is_none() {
            self.keep();
        }
    }

    /// The source is opened by its next owner, from what is stored.
    pub(super) fn restart(&mut self, end: Offset) {
        let (mark_delete, progress) = (self.stored.mark_delete, self.stored.progress.clone());
        self.cursor = Cursor::restored(mark_delete, Default::default(), progress.clone(), end);
        self.version += 1;
        let owner = progress.sessions_after + self.version;
        let (limits, poison) = (self.limits.clone(), self.bounds.poison);
        self.replicator = Replicator::new(limits, poison, owner, &progress);
        // They reach nobody any more, whatever their session is called.
        self.answers.clear();
        self.dead = None;
        self.storage.clear();
        self.mailbox.clear();
        self.open_reads.clear();
        self.stored.changing = None;
        self.stored.storing = Storing::Idle;
        self.stored.fetching = None;
        self.mark_delete = mark_delete;
        self.moved = false;
        self.failed = false;
        self.acknowledged_by_order = 0;
    }

    pub(super) fn is_storing(&self) -> bool {
        self.replicator.state() != State::Stopped && self.stored.changing.is_some()
    }

    pub(super) fn is_releasing(&self) -> bool {
        let kept = &self.replicator.progress().kept;
        kept.iter().any(|(at, kept)| {
            *kept == Kept::Sending && self.log.iter().any(|&entry| position(entry) == *at)
        })
    }
}

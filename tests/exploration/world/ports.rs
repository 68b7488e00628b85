//! The machines' neighbours: the cursor's handle with storage behind it, and the network.

use std::collections::{BTreeSet, VecDeque};

use georepl_cursor::{
    MarkDeleteRefused, Offset, Output as CursorOutput, Position, ReadId, ReadLimits, ReadOutcome,
    ReadRefused, ReadStart, Rewound,
};
use georepl_replicator::{
    Change, CommandRefused, CursorPort, Incarnation, Outgoing, RemotePort, Revision, SessionId,
};

use super::owner::{Stored, offset_of};
use super::{Cursor, Effects, Fetch, Message, place};

pub(super) struct SourceSide<'a> {
    pub(super) cursor: &'a mut Cursor,
    pub(super) storage: &'a mut Vec<Fetch>,
    pub(super) mailbox: &'a mut VecDeque<(ReadId, ReadOutcome<u8>)>,
    pub(super) open_reads: &'a mut BTreeSet<ReadId>,
    pub(super) effects: &'a mut Effects,
    pub(super) stored: &'a mut Stored,
}

impl SourceSide<'_> {
    /// As the cursor's handle does after every call.
    pub(super) fn drain(&mut self) {
        while let Some(output) = self.cursor.poll_output() {
            match output {
                CursorOutput::Fetch { id, to, bytes } => {
                    self.storage.push(Fetch { id, to, bytes, hangs: false });
                }
                CursorOutput::Complete { id, outcome } => {
                    if !self.open_reads.remove(&id) {
                        self.effects
                            .broken
                            .get_or_insert_with(|| format!("S12: {id:?} completed twice"));
                    }
                    self.mailbox.push_back((id, outcome));
                }
            }
        }
    }
}

impl CursorPort for SourceSide<'_> {
    fn read_or_wait(&mut self, limits: ReadLimits) -> Result<ReadStart, ReadRefused> {
        self.effects.reads += 1;
        let start = self.cursor.read_or_wait(limits);
        if let Ok(ReadStart::Dispatched(id) | ReadStart::Waiting(id)) = start
            && !self.open_reads.insert(id)
        {
            self.effects.broken.get_or_insert_with(|| format!("S3: {id:?} is read twice at once"));
        }
        self.drain();
        start
    }

    fn cancel_pending_read(&mut self) -> bool {
        let cancelled = self.cursor.cancel_pending_read();
        self.drain();
        cancelled
    }

    fn rewind(&mut self) -> Rewound {
        self.effects.rewinds += 1;
        let rewound = self.cursor.rewind();
        self.drain();
        rewound
    }

    fn acknowledge(
        &mut self,
        through: Offset,
        last_published: Option<Position>,
    ) -> Result<(), MarkDeleteRefused> {
        let answer = self.cursor.mark_delete(through, last_published);
        self.drain();
        answer
    }

    fn change(&mut self, change: Change) {
        let before = self.cursor.mark_delete_offset();
        match change {
            Change::Seek { to, .. } => {
                self.cursor.reset(offset_of(to, self.cursor.end())).expect("it is open");
            }
            Change::Skip(entries) => {
                let to = self.cursor.place_after(entries);
                self.cursor.mark_delete(to, None).expect("within the topic");
            }
            _ => {}
        }
        change.apply(self.cursor.progress_mut());
        self.stored.begin(change, before);
        self.drain();
    }

    fn persist(&mut self) {
        self.stored.again();
    }

    fn fetch(&mut self, position: Position) {
        self.stored.fetching = Some(position.entry.get() as u8);
    }

    fn answered(&mut self, _: Result<u64, CommandRefused>) {}
}

pub(super) struct NetworkSide<'a> {
    pub(super) sent: &'a mut Vec<(SessionId, Message)>,
    /// Entries (bits) that an operator gave up.
    pub(super) given_up: u8,
    pub(super) effects: &'a mut Effects,
}

impl RemotePort<u8> for NetworkSide<'_> {
    fn open(&mut self, session: SessionId, incarnation: Incarnation, revision: Revision) {
        self.sent.push((session, Message::Open(incarnation, revision)));
    }

    fn send(&mut self, session: SessionId, batch: Vec<Outgoing<u8>>) {
        self.effects.sends += 1;
        if let Some(sent) = batch.iter().find(|sent| self.given_up >> place(sent.entry) & 1 == 1) {
            let what = format!("S25: {} is sent although it was given up", sent.entry);
            self.effects.broken.get_or_insert(what);
        }
        self.sent.extend(batch.into_iter().map(|Outgoing { previous, position, entry }| {
            (session, Message::Send { previous, position, entry })
        }));
    }

    /// What was sent may still arrive.
    fn close(&mut self, _: SessionId) {}
}

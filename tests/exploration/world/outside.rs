//! What others do: the remote, its operators, other users of the cursor, the topic's owner, and
//! the network with what it kept back.

use georepl_cursor::{Offset, ReadLimits, ReadStart, StartAt};
use georepl_replicator::target::Opening;
use georepl_replicator::{
    Command, Held, Incarnation, Input, OpenError, Reason, Revision, SessionId, Stop, StopReason,
};

use super::{Answer, Fault, LONG, Message, World, place};

/// The session of another owner of the cursor, which took it over.
const LATER_OWNER: SessionId = SessionId { owner: 2, counter: 1 };
/// A session that was never open.
const NO_SESSION: SessionId = SessionId { owner: 1, counter: 0 };

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outside {
    /// The remote loses everything behind its first so many entries.
    LoseLog(u8),
    /// An operator restores the remote, or finds that nothing was wrong, and stops the replicator
    /// to start it anew; or seeks, when the source itself was put back.
    Restore,
    /// The opening is answered with an entry that the source does not have there.
    AnswerForeign(usize),
    /// The opening does not reach the remote.
    OpenFails(usize),
    /// Another owner of the cursor opens a session.
    Takeover,
    Terminate,
    Close,
    /// An operator acknowledges every entry before this one.
    Skip(u8),
    /// Another user of the cursor rewinds it, or reads an entry.
    Rewind,
    Read,
    /// An answer of an older session arrives, or the news of its end.
    LateAnswer(usize),
    LateLost,
    /// Half of a timeout passes.
    Wait,
}

/// What the topic's owner did with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Topic {
    Open,
    Terminated,
    Closed,
}

impl World {
    pub(super) fn outside_actions(&self) -> Vec<Outside> {
        let mut actions = Vec::new();
        let mut on = |enabled: bool, action| {
            if enabled {
                actions.push(action)
            }
        };
        for kept in 0..self.log.len() as u8 {
            on(self.may(Fault::LoseLog) && self.backup.is_empty(), Outside::LoseLog(kept));
        }
        on(self.is_blocked(), Outside::Restore);
        for (index, (of, answer)) in self.answers.iter().enumerate() {
            let opened = matches!(answer, Answer::Opened(Some(_)));
            let current = self.is_current(*of);
            on(current && opened && self.may(Fault::Foreign), Outside::AnswerForeign(index));
            let late = self.bounds.late_answers && self.replicator.session() != Some(*of);
            on(late, Outside::LateAnswer(index));
        }
        on(self.bounds.late_answers, Outside::LateLost);
        for index in self.arriving() {
            let opens = matches!(self.sent[index].1, Message::Open(..));
            on(opens && self.may(Fault::OpenFails), Outside::OpenFails(index));
        }
        on(!self.taken && self.may(Fault::Takeover), Outside::Takeover);
        let open = self.topic == Topic::Open;
        on(open && self.may(Fault::Terminate), Outside::Terminate);
        on(open && self.may(Fault::Close), Outside::Close);
        for to in self.mark_delete() + 1..=self.appended() {
            on(open && self.may(Fault::Skip), Outside::Skip(to));
        }
        on(open && self.may(Fault::OthersRewind), Outside::Rewind);
        on(open && self.may(Fault::OthersRead), Outside::Read);
        let wake = self.replicator.wake_at();
        let passes = wake.is_none_or(|at| at >= self.now + LONG / 2);
        on(self.waits > 0 && passes, Outside::Wait);
        actions
    }

    pub(super) fn outside(&mut self, action: Outside) -> Result<(), String> {
        match action {
            Outside::LoseLog(kept) => self.fault().lose_log(kept.into()),
            Outside::Restore => self.restore(),
            Outside::AnswerForeign(index) => {
                let (session, answer) = self.fault().answers.remove(index);
                let Answer::Opened(Some(held)) = answer else { panic!("enabled for openings") };
                self.input(Input::Opened { session, held: Held::Foreign(held.position) });
                self.note_block();
            }
            Outside::OpenFails(index) => {
                let (session, _) = self.fault().sent.remove(index);
                let error = OpenError::Unreachable("down".into());
                self.answers.push((session, Answer::OpenFailed(error)));
            }
            Outside::Takeover => {
                self.fault().taken = true;
                let opening = self.target.open(LATER_OWNER, Incarnation(1), Revision(0));
                assert!(!matches!(opening, Opening::Refused(_)), "a later owner is never refused");
            }
            Outside::Terminate => {
                self.fault().topic = Topic::Terminated;
                self.cursor.terminate();
                self.drain_cursor();
            }
            Outside::Close => {
                self.fault().topic = Topic::Closed;
                self.cursor.close();
                self.drain_cursor();
            }
            Outside::Skip(to) => {
                self.cursor.mark_delete(Offset::new(to.into()), None).expect("within the topic");
                self.skipped |= (1 << to) - 1;
                self.others_moved_the_cursor();
            }
            Outside::Rewind => {
                self.cursor.rewind();
                self.others_moved_the_cursor();
            }
            Outside::Read => {
                if let Ok(ReadStart::Dispatched(id)) =
                    self.cursor.read(ReadLimits { entries: 1, bytes: u64::MAX })
                {
                    self.open_reads.insert(id);
                }
                self.others_moved_the_cursor();
            }
            Outside::LateAnswer(index) => {
                let (session, answer) = self.answers.remove(index);
                let input = self.heard(session, answer);
                return self.late(input);
            }
            Outside::LateLost => {
                let message = "late".into();
                return self.late(Input::Lost { session: NO_SESSION, message });
            }
            Outside::Wait => {
                self.waits -= 1;
                self.now = self.now + LONG / 2;
                self.failed |= self.replicator.wake_at().is_some_and(|at| at <= self.now);
                self.input(Input::Tick);
            }
        }
        Ok(())
    }

    /// Rule 10: what belongs to another session changes nothing.
    fn late(&mut self, input: Input<u8>) -> Result<(), String> {
        let before = self.replicator.clone();
        let text = format!("{input:?}");
        self.input(input);
        if self.replicator == before {
            Ok(())
        } else {
            Err(format!("rule 10: an answer of another session changed the replicator: {text}"))
        }
    }

    fn others_moved_the_cursor(&mut self) {
        self.fault().drain_cursor();
        self.moved = true;
        self.failed = true;
    }

    fn lose_log(&mut self, kept: usize) {
        self.backup = self.log.clone();
        self.log.truncate(kept);
        self.kept_incarnations = self.incarnations.clone();
        self.incarnations.truncate(kept);
        for &entry in &self.backup[kept..] {
            let acknowledged = self.mark_delete.max(self.stored.mark_delete);
            let at = place(entry);
            self.lost |= u8::from(u64::from(at) < acknowledged.get()) << at;
        }
        self.reload();
    }

    fn restore(&mut self) {
        let forgot =
            matches!(self.reason(), Reason::RemoteAhead { .. } | Reason::CursorBehind { .. });
        if forgot && self.put_back > 0 {
            // What the source has lost, nobody can restore: it goes on with what it has.
            return self.input(Input::Command(Command::Seek(StartAt::Earliest)));
        }
        if !self.backup.is_empty() {
            self.log = std::mem::take(&mut self.backup);
            self.incarnations = std::mem::take(&mut self.kept_incarnations);
            self.lost = 0;
            self.reload();
        }
        self.input(Input::Stop(Stop::Now));
    }

    /// The remote has answered an opening, and the source goes on: what was lost is sent again.
    pub(super) fn went_on(&mut self) {
        if !self.is_blocked() {
            self.backup.clear();
            self.kept_incarnations.clear();
            self.lost = 0;
        }
    }

    pub(super) fn is_blocked(&self) -> bool {
        matches!(
            self.reason(),
            Reason::RemoteBehind { .. } | Reason::RemoteAhead { .. } | Reason::CursorBehind { .. }
        )
    }

    fn reason(&self) -> Reason {
        self.replicator.why(self.now, 0).reason
    }

    /// It ended for good, and was right to.
    pub(super) fn has_ended(&self) -> bool {
        self.replicator.ended().is_some()
    }

    /// A replicator ends for good only for a cause that is there.
    pub(super) fn check_end(&self) -> Result<(), String> {
        let fair = match self.replicator.ended() {
            None => true,
            Some(StopReason::Drained) => {
                self.topic == Topic::Terminated && self.cursor.backlog() == 0
            }
            Some(StopReason::CursorClosed) => self.topic == Topic::Closed,
            Some(StopReason::LaterOwner(newest)) => self.taken && newest.owner == LATER_OWNER.owner,
            // It was put back to before a seek.
            Some(StopReason::LaterIncarnation(newest)) => {
                self.put_back > 0 && *newest <= self.target.incarnation()
            }
            Some(_) => false,
        };
        if fair { Ok(()) } else { Err(format!("it ended for good: {:?}", self.replicator.ended())) }
    }
}

//! Changing the cursor's record: commands, quarantine, release.

use std::sync::Arc;

use georepl_cursor::{KEPT_MAX, Kept, Position};
use georepl_storage::Time;

use super::flow::{Flow, Releasing, Retry};
use super::{Life, Machine, Output, State, until};
use crate::change::{Change, Command, CommandRefused, Poison, next_incarnation};
use crate::why::{Reason, StopReason, Wake};
use crate::window::{Content, Delivered};

/// A change that is being stored. It is made already, and only its storing is tried again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Changing {
    change: Change,
    by: By,
    then: Then,
    failures: u32,
    /// It was not stored, and is stored again at its time.
    retry: Option<Retry>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum By {
    Operator,
    Policy,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Then {
    Start,
    Rest(StopReason),
}

impl Changing {
    pub(super) fn start(&mut self) {
        if !matches!(&self.then, Then::Rest(reason) if !reason.may_restart()) {
            self.then = Then::Start;
        }
    }

    pub(super) fn rest(&mut self) {
        if self.then == Then::Start {
            self.then = Then::Rest(StopReason::Requested);
        }
    }

    pub(super) fn state(&self) -> State {
        match self.then {
            Then::Start => State::Starting,
            Then::Rest(_) => State::Stopped,
        }
    }

    pub(super) fn wake_at(&self) -> Option<Time> {
        self.retry.as_ref().map(|retry| retry.at)
    }

    pub(super) fn reason(&self) -> Reason {
        Reason::Storing { failed: self.retry.as_ref().map(|retry| retry.message.clone()) }
    }

    pub(super) fn wake(&self, now: Time) -> Wake {
        let timer = |at: Time| Wake::Timer(at.saturating_since(now));
        self.wake_at().map_or(Wake::Read, timer)
    }

    pub(super) fn renumber(&mut self, now: Time) {
        self.failures = self.failures.min(1);
        if let Some(retry) = &mut self.retry {
            retry.failures = retry.failures.min(1);
            retry.at = Time::ZERO + until(now, retry.at);
        }
    }
}

/// Commands.
impl<E> Machine<E> {
    /// One after the other.
    pub(super) fn take_commands(&mut self) {
        while !matches!(self.life, Life::Changing(_))
            && let Some(command) = self.commands.pop_front()
        {
            match self.change_for(command) {
                Ok(Some(change)) => self.begin_change(change, By::Operator),
                Ok(None) => self.outputs.push_back(Output::Answered(Ok(0))),
                Err(refused) => self.outputs.push_back(Output::Answered(Err(refused))),
            }
        }
    }

    fn change_for(&self, command: Command) -> Result<Option<Change>, CommandRefused> {
        if let Life::Stopped(
            reason @ (StopReason::CursorClosed | StopReason::LaterOwner(_) | StopReason::Failed(_)),
        ) = &self.life
        {
            return Err(CommandRefused::Ended(reason.clone()));
        }
        let kept = |position| self.progress.kept.get(&position).copied();
        Ok(match command {
            Command::Seek(to) => Some(Change::seek(to, &self.progress)),
            Command::Skip(entries) => Some(Change::Skip(entries)),
            Command::Release(position) => match kept(position) {
                Some(Kept::Quarantined | Kept::InDoubt) => Some(Change::Release(position)),
                Some(Kept::Released | Kept::Sending) => None,
                None => return Err(CommandRefused::NotQuarantined(position)),
            },
            Command::Discard(position) => match kept(position) {
                Some(_) => Some(Change::Discard(position)),
                None => return Err(CommandRefused::NotQuarantined(position)),
            },
        })
    }

    /// It ends before the change is known to be stored.
    pub(super) fn refuse_change(&mut self, reason: &StopReason) {
        if let Life::Changing(Changing { by: By::Operator, .. }) = &self.life {
            let refused = CommandRefused::Ended(reason.clone());
            self.outputs.push_back(Output::Answered(Err(refused)));
        }
    }
}

/// Changes.
impl<E> Machine<E> {
    /// Without a session nothing is sent until it is durable. In what is sent afterwards, the next
    /// opening tells what of the sends that were under way has landed.
    fn begin_change(&mut self, change: Change, by: By) {
        self.end_flow();
        let then = match &self.life {
            Life::Running(flow) if flow.stop_at.is_none() => Then::Start,
            Life::Running(_) => Then::Rest(StopReason::Requested),
            // What had ended it is what the change is the answer to.
            Life::Stopped(reason) => match (reason, &change) {
                (StopReason::LaterIncarnation(_), Change::Seek { .. })
                | (StopReason::Drained, Change::Seek { .. } | Change::Release(_)) => {
                    Then::Rest(StopReason::Requested)
                }
                (reason, _) => Then::Rest(reason.clone()),
            },
            Life::Changing(_) => unreachable!("one change at a time, see take_commands"),
        };
        self.life = Life::Changing(Changing { change, by, then, failures: 0, retry: None });
        self.outputs.push_back(Output::Change(change));
    }

    pub(super) fn on_stored(&mut self, now: Time, stored: Result<u64, Arc<str>>) {
        let Life::Changing(changing) = &mut self.life else {
            return;
        };
        let acknowledged = match stored {
            Ok(acknowledged) => acknowledged,
            Err(message) => {
                changing.failures = changing.failures.saturating_add(1);
                let (failures, backoff) = (changing.failures, &self.limits.open_backoff);
                let at = now + backoff.delay(failures);
                changing.retry = Some(Retry { at, failures, message });
                return;
            }
        };
        let Changing { change, by, then, .. } = changing.clone();
        change.apply(&mut self.progress);
        self.accounting.skipped += acknowledged;
        self.accounting.released += u64::from(matches!(change, Change::Delivered(_)));
        if by == By::Operator {
            self.outputs.push_back(Output::Answered(Ok(acknowledged)));
        }
        self.life = match then {
            Then::Start => Life::Running(Box::new(Flow::starting(now))),
            Then::Rest(reason) => Life::Stopped(reason),
        };
        self.take_commands();
    }

    pub(super) fn store_again(&mut self, now: Time) {
        if let Life::Changing(changing) = &mut self.life
            && changing.retry.take_if(|retry| retry.at <= now).is_some()
        {
            self.outputs.push_back(Output::Persist);
        }
    }
}

/// Quarantine.
impl<E> Machine<E> {
    /// What was refused so often that the policy passes over it.
    pub(super) fn pass_over_refused(&mut self) {
        let Life::Running(flow) = &self.life else {
            return;
        };
        if let Poison::Quarantine { after } = self.poison
            && let Some((position, times)) = flow.refused()
            && times >= after
        {
            self.quarantine(position);
        }
    }

    pub(super) fn pass_over_unreadable(&mut self) {
        let Life::Running(flow) = &self.life else {
            return;
        };
        if let Poison::Quarantine { .. } = self.poison
            && let Some(position) = flow.unreadable()
        {
            self.quarantine(position);
        }
    }

    /// Full, it passes over nothing more: the entry holds up what follows.
    fn quarantine(&mut self, position: Position) {
        if self.has_room_for(position) {
            self.begin_change(Change::Quarantine(position), By::Policy);
        }
    }

    fn has_room_for(&self, position: Position) -> bool {
        self.progress.noted() < KEPT_MAX || self.progress.kept.contains_key(&position)
    }

    /// The reason, or that the policy would end it if there were room.
    pub(super) fn unless_full(&self, reason: Reason) -> Reason {
        let Poison::Quarantine { after } = self.poison else { return reason };
        match reason {
            Reason::Unreadable { position, message } if !self.has_room_for(position) => {
                Reason::QuarantineFull { position, message }
            }
            Reason::Refused { position, times, message }
                if times >= after && !self.has_room_for(position) =>
            {
                Reason::QuarantineFull { position, message }
            }
            other => other,
        }
    }
}

/// Release.
impl<E> Machine<E> {
    /// The entry for which the incarnation has begun, and which is sent in it before anything else.
    pub(super) fn sending(&self) -> Option<Position> {
        self.progress.sending()
    }

    /// The entry for which the next incarnation is to begin. It is acknowledged: in the new one,
    /// entries before it that are not would be taken for stored.
    pub(super) fn released_now(&self) -> Option<Position> {
        let Life::Running(flow) = &self.life else { return None };
        let mut kept = self.progress.kept.iter();
        let released = kept.find(|(_, kept)| **kept == Kept::Released);
        released.map(|(position, _)| *position).filter(|position| flow.is_past(*position))
    }

    /// The first steps of a release, each stored before the next. Nothing new is sent; what the
    /// remote holds is read and acknowledged; then an incarnation begins. Without this, what is in
    /// doubt would be sent again in the new incarnation and stored twice.
    pub(super) fn begin_release(&mut self, position: Position) {
        if let Life::Running(flow) = &self.life
            && flow.has_caught_up()
        {
            let incarnation = next_incarnation(&self.progress);
            self.begin_change(Change::Begin { incarnation, position }, By::Policy);
        }
    }

    /// The last ones: the entry is sent, and when the remote holds it, the release is over.
    pub(super) fn send_released(&mut self, now: Time, position: Position) {
        let Life::Running(flow) = &mut self.life else {
            return;
        };
        let Some(session) = flow.may_send() else {
            return;
        };
        if flow.known() == Some(position) {
            return self.begin_change(Change::Delivered(position), By::Policy);
        }
        match flow.releasing {
            Releasing::Nothing if flow.may_fetch() => {
                flow.releasing = Releasing::Asked(position);
                self.outputs.push_back(Output::Fetch(position));
            }
            Releasing::Ready(..) => {
                let sent = flow.next_released(now, &self.limits, &mut self.accounting);
                let send = |sent| Output::Send { session, batch: vec![sent] };
                self.outputs.extend(sent.map(send));
            }
            Releasing::Nothing | Releasing::Asked(_) | Releasing::Sent(_) => {}
        }
    }

    pub(super) fn on_fetched(&mut self, now: Time, fetched: Result<Delivered<E>, Arc<str>>) {
        let Life::Running(flow) = &mut self.life else {
            return;
        };
        let Releasing::Asked(position) = flow.releasing else {
            return;
        };
        match fetched {
            // Of an earlier flow.
            Ok(delivered) if delivered.position != position => {}
            Ok(Delivered { content: Content::Send(entry), .. }) => {
                flow.releasing = Releasing::Ready(position, entry);
            }
            Ok(Delivered { content: Content::Pass(_), .. }) => {
                self.begin_change(Change::Discard(position), By::Policy);
            }
            Ok(Delivered { content: Content::Unreadable(_), .. }) => {
                self.begin_change(Change::Quarantine(position), By::Policy);
            }
            Err(message) => {
                flow.releasing = Releasing::Nothing;
                flow.read_failed(now, message, &self.limits);
            }
        }
    }
}

//! Carries a machine's outputs out: the only place that calls the cursor and the remote.
//!
//! The driver and the exploration both run this, so what is explored is what ships. A broker with
//! a log of its own supplies the calls of [`CursorPort`].

use georepl_cursor::{
    MarkDeleteRefused, Offset, Position, ReadLimits, ReadRefused, ReadStart, Rewound,
};
use georepl_storage::Time;

use crate::change::{Change, CommandRefused};
use crate::machine::{Input, Machine, Output};
use crate::session::{Incarnation, Outgoing, Revision, SessionId};

/// What the replicator needs of a cursor. Calls that return nothing are answered by an input.
pub trait CursorPort {
    /// Starts a read, or waits for the next entry.
    fn read_or_wait(&mut self, limits: ReadLimits) -> Result<ReadStart, ReadRefused>;
    /// Takes the waiting read, if there is one.
    fn cancel_pending_read(&mut self) -> bool;
    /// Puts the read position back to the first entry that is not acknowledged.
    fn rewind(&mut self) -> Rewound;
    /// Acknowledges every entry before `through`.
    fn acknowledge(
        &mut self,
        through: Offset,
        last_published: Option<Position>,
    ) -> Result<(), MarkDeleteRefused>;
    /// Changes the cursor, and stores it; answered by [`Input::Stored`].
    fn change(&mut self, change: Change);
    /// Stores what was changed and not stored; answered by [`Input::Stored`].
    fn persist(&mut self);
    /// Reads an acknowledged entry; answered by [`Input::Fetched`].
    fn fetch(&mut self, position: Position);
    /// The oldest command that has no answer yet was carried out, or refused.
    fn answered(&mut self, answer: Result<u64, CommandRefused>);
}

/// What the replicator needs of a remote. No call blocks; answers come as inputs.
pub trait RemotePort<E> {
    /// Opens a session.
    fn open(&mut self, session: SessionId, incarnation: Incarnation, revision: Revision);
    /// Publishes entries in order.
    fn send(&mut self, session: SessionId, batch: Vec<Outgoing<E>>);
    /// Gives a session up.
    fn close(&mut self, session: SessionId);
}

/// Hands `input` to the machine and carries out everything that follows from it.
pub fn run<E>(
    machine: &mut Machine<E>,
    now: Time,
    input: Input<E>,
    cursor: &mut impl CursorPort,
    remote: &mut impl RemotePort<E>,
) {
    machine.handle(now, input);
    while let Some(output) = machine.poll_output() {
        match output {
            Output::Open { session, incarnation, revision } => {
                remote.open(session, incarnation, revision);
            }
            Output::Close(session) => remote.close(session),
            Output::Send { session, batch } => remote.send(session, batch),
            Output::Read(limits) => {
                let answer = cursor.read_or_wait(limits);
                machine.handle(now, Input::ReadAnswered(answer));
            }
            Output::CancelRead => {
                let cancelled = cursor.cancel_pending_read();
                machine.handle(now, Input::CancelAnswered(cancelled));
            }
            Output::Rewind => {
                let rewound = cursor.rewind();
                machine.handle(now, Input::Rewound(rewound));
            }
            Output::Change(change) => cursor.change(change),
            Output::Persist => cursor.persist(),
            Output::Fetch(position) => cursor.fetch(position),
            Output::Answered(answer) => cursor.answered(answer),
            Output::Acknowledge { through, last_published } => {
                match cursor.acknowledge(through, last_published) {
                    // Somebody acknowledged further already.
                    Ok(()) | Err(MarkDeleteRefused::Backwards { .. }) => {}
                    Err(MarkDeleteRefused::Closed) => machine.handle(now, Input::CursorClosed),
                    Err(error @ MarkDeleteRefused::BeyondEnd { .. }) => {
                        let message = format!("an acknowledgement was refused: {error}").into();
                        machine.handle(now, Input::Failed(message));
                    }
                }
            }
        }
    }
}

//! Why a backlog does not move, and what will move it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use georepl_cursor::Position;

use crate::session::{Incarnation, SessionId};

/// Why a replicator is stopped.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StopReason {
    /// It was never started.
    NotStarted,
    /// It was told to stop.
    Requested,
    /// The topic is terminated and every entry of it is acknowledged.
    Drained,
    /// Its cursor was closed.
    CursorClosed,
    /// A later owner of the cursor opened a session.
    LaterOwner(SessionId),
    /// The remote knows a later incarnation of the source.
    LaterIncarnation(Incarnation),
    /// A part of it broke a promise; the message says which. A new replicator starts afresh.
    Failed(Arc<str>),
}

impl StopReason {
    /// Whether it may be started again.
    pub fn may_restart(&self) -> bool {
        matches!(self, Self::NotStarted | Self::Requested)
    }
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotStarted => write!(f, "it was not started"),
            Self::Requested => write!(f, "it was stopped"),
            Self::Drained => {
                write!(f, "the topic is terminated and everything is replicated")
            }
            Self::CursorClosed => write!(f, "the cursor is closed"),
            Self::LaterOwner(session) => {
                write!(f, "another owner took the cursor over (session {session})")
            }
            Self::LaterIncarnation(newest) => {
                write!(
                    f,
                    "the remote knows incarnation {} of this source, which was put back from a copy; \
                     seek to what the remote is to get next",
                    newest.0
                )
            }
            Self::Failed(message) => write!(f, "it failed: {message}"),
        }
    }
}

/// Why the cursor is to be rewound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RewindReason {
    /// The replicator starts.
    Start,
    /// The remote refused an entry.
    Refused,
    /// The remote had not accepted what came before.
    Gap,
    /// The session ended.
    LinkLost,
    /// The remote did not answer in time.
    ReceiptTimeout,
    /// Storage did not answer in time.
    ReadTimeout,
    /// Somebody else moved the cursor.
    CursorMoved,
}

impl RewindReason {
    const ALL: [(Self, &'static str); 7] = [
        (Self::Start, "start"),
        (Self::Refused, "refused"),
        (Self::Gap, "gap"),
        (Self::LinkLost, "link lost"),
        (Self::ReceiptTimeout, "receipt timeout"),
        (Self::ReadTimeout, "read timeout"),
        (Self::CursorMoved, "cursor moved by somebody else"),
    ];
}

/// `wait_for_cursor_rewinding`: while it is not empty, nothing is read and nothing is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RewindReasons(u8);

impl RewindReasons {
    /// Adds a reason. One burst of failures, one set, one rewind.
    pub fn insert(&mut self, reason: RewindReason) {
        self.0 |= 1 << reason as u8;
    }

    /// Whether the reason is among them.
    pub fn contains(self, reason: RewindReason) -> bool {
        self.0 & (1 << reason as u8) != 0
    }
}

impl fmt::Display for RewindReasons {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (reason, name) in RewindReason::ALL {
            if self.contains(reason) {
                write!(f, "{separator}{name}")?;
                separator = ", ";
            }
        }
        Ok(())
    }
}

/// The reasons, in the order in which they apply: the first that holds is the answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// It is not running.
    Stopped(StopReason),
    /// It is stopping: what was sent is being settled.
    Stopping,
    /// The remote lost entries that it had confirmed.
    RemoteBehind {
        /// What the remote holds.
        watermark: Option<Position>,
        /// What it had confirmed.
        last_published: Position,
    },
    /// The remote holds what this source never wrote at that position: the source lost data.
    RemoteAhead {
        /// The position the remote names.
        watermark: Position,
    },
    /// The remote holds what only a later state of the cursor can account for: the cursor was put back to an older one.
    CursorBehind {
        /// What the remote holds.
        watermark: Option<Position>,
        /// What the cursor knows of it.
        last_published: Option<Position>,
    },
    /// There is no session. The last attempt's failure, if any, is named.
    Connecting {
        /// Failures in a row.
        failures: u32,
        /// What the last one was.
        last: Option<Arc<str>>,
    },
    /// The remote says that it takes no more for now, and why.
    RemoteNotWritable {
        /// Its words: the cause, and what to do about it.
        message: Arc<str>,
    },
    /// The cursor is being put back to the first entry that is not acknowledged.
    Rewinding(RewindReasons),
    /// The remote refuses the first entry; it is tried again.
    Refused {
        /// Which entry.
        position: Position,
        /// How often in a row.
        times: u32,
        /// The remote's words.
        message: Arc<str>,
    },
    /// The first entry cannot be understood, and what cannot be published is not passed over.
    Unreadable {
        /// Which entry.
        position: Position,
        /// What is wrong with it.
        message: Arc<str>,
    },
    /// The entry would go to quarantine, but nothing more has room there.
    QuarantineFull {
        /// Which entry.
        position: Position,
        /// What is wrong with it.
        message: Arc<str>,
    },
    /// A change of the cursor is being stored, and nothing is sent before it is.
    Storing {
        /// Why it was not stored the last time.
        failed: Option<Arc<str>>,
    },
    /// An entry that was released from quarantine is being read, to be sent before anything else.
    Releasing {
        /// Which entry.
        position: Position,
    },
    /// Storage failed; the read is tried again.
    ReadFailed {
        /// What failed.
        message: Arc<str>,
    },
    /// Entries were sent and their receipts are awaited.
    AwaitingReceipts {
        /// How many.
        entries: usize,
        /// The first of them.
        first: Position,
    },
    /// Storage reads.
    Reading,
    /// Every entry was read; the next one wakes it.
    WaitingForEntries,
    /// None of the others: a defect. Counted, and 0 as far as is known.
    Unexplained,
}

impl Reason {
    /// A stable name, for programs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Stopped(_) => "stopped",
            Self::Stopping => "stopping",
            Self::RemoteBehind { .. } => "remote-behind",
            Self::RemoteAhead { .. } => "remote-ahead",
            Self::CursorBehind { .. } => "cursor-behind",
            Self::Connecting { .. } => "connecting",
            Self::RemoteNotWritable { .. } => "remote-not-writable",
            Self::Rewinding(_) => "rewinding",
            Self::Refused { .. } => "refused",
            Self::Unreadable { .. } => "unreadable",
            Self::QuarantineFull { .. } => "quarantine-full",
            Self::Storing { .. } => "storing",
            Self::Releasing { .. } => "releasing",
            Self::ReadFailed { .. } => "read-failed",
            Self::AwaitingReceipts { .. } => "awaiting-receipts",
            Self::Reading => "reading",
            Self::WaitingForEntries => "waiting-for-entries",
            Self::Unexplained => "unexplained",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopped(reason) => reason.fmt(f),
            Self::Stopping => write!(f, "it is stopping: sent entries are being settled"),
            Self::RemoteBehind { watermark, last_published } => write!(
                f,
                "the remote lost data: it holds {} but had confirmed {last_published}; \
                 restore it or seek to what the remote is to get next",
                up_to(watermark),
            ),
            Self::RemoteAhead { watermark } => write!(
                f,
                "the remote holds another entry at {watermark} than this topic: the source lost data; \
                 restore it or seek to what the remote is to get next"
            ),
            Self::CursorBehind { watermark, last_published } => write!(
                f,
                "the cursor was put back to an older state: the remote holds {}, of which the cursor knows {}, and it knows \
                 nothing of entries between that were passed over then; \
                 restore it or seek to what the remote is to get next",
                up_to(watermark),
                up_to(last_published),
            ),
            Self::Connecting { failures: 0, .. } => write!(f, "a session is being opened"),
            Self::Connecting { failures, last } => {
                let attempts = counted(*failures, "attempt", "attempts");
                write!(f, "no session after {attempts}")?;
                last.iter().try_for_each(|message| write!(f, ": {message}"))
            }
            Self::RemoteNotWritable { message } => {
                write!(f, "the remote takes no more for now: {message}")
            }
            Self::Rewinding(reasons) => write!(f, "the cursor is being rewound ({reasons})"),
            Self::Refused { position, times, message } => {
                let times = counted(*times, "time", "times");
                write!(f, "the remote refused {position} {times}: {message}")
            }
            Self::Unreadable { position, message } => {
                write!(
                    f,
                    "{position} is not readable: {message}; mend it and start anew, or skip it"
                )
            }
            Self::QuarantineFull { position, message } => {
                write!(
                    f,
                    "{position} cannot be published ({message}), and the quarantine is full; \
                     release or discard what lies there"
                )
            }
            Self::Storing { failed } => {
                write!(f, "a change of the cursor is being stored")?;
                failed.iter().try_for_each(|message| write!(f, " again: {message}"))
            }
            Self::Releasing { position } => write!(f, "{position} is released from quarantine"),
            Self::ReadFailed { message } => write!(f, "storage failed: {message}"),
            Self::AwaitingReceipts { entries, first } => {
                let entries = counted(*entries, "entry", "entries");
                write!(f, "no receipt yet for {entries} from {first} on")
            }
            Self::Reading => write!(f, "storage is reading"),
            Self::WaitingForEntries => write!(f, "everything was read; it waits for entries"),
            Self::Unexplained => write!(f, "no reason is known; this is a defect"),
        }
    }
}

/// What will end the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wake {
    /// Somebody who decides: start it, restore the remote, repair the entry.
    Operator,
    /// A timer, after this long at most.
    Timer(Duration),
    /// The remote's answer, or its timeout after this long.
    Remote(Duration),
    /// Storage's answer, or its timeout after this long.
    Storage(Duration),
    /// The end of a read that waited until an entry came: storage's own timeouts bound it.
    Read,
    /// The next entry.
    Append,
    /// Nothing: a defect.
    Nothing,
}

/// The answer to "why does it not move".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Why {
    /// The first reason that applies.
    pub reason: Reason,
    /// For how long.
    pub since: Duration,
    /// What will end it.
    pub wake: Wake,
    /// Entries that are not acknowledged.
    pub backlog: u64,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reason, since, wake, backlog } = self;
        let behind = counted(*backlog, "entry", "entries");
        write!(f, "{behind} behind: {reason}, for {:.1} s; ", since.as_secs_f64())?;
        match wake {
            Wake::Operator => write!(f, "waits for an operator"),
            Wake::Timer(after) => write!(f, "tries again in {:.1} s", after.as_secs_f64()),
            Wake::Remote(after) => {
                write!(f, "the remote has {:.1} s to answer", after.as_secs_f64())
            }
            Wake::Storage(after) => {
                write!(f, "storage has {:.1} s to answer", after.as_secs_f64())
            }
            Wake::Read => write!(f, "storage answers within its own timeouts"),
            Wake::Append => write!(f, "the next entry wakes it"),
            Wake::Nothing => write!(f, "nothing will wake it"),
        }
    }
}

fn up_to(position: &Option<Position>) -> String {
    position.map_or_else(|| "nothing".to_owned(), |at| format!("up to {at}"))
}

/// `1 entry`, `2 entries`.
fn counted(count: impl TryInto<u64>, one: &str, many: &str) -> String {
    let count = count.try_into().unwrap_or(u64::MAX);
    format!("{count} {}", if count == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use georepl_cursor::Position;
    use georepl_storage::{EntryId, LedgerId};

    use super::*;

    fn said(reason: Reason, backlog: u64) -> String {
        Why { reason, since: Duration::ZERO, wake: Wake::Append, backlog }.to_string()
    }

    #[test]
    fn one_is_no_plural() {
        let at = Position::new(LedgerId(7), EntryId(3));
        let connecting = |failures| Reason::Connecting { failures, last: Some("refused".into()) };
        assert!(said(connecting(1), 1).starts_with("1 entry behind: no session after 1 attempt: "));
        assert!(
            said(connecting(2), 0).starts_with("0 entries behind: no session after 2 attempts: ")
        );
        let refused = Reason::Refused { position: at, times: 1, message: "no".into() };
        assert!(
            said(refused, 2).starts_with("2 entries behind: the remote refused 7:3 1 time: no,")
        );
        let awaiting = |entries| Reason::AwaitingReceipts { entries, first: at };
        assert!(said(awaiting(1), 1).contains("no receipt yet for 1 entry from 7:3 on,"));
        assert!(said(awaiting(9), 9).contains("no receipt yet for 9 entries from 7:3 on,"));
    }
}

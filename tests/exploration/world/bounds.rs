//! What an exploration is bounded by, what can go wrong in it, and what can happen.

use georepl_replicator::Poison;

use super::outside::Outside;
use super::owner::{Order, Owner, Persistence};
use super::rules::Rules;

/// Bounds of an exploration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bounds {
    /// Entries that are appended, at most.
    pub entries: u8,
    /// Entries there at the start.
    pub present: u8,
    pub window: u32,
    pub window_bytes: u64,
    pub read_entries: u32,
    pub reads_in_flight: u32,
    /// Faults of any kind.
    pub faults: u8,
    /// Stops (each followed by a start at any later step).
    pub stops: u8,
    /// Entries (bits) that the filter passes over, before and after its decision changes.
    pub filtered: [u8; 2],
    /// Entries (bits) that cannot be understood until an operator has mended them.
    pub unreadable: u8,
    /// Whether appends at the remote take time.
    pub slow_appends: bool,
    /// Whether answers of older sessions are kept and may still arrive.
    pub late_answers: bool,
    /// How often half of a timeout passes.
    pub waits: u8,
    /// What operators may ask for, and how often.
    pub commands: &'static [Order],
    pub orders: u8,
    pub poison: Poison,
    pub persistence: Persistence,
    /// Which faults may happen.
    pub kinds: &'static [Fault],
    pub rules: Rules,
}

/// What can go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The remote refuses an entry.
    Refuse,
    /// The link breaks: receipts are lost, sends may still land.
    LinkLost,
    /// The link is dead and nobody is told.
    HalfOpen,
    /// A receipt arrives twice.
    DuplicateReceipt,
    /// Storage fails.
    ReadError,
    /// Storage answers with fewer entries than it has.
    ShortRead,
    /// Storage takes longer than anybody waits.
    HangingRead,
    /// A timeout strikes although nothing is wrong.
    EarlyTimeout,
    /// An append at the remote fails; whether the entry is stored is unknown.
    AppendFailed,
    /// The remote loses what it confirmed.
    LoseLog,
    /// The remote names an entry that the source does not have.
    Foreign,
    /// A session cannot be opened.
    OpenFails,
    /// Another owner takes the cursor over.
    Takeover,
    /// The topic is terminated.
    Terminate,
    /// The topic is closed.
    Close,
    /// An operator acknowledges entries with the cursor.
    Skip,
    /// Others rewind the cursor.
    OthersRewind,
    /// Others read through the cursor.
    OthersRead,
    /// The source crashes: what was acknowledged and not stored is forgotten.
    Crash,
    /// A change of the cursor is made and not stored.
    PersistFails,
    /// The source is put back from an older copy.
    PutBack,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    Start,
    Stop,
    /// Stop when what was sent is answered.
    Settle,
    Append,
    /// Storage answers a read, with everything asked for.
    Read(usize),
    ShortRead(usize),
    EmptyRead(usize),
    ReadError(usize),
    HangRead(usize),
    /// Storage's own timeout ends a read that hangs.
    StorageGivesUp(usize),
    /// The replicator takes the oldest completion out of its mailbox.
    TakeCompletion,
    /// The filter decides otherwise from now on.
    ChangeFilter,
    /// An operator mends what could not be understood, and stops the replicator to start it anew.
    Mend,
    /// The opening or send in the network arrives at the remote.
    Arrive(usize),
    /// It arrives and the remote refuses it.
    Refuse(usize),
    /// The oldest append in progress at the remote is durable.
    Durable,
    /// It fails, stored or not.
    AppendFails {
        stored: bool,
    },
    /// An answer arrives at the replicator.
    Answer(usize),
    AnswerTwice(usize),
    LinkLost,
    HalfOpen,
    /// The next retry is due.
    Retry,
    /// The next timeout strikes.
    Timeout,
    Outside(Outside),
    Owner(Owner),
}

//! What bounds an exploration, and what can happen in it.

use super::repair::Repair;

/// What the writer does besides appending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Writer {
    Lives,
    /// At any step.
    MayCrash,
    /// At the start, when everything is appended and nothing has arrived.
    HasCrashed,
}

/// Bounds of an exploration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bounds {
    /// Ensemble size, write quorum, ack quorum.
    pub sizes: (usize, usize, usize),
    pub entries: u8,
    pub bookies: usize,
    /// Recoveries that may be started, each of which may start again when it failed or crashed.
    pub recoverers: usize,
    pub restarts: u8,
    pub writer: Writer,
    /// Bookies that go down and come back.
    pub down: u8,
    /// Bookies that go for ever, and of those that come back so many without what they had.
    pub dead: u8,
    pub wipes: u8,
    /// Requests that get lost.
    pub losses: u8,
    /// Answers that come late, and timeouts that strike early.
    pub delays: u8,
    /// Writes to the record whose answer is lost, or that land after their timeout, and reads that are answered with
    /// the record of before.
    pub record_faults: u8,
    /// Whether bookies that are gone stay registered.
    pub zombies: bool,
    /// Lost members of closed fragments that AutoRecovery replaces.
    pub repairs: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    Append,
    CrashWriter,
    StartRecovery(usize),
    CrashRecovery(usize),
    /// A client's request arrives, is carried out, and the answer is there.
    Arrive(usize, usize),
    /// It is carried out, and the answer is under way.
    ArriveLate(usize, usize),
    Lose(usize, usize),
    LateAnswer(usize, usize),
    /// A request of a client that is gone.
    ArriveOrphan(usize, usize),
    LoseOrphan(usize, usize),
    /// The store answers a client's question.
    Record(usize),
    /// The store carries it out, and the answer is lost.
    RecordAnswerLost(usize),
    /// The store has not carried it out when its time is over, and still may.
    RecordLate(usize),
    /// The store answers a read with the record that was replaced last.
    RecordStale(usize),
    /// A write that is late lands.
    RecordLands(usize),
    Down(usize),
    Die(usize),
    Up(usize),
    /// It comes back as another, without what it had.
    UpWiped(usize),
    /// A client's timer strikes.
    Wake(usize),
    /// It strikes although the answer is under way.
    WakeEarly(usize),
    BeginRepair(Repair),
    /// The next entry of the repair is copied.
    CopyEntry,
    /// The record is to name who has the copies.
    MoveFragment,
}

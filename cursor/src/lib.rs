//! Topics as chains of ledgers, and cursors over them.
//!
//! Modules from ground to roof; each imports only from those above it.

mod position;

mod chain;

mod machine;

mod records;

pub use chain::{Chain, LedgerInfo, LedgerOutOfOrder, LedgerState, Segment};
pub use machine::{
    Generation, Machine, MarkDeleteRefused, Output, READS_IN_FLIGHT_MAX, ReadFailed, ReadId,
    ReadLimits, ReadOutcome, ReadRefused, ReadStart, Rewound,
};
pub use position::{Offset, ParsePositionError, Position};
pub use records::{CursorRecord, ListedEnd, ListedLedger, RecordError, TopicRecord};

//! Topics as chains of ledgers, and cursors over them.
//!
//! Modules from ground to roof; each imports only from those above it.

mod position;

mod chain;

mod acked;

mod progress;

mod machine;

mod records;

#[cfg(feature = "io")]
mod names;

#[cfg(feature = "io")]
mod store;

#[cfg(feature = "io")]
mod own_record;

#[cfg(feature = "io")]
mod deletion;

mod stats;

#[cfg(feature = "io")]
mod managed_ledger;

#[cfg(feature = "io")]
mod listing;

#[cfg(all(test, feature = "io"))]
mod testing;

#[cfg(feature = "io")]
mod snapshots;

#[cfg(feature = "io")]
mod claim;

#[cfg(feature = "io")]
mod cursor;

#[cfg(feature = "io")]
pub use claim::{Claim, claim};
#[cfg(feature = "io")]
pub use cursor::{
    ACKED_RANGES_MAX, DeleteError, ManagedCursor, MarkDeleteError, OpenCursorError,
    ReadEntriesError, ReadSink,
};
#[cfg(feature = "io")]
pub use listing::{topic_exists, topics};
#[cfg(feature = "io")]
pub use managed_ledger::{
    AppendBatch, AppendError, AppendPermit, BacklogFull, BacklogQuota, BeyondQuota, ChangeError,
    CloseError, Entry, Expired, ManagedLedger, ManagedLedgerConfig, OpenError, ROLLOVER_AGE,
    ReadError, Refusal, Retention,
};
#[cfg(feature = "io")]
pub use names::{InvalidName, NAME_BYTES_MAX, OWN_CURSORS};
#[cfg(feature = "io")]
pub use snapshots::{LoadError, PersistError, RECORD_RANGES_MAX, SNAPSHOTS_PER_LEDGER_MAX};

pub use acked::Acked;

pub use chain::{Chain, LedgerInfo, LedgerOutOfOrder, LedgerState, Located, Segment};
pub use machine::{
    Generation, Machine, MarkDeleteRefused, Output, READS_IN_FLIGHT_MAX, ReadFailed, ReadId,
    ReadLimits, ReadOutcome, ReadRefused, ReadStart, Rewound,
};
pub use position::{Offset, ParsePositionError, Place, Position, StartAt};
pub use progress::{InvalidProperty, KEPT_MAX, Kept, Progress};
pub use records::{CursorRecord, ListedEnd, ListedLedger, RecordError, Snapshot, TopicRecord};
pub use stats::{CursorInternalStats, LedgerInternalStats, ManagedLedgerInternalStats};

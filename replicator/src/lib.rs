//! From a cursor to a remote cluster: the replicator.
//!
//! Modules from ground to roof; each imports only from those above it.

pub mod message;

pub mod filter;
mod session;

mod backoff;
mod limits;
mod why;

mod change;

mod config;

mod window;

mod machine;
mod port;

mod producer;

#[cfg(feature = "io")]
mod stats;

#[cfg(feature = "io")]
mod driver;

pub use backoff::Backoff;
pub use change::{Change, Command, CommandRefused, Poison};
pub use config::{ConfigError, ReplicatorConfig};
#[cfg(feature = "io")]
pub use driver::{Ended, Leftover, NewReplicatorError, Replicator};
pub use filter::PassReason;
pub use limits::{Limits, LimitsError};
pub use machine::{Accounting, Held, Input, Machine, Output, State, Stop};
pub use port::{CursorPort, RemotePort, run};
pub use producer::target;
#[cfg(feature = "io")]
pub use producer::{
    CHECKPOINT_BYTES, CHECKPOINT_ENTRIES, EmbeddedRemote, EmbeddedTopic, EmbeddedTopicConfig,
    EmbeddedTopics, EventSink, FaultCounts, FaultyRemote, InvalidSource, KEEPER, OpenTopicError,
    OpenedSession, Opening, Prepared, PublishError, ReleaseOrder, RemoteFaults, RemoteProducer,
    RemoteSession, SessionEvent, SessionEvents, WallClock,
};
pub use session::{
    Incarnation, OpenError, Outgoing, Receipt, Refusal, Revision, SessionId, Source, Watermark,
};
#[cfg(feature = "io")]
pub use stats::ReplicatorStats;
pub use why::{Reason, RewindReason, RewindReasons, StopReason, Wake, Why};
pub use window::{Content, Delivered, Settled, Window};

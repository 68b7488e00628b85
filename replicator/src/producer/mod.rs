//! Remotes: the seam to them, the rules of their side, and the embedded one.

#[cfg(feature = "io")]
mod embedded;
#[cfg(feature = "io")]
mod faulty;
#[cfg(feature = "io")]
mod remote;
pub mod target;
#[cfg(test)]
#[cfg(feature = "io")]
mod tests;

#[cfg(feature = "io")]
pub use embedded::{
    CHECKPOINT_BYTES, CHECKPOINT_ENTRIES, EmbeddedRemote, EmbeddedTopic, EmbeddedTopicConfig,
    EmbeddedTopics, InvalidSource, KEEPER, OpenTopicError, PublishError, WallClock,
};
#[cfg(feature = "io")]
pub use faulty::{FaultCounts, FaultyRemote, ReleaseOrder, RemoteFaults};
#[cfg(feature = "io")]
pub use remote::{
    EventSink, OpenedSession, Opening, Prepared, RemoteProducer, RemoteSession, SessionEvent,
    SessionEvents,
};

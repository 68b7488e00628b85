//! Geo-replication for message brokers.
//!
//! A topic is a chain of replicated ledgers on bookies ([`storage`]), read through cursors
//! ([`cursor`]). A replicator publishes what a cursor reads to a remote cluster, and acknowledges
//! only what is durable there ([`replicator`]). [`Region`] puts a whole region into one process.

mod region;

pub use georepl_cursor as cursor;
pub use georepl_replicator as replicator;
pub use georepl_storage as storage;

pub use region::{
    Absent, CloseRegionError, Memory, MissingBookie, OpenRegionError, Region, RegionBuilder,
    RenewRegionBookieError,
};

/// The readme's example is compiled and run with the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

//! Metadata in real servers of Apache BookKeeper and ZooKeeper, which `tests/rig/bookkeeper` starts.

mod faults;
mod java;
mod metadata;
mod registry;
mod roots;
mod storage;

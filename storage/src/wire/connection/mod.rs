//! One connection to one bookie: the machine that decides, and the task that carries it out.

#[cfg(feature = "io")]
pub(super) mod driver;
#[cfg(feature = "io")]
pub(super) mod link;
mod machine;
mod pending;

use std::time::Duration;

pub use self::machine::{AuthStep, Input, Lost, Machine, Output};
use super::frame::FRAME_BYTES_MAX;
use super::status::Protocol;

/// What a connection waits for and puts up with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// What is spoken.
    pub protocol: Protocol,
    /// Whether it is spoken in TLS.
    pub security: Security,
    /// The name of the plugin with which the client proves who it is; none if it does not.
    pub auth_plugin: Option<String>,
    /// How long it may take from the first attempt until requests can be sent, proofs included. Longer: a bookie that is
    /// not there holds up requests. Shorter: a busy one counts as unreachable.
    pub connect_timeout: Duration,
    /// How long a request may wait for its answer. Those who ask have a shorter limit of their own; this one lets go of
    /// what they have given up, and notices a bookie that has gone without a word. In v2 it ends the connection.
    pub request_timeout: Duration,
    /// How long a bookie may hold a wait for the LAC before it answers with what it has.
    pub lac_wait: Duration,
    /// How many bytes of requests may wait for their answers. What comes beyond that is answered with
    /// [`TooManyRequests`](crate::BookieError::TooManyRequests). More: a slow bookie costs memory. Less: a fast writer
    /// is held back before the network is full.
    pub pending_bytes_max: usize,
    /// How many bytes may wait for the socket at a time; further requests wait as such. More does not make it faster.
    pub unflushed_bytes_max: usize,
    /// How long the bookie is left alone after an attempt that failed, and after each further one twice as long. Requests
    /// are answered with [`Unreachable`](crate::BookieError::Unreachable) meanwhile.
    pub retry_first: Duration,
    /// No pause between attempts is longer.
    pub retry_longest: Duration,
}

/// Whether a connection is encrypted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Security {
    /// It is not.
    #[default]
    Plain,
    /// The client asks for TLS by START_TLS before anything else.
    StartTls,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            protocol: Protocol::default(),
            security: Security::default(),
            auth_plugin: None,
            connect_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(10),
            lac_wait: Duration::from_secs(5),
            pending_bytes_max: 64 << 20,
            unflushed_bytes_max: 1 << 20,
            retry_first: Duration::from_millis(100),
            retry_longest: Duration::from_secs(10),
        }
    }
}

/// What a request weighs besides its entry: head of the frame, ids, key.
const REQUEST_BYTES: usize = 128;

/// The largest entry that fits into a frame together with what a request puts around it, in bytes.
pub const ENTRY_BYTES_MAX: usize = FRAME_BYTES_MAX - REQUEST_BYTES;

#[cfg(test)]
mod tests;

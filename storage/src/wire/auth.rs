//! How a client proves to a bookie who it is.

use bytes::Bytes;

use super::connection::AuthStep;
use crate::id::BookieId;

/// A way to prove who the client is, of which bookies have the other half.
pub trait AuthPlugin: Send + Sync {
    /// The name that both halves have.
    fn name(&self) -> &str;

    /// Begins the proof on a new connection to a bookie.
    fn begin(&self, bookie: &BookieId) -> Box<dyn AuthExchange>;
}

/// The proof on one connection. It is asked from within the connection's task and must not block.
pub trait AuthExchange: Send {
    /// What the client says first, and then after each thing the bookie has said. `heard` is none the first time.
    ///
    /// # Errors
    /// Why there is no proof, for people; the connection is given up. It must hold no secret.
    fn next(&mut self, heard: Option<Bytes>) -> Result<AuthStep, String>;
}

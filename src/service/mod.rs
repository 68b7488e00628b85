//! The process that holds a region carries out commands for itself and for others.
//!
//! A command that runs in the process that holds the region takes the same way as one that comes over its socket: a
//! connection, in memory or not, with one command in it.

mod consume;
mod host;
mod lanes;
mod ledgers;
pub(crate) mod line;
mod links;
mod publish;
mod quarantine;
mod receive;
mod replicate;
mod socket;
mod stops;
mod target;
mod topics;
pub(crate) mod words;

pub(crate) use consume::{Consumable, decode as decode_entry};
pub(crate) use host::{Attached, ENDING, Host, PATIENCE, PAUSE, attach, holder};
pub(crate) use publish::{LINE_BYTES_MAX, too_long};

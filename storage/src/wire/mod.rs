//! Apache BookKeeper's wire protocol: what clients and bookies say to each other over TCP.
//!
//! A stream carries frames of a length and a content. The content is a message in one of two protocols, of which
//! a connection speaks one: [`v3`] in protobuf, and [`v2`], older and leaner, which has no request ids and lacks most
//! operations. Both are put into [`Request`] and [`ResponseBody`] here, so that nobody else needs to know which it was.

#[cfg(feature = "io")]
mod auth;
#[cfg(feature = "io")]
mod bookies;
mod connection;
mod frame;
mod message;
#[cfg(feature = "io")]
mod resolve;
#[cfg(feature = "io")]
mod server;
mod status;
#[cfg(feature = "io")]
mod tls;
pub mod v2;
pub mod v3;
mod words;

#[cfg(feature = "io")]
pub use self::auth::{AuthExchange, AuthPlugin};
#[cfg(feature = "io")]
pub use self::bookies::{TcpBookies, TcpConfig};
#[cfg(feature = "io")]
pub use self::resolve::{BookieAddress, BookieResolver, IdsAreAddresses};
#[cfg(feature = "io")]
pub use self::server::BookieServer;
#[cfg(feature = "io")]
pub use self::tls::{TlsClient, TlsError, TlsIdentity, TlsServer};

pub use self::connection::{
    AuthStep, ENTRY_BYTES_MAX, Input, Limits, Lost, Machine, Output, Security,
};
pub use self::frame::{FRAME_BYTES_MAX, FrameError, Incoming, Outgoing};
pub use self::message::{
    AuthMessage, DecodeError, Durability, Operation, Priority, Request, RequestFrame, ResponseBody,
    ResponseFrame,
};
pub use self::status::Protocol;

/// The plugin name under which a bookie that wants no proof answers every proof.
pub const AUTH_DISABLED: &str = "AuthDisabledPlugin";

impl Protocol {
    /// Puts a request behind what is in `out`.
    ///
    /// # Panics
    /// If the request has no form in this protocol; see [`v2::can_say`].
    pub fn encode_request(self, frame: &RequestFrame, out: &mut Outgoing) {
        match self {
            Self::V2 => v2::encode_request(frame, out),
            Self::V3 => v3::encode_request(frame, out),
        }
    }

    /// Takes a request apart.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode_request(self, frame: bytes::Bytes) -> Result<RequestFrame, DecodeError> {
        match self {
            Self::V2 => v2::decode_request(frame),
            Self::V3 => v3::decode_request(frame),
        }
    }

    /// Puts an answer behind what is in `out`.
    ///
    /// # Panics
    /// If the answer is to a request that has no form in this protocol.
    pub fn encode_response(self, frame: &ResponseFrame, out: &mut Outgoing) {
        match self {
            Self::V2 => v2::encode_response(frame, out),
            Self::V3 => v3::encode_response(frame, out),
        }
    }

    /// Takes an answer apart.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode_response(self, frame: bytes::Bytes) -> Result<ResponseFrame, DecodeError> {
        match self {
            Self::V2 => v2::decode_response(frame),
            Self::V3 => v3::decode_response(frame),
        }
    }
}

#[cfg(test)]
mod codec_tests;

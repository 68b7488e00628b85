//! The protobuf messages of protocol 3, for taking them apart. Fields that are not named here are passed over.

use bytes::Bytes;
use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub(super) struct Header {
    #[prost(uint32, required, tag = "2")]
    pub(super) operation: u32,
    #[prost(uint64, required, tag = "3")]
    pub(super) transaction: u64,
    #[prost(uint32, optional, tag = "4")]
    pub(super) priority: Option<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Request {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<Header>,
    #[prost(message, optional, tag = "100")]
    pub(super) read: Option<ReadRequest>,
    #[prost(message, optional, tag = "101")]
    pub(super) add: Option<AddRequest>,
    #[prost(message, optional, tag = "102")]
    pub(super) auth: Option<AuthMessage>,
    #[prost(message, optional, tag = "103")]
    pub(super) write_lac: Option<WriteLac>,
    #[prost(message, optional, tag = "104")]
    pub(super) read_lac: Option<OfLedger>,
    #[prost(message, optional, tag = "107")]
    pub(super) force: Option<OfLedger>,
    #[prost(message, optional, tag = "108")]
    pub(super) list_entries: Option<OfLedger>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ReadRequest {
    #[prost(int64, required, tag = "1")]
    pub(super) ledger: i64,
    #[prost(int64, required, tag = "2")]
    pub(super) entry: i64,
    #[prost(bytes = "bytes", optional, tag = "3")]
    pub(super) key: Option<Bytes>,
    #[prost(int64, optional, tag = "4")]
    pub(super) previous_lac: Option<i64>,
    #[prost(int64, optional, tag = "5")]
    pub(super) wait_ms: Option<i64>,
    #[prost(int32, optional, tag = "100")]
    pub(super) flag: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AddRequest {
    #[prost(int64, required, tag = "1")]
    pub(super) ledger: i64,
    #[prost(int64, required, tag = "2")]
    pub(super) entry: i64,
    #[prost(bytes = "bytes", required, tag = "3")]
    pub(super) key: Bytes,
    #[prost(bytes = "bytes", required, tag = "4")]
    pub(super) body: Bytes,
    #[prost(int32, optional, tag = "5")]
    pub(super) write_flags: Option<i32>,
    #[prost(int32, optional, tag = "100")]
    pub(super) flag: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::wire) struct AuthMessage {
    #[prost(string, required, tag = "1")]
    pub(in crate::wire) plugin: String,
    #[prost(bytes = "bytes", required, tag = "2")]
    pub(in crate::wire) payload: Bytes,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WriteLac {
    #[prost(int64, required, tag = "1")]
    pub(super) ledger: i64,
    #[prost(int64, required, tag = "2")]
    pub(super) lac: i64,
    #[prost(bytes = "bytes", required, tag = "3")]
    pub(super) key: Bytes,
    #[prost(bytes = "bytes", required, tag = "4")]
    pub(super) body: Bytes,
}

/// A request that names a ledger and nothing else.
#[derive(Clone, PartialEq, Message)]
pub(super) struct OfLedger {
    #[prost(int64, required, tag = "1")]
    pub(super) ledger: i64,
}

/// Statuses are optional here although the protocol requires them: a missing one must not pass for a success.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Response {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<Header>,
    #[prost(int32, optional, tag = "2")]
    pub(super) status: Option<i32>,
    #[prost(message, optional, tag = "100")]
    pub(super) read: Option<ReadResponse>,
    #[prost(message, optional, tag = "101")]
    pub(super) add: Option<AddResponse>,
    #[prost(message, optional, tag = "102")]
    pub(super) auth: Option<AuthMessage>,
    #[prost(message, optional, tag = "103")]
    pub(super) write_lac: Option<Done>,
    #[prost(message, optional, tag = "104")]
    pub(super) read_lac: Option<ReadLacResponse>,
    #[prost(message, optional, tag = "105")]
    pub(super) bookie_info: Option<BookieInfo>,
    #[prost(message, optional, tag = "106")]
    pub(super) start_tls: Option<StartTls>,
    #[prost(message, optional, tag = "107")]
    pub(super) force: Option<Done>,
    #[prost(message, optional, tag = "108")]
    pub(super) list_entries: Option<ListEntries>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ReadResponse {
    #[prost(int32, optional, tag = "1")]
    pub(super) status: Option<i32>,
    #[prost(int64, required, tag = "2")]
    pub(super) ledger: i64,
    #[prost(int64, required, tag = "3")]
    pub(super) entry: i64,
    #[prost(bytes = "bytes", optional, tag = "4")]
    pub(super) body: Option<Bytes>,
    #[prost(int64, optional, tag = "5")]
    pub(super) max_lac: Option<i64>,
    #[prost(int64, optional, tag = "6")]
    pub(super) lac_since_ms: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AddResponse {
    #[prost(int32, optional, tag = "1")]
    pub(super) status: Option<i32>,
    #[prost(int64, required, tag = "2")]
    pub(super) ledger: i64,
    #[prost(int64, required, tag = "3")]
    pub(super) entry: i64,
}

/// An answer that names the ledger and nothing else.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Done {
    #[prost(int32, optional, tag = "1")]
    pub(super) status: Option<i32>,
    #[prost(int64, required, tag = "2")]
    pub(super) ledger: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ReadLacResponse {
    #[prost(int32, optional, tag = "1")]
    pub(super) status: Option<i32>,
    #[prost(int64, required, tag = "2")]
    pub(super) ledger: i64,
    #[prost(bytes = "bytes", optional, tag = "3")]
    pub(super) explicit: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "4")]
    pub(super) last: Option<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct BookieInfo {
    #[prost(int32, optional, tag = "1")]
    pub(super) status: Option<i32>,
    #[prost(int64, optional, tag = "2")]
    pub(super) total: Option<i64>,
    #[prost(int64, optional, tag = "3")]
    pub(super) free: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct StartTls {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ListEntries {
    #[prost(int32, optional, tag = "1")]
    pub(super) status: Option<i32>,
    #[prost(int64, required, tag = "2")]
    pub(super) ledger: i64,
    #[prost(bytes = "bytes", optional, tag = "3")]
    pub(super) availability: Option<Bytes>,
}

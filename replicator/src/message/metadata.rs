//! The protobuf records of a frame, with the field numbers of Pulsar's protocol.

use bytes::Bytes;

/// The property by which a replicated message names its position at the source, as
/// `ledger:entry`. Its name is Pulsar's.
pub const SOURCE_POSITION_PROPERTY: &str = "__MSG_PROP_REPL_SOURCE_POSITION";

/// What the broker that stored an entry wrote in front of it. It belongs to that broker's copy and
/// does not travel.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct BrokerEntryMetadata {
    /// When the entry was stored, in milliseconds since 1970.
    #[prost(uint64, optional, tag = "1")]
    pub broker_timestamp: Option<u64>,
    /// The number of the entry's last message in its topic, counted from 0 over all messages of
    /// all batches.
    #[prost(uint64, optional, tag = "2")]
    pub index: Option<u64>,
    /// Which entry of another cluster it is. An extension of this project: Pulsar has no such field
    /// and passes over it.
    #[prost(message, optional, tag = "1000")]
    pub origin: Option<Origin>,
}

/// The entry of another cluster that an entry is a copy of. Which cluster, the message says.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Origin {
    /// The source's incarnation in which it was taken.
    #[prost(uint64, required, tag = "1")]
    pub incarnation: u64,
    /// The ledger at the source.
    #[prost(uint64, required, tag = "2")]
    pub ledger: u64,
    /// The entry at the source.
    #[prost(uint64, required, tag = "3")]
    pub entry: u64,
    /// CRC32C of the entry's stored bytes at the source.
    #[prost(fixed32, required, tag = "4")]
    pub checksum: u32,
}

/// What a producer says about a message or a batch.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct MessageMetadata {
    /// The producer.
    #[prost(string, required, tag = "1")]
    pub producer_name: String,
    /// Its number of this message, or of the first in the batch.
    #[prost(uint64, required, tag = "2")]
    pub sequence_id: u64,
    /// When the producer made it, in milliseconds since 1970.
    #[prost(uint64, required, tag = "3")]
    pub publish_time: u64,
    /// The application's properties.
    #[prost(message, repeated, tag = "4")]
    pub properties: Vec<Property>,
    /// The cluster it was replicated from; none where it was published.
    #[prost(string, optional, tag = "5")]
    pub replicated_from: Option<String>,
    /// The key.
    #[prost(string, optional, tag = "6")]
    pub partition_key: Option<String>,
    /// The clusters it is meant for; all when empty.
    #[prost(string, repeated, tag = "7")]
    pub replicate_to: Vec<String>,
    /// How the payload is compressed.
    #[prost(enumeration = "Compression", optional, tag = "8")]
    pub compression: Option<i32>,
    /// The payload's bytes before compression.
    #[prost(uint32, optional, tag = "9")]
    pub uncompressed_size: Option<u32>,
    /// The messages in the payload. When set, even to 1, the payload is a batch.
    #[prost(int32, optional, tag = "11")]
    pub num_messages_in_batch: Option<i32>,
    /// The application's time, in milliseconds since 1970.
    #[prost(uint64, optional, tag = "12")]
    pub event_time: Option<u64>,
    /// The payload's key, itself encrypted, once per recipient.
    #[prost(message, repeated, tag = "13")]
    pub encryption_keys: Vec<EncryptionKey>,
    /// The algorithm of the encryption.
    #[prost(string, optional, tag = "14")]
    pub encryption_algo: Option<String>,
    /// Its parameter, such as the initial vector.
    #[prost(bytes = "bytes", optional, tag = "15")]
    pub encryption_param: Option<Bytes>,
    /// The schema's version in the cluster where it was published.
    #[prost(bytes = "bytes", optional, tag = "16")]
    pub schema_version: Option<Bytes>,
    /// Whether the key is base64 of the real one.
    #[prost(bool, optional, tag = "17")]
    pub partition_key_b64_encoded: Option<bool>,
    /// The key that decides order where it differs from the partition key.
    #[prost(bytes = "bytes", optional, tag = "18")]
    pub ordering_key: Option<Bytes>,
    /// Not to be delivered before, in milliseconds since 1970.
    #[prost(int64, optional, tag = "19")]
    pub deliver_at_time: Option<i64>,
    /// Set on entries that brokers write for themselves.
    #[prost(int32, optional, tag = "20")]
    pub marker_type: Option<i32>,
    /// The lower half of the transaction's id, which has a meaning only in its own cluster.
    #[prost(uint64, optional, tag = "22")]
    pub txnid_least_bits: Option<u64>,
    /// The upper half of the transaction's id.
    #[prost(uint64, optional, tag = "23")]
    pub txnid_most_bits: Option<u64>,
    /// The producer's number of the batch's last message.
    #[prost(uint64, optional, tag = "24")]
    pub highest_sequence_id: Option<u64>,
    /// Whether the value is null rather than empty.
    #[prost(bool, optional, tag = "25")]
    pub null_value: Option<bool>,
    /// What the chunks of one message have in common.
    #[prost(string, optional, tag = "26")]
    pub uuid: Option<String>,
    /// The chunks of the message.
    #[prost(int32, optional, tag = "27")]
    pub num_chunks_from_msg: Option<i32>,
    /// Their bytes in all.
    #[prost(int32, optional, tag = "28")]
    pub total_chunk_msg_size: Option<i32>,
    /// Which chunk this is, from 0.
    #[prost(int32, optional, tag = "29")]
    pub chunk_id: Option<i32>,
    /// Whether the key is null rather than empty.
    #[prost(bool, optional, tag = "30")]
    pub null_partition_key: Option<bool>,
    /// The messages of the batch that compaction removed.
    #[prost(uint32, repeated, packed = "false", tag = "31")]
    pub compacted_batch_indexes: Vec<u32>,
    /// The schema's id in a registry outside of Pulsar.
    #[prost(bytes = "bytes", optional, tag = "32")]
    pub schema_id: Option<Bytes>,
}

/// A name and a value.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Property {
    /// The name.
    #[prost(string, required, tag = "1")]
    pub key: String,
    /// The value.
    #[prost(string, required, tag = "2")]
    pub value: String,
}

/// The payload's key for one recipient.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct EncryptionKey {
    /// The recipient's key by name.
    #[prost(string, required, tag = "1")]
    pub key: String,
    /// The payload's key, encrypted with it.
    #[prost(bytes = "bytes", required, tag = "2")]
    pub value: Bytes,
    /// The application's notes on it.
    #[prost(message, repeated, tag = "3")]
    pub metadata: Vec<Property>,
}

/// How a payload is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum Compression {
    /// Not at all.
    None = 0,
    /// LZ4.
    Lz4 = 1,
    /// Zlib.
    Zlib = 2,
    /// Zstandard.
    Zstd = 3,
    /// Snappy.
    Snappy = 4,
}

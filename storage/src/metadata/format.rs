//! The stored form of a ledger's record: Apache BookKeeper's ledger metadata.
//!
//! ```text
//! "BookieMetadataFormatVersion" TAB "3" LF  varint(length)  protobuf message
//!                                   "2" LF  the same message as text
//!                                   "1" LF  lines
//! ```
//! A record is written in the version that it was read in. Fields that are not known here are kept and written again
//! behind the known ones.

mod lines;
mod text;

use std::collections::BTreeMap;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;
use prost::encoding::{DecodeContext, decode_key, skip_field};

use super::ledger::{
    FormatVersion, InvalidMetadata, LedgerEnd, LedgerMetadata, LedgerState, ListedOrder, Parts,
};
use crate::entry::{DigestType, Password};
use crate::id::{BookieId, EntryId};
use crate::quorum::{InvalidQuorumSizes, QuorumSizes};

const HEADER: &[u8] = b"BookieMetadataFormatVersion\t";
/// No version that was ever written has more digits.
const VERSION_DIGITS_MAX: usize = 10;

/// Stored bytes that are no record this code can read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The bytes do not start like ledger metadata.
    #[error("this is not ledger metadata: it does not start with the format header")]
    NotMetadata,
    /// A format version that is not supported.
    #[error("ledger metadata of format version {0} is not supported; 1 to 3 are")]
    UnsupportedVersion(String),
    /// The message cannot be decoded.
    #[error("the ledger metadata message is damaged: {0}")]
    Malformed(String),
    /// A digest that is not known, or of which entries cannot be read and written.
    #[error("ledgers with digest type {0} are not supported; only CRC32C is")]
    UnsupportedDigest(&'static str),
    /// A number is outside its range.
    #[error("the record's {field} is {value}, which is out of range")]
    OutOfRange {
        /// Name of the field.
        field: &'static str,
        /// What it says.
        value: i64,
    },
    /// Two ensembles start at the same entry.
    #[error("two ensembles start at entry {0}")]
    DuplicateEnsemble(EntryId),
    /// The quorum sizes fit no ledger.
    #[error(transparent)]
    Sizes(#[from] InvalidQuorumSizes),
    /// The record breaks another rule.
    #[error(transparent)]
    Invalid(#[from] InvalidMetadata),
}

#[derive(Clone, PartialEq, Message)]
struct Record {
    #[prost(int32, required, tag = "1")]
    write_quorum: i32,
    #[prost(int32, required, tag = "2")]
    ensemble_size: i32,
    #[prost(int64, required, tag = "3")]
    length: i64,
    #[prost(int64, optional, tag = "4")]
    last_entry: Option<i64>,
    #[prost(enumeration = "State", required, tag = "5")]
    state: i32,
    #[prost(message, repeated, tag = "6")]
    segments: Vec<Segment>,
    #[prost(enumeration = "Digest", optional, tag = "7")]
    digest: Option<i32>,
    #[prost(bytes = "vec", optional, tag = "8")]
    password: Option<Vec<u8>>,
    #[prost(int32, optional, tag = "9")]
    ack_quorum: Option<i32>,
    #[prost(int64, optional, tag = "10")]
    ctime: Option<i64>,
    #[prost(message, repeated, tag = "11")]
    custom: Vec<Custom>,
    #[prost(int64, optional, tag = "12")]
    creation_token: Option<i64>,
}

/// Fields with a higher tag are unknown here.
const LAST_KNOWN_TAG: u32 = 12;

#[derive(Clone, PartialEq, Message)]
struct Segment {
    #[prost(string, repeated, tag = "1")]
    members: Vec<String>,
    #[prost(int64, required, tag = "2")]
    first_entry: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Custom {
    #[prost(string, optional, tag = "1")]
    key: Option<String>,
    #[prost(bytes = "vec", optional, tag = "2")]
    value: Option<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
enum State {
    Open = 1,
    InRecovery = 2,
    Closed = 3,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
enum Digest {
    Crc32 = 1,
    Hmac = 2,
    Crc32c = 3,
    Dummy = 4,
}

impl State {
    const ALL: [Self; 3] = [Self::Open, Self::InRecovery, Self::Closed];

    const fn name(self) -> &'static str {
        match self {
            Self::Open => "OPEN",
            Self::InRecovery => "IN_RECOVERY",
            Self::Closed => "CLOSED",
        }
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }
}

impl Digest {
    const ALL: [Self; 4] = [Self::Crc32, Self::Hmac, Self::Crc32c, Self::Dummy];

    const fn name(self) -> &'static str {
        self.of_entries().name()
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|digest| digest.name() == name)
    }

    const fn of_entries(self) -> DigestType {
        match self {
            Self::Crc32 => DigestType::Crc32,
            Self::Hmac => DigestType::Hmac,
            Self::Crc32c => DigestType::Crc32c,
            Self::Dummy => DigestType::Dummy,
        }
    }
}

/// The stored form of a record.
#[must_use]
pub fn encode(metadata: &LedgerMetadata) -> Bytes {
    let body = match metadata.format() {
        FormatVersion::V1 => lines::encode(metadata).into(),
        FormatVersion::V2 => text::encode(&to_record(metadata), &metadata.unknown_fields),
        FormatVersion::V3 => delimited(&to_record(metadata), &metadata.unknown_fields),
    };
    let version = match metadata.format() {
        FormatVersion::V1 => b'1',
        FormatVersion::V2 => b'2',
        FormatVersion::V3 => b'3',
    };
    let mut bytes = BytesMut::with_capacity(HEADER.len() + 2 + body.len());
    bytes.put_slice(HEADER);
    bytes.put_slice(&[version, b'\n']);
    bytes.put_slice(&body);
    bytes.freeze()
}

/// Reads a stored record and checks every rule of it.
///
/// # Errors
/// [`FormatError`]; whatever the bytes are, nothing panics.
pub fn decode(bytes: &[u8]) -> Result<LedgerMetadata, FormatError> {
    let rest = bytes.strip_prefix(HEADER).ok_or(FormatError::NotMetadata)?;
    let end = rest.iter().take(VERSION_DIGITS_MAX + 1).position(|byte| *byte == b'\n');
    let (version, rest) = rest.split_at(end.ok_or(FormatError::NotMetadata)?);
    let body = &rest[1..];
    let (format, (record, unknown_fields)) = match version {
        b"1" => return lines::decode(body),
        b"2" => (FormatVersion::V2, text::decode(body)?),
        b"3" => (FormatVersion::V3, undelimited(body)?),
        other => {
            return Err(FormatError::UnsupportedVersion(
                String::from_utf8_lossy(other).escape_default().to_string(),
            ));
        }
    };
    Ok(LedgerMetadata::from_parts(to_parts(format, record, unknown_fields)?)?)
}

fn delimited(record: &Record, unknown_fields: &[u8]) -> Bytes {
    let message_bytes = record.encoded_len() + unknown_fields.len();
    let mut bytes = BytesMut::with_capacity(10 + message_bytes);
    prost::encoding::encode_varint(message_bytes as u64, &mut bytes);
    record.encode(&mut bytes).expect("a BytesMut grows as needed");
    bytes.put_slice(unknown_fields);
    bytes.freeze()
}

/// The message, and its unknown fields.
fn undelimited(mut body: &[u8]) -> Result<(Record, Bytes), FormatError> {
    let message_bytes = prost::encoding::decode_varint(&mut body).map_err(malformed)?;
    let message = usize::try_from(message_bytes).ok().and_then(|bytes| body.get(..bytes));
    let message = message.ok_or_else(|| FormatError::Malformed("it is cut short".into()))?;
    Ok((Record::decode(message).map_err(malformed)?, unknown_fields(message)?))
}

/// The fields of `message` that [`Record`] does not name, as they stand there. Those that a record must have are there.
fn unknown_fields(message: &[u8]) -> Result<Bytes, FormatError> {
    let mut missing = vec![1, 2, 3, 5];
    let mut unknown = BytesMut::new();
    let mut rest = message;
    while rest.has_remaining() {
        let start = rest;
        let (tag, wire_type) = decode_key(&mut rest).map_err(malformed)?;
        skip_field(wire_type, tag, &mut rest, DecodeContext::default()).map_err(malformed)?;
        missing.retain(|required| *required != tag);
        if tag > LAST_KNOWN_TAG {
            unknown.put_slice(&start[..start.len() - rest.len()]);
        }
    }
    match missing.first() {
        None => Ok(unknown.freeze()),
        Some(tag) => Err(FormatError::Malformed(format!("its field {tag} is not there"))),
    }
}

fn to_record(metadata: &LedgerMetadata) -> Record {
    let sizes = metadata.sizes();
    let small = |size: usize| i32::try_from(size).expect("quorum sizes are at most 64");
    let (state, end) = match metadata.state() {
        LedgerState::Open => (State::Open, LedgerEnd::default()),
        LedgerState::InRecovery => (State::InRecovery, LedgerEnd::default()),
        LedgerState::Closed(end) => (State::Closed, end),
    };
    let digest = metadata.digest().map(|digest| match digest {
        DigestType::Crc32c => Digest::Crc32c,
        DigestType::Crc32 => Digest::Crc32,
        DigestType::Hmac => Digest::Hmac,
        DigestType::Dummy => Digest::Dummy,
    });
    // As they were listed, and then what was not: each once.
    let mut left = metadata.custom().clone();
    let listed = metadata.custom_order.0.iter().filter_map(|key| left.remove_entry(key));
    let mut customs: Vec<_> = listed.collect();
    customs.extend(left);
    Record {
        write_quorum: small(sizes.write()),
        ensemble_size: small(sizes.ensemble()),
        length: signed(end.length),
        last_entry: Some(end.last_entry.map_or(-1, |entry| signed(entry.get()))),
        state: state as i32,
        segments: metadata
            .ensembles()
            .iter()
            .map(|(first, members)| Segment {
                members: members.iter().map(ToString::to_string).collect(),
                first_entry: signed(first.get()),
            })
            .collect(),
        digest: digest.map(|digest| digest as i32),
        password: digest.map(|_| metadata.password().as_bytes().to_vec()),
        ack_quorum: Some(small(sizes.ack())),
        ctime: metadata.ctime(),
        custom: customs
            .into_iter()
            .map(|(key, value)| Custom { key: Some(key), value: Some(value) })
            .collect(),
        creation_token: Some(signed(metadata.creation_token())),
    }
}

fn to_parts(
    format: FormatVersion,
    record: Record,
    unknown_fields: Bytes,
) -> Result<Parts, FormatError> {
    let length = unsigned("length", record.length)?;
    let state = match State::try_from(record.state) {
        Ok(State::Open) => LedgerState::Open,
        Ok(State::InRecovery) => LedgerState::InRecovery,
        Ok(State::Closed) => {
            let last_entry = match record.last_entry {
                None | Some(-1) => None,
                Some(id) => Some(EntryId(unsigned("last entry id", id)?)),
            };
            LedgerState::Closed(LedgerEnd { last_entry, length })
        }
        Err(_) => {
            return Err(FormatError::OutOfRange { field: "state", value: record.state.into() });
        }
    };
    let size = |field, size: i32| {
        usize::try_from(size).map_err(|_| FormatError::OutOfRange { field, value: size.into() })
    };
    let sizes = QuorumSizes::new(
        size("ensemble size", record.ensemble_size)?,
        size("write quorum size", record.write_quorum)?,
        // Records from before there were ack quorums: every bookie of the write quorum had to answer.
        size("ack quorum size", record.ack_quorum.unwrap_or(record.write_quorum))?,
    )?;
    let digest = match record.digest.map(Digest::try_from).transpose() {
        Ok(digest) => digest.map(Digest::of_entries),
        Err(_) => return Err(FormatError::UnsupportedDigest("(unknown number)")),
    };
    if digest.is_some() != record.password.is_some() {
        return Err(FormatError::Malformed("of digest and password only one is there".into()));
    }
    let mut ensembles = BTreeMap::new();
    for segment in record.segments {
        let first = EntryId(unsigned("first entry of an ensemble", segment.first_entry)?);
        let members = segment.members.into_iter().map(BookieId::from).collect();
        if ensembles.insert(first, members).is_some() {
            return Err(FormatError::DuplicateEnsemble(first));
        }
    }
    let listed = |custom: &Custom| custom.key.clone().unwrap_or_default();
    Ok(Parts {
        format,
        state,
        sizes,
        digest,
        password: Password::from(record.password.unwrap_or_default().as_slice()),
        ensembles,
        ctime: record.ctime,
        creation_token: unsigned("creation token", record.creation_token.unwrap_or(0))?,
        custom_order: ListedOrder(record.custom.iter().map(listed).collect()),
        custom: record
            .custom
            .into_iter()
            .map(|custom| (custom.key.unwrap_or_default(), custom.value.unwrap_or_default()))
            .collect(),
        unknown_fields,
    })
}

fn malformed(error: impl ToString) -> FormatError {
    FormatError::Malformed(error.to_string())
}

fn unsigned(field: &'static str, value: i64) -> Result<u64, FormatError> {
    u64::try_from(value).map_err(|_| FormatError::OutOfRange { field, value })
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).expect("ids, lengths and tokens stay below 2^63")
}

#[cfg(test)]
#[path = "format_tests.rs"]
mod tests;

//! The parts of a frame and its checksum.

use std::fmt;

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;

use super::checksum::joined;
use super::facts::Facts;
use super::metadata::{BrokerEntryMetadata, MessageMetadata};

/// A stored entry, seen as a frame. It shares the entry's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    bytes: Bytes,
    layout: Layout,
}

/// Bytes that are no frame, or a damaged one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The entry ends inside a part.
    #[error("the {part} needs {needed} bytes and {available} are left")]
    Truncated {
        /// The part of the frame.
        part: &'static str,
        /// The bytes it needs.
        needed: usize,
        /// The bytes that are there.
        available: usize,
    },
    /// The metadata or the payload is not what was written.
    #[error("the frame's checksum is {stored:08x} and its bytes have {computed:08x}")]
    ChecksumMismatch {
        /// The checksum in the frame.
        stored: u32,
        /// The checksum of its bytes.
        computed: u32,
    },
    /// A record of the frame is not the protobuf message it has to be.
    #[error("the {record} cannot be decoded: {reason}")]
    Undecodable {
        /// Which record.
        record: &'static str,
        /// What is wrong with it.
        reason: String,
    },
}

impl Frame {
    /// Finds the parts of `bytes`. Neither checksum nor metadata is looked at.
    ///
    /// # Errors
    /// [`FrameError::Truncated`] when a part reaches beyond the end.
    pub fn parse(bytes: Bytes) -> Result<Self, FrameError> {
        let layout = Layout::of(&bytes)?;
        Ok(Self { bytes, layout })
    }

    /// Compares the checksum with the bytes it covers. A frame without one passes.
    ///
    /// # Errors
    /// [`FrameError::ChecksumMismatch`].
    pub fn verify(&self) -> Result<(), FrameError> {
        self.layout.verify(&self.bytes)
    }

    /// What a replicator needs of the metadata, without decoding it.
    ///
    /// # Errors
    /// [`FrameError::Undecodable`] when the metadata is no sequence of protobuf fields or lacks a
    /// required one.
    pub fn facts(&self) -> Result<Facts<'_>, FrameError> {
        Facts::scan(self)
    }

    /// The metadata in full.
    ///
    /// # Errors
    /// [`FrameError::Undecodable`].
    pub fn metadata(&self) -> Result<MessageMetadata, FrameError> {
        self.facts()?;
        let bytes = self.bytes.slice(self.layout.metadata..self.layout.payload);
        MessageMetadata::decode(bytes).map_err(|e| undecodable("message metadata", e))
    }

    /// What the storing broker wrote in front, if it did.
    ///
    /// # Errors
    /// [`FrameError::Undecodable`].
    pub fn broker_entry_metadata(&self) -> Result<Option<BrokerEntryMetadata>, FrameError> {
        let Some(start) = self.layout.broker else { return Ok(None) };
        BrokerEntryMetadata::decode(&self.bytes[start..self.layout.message])
            .map(Some)
            .map_err(|e| undecodable("broker entry metadata", e))
    }

    /// The metadata's bytes.
    pub fn metadata_bytes(&self) -> &[u8] {
        &self.bytes[self.layout.metadata..self.layout.payload]
    }

    /// The checksum, if the frame has one.
    pub fn checksum(&self) -> Option<u32> {
        self.layout.checksum
    }

    /// All that stands before the payload.
    pub(super) fn head(&self) -> &[u8] {
        &self.bytes[..self.layout.payload]
    }

    /// The payload, shared with the entry.
    pub fn payload(&self) -> Bytes {
        self.bytes.slice(self.layout.payload..)
    }

    /// The whole entry.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }
}

/// Parses `frame` and compares its checksum, for bytes that are not shared.
///
/// # Errors
/// [`FrameError::Truncated`] and [`FrameError::ChecksumMismatch`].
pub fn verify(frame: &[u8]) -> Result<(), FrameError> {
    Layout::of(frame)?.verify(frame)
}

/// The frame of a new message: checksum, metadata, payload.
pub fn compose(metadata: &MessageMetadata, payload: &[u8]) -> Bytes {
    let length = metadata.encoded_len();
    let mut frame = BytesMut::with_capacity(HEADER_BYTES + length + payload.len());
    begin_message(&mut frame, length);
    metadata.encode(&mut frame).expect("a BytesMut grows");
    seal(&mut frame, crc32c::crc32c(payload), payload.len());
    frame.put_slice(payload);
    frame.freeze()
}

/// Writes what stands before `metadata_bytes` bytes of metadata; [`seal`] fills in the checksum.
pub(super) fn begin_message(frame: &mut BytesMut, metadata_bytes: usize) {
    let size = u32::try_from(metadata_bytes).expect("metadata is bounded by LENGTH_MAX");
    frame.put_u16(CHECKSUM_MAGIC);
    frame.put_u32(0);
    frame.put_u32(size);
}

/// Puts the checksum into `head`, which is all of a frame but its payload, by the payload's own CRC32C.
pub(super) fn seal(head: &mut [u8], payload: u32, payload_bytes: usize) {
    let checksum = joined(crc32c::crc32c(&head[CHECKSUM_END..]), payload, payload_bytes);
    head[CHECKSUM_START..CHECKSUM_END].copy_from_slice(&checksum.to_be_bytes());
}

pub(super) fn undecodable(record: &'static str, reason: impl fmt::Display) -> FrameError {
    FrameError::Undecodable { record, reason: reason.to_string() }
}

/// Where the parts of a frame begin. Each ends where the next begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    broker: Option<usize>,
    message: usize,
    checksum: Option<u32>,
    covered: usize,
    metadata: usize,
    payload: usize,
}

impl Layout {
    fn of(frame: &[u8]) -> Result<Self, FrameError> {
        let mut broker = None;
        let mut message = 0;
        if frame.starts_with(&BROKER_MAGIC.to_be_bytes()) {
            let start = MAGIC_BYTES + SIZE_BYTES;
            let size = number(frame, MAGIC_BYTES, "size of the broker entry metadata")?;
            broker = Some(start);
            message = end(frame, start, size, "broker entry metadata")?;
        }
        let mut checksum = None;
        let mut covered = message;
        // A frame without checksum begins with a size, and no size is as large as the magic.
        if frame[message..].starts_with(&CHECKSUM_MAGIC.to_be_bytes()) {
            checksum = Some(number(frame, message + MAGIC_BYTES, "checksum")?);
            covered = message + MAGIC_BYTES + SIZE_BYTES;
        }
        let size = number(frame, covered, "size of the message metadata")?;
        let metadata = covered + SIZE_BYTES;
        let payload = end(frame, metadata, size, "message metadata")?;
        Ok(Self { broker, message, checksum, covered, metadata, payload })
    }

    fn verify(&self, frame: &[u8]) -> Result<(), FrameError> {
        let Some(stored) = self.checksum else { return Ok(()) };
        let computed = crc32c::crc32c(&frame[self.covered..]);
        if stored == computed {
            Ok(())
        } else {
            Err(FrameError::ChecksumMismatch { stored, computed })
        }
    }
}

/// The u32 at `start`.
fn number(frame: &[u8], start: usize, part: &'static str) -> Result<u32, FrameError> {
    match frame.get(start..).and_then(|rest| rest.first_chunk()) {
        Some(bytes) => Ok(u32::from_be_bytes(*bytes)),
        None => Err(FrameError::Truncated {
            part,
            needed: SIZE_BYTES,
            available: frame.len().saturating_sub(start),
        }),
    }
}

/// Where a part of `size` bytes that begins at `start` ends.
fn end(frame: &[u8], start: usize, size: u32, part: &'static str) -> Result<usize, FrameError> {
    let available = (frame.len() - start).min(LENGTH_MAX);
    match usize::try_from(size) {
        Ok(size) if size <= available => Ok(start + size),
        _ => Err(FrameError::Truncated { part, needed: size as usize, available }),
    }
}

const BROKER_MAGIC: u16 = 0x0e02;
const CHECKSUM_MAGIC: u16 = 0x0e01;
const MAGIC_BYTES: usize = 2;
const SIZE_BYTES: usize = 4;
const CHECKSUM_START: usize = MAGIC_BYTES;
const CHECKSUM_END: usize = CHECKSUM_START + SIZE_BYTES;
/// Magic, checksum and the metadata's size.
pub(super) const HEADER_BYTES: usize = CHECKSUM_END + SIZE_BYTES;
/// Sizes are signed where Pulsar reads them.
const LENGTH_MAX: usize = i32::MAX as usize;

pub(super) const MAGIC_OF_BROKER_METADATA: [u8; MAGIC_BYTES] = BROKER_MAGIC.to_be_bytes();

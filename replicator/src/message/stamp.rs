//! What a broker writes in front of a frame when it stores it.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;

use super::frame::{FrameError, MAGIC_OF_BROKER_METADATA, verify};
use super::metadata::BrokerEntryMetadata;

/// A frame with room in front for the broker's metadata.
///
/// The index is known only under the topic's lock. Copying the frame happens before it, so that
/// under the lock a stamp costs a few bytes.
#[derive(Debug)]
pub struct Unstamped {
    bytes: BytesMut,
}

impl Unstamped {
    /// The bytes that a stamp may add to a frame.
    pub const ROOM_BYTES: usize = 2 + 4 + BROKER_METADATA_BYTES_MAX;

    /// Copies a frame that may lie in two pieces to the end of `buffer` and carves it off. Frames
    /// of one batch share the buffer's allocation when it has the capacity for all of them.
    pub fn carve(buffer: &mut BytesMut, head: &[u8], payload: &[u8]) -> Self {
        debug_assert!(buffer.is_empty(), "what is carved is all that was written");
        buffer.reserve(Self::ROOM_BYTES + head.len() + payload.len());
        buffer.put_bytes(0, Self::ROOM_BYTES);
        buffer.put_slice(head);
        buffer.put_slice(payload);
        Self { bytes: buffer.split() }
    }

    /// Compares the frame's checksum with its bytes.
    ///
    /// # Errors
    /// [`FrameError::Truncated`] and [`FrameError::ChecksumMismatch`].
    pub fn verify(&self) -> Result<(), FrameError> {
        verify(&self.bytes[Self::ROOM_BYTES..])
    }

    /// The entry to be stored.
    pub fn stamp(mut self, broker: BrokerEntryMetadata) -> Bytes {
        let length = broker.encoded_len();
        let start = Self::ROOM_BYTES - length - 6;
        let mut room = &mut self.bytes[start..Self::ROOM_BYTES];
        room.put_slice(&MAGIC_OF_BROKER_METADATA);
        room.put_u32(u32::try_from(length).expect("a few numbers take few bytes"));
        broker.encode(&mut room).expect("the room holds the longest record");
        self.bytes.advance(start);
        self.bytes.freeze()
    }
}

/// Two fields, each a key of one byte and a number of up to ten; and the origin, with a key of two
/// bytes and a length of one.
const BROKER_METADATA_BYTES_MAX: usize = 2 * (1 + 10) + 2 + 1 + ORIGIN_BYTES_MAX;
/// Three numbers of up to ten bytes and one of four, each with a key of one byte.
const ORIGIN_BYTES_MAX: usize = 3 * (1 + 10) + (1 + 4);

//! Frames on a stream of bytes: four bytes of length, and as many of content.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// The longest frame, without its four bytes of length: what bookies take by default. A bookie hangs up on a longer one.
pub const FRAME_BYTES_MAX: usize = 5 << 20;

const LENGTH_BYTES: usize = 4;

/// A payload at least this long is sent from where it is. A shorter one is copied behind the head of its frame: one
/// more piece in a vectored write costs more than the copy.
const SHARED_BYTES_MIN: usize = 4 << 10;

/// Bytes that are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Longer than allowed, or not a frame at all.
    #[error("a frame of {bytes} bytes was announced, the limit is {FRAME_BYTES_MAX}")]
    TooLong {
        /// How long it says it is.
        bytes: usize,
    },
}

/// What came from a stream and is not yet a whole frame.
#[derive(Debug, Default)]
pub struct Incoming {
    bytes: BytesMut,
}

impl Incoming {
    /// Where to put what arrives.
    #[must_use]
    pub const fn buffer(&mut self) -> &mut BytesMut {
        &mut self.bytes
    }

    /// The next whole frame, without its length. It shares the memory that it arrived in.
    ///
    /// # Errors
    /// [`FrameError`]; nothing that follows can be made sense of.
    pub fn next_frame(&mut self) -> Result<Option<Bytes>, FrameError> {
        let Some(length) = self.bytes.first_chunk::<LENGTH_BYTES>() else {
            return Ok(None);
        };
        let length = u32::from_be_bytes(*length) as usize;
        if length > FRAME_BYTES_MAX {
            return Err(FrameError::TooLong { bytes: length });
        }
        let whole = LENGTH_BYTES + length;
        if self.bytes.len() < whole {
            self.bytes.reserve(whole - self.bytes.len());
            return Ok(None);
        }
        let mut frame = self.bytes.split_to(whole);
        frame.advance(LENGTH_BYTES);
        Ok(Some(frame.freeze()))
    }
}

/// Frames on their way out, as pieces for a vectored write. Long payloads are shared with whoever else sends them.
#[derive(Debug, Default)]
pub struct Outgoing {
    pieces: VecDeque<Bytes>,
    /// Behind the pieces.
    tail: BytesMut,
    bytes: usize,
    /// Kept for the encoders, so that they allocate once per connection.
    pub(super) scratch: Vec<u8>,
}

impl Outgoing {
    /// Begins a frame of this length, which must be what is put next.
    pub(super) fn begin(&mut self, length: usize) {
        let length = u32::try_from(length).expect("whoever sends keeps to the limit of frames");
        self.put(&length.to_be_bytes());
    }

    pub(super) fn put(&mut self, bytes: &[u8]) {
        self.tail.put_slice(bytes);
        self.bytes += bytes.len();
    }

    pub(super) fn put_shared(&mut self, payload: &Bytes) {
        if payload.len() < SHARED_BYTES_MIN {
            return self.put(payload);
        }
        if !self.tail.is_empty() {
            self.pieces.push_back(self.tail.split().freeze());
        }
        self.pieces.push_back(payload.clone());
        self.bytes += payload.len();
    }
}

impl Buf for Outgoing {
    fn remaining(&self) -> usize {
        self.bytes
    }

    fn chunk(&self) -> &[u8] {
        self.pieces.front().map_or(&self.tail, |piece| piece)
    }

    fn chunks_vectored<'a>(&'a self, out: &mut [IoSlice<'a>]) -> usize {
        let pieces = self.pieces.iter().map(|piece| &**piece);
        let tail = (!self.tail.is_empty()).then_some(&*self.tail);
        let mut filled = 0;
        for (slot, piece) in out.iter_mut().zip(pieces.chain(tail)) {
            *slot = IoSlice::new(piece);
            filled += 1;
        }
        filled
    }

    fn advance(&mut self, count: usize) {
        self.bytes -= count;
        let mut left = count;
        while let Some(piece) = self.pieces.front_mut() {
            if left < piece.len() {
                return piece.advance(left);
            }
            left -= piece.len();
            self.pieces.pop_front();
        }
        self.tail.advance(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(stream: &[u8], step: usize) -> Vec<Bytes> {
        let (mut incoming, mut frames) = (Incoming::default(), Vec::new());
        for part in stream.chunks(step) {
            incoming.buffer().extend_from_slice(part);
            while let Some(frame) = incoming.next_frame().expect("good frames") {
                frames.push(frame);
            }
        }
        frames
    }

    #[test]
    fn frames_are_found_wherever_the_stream_is_cut() {
        let mut out = Outgoing::default();
        let long = Bytes::from(vec![7; SHARED_BYTES_MIN]);
        for payload in [&b""[..], b"a", b"bcd"] {
            out.begin(payload.len());
            out.put(payload);
        }
        out.begin(long.len() + 1);
        out.put(b"x");
        out.put_shared(&long);
        let stream = out.copy_to_bytes(out.remaining());
        for step in (1..20).chain([stream.len()]) {
            let found = frames(&stream, step);
            assert_eq!(found[..3], [&b""[..], b"a", b"bcd"]);
            assert_eq!((found[3][0], &found[3][1..]), (b'x', &long[..]));
            assert_eq!(found.len(), 4);
        }
    }

    #[test]
    fn a_long_payload_leaves_from_where_it_is_and_in_one_vectored_write_with_the_rest() {
        let payload = Bytes::from(vec![1; SHARED_BYTES_MIN]);
        let mut out = Outgoing::default();
        for _ in 0..2 {
            out.put(b"head");
            out.put_shared(&payload);
        }
        out.put(b"tail");
        let mut slices = [IoSlice::new(&[]); 8];
        assert_eq!(out.chunks_vectored(&mut slices), 5);
        for at in [1, 3] {
            assert_eq!(slices[at].as_ptr(), payload.as_ptr(), "it is not copied");
        }
        assert_eq!(out.remaining(), slices.iter().map(|slice| slice.len()).sum::<usize>());
    }

    #[test]
    fn what_was_written_in_part_goes_on_where_it_stopped() {
        let payload = Bytes::from((0..SHARED_BYTES_MIN).map(|i| i as u8).collect::<Vec<_>>());
        let whole = [b"head", &payload[..], b"tail"].concat();
        for step in [1, 3, 4, 5, 1000, whole.len()] {
            let (mut out, mut written) = (Outgoing::default(), Vec::new());
            out.put(b"head");
            out.put_shared(&payload);
            out.put(b"tail");
            while out.has_remaining() {
                let chunk = out.chunk();
                let count = chunk.len().min(step);
                written.extend_from_slice(&chunk[..count]);
                out.advance(count);
            }
            assert!(written == whole, "in steps of {step}");
        }
    }

    #[test]
    fn a_frame_beyond_the_limit_is_refused_before_its_content_comes() {
        let mut incoming = Incoming::default();
        incoming.buffer().extend_from_slice(b"HTTP/1.1 400");
        assert_eq!(incoming.next_frame(), Err(FrameError::TooLong { bytes: 0x4854_5450 }));
    }
}

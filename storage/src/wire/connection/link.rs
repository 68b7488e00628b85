//! A stream with its buffers.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Buf;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::io::{poll_read_buf, poll_write_buf};

use crate::wire::frame::{Incoming, Outgoing};

/// How much is read at a time.
const READ_BYTES: usize = 64 << 10;

/// A stream of bytes in both directions.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// An open stream.
pub(crate) struct Link {
    pub(crate) stream: Box<dyn Stream>,
    pub(crate) incoming: Incoming,
    pub(crate) outgoing: Outgoing,
    /// What was written may still be in a buffer of the stream.
    flushing: Flushing,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Flushing {
    Needed,
    Done,
}

/// Whether what arrives is wanted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reading {
    /// It is.
    Now,
    /// Not before something has left.
    Later,
}

/// What has happened on a stream.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Everything that was to leave has left.
    Flushed,
    /// Something has arrived.
    Received,
    /// The other side has closed.
    Closed,
}

impl Link {
    pub(crate) fn new(stream: Box<dyn Stream>) -> Self {
        let (incoming, outgoing) = Default::default();
        Self { stream, incoming, outgoing, flushing: Flushing::Done }
    }

    /// Writes what is to leave, in as few vectored writes as the stream takes, and reads what arrives.
    ///
    /// Cancel-safe: what was written and read is in the buffers.
    pub(crate) async fn turn(&mut self, reading: Reading) -> io::Result<Turn> {
        poll_fn(|context| self.poll_turn(context, reading)).await
    }

    fn poll_turn(&mut self, context: &mut Context<'_>, reading: Reading) -> Poll<io::Result<Turn>> {
        while self.outgoing.has_remaining() {
            match poll_write_buf(Pin::new(&mut self.stream), context, &mut self.outgoing)? {
                Poll::Ready(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(_) => self.flushing = Flushing::Needed,
                Poll::Pending => break,
            }
        }
        if !self.outgoing.has_remaining()
            && self.flushing == Flushing::Needed
            && Pin::new(&mut self.stream).poll_flush(context)?.is_ready()
        {
            self.flushing = Flushing::Done;
            return Poll::Ready(Ok(Turn::Flushed));
        }
        if reading == Reading::Later {
            return Poll::Pending;
        }
        let buffer = self.incoming.buffer();
        if buffer.capacity() - buffer.len() < READ_BYTES / 8 {
            buffer.reserve(READ_BYTES);
        }
        Poll::Ready(Ok(match ready!(poll_read_buf(Pin::new(&mut self.stream), context, buffer))? {
            0 => Turn::Closed,
            _ => Turn::Received,
        }))
    }
}

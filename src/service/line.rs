//! How commands and answers go over a stream of bytes: one line of JSON that asks, then frames both ways.
//!
//! ```text
//!   {"georepl":1,"command":{…}}\n      once, from the one who asks
//!   ┌────────┬──────┬───────────┐
//!   │ length │ kind │   body    │      any number, in both directions
//!   │  u32   │  u8  │           │
//!   └────────┴──────┴───────────┘
//! ```
//!
//! A word that is larger than a frame goes in pieces. Lines, frames and words have a bound; what is beyond it, or is not
//! understood, ends the connection with an error.

use std::path::Path;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use futures::{SinkExt, StreamExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{
    AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, ReadHalf,
    WriteHalf,
};
use tokio_util::codec::{FramedRead, FramedWrite, LengthDelimitedCodec};

use crate::exit::{Exit, Failure};

/// A stream of bytes both ways.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// What is sent in a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// JSON, of a kind that the command agrees on.
    Word(Bytes),
    /// Bytes of messages.
    Data(Bytes),
    /// No more will be sent.
    End,
}

/// How long the other side has to ask, or to say that it has taken what it was asked for.
pub(crate) const ANSWER: Duration = Duration::from_secs(10);

/// The connection broke, or the other side does not keep to the protocol.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Broken {
    #[error("the connection to the process that holds the region broke: {0}")]
    Connection(#[from] std::io::Error),
    #[error("what came over the connection is not understood: {0}")]
    Garbage(String),
    #[error(
        "{what} has {bytes} bytes, above the limit of {bytes_max}; name fewer topics or ledgers"
    )]
    TooLarge { what: &'static str, bytes: usize, bytes_max: usize },
}

/// The other side has not answered in time.
pub(crate) fn silent(directory: &Path) -> Failure {
    let message = format!(
        "the process that holds the region in {} has not answered for {} s; it may hang or be stopped",
        directory.display(),
        ANSWER.as_secs()
    );
    Failure::new(Exit::Unreachable, message)
}

/// The largest frame: an entry of the largest size and what is put around it.
const FRAME_BYTES_MAX: usize = (5 << 20) + (64 << 10);
/// The largest word, which is the report on a region: some hundred bytes for each of several 100,000 ledgers.
const WORD_BYTES_MAX: usize = 128 << 20;
/// The piece of a word that is sent in a frame.
const PIECE_BYTES: usize = 1 << 20;
/// The longest line that asks.
const LINE_BYTES_MAX: usize = 1 << 20;
/// What is gathered before it is written without being asked to.
const WRITE_BYTES: usize = 64 << 10;

/// What comes in.
pub(crate) struct Inbox {
    frames: FramedRead<BufReader<ReadHalf<Box<dyn Duplex>>>, LengthDelimitedCodec>,
    /// The pieces of a word that is not complete.
    pieces: BytesMut,
}

/// What goes out.
pub(crate) struct Outbox(FramedWrite<WriteHalf<Box<dyn Duplex>>, LengthDelimitedCodec>);

/// Asks over a new connection.
pub(crate) async fn ask(
    stream: Box<dyn Duplex>,
    request: &impl Serialize,
) -> Result<(Inbox, Outbox), Broken> {
    let (reading, mut writing) = tokio::io::split(stream);
    let mut line = serde_json::to_vec(request).expect("requests have no maps with strange keys");
    line.push(b'\n');
    bounded("the request", line.len(), LINE_BYTES_MAX)?;
    writing.write_all(&line).await?;
    Ok(framed(BufReader::new(reading), writing))
}

/// Takes what is asked over a new connection; the line is not judged.
pub(crate) async fn asked(stream: Box<dyn Duplex>) -> Result<(Vec<u8>, Inbox, Outbox), Broken> {
    let (reading, writing) = tokio::io::split(stream);
    let mut reading = BufReader::new(reading);
    let mut line = Vec::new();
    (&mut reading).take(LINE_BYTES_MAX as u64).read_until(b'\n', &mut line).await?;
    let (inbox, outbox) = framed(reading, writing);
    Ok((line, inbox, outbox))
}

fn framed(
    reading: BufReader<ReadHalf<Box<dyn Duplex>>>,
    writing: WriteHalf<Box<dyn Duplex>>,
) -> (Inbox, Outbox) {
    let codec = || LengthDelimitedCodec::builder().max_frame_length(FRAME_BYTES_MAX).new_codec();
    let mut writing = FramedWrite::new(writing, codec());
    writing.set_backpressure_boundary(WRITE_BYTES);
    let frames = FramedRead::new(reading, codec());
    (Inbox { frames, pieces: BytesMut::new() }, Outbox(writing))
}

impl Inbox {
    /// The next frame; none when the other side has gone. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<Option<Frame>, Broken> {
        loop {
            let Some(frame) = self.frames.next().await else { return Ok(None) };
            let mut body = frame?;
            if body.is_empty() {
                return Err(Broken::Garbage("a frame without a kind".into()));
            }
            let kind = body.split_to(1)[0];
            match kind {
                PIECE => self.add(&body)?,
                WORD if self.pieces.is_empty() => return Ok(Some(Frame::Word(body.freeze()))),
                WORD => {
                    self.add(&body)?;
                    return Ok(Some(Frame::Word(std::mem::take(&mut self.pieces).freeze())));
                }
                DATA => return Ok(Some(Frame::Data(body.freeze()))),
                END => return Ok(Some(Frame::End)),
                other => return Err(Broken::Garbage(format!("a frame of kind {other}"))),
            }
        }
    }

    fn add(&mut self, piece: &[u8]) -> Result<(), Broken> {
        bounded("the answer", self.pieces.len() + piece.len(), WORD_BYTES_MAX)?;
        self.pieces.extend_from_slice(piece);
        Ok(())
    }

    /// The next piece of data; none when there is no more. Cancel-safe.
    pub(crate) async fn data(&mut self) -> Result<Option<Bytes>, Broken> {
        match self.next().await? {
            Some(Frame::Data(data)) => Ok(Some(data)),
            Some(Frame::End) | None => Ok(None),
            Some(Frame::Word(_)) => Err(Broken::Garbage("a word where data was due".into())),
        }
    }

    /// Waits until the other side has no more to say. Cancel-safe.
    pub(crate) async fn end(&mut self) {
        // Whatever it is, nothing is expected but the end.
        while let Ok(Some(Frame::Word(_) | Frame::Data(_))) = self.next().await {}
    }
}

impl Outbox {
    /// Sends a frame soon: with the next flush, or when enough has gathered.
    pub(crate) async fn feed(&mut self, frame: Frame) -> Result<(), Broken> {
        match frame {
            Frame::Word(mut rest) => {
                bounded("the report", rest.len(), WORD_BYTES_MAX)?;
                while rest.len() > PIECE_BYTES {
                    self.put(PIECE, rest.split_to(PIECE_BYTES)).await?;
                }
                self.put(WORD, rest).await
            }
            Frame::Data(body) => self.put(DATA, body).await,
            Frame::End => self.put(END, Bytes::new()).await,
        }
    }

    async fn put(&mut self, kind: u8, body: Bytes) -> Result<(), Broken> {
        let mut bytes = BytesMut::with_capacity(1 + body.len());
        bytes.put_u8(kind);
        bytes.put(body);
        Ok(self.0.feed(bytes.freeze()).await?)
    }

    /// Sends what has gathered.
    pub(crate) async fn flush(&mut self) -> Result<(), Broken> {
        Ok(SinkExt::<Bytes>::flush(&mut self.0).await?)
    }

    /// Sends a word now.
    pub(crate) async fn word(&mut self, word: &impl Serialize) -> Result<(), Broken> {
        let word = serde_json::to_vec(word).expect("words have no maps with strange keys");
        self.feed(Frame::Word(word.into())).await?;
        self.flush().await
    }
}

/// Reads a word.
pub(crate) fn parse<T: DeserializeOwned>(word: &[u8]) -> Result<T, Broken> {
    serde_json::from_slice(word).map_err(|error| Broken::Garbage(error.to_string()))
}

fn bounded(what: &'static str, bytes: usize, bytes_max: usize) -> Result<(), Broken> {
    match bytes > bytes_max {
        true => Err(Broken::TooLarge { what, bytes, bytes_max }),
        false => Ok(()),
    }
}

const WORD: u8 = b'W';
/// Of a word whose end is in a later frame.
const PIECE: u8 = b'P';
const DATA: u8 = b'D';
const END: u8 = b'E';

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn frames_arrive_as_they_were_sent() {
        let (here, there) = tokio::io::duplex(4 << 10);
        let word = |bytes: usize| {
            let word = (0..bytes).map(|n| b'a' + (n % 23) as u8).collect::<Vec<_>>();
            Frame::Word(word.into())
        };
        // Words of no, one and several pieces, and one byte around each bound.
        let frames = [
            Frame::Word("{}".into()),
            Frame::Data(Bytes::from(vec![7; 300])),
            word(PIECE_BYTES),
            word(PIECE_BYTES + 1),
            word(2 * PIECE_BYTES),
            word(FRAME_BYTES_MAX + 1),
            Frame::End,
        ];
        let sent = frames.clone();
        let send = async {
            let (inbox, mut outbox) = ask(Box::new(here), &"hello").await.unwrap();
            for frame in sent {
                outbox.feed(frame).await.unwrap();
            }
            outbox.flush().await.unwrap();
            drop((inbox, outbox));
        };
        let receive = async {
            let (line, mut inbox, _outbox) = asked(Box::new(there)).await.unwrap();
            let mut got = Vec::new();
            while let Some(frame) = inbox.next().await.unwrap() {
                got.push(frame);
            }
            (line, got)
        };
        let ((), (line, got)) = tokio::join!(send, receive);
        assert_eq!((line.as_slice(), got.as_slice()), (&b"\"hello\"\n"[..], &frames[..]));
    }

    #[tokio::test]
    async fn word_and_request_beyond_the_bound_are_named_and_the_connection_goes_on() {
        let (here, there) = tokio::io::duplex(4 << 10);
        let long = "x".repeat(LINE_BYTES_MAX);
        let refused = ask(Box::new(tokio::io::duplex(64).0), &long).await.err().unwrap();
        assert!(refused.to_string().contains("above the limit of 1048576"), "{refused}");
        let (_inbox, mut outbox) = ask(Box::new(here), &"hello").await.unwrap();
        let report = Bytes::from(vec![b' '; WORD_BYTES_MAX + 1]);
        let refused = outbox.feed(Frame::Word(report)).await.unwrap_err();
        assert!(refused.to_string().contains("above the limit of 134217728"), "{refused}");
        outbox.word(&"next").await.unwrap();
        let (_, mut inbox, _outbox) = asked(Box::new(there)).await.unwrap();
        assert_eq!(inbox.next().await.unwrap(), Some(Frame::Word("\"next\"".into())));
    }

    #[tokio::test]
    async fn garbage_and_frames_beyond_the_bound_are_errors() {
        for bad in [&b"\0\0\0\0"[..], b"\0\0\0\x01?", b"\xff\xff\xff\xffD"] {
            let (mut here, there) = tokio::io::duplex(64);
            here.write_all(b"\n").await.unwrap();
            here.write_all(bad).await.unwrap();
            let (_, mut inbox, _outbox) = asked(Box::new(there)).await.unwrap();
            assert!(inbox.next().await.is_err(), "{bad:?}");
        }
    }
}

//! The messages that are published: the lines of a file, repeated.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use bytes::Bytes;

/// The largest line, so that a stored entry fits a bookie's default frame of 5 MiB with room for
/// the metadata in front of the payload.
pub(crate) const LINE_BYTES_MAX: usize = (5 << 20) - (32 << 10);

/// All lines together, which are kept in memory.
const INPUT_BYTES_MAX: usize = 1 << 30;

/// What a line costs beside its bytes: its handle, the growth of the list of handles, and what the
/// allocator adds. Without it, empty lines would have no bound.
const LINE_BYTES: usize = 128;

/// Lines of bytes; they need not be text.
#[derive(Clone, Debug)]
pub(crate) struct Input(Vec<Bytes>);

/// Why there is nothing to publish. Nothing was.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InputError {
    #[error("cannot read {name}: {error}")]
    Unreadable { name: String, error: io::Error },
    #[error("{name} is empty: give at least one line to publish")]
    Empty { name: String },
    #[error(
        "line {line} of {name} is longer than the largest message, {LINE_BYTES_MAX} bytes: split it"
    )]
    LineTooLong { name: String, line: usize },
    #[error(
        "{name} is larger than {bytes_max} bytes, which are kept in memory, with {LINE_BYTES} \
         counted for each line: give a part of it"
    )]
    TooLarge { name: String, bytes_max: usize },
}

impl Input {
    /// The lines of a file, of standard input for `-`, or those that come with the program.
    pub(crate) fn open(path: Option<&Path>) -> Result<Self, InputError> {
        match path {
            None => Self::read("the built-in input", EARTHQUAKES, INPUT_BYTES_MAX),
            Some(path) if path == Path::new("-") => {
                Self::read("standard input", io::stdin().lock(), INPUT_BYTES_MAX)
            }
            Some(path) => {
                let name = path.display().to_string();
                match File::open(path) {
                    Ok(file) => Self::read(&name, BufReader::new(file), INPUT_BYTES_MAX),
                    Err(error) => Err(InputError::Unreadable { name, error }),
                }
            }
        }
    }

    /// Reads to the end, or until it is too much. An empty line is a message too.
    fn read(name: &str, mut reader: impl BufRead, bytes_max: usize) -> Result<Self, InputError> {
        let name = || name.to_owned();
        let (mut lines, mut bytes) = (Vec::new(), 0);
        loop {
            let mut line = Vec::new();
            // Never more than a line that fits and its end, whatever comes.
            let mut part = reader.by_ref().take(LINE_BYTES_MAX as u64 + 1);
            match part.read_until(b'\n', &mut line) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) => return Err(InputError::Unreadable { name: name(), error }),
            }
            if line.last() == Some(&b'\n') {
                line.pop();
            }
            if line.len() > LINE_BYTES_MAX {
                return Err(InputError::LineTooLong { name: name(), line: lines.len() + 1 });
            }
            bytes += line.len() + LINE_BYTES;
            if bytes > bytes_max {
                return Err(InputError::TooLarge { name: name(), bytes_max });
            }
            lines.push(Bytes::from(line));
        }
        if lines.is_empty() { Err(InputError::Empty { name: name() }) } else { Ok(Self(lines)) }
    }

    /// The payload of message `n`, counted from 0.
    pub(crate) fn message(&self, n: u64) -> &Bytes {
        &self.0[(n % self.0.len() as u64) as usize]
    }
}

/// Events of the earthquake feed of the U.S. Geological Survey, in the public domain.
const EARTHQUAKES: &[u8] = include_bytes!("earthquakes.ndjson");

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<Input, String> {
        Input::read("it", bytes, INPUT_BYTES_MAX).map_err(|error| error.to_string())
    }

    #[test]
    fn lines_are_bytes_and_repeat() {
        let input = read(b"a\n\n\xff\xfe").unwrap();
        let messages: Vec<_> = (0..4).map(|n| input.message(n).to_vec()).collect();
        assert_eq!(messages, [&b"a"[..], b"", b"\xff\xfe", b"a"]);
        assert_eq!(Input::open(None).unwrap().0.len(), 1_707);
    }

    #[test]
    fn empty_input_is_named() {
        assert!(read(b"").unwrap_err().contains("it is empty"));
        assert_eq!(read(b"\n").unwrap().message(0), &Bytes::new());
    }

    #[test]
    fn largest_line_passes_and_a_longer_one_is_named_by_its_number() {
        let mut bytes = b"short\n".to_vec();
        bytes.resize(bytes.len() + LINE_BYTES_MAX, b'x');
        bytes.push(b'\n');
        assert_eq!(read(&bytes).unwrap().message(1).len(), LINE_BYTES_MAX);
        bytes.insert(6, b'x');
        assert!(read(&bytes).unwrap_err().contains("line 2 of it is longer"));
    }

    #[test]
    fn endless_input_is_refused_however_short_its_lines_are() {
        for line in [&b"\n"[..], b"a line\n", &[b'x'; 1_000], b"\xff"] {
            let endless = std::iter::repeat(line.iter().chain(b"\n")).flatten().copied();
            let mut endless = endless.take(64 << 20);
            let reader = BufReader::new(Bytewise(&mut endless));
            let error = Input::read("it", reader, 1 << 20).unwrap_err();
            assert!(matches!(error, InputError::TooLarge { .. }), "{error}");
            let left = endless.count();
            assert!(left > 60 << 20, "it stops reading soon: {left} left");
        }
    }

    /// Reads what an iterator gives.
    struct Bytewise<'a, I>(&'a mut I);

    impl<I: Iterator<Item = u8>> Read for Bytewise<'_, I> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            Ok(buffer.iter_mut().zip(&mut *self.0).map(|(to, byte)| *to = byte).count())
        }
    }

    #[test]
    fn unreadable_file_is_named() {
        let error = Input::open(Some(Path::new("/no/such/file"))).unwrap_err().to_string();
        assert!(error.contains("cannot read /no/such/file"), "{error}");
    }
}

//! Entries on their way to standard output.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::Path;

use futures::FutureExt;
use georepl::Absent;
use serde_json::json;

use super::Found;
use super::talk::{Answer, Talk, ask};
use crate::cli::Output;
use crate::exit::{Failure, say};
use crate::interrupt::Interrupt;
use crate::service::words::Command;
use crate::service::{Consumable, decode_entry};

/// How an entry is printed.
#[derive(Clone, Copy)]
enum Form {
    /// Its bytes, and a new line.
    Line,
    Json,
    /// Position, and its bytes in hexadecimal.
    Hexadecimal,
}

pub(super) async fn run(
    directory: &Path,
    command: Command,
    output: &Output,
    interrupt: Interrupt,
) -> Result<Found, Failure> {
    let form = if output.json { Form::Json } else { Form::Line };
    printed(directory, command, form, Whole::OrLess, interrupt).await
}

/// What it means to be interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whole {
    /// There is no end to wait for.
    OrLess,
    /// Something is missing.
    Wanted,
}

pub(super) async fn run_hexadecimal(
    directory: &Path,
    command: Command,
    output: &Output,
    interrupt: Interrupt,
) -> Result<Found, Failure> {
    let form = if output.json { Form::Json } else { Form::Hexadecimal };
    printed(directory, command, form, Whole::Wanted, interrupt).await
}

async fn printed(
    directory: &Path,
    command: Command,
    form: Form,
    whole: Whole,
    interrupt: Interrupt,
) -> Result<Found, Failure> {
    let print = async |talk: &mut Talk| {
        let mut out = io::BufWriter::new(io::stdout());
        let mut entries: u64 = 0;
        loop {
            // What is there is printed at once, however much it is.
            let ready = talk.answer().now_or_never();
            let answer = match ready {
                Some(answer) => answer?,
                None => {
                    if let Err(error) = out.flush() {
                        return written(error);
                    }
                    talk.answer().await?
                }
            };
            let printed = match answer {
                Answer::Data(data) => {
                    let entry = decode_entry(data).map_err(Failure::failed)?;
                    entries += 1;
                    put(&mut out, &entry, form)
                }
                Answer::Progress(_) => Ok(()),
                Answer::Done(_) => {
                    if let Err(error) = out.flush() {
                        return written(error);
                    }
                    if whole == Whole::Wanted && talk.is_interrupted() {
                        say(format_args!("interrupted after {entries} entries; there may be more"));
                        return Ok(Found::Unhealthy);
                    }
                    return Ok(Found::Healthy);
                }
            };
            if let Err(error) = printed {
                return written(error);
            }
        }
    };
    ask(directory, Absent::Refuse, command, interrupt, print).await
}

/// Whoever read it has seen enough, or the output is full.
fn written(error: io::Error) -> Result<Found, Failure> {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Ok(Found::Healthy),
        _ => Err(Failure::failed(format!("the entries could not be written: {error}"))),
    }
}

fn put(out: &mut impl Write, entry: &Consumable, form: Form) -> io::Result<()> {
    let Consumable { position, payload } = entry;
    match form {
        Form::Line => {
            out.write_all(payload)?;
            out.write_all(b"\n")
        }
        Form::Json => {
            let position = position.to_string();
            // Text as text; what is none keeps every byte.
            let entry = match std::str::from_utf8(payload) {
                Ok(text) => json!({ "position": position, "payload": text }),
                Err(_) => json!({ "position": position, "payload_hex": hexadecimal(payload) }),
            };
            writeln!(out, "{entry}")
        }
        Form::Hexadecimal => writeln!(out, "{position} {}", hexadecimal(payload)),
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes any text");
        text
    })
}

//! Entries on their way to standard output.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::Path;

use futures::FutureExt;
use georepl::Absent;
use georepl::cursor::Position;
use serde::Deserialize;
use serde_json::{Value, json};

use super::talk::{Answer, Talk, ask};
use super::{Found, interrupted};
use crate::cli::Output;
use crate::exit::{Exit, Failure, say};
use crate::interrupt::Interrupt;
use crate::service::words::{Command, Consumed, Start};
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

/// Prints messages. If the process ends that holds the region, it goes on with whoever holds it next, or alone.
pub(super) async fn run(
    directory: &Path,
    mut command: Command,
    output: &Output,
    interrupt: Interrupt,
) -> Result<Found, Failure> {
    let mut printer = Printer::new(if output.json { Form::Json } else { Form::Line });
    loop {
        let printed = async |talk: &mut Talk| printer.print(talk).await;
        let printed = ask(directory, Absent::Refuse, command.clone(), interrupt.clone(), printed);
        match printed.await {
            Err(ended) if ended.exit == Exit::Ended => match printer.rest_of(&command) {
                Some(rest) => command = rest,
                None => return Err(ended),
            },
            Err(failure) => return Err(failure),
            Ok(Printed::All) => return Ok(Found::Healthy),
            Ok(Printed::Some(report)) => {
                let left = Consumed::deserialize(&report).map_err(Failure::failed)?.left;
                return Ok(interrupted(left));
            }
        }
    }
}

pub(super) async fn run_hexadecimal(
    directory: &Path,
    command: Command,
    output: &Output,
    interrupt: Interrupt,
) -> Result<Found, Failure> {
    let mut printer = Printer::new(if output.json { Form::Json } else { Form::Hexadecimal });
    let print = async |talk: &mut Talk| printer.print(talk).await;
    match ask(directory, Absent::Refuse, command, interrupt, print).await? {
        Printed::All => Ok(Found::Healthy),
        Printed::Some(_) => {
            let entries = printer.entries;
            say(format_args!("interrupted after {entries} entries; there may be more"));
            Ok(Found::Unhealthy)
        }
    }
}

/// Whether there is more than was printed.
enum Printed {
    All,
    /// It was interrupted, and the other side says how far it came.
    Some(Value),
}

struct Printer {
    form: Form,
    /// Entries printed in this connection.
    entries: u64,
    last: Option<Position>,
}

impl Printer {
    fn new(form: Form) -> Self {
        Self { form, entries: 0, last: None }
    }

    /// Prints what comes. Whoever reads it may have seen enough before.
    async fn print(&mut self, talk: &mut Talk) -> Result<Printed, Failure> {
        self.entries = 0;
        let mut out = io::BufWriter::new(io::stdout());
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
                    self.entries += 1;
                    self.last = Some(entry.position);
                    put(&mut out, &entry, self.form)
                }
                Answer::Progress(_) => Ok(()),
                Answer::Done(report) => {
                    if let Err(error) = out.flush() {
                        return written(error);
                    }
                    let interrupted = talk.is_interrupted();
                    return Ok(if interrupted { Printed::Some(report) } else { Printed::All });
                }
            };
            if let Err(error) = printed {
                return written(error);
            }
        }
    }

    /// What is left of a command; none if that is not known, because the end that it began at is not.
    fn rest_of(&self, command: &Command) -> Option<Command> {
        let Command::Consume { topic, from, count, until } = command.clone() else { return None };
        let from = match (self.last, from) {
            (Some(Position { ledger, entry }), _) => {
                Start::Behind { ledger: ledger.get(), entry: entry.get() }
            }
            (None, Start::Latest) => return None,
            (None, from) => from,
        };
        let count = count.map(|count| count.saturating_sub(self.entries));
        Some(Command::Consume { topic, from, count, until })
    }
}

/// Whoever read it has seen enough, or the output is full.
fn written(error: io::Error) -> Result<Printed, Failure> {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Ok(Printed::All),
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

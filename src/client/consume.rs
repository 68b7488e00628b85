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
use crate::service::words::{Command, Consumed, Start, Until};
use crate::service::{Consumable, ENDING, PATIENCE, decode_entry};

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
    let mut patience = PATIENCE;
    loop {
        printer.begin();
        let printed = async |talk: &mut Talk| printer.print(talk).await;
        let (asked, interrupt) = (command.clone(), interrupt.clone());
        match ask(directory, Absent::Refuse, patience, asked, interrupt, printed).await {
            Err(ended) if printer.may_go_on(&ended) => match printer.rest_of(&command) {
                Some(rest) => (command, patience) = (rest, ENDING),
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
    match ask(directory, Absent::Refuse, PATIENCE, command, interrupt, print).await? {
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
    /// As many were there when they were asked for in this connection; none if that was not told.
    wanted: Option<u64>,
    last: Option<Position>,
}

impl Printer {
    fn new(form: Form) -> Self {
        Self { form, entries: 0, wanted: None, last: None }
    }

    fn begin(&mut self) {
        (self.entries, self.wanted) = (0, None);
    }

    /// Whether somebody else may have the rest. Reading changes nothing, so a holder that was killed is as good as one
    /// that has said that it ends; but only if it got on, or this could go on for ever.
    fn may_go_on(&self, failure: &Failure) -> bool {
        match failure.exit {
            Exit::Ended => true,
            Exit::Unreachable => self.entries > 0,
            Exit::Failed | Exit::Usage | Exit::Refused => false,
        }
    }

    /// Prints what comes. Whoever reads it may have seen enough before.
    async fn print(&mut self, talk: &mut Talk) -> Result<Printed, Failure> {
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
                Answer::Progress(how_far) => {
                    self.wanted = how_far["wanted"].as_u64();
                    Ok(())
                }
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

    /// What is left of a command: what was there when it was first asked for, unless it follows. None if that is not
    /// known, because the end that it began at is not.
    fn rest_of(&self, command: &Command) -> Option<Command> {
        let Command::Consume { topic, from, count, until } = command.clone() else { return None };
        let from = match (self.last, from) {
            (Some(Position { ledger, entry }), _) => {
                Start::Behind { ledger: ledger.get(), entry: entry.get() }
            }
            (None, Start::Latest) => return None,
            (None, from) => from,
        };
        let wanted = self.wanted.filter(|_| until == Until::End);
        let count = wanted.into_iter().chain(count).min();
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

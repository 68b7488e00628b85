//! Lines on their way to a topic.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use bytes::Bytes;
use georepl::Absent;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::mpsc;

use super::talk::{Answer, Progress, Talk, answer, ask};
use super::{Found, show, shown};
use crate::cli::Output;
use crate::exit::{Exit, Failure};
use crate::interrupt::Interrupt;
use crate::service::line::{Broken, Frame};
use crate::service::words::{Command, Published, Rest};
use crate::service::{ENDING, LINE_BYTES_MAX, PATIENCE, too_long};

pub(super) async fn run(
    directory: &Path,
    topic: String,
    input: &Path,
    output: &Output,
    interrupt: Interrupt,
) -> Result<Found, Failure> {
    let mut lines = Lines::new(read(input)?);
    // As far as the other side has told, for when it tells no more.
    let mut known = Published { topic, ..Published::default() };
    let (mut absent, mut patience) = (Absent::Create, PATIENCE);
    let outcome = loop {
        let command = Command::Publish { so_far: known.clone() };
        let publish = async |talk: &mut Talk| published(talk, &mut known, &mut lines).await;
        match ask(directory, absent, patience, command, interrupt.clone(), publish).await {
            // It has told of all that it wrote. The rest is for whoever holds the region next, or for this process.
            Err(ended) if ended.exit == Exit::Ended => {
                (absent, patience) = (Absent::Refuse, ENDING);
            }
            outcome => break outcome,
        }
    };
    known.failed = outcome.as_ref().err().map(|failure| failure.message.clone());
    if outcome.is_err() && !output.json {
        return outcome.map(|()| Found::Healthy);
    }
    let report = serde_json::to_value(&known).expect("a report of text and numbers");
    let shown = shown(&report, output, show::published);
    outcome?;
    shown.map_err(|failure| Failure {
        message: format!("{failure}; {}", known.durable()),
        ..failure
    })
}

/// Why there are no more lines although the last one was not read.
struct Cut {
    failure: Failure,
    rest: Rest,
}

/// Lines that are not known to be durable, and those that are still to be read.
struct Lines {
    /// Sent, or to be sent again. As many as fit between here and there.
    unanswered: Mutex<VecDeque<Bytes>>,
    source: mpsc::Receiver<Result<Bytes, Cut>>,
    cut: Option<Cut>,
}

impl Lines {
    fn new(source: mpsc::Receiver<Result<Bytes, Cut>>) -> Self {
        Self { unanswered: Mutex::default(), source, cut: None }
    }
}

async fn published(
    talk: &mut Talk,
    known: &mut Published,
    lines: &mut Lines,
) -> Result<(), Failure> {
    let Talk { directory, inbox, outbox, interrupt, .. } = talk;
    let Lines { unanswered, source, cut } = lines;
    // Both at once, so that neither side waits for the other to read.
    let send = async {
        let again: Vec<_> = unanswered.lock().iter().cloned().collect();
        for line in again {
            outbox.feed(Frame::Data(line)).await?;
        }
        outbox.flush().await?;
        while cut.is_none() {
            let line = tokio::select! {
                biased;
                // What was read before is published; what comes later is not read.
                () = interrupt.wait() => {
                    let failure = Failure::failed("interrupted before the last line");
                    // All of them were taken, and their end was not seen yet.
                    let ended = source.is_closed() && source.is_empty();
                    *cut = (!ended).then_some(Cut { failure, rest: Rest::NotWritten });
                    break;
                }
                line = source.recv() => line,
            };
            match line {
                Some(Ok(line)) => {
                    unanswered.lock().push_back(line.clone());
                    outbox.feed(Frame::Data(line)).await?;
                }
                Some(Err(why)) => *cut = Some(why),
                None => break,
            }
            if source.is_empty() {
                outbox.flush().await?;
            }
        }
        outbox.feed(Frame::End).await?;
        outbox.flush().await
    };
    let send = async {
        // If it fails, what comes back says why, or that nothing will.
        let _: Result<(), Broken> = send.await;
        std::future::pending::<Result<(), Failure>>().await
    };
    let mut learn = |report: &Value| {
        let told = Published::deserialize(report).map_err(Failure::failed)?;
        let durable = told.messages.saturating_sub(known.messages);
        let mut unanswered = unanswered.lock();
        let durable =
            usize::try_from(durable).map_or(unanswered.len(), |n| n.min(unanswered.len()));
        unanswered.drain(..durable);
        *known = told;
        Ok::<_, Failure>(())
    };
    let receive = async {
        let progress = Progress::new();
        loop {
            match answer(directory, inbox).await? {
                Answer::Done(report) => {
                    return learn(&report);
                }
                Answer::Progress(how_far) => {
                    progress.show(&how_far);
                    learn(&how_far)?;
                }
                Answer::Data(_) => return Err(Failure::failed("data where none was asked for")),
            }
        }
    };
    let outcome = tokio::select! {
        outcome = receive => outcome,
        never = send => never,
    };
    let (failure, rest) = match outcome {
        Ok(()) => match cut.take() {
            Some(Cut { failure, rest }) => (failure, rest),
            None => return Ok(()),
        },
        // It has said itself how to go on, unless it has gone without a word.
        Err(failure) if failure.exit == Exit::Unreachable => (failure, Rest::InDoubt),
        Err(failure) => return Err(failure),
    };
    Err(Failure { message: format!("{failure}; {}", known.then(rest)), ..failure })
}

/// The lines of a file or of standard input, by a thread of their own that waits while nobody takes them. It is left
/// behind when the process ends, because a read of a terminal cannot be cut short.
fn read(input: &Path) -> Result<mpsc::Receiver<Result<Bytes, Cut>>, Failure> {
    let (name, mut reader): (_, Box<dyn BufRead + Send>) = if input == Path::new("-") {
        ("standard input".to_owned(), Box::new(BufReader::new(io::stdin())))
    } else {
        let name = input.display().to_string();
        let opened = File::open(input);
        let file =
            opened.map_err(|error| Failure::failed(format!("cannot read {name}: {error}")))?;
        (name, Box::new(BufReader::new(file)))
    };
    let (sender, receiver) = mpsc::channel(LINES_MAX);
    std::thread::spawn(move || {
        for number in 1_u64.. {
            let Some(line) = next_line(&mut *reader, &name, number).transpose() else { return };
            let spoilt = line.is_err();
            if sender.blocking_send(line).is_err() || spoilt {
                return;
            }
        }
    });
    Ok(receiver)
}

fn next_line(reader: &mut dyn BufRead, name: &str, number: u64) -> Result<Option<Bytes>, Cut> {
    let mut line = Vec::new();
    // Never more than a line that fits and its end, whatever comes.
    let read = reader.take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', &mut line);
    match read {
        Ok(0) => return Ok(None),
        Ok(_) => {}
        Err(error) => {
            let failure = Failure::failed(format!("cannot read {name}: {error}"));
            return Err(Cut { failure, rest: Rest::NotWritten });
        }
    }
    if line.last() == Some(&b'\n') {
        line.pop();
    }
    if line.len() > LINE_BYTES_MAX {
        let failure = Failure::failed(too_long(number, name));
        return Err(Cut { failure, rest: Rest::TooLong(number) });
    }
    Ok(Some(line.into()))
}

/// Lines that are read ahead.
const LINES_MAX: usize = 64;

//! A command on its way to the process that holds a region, and what comes back.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use georepl::Absent;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

use super::show;
use crate::exit::{Exit, Failure};
use crate::interrupt::Interrupt;
use crate::service::line::{self, Broken, Duplex, Frame, Inbox, Outbox};
use crate::service::words::{Command, Purpose, Reply, Request, VERSION};
use crate::service::{Attached, Host, PAUSE, attach};

/// A command that was taken.
pub(super) struct Talk {
    /// Of the region, as its user gave it.
    pub(super) directory: PathBuf,
    pub(super) inbox: Inbox,
    pub(super) outbox: Outbox,
    pub(super) interrupt: Interrupt,
    interrupted: Interrupted,
}

/// Whether the other side was told that no more is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Interrupted {
    No,
    Yes,
}

/// Finds or becomes the process that holds the region, and lets `talk` talk to it. A holder that serves nobody has
/// `patience` to end.
pub(super) async fn ask<R>(
    directory: &Path,
    absent: Absent,
    patience: Duration,
    command: Command,
    interrupt: Interrupt,
    talk: impl AsyncFnOnce(&mut Talk) -> Result<R, Failure>,
) -> Result<R, Failure> {
    let request = Request { georepl: VERSION, command };
    let begun = Instant::now();
    let (mut talking, host) = loop {
        let (stream, host): (Box<dyn Duplex>, _) =
            match attach(directory, absent, patience, Purpose::Command).await? {
                Attached::Remote(stream) => (Box::new(stream), None),
                Attached::Local(host) => {
                    let (here, there) = tokio::io::duplex(DUPLEX_BYTES);
                    host.serve(Box::new(there));
                    (Box::new(here), Some(host))
                }
            };
        match Talk::taken(directory, stream, &request, interrupt.clone()).await {
            Ok(talking) => break (talking, host),
            Err(NotTaken::Failed(failure)) => {
                close(host).await?;
                return Err(failure);
            }
            // It was about to end: somebody else will hold the region, or this process.
            Err(NotTaken::Broken(error)) if host.is_some() || begun.elapsed() > patience => {
                close(host).await?;
                return Err(Failure::new(Exit::Unreachable, error));
            }
            Err(NotTaken::Broken(_)) => tokio::time::sleep(PAUSE).await,
        }
    };
    let result = talk(&mut talking).await;
    drop(talking);
    let closed = close(host).await;
    let value = result?;
    closed?;
    Ok(value)
}

async fn close(host: Option<Arc<Host>>) -> Result<(), Failure> {
    match host {
        Some(host) => host.close().await,
        None => Ok(()),
    }
}

enum NotTaken {
    Failed(Failure),
    Broken(Broken),
}

impl From<Broken> for NotTaken {
    fn from(error: Broken) -> Self {
        Self::Broken(error)
    }
}

/// What comes back while a command is carried out.
pub(super) enum Answer {
    Data(Bytes),
    Progress(Value),
    Done(Value),
}

impl Talk {
    async fn taken(
        directory: &Path,
        stream: Box<dyn Duplex>,
        request: &Request,
        interrupt: Interrupt,
    ) -> Result<Self, NotTaken> {
        let taken = async {
            let (mut inbox, outbox) = line::ask(stream, request).await?;
            let word = inbox.next().await?;
            Ok::<_, Broken>((inbox, outbox, word))
        };
        let silent = |_| NotTaken::Failed(line::silent(directory));
        let (inbox, outbox, word) =
            tokio::time::timeout(line::ANSWER, taken).await.map_err(silent)??;
        match word {
            Some(Frame::Word(word)) => match line::parse(&word)? {
                Reply::Taken => Ok(Self {
                    directory: directory.to_owned(),
                    inbox,
                    outbox,
                    interrupt,
                    interrupted: Interrupted::No,
                }),
                Reply::Failed(failure) => Err(NotTaken::Failed(failure)),
                Reply::Progress(_) | Reply::Done(_) => {
                    Err(Broken::Garbage("an answer out of turn".into()).into())
                }
            },
            Some(_) => Err(Broken::Garbage("data out of turn".into()).into()),
            None => Err(Broken::Garbage("no answer".into()).into()),
        }
    }

    /// The report at the end of a command.
    pub(super) async fn report(&mut self) -> Result<Value, Failure> {
        let progress = Progress::new();
        loop {
            match self.answer().await? {
                Answer::Done(report) => return Ok(report),
                Answer::Progress(how_far) => progress.show(&how_far),
                Answer::Data(_) => return Err(Failure::failed("data where none was asked for")),
            }
        }
    }

    /// Whether the other side was told that no more is wanted, so that its answer may not be all there is.
    pub(super) fn is_interrupted(&self) -> bool {
        self.interrupted == Interrupted::Yes
    }

    /// The next answer. When interrupted, it says that no more is wanted, and goes on until the other side is done.
    pub(super) async fn answer(&mut self) -> Result<Answer, Failure> {
        loop {
            tokio::select! {
                answer = answer(&self.directory, &mut self.inbox) => return answer,
                () = self.interrupt.wait() => {
                    self.interrupted = Interrupted::Yes;
                    // A connection that is broken will be seen as such.
                    let _ = self.outbox.feed(Frame::End).await;
                    let _ = self.outbox.flush().await;
                }
            }
        }
    }
}

/// The next answer, about the region in this directory.
pub(super) async fn answer(directory: &Path, inbox: &mut Inbox) -> Result<Answer, Failure> {
    let at = directory.display();
    let unreachable =
        |error| Failure::new(Exit::Unreachable, format!("the region in {at}: {error}"));
    match inbox.next().await.map_err(unreachable)? {
        Some(Frame::Data(data)) => Ok(Answer::Data(data)),
        Some(Frame::Word(word)) => match line::parse(&word).map_err(unreachable)? {
            Reply::Progress(how_far) => Ok(Answer::Progress(how_far)),
            Reply::Done(report) => Ok(Answer::Done(report)),
            Reply::Failed(failure) => Err(failure),
            Reply::Taken => Err(unreachable(Broken::Garbage("taken twice".into()))),
        },
        Some(Frame::End) | None => {
            let message = format!("the process that holds the region in {at} has gone");
            Err(Failure::new(Exit::Unreachable, message))
        }
    }
}

/// How far a long command has come, for people at a terminal.
pub(super) struct Progress(ProgressBar);

impl Progress {
    pub(super) fn new() -> Self {
        let bar = ProgressBar::new_spinner();
        let style = ProgressStyle::with_template("{spinner} {msg}");
        bar.set_style(style.expect("the template is well formed"));
        Self(bar)
    }

    pub(super) fn show(&self, how_far: &Value) {
        self.0.set_message(show::progress(how_far));
        self.0.tick();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Between the two ends of a command in this process.
const DUPLEX_BYTES: usize = 256 << 10;

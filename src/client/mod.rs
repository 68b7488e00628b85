//! Asks the process that holds a region, which may be this one, and shows what it answers.

mod consume;
mod publish;
mod show;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use georepl::Absent;
use indicatif::{ProgressBar, ProgressStyle};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::cli::{LedgerCommand, Output, Place, RegionCommand, TopicCommand, consent, until};
use crate::exit::{Exit, Failure, say};
use crate::interrupt::Interrupt;
use crate::service::line::{self, Broken, Duplex, Frame, Inbox, Outbox};
use crate::service::words::{self, Command, Move, Reply, Request, VERSION};
use crate::service::{Attached, Host, attach};

/// How a command went that did what it was asked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// All is well.
    Healthy,
    /// It has shown something that is not.
    Unhealthy,
}

/// A command that was taken.
struct Talk {
    inbox: Inbox,
    outbox: Outbox,
    interrupt: Interrupt,
}

/// Carries a command out.
pub(crate) async fn run(command: RegionCommand, interrupt: Interrupt) -> Result<Found, Failure> {
    use RegionCommand as On;
    match command {
        On::Publish { place, topic, input, output } => {
            publish::run(&place.region, topic, &input, &output, interrupt).await
        }
        On::Consume { place, topic, from, follow, count, output } => {
            let command = Command::Consume { topic, from, count, until: until(follow) };
            consume::run(&place.region, command, &output, interrupt).await
        }
        On::Serve { place } => serve(&place.region, interrupt).await,
        On::Replicate { from, to, topics, follow, output } => {
            // The process that does it may be elsewhere.
            let to = std::path::absolute(to).map_err(|error| Failure::new(Exit::Usage, error))?;
            let command = Command::Replicate { to, topics, until: until(follow) };
            tell(&from, command, &output, interrupt, show::replicated).await
        }
        On::Status { place, topics, output } => {
            tell(&place.region, Command::Status { topics }, &output, interrupt, show::status).await
        }
        On::Why { place, topics, output } => {
            tell(&place.region, Command::Why { topics }, &output, interrupt, show::why).await
        }
        On::StatsInternal { place, topic } => {
            let (command, output) = (Command::StatsInternal { topic }, Output { json: true });
            tell(&place.region, command, &output, interrupt, show::internal).await
        }
        On::Ledger(command) => ledger(command, interrupt).await,
        On::Topic(command) => on_topic(command, interrupt).await,
        On::Seek { place, topic, remote, to, rule, output } => {
            let how = Move::Seek(to);
            let (run, consent) = (rule.run(), rule.consent());
            let command = Command::Move { topic, remote, how, run, consent };
            tell(&place.region, command, &output, interrupt, show::moved).await
        }
        On::Skip { place, topic, remote, entries, rule, output } => {
            let how = Move::Skip(entries);
            let (run, consent) = (rule.run(), rule.consent());
            let command = Command::Move { topic, remote, how, run, consent };
            tell(&place.region, command, &output, interrupt, show::moved).await
        }
        On::Clear { place, topic, remote, rule, output } => {
            let (run, consent) = (rule.run(), rule.consent());
            let command = Command::Move { topic, remote, how: Move::Clear, run, consent };
            tell(&place.region, command, &output, interrupt, show::moved).await
        }
    }
}

async fn ledger(command: LedgerCommand, interrupt: Interrupt) -> Result<Found, Failure> {
    match command {
        LedgerCommand::List { place, output } => {
            tell(&place.region, Command::Ledgers, &output, interrupt, show::ledgers).await
        }
        LedgerCommand::Show { place, ledger, output } => {
            let command = Command::LedgerRecord { ledger };
            tell(&place.region, command, &output, interrupt, show::ledger).await
        }
        LedgerCommand::Read { place, ledger, first, last, output } => {
            let command = Command::LedgerEntries { ledger, first, last };
            consume::run_hexadecimal(&place.region, command, &output, interrupt).await
        }
        LedgerCommand::Check { place, ledgers, output } => {
            let command = Command::CheckLedgers { ledgers };
            tell(&place.region, command, &output, interrupt, show::checks).await
        }
        LedgerCommand::Recover { place, ledger, yes, output } => {
            let command = Command::RecoverLedger { ledger, consent: consent(yes) };
            tell(&place.region, command, &output, interrupt, show::recovered).await
        }
    }
}

async fn on_topic(command: TopicCommand, interrupt: Interrupt) -> Result<Found, Failure> {
    let (Place { region }, output, command) = match command {
        TopicCommand::List { place, output } => {
            let show = |out: &mut dyn io::Write, topics: &Vec<String>| show::topics(out, topics);
            return tell(&place.region, Command::Topics, &output, interrupt, show).await;
        }
        TopicCommand::Trim(one) => (one.place, one.output, Command::TrimTopic { topic: one.topic }),
        TopicCommand::Terminate(ended) => {
            let (consent, one) = (ended.consent(), ended.one);
            (one.place, one.output, Command::TerminateTopic { topic: one.topic, consent })
        }
        TopicCommand::Delete(ended) => {
            let (consent, one) = (ended.consent(), ended.one);
            (one.place, one.output, Command::DeleteTopic { topic: one.topic, consent })
        }
    };
    tell(&region, command, &output, interrupt, show::changed).await
}

/// Holds a region until interrupted.
async fn serve(directory: &Path, mut interrupt: Interrupt) -> Result<Found, Failure> {
    match attach(directory, Absent::Create).await? {
        Attached::Remote(_) => {
            let message = format!("the region in {} is served already", directory.display());
            Err(Failure::failed(message))
        }
        Attached::Local(host) => {
            say(format_args!("serving the region in {}; Ctrl-C ends it", directory.display()));
            interrupt.wait().await;
            host.close().await?;
            say("the region is closed");
            Ok(Found::Healthy)
        }
    }
}

/// Carries out a command that answers with one report, and shows it.
async fn tell<T: DeserializeOwned>(
    directory: &Path,
    command: Command,
    output: &Output,
    interrupt: Interrupt,
    show: fn(&mut dyn io::Write, &T) -> io::Result<Found>,
) -> Result<Found, Failure> {
    let talk = async |talk: &mut Talk| talk.report().await;
    let report = ask(directory, Absent::Refuse, command, interrupt, talk).await?;
    shown(&report, output, show)
}

/// Prints a report.
fn shown<T: DeserializeOwned>(
    report: &Value,
    output: &Output,
    show: fn(&mut dyn io::Write, &T) -> io::Result<Found>,
) -> Result<Found, Failure> {
    let known: T = T::deserialize(report).map_err(|error| {
        Failure::failed(format!(
            "the answer is not understood: {error}; it came from another version"
        ))
    })?;
    let mut text = Vec::new();
    let found = show(&mut text, &known).expect("memory takes any text");
    if output.json {
        text = serde_json::to_vec_pretty(report).expect("it was JSON");
        text.push(b'\n');
    }
    match print(&text) {
        Ok(()) => Ok(found),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(found),
        Err(error) => Err(Failure::failed(format!("the answer could not be written: {error}"))),
    }
}

fn print(text: &[u8]) -> io::Result<()> {
    use io::Write;
    let mut out = io::stdout().lock();
    out.write_all(text)?;
    out.flush()
}

/// Finds or becomes the process that holds the region, and lets `talk` talk to it.
async fn ask<R>(
    directory: &Path,
    absent: Absent,
    command: Command,
    interrupt: Interrupt,
    talk: impl AsyncFnOnce(&mut Talk) -> Result<R, Failure>,
) -> Result<R, Failure> {
    let request = Request { georepl: VERSION, command };
    let begun = Instant::now();
    let (mut talking, host) = loop {
        let (stream, host): (Box<dyn Duplex>, _) = match attach(directory, absent).await? {
            Attached::Remote(stream) => (Box::new(stream), None),
            Attached::Local(host) => {
                let (here, there) = tokio::io::duplex(DUPLEX_BYTES);
                host.serve(Box::new(there));
                (Box::new(here), Some(host))
            }
        };
        match Talk::taken(stream, &request, interrupt.clone()).await {
            Ok(talking) => break (talking, host),
            Err(NotTaken::Failed(failure)) => {
                close(host).await?;
                return Err(failure);
            }
            // It was about to end: somebody else will hold the region, or this process.
            Err(NotTaken::Broken(error)) if host.is_some() || begun.elapsed() > PATIENCE => {
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
enum Answer {
    Data(Bytes),
    Progress(Value),
    Done(Value),
}

impl Talk {
    async fn taken(
        stream: Box<dyn Duplex>,
        request: &Request,
        interrupt: Interrupt,
    ) -> Result<Self, NotTaken> {
        let taken = async {
            let (mut inbox, outbox) = line::ask(stream, request).await?;
            let word = inbox.next().await?;
            Ok::<_, Broken>((inbox, outbox, word))
        };
        let silent = |_| {
            let message = format!(
                "the process that holds the region has not answered for {} s; it may hang or be stopped",
                line::ANSWER.as_secs()
            );
            NotTaken::Failed(Failure::new(Exit::Unreachable, message))
        };
        let (inbox, outbox, word) =
            tokio::time::timeout(line::ANSWER, taken).await.map_err(silent)??;
        match word {
            Some(Frame::Word(word)) => match line::parse(&word)? {
                Reply::Taken => Ok(Self { inbox, outbox, interrupt }),
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
    async fn report(&mut self) -> Result<Value, Failure> {
        let progress = Progress::new();
        loop {
            match self.answer().await? {
                Answer::Done(report) => return Ok(report),
                Answer::Progress(how_far) => progress.show(&how_far),
                Answer::Data(_) => return Err(Failure::failed("data where none was asked for")),
            }
        }
    }

    /// The next answer. When interrupted, it says that no more is wanted, and goes on until the other side is done.
    async fn answer(&mut self) -> Result<Answer, Failure> {
        loop {
            tokio::select! {
                answer = answer(&mut self.inbox) => return answer,
                () = self.interrupt.wait() => {
                    // A connection that is broken will be seen as such.
                    let _ = self.outbox.feed(Frame::End).await;
                    let _ = self.outbox.flush().await;
                }
            }
        }
    }
}

async fn answer(inbox: &mut Inbox) -> Result<Answer, Failure> {
    let unreachable = |error| Failure::new(Exit::Unreachable, error);
    match inbox.next().await.map_err(unreachable)? {
        Some(Frame::Data(data)) => Ok(Answer::Data(data)),
        Some(Frame::Word(word)) => match line::parse(&word).map_err(unreachable)? {
            Reply::Progress(how_far) => Ok(Answer::Progress(how_far)),
            Reply::Done(report) => Ok(Answer::Done(report)),
            Reply::Failed(failure) => Err(failure),
            Reply::Taken => Err(unreachable(Broken::Garbage("taken twice".into()))),
        },
        Some(Frame::End) | None => {
            Err(Failure::new(Exit::Unreachable, "the process that holds the region has gone"))
        }
    }
}

/// How far a long command has come, for people at a terminal.
struct Progress(ProgressBar);

impl Progress {
    fn new() -> Self {
        let bar = ProgressBar::new_spinner();
        let style = ProgressStyle::with_template("{spinner} {msg}");
        bar.set_style(style.expect("the template is well formed"));
        Self(bar)
    }

    fn show(&self, how_far: &Value) {
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
/// How often a holder may end just when it is asked.
const PATIENCE: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(20);

//! A region that this process holds, and its socket.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use georepl::replicator::{EmbeddedTopic, EmbeddedTopics, Poison};
use georepl::{Absent, MissingBookie, OpenRegionError, Region};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use super::lanes::Lanes;
use super::line::{self, Broken, Duplex, Frame, Inbox, Outbox};
use super::words::{Command, Holder, Purpose, Reply, Request, VERSION, Versioned};
use super::{
    consume, ledgers, links, publish, quarantine, receive, replicate, socket, topics, words,
};
use crate::exit::{Exit, Failure, say};

/// A region that this process holds, and serves on its socket.
pub(crate) struct Host {
    pub(super) region: Arc<Region>,
    directory: PathBuf,
    purpose: Purpose,
    socket: PathBuf,
    /// Of the lock in its directory.
    lock: Option<FileId>,
    pub(super) lanes: Lanes,
    closing: watch::Sender<bool>,
    misplaced: watch::Sender<Option<Failure>>,
    accepting: Mutex<Option<JoinHandle<()>>>,
    serving: Mutex<JoinSet<()>>,
}

/// The way to a region.
pub(crate) enum Attached {
    /// Another process holds it.
    Remote(UnixStream),
    /// This one does.
    Local(Arc<Host>),
}

/// Finds the process that holds a region, or becomes it. One that serves nobody has `patience` to begin to serve, or to
/// end.
pub(crate) async fn attach(
    directory: &Path,
    absent: Absent,
    patience: Duration,
    purpose: Purpose,
) -> Result<Attached, Failure> {
    let begun = Instant::now();
    loop {
        if let Some(stream) = socket::connect(directory).await? {
            return Ok(Attached::Remote(stream));
        }
        match Host::open(directory, absent, purpose).await {
            Ok(host) => return Ok(Attached::Local(host)),
            // Its holder may be about to serve, or to end.
            Err(Held::Elsewhere(_)) if begun.elapsed() < patience => {
                tokio::time::sleep(PAUSE).await
            }
            Err(Held::Elsewhere(error)) => {
                let message = format!("{error}; it does not serve other processes");
                return Err(Failure::new(Exit::Unreachable, message));
            }
            Err(Held::Not(failure)) => return Err(failure),
        }
    }
}

/// Who is at the other end; none if it was about to end.
pub(crate) async fn holder(
    directory: &Path,
    stream: UnixStream,
) -> Result<Option<Holder>, Failure> {
    let request = Request { georepl: VERSION, command: Command::Holder };
    let told = async {
        let (mut inbox, _outbox) = line::ask(Box::new(stream), &request).await?;
        while let Some(Frame::Word(word)) = inbox.next().await? {
            match line::parse(&word)? {
                Reply::Taken | Reply::Progress(_) => {}
                Reply::Done(holder) => return Ok(Some(Ok(holder))),
                Reply::Failed(failure) => return Ok(Some(Err(failure))),
            }
        }
        Ok::<_, Broken>(None)
    };
    match tokio::time::timeout(line::ANSWER, told).await {
        Ok(Ok(Some(Ok(holder)))) => {
            serde_json::from_value(holder).map(Some).map_err(Failure::failed)
        }
        Ok(Ok(Some(Err(failure)))) => Err(failure),
        Ok(Ok(None) | Err(Broken::Connection(_))) => Ok(None),
        Ok(Err(broken)) => Err(Failure::new(Exit::Unreachable, broken)),
        Err(_) => Err(line::silent(directory)),
    }
}

/// Why a region cannot be held by this process.
enum Held {
    Elsewhere(OpenRegionError),
    Not(Failure),
}

impl Host {
    async fn open(directory: &Path, absent: Absent, purpose: Purpose) -> Result<Arc<Self>, Held> {
        let socket = socket::of(directory).map_err(Held::Not)?;
        let region = Region::builder().absent(absent).open(directory).await;
        let region = region.map_err(|error| match error {
            error @ OpenRegionError::InUse { .. } => Held::Elsewhere(error),
            OpenRegionError::TooFewBookies { opened, needed, ref missing, .. } => {
                let then = until_it_opens(directory, needed - opened, missing);
                Held::Not(Failure::failed(format!("{error}; {then}")))
            }
            error => Held::Not(Failure::failed(error)),
        })?;
        for missing in region.missing() {
            say(missing);
        }
        Self::of(region, directory, socket, purpose).map_err(Held::Not)
    }

    /// Serves a region that this process has opened.
    pub(super) fn of(
        region: Region,
        directory: &Path,
        socket: PathBuf,
        purpose: Purpose,
    ) -> Result<Arc<Self>, Failure> {
        let listener = socket::bind(&socket).map_err(|error| {
            Failure::failed(format!("cannot serve on {}: {error}", socket.display()))
        })?;
        let host = Arc::new(Self {
            region: Arc::new(region),
            // For people who are elsewhere.
            directory: std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned()),
            purpose,
            lock: file_id(&Region::lock_in(directory)),
            socket,
            lanes: Lanes::default(),
            closing: watch::Sender::new(false),
            misplaced: watch::Sender::new(None),
            accepting: Mutex::default(),
            serving: Mutex::default(),
        });
        let accepting = tokio::spawn(accept(listener, Arc::downgrade(&host)));
        *host.accepting.lock() = Some(accepting);
        Ok(host)
    }

    /// Serves a connection.
    pub(crate) fn serve(self: &Arc<Self>, stream: Box<dyn Duplex>) {
        let host = self.clone();
        let mut serving = self.serving.lock();
        while serving.try_join_next().is_some() {}
        serving.spawn(async move { host.converse(stream).await });
    }

    /// Lets the commands of others come to their end, those that would go on for ever at once, and closes the region.
    pub(crate) async fn close(&self) -> Result<(), Failure> {
        // First, so that nobody comes any more who would not be served. Another region may be in that place by now.
        if self.is_in_place() {
            let _ = fs::remove_file(&self.socket);
        }
        if let Some(accepting) = self.accepting.lock().take() {
            accepting.abort();
        }
        self.closing.send_replace(true);
        let mut serving = std::mem::take(&mut *self.serving.lock());
        // Whoever does not take their answer, or whom storage holds, is not waited for any longer.
        let served = async { while serving.join_next().await.is_some() {} };
        if tokio::time::timeout(SERVED, served).await.is_err() {
            serving.shutdown().await;
        }
        self.region.close().await.map_err(Failure::failed)
    }

    /// Resolves when the process is about to let go of the region.
    pub(super) async fn closing(&self) {
        let mut closing = self.closing.subscribe();
        // The sender lives as long as this object.
        let _ = closing.wait_for(|closing| *closing).await;
    }

    /// The region's directory.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Refuses what would be done to a region whose directory has gone from its place: what is written there now may be
    /// found by nobody.
    pub(super) fn in_place(&self) -> Result<(), Failure> {
        if self.is_in_place() {
            return Ok(());
        }
        let (directory, region) = (self.directory.display(), self.region.name());
        let process = std::process::id();
        let then = match self.purpose {
            Purpose::Serve => "that process ends",
            Purpose::Command => "end that process",
        };
        let failure = Failure::failed(format!(
            "{directory} was renamed or removed while process {process} held region {region} there; {then}; use the \
             region where it is now, or put it back"
        ));
        self.misplaced.send_replace(Some(failure.clone()));
        Err(failure)
    }

    fn is_in_place(&self) -> bool {
        file_id(&Region::lock_in(&self.directory)) == self.lock
    }

    /// Resolves when somebody has found the region's directory gone from its place.
    pub(crate) async fn misplaced(&self) -> Failure {
        let mut misplaced = self.misplaced.subscribe();
        let found = misplaced.wait_for(Option::is_some).await;
        let found = found.expect("the sender lives as long as this object").clone();
        found.expect("it was waited for")
    }

    /// The failure of a command that is cut short by it, and what to do then.
    pub(super) fn ending(&self, then: impl std::fmt::Display) -> Failure {
        let region = self.region.name();
        Failure::new(Exit::Ended, format!("the process that held region {region} ended; {then}"))
    }

    /// A topic that must be there.
    pub(super) async fn topic(&self, name: &str) -> Result<EmbeddedTopic, Failure> {
        match self.region.existing_topic(name).await {
            Ok(Some(topic)) => Ok(topic),
            Ok(None) => Err(self.has_no_topic(name)),
            Err(message) => Err(Failure::failed(message)),
        }
    }

    pub(super) fn has_no_topic(&self, name: &str) -> Failure {
        let region = self.region.name();
        Failure::failed(format!(
            "there is no topic {name} in region {region}; see georepl topic list"
        ))
    }

    /// A topic that is made if need be.
    pub(super) async fn topic_or_new(&self, name: &str) -> Result<EmbeddedTopic, Failure> {
        self.region.topic(name).await.map_err(Failure::failed)
    }

    async fn converse(self: &Arc<Self>, stream: Box<dyn Duplex>) {
        // Who asked and went away needs no answer.
        let asked = tokio::time::timeout(line::ANSWER, line::asked(stream)).await;
        let Ok(Ok((line, mut inbox, mut outbox))) = asked else { return };
        let asked = understood(&line).and_then(|command| self.in_place().map(|()| command));
        let reply = match asked {
            Err(failure) => Reply::Failed(failure),
            Ok(command) => {
                if outbox.word(&Reply::Taken).await.is_err() {
                    return;
                }
                match self.carry_out(command, &mut inbox, &mut outbox).await {
                    Ok(value) => Reply::Done(value),
                    Err(failure) => Reply::Failed(failure),
                }
            }
        };
        if let Err(too_large @ Broken::TooLarge { .. }) = outbox.word(&reply).await {
            let _ = outbox.word(&Reply::Failed(Failure::failed(too_large))).await;
        }
    }

    async fn carry_out(
        self: &Arc<Self>,
        command: Command,
        inbox: &mut Inbox,
        outbox: &mut Outbox,
    ) -> Result<Value, Failure> {
        match command {
            Command::Holder => told(Holder {
                region: self.region.name().to_string(),
                process: std::process::id(),
                purpose: self.purpose,
            }),
            Command::Publish { so_far } => told(publish::run(self, so_far, inbox, outbox).await?),
            Command::Consume { topic, from, count, until } => {
                let what = consume::What { topic, from, count, until };
                told(consume::run(self, what, inbox, outbox).await?)
            }
            Command::Replicate { to, topics, until, quarantine_after } => {
                let quarantine = |after| Poison::Quarantine { after };
                let poison = quarantine_after.map_or(Poison::Block, quarantine);
                told(replicate::run(self, to, topics, until, poison, inbox, outbox).await?)
            }
            Command::Receive { cluster, topic, owner, counter, incarnation, revision } => {
                let opening =
                    receive::opening(cluster, topic, owner, counter, incarnation, revision);
                told(receive::run(self, opening, inbox, outbox).await?)
            }
            Command::Status { topics } => told(looked(inbox, topics::status(self, topics)).await?),
            Command::Why { topics } => told(looked(inbox, links::why(self, topics)).await?),
            Command::StatsInternal { topic } => {
                told(looked(inbox, topics::internal(self, topic)).await?)
            }
            Command::AllStatsInternal => told(looked(inbox, topics::all_internal(self)).await?),
            Command::Ledgers => told(looked(inbox, ledgers::list(self)).await?),
            Command::LedgerRecord { ledger } => told(ledgers::record(self, ledger).await?),
            Command::LedgerEntries { ledger, first, last } => {
                told(ledgers::read(self, ledger, first, last, inbox, outbox).await?)
            }
            Command::CheckLedgers { ledgers } => {
                told(ledgers::check(self, ledgers, inbox, outbox).await?)
            }
            Command::RecoverLedger { ledger, consent } => {
                told(ledgers::recover(self, ledger, consent).await?)
            }
            Command::Move { topic, remote, how, run, consent } => {
                told(links::moved(self, topic, remote, how, run, consent).await?)
            }
            Command::Topics => told(self.region.topics().await.map_err(Failure::failed)?),
            Command::TrimTopic { topic } => told(topics::trim(self, topic).await?),
            Command::Retention { topic, seconds, bytes, run, consent } => {
                let change = topics::Retain { seconds, bytes };
                told(topics::retain(self, topic, change, run, consent).await?)
            }
            Command::Quarantine { topic, remote } => {
                told(quarantine::list(self, topic, remote).await?)
            }
            Command::Settle { topic, remote, ledger, entry, how, run, consent } => {
                let position = words::position(ledger, entry);
                let what = quarantine::What { topic, remote, position, how };
                told(quarantine::settle(self, what, run, consent).await?)
            }
            Command::TerminateTopic { topic, consent } => {
                told(topics::terminate(self, topic, consent).await?)
            }
            Command::DeleteTopic { topic, consent } => {
                told(topics::delete(self, topic, consent).await?)
            }
        }
    }
}

/// The outcome of looking at something, unless whoever asked does not want it any more.
async fn looked<T>(
    inbox: &mut Inbox,
    look: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    tokio::select! {
        result = look => result,
        () = inbox.end() => Err(Failure::failed("interrupted before the report was complete")),
    }
}

fn told(report: impl serde::Serialize) -> Result<Value, Failure> {
    Ok(serde_json::to_value(report).expect("reports have no maps with strange keys"))
}

fn understood(line: &[u8]) -> Result<Command, Failure> {
    let garbage = |error: serde_json::Error| {
        Failure::failed(format!("the request is not understood: {error}"))
    };
    let Versioned { georepl } = serde_json::from_slice(line).map_err(garbage)?;
    if georepl > VERSION {
        return Err(Failure::failed(format!(
            "the request has version {georepl}, and the process that holds the region speaks up to \
             version {VERSION}; run that process with the newer program"
        )));
    }
    Ok(serde_json::from_slice::<Request>(line).map_err(garbage)?.command)
}

async fn accept(listener: UnixListener, host: std::sync::Weak<Host>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let Some(host) = host.upgrade() else { return };
                host.serve(Box::new(stream));
            }
            Err(error) => {
                // Out of file descriptors, as a rule: some will be closed.
                tracing::warn!("a connection was not accepted: {error}");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Which file lies at a path; none if there is none, or it cannot be looked at.
fn file_id(path: &Path) -> Option<FileId> {
    let found = fs::symlink_metadata(path).ok()?;
    Some(FileId { device: found.dev(), inode: found.ino() })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileId {
    device: u64,
    inode: u64,
}

/// What to do, in order, about a region that has too few bookies to be opened, so that nothing can be checked.
fn until_it_opens(directory: &Path, lacking: usize, missing: &[MissingBookie]) -> String {
    let at = directory.display();
    let renew: Vec<_> = missing.iter().map(|missing| missing.bookie.to_string()).collect();
    let bookies = if lacking == 1 { "bookie" } else { "bookies" };
    format!(
        "1. put back the files that are only away; 2. if the region still does not open, renew {lacking} {bookies} whose \
         files are lost for good, of {}: georepl bookie renew --region {at} BOOKIE --yes (what only those held is gone \
         for good); 3. see what has lost copies: georepl ledger check --region {at}; 4. renew the others",
        renew.join(", ")
    )
}

/// How long the commands of others have to come to their end.
const SERVED: Duration = Duration::from_secs(15);
/// How long the next holder waits for one that has said that it ends.
pub(crate) const ENDING: Duration = SERVED.saturating_add(PATIENCE);
/// How long a region may be held by a process that does not serve it yet or no more, or that ends just when it is asked.
pub(crate) const PATIENCE: Duration = Duration::from_secs(3);
/// Before it is looked for again.
pub(crate) const PAUSE: Duration = Duration::from_millis(20);

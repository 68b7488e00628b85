//! A region that this process holds, and its socket.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use georepl::replicator::{EmbeddedTopic, EmbeddedTopics, Replicator};
use georepl::{Absent, OpenRegionError, Region};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use super::line::{self, Duplex, Inbox, Outbox};
use super::words::{Command, Name, Reply, Request, VERSION, Versioned};
use super::{consume, ledgers, links, publish, receive, replicate, topics};
use crate::exit::{Exit, Failure, say};

/// A region that this process holds, and serves on its socket.
pub(crate) struct Host {
    pub(super) region: Arc<Region>,
    socket: PathBuf,
    /// By topic and remote.
    pub(super) replicators: Mutex<BTreeMap<(String, String), Replicator>>,
    closing: watch::Sender<bool>,
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

/// Finds the process that holds a region, or becomes it.
pub(crate) async fn attach(directory: &Path, absent: Absent) -> Result<Attached, Failure> {
    let begun = Instant::now();
    loop {
        if let Some(stream) = connect(directory).await? {
            return Ok(Attached::Remote(stream));
        }
        match Host::open(directory, absent).await {
            Ok(host) => return Ok(Attached::Local(host)),
            // Its holder may be about to serve, or to end.
            Err(Held::Elsewhere(_)) if begun.elapsed() < PATIENCE => {
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

/// A connection to the process that serves the region; none if nobody does.
pub(super) async fn connect(directory: &Path) -> Result<Option<UnixStream>, Failure> {
    let socket = Region::socket_in(directory);
    check_length(&socket)?;
    match UnixStream::connect(&socket).await {
        Ok(stream) => Ok(Some(stream)),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound
                    | io::ErrorKind::ConnectionRefused
                    | io::ErrorKind::NotADirectory
            ) =>
        {
            Ok(None)
        }
        Err(error) => {
            let message = format!("cannot connect to {}: {error}", socket.display());
            Err(Failure::new(Exit::Unreachable, message))
        }
    }
}

/// Why a region cannot be held by this process.
enum Held {
    Elsewhere(OpenRegionError),
    Not(Failure),
}

impl Host {
    async fn open(directory: &Path, absent: Absent) -> Result<Arc<Self>, Held> {
        let socket = Region::socket_in(directory);
        check_length(&socket).map_err(Held::Not)?;
        let region = Region::builder().absent(absent).open(directory).await;
        let region = region.map_err(|error| match error {
            error @ OpenRegionError::InUse { .. } => Held::Elsewhere(error),
            error => Held::Not(Failure::failed(error)),
        })?;
        let listener = bind(&socket).map_err(|error| {
            Held::Not(Failure::failed(format!("cannot serve on {}: {error}", socket.display())))
        })?;
        for missing in region.missing() {
            say(missing);
        }
        let host = Arc::new(Self {
            region: Arc::new(region),
            socket,
            replicators: Mutex::default(),
            closing: watch::Sender::new(false),
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
        // First, so that nobody comes any more who would not be served.
        let _ = fs::remove_file(&self.socket);
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

    /// The failure of a command that is cut short by it.
    pub(super) fn ending(&self) -> Failure {
        let region = self.region.name();
        Failure::new(
            Exit::Unreachable,
            format!("the process that held region {region} ended; run the command again"),
        )
    }

    /// A topic that must be there.
    pub(super) async fn topic(&self, name: &str) -> Result<EmbeddedTopic, Failure> {
        match self.region.existing_topic(name).await {
            Ok(Some(topic)) => Ok(topic),
            Ok(None) => Err(Failure::failed(format!(
                "there is no topic {name} in region {}; see georepl topic list",
                self.region.name()
            ))),
            Err(message) => Err(Failure::failed(message)),
        }
    }

    /// A topic that is made if need be.
    pub(super) async fn topic_or_new(&self, name: &str) -> Result<EmbeddedTopic, Failure> {
        self.region.topic(name).await.map_err(Failure::failed)
    }

    async fn converse(self: &Arc<Self>, stream: Box<dyn Duplex>) {
        // Who asked and went away needs no answer.
        let asked = tokio::time::timeout(line::ANSWER, line::asked(stream)).await;
        let Ok(Ok((line, mut inbox, mut outbox))) = asked else { return };
        let reply = match understood(&line) {
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
        let _ = outbox.word(&reply).await;
    }

    async fn carry_out(
        self: &Arc<Self>,
        command: Command,
        inbox: &mut Inbox,
        outbox: &mut Outbox,
    ) -> Result<Value, Failure> {
        match command {
            Command::Name => told(Name { region: self.region.name().to_string() }),
            Command::Publish { topic } => told(publish::run(self, topic, inbox, outbox).await?),
            Command::Consume { topic, from, count, until } => {
                let what = consume::What { topic, from, count, until };
                told(consume::run(self, what, inbox, outbox).await?)
            }
            Command::Replicate { to, topics, until } => {
                told(replicate::run(self, to, topics, until, inbox, outbox).await?)
            }
            Command::Receive { cluster, topic, owner, counter, incarnation } => {
                let opening = receive::opening(cluster, topic, owner, counter, incarnation);
                told(receive::run(self, opening, inbox, outbox).await?)
            }
            Command::Status { topics } => told(topics::status(self, topics).await?),
            Command::Why { topics } => told(links::why(self, topics).await?),
            Command::StatsInternal { topic } => told(topics::internal(self, topic).await?),
            Command::Ledgers => told(ledgers::list(self).await?),
            Command::LedgerRecord { ledger } => told(ledgers::record(self, ledger).await?),
            Command::LedgerEntries { ledger, first, last } => {
                told(ledgers::read(self, ledger, first, last, outbox).await?)
            }
            Command::CheckLedgers { ledgers } => told(ledgers::check(self, ledgers, outbox).await?),
            Command::RecoverLedger { ledger, consent } => {
                told(ledgers::recover(self, ledger, consent).await?)
            }
            Command::Move { topic, remote, how, run, consent } => {
                told(links::moved(self, topic, remote, how, run, consent).await?)
            }
            Command::Topics => told(self.region.topics().await.map_err(Failure::failed)?),
            Command::TrimTopic { topic } => told(topics::trim(self, topic).await?),
            Command::TerminateTopic { topic, consent } => {
                told(topics::terminate(self, topic, consent).await?)
            }
            Command::DeleteTopic { topic, consent } => {
                told(topics::delete(self, topic, consent).await?)
            }
        }
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

/// Binds the socket of a region that this process holds, so that only its user can connect from the first moment on.
/// What a holder that died has left is replaced.
fn bind(socket: &Path) -> io::Result<UnixListener> {
    let unready = socket.with_extension("new");
    match fs::remove_file(&unready) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&unready)?;
    fs::set_permissions(&unready, Permissions::from_mode(0o600))?;
    fs::rename(unready, socket)?;
    Ok(listener)
}

/// Paths of sockets have a limit of their own.
fn check_length(socket: &Path) -> Result<(), Failure> {
    // Bound under another name first.
    let bytes = socket.as_os_str().len() + ".new".len();
    if bytes > SOCKET_PATH_BYTES_MAX {
        return Err(Failure::failed(format!(
            "the path of the socket {} is longer than the {SOCKET_PATH_BYTES_MAX} bytes that the system allows; \
             go to the directory and give a relative path, or move the region",
            socket.display()
        )));
    }
    Ok(())
}

/// Of the address of a socket on all systems, with its last byte 0.
const SOCKET_PATH_BYTES_MAX: usize = 103;
/// How long the commands of others have to come to their end.
const SERVED: Duration = Duration::from_secs(15);
/// How long a region may be held by a process that does not serve it yet or no more.
const PATIENCE: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(20);

//! Draining a backlog beside a peer in the same run: a NATS JetStream mirror.

use std::fs::{self, File};
use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use async_nats::Client;
use async_nats::jetstream::context::GetStreamErrorKind;
use async_nats::jetstream::stream::{Config, Source, StorageType};
use async_nats::jetstream::{self, Context};
use bytes::Bytes;
use clap::Parser;
use futures::future::try_join_all;
use georepl_benches::{
    Case, Copies, Failed, Mode, Report, Row, Sample, Storage, Work, at_least_one, cpu_of,
    entries_of, payload, payloads, progress, raw, replicate,
};
use tempfile::TempDir;

/// Drains a backlog from a region to another, and from a NATS server to a mirror on another, in turns.
///
/// Both keep one copy, in memory or in files in the same directory, which should be on tmpfs: there a sync costs nothing.
/// The NATS servers are two processes, joined by a leaf node on 127.0.0.1; the regions are in this process, without a
/// socket between them. What is timed is from the creation of the mirror, or the start of the replicator, until the last
/// message is there, and has been acknowledged in the source region. The processor time is that of both servers, user and
/// system, or of this process. RAW copies the same bytes twice and makes two checksums of them.
#[derive(Debug, Parser)]
#[command(
    after_help = "Example:\n  cargo run --release -p georepl-benches --bin nats -- --sizes 1024 --rounds 3\n\nThe server is Debian's package nats-server."
)]
struct Arguments {
    /// Sizes of payloads, in bytes
    #[arg(long, value_delimiter = ',', default_values_t = [100, 1024, 65_536])]
    sizes: Vec<usize>,
    /// A directory for what is kept in files
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    directory: PathBuf,
    /// How often each is measured
    #[arg(long, default_value_t = 5, value_parser = at_least_one)]
    rounds: usize,
    /// Messages of a round [default: 200000, or what makes 256 MiB]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    entries: Option<u64>,
    /// The server's program
    #[arg(long, value_name = "FILE", default_value = "nats-server")]
    server: PathBuf,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let arguments = Arguments::parse();
    let version = match version(&arguments.server) {
        Ok(version) => Some(version),
        Err(error) => {
            let program = arguments.server.display();
            eprintln!("no peer: {program} does not run ({error}); apt-get install nats-server");
            None
        }
    };
    let storages = [
        (Storage::Memory, StorageType::Memory, "memory"),
        (Storage::Directory(arguments.directory.clone()), StorageType::File, "files"),
    ];
    let progress = progress(storages.len() * arguments.sizes.len() * arguments.rounds);
    let mut rows = Vec::new();
    for (storage, kind, name) in storages {
        for &size in &arguments.sizes {
            let entries = entries_of(size, arguments.entries, ENTRIES);
            let payloads = payloads(size);
            let case = Case {
                storage: storage.clone(),
                copies: Copies::One,
                topics: 1,
                entries,
                window_entries: None,
                mode: Mode::Backlog,
            };
            let what = format!("{}, {name}", payload(size));
            progress.set_message(what.clone());
            let mut found = Turns::default();
            for _ in 0..arguments.rounds {
                found.limits.push(raw(RAW, &payloads, entries));
                found.ours.push(replicate(&case, &payloads).await?);
                if version.is_some() {
                    let servers = Servers::start(&arguments.server, &arguments.directory).await?;
                    found.peers.push(servers.mirror(kind, &payloads, entries).await?);
                }
                progress.inc(1);
            }
            rows.append(&mut found.rows(&what, version.as_deref()));
        }
    }
    progress.finish_and_clear();
    let figures = Vec::new();
    Report { bench: "nats", rounds: arguments.rounds, rows, figures }.print(arguments.json)?;
    Ok(())
}

/// What the turns of one case have found.
#[derive(Default)]
struct Turns {
    limits: Vec<Sample>,
    ours: Vec<Sample>,
    peers: Vec<Sample>,
}

impl Turns {
    fn rows(&self, what: &str, version: Option<&str>) -> Vec<Row> {
        let ratio = |of: &[Sample], to: &[Sample]| -> Vec<_> {
            of.iter().zip(to).map(|(of, to)| of.rate() / to.rate()).collect()
        };
        let mut rows = vec![
            Row::new(format!("{what}, RAW"), &self.limits, Vec::new(), Vec::new()),
            Row::new(
                format!("{what}, georepl"),
                &self.ours,
                ratio(&self.ours, &self.limits),
                ratio(&self.ours, &self.peers),
            ),
        ];
        if let Some(version) = version {
            let of_raw = ratio(&self.peers, &self.limits);
            rows.push(Row::new(format!("{what}, {version}"), &self.peers, of_raw, Vec::new()));
        }
        rows
    }
}

/// What the program says that it is.
fn version(program: &Path) -> io::Result<String> {
    let output = Command::new(program).arg("--version").output()?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().replace(": ", " "))
}

/// A pair of servers, the second of which is a leaf of the first.
struct Servers {
    west: Server,
    east: Server,
    /// After the servers, which use it.
    _directory: TempDir,
}

struct Server {
    process: Process,
    client: Client,
    context: Context,
}

/// A process that ends when it is dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // Neither fails, except for a process that has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Servers {
    async fn start(program: &Path, directory: &Path) -> Result<Self, Failed> {
        let directory = tempfile::tempdir_in(directory)?;
        let ports = free_ports()?;
        let [_, _, leaf] = ports;
        let accepts = format!("leafnodes {{ listen: \"127.0.0.1:{leaf}\" }}");
        let joins = format!("leafnodes {{ remotes: [ {{ url: \"nats://127.0.0.1:{leaf}\" }} ] }}");
        let west = Server::start(program, directory.path(), "west", ports[0], &accepts).await?;
        let east = Server::start(program, directory.path(), "east", ports[1], &joins).await?;
        let from_east = jetstream::with_domain(east.client.clone(), "west");
        within(START_TIME_MAX, || answer(&from_east)).await?;
        Ok(Self { west, east, _directory: directory })
    }

    /// Fills a stream, and times how long a mirror takes until it has all of it.
    async fn mirror(
        &self,
        storage: StorageType,
        payloads: &[Bytes],
        entries: u64,
    ) -> Result<Sample, Failed> {
        let stream = Config {
            name: STREAM.into(),
            subjects: vec![STREAM.into()],
            storage,
            ..Config::default()
        };
        let stream = self.west.context.create_stream(stream).await?;
        let mut all = payloads.iter().cycle();
        let mut left = entries;
        while left > 0 {
            let batch = left.min(BATCH_ENTRIES);
            let mut acknowledgements = Vec::new();
            for payload in all.by_ref().take(usize::try_from(batch)?) {
                let sent = self.west.context.publish(STREAM, payload.clone()).await?;
                acknowledgements.push(sent.into_future());
            }
            try_join_all(acknowledgements).await?;
            left -= batch;
        }
        let filled = stream.get_info().await?.state;
        assert_eq!(filled.messages, entries, "the stream has every message once");

        let source =
            Source { name: STREAM.into(), domain: Some("west".into()), ..Source::default() };
        let mirror =
            Config { name: MIRROR.into(), storage, mirror: Some(source), ..Config::default() };
        let (begun, cpu) = (Instant::now(), self.cpu()?);
        let mirror = self.east.context.create_stream(mirror).await?;
        loop {
            let state = mirror.get_info().await?.state;
            if state.messages == entries {
                assert_eq!(state.bytes, filled.bytes, "and so has the mirror");
                break;
            }
            if begun.elapsed() > MIRROR_TIME_MAX {
                return Err(format!("the mirror has {} of {entries}", state.messages).into());
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(Sample { wall: begun.elapsed(), cpu: self.cpu()? - cpu, entries })
    }

    fn cpu(&self) -> Result<Duration, Failed> {
        Ok(cpu_of(self.west.process.0.id())? + cpu_of(self.east.process.0.id())?)
    }
}

impl Server {
    /// Starts one and waits until it answers.
    async fn start(
        program: &Path,
        directory: &Path,
        name: &str,
        port: u16,
        leaf: &str,
    ) -> Result<Self, Failed> {
        let store = directory.join(name);
        let (config, log) = (store.with_extension("conf"), store.with_extension("log"));
        let store = store.display();
        let text = format!(
            "server_name: {name}\nlisten: \"127.0.0.1:{port}\"\n{leaf}\njetstream {{ \
             store_dir: \"{store}\", domain: {name}, max_mem: {MEMORY_MAX}, max_file: {FILES_MAX} }}\n"
        );
        fs::write(&config, text)?;
        let process = Command::new(program)
            .arg("--config")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log)?)
            .spawn()?;
        let process = Process(process);
        let client = match within(START_TIME_MAX, || connect(port)).await {
            Ok(client) => client,
            Err(error) => {
                let log = fs::read_to_string(&log)?;
                return Err(format!("server {name} does not answer: {error}\n{log}").into());
            }
        };
        let context = jetstream::new(client.clone());
        within(START_TIME_MAX, || answer(&context)).await?;
        Ok(Self { process, client, context })
    }
}

/// Tries until it works, for as long.
async fn within<R, F: Future<Output = Result<R, Failed>>>(
    time: Duration,
    mut attempt: impl FnMut() -> F,
) -> Result<R, Failed> {
    let begun = Instant::now();
    loop {
        match attempt().await {
            Err(_) if begun.elapsed() < time => tokio::time::sleep(POLL).await,
            outcome => return outcome,
        }
    }
}

async fn connect(port: u16) -> Result<Client, Failed> {
    Ok(async_nats::connect(format!("nats://127.0.0.1:{port}")).await?)
}

/// Whether its streams are served: there is none yet.
async fn answer(context: &Context) -> Result<(), Failed> {
    match context.get_stream(STREAM).await {
        Ok(_) => Err(format!("there is a stream {STREAM} already").into()),
        Err(error) if matches!(error.kind(), GetStreamErrorKind::JetStream(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Three ports that nobody listens to just now.
fn free_ports() -> io::Result<[u16; 3]> {
    let listen = || TcpListener::bind(("127.0.0.1", 0));
    let listening = [listen()?, listen()?, listen()?];
    let [one, two, three] = listening.each_ref().map(TcpListener::local_addr);
    Ok([one?.port(), two?.port(), three?.port()])
}

/// Two copies. The digest of west's entry and the checksum of the frame that is sent.
const RAW: Work = Work { copies: 2, checksums: 2 };
const ENTRIES: u64 = 200_000;
const STREAM: &str = "bench";
const MIRROR: &str = "copy";
const BATCH_ENTRIES: u64 = 1_024;
const MEMORY_MAX: u64 = 4 << 30;
const FILES_MAX: u64 = 8 << 30;
/// How often a mirror is asked how far it is.
const POLL: Duration = Duration::from_millis(5);
const START_TIME_MAX: Duration = Duration::from_secs(10);
const MIRROR_TIME_MAX: Duration = Duration::from_secs(120);

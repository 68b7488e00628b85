//! Ledgers on three bookies in memory: appends, reads, and recoveries.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::Parser;
use georepl::storage::fault::{Fault, FaultTransport};
use georepl::storage::{
    BookieId, BookieTransport, ClientConfig, CompletionSink, EntryId, LedgerClient, LedgerId,
    MemoryBookieRegistry, MemoryBookies, MemoryMetadataStore, Password, Request,
};
use georepl_benches::{
    Appender, Failed, Figure, Report, Row, Sample, Unit, Work, at_least_one, count, delay_line,
    entries_of, hops, measure, payload, payloads, percentile, progress, raw, spread,
};
use tokio::runtime::Builder;
use tokio::sync::mpsc;

/// Appends to ledgers on three bookies in memory, reads them, and recovers them.
///
/// Each entry is on three bookies and acknowledged when two have it. Appends go on with 5,000 entries or 16 MiB
/// unconfirmed; RAW makes one checksum of each and copies it three times, in one thread, in turns with them. Reads are in
/// order, up to 1 MiB or 500 entries at once; RAW makes one checksum and one copy. With one append in flight, what is
/// timed is from the call until the task that waits for it runs again; its limit is a task that is woken and wakes.
/// A recovery finds so many entries of 1 KiB on its bookies of which none is known to be confirmed; its requests are
/// counted, and its round trips by the time that it takes on a paused clock when each request takes one.
#[derive(Debug, Parser)]
#[command(
    after_help = "Example:\n  cargo run --release -p georepl-benches --bin storage -- --sizes 1024 --unconfirmed 1000"
)]
struct Arguments {
    /// Sizes of payloads, in bytes
    #[arg(long, value_delimiter = ',', default_values_t = [100, 1024, 65_536])]
    sizes: Vec<usize>,
    /// Entries of a round [default: 1000000, or what makes 256 MiB]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    entries: Option<u64>,
    /// Appends of a round with one in flight
    #[arg(long, default_value_t = 50_000, value_parser = at_least_one)]
    alone: usize,
    /// Unconfirmed entries of the ledgers that are recovered
    #[arg(long, value_delimiter = ',', default_values_t = [10, 1_000, 100_000])]
    unconfirmed: Vec<u64>,
    /// How often each is measured
    #[arg(long, default_value_t = 5, value_parser = at_least_one)]
    rounds: usize,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

fn main() -> Result<(), Failed> {
    let arguments = Arguments::parse();
    let (rounds, json) = (arguments.rounds, arguments.json);
    let steps = rounds * (arguments.sizes.len() + 1 + arguments.unconfirmed.len());
    let progress = progress(steps + arguments.unconfirmed.len());
    let mut report = Report { bench: "storage", rounds, rows: Vec::new(), figures: Vec::new() };
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    for &size in &arguments.sizes {
        progress.set_message(payload(size));
        let mut found = Throughput::default();
        for _ in 0..rounds {
            found.round(&runtime, size, entries_of(size, arguments.entries, ENTRIES))?;
            progress.inc(1);
        }
        report.rows.append(&mut found.rows(size));
    }
    progress.set_message("one append in flight");
    let (mut limits, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        limits.push(in_task(&runtime, hops(arguments.alone))?);
        ours.push(in_task(&runtime, alone(arguments.alone))?);
        progress.inc(1);
    }
    report.figures.extend(latencies("a task woken and back", &mut limits));
    report.figures.extend(latencies("append of 1 KiB, one in flight", &mut ours));
    for &entries in &arguments.unconfirmed {
        progress.set_message(format!("{} unconfirmed", count(entries)));
        let mut found = Vec::new();
        for _ in 0..rounds {
            found.push(in_task(&runtime, recovery(entries, Duration::ZERO))?);
            progress.inc(1);
        }
        report.figures.extend(recovered(entries, &found));
    }
    drop(runtime);
    // Last: once a clock was paused, every look at one takes longer in this process.
    for &entries in &arguments.unconfirmed {
        report.figures.push(round_trips(entries)?);
        progress.inc(1);
    }
    progress.finish_and_clear();
    report.print(json)?;
    Ok(())
}

/// Runs it where everything else runs, not in a thread of its own that has to be woken.
fn in_task<R: Send + 'static>(
    runtime: &tokio::runtime::Runtime,
    work: impl Future<Output = Result<R, Failed>> + Send + 'static,
) -> Result<R, Failed> {
    runtime.block_on(runtime.spawn(work))?
}

/// Bookies in memory, their metadata and who they are.
#[derive(Clone)]
struct InMemory {
    ids: [BookieId; 3],
    bookies: Arc<MemoryBookies>,
    store: Arc<MemoryMetadataStore>,
    registry: Arc<MemoryBookieRegistry>,
}

impl InMemory {
    fn new() -> Self {
        let ids = ["b1", "b2", "b3"].map(BookieId::from);
        Self {
            bookies: Arc::new(MemoryBookies::new(ids.clone())),
            store: Arc::new(MemoryMetadataStore::new()),
            registry: Arc::new(MemoryBookieRegistry::new(ids.clone())),
            ids,
        }
    }

    fn client(&self, transport: Arc<dyn BookieTransport>) -> LedgerClient {
        let config = ClientConfig::default();
        LedgerClient::new(transport, self.store.clone(), self.registry.clone(), config)
    }
}

/// What rounds of appends and reads of one size have found.
#[derive(Default)]
struct Throughput {
    limits: [Vec<Sample>; 2],
    ours: [Vec<Sample>; 2],
}

impl Throughput {
    fn round(
        &mut self,
        runtime: &tokio::runtime::Runtime,
        size: usize,
        entries: u64,
    ) -> Result<(), Failed> {
        let payloads: Arc<[Bytes]> = payloads(size).into();
        for (limits, work) in self.limits.iter_mut().zip([APPEND, READ]) {
            limits.push(raw(work, &payloads, entries));
        }
        let samples = in_task(runtime, appended_and_read(payloads, size, entries))?;
        for (ours, sample) in self.ours.iter_mut().zip(samples) {
            ours.push(sample);
        }
        Ok(())
    }

    fn rows(&self, size: usize) -> Vec<Row> {
        let mut rows = Vec::new();
        for (what, (limits, ours)) in
            ["append", "read"].iter().zip(self.limits.iter().zip(&self.ours))
        {
            let of_raw = ours.iter().zip(limits).map(|(ours, limit)| ours.rate() / limit.rate());
            let name = |of: &str| format!("{}, {what}{of}", payload(size));
            rows.push(Row::new(name(", RAW"), limits, Vec::new(), Vec::new()));
            rows.push(Row::new(name(""), ours, of_raw.collect(), Vec::new()));
        }
        rows
    }
}

/// Appends so many entries to a new ledger and reads them all.
async fn appended_and_read(
    payloads: Arc<[Bytes]>,
    size: usize,
    entries: u64,
) -> Result<[Sample; 2], Failed> {
    let memory = InMemory::new();
    let client = memory.client(memory.bookies.clone());
    let mut appender = Appender::create(&client).await?;
    let in_flight = IN_FLIGHT_MAX.min((IN_FLIGHT_BYTES_MAX / size.max(1) as u64).max(1));
    let work = appender.append(&payloads, in_flight, |sent| entries - sent);
    let (confirmed, appended) = measure(entries, work).await;
    assert_eq!(confirmed?, entries);
    appender.writer().close().await?;

    let reader = client.open(appender.writer().id(), &Password::default()).await?;
    let at_once = READ_ENTRIES_MAX.min((READ_BYTES_MAX / size.max(1) as u64).max(1));
    let work = async {
        let mut next = 0;
        while next < entries {
            let last = (next + at_once).min(entries) - 1;
            let read = reader.read(EntryId(next), EntryId(last)).await?;
            let expected = &payloads[(last % payloads.len() as u64) as usize];
            assert_eq!(read.last().map(|entry| &entry.payload), Some(expected));
            next = last + 1;
        }
        Ok::<_, Failed>(())
    };
    let (done, read) = measure(entries, work).await;
    done?;
    Ok([appended, read])
}

/// How long each of so many appends takes, the next after the one before.
async fn alone(appends: usize) -> Result<Vec<Duration>, Failed> {
    let memory = InMemory::new();
    let client = memory.client(memory.bookies.clone());
    let mut appender = Appender::create(&client).await?;
    let payloads = [Bytes::from(vec![7; 1 << 10])];
    let mut taken = Vec::with_capacity(appends);
    for n in 1..=appends as u64 {
        let begun = Instant::now();
        appender.append(&payloads, 1, |sent| n - sent).await?;
        taken.push(begun.elapsed());
    }
    Ok(taken)
}

fn latencies(what: &str, rounds: &mut [Vec<Duration>]) -> [Figure; 2] {
    [("p50", 0.5), ("p99", 0.99)].map(|(name, part)| {
        let taken = rounds.iter_mut().map(|round| percentile(round, part).as_nanos() as f64);
        Figure { what: format!("{what}, {name}"), unit: Unit::Nanoseconds, value: spread(taken) }
    })
}

/// What a recovery took.
struct Recovery {
    time: Duration,
    requests: u64,
    batches: u64,
}

/// Recovers a ledger whose writer is gone, on bookies that answer each request after `round_trip`.
async fn recovery(entries: u64, round_trip: Duration) -> Result<Recovery, Failed> {
    let memory = InMemory::new();
    let ledger = abandoned(&memory, entries).await?;
    let transport = Arc::new(Counted::new(memory.bookies.clone(), round_trip));
    let client = memory.client(transport.clone());
    let begun = tokio::time::Instant::now();
    let reader = client.recover(ledger, &Password::default()).await?;
    let time = begun.elapsed();
    assert_eq!(reader.last_add_confirmed().map(|last| last.get() + 1), Some(entries));
    let (requests, batches) = (&transport.requests, &transport.batches);
    let [requests, batches] = [requests, batches].map(|count| count.load(Ordering::Relaxed));
    Ok(Recovery { time, requests, batches })
}

/// A ledger of entries that are on every bookie, and that nobody knows to be confirmed.
async fn abandoned(memory: &InMemory, entries: u64) -> Result<LedgerId, Failed> {
    let faulty = Arc::new(FaultTransport::new(memory.bookies.clone()));
    for id in &memory.ids {
        faulty.inject(id, Fault::HoldResponses);
    }
    let appender = Appender::create(&memory.client(faulty.clone())).await?;
    let payload = Bytes::from(vec![7; 1 << 10]);
    let entries_usize = usize::try_from(entries)?;
    appender.writer().append(std::iter::repeat_n(payload, entries_usize))?;
    while memory.ids.iter().any(|id| faulty.held(id) < entries_usize) {
        tokio::task::yield_now().await;
    }
    Ok(appender.writer().id())
}

fn recovered(entries: u64, rounds: &[Recovery]) -> Vec<Figure> {
    let figure = |of: &str, unit, value: fn(&Recovery) -> f64| Figure {
        what: format!("recovery, {} unconfirmed{of}", count(entries)),
        unit,
        value: spread(rounds.iter().map(value)),
    };
    vec![
        figure("", Unit::Nanoseconds, |found| found.time.as_nanos() as f64),
        figure(", requests", Unit::Number, |found| found.requests as f64),
        figure(", batches of requests", Unit::Number, |found| found.batches as f64),
    ]
}

/// How often a recovery waits for its bookies: nothing but that takes time on a clock that only waiting moves.
fn round_trips(entries: u64) -> Result<Figure, Failed> {
    let runtime = Builder::new_current_thread().enable_all().start_paused(true).build()?;
    let time = runtime.block_on(recovery(entries, ROUND_TRIP))?.time;
    let times = (time.as_secs_f64() / ROUND_TRIP.as_secs_f64()).round();
    let what = format!("recovery, {} unconfirmed, round trips", count(entries));
    Ok(Figure { what, unit: Unit::Number, value: spread([times]) })
}

/// Bookies that are some way off, and whoever counts what is sent there.
struct Counted {
    bookies: Arc<MemoryBookies>,
    requests: AtomicU64,
    batches: AtomicU64,
    /// None if they are here.
    way: Option<(Duration, mpsc::UnboundedSender<(tokio::time::Instant, Batch)>)>,
}

type Batch = (BookieId, Vec<Request>, Arc<dyn CompletionSink>);

impl Counted {
    fn new(bookies: Arc<MemoryBookies>, round_trip: Duration) -> Self {
        let there = bookies.clone();
        let way = (!round_trip.is_zero()).then(|| {
            // The whole way before the request is carried out: who asks sees no difference.
            let line = delay_line(move |batches: Vec<Batch>| {
                for (bookie, mut batch, sink) in batches {
                    there.submit(&bookie, &mut batch, &sink);
                }
            });
            (round_trip, line)
        });
        Self { bookies, requests: AtomicU64::new(0), batches: AtomicU64::new(0), way }
    }
}

impl BookieTransport for Counted {
    fn submit(&self, bookie: &BookieId, batch: &mut Vec<Request>, sink: &Arc<dyn CompletionSink>) {
        self.requests.fetch_add(batch.len() as u64, Ordering::Relaxed);
        self.batches.fetch_add(1, Ordering::Relaxed);
        match &self.way {
            None => self.bookies.submit(bookie, batch, sink),
            Some((round_trip, line)) => {
                let sent = (bookie.clone(), std::mem::take(batch), sink.clone());
                // When the runtime ends nobody waits for it.
                let _ = line.send((tokio::time::Instant::now() + *round_trip, sent));
            }
        }
    }
}

/// The digest, and a copy for each bookie.
const APPEND: Work = Work { copies: 3, checksums: 1 };
/// The digest, and a copy out of the bookie.
const READ: Work = Work { copies: 1, checksums: 1 };
const ENTRIES: u64 = 1_000_000;
const IN_FLIGHT_MAX: u64 = 5_000;
const IN_FLIGHT_BYTES_MAX: u64 = 16 << 20;
const READ_ENTRIES_MAX: u64 = 500;
const READ_BYTES_MAX: u64 = 1 << 20;
/// Long, so that the steps of the timer do not matter, and shorter than every timeout.
const ROUND_TRIP: Duration = Duration::from_millis(200);

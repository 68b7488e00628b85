//! A cursor: acknowledging, counting, rewinding, and being woken.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::Parser;
use futures::poll;
use georepl::Region;
use georepl::cursor::{ManagedCursor, ManagedLedger, Offset, Position, ReadLimits, StartAt};
use georepl::replicator::EmbeddedTopics;
use georepl_benches::{
    BitSet, Copies, Failed, Figure, Report, Storage, Unit, at_least_one, count, hops, lane_name,
    percentile, progress, region, spread,
};
use tokio::sync::mpsc;

/// Acknowledges entries of a topic in memory on its cursors, counts, rewinds, and waits.
///
/// Every figure is wall time through the public calls of a cursor, one entry a call. What is acknowledged is stored
/// meanwhile, in the background and in memory, ten times a second: of more than 50,000 ranges of single entries the first
/// are. So an acknowledgement includes waiting for the cursor's lock while its state is copied, and no disk. Single
/// entries are every second one, so that each leaves a hole. The limit is a bit set behind a lock, and for wakes a task
/// that is woken and wakes. A wake is from the call of an append until the reader that waits has its entry, so it includes
/// the append; "asleep" leaves 2 ms between two, in which every thread goes to sleep.
#[derive(Debug, Parser)]
#[command(
    after_help = "Example:\n  cargo run --release -p georepl-benches --bin cursor -- --holes 100000 --rounds 1"
)]
struct Arguments {
    /// Entries that are acknowledged one by one, and as many holes between them
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    holes: u64,
    /// Entries that are outstanding at a rewind, which is made 200 times
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    outstanding: u32,
    /// Wakes of a round
    #[arg(long, default_value_t = 20_000, value_parser = at_least_one)]
    wakes: usize,
    /// Wakes of a round when every thread is asleep
    #[arg(long, default_value_t = 1_000, value_parser = at_least_one)]
    asleep: usize,
    /// How often each is measured
    #[arg(long, default_value_t = 5, value_parser = at_least_one)]
    rounds: usize,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

#[tokio::main]
async fn main() -> Result<(), Failed> {
    // In a task, where everything else runs, not in a thread of its own that has to be woken.
    tokio::spawn(run(Arguments::parse())).await?
}

async fn run(arguments: Arguments) -> Result<(), Failed> {
    let rounds = arguments.rounds;
    let progress = progress(rounds + 1);
    progress.set_message("the topic is filled");
    let region = region("west", &Storage::Memory, Copies::One).await?;
    let topic = log(&region, 0).await?;
    let positions = fill(&topic, 2 * arguments.holes).await?;
    progress.inc(1);
    let mut table = Rounds::default();
    for round in 0..rounds {
        progress.set_message("acknowledgements");
        limits(&mut table, &arguments);
        in_order(&mut table, &topic, &positions).await?;
        one_by_one(&mut table, &topic, &positions, &arguments).await?;
        progress.set_message("wakes");
        let quiet = log(&region, round + 1).await?;
        wakes(&mut table, &quiet, &arguments).await?;
        progress.inc(1);
    }
    progress.finish_and_clear();
    let figures = table.figures();
    Report { bench: "cursor", rounds, rows: Vec::new(), figures }.print(arguments.json)?;
    Ok(())
}

/// Nanoseconds by what they were measured of, in the order in which that came.
#[derive(Default)]
struct Rounds(Vec<(String, Vec<f64>)>);

impl Rounds {
    fn add(&mut self, what: impl Into<String>, nanos: f64) {
        let what = what.into();
        match self.0.iter_mut().find(|(known, _)| *known == what) {
            Some((_, rounds)) => rounds.push(nanos),
            None => self.0.push((what, vec![nanos])),
        }
    }

    /// The time of each of so many things that were done one after the other.
    fn add_each(&mut self, what: impl Into<String>, begun: Instant, times: u64) {
        self.add(what, begun.elapsed().as_nanos() as f64 / times as f64);
    }

    fn add_percentiles(&mut self, what: &str, mut taken: Vec<Duration>) {
        for (name, part) in [("p50", 0.5), ("p99", 0.99)] {
            let nanos = percentile(&mut taken, part).as_nanos() as f64;
            self.add(format!("{what}, {name}"), nanos);
        }
    }

    fn figures(self) -> Vec<Figure> {
        let figure = |(what, rounds): (String, Vec<f64>)| Figure {
            what,
            unit: Unit::Nanoseconds,
            value: spread(rounds),
        };
        self.0.into_iter().map(figure).collect()
    }
}

async fn log(region: &Arc<Region>, number: usize) -> Result<ManagedLedger, Failed> {
    let topic = region.topic(&lane_name(number)).await.map_err(|error| error.to_string())?;
    Ok(topic.ledger().clone())
}

async fn fill(topic: &ManagedLedger, entries: u64) -> Result<Vec<Position>, Failed> {
    let payload = Bytes::from_static(&[7; 16]);
    let mut positions = Vec::with_capacity(usize::try_from(entries)?);
    while (positions.len() as u64) < entries {
        let batch = (entries - positions.len() as u64).min(BATCH_ENTRIES);
        let permit = topic.reserve(batch * payload.len() as u64).await?;
        let batch = vec![payload.clone(); usize::try_from(batch)?];
        positions.append(&mut topic.append_batch(permit, batch).await?);
    }
    Ok(positions)
}

/// The places of every second entry of so many, in a random order that is the same each time.
fn shuffled(holes: u64) -> Vec<u64> {
    let mut places: Vec<_> = (0..holes).map(|n| 2 * n + 1).collect();
    fastrand::Rng::with_seed(7).shuffle(&mut places);
    places
}

fn limits(table: &mut Rounds, arguments: &Arguments) {
    let holes = arguments.holes;
    let bits = BitSet::new(2 * holes);
    let begun = Instant::now();
    (0..holes).for_each(|n| bits.set(2 * n + 1));
    table.add_each("limit: a bit set, in order", begun, holes);
    let places = shuffled(holes);
    let begun = Instant::now();
    places.iter().for_each(|place| bits.set(*place));
    table.add_each("limit: a bit set, at random", begun, holes);
    let begun = Instant::now();
    let set: u64 = (0..COUNTS).map(|_| u64::from(bits.first())).sum();
    table.add_each("limit: a number behind a lock", begun, COUNTS);
    assert_eq!(set, COUNTS * holes.min(32));
}

async fn in_order(
    table: &mut Rounds,
    topic: &ManagedLedger,
    positions: &[Position],
) -> Result<(), Failed> {
    let cursor = ManagedCursor::open(topic, "in-order", StartAt::Earliest).await?;
    let begun = Instant::now();
    for through in 1..=positions.len() as u64 {
        cursor.acknowledge(Offset::new(through), None)?;
    }
    table.add_each("mark-delete in order", begun, positions.len() as u64);
    assert_eq!(cursor.backlog(), topic.end().get() - positions.len() as u64);
    ManagedCursor::remove(topic, "in-order").await?;
    Ok(())
}

/// Acknowledges every second entry, in order and at random, and does the rest with these holes.
async fn one_by_one(
    table: &mut Rounds,
    topic: &ManagedLedger,
    positions: &[Position],
    arguments: &Arguments,
) -> Result<(), Failed> {
    let holes = arguments.holes;
    let in_order = (0..holes).map(|n| 2 * n + 1).collect();
    for (name, places) in [("in order", in_order), ("at random", shuffled(holes))] {
        let cursor = ManagedCursor::open(topic, "one-by-one", StartAt::Earliest).await?;
        if name == "in order" {
            let what = format!("rewind, {} outstanding", count(arguments.outstanding.into()));
            rewinds(table, &what, &cursor, arguments.outstanding).await?;
        }
        let begun = Instant::now();
        for place in places {
            cursor.accept_delete(&positions[place as usize..=place as usize])?;
        }
        table.add_each(format!("single entries {name}"), begun, holes);
        let begun = Instant::now();
        let counted: u64 = (0..COUNTS).map(|_| cursor.backlog()).sum();
        table.add_each(format!("backlog count, {} holes", count(holes)), begun, COUNTS);
        assert_eq!(counted, COUNTS * (topic.end().get() - holes));
        if name == "at random" {
            let outstanding = count(arguments.outstanding.into());
            let what = format!("rewind, {outstanding} outstanding, {} holes", count(holes));
            rewinds(table, &what, &cursor, arguments.outstanding).await?;
        }
        ManagedCursor::remove(topic, "one-by-one").await?;
    }
    Ok(())
}

/// Reads so many entries, and times only that the cursor goes back to the first of them.
async fn rewinds(
    table: &mut Rounds,
    what: &str,
    cursor: &Arc<ManagedCursor>,
    outstanding: u32,
) -> Result<(), Failed> {
    let mut taken = Vec::with_capacity(REWINDS);
    for _ in 0..REWINDS {
        let mut read = 0;
        let most = outstanding.min(u32::try_from(cursor.backlog()).unwrap_or(u32::MAX));
        while read < most {
            let limits = ReadLimits { entries: most - read, bytes: u64::MAX };
            read += u32::try_from(cursor.read_entries(limits).await?.len())?;
        }
        let begun = Instant::now();
        cursor.rewind();
        taken.push(begun.elapsed());
    }
    table.add_percentiles(what, taken);
    Ok(())
}

async fn wakes(
    table: &mut Rounds,
    topic: &ManagedLedger,
    arguments: &Arguments,
) -> Result<(), Failed> {
    let limit = hops(arguments.wakes).await?;
    table.add_percentiles("limit: a task woken and back", limit);
    for (name, wakes, pause) in [
        ("", arguments.wakes, Duration::ZERO),
        (", asleep", arguments.asleep, Duration::from_millis(2)),
    ] {
        let (appends, reads) = woken(topic, wakes, pause).await?;
        table.add_percentiles(&format!("append until acknowledged{name}"), appends);
        table.add_percentiles(&format!("append until its reader has it{name}"), reads);
    }
    Ok(())
}

/// How long appends take until they are acknowledged, and until a reader that waits for them has their entries.
async fn woken(
    topic: &ManagedLedger,
    wakes: usize,
    pause: Duration,
) -> Result<(Vec<Duration>, Vec<Duration>), Failed> {
    let cursor = ManagedCursor::reader(topic, StartAt::Latest)?;
    let (seen, mut readings) = mpsc::unbounded_channel();
    let reader = tokio::spawn(async move {
        let limits = ReadLimits { entries: 1, bytes: u64::MAX };
        for _ in 0..wakes {
            let mut read = pin!(cursor.read_entries_or_wait(limits));
            assert!(poll!(read.as_mut()).is_pending(), "nothing was appended since");
            seen.send(None)?;
            read.await?;
            seen.send(Some(Instant::now()))?;
        }
        Ok::<_, Failed>(())
    });
    let (mut appends, mut reads) = (Vec::with_capacity(wakes), Vec::with_capacity(wakes));
    let ended = "the reader ended";
    for _ in 0..wakes {
        assert!(readings.recv().await.ok_or(ended)?.is_none(), "the reader waits");
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
        let begun = Instant::now();
        topic.append(Bytes::from_static(&[7; 16])).await?;
        appends.push(begun.elapsed());
        let read = readings.recv().await.ok_or(ended)?.ok_or("the reader waits again")?;
        reads.push(read.saturating_duration_since(begun));
    }
    reader.await??;
    Ok((appends, reads))
}

const BATCH_ENTRIES: u64 = 4_096;
const COUNTS: u64 = 1_000_000;
const REWINDS: usize = 200;

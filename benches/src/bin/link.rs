//! One topic over a long link that is simulated: how much of the link it fills.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use clap::Parser;
use georepl::cursor::{ManagedCursor, Position, StartAt};
use georepl::replicator::{
    EmbeddedRemote, EmbeddedTopics, EventSink, OpenError, OpenedSession, Opening, Outgoing,
    Prepared, Receipt, RemoteProducer, RemoteSession, Replicator, SessionEvent, SessionEvents,
    SessionId,
};
use georepl_benches::{
    Copies, Failed, Figure, Report, Storage, Unit, delay_line, lane_name, payload, payloads,
    progress, publish, region, replicator_config, spread,
};
use parking_lot::Mutex;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::{Instant, sleep};

/// Drains the backlog of one topic over a long link that is simulated on a clock which only waiting moves.
///
/// The link has a rate and a delay, and loses nothing; every entry takes 40 bytes more than its frame, receipts none. Work
/// takes no time, so this shows what the protocol and its bounds make of the link, and nothing of processors. The time is
/// from the start of the replicator until the last receipt, with the opening of its session. The link's own time is that
/// of the same bytes, and one round trip.
#[derive(Debug, Parser)]
#[command(
    after_help = "Example:\n  cargo run --release -p georepl-benches --bin link -- --sizes 1024 --window-entries 1000"
)]
struct Arguments {
    /// Sizes of payloads, in bytes
    #[arg(long, value_delimiter = ',', default_values_t = [100, 1024, 65_536])]
    sizes: Vec<usize>,
    /// Payload that is drained [default: 1024 MiB, or 2000000 entries]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    mebibytes: Option<u64>,
    /// The round trip
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 150)]
    round_trip: u64,
    /// The rate, in megabits a second
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..))]
    megabits: u64,
    /// Entries that may be read and not acknowledged [default: the replicator's]
    #[arg(long)]
    window_entries: Option<u32>,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> Result<(), Failed> {
    let arguments = Arguments::parse();
    let progress = progress(arguments.sizes.len());
    let (mut figures, link) = (Vec::new(), Link::new(&arguments));
    let figure = |what, unit, value| Figure { what, unit, value: spread([value]) };
    let product = link.bytes_per_second * 2.0 * link.one_way.as_secs_f64();
    figures.push(figure("the link, in a round trip".into(), Unit::Bytes, product));
    for &size in &arguments.sizes {
        progress.set_message(payload(size));
        let found = drain(&arguments, size).await?;
        let name = |of: &str| format!("{}, {of}", payload(size));
        let at_least = found.sent as f64 / link.bytes_per_second + 2.0 * link.one_way.as_secs_f64();
        let time = found.time.as_secs_f64();
        figures.push(figure(name("the link's own time"), Unit::Nanoseconds, 1e9 * at_least));
        figures.push(figure(name("time to drain"), Unit::Nanoseconds, 1e9 * time));
        let share = found.sent as f64 / link.bytes_per_second / time;
        figures.push(figure(name("share of the link"), Unit::Share, share));
        let most = found.bytes_in_flight_max as f64;
        figures.push(figure(name("most bytes in flight"), Unit::Bytes, most));
        let most = found.entries_in_flight_max as f64;
        figures.push(figure(name("most entries in flight"), Unit::Number, most));
        progress.inc(1);
    }
    progress.finish_and_clear();
    Report { bench: "link", rounds: 1, rows: Vec::new(), figures }.print(arguments.json)?;
    Ok(())
}

/// What a drain has found.
struct Found {
    time: Duration,
    sent: u64,
    bytes_in_flight_max: u64,
    entries_in_flight_max: usize,
}

async fn drain(arguments: &Arguments, size: usize) -> Result<Found, Failed> {
    let west = region("west", &Storage::Memory, Copies::One).await?;
    let east = region("east", &Storage::Memory, Copies::One).await?;
    let name = lane_name(0);
    let topic = west.topic(&name).await.map_err(|error| error.to_string())?;
    let entries = match arguments.mebibytes {
        Some(mebibytes) => ((mebibytes << 20) / size.max(1) as u64).max(1),
        None => ((1 << 30) / size.max(1) as u64).min(ENTRIES_MAX),
    };
    publish(&topic, &payloads(size), entries).await?;
    let cursor = ManagedCursor::open(topic.ledger(), "pulsar.repl.east", StartAt::Earliest).await?;
    let config = replicator_config(name.clone(), arguments.window_entries);
    let link = Arc::new(Link::new(arguments));
    let remote = Far { remote: EmbeddedRemote::new(east.clone()), link: link.clone() };
    let replicator = Replicator::new(config, cursor, Arc::new(remote)).await?;
    let begun = Instant::now();
    replicator.start();
    replicator.drained().await?;
    let time = begun.elapsed();
    let copy = east.topic(&name).await.map_err(|error| error.to_string())?;
    assert_eq!(copy.ledger().end().get(), entries, "every entry is in east, once");
    assert_eq!(replicator.accounting().sends, entries, "nothing was sent twice");
    let meter = link.meter.lock();
    Ok(Found {
        time,
        sent: meter.sent,
        bytes_in_flight_max: meter.bytes_max,
        entries_in_flight_max: meter.entries_max,
    })
}

/// A link and what is on its way.
struct Link {
    one_way: Duration,
    bytes_per_second: f64,
    meter: Mutex<Meter>,
}

struct Meter {
    /// When what was sent has left.
    free: Instant,
    sent: u64,
    /// Without a receipt.
    in_flight: VecDeque<(Position, u64)>,
    bytes: u64,
    bytes_max: u64,
    entries_max: usize,
}

impl Link {
    fn new(arguments: &Arguments) -> Self {
        Self {
            one_way: Duration::from_millis(arguments.round_trip) / 2,
            bytes_per_second: arguments.megabits as f64 * 125_000.0,
            meter: Mutex::new(Meter {
                free: Instant::now(),
                sent: 0,
                in_flight: VecDeque::new(),
                bytes: 0,
                bytes_max: 0,
                entries_max: 0,
            }),
        }
    }

    /// When what is sent now arrives, behind what was sent before.
    fn send(&self, position: Position, bytes: u64) -> Instant {
        let mut meter = self.meter.lock();
        let takes = Duration::from_secs_f64(bytes as f64 / self.bytes_per_second);
        meter.free = meter.free.max(Instant::now()) + takes;
        meter.sent += bytes;
        meter.in_flight.push_back((position, bytes));
        meter.bytes += bytes;
        meter.bytes_max = meter.bytes_max.max(meter.bytes);
        meter.entries_max = meter.entries_max.max(meter.in_flight.len());
        meter.free + self.one_way
    }

    /// Receipts have come back. This remote gives them in order.
    fn answered(&self, receipts: &[Receipt]) {
        let mut meter = self.meter.lock();
        for receipt in receipts {
            let (position, bytes) = meter.in_flight.pop_front().expect("it was sent");
            assert_eq!(*receipt, Receipt::Published(position));
            meter.bytes -= bytes;
        }
    }
}

/// A region at the other end of a link.
struct Far {
    remote: EmbeddedRemote,
    link: Arc<Link>,
}

#[async_trait]
impl RemoteProducer for Far {
    async fn open(
        &self,
        opening: Opening,
        events: SessionEvents,
    ) -> Result<OpenedSession, OpenError> {
        sleep(self.link.one_way).await;
        let link = self.link.clone();
        let back = delay_line(move |heard: Vec<SessionEvent>| {
            for event in heard {
                match event {
                    SessionEvent::Receipts(receipts) => {
                        link.answered(&receipts);
                        events.receipts(receipts);
                    }
                    SessionEvent::NotWritable(message) => events.not_writable(message),
                    SessionEvent::Lost(message) => events.lost(message),
                }
            }
        });
        let ear = Arc::new(Ear { one_way: self.link.one_way, back });
        let events = SessionEvents::new(opening.session, ear);
        let OpenedSession { watermark, mut session } = self.remote.open(opening, events).await?;
        sleep(self.link.one_way).await;
        let forth = delay_line(move |batch| session.submit(batch));
        let session = Box::new(FarSession { link: self.link.clone(), forth });
        Ok(OpenedSession { watermark, session })
    }
}

/// Hears what the other end says, and sends it back.
struct Ear {
    one_way: Duration,
    back: UnboundedSender<(Instant, SessionEvent)>,
}

impl EventSink for Ear {
    fn session_event(&self, _: SessionId, event: SessionEvent) {
        // When the runtime ends nobody hears it.
        let _ = self.back.send((Instant::now() + self.one_way, event));
    }
}

struct FarSession {
    link: Arc<Link>,
    forth: UnboundedSender<(Instant, Outgoing<Prepared>)>,
}

impl RemoteSession for FarSession {
    fn submit(&mut self, batch: Vec<Outgoing<Prepared>>) {
        for sent in batch {
            let bytes = sent.entry.frame_bytes() as u64 + ENVELOPE_BYTES;
            let at = self.link.send(sent.position, bytes);
            // When the runtime ends it arrives nowhere.
            let _ = self.forth.send((at, sent));
        }
    }
}

const ENTRIES_MAX: u64 = 2_000_000;
/// Around a frame on the wire.
const ENVELOPE_BYTES: u64 = 40;

//! Two regions in this process, a topic replicated between them while the link and bookies fail,
//! and an audit of what their bookies hold afterwards.

mod audit;
mod faults;
mod input;
mod lane;
mod ledgers;
mod plant;
mod progress;
mod report;
mod wire;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use georepl::cursor::{ManagedLedgerConfig, Position};
use georepl::replicator::EmbeddedTopicConfig;
use georepl::storage::{ClientConfig, EntryId, MetadataError};
use georepl::{CloseRegionError, OpenRegionError, Region, RegionBuilder};
use serde::Serialize;

use self::audit::{Audit, AuditError};
use self::faults::Scope;
use self::input::{Input, InputError};
use self::lane::{Lane, LaneError, Outcome, Weather};
use self::ledgers::Ledgers;
use self::progress::Progress;
use self::report::{Report, TopicReport};
use crate::cli::{Damage, DemoArgs};
use crate::interrupt::Interrupt;

/// What the audit says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    /// Nothing is missing, repeated, out of order or unacknowledged.
    Passed,
    /// Something is.
    Failed,
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Input(#[from] InputError),
    #[error(
        "{messages} messages in a topic are too few for every fault to meet traffic: \
         give --messages {} or more for each topic, or --no-faults",
        faults::MESSAGES_MIN
    )]
    TooFewMessages { messages: u64 },
    #[error("--plant changes what bookies in memory hold: leave --data out")]
    PlantOnDisk,
    #[error("{topic} is in region {region} of {} already: give another directory", .data.display())]
    Used { topic: String, region: Arc<str>, data: PathBuf },
    #[error(transparent)]
    Open(#[from] OpenRegionError),
    #[error("the topics of region {region} cannot be listed: {error}")]
    Topics { region: Arc<str>, error: MetadataError },
    #[error("--plant needs two messages in the first topic: give --messages {needed} or more")]
    TooFewToPlant { needed: u64 },
    #[error(transparent)]
    Lane(#[from] LaneError),
    #[error(transparent)]
    Close(#[from] CloseRegionError),
    #[error(transparent)]
    Audit(#[from] AuditError),
    #[error(transparent)]
    Ledgers(#[from] ledgers::Error),
    #[error("no signals: {0}")]
    Signals(io::Error),
    #[error(
        "interrupted: {published} messages were published and {acknowledged} of them acknowledged; \
         both regions are closed, and nothing was audited{}",
        .kept.as_deref().map_or_else(String::new, look_at)
    )]
    Interrupted { published: u64, acknowledged: u64, kept: Option<PathBuf> },
    #[error("the report could not be written: {0}")]
    Output(io::Error),
}

/// Where the topics come from and where they go.
#[derive(Clone)]
pub(crate) struct Regions {
    pub(crate) west: Arc<Region>,
    pub(crate) east: Arc<Region>,
}

impl Regions {
    fn in_memory(ledgers: &ManagedLedgerConfig) -> Self {
        let region = |name| Arc::new(settings(ledgers.clone()).name(name).in_memory());
        Self { west: region("west"), east: region("east") }
    }

    /// Both in memory, or in directories that have none of the demo's topics yet.
    async fn open(args: &DemoArgs, ledgers: ManagedLedgerConfig) -> Result<Self, Error> {
        let Some(data) = &args.data else {
            return Ok(Self::in_memory(&ledgers));
        };
        let open = async |name: &str| {
            let region = settings(ledgers.clone()).name(name).open(data.join(name)).await?;
            let named = || region.name().clone();
            let topics = region.topics().await;
            let topics = topics.map_err(|error| Error::Topics { region: named(), error })?;
            match (0..args.topics).map(topic).find(|topic| topics.contains(topic)) {
                Some(topic) => Err(Error::Used { topic, region: named(), data: data.clone() }),
                None => Ok(Arc::new(region)),
            }
        };
        Ok(Self { west: open("west").await?, east: open("east").await? })
    }

    pub(crate) fn both(&self) -> [&Region; 2] {
        [&self.west, &self.east]
    }
}

impl Error {
    /// 2 when the command line is at fault.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::TooFewMessages { .. } | Self::TooFewToPlant { .. } | Self::PlantOnDisk => 2,
            _ => 1,
        }
    }
}

/// Runs the demo and prints its report.
pub(crate) async fn run(args: &DemoArgs) -> Result<Verdict, Error> {
    let report = replicate(args, &Progress::new(args.messages)).await?;
    let mut out = io::stdout().lock();
    let written = if args.json { report.write_json(&mut out) } else { report.write_text(&mut out) };
    match written.and_then(|()| out.flush()) {
        Ok(()) => Ok(report.verdict),
        // Whoever read the report has seen enough; the verdict stands.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(report.verdict),
        Err(error) => Err(Error::Output(error)),
    }
}

async fn replicate(args: &DemoArgs, progress: &Progress) -> Result<Report, Error> {
    let share = args.messages / args.topics;
    let weather = match args.no_faults {
        true => Weather::Fair,
        false if share < faults::MESSAGES_MIN => {
            return Err(Error::TooFewMessages { messages: share });
        }
        false => Weather::Faults { seed: args.seed },
    };
    if args.plant.is_some() && share < PLANT_MESSAGES_MIN {
        return Err(Error::TooFewToPlant { needed: PLANT_MESSAGES_MIN * args.topics });
    }
    if args.plant.is_some() && args.data.is_some() {
        return Err(Error::PlantOnDisk);
    }
    let input = Input::open(args.input.as_deref())?;
    // Until here a signal ends it at once: reading the input cannot be cut short.
    let mut interrupt = Interrupt::listen().map_err(Error::Signals)?;
    let regions = Regions::open(args, ManagedLedgerConfig::default()).await?;
    let mut lanes = Vec::new();
    for n in 0..args.topics {
        let messages = share + u64::from(n < args.messages % args.topics);
        lanes.push(Lane::open(regions.clone(), topic(n), messages, progress.clone()).await?);
    }
    let outcomes = tokio::select! {
        outcomes = run_all(&lanes, &input, weather) => outcomes,
        never = progress.follow(&lanes) => match never {},
        () = interrupt.wait() => return Err(give_up(args, &regions, &lanes, progress).await),
    };
    progress.show(&lanes);
    progress.finish();
    let outcomes = outcomes?;
    for region in regions.both() {
        region.close().await?;
    }
    progress.line("both regions are closed");
    if let Some(damage) = args.plant {
        progress.line(&plant_in(&regions.east, damage).await?);
    }
    progress.line("reading every entry from the bookies of both");
    let mut topics = Vec::new();
    for (lane, outcome) in lanes.into_iter().zip(outcomes) {
        topics.push(examine(lane, outcome).await?);
    }
    Ok(Report::new(topics))
}

/// All lanes at once; the first error ends them all.
async fn run_all(
    lanes: &[Lane],
    input: &Input,
    weather: Weather,
) -> Result<Vec<Outcome>, LaneError> {
    // West's bookies are lost once and not once a topic, or there would soon be none to write to.
    let scopes = std::iter::once(Scope::Region).chain(std::iter::repeat(Scope::Topic));
    let runs = lanes.iter().zip(scopes).map(|(lane, scope)| lane.run(input, weather, scope));
    futures::future::try_join_all(runs).await
}

/// Settles what was sent, and closes both regions.
async fn give_up(args: &DemoArgs, regions: &Regions, lanes: &[Lane], progress: &Progress) -> Error {
    futures::future::join_all(lanes.iter().map(Lane::stop)).await;
    progress.finish();
    for region in regions.both() {
        if let Err(error) = region.close().await {
            return error.into();
        }
    }
    // Not before: a batch may have been on its way to the bookies.
    let (mut published, mut acknowledged) = (0, 0);
    for [in_west, _, done] in lanes.iter().map(Lane::progress) {
        published += in_west;
        acknowledged += done;
    }
    Error::Interrupted { published, acknowledged, kept: args.data.clone() }
}

/// How to see what was done, in regions that stay.
fn look_at(data: &Path) -> String {
    let (west, east) = (data.join("west"), data.join("east"));
    format!(
        "; see georepl why --region {west} and georepl status --region {east}; georepl replicate --from {west} \
         --to {east} TOPIC sends the rest",
        west = west.display(),
        east = east.display()
    )
}

async fn examine(lane: Lane, outcome: Outcome) -> Result<TopicReport, Error> {
    let Regions { west, east } = &lane.regions;
    // The one thing that is asked of what ran: cursors are not stored yet, so there is nowhere else
    // to read it. The audit only uses it to divide the entries it reads itself.
    let mark_delete = lane.cursor.mark_delete_position();
    let audit = Audit::run(west, east, &lane.topic, lane.messages, mark_delete).await?;
    let ledgers = Ledgers::examine(&lane.regions, &lane.topic).await?;
    Ok(TopicReport::new(lane.topic, outcome, audit, ledgers))
}

/// Damages the first topic somewhere in its first ledger.
async fn plant_in(east: &Region, damage: Damage) -> Result<String, ledgers::Error> {
    let topic = topic(0);
    let ledgers = ledgers::listed(east, &topic).await?;
    let first = ledgers.first().expect("a topic with messages has a ledger");
    let entries = first.end.map_or(0, |end| end.entries);
    let at = Position::new(first.ledger, EntryId(entries / 2 - 1));
    let memory = east.memory().expect("damage on disk was refused");
    let done = plant::plant(&memory.bookies, at, damage);
    Ok(format!("planted in {topic}: {done} of east"))
}

/// An entry and one after it.
const PLANT_MESSAGES_MIN: u64 = 2;

fn topic(n: u64) -> String {
    match n {
        0 => "persistent://public/default/earthquakes".to_owned(),
        n => format!("persistent://public/default/earthquakes-{}", n + 1),
    }
}

fn settings(ledgers: ManagedLedgerConfig) -> RegionBuilder {
    // Room for the metadata of a message of the largest size, within a bookie's frame of 5 MiB.
    let ledgers = ManagedLedgerConfig { entry_bytes_max: (5 << 20) - (16 << 10), ..ledgers };
    let topics =
        EmbeddedTopicConfig { frame_bytes_max: (5 << 20) - (24 << 10), ..Default::default() };
    // Shorter than the defaults, so that one need not wait for seconds until a hung bookie is
    // noticed. Bookies in this process answer soon, so nothing that works is taken for hung.
    let client = ClientConfig {
        request_timeout: Duration::from_millis(500),
        speculative_read_delay: Duration::from_millis(100),
        ..ClientConfig::default()
    };
    Region::builder().bookies(BOOKIES).client(client).ledgers(ledgers).topics(topics)
}

/// Three for an ensemble and a spare. The bookie that hung takes the place of the one that is killed
/// after it, once it has answered; the killed one comes back in another life, in which a ledger that
/// knew it never uses it again.
const BOOKIES: usize = 4;

#[cfg(test)]
mod tests;

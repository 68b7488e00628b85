//! One run: a ledger, its writer, recoverers and readers, and the misfortunes of their bookies, all from one seed.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Once};
use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use georepl_storage::write::{self, AppendSink, CloseError};
use georepl_storage::{
    Advice, BookieId, ClientConfig, EntryId, LedgerClient, LedgerEnd, LedgerId, LedgerMetadata,
    LedgerOptions, LedgerReader, LedgerState, LedgerWriter, MemoryBookieRegistry, MemoryBookies,
    Password, QuorumSizes, ReadError, Tail,
};
use tokio::task::JoinHandle;

use crate::network::{Network, Transport};
use crate::oracle::{Counts, Oracle};
use crate::store::Store;
use crate::weather::{Log, Season, Weather};

/// What bookies may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Assumption {
    /// At most AQ - 1 of them lose what they hold, and then come back as another instance.
    Kept,
    /// Any of them loses what it holds, and comes back as if nothing had been.
    Broken,
}

/// What came of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    pub counts: Counts,
    /// The digest of all events, and how many there were.
    pub trace: (u64, u64),
}

/// A rule that was broken, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub seed: u64,
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, what } = self;
        write!(
            f,
            "seed {seed}: {what}\n  replay: GEOREPL_SEED={seed} cargo test -p georepl-tests --test simulation -- --exact one_seed --ignored --nocapture"
        )
    }
}

/// Longer than anything may take once nothing fails any more: several rounds of all timeouts.
const CALM: Duration = Duration::from_secs(300);

/// Sizes with and without stripes, with and without slack above the ack quorum.
const SIZES: [(usize, usize, usize); 8] =
    [(3, 3, 2), (3, 3, 2), (4, 3, 2), (3, 2, 2), (4, 2, 2), (2, 2, 2), (3, 3, 3), (2, 2, 1)];

#[derive(Clone)]
pub struct World {
    pub bookies: Arc<MemoryBookies>,
    pub registry: Arc<MemoryBookieRegistry>,
    pub weather: Arc<Weather>,
    pub oracle: Arc<Oracle>,
    network: Arc<Network>,
    store: Store,
    pub sizes: QuorumSizes,
}

/// Runs one seed in a runtime of its own, whose time passes only when everybody waits.
pub fn run(seed: u64, assumption: Assumption, log: Log) -> Result<Report, Violation> {
    // Clients draw placements and jitter from the generator of the thread.
    fastrand::seed(seed);
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build().expect("a runtime");
    let played = noticing_panics(|| {
        runtime.block_on(async {
            let world = World::new(Rng::with_seed(seed), log);
            if let Err(what) = world.play(assumption).await {
                world.oracle.broken(format_args!("{what}"));
            }
            match world.oracle.violation() {
                Some(what) => Err(what),
                None => Ok(Report { counts: world.oracle.counts(), trace: world.weather.trace() }),
            }
        })
    });
    played.map_err(|what| Violation { seed, what })
}

thread_local! {
    /// The first panic on this thread since somebody looked.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs something, and makes an error of any panic on this thread: also of one in a task that nobody waits for.
pub fn noticing_panics<T>(run: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            PANIC.with_borrow_mut(|first| _ = first.get_or_insert_with(|| info.to_string()));
            before(info);
        }));
    });
    PANIC.take();
    let ran = panic::catch_unwind(AssertUnwindSafe(run));
    match (PANIC.take(), ran) {
        (Some(panic), _) => Err(panic),
        (None, Ok(result)) => result,
        (None, Err(_)) => Err("it was unwound without a panic".into()),
    }
}

/// Tells the oracle what the writer's task says.
struct Sink {
    oracle: Arc<Oracle>,
    weather: Arc<Weather>,
}

impl AppendSink for Sink {
    fn confirmed(&self, _: LedgerId, through: EntryId) {
        self.oracle.acknowledged(through);
    }

    fn failed(&self, _: LedgerId, error: write::Error) {
        self.weather.note(format_args!("writer failed: {error}"));
        self.oracle.failed();
        match &error {
            write::Error::Stopped { .. } => {
                self.oracle.broken(format_args!("the writer's task died: {error}"));
            }
            write::Error::ClosedElsewhere(closed) if closed.lost().is_some() => {
                self.oracle.broken(format_args!("S4: {closed}"));
            }
            _ => {}
        }
    }
}

impl World {
    fn new(mut rng: Rng, log: Log) -> Self {
        let (ensemble, write, ack) = SIZES[rng.usize(..SIZES.len())];
        let sizes = QuorumSizes::new(ensemble, write, ack).expect("valid sizes");
        let spares = rng.usize(0..3);
        let ids: Vec<_> =
            (1..=ensemble + spares).map(|n| BookieId::from(format!("b{n}"))).collect();
        // One for each bookie that may be lost: where every copy counts, its place needs somebody new in the end.
        let fresh = (1..ack).map(|n| BookieId::from(format!("fresh{n}")));
        let bookies = Arc::new(MemoryBookies::new(ids.iter().cloned().chain(fresh)));
        let registry = Arc::new(MemoryBookieRegistry::new(ids));
        let weather = Arc::new(Weather::new(rng, log));
        let oracle = Arc::new(Oracle::new(bookies.clone(), weather.clone()));
        let network = Network::new(bookies.clone(), weather.clone());
        tokio::spawn(network.clone().run());
        let store = Store::new(weather.clone(), oracle.clone());
        Self { bookies, registry, weather, oracle, network, store, sizes }
    }

    fn client(&self) -> LedgerClient {
        let transport = Arc::new(Transport(self.network.clone()));
        let store = Arc::new(self.store.clone());
        LedgerClient::new(transport, store, self.registry.clone(), ClientConfig::default())
    }

    pub fn millis(&self, range: Range<u64>) -> Duration {
        Duration::from_millis(self.weather.draw(|rng| rng.u64(range)))
    }

    async fn play(&self, assumption: Assumption) -> Result<(), String> {
        let writer = self.create().await?;
        let ledger = writer.id();
        let mut actors = vec![("writer", tokio::spawn(self.clone().write(writer)))];
        for _ in 0..self.weather.draw(|rng| rng.usize(0..3)) {
            actors.push(("recoverer", tokio::spawn(self.clone().recover_some_time(ledger))));
        }
        for _ in 0..self.weather.draw(|rng| rng.usize(1..3)) {
            actors.push(("reader", tokio::spawn(self.clone().follow(ledger))));
        }
        let chaos = tokio::spawn(self.clone().misfortunes(ledger, assumption));
        idle(self.millis(20_000..90_000)).await;
        chaos.abort();
        let _its_end_is_no_news = chaos.await;
        self.calm();
        // Whoever is still at it must come to an end: the ledger is closed by whoever is last.
        let end = within("the last recovery", self.recover_at_last(ledger)).await?;
        for (who, actor) in actors {
            finished(who, actor).await?;
        }
        within("the last reads", self.read_everything(ledger, end)).await?
    }

    async fn create(&self) -> Result<LedgerWriter, String> {
        let (oracle, weather) = (self.oracle.clone(), self.weather.clone());
        let sink = Arc::new(Sink { oracle, weather });
        let (sizes, custom) = (self.sizes, BTreeMap::new());
        let options = LedgerOptions { sizes, password: Password::from("secret"), custom };
        let writer = self.client().create(options, sink).await;
        let writer =
            writer.map_err(|error| format!("in fair weather a ledger is made: {error}"))?;
        self.oracle.created(writer.id());
        Ok(writer)
    }

    /// Appends at its own pace, and then closes the ledger, leaves it or is gone.
    async fn write(self, writer: LedgerWriter) {
        let entries = self.weather.draw(|rng| rng.usize(5..60));
        let mut appended = 0;
        while appended < entries {
            idle(self.millis(0..1_500)).await;
            let batch = self.weather.draw(|rng| rng.usize(1..5));
            let payloads: Vec<_> = (0..batch).map(|i| self.payload(appended + i)).collect();
            match writer.append(payloads.iter().cloned()) {
                Ok(first) => self.oracle.appended(first, &payloads),
                Err(error @ write::Error::Stopped { .. }) => {
                    return self.oracle.broken(format_args!("the writer's task died: {error}"));
                }
                Err(_) => break,
            }
            appended += batch;
        }
        match self.weather.draw(|rng| rng.u8(..4)) {
            0 => {
                self.weather.note(format_args!("writer crashes"));
                drop(writer);
            }
            1 => idle(self.millis(1_000..60_000)).await,
            _ => self.close(writer).await,
        }
    }

    fn payload(&self, number: usize) -> Bytes {
        let padding = self.weather.draw(|rng| rng.usize(..40));
        Bytes::from(format!("{number}{:padding$}", ""))
    }

    async fn close(&self, writer: LedgerWriter) {
        loop {
            let closed = writer.close().await;
            self.weather.note(format_args!("writer's close: {closed:?}"));
            match closed {
                Ok(end) => {
                    self.oracle.count(|counts| counts.closed_by_writer += 1);
                    return self.oracle.told_end("the writer", end);
                }
                Err(CloseError::ClosedElsewhere(closed)) if closed.lost().is_some() => {
                    return self.oracle.broken(format_args!("S4: {closed}"));
                }
                Err(CloseError::ClosedElsewhere(closed)) => {
                    return self.oracle.told_end("the late writer", closed.found);
                }
                Err(CloseError::Unknown { .. }) => {
                    idle(Duration::from_secs(1)).await;
                }
                Err(CloseError::Fenced { .. }) => return,
                Err(error) => return self.oracle.broken(format_args!("close: {error}")),
            }
        }
    }

    /// Recovers the ledger once it feels like it, and may crash over it.
    async fn recover_some_time(self, ledger: LedgerId) {
        idle(self.millis(0..60_000)).await;
        for _ in 0..self.weather.draw(|rng| rng.usize(1..4)) {
            let patience = self.millis(100..30_000);
            if let Ok(Ok(_)) = tokio::time::timeout(patience, self.recover(ledger)).await {
                return;
            }
            idle(self.millis(0..5_000)).await;
        }
    }

    async fn recover(&self, ledger: LedgerId) -> Result<LedgerEnd, String> {
        let recovered = self.client().recover(ledger, &Password::from("secret")).await;
        match recovered {
            Ok(reader) => {
                let end = end_of(&reader.metadata()).ok_or("a recovered ledger is closed")?;
                self.oracle.count(|counts| counts.recoveries += 1);
                self.oracle.told_end("a recoverer", end);
                Ok(end)
            }
            Err(error) => {
                self.weather.note(format_args!("recovery failed: {error}"));
                if error.advice() == Advice::GiveUp {
                    self.oracle.broken(format_args!("a recovery gives up: {error}"));
                }
                Err(error.to_string())
            }
        }
    }

    async fn recover_at_last(&self, ledger: LedgerId) -> LedgerEnd {
        loop {
            if let Ok(end) = self.recover(ledger).await {
                return end;
            }
            idle(Duration::from_secs(1)).await;
        }
    }

    /// Reads along until the ledger is closed and read.
    async fn follow(self, ledger: LedgerId) {
        idle(self.millis(0..30_000)).await;
        let mut next = EntryId::FIRST;
        let mut shown = None;
        let reader = loop {
            match self.client().open(ledger, &Password::from("secret")).await {
                Ok(reader) => break reader,
                Err(error) if error.advice() == Advice::GiveUp => {
                    return self.oracle.broken(format_args!("a reader gives up: {error}"));
                }
                Err(_) => idle(self.millis(100..3_000)).await,
            }
        };
        loop {
            let known = next.checked_prev();
            let wait = reader.wait_last_add_confirmed(known);
            let told = tokio::time::timeout(self.millis(1_000..20_000), wait).await;
            self.check_lac(&reader, &mut shown);
            let through = match told {
                Ok(Ok(Tail::Confirmed(lac))) => Some(lac),
                Ok(Ok(Tail::Closed(end))) => {
                    self.oracle.told_end("a reader", end);
                    if end.last_entry < Some(next) {
                        return;
                    }
                    end.last_entry
                }
                Ok(Err(_)) | Err(_) => None,
            };
            let Some(through) = through else {
                idle(self.millis(1..1_000)).await;
                continue;
            };
            match reader.read(next, through).await {
                Ok(entries) => {
                    self.oracle.read("a reader", &entries);
                    next = through.next();
                }
                Err(error) => self.not_read(&error).await,
            }
        }
    }

    /// In bad weather an entry may be out of reach, or the record out of date.
    async fn not_read(&self, error: &ReadError) {
        self.weather.note(format_args!("not read: {error}"));
        if matches!(error, ReadError::NoSuchEntry { .. }) && self.weather.is_calm() {
            self.oracle.broken(format_args!("S5: {error}"));
        }
        idle(self.millis(100..3_000)).await;
    }

    /// The LAC of one handle only rises, but for the end of a closed ledger.
    fn check_lac(&self, reader: &LedgerReader, shown: &mut Option<EntryId>) {
        let lac = reader.last_add_confirmed();
        self.oracle.shown_lac("a reader", lac);
        if lac < *shown && end_of(&reader.metadata()).is_none() {
            self.oracle.broken(format_args!("S8: a reader's LAC fell from {shown:?} to {lac:?}"));
        }
        *shown = lac;
    }

    /// S5, S9, S10: with everybody back, all of the ledger is there, for every reader.
    async fn read_everything(&self, ledger: LedgerId, end: LedgerEnd) -> Result<(), String> {
        let password = Password::from("secret");
        let opened =
            self.client().open(ledger, &password).await.map_err(|error| error.to_string())?;
        let recovered = self.client().recover(ledger, &password).await;
        let recovered = recovered.map_err(|error| error.to_string())?;
        for (who, reader) in [("the last opener", opened), ("the last recoverer", recovered)] {
            if end_of(&reader.metadata()) != Some(end)
                || reader.last_add_confirmed() != end.last_entry
            {
                return Err(format!("S3: {who} does not see {end:?}"));
            }
            if let Some(last) = end.last_entry {
                let read = reader.read(EntryId::FIRST, last).await;
                let entries = read.map_err(|error| format!("S5: {who}: {error}"))?;
                self.oracle.read(who, &entries);
            }
        }
        Ok(())
    }

    /// Everybody is back, and the operator has set up new bookies for those that were lost.
    fn calm(&self) {
        self.weather.note(format_args!("calm"));
        self.weather.set_season(Season::Calm);
        self.bookies.ids().for_each(|bookie| self.up(&bookie));
    }
}

fn end_of(record: &LedgerMetadata) -> Option<LedgerEnd> {
    match record.state() {
        LedgerState::Closed(end) => Some(end),
        LedgerState::Open | LedgerState::InRecovery => None,
    }
}

async fn within<T>(what: &str, future: impl Future<Output = T>) -> Result<T, String> {
    let waited = tokio::time::timeout(CALM, future).await;
    waited.map_err(|_| format!("liveness: {what} did not end with all faults off"))
}

async fn finished(who: &str, actor: JoinHandle<()>) -> Result<(), String> {
    within(who, actor).await?.map_err(|error| format!("the {who} panicked: {error}"))
}

/// Lets virtual time pass: an actor's own pace, or the length of a storm. Nothing of the wall clock is waited for, and
/// no outcome: those are awaited.
pub async fn idle(time: Duration) {
    tokio::time::sleep(time).await;
}

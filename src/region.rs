//! A whole region in this process: bookies, their metadata, and topics, in memory or in a directory.

mod builder;
mod directory;
mod error;
mod garbage;
mod orphans;
mod renewal;
mod space;
mod topics;

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use futures::{StreamExt, stream};
use georepl_cursor::{
    ChangeError, CloseError, DeleteError, ManagedLedger, ManagedLedgerConfig, ROLLOVER_AGE,
    Refusal, Retention, topic_exists, topics,
};
use georepl_replicator::{EmbeddedTopic, EmbeddedTopicConfig, EmbeddedTopics};
use georepl_storage::fault::FaultTransport;
use georepl_storage::{
    BookieId, BookieRegistry, BookieTransport, ClientConfig, DeleteLedgersError, DurableBookies,
    LedgerClient, LedgerId, MemoryBookieRegistry, MemoryBookies, MetadataError, MetadataStore,
    RegisteredBookie,
};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

pub use builder::RegionBuilder;
pub use directory::Absent;
pub use error::{CloseRegionError, MissingBookie, OpenRegionError, RenewRegionBookieError};
use garbage::{Attendance, Watched};
use topics::Topics;

/// A region. Its topics are made when they are first asked for, and kept. A topic whose log failed is opened again when
/// it is next asked for; its cursors must be opened again too.
///
/// What is acknowledged in a region on disk survives the process and a loss of power. Dropping the region without
/// [`Region::close`] is safe, but the next opening has to recover the last ledger of each topic; the drop may block for
/// as long as the disk takes over what was accepted.
///
/// Entries of deleted ledgers are dropped by its bookies after deletions and at its opening. Ledgers that a process left
/// which ended while it created them are deleted some seconds later. If the retention of an open
/// topic has a time, open topics are trimmed from time to time.
///
/// ```
/// # use georepl::{Region, replicator::EmbeddedTopics};
/// # use georepl::replicator::message::{MessageMetadata, compose};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let temporary = tempfile::tempdir()?;
/// # let directory = temporary.path().join("west");
/// let west = Region::open(directory).await?;
/// let topic = west.topic("persistent://public/default/orders").await.map_err(|e| e.to_string())?;
/// topic.publish(compose(&MessageMetadata::default(), b"first")).await?;
/// west.close().await?;
/// # Ok(())
/// # }
/// ```
pub struct Region {
    name: Arc<str>,
    settings: Settings,
    bookies: Arc<Bookies>,
    transport: Arc<FaultTransport>,
    store: Arc<Watched>,
    client: LedgerClient,
    topics: Arc<Topics>,
    missing: Vec<MissingBookie>,
    aging: Aging,
    tasks: parking_lot::Mutex<JoinSet<()>>,
    /// None in memory.
    directory: Option<PathBuf>,
}

/// The shortest time after which entries of an open topic go; none if time alone lets none go.
type Aging = Arc<watch::Sender<Option<Duration>>>;

/// Of everything that a region opens.
#[derive(Clone, Debug, Default)]
struct Settings {
    client: ClientConfig,
    ledgers: ManagedLedgerConfig,
    topics: EmbeddedTopicConfig,
}

/// The bookies of a region in memory, for audits, planted damage and faults.
#[derive(Debug)]
pub struct Memory {
    /// What they hold.
    pub bookies: Arc<MemoryBookies>,
    /// Which of them the region counts on.
    pub registry: Arc<MemoryBookieRegistry>,
}

enum Bookies {
    Memory(Memory),
    Disk(Arc<DurableBookies>),
}

impl Region {
    /// Opens the region in a directory, or begins one there, with default settings.
    ///
    /// # Errors
    /// As [`RegionBuilder::open`], which says more.
    pub async fn open(directory: impl Into<PathBuf>) -> Result<Self, OpenRegionError> {
        Self::builder().open(directory).await
    }

    /// Settings, and with them a region in memory or in a directory.
    pub fn builder() -> RegionBuilder {
        RegionBuilder::default()
    }

    fn start(
        name: Arc<str>,
        settings: Settings,
        bookies: Bookies,
        store: Arc<dyn MetadataStore>,
        missing: Vec<MissingBookie>,
        directory: Option<PathBuf>,
    ) -> Self {
        let deleted = Arc::new(Notify::new());
        // What an earlier process has deleted.
        deleted.notify_one();
        let store = Arc::new(Watched::new(store, deleted.clone()));
        let attendance = if missing.is_empty() { Attendance::All } else { Attendance::Some };
        let bookies = Arc::new(bookies);
        let transport = Arc::new(FaultTransport::new(bookies.transport()));
        let registry = bookies.registry();
        let client =
            LedgerClient::new(transport.clone(), store.clone(), registry, settings.client.clone());
        let topics = Arc::<Topics>::default();
        let mut tasks = JoinSet::new();
        let (weak_bookies, weak_store) = (Arc::downgrade(&bookies), Arc::downgrade(&store));
        tasks.spawn(collect_garbage(weak_bookies.clone(), attendance, weak_store.clone(), deleted));
        tasks.spawn(delete_orphans(weak_bookies, weak_store, settings.client.clone()));
        tasks.spawn(space::look_for_it(Arc::downgrade(&bookies)));
        let aging = Aging::default();
        tasks.spawn(trim_from_time_to_time(Arc::downgrade(&topics), aging.clone()));
        let tasks = parking_lot::Mutex::new(tasks);
        Self {
            name,
            settings,
            bookies,
            transport,
            store,
            client,
            topics,
            missing,
            aging,
            tasks,
            directory,
        }
    }

    /// The region's name, which is its cluster's.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Where the process that holds the region may serve others; none in memory.
    pub fn socket(&self) -> Option<PathBuf> {
        self.directory.as_deref().map(directory::socket_in)
    }

    /// Where the region of this directory is served, if it is.
    pub fn socket_in(directory: &Path) -> PathBuf {
        directory::socket_in(directory)
    }

    /// The file in this directory that is locked while its region is held. It is the same one as long as the directory
    /// is neither renamed nor replaced.
    pub fn lock_in(directory: &Path) -> PathBuf {
        directory::lock_in(directory)
    }

    /// The bookies that could not be opened, and why.
    pub fn missing(&self) -> &[MissingBookie] {
        &self.missing
    }

    /// The bookies that serve now.
    pub fn registered(&self) -> Arc<[RegisteredBookie]> {
        self.bookies.registry().bookies().borrow().clone()
    }

    /// The bookies that were opened and serve no more, because their disk failed. They are tried again every few
    /// seconds.
    pub fn failed(&self) -> Vec<BookieId> {
        let registered = self.registered();
        let mut opened = self.bookies.ids();
        opened.retain(|id| registered.iter().all(|bookie| bookie.id != *id));
        opened
    }

    /// The bookies of a region in memory; none on disk.
    pub fn memory(&self) -> Option<&Memory> {
        match &*self.bookies {
            Bookies::Memory(memory) => Some(memory),
            Bookies::Disk(_) => None,
        }
    }

    /// The way to the bookies, for faults on it.
    pub fn transport(&self) -> &FaultTransport {
        &self.transport
    }

    /// Opens read handles on the region's ledgers.
    pub fn client(&self) -> &LedgerClient {
        &self.client
    }

    /// Where the records of the region's topics, cursors and ledgers are.
    pub fn store(&self) -> Arc<dyn MetadataStore> {
        self.store.clone()
    }

    /// The settings of every topic's ledgers.
    pub fn ledgers(&self) -> &ManagedLedgerConfig {
        &self.settings.ledgers
    }

    /// The full names of the region's topics, sorted.
    ///
    /// # Errors
    /// [`MetadataError`].
    pub async fn topics(&self) -> Result<Vec<String>, MetadataError> {
        topics(&*self.store).await
    }

    /// The topic of that full name, if there is one. Unlike [`EmbeddedTopics::topic`] it makes none.
    ///
    /// # Errors
    /// What is wrong, for people.
    pub async fn existing_topic(&self, name: &str) -> Result<Option<EmbeddedTopic>, Arc<str>> {
        match topic_exists(&*self.store, name).await.map_err(words)? {
            true => self.topic(name).await.map(Some),
            false => Ok(None),
        }
    }

    /// Deletes a topic that is open, with its cursors. It may be made again.
    ///
    /// If the future is dropped, it goes on.
    ///
    /// # Errors
    /// [`DeleteError`]; ask for the topic and delete it again.
    pub async fn delete_topic(&self, topic: &EmbeddedTopic) -> Result<(), DeleteError> {
        let mut place = self.topics.hold(topic.ledger().name()).await;
        let log = topic.ledger().clone();
        // A task of its own, so that a caller who goes leaves no closed handle behind that keeps the topic from being
        // opened again.
        let deleting = tokio::spawn(async move {
            let deleted = log.delete().await;
            // Deleted or not, this handle is closed. Another one may be open by now.
            if place.as_ref().is_some_and(|open| open.ledger().is_same(&log)) {
                *place = None;
            }
            deleted
        });
        match deleting.await {
            Ok(deleted) => deleted,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // Its runtime is being shut down.
            Err(_) => std::future::pending().await,
        }
    }

    /// Gives an open topic a retention of its own, which is stored with it. What that lets go is deleted.
    ///
    /// If the future is dropped, it may be changed or not.
    ///
    /// # Errors
    /// [`ChangeError`]; call it again.
    pub async fn set_retention(
        &self,
        topic: &EmbeddedTopic,
        retention: Retention,
    ) -> Result<(), ChangeError> {
        topic.ledger().set_retention(retention).await?;
        note_time(&self.aging, aged_after(retention));
        topic.ledger().trim().await.map(drop)
    }

    /// Closes every topic: its appends are decided, its end is recorded, and what its cursors acknowledged is stored.
    /// May be called again.
    ///
    /// # Errors
    /// [`CloseRegionError`] of the first topic that was not closed; all were tried.
    pub async fn close(&self) -> Result<(), CloseRegionError> {
        let mut tasks = std::mem::take(&mut *self.tasks.lock());
        tasks.shutdown().await;
        let closing = self.topics.places().into_iter().map(async |(topic, place)| {
            // One that is being opened is waited for.
            let open = place.lock().await.clone();
            let Some(open) = open else { return Ok(()) };
            let closed = open.ledger().close().await;
            closed.map_err(|error| CloseRegionError { region: self.name.clone(), topic, error })
        });
        futures::future::join_all(closing).await.into_iter().collect()
    }
}

#[async_trait]
impl EmbeddedTopics for Region {
    async fn topic(&self, name: &str) -> Result<EmbeddedTopic, Arc<str>> {
        let mut place = self.topics.hold(name).await;
        let failed = match &*place {
            None => None,
            Some(topic) => match topic.ledger().refusal() {
                None | Some(Refusal::Terminated { .. }) => return Ok(topic.clone()),
                Some(Refusal::WriteFailed { .. }) => Some(topic.clone()),
                // Nobody else has the directory: it is its last ledger alone that somebody here has recovered.
                Some(Refusal::Fenced { .. }) if self.directory.is_some() => Some(topic.clone()),
                // Whoever closed or took it has decided that it ends here.
                Some(
                    refusal @ (Refusal::Closed { .. }
                    | Refusal::Fenced { .. }
                    | Refusal::Lost { .. }),
                ) => {
                    return Err(words(refusal));
                }
            },
        };
        let (client, store, settings) = (self.client.clone(), self.store(), self.settings.clone());
        let aging = self.aging.clone();
        let name = name.to_owned();
        // A task of its own, so that a caller who goes leaves no log behind that is open and not
        // known to anybody.
        let opening = tokio::spawn(async move {
            if let Some(failed) = &failed {
                match failed.ledger().close().await {
                    // Its end is what the recovery found.
                    Ok(()) | Err(CloseError::Fenced { .. }) => {}
                    Err(error) => return Err(words(error)),
                }
            }
            let log = ManagedLedger::open(&name, client, store, settings.ledgers).await;
            let log = log.map_err(words)?;
            let opened = EmbeddedTopic::open(log.clone(), settings.topics).await.map_err(words);
            match &opened {
                Ok(topic) => {
                    note_time(&aging, aged_after(log.retention()));
                    *place = Some(topic.clone());
                }
                Err(error) => {
                    // What is to be mended is why it was not opened.
                    if let Err(unclosed) = log.close().await {
                        return Err(words(format!("{error}; nor was its log closed: {unclosed}")));
                    }
                }
            }
            opened
        });
        opening.await.unwrap_or_else(|error| Err(words(error)))
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("name", &self.name)
            .field("directory", &self.directory)
            .finish_non_exhaustive()
    }
}

impl Bookies {
    fn transport(&self) -> Arc<dyn BookieTransport> {
        match self {
            Self::Memory(memory) => memory.bookies.clone(),
            Self::Disk(bookies) => bookies.clone(),
        }
    }

    fn registry(&self) -> Arc<dyn BookieRegistry> {
        match self {
            Self::Memory(memory) => memory.registry.clone(),
            Self::Disk(bookies) => bookies.registry(),
        }
    }

    /// Those that were opened.
    fn ids(&self) -> Vec<BookieId> {
        match self {
            Self::Memory(memory) => memory.bookies.ids().collect(),
            Self::Disk(bookies) => bookies.ids().collect(),
        }
    }

    async fn ledgers(&self) -> BTreeSet<LedgerId> {
        match self {
            Self::Memory(memory) => memory.bookies.ledgers(),
            Self::Disk(bookies) => bookies.ledgers().await,
        }
    }

    async fn delete_ledgers(&self, ledgers: BTreeSet<LedgerId>) -> Result<(), DeleteLedgersError> {
        match self {
            Self::Memory(memory) => {
                memory.bookies.delete_ledgers(ledgers);
                Ok(())
            }
            Self::Disk(bookies) => bookies.delete_ledgers(ledgers).await,
        }
    }
}

/// Lets the bookies drop what was deleted, each time that something was, as long as the region is there.
async fn collect_garbage(
    bookies: Weak<Bookies>,
    attendance: Attendance,
    store: Weak<Watched>,
    deleted: Arc<Notify>,
) {
    loop {
        deleted.notified().await;
        let (Some(bookies), Some(store)) = (bookies.upgrade(), store.upgrade()) else { return };
        match garbage::collect(&bookies, attendance, &*store).await {
            Ok(0) => {}
            Ok(ledgers) => tracing::info!(ledgers, "the bookies have dropped deleted ledgers"),
            Err(error) => tracing::warn!("deleted ledgers are dropped later: {error}"),
        }
    }
}

/// Deletes, once, what earlier processes have created and nobody names. Not at once: a command that is over in a moment
/// does not pay for looking at every ledger.
async fn delete_orphans(bookies: Weak<Bookies>, store: Weak<Watched>, config: ClientConfig) {
    tokio::time::sleep(ORPHANS_AFTER).await;
    let (Some(bookies), Some(store)) = (bookies.upgrade(), store.upgrade()) else { return };
    let held = bookies.ledgers().await;
    let client = LedgerClient::new(bookies.transport(), store.clone(), bookies.registry(), config);
    match orphans::delete(&store, &held, &client).await {
        Ok(0) => {}
        Ok(ledgers) => tracing::info!(ledgers, "ledgers that nobody names are deleted"),
        Err(error) => tracing::warn!("ledgers that nobody names stay: {error}"),
    }
}

/// Long enough for a command to end, short beside the life of a process that serves.
const ORPHANS_AFTER: Duration = Duration::from_secs(5);

/// The time after which entries go for which somebody has to look. With a time of 0 they go when they are acknowledged,
/// but for those in the last ledger.
fn aged_after(retention: Retention) -> Option<Duration> {
    retention.time.map(|time| if time.is_zero() { ROLLOVER_AGE } else { time })
}

fn note_time(aging: &Aging, time: Option<Duration>) {
    aging.send_if_modified(|shortest| {
        let known = std::mem::replace(shortest, shorter(*shortest, time));
        *shortest != known
    });
}

fn shorter(one: Option<Duration>, other: Option<Duration>) -> Option<Duration> {
    one.into_iter().chain(other).min()
}

/// Time alone makes ledgers old enough to go, so somebody has to look.
async fn trim_from_time_to_time(topics: Weak<Topics>, aging: Aging) {
    let mut noted = aging.subscribe();
    loop {
        let shortest = *noted.borrow_and_update();
        let pause = async {
            match shortest {
                Some(time) => {
                    tokio::time::sleep((time / 4).clamp(TRIM_PAUSE_MIN, TRIM_PAUSE_MAX)).await;
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = pause => {}
            changed = noted.changed() => {
                changed.expect("this task has a sender");
                continue;
            }
        }
        let Some(topics) = topics.upgrade() else { return };
        trim_aged(&topics, &aging).await;
    }
}

/// Trims the open topics that have something to let go, several at once, and finds out again which time is the shortest.
/// A topic whose last ledger is old begins another, so that the old one goes when its time comes.
async fn trim_aged(topics: &Topics, aging: &Aging) {
    // Before the topics are looked at: what is noted from now on is not lost.
    let before = aging.send_replace(None);
    let (mut shortest, mut due) = (None, Vec::new());
    for (_, place) in topics.places() {
        let Ok(topic) = place.try_lock() else {
            // What is just being opened or deleted has its turn next time.
            shortest = shorter(shortest, before);
            continue;
        };
        let Some(topic) = &*topic else { continue };
        let retention = topic.ledger().retention();
        shortest = shorter(shortest, aged_after(retention));
        topic.ledger().roll_over_aged();
        if topic.ledger().expired(&retention).ledgers > 0 {
            due.push(topic.clone());
        }
    }
    note_time(aging, shortest);
    let trimmed = stream::iter(due).for_each_concurrent(TRIM_AT_ONCE, async |topic| {
        if let Err(error) = topic.ledger().trim().await {
            tracing::debug!(topic = topic.ledger().name(), "is not trimmed: {error}");
        }
    });
    trimmed.await;
}

/// Topics that are trimmed at once, so that few that take long hold up no others.
const TRIM_AT_ONCE: usize = 32;
/// Entries stay for up to a quarter longer than they must, unless that is shorter or longer than these.
const TRIM_PAUSE_MIN: Duration = Duration::from_secs(1);
const TRIM_PAUSE_MAX: Duration = Duration::from_secs(600);

fn words(error: impl ToString) -> Arc<str> {
    error.to_string().into()
}

#[cfg(test)]
mod tests;

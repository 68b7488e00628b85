//! Opening bookies, and the lives they have.
//!
//! A life is recorded on both sides, in the bookie's file and in the metadata store under `cookies/ID`, and so is the
//! number of the opening:
//!
//! 1. The file notes that opening n has begun.
//! 2. The store notes n.
//! 3. The file notes that n is confirmed.
//!
//! A crash leaves the store at what the file has begun or at what it has confirmed. If the store is ahead of that, the
//! file is an older copy of the one there was; if it is behind, the store is. A copy of one side that was made while
//! the bookie ran, in the opening that was the last one, cannot be told from what it was copied from by its number; that
//! such a store is older shows once it gives out the id of a ledger again that the bookie holds.
//!
//! While the store has an opening noted, no file is made: that one is gone is not for the bookie to settle, who would
//! then deny in good faith what it had. Renewing a bookie takes the note away.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::task::{JoinHandle, spawn_blocking};

use super::tables::Snapshot;
use super::{DurableConfig, tables};
use crate::disk::{
    DatabaseFile, Disk, FileError, FileSpec, OpenFileError, Presence, Remedy, holds_something,
};
use crate::id::{BookieId, Instance, LedgerId};
use crate::metadata::{Expected, MetadataError, MetadataStore, Version};

/// Why a bookie could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenBookieError {
    /// Its id cannot be the name of a file.
    #[error(
        "bookie id {0:?} is not made of letters, digits, '.', '_' and '-' alone; choose another"
    )]
    InvalidId(String),
    /// Its file cannot be used.
    #[error(transparent)]
    File(#[from] OpenFileError),
    /// Its file is gone or empty, or a new one lies in its place, while a life of it is recorded. Nothing was made.
    #[error(
        "{} is gone or empty, but bookie {bookie} has had it; put it back; if it is lost, and other bookies hold copies \
         of all it had (georepl ledger check), renew the bookie (georepl bookie renew)",
        .file.display()
    )]
    FileGone {
        /// The bookie.
        bookie: BookieId,
        /// Where its file was.
        file: PathBuf,
    },
    /// Its file failed while it was being opened.
    #[error("{0}")]
    Failed(String),
    /// The metadata store failed.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// Its file is of a life that is not the one recorded in the metadata store.
    #[error(
        "the file of bookie {bookie} is of its life {found}, but {}",
        .recorded.map_or_else(
            || "the metadata store has none recorded: it is another one, or was emptied; put back the one that was there".into(),
            |recorded| format!(
                "{recorded} is recorded; it is a copy, or belongs to another metadata store; move it away, and put back \
                 the right one"
            )
        )
    )]
    OtherLife {
        /// The bookie.
        bookie: BookieId,
        /// The life in the file.
        found: Instance,
        /// The life in the metadata store, if there is one.
        recorded: Option<Instance>,
    },
    /// Its file is an older copy of itself: what was acknowledged since is not in it.
    #[error(
        "the file of bookie {bookie} is an older copy; put back the newest one; if that is lost, and other bookies hold \
         copies of all it had (georepl ledger check), move this one away and renew the bookie (georepl bookie renew)"
    )]
    OlderFile {
        /// The bookie.
        bookie: BookieId,
    },
    /// The metadata store is an older copy of itself: what it has forgotten is still on the bookie.
    #[error(
        "the metadata store is older than the file of bookie {bookie}; put back the newest copy of the store, or copies \
         of the store and all bookies that were made together"
    )]
    OlderStore {
        /// The bookie.
        bookie: BookieId,
    },
    /// What the metadata store has recorded of it is not understood.
    #[error("{key} holds no life of a bookie; it was written by something else")]
    InvalidCookie {
        /// The key of the record.
        key: String,
    },
    /// The system has no threads for it.
    #[error("bookie {bookie} was opened, but there are no threads to serve it: {reason}")]
    NoThreads {
        /// The bookie.
        bookie: BookieId,
        /// The system's error.
        reason: String,
    },
}

/// Why a bookie was not renewed. Nothing was changed, unless the metadata store failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RenewBookieError {
    /// Its id cannot be the name of a file.
    #[error(
        "bookie id {0:?} is not made of letters, digits, '.', '_' and '-' alone; such a bookie was never opened"
    )]
    InvalidId(String),
    /// A file lies there that may be its own, and what is in it may be needed.
    #[error("{} is there; if bookie {bookie} cannot be opened with it, move it away first, and keep it", .file.display())]
    FileThere {
        /// The bookie.
        bookie: BookieId,
        /// The file.
        file: PathBuf,
    },
    /// It cannot be told whether there is a file.
    #[error(transparent)]
    File(#[from] OpenFileError),
    /// The system cannot look for the file.
    #[error("the file of bookie {bookie} was not looked for: {reason}")]
    NotLooked {
        /// The bookie.
        bookie: BookieId,
        /// What is wrong.
        reason: String,
    },
    /// The metadata store failed; the bookie may be renewed or not.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
}

/// A bookie's file, and the life it is in.
type Opened = Result<(Arc<DatabaseFile>, Instance), OpenBookieError>;

/// Opens the files side by side, then settles which life each bookie is in.
pub(super) async fn open_all(
    disk: Arc<dyn Disk>,
    ids: impl IntoIterator<Item = BookieId>,
    store: &dyn MetadataStore,
    config: &DurableConfig,
) -> Vec<(BookieId, Opened)> {
    let mut opening = Vec::new();
    for id in ids {
        let file = start_opening(disk.clone(), &id, store, config).await;
        opening.push((id, file));
    }
    let mut next_ledger = None;
    let mut opened = Vec::with_capacity(opening.len());
    for (id, file) in opening {
        let found = match file {
            Ok(file) => joined(file).await,
            Err(error) => Err(error),
        };
        let bookie = match found {
            Ok(found) => enter_life(&id, found, store, &mut next_ledger).await,
            Err(error) => Err(error),
        };
        opened.push((id, bookie));
    }
    opened
}

/// Begins to open a file, which must be there if an opening of it is noted.
async fn start_opening(
    disk: Arc<dyn Disk>,
    id: &BookieId,
    store: &dyn MetadataStore,
    config: &DurableConfig,
) -> Result<JoinHandle<Result<Found, OpenBookieError>>, OpenBookieError> {
    let name = file_name(id).ok_or_else(|| OpenBookieError::InvalidId(id.to_string()))?;
    let presence = match recorded(id, store).await? {
        Some(cookie) if cookie.opening > 0 => Presence::MustExist,
        _ => Presence::MayBeNew,
    };
    let spec = FileSpec {
        name,
        owner: format!("bookie {id}"),
        cache_bytes: config.cache_bytes,
        remedy: Remedy::Replicas,
        create: tables::create,
        check: tables::check,
    };
    let id = id.clone();
    Ok(spawn_blocking(move || open_file(disk, &id, spec, presence)))
}

/// The name of a bookie's file; none if its id cannot be part of one.
fn file_name(id: &BookieId) -> Option<String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let valid = !id.as_str().is_empty() && id.as_str().chars().all(allowed);
    valid.then(|| format!("bookie-{id}.redb"))
}

async fn joined<T>(task: JoinHandle<Result<T, OpenBookieError>>) -> Result<T, OpenBookieError> {
    // A runtime that is shutting down drops its blocking tasks.
    task.await.unwrap_or_else(|error| Err(OpenBookieError::Failed(error.to_string())))
}

/// What is found in a bookie's file.
struct Found {
    file: Parked,
    /// None in a new one.
    life: Option<Life>,
    last_ledger: Option<LedgerId>,
}

/// What a file knows of its bookie's life.
struct Life {
    instance: Instance,
    /// The number of the opening that was begun last.
    begun: u64,
    /// The number of the last opening that the store is known to have noted.
    confirmed: u64,
}

fn open_file(
    disk: Arc<dyn Disk>,
    id: &BookieId,
    spec: FileSpec,
    presence: Presence,
) -> Result<Found, OpenBookieError> {
    let gone = |file| OpenBookieError::FileGone { bookie: id.clone(), file };
    let file = DatabaseFile::open(disk, spec, presence).map_err(|error| match error {
        OpenFileError::Gone { file } if presence == Presence::MustExist => gone(file),
        error => error.into(),
    })?;
    let life = match file.meta("instance") {
        // A file says its life before the store notes an opening of it.
        None if presence == Presence::MustExist => return Err(gone(file.path())),
        None => None,
        Some(instance) => {
            let number = |stored: Option<String>| {
                let number = stored.and_then(|stored| stored.parse().ok());
                number.ok_or_else(|| OpenBookieError::Failed(format!("bookie {id} has no life")))
            };
            Some(Life {
                instance: Instance(number(Some(instance))?),
                begun: number(file.meta("opening"))?,
                confirmed: number(file.meta("confirmed"))?,
            })
        }
    };
    let last_ledger = file.read(|transaction| Snapshot::open(transaction)?.last_ledger())?;
    Ok(Found { file: Parked(Some(Arc::new(file))), life, last_ledger })
}

/// Notes the opening on both sides, if they belong together.
async fn enter_life(
    id: &BookieId,
    found: Found,
    store: &dyn MetadataStore,
    next_ledger: &mut Option<LedgerId>,
) -> Opened {
    let Found { file, life, last_ledger } = found;
    let instance = match note_opening(id, &file, life, last_ledger, store, next_ledger).await {
        Ok(instance) => instance,
        Err(error) => {
            file.close().await;
            return Err(error);
        }
    };
    Ok((file.take(), instance))
}

async fn note_opening(
    id: &BookieId,
    file: &Parked,
    life: Option<Life>,
    last_ledger: Option<LedgerId>,
    store: &dyn MetadataStore,
    next_ledger: &mut Option<LedgerId>,
) -> Result<Instance, OpenBookieError> {
    let cookie = match life {
        Some(life) => confirm(id, life, store).await?,
        None => begin_life(id, store).await?,
    };
    if let Some(last) = last_ledger {
        let next = match *next_ledger {
            Some(next) => next,
            None => *next_ledger.insert(store.allocate_ledger_id().await?),
        };
        if next <= last {
            return Err(OpenBookieError::OlderStore { bookie: id.clone() });
        }
    }
    let Cookie { instance, opening, version } = cookie;
    let next = opening + 1;
    file.set_meta([
        ("instance", instance.to_string()),
        ("opening", next.to_string()),
        ("confirmed", opening.to_string()),
    ])
    .await?;
    let noted = format!("{instance} {next}");
    store.put(&cookie_key(id), noted.into(), Expected::Version(version)).await?;
    file.set_meta([("confirmed", next.to_string())]).await?;
    Ok(instance)
}

/// What the store has recorded of a bookie: `INSTANCE OPENING`, or nothing while its first opening is not noted.
struct Cookie {
    instance: Instance,
    opening: u64,
    version: Version,
}

/// Checks that the life of a file is the one that is recorded, and that neither side is older than the other.
async fn confirm(
    id: &BookieId,
    life: Life,
    store: &dyn MetadataStore,
) -> Result<Cookie, OpenBookieError> {
    let recorded = recorded(id, store).await?;
    let found = life.instance;
    match recorded {
        Some(cookie) if cookie.instance == found => {
            if cookie.opening > life.begun {
                return Err(OpenBookieError::OlderFile { bookie: id.clone() });
            }
            if cookie.opening < life.confirmed {
                return Err(OpenBookieError::OlderStore { bookie: id.clone() });
            }
            Ok(cookie)
        }
        other => {
            let recorded = other.map(|cookie| cookie.instance);
            Err(OpenBookieError::OtherLife { bookie: id.clone(), found, recorded })
        }
    }
}

async fn recorded(
    id: &BookieId,
    store: &dyn MetadataStore,
) -> Result<Option<Cookie>, OpenBookieError> {
    let key = cookie_key(id);
    let Some(stored) = store.get(&key).await? else {
        return Ok(None);
    };
    let version = stored.version;
    if stored.value.is_empty() {
        return Ok(Some(Cookie { instance: Instance(version.0), opening: 0, version }));
    }
    let numbers = std::str::from_utf8(&stored.value).ok().and_then(|text| text.split_once(' '));
    let cookie = numbers.and_then(|(instance, opening)| {
        let instance = Instance(instance.parse().ok()?);
        Some(Cookie { instance, opening: opening.parse().ok()?, version })
    });
    cookie.ok_or(OpenBookieError::InvalidCookie { key }).map(Some)
}

/// Records a new life, whose instance is the version of its first record: a key has no version twice, so no two lives of
/// a bookie have the same. A crash before the file notes it leaves a life that nobody had, and the next opening begins
/// another.
async fn begin_life(id: &BookieId, store: &dyn MetadataStore) -> Result<Cookie, OpenBookieError> {
    let key = cookie_key(id);
    let expected = match store.get(&key).await? {
        Some(cookie) => Expected::Version(cookie.version),
        None => Expected::Absent,
    };
    let version = store.put(&key, "".into(), expected).await?;
    Ok(Cookie { instance: Instance(version.0), opening: 0, version })
}

/// Takes the note of a life away, so that the next opening makes a file and begins another life.
pub(super) async fn renew(
    disk: Arc<dyn Disk>,
    id: &BookieId,
    store: &dyn MetadataStore,
) -> Result<(), RenewBookieError> {
    let name = file_name(id).ok_or_else(|| RenewBookieError::InvalidId(id.to_string()))?;
    let file = disk.locate(&name);
    // A runtime that is shutting down drops its blocking tasks.
    let looked = spawn_blocking(move || holds_something(&*disk, &name)).await.map_err(|error| {
        RenewBookieError::NotLooked { bookie: id.clone(), reason: error.to_string() }
    })?;
    if looked? {
        return Err(RenewBookieError::FileThere { bookie: id.clone(), file });
    }
    let key = cookie_key(id);
    if let Some(noted) = store.get(&key).await? {
        store.put(&key, "".into(), Expected::Version(noted.version)).await?;
    }
    Ok(())
}

/// A file that nobody serves yet. Given up, it is closed on a blocking thread, for closing writes.
struct Parked(Option<Arc<DatabaseFile>>);

impl Parked {
    async fn set_meta<const N: usize>(
        &self,
        rows: [(&'static str, String); N],
    ) -> Result<(), OpenBookieError> {
        let file = self.0.clone().expect("a file is taken once, at the end");
        joined(spawn_blocking(move || Ok(file.set_meta(rows)?))).await
    }

    fn take(mut self) -> Arc<DatabaseFile> {
        self.0.take().expect("a file is taken once, at the end")
    }

    async fn close(self) {
        let file = self.take();
        // Without a runtime the closure is dropped, and the file with it.
        let _ = spawn_blocking(move || file.close()).await;
    }
}

impl Drop for Parked {
    fn drop(&mut self) {
        if let (Some(file), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn_blocking(move || file.close());
        }
    }
}

fn cookie_key(id: &BookieId) -> String {
    format!("cookies/{id}")
}

impl From<FileError> for OpenBookieError {
    fn from(error: FileError) -> Self {
        Self::Failed(error.to_string())
    }
}

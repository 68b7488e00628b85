//! Opening bookies, and the lives they have.

use std::sync::Arc;

use tokio::task::{JoinHandle, spawn_blocking};

use super::{DurableConfig, tables};
use crate::disk::{DatabaseFile, Disk, FileError, FileSpec, OpenFileError};
use crate::id::{BookieId, Instance};
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
    /// Its file failed while it was being opened.
    #[error("{0}")]
    Failed(String),
    /// The metadata store failed.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// Its file is of a life that is not the one recorded in the metadata store.
    #[error(
        "the file of bookie {bookie} is of its life {found}, but {}; it is a copy, or belongs to another metadata store",
        .recorded.map_or_else(|| "none is recorded".into(), |recorded| format!("{recorded} is recorded"))
    )]
    OtherLife {
        /// The bookie.
        bookie: BookieId,
        /// The life in the file.
        found: Instance,
        /// The life in the metadata store, if there is one.
        recorded: Option<Instance>,
    },
}

type Opened = Result<(DatabaseFile, Instance), OpenBookieError>;

/// Opens the files side by side, then settles which life each bookie is in.
pub(super) async fn open_all(
    disk: Arc<dyn Disk>,
    ids: impl IntoIterator<Item = BookieId>,
    store: &dyn MetadataStore,
    config: &DurableConfig,
) -> Vec<(BookieId, Opened)> {
    let open = |id: BookieId| {
        let spec = FileSpec {
            name: format!("bookie-{id}.redb"),
            owner: format!("bookie {id}"),
            cache_bytes: config.cache_bytes,
        };
        let (disk, name) = (disk.clone(), id.clone());
        (id, spawn_blocking(move || open_file(disk, &name, spec)))
    };
    let opening: Vec<_> = ids.into_iter().map(open).collect();
    let mut opened = Vec::with_capacity(opening.len());
    for (id, file) in opening {
        let bookie = match joined(file).await {
            Ok((file, Some(found))) => confirm(&id, found, store).await.map(|()| (file, found)),
            Ok((file, None)) => begin_life(&id, file, store).await,
            Err(error) => Err(error),
        };
        opened.push((id, bookie));
    }
    opened
}

async fn joined<T>(task: JoinHandle<Result<T, OpenBookieError>>) -> Result<T, OpenBookieError> {
    // A runtime that is shutting down drops its blocking tasks.
    task.await.unwrap_or_else(|error| Err(OpenBookieError::Failed(error.to_string())))
}

/// The file, and the life it says it is of; none if it is new.
fn open_file(
    disk: Arc<dyn Disk>,
    id: &BookieId,
    spec: FileSpec,
) -> Result<(DatabaseFile, Option<Instance>), OpenBookieError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if id.as_str().is_empty() || !id.as_str().chars().all(allowed) {
        return Err(OpenBookieError::InvalidId(id.to_string()));
    }
    let file = DatabaseFile::open(disk, spec)?;
    let instance = file.read(tables::instance)?;
    Ok((file, instance))
}

/// Checks that the life of a file is the one that is recorded.
async fn confirm(
    id: &BookieId,
    found: Instance,
    store: &dyn MetadataStore,
) -> Result<(), OpenBookieError> {
    let recorded = store.get(&cookie_key(id)).await?;
    let recorded = recorded.map(|cookie| instance_of(cookie.version));
    if recorded == Some(found) {
        return Ok(());
    }
    Err(OpenBookieError::OtherLife { bookie: id.clone(), found, recorded })
}

/// Records a new life, first in the store and then in the file. A crash in between leaves a recorded life that nobody
/// had, and the next opening begins another.
async fn begin_life(id: &BookieId, file: DatabaseFile, store: &dyn MetadataStore) -> Opened {
    let key = cookie_key(id);
    let expected = match store.get(&key).await? {
        Some(cookie) => Expected::Version(cookie.version),
        None => Expected::Absent,
    };
    let version = store.put(&key, "1".into(), expected).await?;
    let instance = instance_of(version);
    let written = spawn_blocking(move || {
        file.change(|transaction| tables::begin_life(transaction, instance))?;
        Ok(file)
    });
    Ok((joined(written).await?, instance))
}

fn cookie_key(id: &BookieId) -> String {
    format!("cookies/{id}")
}

/// A record has no version twice, so no two lives of a bookie have the same instance.
const fn instance_of(version: Version) -> Instance {
    Instance(version.0)
}

impl From<FileError> for OpenBookieError {
    fn from(error: FileError) -> Self {
        Self::Failed(error.to_string())
    }
}

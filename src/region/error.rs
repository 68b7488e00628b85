//! Why a region cannot be opened or closed.

use std::path::PathBuf;
use std::sync::Arc;

use georepl_cursor::CloseError;
use georepl_storage::{Advice, BookieId, OpenBookieError, OpenFileError, RenewBookieError};

/// A bookie of a region that could not be opened; the region may serve without it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bookie {bookie} is missing: {error}")]
pub struct MissingBookie {
    /// The bookie.
    pub bookie: BookieId,
    /// Why.
    #[source]
    pub error: OpenBookieError,
}

/// Why a region could not be opened. Nothing of it was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenRegionError {
    /// There is none, and none was to be begun.
    #[error("there is no region in {}; publish to it or serve it to begin one", .directory.display())]
    NotThere {
        /// The directory.
        directory: PathBuf,
    },
    /// The path leads to something else.
    #[error("{} is not a directory; give the directory of a region", .directory.display())]
    NotADirectory {
        /// The path.
        directory: PathBuf,
    },
    /// The directory is used for something else.
    #[error(
        "{} is no region and has other files in it, such as {found}; give an empty directory or a new one",
        .directory.display()
    )]
    NotARegion {
        /// The directory.
        directory: PathBuf,
        /// One of the files in it.
        found: String,
    },
    /// The region has lost its manifest: other files of a region are there.
    #[error(
        "{} is gone, but the region's {found} is there; put the file back, or restore it from a copy of this region",
        .manifest.display()
    )]
    ManifestGone {
        /// The file that is to say what the region is.
        manifest: PathBuf,
        /// One of the files in its directory.
        found: String,
    },
    /// The region has lost its metadata: bookies of it are there.
    #[error(
        "{} is gone or empty, but {} is there; put it back, or restore it from a copy: without it no ledger is found; \
         nothing was made in its place",
        .metadata.display(), .found.display()
    )]
    MetadataGone {
        /// The file of the metadata.
        metadata: PathBuf,
        /// The file of one of the bookies.
        found: PathBuf,
    },
    /// Its directory would lie in that of another region.
    #[error(
        "{} lies in the directory of another region, {}; give a directory beside it",
        .directory.display(), .outer.display()
    )]
    InsideAnother {
        /// The directory.
        directory: PathBuf,
        /// The other region's.
        outer: PathBuf,
    },
    /// Another process holds it, or another part of this one.
    #[error(
        "the region in {} is in use by {}; stop that one first",
        .directory.display(),
        .pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
    )]
    InUse {
        /// The directory.
        directory: PathBuf,
        /// The process, if it has said so.
        pid: Option<u32>,
    },
    /// It was begun by a version of this program with another format.
    #[error(
        "the region in {} has format {found}, this version reads format {known}; use the version that wrote it",
        .directory.display()
    )]
    OtherFormat {
        /// The directory.
        directory: PathBuf,
        /// The format it says it has.
        found: u64,
        /// The one that is read.
        known: u64,
    },
    /// A file of it is not what was written.
    #[error("{} is damaged: {reason}; restore it from a copy", .file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// It has another name.
    #[error("the region in {} is {found}, not {expected}", .directory.display())]
    OtherName {
        /// The directory.
        directory: PathBuf,
        /// Its name.
        found: String,
        /// The name that was asked for.
        expected: String,
    },
    /// The name is none.
    #[error("`{name}` cannot be the name of a region; use letters, digits, '.', '_' and '-'")]
    InvalidName {
        /// The name.
        name: String,
    },
    /// The disk failed or refused.
    #[error("cannot {what} {}: {reason}", .path.display())]
    Disk {
        /// The file or directory.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// The system's words.
        reason: String,
    },
    /// The metadata cannot be used, and without it nothing can.
    #[error(transparent)]
    Metadata(#[from] OpenFileError),
    /// Too few bookies are left to write to.
    #[error(
        "region {region} has {opened} of the {needed} bookies that a ledger needs: {}",
        .missing.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    )]
    TooFewBookies {
        /// The region.
        region: Arc<str>,
        /// Bookies that could be opened.
        opened: usize,
        /// The ensemble size.
        needed: usize,
        /// The others.
        missing: Vec<MissingBookie>,
    },
}

impl OpenRegionError {
    /// What to do about it.
    pub const fn advice(&self) -> Advice {
        match self {
            Self::InUse { .. } | Self::Disk { .. } => Advice::Retry,
            Self::NotThere { .. }
            | Self::NotADirectory { .. }
            | Self::NotARegion { .. }
            | Self::ManifestGone { .. }
            | Self::MetadataGone { .. }
            | Self::InsideAnother { .. }
            | Self::OtherFormat { .. }
            | Self::Damaged { .. }
            | Self::OtherName { .. }
            | Self::InvalidName { .. }
            | Self::Metadata(_)
            | Self::TooFewBookies { .. } => Advice::GiveUp,
        }
    }
}

/// Why a bookie of a region was not renewed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RenewRegionBookieError {
    /// The region cannot be opened.
    #[error(transparent)]
    Region(#[from] OpenRegionError),
    /// The region has no such bookie.
    #[error(
        "region {region} has no bookie {bookie}; it has {}",
        .ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    )]
    NotItsOwn {
        /// The region.
        region: Arc<str>,
        /// The bookie.
        bookie: BookieId,
        /// The bookies that it has.
        ids: Vec<BookieId>,
    },
    /// The bookie was not renewed.
    #[error(transparent)]
    Bookie(#[from] RenewBookieError),
}

/// The last ledger of a topic could not be closed, so that its end is not recorded.
#[derive(Debug, thiserror::Error)]
#[error("topic {topic} of region {region} was not closed: {error}")]
pub struct CloseRegionError {
    pub(super) region: Arc<str>,
    pub(super) topic: String,
    #[source]
    pub(super) error: CloseError,
}

impl CloseRegionError {
    /// What to do about it.
    pub const fn advice(&self) -> Advice {
        self.error.advice()
    }
}

//! Why a database file cannot be opened, read or changed.

use std::fmt;
use std::io::ErrorKind;
use std::path::PathBuf;

/// The version of what is stored in the files. Another one is refused by name.
pub(super) const FORMAT: &str = "3";

/// What to do about a damaged file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Go on without it, and renew the bookie if what it held has other replicas.
    Replicas,
    /// Restore a copy: there is nothing else to take its content from.
    Copy,
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Replicas => {
                "put back a copy of it; if there is none, and other bookies hold copies of all it had (georepl ledger \
                 check), move it away and renew the bookie (georepl bookie renew)"
            }
            Self::Copy => {
                "restore it from a copy, and keep the damaged one; without it no ledger is found"
            }
        })
    }
}

/// Why a database file cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenFileError {
    /// Somebody else has it open.
    #[error("{} is in use by another process; stop that one first", .file.display())]
    InUse {
        /// The file.
        file: PathBuf,
    },
    /// There is none, or an empty one.
    #[error("{} is gone or empty; put it back", .file.display())]
    Gone {
        /// The file.
        file: PathBuf,
    },
    /// It is not, or is no longer, what was written.
    #[error("{} is damaged ({reason}); {remedy}", .file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        reason: String,
        /// What to do about it.
        remedy: Remedy,
    },
    /// It was written by a version of this program with another format.
    #[error("{} has format {found}, this version reads format {FORMAT}; use the version that wrote it", .file.display())]
    OtherFormat {
        /// The file.
        file: PathBuf,
        /// The format it says it has.
        found: String,
    },
    /// It belongs to somebody else.
    #[error("{} belongs to {found}, not to {expected}; it was renamed or copied here", .file.display())]
    OtherOwner {
        /// The file.
        file: PathBuf,
        /// Whose it is.
        found: String,
        /// Whose it should be.
        expected: String,
    },
    /// The disk failed or refused.
    #[error("{} cannot be opened: {reason}", .file.display())]
    Disk {
        /// The file.
        file: PathBuf,
        /// The disk's error.
        reason: String,
    },
    /// The system has no thread for it.
    #[error("{} was opened, but there is no thread to serve it: {reason}", .file.display())]
    NoThread {
        /// The file.
        file: PathBuf,
        /// The system's error.
        reason: String,
    },
}

/// Why a file could not be read or changed. A change may have been made all the same.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FileError {
    /// There is no space left. The file can still be read, and changed if there is space for it.
    #[error("there is no space left for {}", .file.display())]
    Full { file: PathBuf },
    /// Anything else.
    #[error("{} failed: {reason}", .file.display())]
    Failed { file: PathBuf, reason: String },
}

/// What an error of the database means for who opens a file.
pub(super) fn refusal(file: PathBuf, remedy: Remedy, error: redb::Error) -> OpenFileError {
    let reason = match error {
        redb::Error::DatabaseAlreadyOpen => return OpenFileError::InUse { file },
        redb::Error::UpgradeRequired(version) => {
            return OpenFileError::OtherFormat { file, found: format!("{version} of redb") };
        }
        // The database's own word for a file that it did not write.
        redb::Error::Io(error) if error.kind() == ErrorKind::InvalidData => {
            "it is no database".into()
        }
        redb::Error::Io(error) if error.kind() == ErrorKind::UnexpectedEof => {
            "it was cut short".into()
        }
        redb::Error::Io(error) if error.kind() == ErrorKind::NotFound => {
            return OpenFileError::Gone { file };
        }
        redb::Error::Io(error) => {
            return OpenFileError::Disk { file, reason: error.to_string() };
        }
        error => error.to_string(),
    };
    OpenFileError::Damaged { file, reason, remedy }
}

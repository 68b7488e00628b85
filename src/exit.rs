//! How a command ends.

use std::process::ExitCode;

use serde::{Deserialize, Serialize};

/// Why a command did not succeed, as its exit status says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Exit {
    /// Something is unhealthy, or the command failed.
    Failed,
    /// The command cannot be carried out as it was given.
    Usage,
    /// The region is held by a process that does not answer.
    Unreachable,
    /// The process that held the region has ended in good order; somebody else may hold it now.
    Ended,
    /// It would lose or repeat something, and was not told to.
    Refused,
}

impl Exit {
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Unreachable | Self::Ended => 3,
            Self::Refused => 4,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        exit.code().into()
    }
}

/// A command that did not succeed, and one line on why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl ToString) -> Self {
        Self { exit, message: message.to_string() }
    }

    /// The command failed.
    pub(crate) fn failed(message: impl ToString) -> Self {
        Self::new(Exit::Failed, message)
    }
}

/// Tells a person something. There may be nobody any more, which is no failure.
pub(crate) fn say(words: impl std::fmt::Display) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "georepl: {words}");
}

//! What the caller of a failed operation should do.

/// What to do about an error. Every operation's error has an `advice()`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Advice {
    /// Nothing was changed, or doing it twice is harmless: the same call may be made again, after a pause.
    Retry,
    /// The handle is at its end, or what was decided on is out of date: read or open afresh, then decide.
    Reopen,
    /// No repetition will help: the call itself, the data or the rights are wrong.
    GiveUp,
}

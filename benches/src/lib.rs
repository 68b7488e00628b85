//! What the benches share: how a figure is taken, what the machine can do at most, and how both are shown.
//!
//! Wall time on shared cores says little by itself. So each bench takes turns with the limit it is compared to, in the same
//! process, and shows ratios beside figures; of several rounds it shows the median and the spread.

mod limits;
mod sample;
mod show;

pub use limits::{Work, raw};
pub use sample::{Sample, Spread, measure, spread};
pub use show::{Report, Row, count, payload};

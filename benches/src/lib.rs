//! What the benches share: how a figure is taken, what the machine can do at most, and how both are shown.
//!
//! Wall time on shared cores says little by itself. So each bench takes turns with the limit it is compared to, in the same
//! process, and shows ratios beside figures; of several rounds it shows the median and the spread.

mod sample;
mod show;

mod payloads;

mod limits;

mod process;

mod delay;

mod ledgers;
mod pair;

/// Why a bench could not measure.
pub type Failed = Box<dyn std::error::Error + Send + Sync>;

pub use delay::delay_line;
pub use ledgers::{Appender, ledger_options, on_disk};
pub use limits::{BitSet, Work, hops, raw};
pub use pair::{
    Case, Copies, Mode, Storage, lane_name, publish, region, replicate, replicator_config,
};
pub use payloads::{at_least_one, entries_of, payloads};
pub use process::{Switches, cpu_of, resident_bytes};
pub use sample::{Sample, Spread, measure, percentile, spread};
pub use show::{Figure, Report, Row, Unit, count, payload, progress};

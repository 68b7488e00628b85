//! Reports for people and for programs.

use comfy_table::presets::ASCII_BORDERS_ONLY_CONDENSED;
use comfy_table::{CellAlignment, Table};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::{Sample, Spread, spread};

/// What a bench has found.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The bench.
    pub bench: &'static str,
    /// How many rounds each figure is from.
    pub rounds: usize,
    /// Rates of entries.
    pub rows: Vec<Row>,
    /// Whatever else was measured.
    pub figures: Vec<Figure>,
}

/// One thing that was measured.
#[derive(Debug, Serialize)]
pub struct Row {
    /// What was measured.
    pub what: String,
    /// Entries of one round.
    pub entries: u64,
    /// Entries a second.
    pub rate: Spread,
    /// Processor time of an entry, in nanoseconds.
    pub cpu_ns: Spread,
    /// How many times the rate of the limit, which was measured in turns with it; none for a limit.
    pub of_raw: Option<Spread>,
    /// How many times the rate of the peer, which was measured in turns with it; none without one.
    pub of_peer: Option<Spread>,
}

/// Something that was measured and is no rate.
#[derive(Debug, Serialize)]
pub struct Figure {
    /// What was measured.
    pub what: String,
    /// In what.
    pub unit: Unit,
    /// How much it is.
    pub value: Spread,
}

/// What a figure counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Time.
    Nanoseconds,
    /// Memory.
    Bytes,
    /// Things.
    Number,
    /// A part of a whole, which is 1.
    Share,
}

impl Row {
    /// What rounds make together, with their ratios to a limit and to a peer, if they have any.
    ///
    /// # Panics
    /// Without rounds.
    #[must_use]
    pub fn new(what: String, samples: &[Sample], of_raw: Vec<f64>, of_peer: Vec<f64>) -> Self {
        let ratios = |ratios: Vec<f64>| (!ratios.is_empty()).then(|| spread(ratios));
        Self {
            what,
            entries: samples[0].entries,
            rate: spread(samples.iter().map(Sample::rate)),
            cpu_ns: spread(samples.iter().map(Sample::cpu_ns)),
            of_raw: ratios(of_raw),
            of_peer: ratios(of_peer),
        }
    }
}

impl Report {
    /// Prints it.
    ///
    /// # Errors
    /// If it cannot be put into JSON.
    pub fn print(&self, json: bool) -> Result<(), serde_json::Error> {
        if json {
            println!("{}", serde_json::to_string_pretty(self)?);
            return Ok(());
        }
        if !self.rows.is_empty() {
            println!("{}", self.rates());
        }
        if !self.figures.is_empty() {
            println!("{}", self.others());
        }
        println!("{}: median of {} rounds", self.bench, self.rounds);
        Ok(())
    }

    fn rates(&self) -> Table {
        let has_peer = self.rows.iter().any(|row| row.of_peer.is_some());
        let headers = ["what", "entries/s", "lowest", "highest", "CPU ns/entry", "of RAW"];
        let mut table = new_table(headers.into_iter().chain(has_peer.then_some("of peer")));
        for row in &self.rows {
            let ratio =
                |of: Option<Spread>| of.map_or_else(String::new, |of| format!("{:.3}", of.median));
            let cells = [row.rate.median, row.rate.min, row.rate.max, row.cpu_ns.median];
            let cells = cells.map(|figure| count(figure.round() as u64));
            let ratios =
                [ratio(row.of_raw)].into_iter().chain(has_peer.then(|| ratio(row.of_peer)));
            table.add_row([row.what.clone()].into_iter().chain(cells).chain(ratios));
        }
        align(table)
    }

    fn others(&self) -> Table {
        let mut table = new_table(["what", "median", "lowest", "highest"]);
        for Figure { what, unit, value } in &self.figures {
            let cells = [value.median, value.min, value.max].map(|figure| unit.show(figure));
            table.add_row([what.clone()].into_iter().chain(cells));
        }
        align(table)
    }
}

fn new_table<'a>(headers: impl IntoIterator<Item = &'a str>) -> Table {
    let mut table = Table::new();
    table.load_style(ASCII_BORDERS_ONLY_CONDENSED);
    table.set_header(headers);
    table
}

/// Figures stand to the right.
fn align(mut table: Table) -> Table {
    table.column_iter_mut().skip(1).for_each(|column| {
        column.set_cell_alignment(CellAlignment::Right);
    });
    table
}

impl Unit {
    fn show(self, figure: f64) -> String {
        match self {
            Self::Nanoseconds => match figure {
                ..1e3 => format!("{figure:.1} ns"),
                ..1e6 => format!("{:.2} µs", figure / 1e3),
                ..1e9 => format!("{:.2} ms", figure / 1e6),
                _ => format!("{:.2} s", figure / 1e9),
            },
            Self::Bytes if figure >= 10e6 => format!("{:.1} MB", figure / 1e6),
            Self::Bytes => format!("{} B", count(figure.round() as u64)),
            Self::Number => count(figure.round() as u64),
            Self::Share => format!("{:.1} %", 100.0 * figure),
        }
    }
}

/// A bar for so many steps, hidden when there is no terminal.
///
/// # Panics
/// Never.
#[must_use]
pub fn progress(steps: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}");
    ProgressBar::new(steps as u64).with_style(style.expect("the template is one"))
}

/// A number with its thousands apart.
#[must_use]
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.char_indices() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// A size of a payload.
#[must_use]
pub fn payload(bytes: usize) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        _ => format!("{} KiB", bytes >> 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_shown_in_the_unit_that_suits_them() {
        let shown = |unit: Unit, figure| unit.show(figure);
        assert_eq!(shown(Unit::Nanoseconds, 12.34), "12.3 ns");
        assert_eq!(shown(Unit::Nanoseconds, 12_345.0), "12.35 µs");
        assert_eq!(shown(Unit::Nanoseconds, 1.2e7), "12.00 ms");
        assert_eq!(shown(Unit::Nanoseconds, 1.2e9), "1.20 s");
        assert_eq!(shown(Unit::Bytes, 13_405.4), "13 405 B");
        assert_eq!(shown(Unit::Bytes, 18_750_000.0), "18.8 MB");
        assert_eq!(shown(Unit::Share, 0.8512), "85.1 %");
        assert_eq!(shown(Unit::Number, 1_234.0), "1 234");
    }
}

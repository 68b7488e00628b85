//! Reports for people and for programs.

use comfy_table::presets::ASCII_BORDERS_ONLY_CONDENSED;
use comfy_table::{CellAlignment, Table};
use serde::Serialize;

use crate::Spread;

/// What a bench has found.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The bench.
    pub bench: &'static str,
    /// How many rounds each figure is from.
    pub rounds: usize,
    /// The figures.
    pub rows: Vec<Row>,
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
        let mut table = Table::new();
        table.load_style(ASCII_BORDERS_ONLY_CONDENSED);
        table.set_header(["what", "entries/s", "lowest", "highest", "CPU ns/entry", "of RAW"]);
        for row in &self.rows {
            let of_raw = row.of_raw.map_or_else(String::new, |of| format!("{:.3}", of.median));
            let cells = [row.rate.median, row.rate.min, row.rate.max, row.cpu_ns.median];
            let cells = cells.map(|figure| count(figure.round() as u64));
            table.add_row([&row.what].into_iter().chain(&cells).chain([&of_raw]));
        }
        table.column_iter_mut().skip(1).for_each(|column| {
            column.set_cell_alignment(CellAlignment::Right);
        });
        println!("{table}\n{}: median of {} rounds", self.bench, self.rounds);
        Ok(())
    }
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

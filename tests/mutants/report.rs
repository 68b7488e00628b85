//! What became of the mutants, for people and for programs.

use std::io::Write as _;

use comfy_table::presets::ASCII_BORDERS_ONLY_CONDENSED;
use comfy_table::{ContentArrangement, Table};
use serde_json::{Value, json};

use crate::patch::Mutant;

/// One mutant.
pub(crate) struct Row {
    pub(crate) mutant: Mutant,
    pub(crate) outcome: Outcome,
    /// How long it took to build and run.
    pub(crate) seconds: f64,
}

/// What became of a mutant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Untried,
    /// The test failed; an exploration shows the shortest way to what is broken.
    Caught(Option<Trace>),
    /// The test passed.
    Survives,
    /// The test did not end.
    Hangs,
    /// The patch is not one of the code as it is.
    DoesNotFit(String),
    DoesNotBuild(String),
    /// The test is not there, or ended as no test does.
    DoesNotRun(String),
}

/// The rule that was broken, and after how many steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trace {
    pub(crate) rule: String,
    pub(crate) steps: usize,
}

impl Trace {
    /// Finds it in what a failed exploration has written.
    pub(crate) fn find(output: &str) -> Option<Self> {
        output.lines().find_map(|line| {
            let (rule, rest) = line.rsplit_once(" (after ")?;
            let steps = rest.strip_suffix(" steps)")?.parse().ok()?;
            Some(Self { rule: rule.to_owned(), steps })
        })
    }
}

impl Outcome {
    fn name(&self) -> &'static str {
        match self {
            Self::Untried => "not tried",
            Self::Caught(_) => "caught",
            Self::Survives => "NOT CAUGHT",
            Self::Hangs => "HANGS",
            Self::DoesNotFit(_) => "DOES NOT FIT",
            Self::DoesNotBuild(_) => "DOES NOT BUILD",
            Self::DoesNotRun(_) => "DOES NOT RUN",
        }
    }

    fn details(&self) -> Option<&str> {
        match self {
            Self::Untried | Self::Caught(_) | Self::Survives | Self::Hangs => None,
            Self::DoesNotFit(text) | Self::DoesNotBuild(text) | Self::DoesNotRun(text) => {
                Some(text)
            }
        }
    }

    fn trace(&self) -> Option<&Trace> {
        match self {
            Self::Caught(trace) => trace.as_ref(),
            _ => None,
        }
    }
}

impl Row {
    pub(crate) fn untried(mutant: Mutant) -> Self {
        Self { mutant, outcome: Outcome::Untried, seconds: 0.0 }
    }

    /// It was not caught, or not tried although it was to be.
    pub(crate) fn is_wrong(&self) -> bool {
        !matches!(self.outcome, Outcome::Untried | Outcome::Caught(_))
    }
}

/// Tells at once how one ended, with all there is to know if that is not as it should be.
pub(crate) fn line(row: &Row) {
    let Row { mutant, outcome, seconds } = row;
    let mut stderr = std::io::stderr();
    // Nobody may be there to read it.
    let _ = writeln!(stderr, "{}: {}, {seconds:.0} s", mutant.name, outcome.name());
    if let Some(details) = outcome.details() {
        let _ = writeln!(stderr, "{details}");
    }
}

/// Columns of the table, which names of tests would make wider than any terminal.
const TABLE_WIDTH: u16 = 140;

/// As a table.
pub(crate) fn table(rows: &[Row]) -> String {
    let mut table = Table::new();
    table.load_style(ASCII_BORDERS_ONLY_CONDENSED);
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(TABLE_WIDTH);
    table.set_header(["mutant", "outcome", "caught by", "rule", "steps", "seconds"]);
    for Row { mutant, outcome, seconds } in rows {
        let trace = outcome.trace();
        table.add_row([
            mutant.name.clone(),
            outcome.name().to_owned(),
            format!("{}: {}", mutant.catcher.package, mutant.catcher.test),
            trace.map(|trace| trace.rule.clone()).unwrap_or_default(),
            trace.map(|trace| trace.steps.to_string()).unwrap_or_default(),
            format!("{seconds:.0}"),
        ]);
    }
    table.to_string()
}

/// As an array of objects.
pub(crate) fn json(rows: &[Row]) -> String {
    let rows: Vec<Value> = rows.iter().map(object).collect();
    format!("{:#}", Value::Array(rows))
}

fn object(row: &Row) -> Value {
    let Row { mutant, outcome, seconds } = row;
    let trace = outcome.trace();
    json!({
        "mutant": mutant.name,
        "about": mutant.about,
        "outcome": outcome.name().to_lowercase(),
        "details": outcome.details(),
        "package": mutant.catcher.package,
        "target": mutant.catcher.target.join(" "),
        "test": mutant.catcher.test,
        "rule": trace.map(|trace| &trace.rule),
        "steps": trace.map(|trace| trace.steps),
        "seconds": seconds,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_the_shortest_trace_are_found_in_the_output_of_an_exploration() {
        let output = "\
thread 'two' panicked at tests/ledgers/main.rs:53:27:
Bounds { entries: 1 }
S12: cut by one denial (after 6 steps)
   1 Append
";
        let trace = Trace { rule: "S12: cut by one denial".into(), steps: 6 };
        assert_eq!(Trace::find(output), Some(trace));
        assert_eq!(Trace::find("thread 'one' panicked: left == right"), None);
    }
}

//! Tests the tests: brings known faults back, one at a time and in a copy of what is committed, and expects the test
//! that each of them names to fail.
//!
//! Each fault is a patch beside this file. It takes away everything that the code has against the fault, and names the
//! test that must fail in its header ([`patch`]). The code has no switches for faults.

mod copy;
mod patch;
mod report;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser as _;
use indicatif::{ProgressBar, ProgressStyle};

use copy::Copy;
use patch::Mutant;
use report::Row;

/// Brings known faults back, one at a time and in a copy of what is committed, and expects the test that each of them
/// names to fail.
#[derive(clap::Parser)]
#[command(name = "mutants", after_help = EXAMPLES)]
struct Args {
    /// The mutants, by their names or by the first words of their names; all of them if none is given
    names: Vec<String>,
    /// Name the mutants and the tests that must catch them, and try none
    #[arg(long)]
    list: bool,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// Where the copy is made and built; what other tests have built there is not built again [default: where cargo
    /// builds]
    #[arg(long)]
    target_dir: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  cargo run -p georepl-tests --bin mutants                      # all of them
  cargo run -p georepl-tests --bin mutants -- --list
  cargo run -p georepl-tests --bin mutants -- C5 M1             # these two
  cargo run -p georepl-tests --bin mutants -- case --json       # all whose names begin with case-

Exit status: 0 every mutant was caught, 1 one was not or could not be tried, 2 usage.";

fn main() -> ExitCode {
    let args = Args::parse();
    let root = match copy::root() {
        Ok(root) => root,
        Err(error) => return fail(1, &error.to_string()),
    };
    let mutants = match patch::read(&root.join("tests/mutants")) {
        Ok(mutants) => mutants,
        Err(error) => return fail(1, &error.to_string()),
    };
    let chosen = match patch::choose(mutants, &args.names) {
        Ok(chosen) => chosen,
        Err(unknown) => return fail(2, &unknown.to_string()),
    };
    let rows = if args.list {
        chosen.into_iter().map(Row::untried).collect()
    } else {
        let set = || std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
        let target_dir = args.target_dir.or_else(set).unwrap_or_else(|| root.join("target"));
        match try_all(chosen, &root, &target_dir) {
            Ok(rows) => rows,
            Err(error) => return fail(1, &error.to_string()),
        }
    };
    let text = if args.json { report::json(&rows) } else { report::table(&rows) };
    // Whoever reads may have gone.
    let _ = writeln!(std::io::stdout(), "{text}");
    ExitCode::from(u8::from(rows.iter().any(Row::is_wrong)))
}

fn try_all(
    mut mutants: Vec<Mutant>,
    root: &Path,
    target_dir: &Path,
) -> Result<Vec<Row>, copy::Error> {
    // Those that build the same things one after the other.
    mutants.sort_by(|a, b| a.builds().cmp(&b.builds()));
    let copy = Copy::make(root, target_dir)?;
    let bar = progress(mutants.len());
    let mut rows = Vec::new();
    for mutant in mutants {
        bar.set_message(mutant.name.clone());
        let row = copy.try_out(mutant)?;
        bar.suspend(|| report::line(&row));
        rows.push(row);
        bar.inc(1);
    }
    bar.finish_and_clear();
    rows.sort_by(|a, b| a.mutant.name.cmp(&b.mutant.name));
    Ok(rows)
}

/// Hidden where there is no terminal.
fn progress(mutants: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{wide_bar} {pos} of {len}, {elapsed}: {msg}");
    ProgressBar::new(mutants as u64).with_style(style.expect("the template is valid"))
}

fn fail(status: u8, message: &str) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "error: {message}");
    ExitCode::from(status)
}

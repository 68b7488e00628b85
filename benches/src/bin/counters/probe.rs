//! Runs works under valgrind, and reads what it counted.

use std::fs;
use std::ops::{Div, Sub};
use std::process::Command;
use std::thread;

use serde::Deserialize;

use super::Failed;
use super::work::{Done, Work};

/// What an entry costs, or all of them.
#[derive(Clone, Copy)]
pub(crate) struct Counts {
    /// User instructions.
    pub(crate) instructions: f64,
    /// Heap allocations, and those that were made larger.
    pub(crate) allocations: f64,
    /// Bytes that were copied by `memcpy` and its like, payloads and whatever else. Small values that the compiler
    /// moves by itself are not among them.
    pub(crate) copied_bytes: f64,
    /// Polls of tasks: one for each time that a task was woken.
    pub(crate) polls: f64,
}

/// The costs of an entry of each work.
pub(crate) fn probe<const N: usize>(works: [Work; N]) -> Result<[Counts; N], Failed> {
    Command::new("valgrind").arg("--version").output().map_err(|error| {
        format!(
            "valgrind does the counting and cannot be run ({error}); \
             on Debian: apt-get install valgrind libc6-dbg"
        )
    })?;
    let cost = |work| {
        let (few, many) = (totals(work, ENTRIES)?, totals(work, 2 * ENTRIES)?);
        Ok::<_, Failed>((many - few) / ENTRIES as f64)
    };
    // At once, since the counts do not depend on what else runs.
    let costs: Result<Vec<_>, _> = thread::scope(|scope| {
        let running = works.map(|work| scope.spawn(move || cost(work)));
        running.into_iter().map(|cost| cost.join().expect("a probe does not panic")).collect()
    });
    Ok(costs?.try_into().unwrap_or_else(|_| unreachable!("each work has its costs")))
}

/// How often the replicator rewinds its cursor for a burst of failures.
pub(crate) fn rewinds_per_burst() -> Result<f64, Failed> {
    let done = run(Command::new(std::env::current_exe()?), Work::Bursts, BURSTS)?;
    // The one more is that of the start.
    Ok((done.rewinds - 1) as f64 / BURSTS as f64)
}

/// What a process took that does so much of a work.
fn totals(work: Work, entries: u64) -> Result<Counts, Failed> {
    let directory = tempfile::tempdir()?;
    let valgrind = |arguments: &[&str], out: &str| -> Result<(Done, String), Failed> {
        let file = directory.path().join(out);
        let mut command = Command::new("valgrind");
        command.arg("--quiet").args(arguments).arg(format!("--{out}={}", file.display()));
        command.arg(std::env::current_exe()?);
        let done = run(command, work, entries)?;
        Ok((done, fs::read_to_string(file)?))
    };
    let names = ["--tool=callgrind", "--compress-strings=no", "--demangle=no"];
    let (done, profile) = valgrind(&names, "callgrind-out-file")?;
    let (_, copies) = valgrind(&["--tool=dhat", "--mode=copy"], "dhat-out-file")?;
    Ok(Counts {
        instructions: instructions(&profile)? as f64,
        allocations: done.allocations as f64,
        copied_bytes: copied_bytes(&copies)? as f64,
        polls: calls(&profile, POLL_OF_A_TASK)? as f64,
    })
}

/// Lets this program do a work, by the command that is given.
fn run(mut command: Command, work: Work, entries: u64) -> Result<Done, Failed> {
    let output = command.arg("work").arg(work.to_string()).arg(entries.to_string()).output()?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{command:?} failed: {message}").into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Of the whole run, by the last line of a profile.
fn instructions(profile: &str) -> Result<u64, Failed> {
    let total = profile.lines().rev().find_map(|line| line.strip_prefix("totals: "));
    Ok(total.ok_or("the profile has no totals")?.trim().parse()?)
}

/// How often functions were called whose mangled name contains this.
fn calls(profile: &str, name: &str) -> Result<u64, Failed> {
    let (mut calls, mut is_called) = (0, false);
    for line in profile.lines() {
        if let Some(callee) = line.strip_prefix("cfn=") {
            is_called = callee.contains(name);
        } else if let Some(count) = line.strip_prefix("calls=")
            && is_called
        {
            calls += count.split(' ').next().unwrap_or_default().parse::<u64>()?;
        }
    }
    match calls {
        0 => Err(format!("the profile has no call of {name}: the binary has no symbols").into()),
        _ => Ok(calls),
    }
}

/// Of all places that copy.
fn copied_bytes(copies: &str) -> Result<u64, Failed> {
    #[derive(Deserialize)]
    struct Copies {
        pps: Vec<Place>,
    }
    #[derive(Deserialize)]
    struct Place {
        tb: u64,
    }
    let copies: Copies = serde_json::from_str(copies)?;
    Ok(copies.pps.iter().map(|place| place.tb).sum())
}

impl Sub for Counts {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self {
            instructions: self.instructions - other.instructions,
            allocations: self.allocations - other.allocations,
            copied_bytes: self.copied_bytes - other.copied_bytes,
            polls: self.polls - other.polls,
        }
    }
}

impl Div<f64> for Counts {
    type Output = Self;

    fn div(self, by: f64) -> Self {
        Self {
            instructions: self.instructions / by,
            allocations: self.allocations / by,
            copied_bytes: self.copied_bytes / by,
            polls: self.polls / by,
        }
    }
}

/// Where tokio polls a task of whichever kind: `tokio::runtime::task::raw::poll`.
const POLL_OF_A_TASK: &str = "7runtime4task3raw4poll";
/// Enough that what does not happen for each entry has happened often.
const ENTRIES: u64 = 10_000;
const BURSTS: u64 = 10;

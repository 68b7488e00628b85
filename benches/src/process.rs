//! What Linux says of a process.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::time::Duration;

use crate::Failed;

/// Resident memory of this process.
///
/// # Errors
/// If `/proc` is not that of Linux.
pub fn resident_bytes() -> Result<u64, Failed> {
    let pages = fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = pages.split(' ').nth(1).ok_or("statm has no second number")?.parse()?;
    Ok(pages * PAGE_BYTES)
}

/// How often each thread of this process went to sleep, which it has to be woken for.
#[derive(Debug)]
pub struct Switches(BTreeMap<OsString, u64>);

impl Switches {
    /// Until now.
    ///
    /// # Errors
    /// If `/proc` is not that of Linux.
    pub fn now() -> Result<Self, Failed> {
        let mut switches = BTreeMap::new();
        for thread in fs::read_dir("/proc/self/task")? {
            let thread = thread?;
            // It may end just now.
            let Ok(status) = fs::read_to_string(thread.path().join("status")) else { continue };
            let line =
                status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            let count = line.ok_or("status has no switches")?.trim().parse()?;
            switches.insert(thread.file_name(), count);
        }
        Ok(Self(switches))
    }

    /// How many there were since, in the threads that are still there.
    ///
    /// # Errors
    /// If `/proc` is not that of Linux.
    pub fn since(&self) -> Result<u64, Failed> {
        let now = Self::now()?.0;
        Ok(now.iter().map(|(thread, count)| count - self.0.get(thread).unwrap_or(&0)).sum())
    }
}

/// Processor time of another process, user and system, in steps of 10 ms.
///
/// # Errors
/// If there is no such process, or `/proc` is not that of Linux.
pub fn cpu_of(process: u32) -> Result<Duration, Failed> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
    // The name of the program, in brackets, may hold anything.
    let (_, figures) = stat.rsplit_once(") ").ok_or("stat has no name")?;
    let mut figures = figures.split(' ').skip(11);
    let mut ticks =
        || figures.next().ok_or("stat has no times")?.parse::<u64>().map_err(Failed::from);
    Ok(TICK * u32::try_from(ticks()? + ticks()?)?)
}

/// Of Linux on x86-64.
const PAGE_BYTES: u64 = 4096;

/// In which Linux counts the time of processes.
const TICK: Duration = Duration::from_millis(10);

//! Holding a region for others.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use georepl::Absent;

use super::Found;
use crate::exit::{Exit, Failure, say};
use crate::interrupt::Interrupt;
use crate::service::words::{Holder, Purpose};
use crate::service::{Attached, Host, PATIENCE, attach, holder};

/// Holds a region until interrupted.
pub(super) async fn run(directory: &Path, mut interrupt: Interrupt) -> Result<Found, Failure> {
    let taken = tokio::select! {
        host = take(directory) => host?,
        () = interrupt.wait() => return Ok(Found::Healthy),
    };
    say(format_args!("serving the region in {}; Ctrl-C ends it", directory.display()));
    let misplaced = tokio::select! {
        () = interrupt.wait() => None,
        misplaced = taken.misplaced() => Some(misplaced),
    };
    taken.close().await?;
    say("the region is closed");
    misplaced.map_or(Ok(Found::Healthy), Err)
}

/// Takes hold of the region, and waits for a while if another process has it for a command.
async fn take(directory: &Path) -> Result<Arc<Host>, Failure> {
    let begun = Instant::now();
    let mut waiting = None;
    loop {
        let stream = match attach(directory, Absent::Create, PATIENCE, Purpose::Serve).await? {
            Attached::Local(host) => return Ok(host),
            Attached::Remote(stream) => stream,
        };
        // None if it has ended meanwhile.
        if let Some(Holder { process, purpose, .. }) = holder(directory, stream).await? {
            let at = directory.display();
            if purpose == Purpose::Serve {
                let message = format!("the region in {at} is served already, by process {process}");
                return Err(Failure::failed(message));
            }
            if begun.elapsed() > COMMAND_PATIENCE {
                let message = format!(
                    "process {process} still holds the region in {at} for a command after {} s; wait for it to end, \
                     or interrupt it",
                    COMMAND_PATIENCE.as_secs()
                );
                return Err(Failure::new(Exit::Failed, message));
            }
            if waiting.replace(process) != Some(process) {
                say(format_args!(
                    "waiting for process {process}, which holds the region in {at} for a command"
                ));
            }
        }
        tokio::time::sleep(COMMAND_PAUSE).await;
    }
}

/// How long a region may be held by a process that carries a command out.
const COMMAND_PATIENCE: Duration = Duration::from_secs(10);
const COMMAND_PAUSE: Duration = Duration::from_millis(100);

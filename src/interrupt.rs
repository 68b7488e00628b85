//! What signals mean: Ctrl-C and SIGTERM, and that a file may not grow.

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::exit::say;

/// Whether the process was asked to end. Clones are told the same.
#[derive(Clone)]
pub(crate) struct Interrupt(watch::Receiver<bool>);

impl Interrupt {
    /// Listens from now on. The second signal ends the process at once, which is as safe as a crash.
    pub(crate) fn listen() -> std::io::Result<Self> {
        let (mut interrupt, mut terminate) =
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        // Whoever listens is not ended by it: a write beyond `ulimit -f` fails like one to a full disk.
        let mut beyond_limit = signal(SignalKind::from_raw(SIGXFSZ))?;
        tokio::spawn(async move { while beyond_limit.recv().await.is_some() {} });
        let (told, receiver) = watch::channel(false);
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                if told.send_replace(true) {
                    std::process::exit(128 + 2);
                }
                say("ending; a second signal ends it at once");
            }
        });
        Ok(Self(receiver))
    }

    /// Resolves when the process is asked to end; once for each handle. Cancel-safe.
    pub(crate) async fn wait(&mut self) {
        match self.0.changed().await {
            Ok(()) => {}
            // The runtime ends, and nobody asks any more.
            Err(_) => std::future::pending().await,
        }
    }
}

/// On Linux, and on macOS, of the processors that this runs on.
const SIGXFSZ: i32 = 25;

//! Carrying a recovery out, within the future of who asked for it.

use std::sync::Arc;

use fastrand::Rng;
use tokio::sync::watch;

use super::{ClosedBy, Config, Error, Input, Machine, Output, Progress, Recovered};
use crate::entry::Password;
use crate::exchange::RecordExchange;
use crate::id::LedgerId;
use crate::mailbox::Mailbox;
use crate::metadata::LengthIs;
use crate::read::Core;
use crate::registry::RegisteredBookie;
use crate::transport::{CompletionSink, Response};

/// Entries that are looked for or written back at once: enough to fill a round trip within a data centre, and few
/// enough that the largest entries of a topic fit into memory so many times.
const ENTRIES_IN_FLIGHT_MAX: usize = 32;

type Registry = watch::Receiver<Arc<[RegisteredBookie]>>;

/// Recovers a ledger. Cancel-safe: the next recovery starts from what is stored.
pub(crate) async fn run(
    core: &Arc<Core>,
    mut registry: Registry,
    ledger: LedgerId,
    password: Password,
    progress: &watch::Sender<Progress>,
) -> Result<Recovered, Error> {
    let mut rng = Rng::new();
    let config = Config {
        ledger,
        password,
        request_timeout: core.config.request_timeout,
        entries_in_flight_max: ENTRIES_IN_FLIGHT_MAX,
        start: core.config.recovery_start,
    };
    let mut machine = Machine::new(config, shuffled(&mut registry, &mut rng));
    let mailbox = Arc::new(Mailbox::<Response>::new());
    let sink: Arc<dyn CompletionSink> = mailbox.clone();
    let mut exchange = RecordExchange::new(core.clone(), ledger);
    let mut asked = None;
    let mut responses = Vec::new();
    loop {
        while let Some(output) = machine.poll_output() {
            match output {
                Output::Submit { bookie, mut requests } => {
                    core.transport.submit(&bookie, &mut requests, &sink)
                }
                Output::Record(question) => asked = Some(question),
                Output::Closed(recovered) => {
                    report(ledger, &machine, &recovered);
                    return Ok(recovered);
                }
                Output::Failed(error) => {
                    tracing::warn!(%ledger, "recovery failed: {error}");
                    return Err(error);
                }
            }
        }
        progress.send_if_modified(|known| {
            let changed = *known != machine.progress();
            *known = machine.progress();
            changed
        });
        // Nothing of bookies is asked while the store is, so that answers of theirs can wait for it.
        if let Some(question) = asked.take() {
            let answer = exchange.ask(question).await;
            machine.handle(core.clock.now(), Input::Record(answer));
            continue;
        }
        let wake_at = machine.wake_at().map(|at| core.clock.instant(at));
        let timer = async {
            match wake_at {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // In this order, so that a simulation is the same each time; answers come first.
            biased;
            received = mailbox.recv_into(&mut responses) => {
                received.expect("a recovery's mailbox is not closed");
                machine.handle(core.clock.now(), Input::Responses(&mut responses));
                // With bookies that answer at once this may never wait; others want to run as well.
                tokio::task::coop::consume_budget().await;
            }
            () = timer => machine.handle(core.clock.now(), Input::Wake),
            Ok(()) = registry.changed() => {
                let bookies = shuffled(&mut registry, &mut rng);
                machine.handle(core.clock.now(), Input::Registry(bookies));
            }
        }
    }
}

/// The registered bookies in an order of its own, so that recoveries do not all choose the same replacements.
fn shuffled(registry: &mut Registry, rng: &mut Rng) -> Arc<[RegisteredBookie]> {
    let mut bookies = registry.borrow_and_update().to_vec();
    rng.shuffle(&mut bookies);
    bookies.into()
}

fn report(ledger: LedgerId, machine: &Machine, recovered: &Recovered) {
    let Progress { entries_written_back, .. } = machine.progress();
    let state = recovered.record.state();
    match recovered.closed_by {
        ClosedBy::Another => tracing::info!(%ledger, ?state, "closed already"),
        ClosedBy::ThisRecovery { length: LengthIs::Exact } => {
            tracing::info!(%ledger, ?state, entries_written_back, "recovered and closed");
        }
        ClosedBy::ThisRecovery { length: LengthIs::LowerBound } => {
            tracing::warn!(
                %ledger, ?state, entries_written_back,
                "recovered and closed with too small a length: its last entry could not be read"
            );
        }
    }
}

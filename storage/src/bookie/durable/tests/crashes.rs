//! Losses of power at every sync of a script.

use super::*;
use crate::bookie::conformance::{ADDED, LEDGER, One, add, fence, found, key, lac, read};
use crate::fault::Unsynced;
use crate::id::EntryId;
use crate::transport::AddKind;

const DELETED: LedgerId = LedgerId(1);

/// What was answered before power was lost.
#[derive(Debug, Default)]
struct Promised {
    entries: Vec<u64>,
    fenced: bool,
    lac: bool,
    deleted: bool,
}

/// Adds entries, tells the LAC, fences, recovers and deletes, until power is lost or the script is over.
async fn run_script(one: &mut One<Durable>) -> Promised {
    let mut promised = Promised::default();
    let doomed = crate::bookie::conformance::entry(DELETED, 0, "doomed");
    let doomed = RequestBody::Add { entry: doomed, key: key(""), kind: AddKind::Normal };
    one.ask_of(DELETED, doomed).await.ok();
    for ids in [0..1, 1..4, 4..20] {
        let adds = ids.clone().map(|id| add(id, AddKind::Normal)).collect();
        one.send(ids.start, LEDGER, adds);
        for (id, answer) in one.answers((ids.end - ids.start) as usize).await {
            match answer {
                ADDED => promised.entries.push(id),
                refused => assert_eq!(refused, Err(BookieError::Io)),
            }
        }
    }
    let told = RequestBody::WriteLac { lac: EntryId(19), key: key("") };
    promised.lac = one.ask(told).await.is_ok();
    promised.fenced = one.ask(fence()).await.is_ok();
    if promised.fenced && one.ask(add(20, AddKind::Recovery)).await == ADDED {
        promised.entries.push(20);
    }
    let kept = one.kind.bookies().retain_ledgers(|ledger| ledger == LEDGER).await;
    promised.deleted = kept.is_ok();
    promised
}

/// Checks that everything promised is kept.
async fn audit(one: &mut One<Durable>, promised: &Promised, context: &str) {
    for id in &promised.entries {
        assert_eq!(one.ask(read(*id)).await, found(*id), "{context}");
    }
    if promised.lac {
        let told = one.ask(RequestBody::ReadLac { fence: None }).await;
        assert_eq!(told, lac(Some(19)), "{context}");
    }
    if promised.fenced {
        let refused = one.ask(add(99, AddKind::Normal)).await;
        assert_eq!(refused, Err(BookieError::Fenced), "{context}");
    }
    if promised.deleted {
        let gone = one.ask_of(DELETED, read(0)).await;
        assert_eq!(gone, Err(BookieError::NoSuchLedger), "{context}");
    }
    assert!(one.ask(add(30, AddKind::Recovery)).await == ADDED, "it goes on; {context}");
}

async fn lose_power_everywhere(unsynced: impl Fn(u64) -> Unsynced) {
    let mut cut = 0;
    loop {
        cut += 1;
        // The file is made by the script's run as well, so that its making is cut, too.
        let mut durable = Durable::stopped(DurableConfig::default());
        durable.disk.cut_at(cut);
        let opened = durable.try_start().await;
        let mut one = One::new(durable);
        let promised = match opened {
            Ok(()) => run_script(&mut one).await,
            Err(_) => Promised::default(),
        };
        let survived = one.kind.disk.syncs() < cut;
        one.kind.stop();
        let survived_closing = one.kind.disk.syncs() < cut;
        one.kind.disk.restart(unsynced(cut));
        one.kind.start().await;
        let context = format!("power lost at sync {cut}, {:?}", unsynced(cut));
        audit(&mut one, &promised, &context).await;
        if survived && survived_closing {
            assert!(promised.fenced && promised.deleted && promised.entries.len() == 21);
            return;
        }
    }
}

#[tokio::test]
async fn what_was_answered_survives_a_loss_of_power_at_every_sync() {
    lose_power_everywhere(|_| Unsynced::Lost).await;
}

#[tokio::test]
async fn what_was_answered_survives_torn_writes_at_every_sync() {
    for seed in 0..8 {
        lose_power_everywhere(|cut| Unsynced::Torn(seed << 32 | cut)).await;
    }
}

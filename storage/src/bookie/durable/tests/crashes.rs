//! Losses of power, and failed syncs, at every sync of a script.

use super::changes::DELETED_PER_COMMIT_MAX;
use super::*;
use crate::bookie::conformance::{ADDED, LEDGER, One, add, entry, fence, found, key, lac, read};
use crate::entry::Entry;
use crate::fault::Unsynced;
use crate::id::EntryId;
use crate::transport::AddKind;

/// A ledger that takes more than one commit to delete.
const DELETED: LedgerId = LedgerId(1);
const DELETED_ENTRIES: u64 = DELETED_PER_COMMIT_MAX as u64 + 100;

/// Entries that make the file grow.
const LARGE: std::ops::Range<u64> = 100..104;

/// What was answered before power was lost.
#[derive(Debug, Default)]
struct Promised {
    entries: Vec<u64>,
    large: Vec<u64>,
    fenced: bool,
    lac: bool,
    doomed_fenced: bool,
    deleted: bool,
}

fn large(id: u64) -> Entry {
    Entry::seal(LEDGER, EntryId(id), None, 0, vec![7; 64 << 10].into())
}

/// Adds entries, tells the LAC, fences, recovers and deletes, until power is lost or the script is over.
async fn run_script(one: &mut One<Durable>) -> Promised {
    let mut promised = Promised::default();
    let doomed = |id| RequestBody::Add {
        entry: entry(DELETED, id, "doomed"),
        key: key(""),
        kind: AddKind::Normal,
    };
    one.send(0, DELETED, (0..DELETED_ENTRIES).map(doomed).collect());
    one.answers(DELETED_ENTRIES as usize).await;
    promised.doomed_fenced = one.ask_of(DELETED, fence()).await.is_ok();
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
    for id in LARGE {
        let add = RequestBody::Add { entry: large(id), key: key(""), kind: AddKind::Normal };
        if one.ask(add).await == ADDED {
            promised.large.push(id);
        }
    }
    let told = RequestBody::WriteLac { lac: EntryId(19), key: key("") };
    promised.lac = one.ask(told).await.is_ok();
    promised.fenced = one.ask(fence()).await.is_ok();
    if promised.fenced && one.ask(add(20, AddKind::Recovery)).await == ADDED {
        promised.entries.push(20);
    }
    promised.deleted = one.kind.bookies().delete_ledgers([DELETED]).await.is_ok();
    promised
}

/// Checks that everything promised is kept.
async fn audit(one: &mut One<Durable>, promised: &Promised, context: &str) {
    for id in &promised.entries {
        assert_eq!(one.ask(read(*id)).await, found(*id), "{context}");
    }
    for id in &promised.large {
        let whole = Ok(ResponseBody::Entry(large(*id)));
        assert!(one.ask(read(*id)).await == whole, "entry {id}, {context}");
    }
    if promised.lac {
        let told = one.ask(RequestBody::ReadLac { fence: None }).await;
        assert_eq!(told, lac(Some(19)), "{context}");
    }
    if promised.fenced {
        let refused = one.ask(add(99, AddKind::Normal)).await;
        assert_eq!(refused, Err(BookieError::Fenced), "{context}");
    }
    let last = one.ask_of(DELETED, read(DELETED_ENTRIES - 1)).await;
    let gone = last == Err(BookieError::NoSuchLedger);
    assert!(gone || !promised.deleted, "{last:?}, {context}");
    assert_ne!(last, Err(BookieError::Io), "{context}");
    if promised.doomed_fenced && !gone {
        let entry = entry(DELETED, 0, "late");
        let late = RequestBody::Add { entry, key: key(""), kind: AddKind::Normal };
        let late = one.ask_of(DELETED, late).await;
        assert_eq!(late, Err(BookieError::Fenced), "what is left keeps its fence; {context}");
    }
    assert!(one.ask(add(30, AddKind::Recovery)).await == ADDED, "it goes on; {context}");
}

async fn lose_power_everywhere(unsynced: impl Fn(u64) -> Unsynced) {
    let mut cut = 0;
    loop {
        cut += 1;
        // The file is made by the script's run as well, so that its making is cut, too.
        let mut durable = Durable::stopped(DurableConfig::default()).await;
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
            assert_eq!(promised.large.len(), 4);
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
    for seed in 0..4 {
        lose_power_everywhere(|cut| Unsynced::Torn(seed << 32 | cut)).await;
    }
}

/// A machine that goes on after a sync has failed shows what its disk does not have.
#[tokio::test]
async fn what_was_answered_survives_a_failed_sync_at_every_sync() {
    let mut failing = 0;
    loop {
        failing += 1;
        let mut durable = Durable::stopped(DurableConfig::default()).await;
        durable.disk.fail_at(failing);
        let opened = durable.try_start().await;
        let mut one = One::new(durable);
        let mut promised = match opened {
            Ok(()) => run_script(&mut one).await,
            Err(_) => Promised::default(),
        };
        one.kind.stop();
        let over = one.kind.disk.syncs() < failing;
        let context = format!("failed sync {failing}");
        // The process is started again, the machine is not.
        if one.kind.try_start().await.is_ok() {
            for id in 40..50 {
                if one.ask(add(id, AddKind::Recovery)).await == ADDED {
                    promised.entries.push(id);
                }
            }
            audit(&mut one, &promised, &format!("the machine goes on, {context}")).await;
        }
        one.kind.stop();
        one.kind.disk.restart(Unsynced::Lost);
        one.kind.start().await;
        audit(&mut one, &promised, &format!("the machine was restarted, {context}")).await;
        if over {
            assert!(promised.fenced && promised.deleted);
            return;
        }
    }
}

//! The failures that were reported from real clusters, told from the first append to the last read.

use super::recovery::contents;
use super::*;
use crate::shortfall::Shortfall;

/// The bookies that hold an entry, by number.
fn holders(cluster: &Cluster, ledger: LedgerId, entry: u64) -> Vec<usize> {
    let holds = |number: &usize| {
        let held = cluster.bookies.entries(&bookie(*number), ledger);
        held.iter().any(|held| held.entry() == EntryId(entry))
    };
    (1..=4).filter(holds).collect()
}

fn sorted(mut numbers: Vec<usize>) -> Vec<usize> {
    numbers.sort_unstable();
    numbers
}

/// Seed 001: an entry is acknowledged at its ack quorum, the ensemble changes behind it, the writer dies, and a bookie
/// is down while the ledger is recovered.
#[tokio::test(start_paused = true)]
async fn seed_001_an_entry_at_its_ack_quorum_survives_a_change_a_dead_writer_and_any_one_bookie() {
    for down in 1..=4 {
        let cluster = Cluster::with_spares(1);
        let (writer, mut told) = cluster.create().await;
        let ledger = writer.id();
        let record = writer.metadata();
        let number = |id: &BookieId| (1..=4).find(|number| bookie(*number) == *id).expect("named");
        let members: Vec<_> = record.last_ensemble().1.iter().map(number).collect();
        let (first, second, missed) = (members[0], members[1], members[2]);
        let spare = 10 - members.iter().sum::<usize>();

        // Entry 0 reaches two of three, and is acknowledged.
        cluster.transport.inject(&bookie(missed), Fault::LoseRequests);
        writer.append(payloads(1)).expect("an open ledger");
        assert_eq!(told.recv().await, Some(Told::Confirmed(0)));
        assert_eq!(writer.metadata().ensembles().len(), 1);
        assert_eq!(holders(&cluster, ledger, 0), sorted(vec![first, second]), "before");

        // The third is given up after its time, and the fourth takes its place, from entry 1 on.
        tokio::time::sleep(Duration::from_secs(6)).await;
        writer.append(payloads(2).drain(1..)).expect("an open ledger");
        assert_eq!(told.recv().await, Some(Told::Confirmed(1)));
        let fragments: Vec<_> = writer.metadata().ensembles().clone().into_iter().collect();
        let named = |numbers: [usize; 3]| numbers.map(bookie).to_vec();
        let before = (EntryId(0), named([first, second, missed]));
        let after = (EntryId(1), named([first, second, spare]));
        assert_eq!(fragments, [before, after]);
        assert_eq!(holders(&cluster, ledger, 0), sorted(vec![first, second]), "as before");
        assert_eq!(holders(&cluster, ledger, 1), sorted(vec![first, second, spare]), "after");

        drop(writer);
        cluster.transport.heal(&bookie(missed));
        cluster.bookies.down(&bookie(down));
        let reader = cluster.recover(ledger).await.expect("one bookie is down");
        assert_eq!(reader.last_add_confirmed(), Some(EntryId(1)));
        assert_eq!(contents(&reader).await, payloads(2), "b{down} was down");

        // And whoever repairs the ledger is told which copy is missing.
        let report = cluster.client.check(ledger, |_| ()).await.expect("the others are up");
        let entry = EntryId(0);
        let shortfall = Shortfall { bookie: bookie(missed), first: entry, last: entry };
        assert_eq!(report.marked, crate::marks::Mark::Shortfalls(vec![shortfall]));
        assert!(report.fragments[0].entries_under_replicated > 0);
    }
}

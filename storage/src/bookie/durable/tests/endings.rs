//! How a bookie ends: its file goes, a thread of it dies, or it is dropped.

use std::sync::mpsc;

use super::changes::DELETED_PER_COMMIT_MAX;
use super::held::GROUP_ENTRIES;
use super::*;
use crate::bookie::conformance::{
    ADDED, LEDGER, OTHER, One, add, entry, fence, found, key, lac, read,
};
use crate::fault::DiskFault;
use crate::transport::AddKind;

const UNREACHABLE: Result<ResponseBody, BookieError> = Err(BookieError::Unreachable);
const IO: Result<ResponseBody, BookieError> = Err(BookieError::Io);

/// A sink that does something.
struct Act<F>(F);

impl<F: Fn(&mut Vec<Response>) + Send + Sync> CompletionSink for Act<F> {
    fn complete(&self, batch: &mut Vec<Response>) {
        (self.0)(batch);
    }
}

fn ask_with(
    one: &One<Durable>,
    ledger: LedgerId,
    body: RequestBody,
    sink: &Arc<dyn CompletionSink>,
) {
    let mut batch = vec![Request { id: RequestId(0), ledger, body }];
    one.kind.bookies().submit(&b1(), &mut batch, sink);
}

#[tokio::test]
async fn a_bookie_whose_thread_dies_is_gone_and_answers_as_unreachable() {
    let mut one = One::new(Durable::new().await);
    for deadly in [read(0), add(0, AddKind::Normal)] {
        let mut registered = one.kind.bookies().registry().bookies();
        one.send(7, OTHER, vec![RequestBody::WaitLac { beyond: None }]);
        assert!(one.ask(fence()).await.is_ok(), "the wait has been taken");
        let panics: Arc<dyn CompletionSink> =
            Arc::new(Act(|_: &mut Vec<Response>| panic!("a sink that panics on purpose")));
        ask_with(&one, LEDGER, deadly, &panics);
        registered.wait_for(|registered| registered.is_empty()).await.expect("it says so");
        assert_eq!(one.answers(1).await, [(7, UNREACHABLE)]);
        assert_eq!(one.ask(add(1, AddKind::Normal)).await, UNREACHABLE);
        assert_eq!(one.ask(read(1)).await, UNREACHABLE);
        one.kind.stop();
        one.kind.start().await;
    }
    assert!(one.ask_of(OTHER, fence()).await.is_ok());
}

#[tokio::test]
async fn dropped_bookies_are_not_registered_and_have_closed_their_files() {
    let mut one = One::new(Durable::new().await);
    let registered = one.kind.bookies().registry().bookies();
    one.send(0, LEDGER, vec![add(0, AddKind::Normal)]);
    one.kind.stop();
    assert_eq!(registered.borrow().len(), 0);
    assert!(!one.kind.disk.is_open(FILE));
    assert_eq!(one.answers(1).await, [(0, ADDED)], "what was taken was carried out");
}

fn doomed(ledger: LedgerId, count: u64) -> Vec<RequestBody> {
    let add = |id| RequestBody::Add {
        entry: entry(ledger, id, "doomed"),
        key: key(""),
        kind: AddKind::Normal,
    };
    (0..count).map(add).chain([fence()]).collect()
}

const SHORT: LedgerId = LedgerId(1);
const LONG: LedgerId = LedgerId(2);
const LONG_ENTRIES: u64 = 10 * DELETED_PER_COMMIT_MAX as u64;

/// A bookie with a short and a long ledger to delete. `first_gone` is told on the bookie's thread when the short one is
/// gone, between two commits of the deletion.
async fn with_long_ledger(first_gone: Arc<dyn CompletionSink>) -> One<Durable> {
    let mut one = One::new(Durable::new().await);
    for (ledger, count) in [(SHORT, 1), (LONG, LONG_ENTRIES)] {
        one.send(0, ledger, doomed(ledger, count));
        one.answers(count as usize + 1).await;
    }
    ask_with(&one, SHORT, RequestBody::WaitLac { beyond: None }, &first_gone);
    one
}

#[tokio::test]
async fn others_are_served_while_a_long_ledger_is_deleted() {
    let (told, first_gone) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel::<()>();
    let may_go_on = Mutex::new(may_go_on);
    let gone: Arc<dyn CompletionSink> = Arc::new(Act(move |_: &mut Vec<Response>| {
        told.send(()).expect("the test waits for it");
        may_go_on.lock().recv().expect("the test lets it go on");
    }));
    let mut one = with_long_ledger(gone).await;
    let bookies = Arc::new(one.kind.bookies.take().expect("it was started"));
    let deleting = {
        let bookies = bookies.clone();
        tokio::spawn(async move { bookies.delete_ledgers([SHORT, LONG]).await })
    };
    tokio::task::spawn_blocking(move || first_gone.recv()).await.expect("no panic").expect("it is");
    let disk = one.kind.disk.clone();
    let (answered, at) = mpsc::channel();
    let sink: Arc<dyn CompletionSink> = Arc::new(Act(move |batch: &mut Vec<Response>| {
        answered.send((batch.remove(0).result, disk.syncs())).expect("the test listens");
    }));
    let request = Request { id: RequestId(1), ledger: LEDGER, body: add(0, AddKind::Normal) };
    bookies.submit(&b1(), &mut vec![request], &sink);
    go_on.send(()).expect("the bookie waits for it");
    assert_eq!(deleting.await.expect("no panic"), Ok(()));
    let (result, syncs) = at.recv().expect("it was answered");
    assert_eq!(result, ADDED);
    // Each of the commits that were left is two syncs.
    assert!(one.kind.disk.syncs() - syncs >= 2 * 9, "{syncs} of {}", one.kind.disk.syncs());
    one.kind.bookies = Arc::into_inner(bookies);
    assert_eq!(one.ask_of(LONG, read(0)).await, Err(BookieError::NoSuchLedger));
    assert_eq!(one.ask(read(0)).await, found_in(LEDGER));
}

/// Each entry is of a group of its own, so that as much again is noted of the entries as there are.
#[tokio::test]
async fn a_ledger_of_many_groups_is_deleted_in_commits_of_bounded_size() {
    let mut one = One::new(Durable::new().await);
    let count = 3 * DELETED_PER_COMMIT_MAX as u64 / 2;
    let sparse = |id| RequestBody::Add {
        entry: entry(LONG, id * GROUP_ENTRIES, "doomed"),
        key: key(""),
        kind: AddKind::Normal,
    };
    one.send(0, LONG, (0..count).map(sparse).collect());
    one.answers(count as usize).await;
    let syncs = one.kind.disk.syncs();
    one.kind.bookies().delete_ledgers([LONG]).await.expect("the disk works");
    // 3 000 rows take three commits, of two syncs each.
    assert!(one.kind.disk.syncs() - syncs >= 6, "{}", one.kind.disk.syncs() - syncs);
    assert_eq!(one.ask_of(LONG, read(0)).await, Err(BookieError::NoSuchLedger));
    assert_eq!(one.ask_of(LONG, fence()).await, lac(None), "it is as new");
}

fn found_in(ledger: LedgerId) -> Result<ResponseBody, BookieError> {
    Ok(ResponseBody::Entry(entry(ledger, 0, "payload")))
}

#[tokio::test]
async fn a_bookie_that_is_dropped_stops_deleting_and_what_is_left_keeps_its_fence() {
    let (told, first_gone) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel::<()>();
    let may_go_on = Mutex::new(may_go_on);
    let gone: Arc<dyn CompletionSink> = Arc::new(Act(move |_: &mut Vec<Response>| {
        told.send(()).expect("the test waits for it");
        may_go_on.lock().recv().expect("the test lets it go on");
    }));
    let mut one = with_long_ledger(gone).await;
    let (done, deleted) = oneshot::channel();
    let running = &one.kind.bookies().bookies[&b1()];
    let deletion = Deletion::new(vec![SHORT, LONG], done);
    assert!(running.bookie.changes.push(Change::Delete(deletion), 0).is_ok());
    tokio::task::spawn_blocking(move || first_gone.recv()).await.expect("no panic").expect("it is");
    running.close();
    go_on.send(()).expect("the bookie waits for it");
    one.kind.stop();
    assert!(deleted.await.is_err(), "nobody may take it for done");
    one.kind.start().await;
    assert_eq!(one.ask_of(SHORT, read(0)).await, Err(BookieError::NoSuchLedger));
    let last = entry(LONG, LONG_ENTRIES - 1, "doomed");
    assert_eq!(
        one.ask_of(LONG, read(LONG_ENTRIES - 1)).await,
        Ok(ResponseBody::Entry(last.clone()))
    );
    let late = RequestBody::Add { entry: last, key: key(""), kind: AddKind::Normal };
    assert_eq!(one.ask_of(LONG, late).await, Err(BookieError::Fenced));
}

/// What becomes of a file under an open bookie.
type Misfortune = fn(&CrashDisk, Vec<u8>);

#[tokio::test]
async fn a_file_that_goes_while_it_is_open_is_not_begun_anew() {
    let misfortunes: [Misfortune; 3] = [
        |disk, _| disk.remove(FILE),
        |disk, _| disk.truncate(FILE),
        |disk, older| {
            disk.remove(FILE);
            disk.replace(FILE, older);
        },
    ];
    for misfortune in misfortunes {
        let mut one = One::new(Durable::new().await);
        assert_eq!(one.ask(add(0, AddKind::Normal)).await, ADDED);
        one.kind.stop();
        let older = one.kind.disk.content(FILE).expect("the bookie has a file");
        one.kind.start().await;
        assert_eq!(one.ask(add(1, AddKind::Normal)).await, ADDED);
        let newest = one.kind.disk.content(FILE).expect("the bookie has a file");
        let mut registered = one.kind.bookies().registry().bookies();
        misfortune(&one.kind.disk, older.clone());
        one.kind.disk.inject(DiskFault::Write);
        assert_eq!(one.ask(add(2, AddKind::Normal)).await, IO);
        assert_eq!(one.ask(read(1)).await, IO);
        assert_eq!(one.ask(fence()).await, IO);
        assert_eq!(registered.borrow_and_update().len(), 0);
        let left = one.kind.disk.content(FILE);
        assert!(left.is_none_or(|left| left.is_empty() || left.len() == older.len()));
        // Put back, it is found again.
        one.kind.disk.remove(FILE);
        one.kind.disk.replace(FILE, newest);
        while one.ask(read(1)).await != found(1) {}
        assert_eq!(registered.borrow_and_update().len(), 1);
        assert_eq!(one.ask(add(2, AddKind::Normal)).await, ADDED);
    }
}

#[tokio::test]
async fn a_file_that_is_gone_is_not_looked_for_again_with_every_request() {
    let mut one = One::new(Durable::new().await);
    assert_eq!(one.ask(add(0, AddKind::Normal)).await, ADDED);
    one.kind.disk.remove(FILE);
    let begun = std::time::Instant::now();
    let openings = one.kind.disk.openings();
    for id in 1..100 {
        assert_eq!(one.ask(add(id, AddKind::Normal)).await, IO);
        assert_eq!(one.ask(read(0)).await, IO);
    }
    let attempts = one.kind.disk.openings() - openings;
    // One at once, and one for each second that has passed.
    assert!((1..=2 + begun.elapsed().as_secs()).contains(&attempts), "{attempts}");
}

#[tokio::test]
async fn fencing_reads_are_answered_in_turns_of_bounded_size() {
    let mut one = One::new(Durable::new().await);
    let count = 200;
    for id in 0..count {
        let entry = crate::entry::Entry::seal(
            LEDGER,
            crate::id::EntryId(id),
            None,
            0,
            vec![7; 64 << 10].into(),
        );
        one.send(id, LEDGER, vec![RequestBody::Add { entry, key: key(""), kind: AddKind::Normal }]);
        assert_eq!(one.answers(1).await, [(id, ADDED)]);
    }
    let (tell, told) = mpsc::channel();
    let sink: Arc<dyn CompletionSink> = Arc::new(Act(move |batch: &mut Vec<Response>| {
        assert!(batch.iter().all(|response| response.result.is_ok()));
        tell.send(batch.drain(..).count()).expect("the test listens");
    }));
    let fencing_read = |id| {
        let body = RequestBody::Read { entry: crate::id::EntryId(id), fence: Some(key("")) };
        Request { id: RequestId(id), ledger: LEDGER, body }
    };
    let mut batch = (0..count).map(fencing_read).collect();
    one.kind.bookies().submit(&b1(), &mut batch, &sink);
    drop(sink);
    one.kind.stop();
    let turns: Vec<usize> = told.iter().collect();
    assert_eq!(turns.iter().sum::<usize>(), count as usize);
    // 64 entries are 4 MiB and a little more.
    assert!(turns.iter().all(|turn| *turn <= 64), "{turns:?}");
}

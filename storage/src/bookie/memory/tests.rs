use super::*;
use crate::bookie::conformance::{
    ADDED, Kind, LEDGER, One, add, b1, conformance, found, key, read,
};
use crate::mailbox::Mailbox;
use crate::transport::AddKind;

conformance!(Memory::new());

/// A bookie in memory.
struct Memory {
    bookies: MemoryBookies,
    lives: u64,
}

impl Memory {
    fn new() -> Self {
        Self { bookies: MemoryBookies::new([b1()]), lives: 1 }
    }
}

impl Kind for Memory {
    fn transport(&self) -> &dyn BookieTransport {
        &self.bookies
    }

    async fn restart(&mut self) {
        self.bookies.restart(&b1());
    }

    async fn wipe(&mut self) {
        self.lives += 1;
        self.bookies.wipe(&b1(), Instance(self.lives));
    }

    async fn keep_only(&mut self, ledger: LedgerId) {
        let mut others = self.bookies.ledgers();
        others.remove(&ledger);
        self.bookies.delete_ledgers(others);
    }
}

#[tokio::test]
async fn a_bookie_that_is_down_takes_nothing_and_names_no_life() {
    let mut one = One::new(Memory::new());
    one.kind.bookies.down(&b1());
    one.send(1, LEDGER, vec![add(0, AddKind::Normal)]);
    let answered = one.responses(1).await;
    assert_eq!(answered[0].result, Err(BookieError::Unreachable));
    assert_eq!(answered[0].instance, None);
    one.kind.bookies.up(&b1());
    assert_eq!(one.kind.bookies.entries(&b1(), LEDGER), []);
}

#[tokio::test]
async fn a_ledger_in_limbo_is_told_of_but_never_denied() {
    let mut one = One::new(Memory::new());
    assert_eq!(one.ask(add(0, AddKind::Normal)).await, ADDED);
    one.kind.bookies.enter_limbo(&b1(), LEDGER);
    let unknown = || Err(BookieError::UnknownLedgerState);
    let fencing = |id| RequestBody::Read { entry: EntryId(id), fence: Some(key("")) };
    assert_eq!(one.ask(fencing(0)).await, found(0), "what it has it returns");
    assert_eq!(one.ask(fencing(1)).await, unknown());
    assert_eq!(one.ask(RequestBody::ReadLac { fence: None }).await, unknown());
    assert_eq!(one.ask(RequestBody::WaitLac { beyond: None }).await, unknown());
    assert_eq!(one.ask(add(1, AddKind::Normal)).await, unknown(), "the fence may be lost");
    assert_eq!(one.ask(add(1, AddKind::Recovery)).await, ADDED);
    assert_eq!(one.ask(read(1)).await, found(1));
}

/// Both find a bookie that has never seen the ledger, where a second record of it would be one without the fence.
#[test]
fn c5_a_fence_and_the_first_add_at_the_same_time_agree_which_came_first() {
    for _ in 0..500 {
        let (bookies, start) = (MemoryBookies::new([b1()]), std::sync::Barrier::new(2));
        let ask = |body: RequestBody| {
            let answers = Arc::new(Mailbox::<Response>::new());
            let sink: Arc<dyn CompletionSink> = answers.clone();
            let mut batch = vec![Request { id: RequestId(0), ledger: LEDGER, body }];
            start.wait();
            bookies.submit(&b1(), &mut batch, &sink);
            let mut taken = Vec::new();
            answers.take_into(&mut taken);
            taken.remove(0).result
        };
        let (added, seen) = std::thread::scope(|scope| {
            let adding = scope.spawn(|| ask(add(0, AddKind::Normal)));
            let seen = ask(RequestBody::Read { entry: EntryId(0), fence: Some(key("")) });
            (adding.join().expect("no panic"), seen)
        });
        match seen {
            Ok(_) => assert_eq!(added, Ok(ResponseBody::Added)),
            Err(_) => assert_eq!(added, Err(BookieError::Fenced)),
        }
    }
}

//! What a single real bookie answers, request by request.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use georepl_storage::wire::{
    ENTRY_BYTES_MAX, IdsAreAddresses, Limits, Protocol, TcpBookies, TcpConfig,
};
use georepl_storage::{
    AddKind, BookieError, BookieId, BookieTransport, CompletionSink, Entry, EntryId, LedgerId,
    Mailbox, MasterKey, MemoryBookieRegistry, Request, RequestBody, RequestId, Response,
    ResponseBody,
};

use crate::rig::Rig;

pub(crate) type Answer = Result<ResponseBody, BookieError>;

pub(crate) const ADDED: Answer = Ok(ResponseBody::Added);

/// One bookie, asked about one ledger.
pub(crate) struct Asker {
    bookie: BookieId,
    transport: TcpBookies,
    ledger: LedgerId,
    answers: Arc<Mailbox<Response>>,
}

impl Asker {
    pub(crate) fn new(rig: &Rig, ledger: u64, config: TcpConfig) -> Self {
        let bookie = BookieId::from(rig.bookies[0].as_str());
        let registry = MemoryBookieRegistry::new([bookie.clone()]);
        let transport = TcpBookies::new(Arc::new(IdsAreAddresses::new(&registry)), config);
        Self { bookie, transport, ledger: LedgerId(ledger), answers: Arc::default() }
    }

    fn send(&self, body: RequestBody) {
        let sink: Arc<dyn CompletionSink> = self.answers.clone();
        let mut batch = vec![Request { id: RequestId(0), ledger: self.ledger, body }];
        self.transport.submit(&self.bookie, &mut batch, &sink);
    }

    async fn answer(&self) -> Answer {
        let mut responses = Vec::new();
        self.answers.recv_into(&mut responses).await.expect("it stays open");
        assert_eq!(responses.len(), 1);
        responses.remove(0).result
    }

    pub(crate) async fn ask(&self, body: RequestBody) -> Answer {
        self.send(body);
        self.answer().await
    }

    fn entry(&self, id: u64, bytes: usize) -> Entry {
        let (id, payload) = (EntryId(id), Bytes::from(vec![id as u8; bytes]));
        Entry::seal(self.ledger, id, id.checked_prev(), 9, payload)
    }

    pub(crate) fn add(&self, id: u64, kind: AddKind) -> RequestBody {
        RequestBody::Add { entry: self.entry(id, 10), key: key("secret"), kind }
    }
}

fn key(password: &str) -> MasterKey {
    MasterKey::of(&password.into())
}

const fn read(id: u64, fence: Option<MasterKey>) -> RequestBody {
    RequestBody::Read { entry: EntryId(id), fence }
}

const fn read_lac(fence: Option<MasterKey>) -> RequestBody {
    RequestBody::ReadLac { fence }
}

fn lac(lac: Option<u64>) -> Answer {
    Ok(ResponseBody::LastAddConfirmed { lac: lac.map(EntryId) })
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_of_a_real_bookie_mean_what_those_of_ours_do() {
    let rig = Rig::up(1);
    for (protocol, ledger) in [(Protocol::V2, 7000), (Protocol::V3, 7001)] {
        let limits = Limits { protocol, lac_wait: Duration::from_millis(300), ..Limits::default() };
        let bookie = Asker::new(&rig, ledger, TcpConfig { limits, ..TcpConfig::default() });
        assert_eq!(bookie.ask(read(0, None)).await, Err(BookieError::NoSuchLedger));
        // Of a ledger that is not there it says as much as of one without entries.
        assert_eq!(bookie.ask(read_lac(None)).await, lac(None));

        for id in 0..3 {
            assert_eq!(bookie.ask(bookie.add(id, AddKind::Normal)).await, ADDED, "{protocol:?}");
        }
        let found = Ok(ResponseBody::Entry(bookie.entry(1, 10)));
        assert_eq!(bookie.ask(read(1, None)).await, found);
        assert_eq!(bookie.ask(read(50, None)).await, Err(BookieError::NoSuchEntry));
        assert_eq!(bookie.ask(read_lac(None)).await, lac(Some(1)));

        let tell = RequestBody::WriteLac { lac: EntryId(2), key: key("secret") };
        assert_eq!(bookie.ask(tell).await, Ok(ResponseBody::LacWritten));
        assert_eq!(bookie.ask(read_lac(None)).await, lac(Some(2)));

        let wait = |beyond| RequestBody::WaitLac { beyond: Some(EntryId(beyond)) };
        assert!(bookie.ask(wait(7)).await.is_ok(), "it gives up waiting and tells what it has");
        assert_eq!(bookie.ask(wait(1)).await, lac(Some(2)), "it is past already");

        let refused = Err(BookieError::Unauthorized);
        let add = RequestBody::Add {
            entry: bookie.entry(3, 10),
            key: key("wrong"),
            kind: AddKind::Normal,
        };
        assert_eq!(bookie.ask(add).await, refused);
        assert_eq!(bookie.ask(read_lac(Some(key("wrong")))).await, refused);
        assert_eq!(bookie.ask(read(1, Some(key("wrong")))).await, refused);

        // The longest entry fits into the frames of both directions.
        let longest = bookie.entry(3, ENTRY_BYTES_MAX - 36);
        let add =
            RequestBody::Add { entry: longest.clone(), key: key("secret"), kind: AddKind::Normal };
        assert_eq!(bookie.ask(add).await, ADDED, "{protocol:?}");
        assert!(bookie.ask(read(3, None)).await == Ok(ResponseBody::Entry(longest)));

        let fenced = bookie.ask(read_lac(Some(key("secret")))).await;
        assert_eq!(fenced, lac(Some(2)), "the header of the last entry tells it");
        assert_eq!(bookie.ask(bookie.add(4, AddKind::Normal)).await, Err(BookieError::Fenced));
        assert_eq!(bookie.ask(bookie.add(4, AddKind::Recovery)).await, ADDED);
        let found = Ok(ResponseBody::Entry(bookie.entry(4, 10)));
        assert_eq!(bookie.ask(read(4, Some(key("secret")))).await, found);
    }
}

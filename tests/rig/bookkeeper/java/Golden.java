import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import io.netty.buffer.UnpooledByteBufAllocator;
import java.io.DataInputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.LedgerHandleAdv;
import org.apache.bookkeeper.client.api.WriteFlag;
import org.apache.bookkeeper.client.api.WriteHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.proto.checksum.DigestManager;
import org.apache.bookkeeper.util.ByteBufList;
import org.apache.zookeeper.ZooKeeper;

/** Makes recordings of what Apache BookKeeper stores and sends. Wants a cluster with one bookie. */
final class Golden {
    private static final byte[] SECRET = "secret".getBytes(StandardCharsets.US_ASCII);

    /** A connection that sends ready frames and waits for the answers. */
    static final class Raw implements AutoCloseable {
        final Socket socket;
        final DataInputStream in;
        final OutputStream out;

        Raw(int port) throws Exception {
            socket = new Socket(InetAddress.getLoopbackAddress(), port);
            socket.setSoTimeout(5000);
            in = new DataInputStream(socket.getInputStream());
            out = socket.getOutputStream();
        }

        byte[] ask(byte[] frame) throws Exception {
            out.write(frame);
            out.flush();
            byte[] answer = new byte[in.readInt()];
            in.readFully(answer);
            return answer;
        }

        @Override public void close() throws Exception {
            socket.close();
        }
    }

    static String bookie(ZooKeeper z) throws Exception {
        for (String dir : new String[] {"/ledgers/available", "/ledgers/available/readonly"}) {
            for (String name : z.getChildren(dir, false)) {
                if (!name.equals("readonly")) {
                    return dir + "/" + name;
                }
            }
        }
        throw new IllegalStateException("no bookie");
    }

    static byte[] key(byte[] password) throws Exception {
        return DigestManager.generateMasterKey(password);
    }

    /** Entries as a real bookie stores them, and a set of edge cases from the Java digest code alone. */
    static void entries(Tool.Args args) throws Exception {
        Path out = Files.createDirectories(Paths.get(args.need("out")));
        ZooKeeper z = Cluster.connect(args);
        String bookie = bookie(z);
        int port = Integer.parseInt(bookie.substring(bookie.lastIndexOf(':') + 1));
        List<String> lines = new ArrayList<>();
        int[] sizes = {0, 1, 7, 100, 1500};
        long ledger = 7001;
        try (BookKeeper bk = new BookKeeper(Ledgers.conf(args)); Raw raw = new Raw(port)) {
            for (DigestType type : DigestType.values()) {
                for (String password : new String[] {"", "secret"}) {
                    byte[] pw = password.getBytes(StandardCharsets.US_ASCII);
                    LedgerHandleAdv w = (LedgerHandleAdv) bk.createLedgerAdv(ledger, 1, 1, 1, type, pw, new HashMap<>());
                    long length = 0;
                    for (int e = 0; e < sizes.length; e++) {
                        byte[] payload = Tool.payload(ledger, e, sizes[e]);
                        w.addEntry(e, payload);
                        length += payload.length;
                        byte[] answer = raw.ask(Frames.v2Read(ledger, e, 0, null));
                        byte[] entry = Arrays.copyOfRange(answer, 24, answer.length);
                        String file = String.format("%s-%s-%d.bin", type.name().toLowerCase(), password.isEmpty() ? "nopassword" : password, e);
                        Files.write(out.resolve(file), entry);
                        lines.add("  " + Tool.json("file", file, "origin", "stored by a bookie", "digest", type.name(), "password", password,
                            "master_key", Tool.hex(key(pw)), "ledger", ledger, "entry", (long) e, "lac", e - 1L, "length", length,
                            "payload_size", payload.length, "payload_seed", ledger, "hex", entry.length < 300 ? Tool.hex(entry) : Tool.raw("null")));
                    }
                    w.close();
                    ledger++;
                }
            }
        }
        long[][] edges = {
            {0, 0, -1, 0, 0}, {1L << 31, (1L << 31) + 5, (1L << 31) + 4, 1L << 40, 33}, {Long.MAX_VALUE, Long.MAX_VALUE, Long.MAX_VALUE - 1, Long.MAX_VALUE, 16},
            {7, 3, 9, 1000, 10}, {12, 5, -1, 500, 65536}};
        for (DigestType t : DigestType.values()) {
            for (long[] c : edges) {
                byte[] payload = Tool.payload(c[0], c[1], (int) c[4]);
                byte[] entry = pack(manager(c[0], t), c[1], c[2], c[3], payload);
                String file = String.format("edge-%s-%d.bin", t.name().toLowerCase(), lines.size());
                Files.write(out.resolve(file), entry);
                lines.add("  " + Tool.json("file", file, "origin", "packed by the Java client, not stored", "digest", t.name(), "password", "secret",
                    "master_key", Tool.hex(key(SECRET)), "ledger", c[0], "entry", c[1], "lac", c[2], "length", c[3], "payload_size", payload.length,
                    "payload_seed", c[0], "hex", entry.length < 300 ? Tool.hex(entry) : Tool.raw("null")));
            }
            byte[] body = flat(manager(42, t).computeDigestAndPackageForSendingLac(41));
            String file = "explicit-lac-" + t.name().toLowerCase() + ".bin";
            Files.write(out.resolve(file), body);
            lines.add("  " + Tool.json("file", file, "origin", "explicit LAC body packed by the Java client", "digest", t.name(), "password", "secret",
                "ledger", 42, "lac", 41, "hex", Tool.hex(body)));
        }
        Files.write(out.resolve("index.json"), ("[\n" + String.join(",\n", lines) + "\n]\n").getBytes(StandardCharsets.UTF_8));
        System.out.println(Tool.json("entries", lines.size()));
    }

    private static DigestManager manager(long ledger, DigestType type) throws Exception {
        // The type between the two calls has another name in 4.18 than before.
        return DigestManager.instantiate(ledger, SECRET, DigestType.toProtoDigestType(type), UnpooledByteBufAllocator.DEFAULT, false);
    }

    private static byte[] pack(DigestManager m, long entry, long lac, long length, byte[] payload) throws Exception {
        for (java.lang.reflect.Method f : DigestManager.class.getMethods()) {
            if (f.getName().equals("computeDigestAndPackageForSending")) {
                ByteBuf data = Unpooled.wrappedBuffer(payload);
                return flat(f.getParameterCount() == 4 ? f.invoke(m, entry, lac, length, data) : f.invoke(m, entry, lac, length, data, key(SECRET), 0));
            }
        }
        throw new IllegalStateException("no way to pack an entry");
    }

    private static byte[] flat(Object packed) {
        ByteBuf b;
        if (packed instanceof ByteBufList) {
            ByteBufList l = (ByteBufList) packed;
            b = Unpooled.buffer(l.readableBytes());
            for (int i = 0; i < l.size(); i++) {
                b.writeBytes(l.getBuffer(i));
            }
        } else {
            b = (ByteBuf) packed;
        }
        byte[] out = new byte[b.readableBytes()];
        b.readBytes(out);
        return out;
    }

    interface Scenario {
        void run(ClientConfiguration conf, Proxy proxy) throws Exception;
    }

    private static Map<String, Object[]> all() {
        Map<String, Object[]> s = new java.util.LinkedHashMap<>();
        s.put("v3/add", scenario("three adds; ledger password secret, digest CRC32C, E1 WQ1 AQ1; entries of 16 bytes, seed 0", Golden::add));
        s.put("v2/add", s.get("v3/add"));
        s.put("v3/add-digests", scenario("one add of 16 bytes (seed 0) for each digest type in the order CRC32 MAC CRC32C DUMMY; password secret", Golden::addDigests));
        s.put("v2/add-digests", s.get("v3/add-digests"));
        s.put("v3/add-large", scenario("one add of 200000 bytes, seed 0; password secret, CRC32C", Golden::addLarge));
        s.put("v2/add-large", s.get("v3/add-large"));
        s.put("v3/read", scenario("writes three entries, a second client opens the closed ledger and reads them", Golden::read));
        s.put("v2/read", s.get("v3/read"));
        s.put("v3/read-lac", scenario("writes three entries and leaves the ledger open; a second client opens without recovery and reads the LAC, "
            + "then entries 0 and 1 (answers carry maxLAC)", Golden::readLac));
        s.put("v2/read-lac", s.get("v3/read-lac"));
        s.put("v3/recovery", scenario("three entries whose acks are held back, so that every header says LAC -1; a second client opens with recovery: fencing read of -1, "
            + "fencing reads, write-back with RECOVERY_ADD; then the first writer adds entry 3 and is told that it is fenced", Golden::recovery));
        s.put("v2/recovery", s.get("v3/recovery"));
        s.put("v3/no-such-entry", scenario("unconfirmed read of entry 9 of a ledger with one entry", Golden::noEntry));
        s.put("v2/no-such-entry", s.get("v3/no-such-entry"));
        s.put("v3/write-lac", scenario("explicit LAC every 100 ms; one add; a reader then asks for the LAC", Golden::writeLac));
        s.put("v3/long-poll", scenario("two entries; long poll for a LAC above 5 runs into its 300 ms; long poll above 0 is answered by the third add", Golden::longPoll));
        s.put("v3/force", scenario("two adds with DEFERRED_SYNC, then force", Golden::force));
        s.put("v3/bookie-info", scenario("total and free space (the numbers are those of the machine of the recording)", Golden::info));
        s.put("v3/list-entries", scenario("list of entries of a ledger with entries 0 to 4, then of a ledger that does not exist", Golden::list));
        s.put("v2/batch-read", scenario("five entries of 100 bytes (seed 0); batch reads of 3 from 0 and 10 from 2 by the Java client", Golden::batch));
        s.put("v2/errors", scenario("requests made by hand, answers by the bookie: read of ledger 990001 that does not exist; read of entry 50 of an existing ledger; "
            + "fencing read with a wrong key; add with a wrong key; batch read of a missing ledger; batch read beyond the end; batch read with fencing; "
            + "normal add after the fence; recovery add after the fence; unknown version 1", Golden::errorsV2));
        s.put("v3/errors", scenario("the same in v3, made by hand: missing ledger; missing entry; fencing read with a wrong key; add with a wrong key; fencing read; "
            + "normal add after the fence; recovery add after the fence; READ_LAC of a missing ledger; WRITE_LAC with a wrong key; FORCE of a missing ledger; "
            + "reserved operation BATCH_READ (12)", Golden::errorsV3));
        s.put("v2/read-only", scenario("on a read-only bookie, by hand: normal add, high-priority add, read", Golden::readOnlyV2));
        s.put("v3/read-only", scenario("on a read-only bookie, by hand: normal add, high-priority add", Golden::readOnlyV3));
        s.put("v3/unauthenticated", scenario("on a bookie that wants SASL, by hand, no AUTH before: add, read", Golden::unauthV3));
        s.put("v2/unauthenticated", scenario("on a bookie that wants SASL, by hand, no AUTH before: add, read", Golden::unauthV2));
        s.put("v3/sasl", scenario("SASL DIGEST-MD5 handshake (user hd, password testpwd), then one add", Golden::addOne));
        s.put("v2/sasl", s.get("v3/sasl"));
        s.put("v3/tls", scenario("START_TLS, then TLS records, in chunks as they came; one add inside", Golden::addOne));
        s.put("v2/tls", s.get("v3/tls"));
        return s;
    }

    private static Object[] scenario(String about, Scenario s) {
        return new Object[] {about, s};
    }

    /** Runs scenarios through a proxy that the bookie's registration is pointed at. */
    static void frames(Tool.Args args) throws Exception {
        Path out = Paths.get(args.need("out"));
        ZooKeeper z = Cluster.connect(args);
        String node = bookie(z);
        byte[] before = z.getData(node, false, null);
        int port = args.has("bookie-port") ? args.integer("bookie-port", 0) : Integer.parseInt(node.substring(node.lastIndexOf(':') + 1));
        Proxy proxy = new Proxy(0, port);
        byte[] endpoint = new Frames.Proto().message(6, new Frames.Proto().bytes(1, "bookie".getBytes()).number(2, proxy.port()).bytes(3, "127.0.0.1".getBytes())
            .bytes(4, "bookie-rpc".getBytes())).out.toByteArray();
        z.setData(node, endpoint, -1);
        Map<String, Object[]> all = all();
        List<String> wanted = args.all("scenario").isEmpty() ? new ArrayList<>() : Arrays.asList(args.need("scenario").split(","));
        for (Map.Entry<String, Object[]> e : all.entrySet()) {
            String name = e.getKey();
            boolean special = name.endsWith("read-only") || name.endsWith("sasl") || name.endsWith("tls") || name.endsWith("unauthenticated");
            if (wanted.isEmpty() ? special : !wanted.contains(name)) {
                continue;
            }
            ClientConfiguration conf = Ledgers.conf(args);
            conf.setUseV2WireProtocol(name.startsWith("v2"));
            proxy.reset();
            String trouble = null;
            try {
                ((Scenario) e.getValue()[1]).run(conf, proxy);
            } catch (Exception x) {
                trouble = x.toString();
            }
            Thread.sleep(100);
            List<Proxy.Frame> got = proxy.take();
            Proxy.save(got, out.resolve(name), (String) e.getValue()[0]);
            System.out.println(Tool.json("scenario", name, "frames", got.size(), "trouble", trouble == null ? Tool.raw("null") : trouble));
        }
        z.setData(node, before, -1);
    }

    private static LedgerHandle ledger(BookKeeper bk) throws Exception {
        return bk.createLedger(1, 1, 1, DigestType.CRC32C, SECRET);
    }

    private static LedgerHandle filled(BookKeeper bk, int n, int size) throws Exception {
        LedgerHandle w = ledger(bk);
        for (int i = 0; i < n; i++) {
            w.addEntry(Tool.payload(0, i, size));
        }
        return w;
    }

    private static void add(ClientConfiguration c, Proxy proxy) throws Exception {
        try (BookKeeper bk = new BookKeeper(c)) {
            filled(bk, 3, 16).close();
        }
    }

    private static void addOne(ClientConfiguration c, Proxy proxy) throws Exception {
        try (BookKeeper bk = new BookKeeper(c)) {
            filled(bk, 1, 16).close();
        }
    }

    private static void addLarge(ClientConfiguration c, Proxy proxy) throws Exception {
        try (BookKeeper bk = new BookKeeper(c)) {
            filled(bk, 1, 200_000).close();
        }
    }

    private static void addDigests(ClientConfiguration c, Proxy proxy) throws Exception {
        try (BookKeeper bk = new BookKeeper(c)) {
            for (DigestType t : new DigestType[] {DigestType.CRC32, DigestType.MAC, DigestType.CRC32C, DigestType.DUMMY}) {
                LedgerHandle w = bk.createLedger(1, 1, 1, t, SECRET);
                w.addEntry(Tool.payload(0, 0, 16));
                w.close();
            }
        }
    }

    private static void read(ClientConfiguration c, Proxy proxy) throws Exception {
        try (BookKeeper bk = new BookKeeper(c); BookKeeper rd = new BookKeeper(c)) {
            LedgerHandle w = filled(bk, 3, 16);
            w.close();
            rd.openLedger(w.getId(), DigestType.CRC32C, SECRET).readEntries(0, 2);
        }
    }

    private static void readLac(ClientConfiguration c, Proxy proxy) throws Exception {
        try (BookKeeper bk = new BookKeeper(c); BookKeeper rd = new BookKeeper(c)) {
            LedgerHandle w = filled(bk, 3, 16);
            rd.openLedgerNoRecovery(w.getId(), DigestType.CRC32C, SECRET).readEntries(0, 1);
        }
    }

    private static void recovery(ClientConfiguration c, Proxy proxy) throws Exception {
        try (BookKeeper bk = new BookKeeper(c); BookKeeper rd = new BookKeeper(c)) {
            LedgerHandle w = ledger(bk);
            CountDownLatch done = new CountDownLatch(3);
            // No ack reaches the writer before all three are sent, so every header says LAC -1.
            proxy.hold(0, true);
            for (int i = 0; i < 3; i++) {
                w.asyncAddEntry(Tool.payload(0, i, 16), (rc, h, e, x) -> done.countDown(), null);
            }
            Thread.sleep(300);
            rd.openLedger(w.getId(), DigestType.CRC32C, SECRET);
            proxy.hold(0, false);
            done.await(5, TimeUnit.SECONDS);
            try {
                w.addEntry(Tool.payload(0, 3, 16));
                throw new IllegalStateException("not fenced");
            } catch (BKException.BKLedgerFencedException e) {
                // Wanted.
            }
        }
    }

    private static void noEntry(ClientConfiguration c, Proxy proxy) throws Exception {
        try (BookKeeper bk = new BookKeeper(c)) {
            LedgerHandle w = filled(bk, 1, 16);
            try {
                w.readUnconfirmedEntries(9, 9);
            } catch (BKException.BKNoSuchEntryException e) {
                // Wanted.
            }
        }
    }

    private static void writeLac(ClientConfiguration c, Proxy proxy) throws Exception {
        c.setExplictLacInterval(100);
        try (BookKeeper bk = new BookKeeper(c)) {
            LedgerHandle w = filled(bk, 1, 16);
            Thread.sleep(400);
            bk.openLedgerNoRecovery(w.getId(), DigestType.CRC32C, SECRET).readExplicitLastConfirmed();
        }
    }

    private static void longPoll(ClientConfiguration c, Proxy proxy) throws Exception {
        try (BookKeeper bk = new BookKeeper(c); BookKeeper rd = new BookKeeper(c)) {
            LedgerHandle w = filled(bk, 2, 16);
            LedgerHandle r = rd.openLedgerNoRecovery(w.getId(), DigestType.CRC32C, SECRET);
            try {
                r.readLastAddConfirmedAndEntryAsync(6, 300, false).get(2, TimeUnit.SECONDS);
            } catch (TimeoutException e) {
                // The frames are what counts.
            }
            CompletableFuture<?> f = r.readLastAddConfirmedAndEntryAsync(1, 3000, false);
            Thread.sleep(200);
            w.addEntry(Tool.payload(0, 2, 16));
            f.get(5, TimeUnit.SECONDS);
        }
    }

    private static void force(ClientConfiguration c, Proxy proxy) throws Exception {
        try (BookKeeper bk = new BookKeeper(c)) {
            WriteHandle w = bk.newCreateLedgerOp().withEnsembleSize(1).withWriteQuorumSize(1).withAckQuorumSize(1)
                .withDigestType(org.apache.bookkeeper.client.api.DigestType.CRC32C).withPassword(SECRET).withWriteFlags(WriteFlag.DEFERRED_SYNC).execute().get();
            w.append(Tool.payload(0, 0, 16));
            w.append(Tool.payload(0, 1, 16));
            w.force().get();
            w.close();
        }
    }

    private static void info(ClientConfiguration c, Proxy proxy) throws Exception {
        try (BookKeeper bk = new BookKeeper(c)) {
            bk.getBookieInfo();
        }
    }

    private static void list(ClientConfiguration c, Proxy proxy) throws Exception {
        try (BookKeeper bk = new BookKeeper(c); BookKeeperAdmin admin = new BookKeeperAdmin(bk, c)) {
            LedgerHandle w = filled(bk, 5, 16);
            BookieId b = w.getLedgerMetadata().getAllEnsembles().get(0L).get(0);
            admin.asyncGetListOfEntriesOfLedger(b, w.getId()).get();
            try {
                admin.asyncGetListOfEntriesOfLedger(b, 990001).get();
            } catch (java.util.concurrent.ExecutionException e) {
                // Wanted: no such ledger.
            }
        }
    }

    private static void batch(ClientConfiguration c, Proxy proxy) throws Exception {
        try (BookKeeper bk = new BookKeeper(c)) {
            LedgerHandle w = filled(bk, 5, 100);
            w.close();
            LedgerHandle r = bk.openLedger(w.getId(), DigestType.CRC32C, SECRET);
            Ledgers.batchRead(r, 0, 3, 0);
            Ledgers.batchRead(r, 2, 10, 1 << 20);
        }
    }

    private static byte[] entry(long ledger, long id, byte[] payload) throws Exception {
        return pack(manager(ledger, DigestType.CRC32C), id, id - 1, payload.length * (id + 1), payload);
    }

    private static void errorsV2(ClientConfiguration c, Proxy proxy) throws Exception {
        long l = 880002;
        byte[] good = key(SECRET);
        byte[] bad = key("other".getBytes());
        try (Raw r = new Raw(proxy.port())) {
            r.ask(Frames.v2Add(good, entry(l, 0, Tool.payload(0, 0, 16)), 0));
            r.ask(Frames.v2Read(990001, 0, 0, null));
            r.ask(Frames.v2Read(l, 50, 0, null));
            r.ask(Frames.v2Read(l, -1, 1, bad));
            r.ask(Frames.v2Add(bad, entry(l, 1, Tool.payload(0, 1, 16)), 0));
            r.ask(Frames.v2Batch(990001, 0, 77, 5, 100_000, 0, null));
            r.ask(Frames.v2Batch(l, 50, 78, 5, 100_000, 0, null));
            r.ask(Frames.v2Batch(l, 0, 79, 5, 100_000, 1, good));
            r.ask(Frames.v2Add(good, entry(l, 1, Tool.payload(0, 1, 16)), 0));
            r.ask(Frames.v2Add(good, entry(l, 1, Tool.payload(0, 1, 16)), 2));
            byte[] old = Frames.v2Read(l, 0, 0, null);
            old[4] = 1;
            r.ask(old);
        }
    }

    private static void errorsV3(ClientConfiguration c, Proxy proxy) throws Exception {
        long l = 880003;
        byte[] good = key(SECRET);
        byte[] bad = key("other".getBytes());
        try (Raw r = new Raw(proxy.port())) {
            r.ask(v3Add(1, l, 0, good, 0));
            r.ask(v3Read(2, 990001, 0, null));
            r.ask(v3Read(3, l, 50, null));
            r.ask(v3Read(4, l, -1, bad));
            r.ask(v3Add(5, l, 1, bad, 0));
            r.ask(v3Read(6, l, -1, good));
            r.ask(v3Add(7, l, 1, good, 0));
            r.ask(v3Add(8, l, 1, good, 1));
            r.ask(Frames.request(7, 9).message(104, new Frames.Proto().number(1, 990001)).frame());
            r.ask(Frames.request(6, 10).message(103, new Frames.Proto().number(1, l).number(2, 0).bytes(3, bad).bytes(4, new byte[20])).frame());
            r.ask(Frames.request(10, 11).message(107, new Frames.Proto().number(1, 990001)).frame());
            r.ask(Frames.request(12, 12).frame());
        }
    }

    private static byte[] v3Read(long txn, long ledger, long entry, byte[] key) {
        Frames.Proto p = new Frames.Proto();
        if (key != null) {
            p.number(100, 1);
        }
        p.number(1, ledger).number(2, entry);
        if (key != null) {
            p.bytes(3, key);
        }
        return Frames.request(1, txn).message(100, p).frame();
    }

    private static byte[] v3Add(long txn, long ledger, long id, byte[] key, int flag) throws Exception {
        return v3Add(txn, ledger, id, key, flag, 0);
    }

    private static byte[] v3Add(long txn, long ledger, long id, byte[] key, int flag, int priority) throws Exception {
        Frames.Proto p = new Frames.Proto();
        if (flag != 0) {
            p.number(100, flag);
        }
        p.number(1, ledger).number(2, id).bytes(3, key).bytes(4, entry(ledger, id, Tool.payload(0, id, 16)));
        Frames.Proto header = new Frames.Proto().number(1, 3).number(2, 2).number(3, txn);
        if (priority != 0) {
            header.number(4, priority);
        }
        return new Frames.Proto().message(1, header).message(101, p).frame();
    }

    private static void readOnlyV2(ClientConfiguration c, Proxy proxy) throws Exception {
        try (Raw r = new Raw(proxy.port())) {
            r.ask(Frames.v2Add(key(SECRET), entry(880004, 0, Tool.payload(0, 0, 16)), 0));
            r.ask(Frames.v2Add(key(SECRET), entry(880004, 0, Tool.payload(0, 0, 16)), 4 | 2));
            r.ask(Frames.v2Read(880004, 0, 0, null));
        }
    }

    private static void readOnlyV3(ClientConfiguration c, Proxy proxy) throws Exception {
        try (Raw r = new Raw(proxy.port())) {
            r.ask(v3Add(1, 880005, 0, key(SECRET), 0));
            r.ask(v3Add(2, 880005, 0, key(SECRET), 1, 100));
        }
    }

    private static void unauthV2(ClientConfiguration c, Proxy proxy) throws Exception {
        try (Raw r = new Raw(proxy.port())) {
            r.ask(Frames.v2Add(key(SECRET), entry(880006, 0, Tool.payload(0, 0, 16)), 0));
            r.ask(Frames.v2Read(880006, 0, 0, null));
        }
    }

    private static void unauthV3(ClientConfiguration c, Proxy proxy) throws Exception {
        try (Raw r = new Raw(proxy.port())) {
            r.ask(v3Add(1, 880007, 0, key(SECRET), 0));
            r.ask(v3Read(2, 880007, 0, null));
        }
    }
}

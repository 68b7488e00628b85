//! Metadata stores in memory and on disk.

mod memory {
    use georepl_storage::MemoryMetadataStore;
    use georepl_tests::conformance::metadata::Kind;

    georepl_tests::metadata_conformance!(Memory(MemoryMetadataStore::new()));

    struct Memory(MemoryMetadataStore);

    impl Kind for Memory {
        type Store = MemoryMetadataStore;

        async fn session(&self) -> MemoryMetadataStore {
            self.0.session()
        }

        async fn end(&self, session: MemoryMetadataStore) {
            drop(session);
        }
    }
}

mod on_disk {
    use std::sync::Arc;

    use georepl_storage::LocalMetadataStore;
    use georepl_storage::fault::CrashDisk;
    use georepl_tests::conformance::metadata::Kind;

    georepl_tests::metadata_conformance!(OnDisk(CrashDisk::new()));

    struct OnDisk(CrashDisk);

    impl Kind for OnDisk {
        type Store = LocalMetadataStore;

        async fn session(&self) -> LocalMetadataStore {
            let opened = LocalMetadataStore::open(Arc::new(self.0.clone())).await;
            opened.expect("the file is usable")
        }

        async fn end(&self, session: LocalMetadataStore) {
            drop(session);
        }
    }
}

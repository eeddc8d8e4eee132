//! Files: episodes as they are found on disk, and writing that survives a crash.

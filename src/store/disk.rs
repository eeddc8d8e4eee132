//! The ledger's file: SQLite, written by one thread and read by another.
//!
//! Owns the schema, the recognition of files that are not ours, durability and group commit: what
//! waits while a transaction is being written to the disk goes into the next one together, and nobody
//! is told "stored" before the disk has confirmed it. What is stored is `ledger`'s business.

use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, Params, TransactionBehavior};
use tokio::sync::oneshot;

use crate::model::Error;

/// Marks the file as a ledger of ours: `BSLG`.
const APPLICATION_ID: i32 = 0x4253_4c47;
/// The version of [`SCHEMA`].
const SCHEMA_VERSION: i32 = 5;
/// `scores` holds what was found at the positions of a block, under the key of what stands before it; it goes with the
/// answer it came with. An answer waits for a measurement while it says `after` how many it came, and a draw with an `until`
/// lies between two versions. `spent` holds what answers cost that were paid and not kept.
const SCHEMA: &str = "
    CREATE TABLE models (
        id INTEGER PRIMARY KEY,
        known TEXT,
        checksum BLOB NOT NULL
    );
    CREATE TABLE answers (
        key BLOB PRIMARY KEY,
        kind TEXT NOT NULL,
        model INTEGER NOT NULL REFERENCES models (id),
        role TEXT NOT NULL,
        prompt_tokens INTEGER NOT NULL,
        cached_tokens INTEGER,
        completion_tokens INTEGER NOT NULL,
        after INTEGER,
        endpoints INTEGER NOT NULL,
        until INTEGER REFERENCES models (id),
        checksum BLOB NOT NULL,
        answer BLOB NOT NULL
    );
    CREATE INDEX provisional ON answers (role, after) WHERE after IS NOT NULL;
    CREATE TABLE scores (
        block BLOB NOT NULL,
        answer BLOB NOT NULL REFERENCES answers (key) ON DELETE CASCADE,
        checksum BLOB NOT NULL,
        found BLOB NOT NULL
    );
    CREATE INDEX scores_by_block ON scores (block);
    CREATE INDEX scores_by_answer ON scores (answer);
    CREATE TABLE spent (
        role TEXT NOT NULL,
        prompt_tokens INTEGER NOT NULL,
        cached_tokens INTEGER,
        completion_tokens INTEGER NOT NULL
    );
";
/// Answers in one transaction at most.
const LARGEST_BATCH: usize = 512;
/// How long to wait for somebody who looks at the file with another program.
const BUSY: Duration = Duration::from_secs(30);

/// Something to write. Its number is handed on once it is durable.
type Write = Box<dyn FnOnce(&Connection) -> rusqlite::Result<i64> + Send>;
/// Something to read; it hands its result on itself.
type Read = Box<dyn FnOnce(&Connection) + Send>;

/// A write, and who waits for it to be durable.
type QueuedWrite = (Write, oneshot::Sender<Result<i64, Error>>);

/// An open ledger file.
pub struct Disk {
    path: Arc<Path>,
    writer: Worker<QueuedWrite>,
    reader: Worker<Read>,
}

impl Disk {
    /// Opens the file at `path`, or makes it.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let path: Arc<Path> = path.into();
        let writing = connect(&path)?;
        prepare(&writing, &path)?;
        let reading = connect(&path)?;
        let shown = Arc::clone(&path);
        Ok(Self {
            writer: Worker::start("ledger-write", &path, move |jobs| write_loop(writing, &shown, &jobs))?,
            reader: Worker::start("ledger-read", &path, move |jobs| {
                jobs.iter().for_each(|job: Read| job(&reading))
            })?,
            path,
        })
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs `write` in a transaction; returns once that is on the disk for good.
    pub async fn write(
        &self,
        write: impl FnOnce(&Connection) -> rusqlite::Result<i64> + Send + 'static,
    ) -> Result<i64, Error> {
        let (stored, answer) = oneshot::channel();
        self.writer.send((Box::new(write), stored));
        answer.await.unwrap_or_else(|_| Err(self.ended()))
    }

    /// Runs a statement in a transaction; returns how many rows it changed once that is on the disk for good.
    pub async fn execute(
        &self,
        sql: &'static str,
        params: impl Params + Send + 'static,
    ) -> Result<i64, Error> {
        self.write(move |connection| connection.prepare_cached(sql)?.execute(params).map(|n| n as i64)).await
    }

    /// Runs `read`; it sees everything that was stored before.
    pub async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Error> {
        let (found, answer) = oneshot::channel();
        self.reader.send(Box::new(move |connection| {
            // Nobody listens when the caller was cancelled.
            let _ = found.send(read(connection));
        }));
        let result = answer.await.map_err(|_| self.ended())?;
        result.map_err(|why| ledger_error(&self.path, &why))
    }

    fn ended(&self) -> Error {
        failed(&self.path, "its thread has ended", HELP_AGAIN)
    }
}

/// A thread that works through a queue and ends with it.
struct Worker<J> {
    jobs: Option<mpsc::Sender<J>>,
    thread: Option<JoinHandle<()>>,
}

impl<J: Send + 'static> Worker<J> {
    fn start(
        name: &str,
        path: &Path,
        work: impl FnOnce(mpsc::Receiver<J>) + Send + 'static,
    ) -> Result<Self, Error> {
        let (jobs, queue) = mpsc::channel();
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || work(queue));
        let thread = thread.map_err(|why| failed(path, &why.to_string(), HELP_AGAIN))?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread) })
    }

    /// Queues `job`. If the thread has died the job is dropped, which its caller notices.
    fn send(&self, job: J) {
        if let Some(jobs) = &self.jobs {
            let _ = jobs.send(job);
        }
    }
}

impl<J> Drop for Worker<J> {
    /// Lets the thread finish what is queued, so that the file is closed in order.
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn write_loop(mut connection: Connection, path: &Path, jobs: &mpsc::Receiver<QueuedWrite>) {
    while let Ok(first) = jobs.recv() {
        let batch = std::iter::once(first).chain(jobs.try_iter().take(LARGEST_BATCH - 1));
        let (writes, waiting): (Vec<Write>, Vec<_>) = batch.unzip();
        let committed = commit(&mut connection, writes).map_err(|why| ledger_error(path, &why));
        for (idx, stored) in waiting.into_iter().enumerate() {
            let _ = stored.send(committed.as_ref().map(|numbers| numbers[idx]).map_err(Error::clone));
        }
    }
}

/// All or nothing: a transaction that fails leaves no trace and fails for everyone in it.
fn commit(connection: &mut Connection, writes: Vec<Write>) -> rusqlite::Result<Vec<i64>> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let numbers = writes.into_iter().map(|write| write(&transaction)).collect::<Result<_, _>>()?;
    transaction.commit()?;
    Ok(numbers)
}

fn connect(path: &Path) -> Result<Connection, Error> {
    let connection = Connection::open(path).map_err(|why| ledger_error(path, &why))?;
    connection.busy_timeout(BUSY).map_err(|why| ledger_error(path, &why))?;
    Ok(connection)
}

/// Sees that the file is a ledger of this version, or makes an empty one into such.
fn prepare(connection: &Connection, path: &Path) -> Result<(), Error> {
    let sql = |why: rusqlite::Error| ledger_error(path, &why);
    let number =
        |name: &str| connection.pragma_query_value(None, name, |row| row.get::<_, i32>(0)).map_err(sql);
    let n_objects: i64 =
        connection.query_row("SELECT COUNT(*) FROM sqlite_schema", [], |row| row.get(0)).map_err(sql)?;
    match (number("application_id")?, number("user_version")?, n_objects) {
        (APPLICATION_ID, SCHEMA_VERSION, 1..) => make_durable(connection).map_err(sql),
        (APPLICATION_ID, version, _) => {
            let why = format!("it has version {version} and this program writes version {SCHEMA_VERSION}");
            Err(failed(path, &why, HELP_MOVE))
        }
        (0, 0, 0) => make_durable(connection).and_then(|()| create(connection)).map_err(sql),
        _ => Err(failed(path, "it is a database of another program", HELP_MOVE)),
    }
}

/// With a write-ahead log and full synchronisation, a commit survives `kill -9` and a loss of power.
fn make_durable(connection: &Connection) -> rusqlite::Result<()> {
    connection.pragma_update(None, "foreign_keys", true)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")
}

fn create(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(&format!(
        "BEGIN IMMEDIATE;
         PRAGMA application_id = {APPLICATION_ID};
         PRAGMA user_version = {SCHEMA_VERSION};
         {SCHEMA}
         COMMIT;"
    ))
}

const HELP_MOVE: &str = "move it away to begin with an empty ledger; what it held would be paid again";
const HELP_AGAIN: &str = "the same command continues where this one stopped";

fn failed(path: &Path, why: &str, help: &str) -> Error {
    Error::Ledger { why: format!("{}: {why}", path.display()), help: help.to_owned() }
}

fn ledger_error(path: &Path, why: &rusqlite::Error) -> Error {
    let help = match why.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => {
            "make room on the disk; the same command continues where this one stopped"
        }
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => HELP_MOVE,
        Some(ErrorCode::CannotOpen | ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => {
            "see that the file and its directory can be written to"
        }
        _ => HELP_AGAIN,
    };
    failed(path, &why.to_string(), help)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    fn add(bytes: usize) -> impl FnOnce(&Connection) -> rusqlite::Result<i64> + Send + 'static {
        move |connection| {
            connection
                .execute("INSERT INTO models (known, checksum) VALUES (?1, '')", ["x".repeat(bytes)])?;
            Ok(connection.last_insert_rowid())
        }
    }

    fn count(path: &Path) -> i64 {
        let connection = Connection::open(path).unwrap();
        connection.query_row("SELECT COUNT(*) FROM models", [], |row| row.get(0)).unwrap()
    }

    #[tokio::test]
    async fn what_is_stored_is_there_for_others_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ledger.sqlite");
        let disk = Disk::open(&path).unwrap();
        assert_eq!(disk.write(add(1)).await.unwrap(), 1);
        assert_eq!(count(&path), 1);
        drop(disk);
        let disk = Disk::open(&path).unwrap();
        assert_eq!(disk.write(add(1)).await.unwrap(), 2);
    }

    #[tokio::test]
    async fn writes_that_wait_share_a_transaction() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ledger.sqlite");
        let disk = Arc::new(Disk::open(&path).unwrap());
        let (go, wait) = mpsc::channel::<()>();
        let (begins, begun) = oneshot::channel();
        let slow = Arc::clone(&disk);
        let slow = tokio::spawn(async move {
            let wait_inside = move |_: &Connection| {
                let _ = begins.send(());
                Ok(wait.recv().map_or(0, |()| 1))
            };
            slow.write(wait_inside).await
        });
        // The slow write is alone in its transaction once it runs; the others queue behind it.
        begun.await.unwrap();
        // Each write says how many rows are committed while it runs: none by its own transaction.
        let writes = (0..100).map(|_| {
            let (disk, path) = (Arc::clone(&disk), path.clone());
            async move { disk.write(move |connection| add(1)(connection).map(|_| count(&path))).await }
        });
        let writes: Vec<_> = writes.map(tokio::spawn).collect();
        // Everything runs on one thread: each time this task steps back, others hand their writes over.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        go.send(()).unwrap();
        assert_eq!(slow.await.unwrap().unwrap(), 1);
        for write in writes {
            assert_eq!(write.await.unwrap().unwrap(), 0);
        }
        assert_eq!(count(&path), 100);
    }

    #[tokio::test]
    async fn a_full_disk_is_said_and_nothing_is_claimed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ledger.sqlite");
        let disk = Disk::open(&path).unwrap();
        let small = |connection: &Connection| connection.pragma_update(None, "max_page_count", 40);
        disk.write(move |connection| small(connection).map(|()| 0)).await.unwrap();
        disk.write(add(1000)).await.unwrap();
        let error = disk.write(add(1_000_000)).await.unwrap_err();
        assert!(error.to_string().contains("database or disk is full"), "{error}");
        assert!(error.help().unwrap().starts_with("make room"));
        assert_eq!(count(&path), 1);
        disk.write(add(1000)).await.unwrap();
        assert_eq!(count(&path), 2);
    }

    #[test]
    fn files_that_are_no_ledger_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ledger.sqlite");
        let refused = |why: &str| {
            let before = std::fs::read(&path).unwrap();
            let error = Disk::open(&path).err().unwrap();
            assert!(error.to_string().contains(why), "{error}");
            assert!(error.help().unwrap().contains("move it away"), "{error}");
            assert_eq!(std::fs::read(&path).unwrap(), before);
        };
        std::fs::write(&path, "this is a text file, not a database, and long enough to be looked at")
            .unwrap();
        refused("file is not a database");
        std::fs::remove_file(&path).unwrap();
        Connection::open(&path).unwrap().execute_batch("CREATE TABLE theirs (x)").unwrap();
        refused("a database of another program");
        std::fs::remove_file(&path).unwrap();
        drop(Disk::open(&path).unwrap());
        Connection::open(&path).unwrap().pragma_update(None, "user_version", 99).unwrap();
        refused("it has version 99 and this program writes version 5");
    }

    #[test]
    fn a_damaged_ledger_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ledger.sqlite");
        drop(Disk::open(&path).unwrap());
        let mut bytes = std::fs::read(&path).unwrap();
        let end = bytes.len();
        bytes[100..end].fill(0xab);
        std::fs::write(&path, bytes).unwrap();
        let error = Disk::open(&path).err().unwrap();
        assert!(error.to_string().contains("malformed"), "{error}");
    }
}

//! Every paid call is stored before its result is used, and never paid twice.
//!
//! Owns [`Ledger`], the durable record of one run directory: answers, the models that gave them, and which answers
//! still wait for the measurement that settles whose they are. What is guaranteed: once an answer has been handed to a
//! caller it is on the disk, and the same call is answered from there ever after, unless the weights turn out to have
//! changed around it; a score is found by its model, its tokens and its position, so also by a call that asks for less. A record that cannot be read is dropped and asked for again. What cannot be guaranteed: a call
//! that the server had answered when the process was killed, but whose answer was not yet committed, is asked again;
//! the window is one commit long. The model that looks here first is `ledgered`.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rusqlite::{Connection, OptionalExtension, Row, params};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::sync::Notify;

use super::blocks;
use super::disk::Disk;
use super::fingerprint::{Fingerprint, Identity};
use super::lock::RunLock;
use super::record::{Block, Record};
use super::stamp::{Origin, Stamp, Whose};
use crate::model::budget::{ModelRole, Spent};
use crate::model::key::{Key, ModelId};
use crate::model::noise::tolerance;
use crate::model::route::Endpoints;
use crate::model::{Error, Scored, Usage};
use backsight_core::score::ScoreJob;
use backsight_core::tokens::{Logprob, TokenId};

/// The ledger's file in a run directory.
pub const LEDGER_FILE: &str = "ledger.sqlite";

/// The record of every paid call of one run directory.
pub struct Ledger {
    disk: Disk,
    pub(super) flights: Flights,
    n_damaged: AtomicU64,
    // The directory stays ours for as long as its ledger is open.
    _lock: Arc<RunLock>,
}

/// What a ledger knew of a model it was shown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Recognition {
    /// It has no answers of any model that says so of itself.
    New,
    /// It has answers of this model.
    Known,
    /// It has answers of a model with the same name, which was another one: the probe's logprobs
    /// differ by this much on average, where they can be compared. None of them will be used.
    Changed(Option<f64>),
}

impl Ledger {
    /// Opens the ledger of a locked run directory.
    pub fn open(lock: Arc<RunLock>) -> Result<Arc<Self>, Error> {
        let disk = Disk::open(&lock.dir().join(LEDGER_FILE))?;
        Ok(Arc::new(Self { disk, flights: Flights::default(), n_damaged: AtomicU64::new(0), _lock: lock }))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.disk.path()
    }

    /// Whether nothing was ever paid, as far as it knows.
    pub async fn is_empty(&self) -> Result<bool, Error> {
        let any = "SELECT EXISTS (SELECT 1 FROM answers) OR EXISTS (SELECT 1 FROM spent)";
        self.disk
            .read(move |connection| connection.query_row(any, [], |row| row.get(0)))
            .await
            .map(|it: bool| !it)
    }

    /// The id of the model with this fingerprint, measured on a server with so much noise: the one it has, or a new one.
    pub async fn identify(
        &self,
        fingerprint: &Fingerprint,
        noise: f64,
    ) -> Result<(ModelId, Recognition), Error> {
        let known = self.models().await?;
        let distances =
            known.iter().filter_map(|it| Some((it, it.fingerprint.mean_difference(fingerprint)?)));
        let nearest = distances.min_by(|a, b| a.1.total_cmp(&b.1));
        if let Some((it, _)) = nearest.filter(|(it, by)| *by <= tolerance(noise.max(it.noise))) {
            return Ok((it.id, Recognition::Known));
        }
        let named_so = known.iter().any(|it| it.fingerprint.identity.model == fingerprint.identity.model);
        let recognition =
            if named_so { Recognition::Changed(nearest.map(|it| it.1)) } else { Recognition::New };
        let Fingerprint { identity, probe, logprobs } = fingerprint.clone();
        let logprobs = logprobs.into_iter().map(|it| it.map(Logprob::get)).collect();
        // Strings and finite numbers always serialise.
        let known =
            serde_json::to_string(&StoredModel { identity, probe, logprobs, noise }).unwrap_or_default();
        let insert = "INSERT INTO models (known, checksum) VALUES (?1, ?2) RETURNING id";
        let sum = checksum(&[known.as_bytes()]);
        let id =
            self.disk.write(move |connection| connection.query_row(insert, (known, sum), |row| row.get(0)));
        Ok((ModelId(id.await?), recognition))
    }

    /// What the versions are called that it knows.
    pub async fn names(&self) -> Result<HashMap<ModelId, String>, Error> {
        let named = |it: Known| Some((it.id, it.fingerprint.version()?));
        Ok(self.models().await?.into_iter().filter_map(named).collect())
    }

    /// The models it knows. One whose row cannot be read is forgotten, with its answers.
    async fn models(&self) -> Result<Vec<Known>, Error> {
        let mut known = Vec::new();
        for (id, model) in self.disk.read(stored_models).await? {
            match model {
                Some(model) => known.push(model),
                None => self.drop_damaged(FORGET_MODEL, id).await?,
            }
        }
        Ok(known)
    }

    /// What each role has paid in this run directory, however many processes it took.
    pub async fn paid(&self) -> Result<Vec<(ModelRole, Spent)>, Error> {
        let paid = self.disk.read(stored_totals).await?;
        let of = |role: ModelRole| {
            let found = paid.iter().find(|(name, _)| name == role.name().as_bytes());
            found.map(|(_, spent)| (role, *spent))
        };
        Ok(ModelRole::ALL.iter().copied().filter_map(of).collect())
    }

    /// The scores a job asks for, if every one of them was ever found by this model, and whose they are.
    pub(super) async fn scores(
        &self,
        model: ModelId,
        job: &ScoreJob,
        role: ModelRole,
    ) -> Result<Option<(Scored, BTreeSet<Whose>)>, Error> {
        let starts = blocks::starts(job);
        // What needs no number costs nothing either.
        if starts.is_empty() {
            return Ok(None);
        }
        let keys = Key::of_prefixes(model, job, starts.iter().copied());
        let read = move |connection: &Connection| {
            keys.iter().map(|key| stored_blocks(connection, key, role)).collect::<rusqlite::Result<Vec<_>>>()
        };
        let (mut found, mut damaged) = (BTreeMap::new(), BTreeSet::new());
        for (start, rows) in starts.into_iter().zip(self.disk.read(read).await?) {
            let blocks: &mut Vec<(Block, Whose)> = found.entry(start).or_default();
            for (answer, block) in rows {
                match block {
                    Some(block) => blocks.push(block),
                    None => drop(damaged.insert(answer)),
                }
            }
        }
        for answer in damaged {
            self.drop_damaged(FORGET_ANSWER, answer).await?;
        }
        Ok(blocks::join(job, &found))
    }

    /// The stored answer to the call with this key, and whose it is.
    pub(super) async fn get<R: Record>(
        &self,
        key: Key,
        role: ModelRole,
    ) -> Result<Option<(R, Whose)>, Error> {
        // Stamps count the measurements of one role: what waits for another's is not found.
        let read = move |connection: &Connection| {
            let mut select = connection.prepare_cached(
                "SELECT model, after, endpoints, until, checksum, answer FROM answers
                 WHERE key = ?1 AND (after IS NULL OR role = ?2)",
            )?;
            select.query_row(params![key.bytes(), role.name()], |row| Ok(found(row).ok())).optional()
        };
        // The inner option is none where the columns hold something else than was written there.
        let Some(found) = self.disk.read(read).await? else { return Ok(None) };
        // Bits may flip on the disk: then this answer is lost, and those beside it are not.
        let decoded = found
            .filter(|it| it.sum == answer_checksum(key.bytes(), it.whose.model(), &it.bytes))
            .and_then(|it| Some((R::decode(&it.bytes)?, it.whose)));
        if decoded.is_none() {
            self.drop_damaged(FORGET_ANSWER, *key.bytes()).await?;
        }
        Ok(decoded)
    }

    /// Takes a damaged record away, so that its call can be paid and stored again.
    async fn drop_damaged(
        &self,
        sql: &'static str,
        what: impl rusqlite::ToSql + Send + 'static,
    ) -> Result<(), Error> {
        let n_dropped = self.disk.execute(sql, [what]).await?;
        self.n_damaged.fetch_add(n_dropped.unsigned_abs(), Ordering::Relaxed);
        Ok(())
    }

    /// What a person should know about records that were found damaged and are paid again.
    pub fn notice(&self) -> Option<String> {
        match self.n_damaged.load(Ordering::Relaxed) {
            0 => None,
            n => Some(format!(
                "{n} stored records were damaged on the disk ({}); what they held is asked for again",
                self.disk.path().display()
            )),
        }
    }

    /// Stores an answer, whose it is as far as is known; returns once it is safe.
    pub(super) async fn put<R: Record>(
        &self,
        key: Key,
        whose: Whose,
        role: ModelRole,
        answer: &R,
        blocks: Vec<(Key, Block)>,
    ) -> Result<(), Error> {
        let (bytes, (sent, cached, sampled)) = (answer.encode(), columns(answer.usage()));
        let (model, key) = (whose.model(), *key.bytes());
        let (after, endpoints, until) = match whose {
            Whose::Provisional(stamp) => (Some(signed(stamp.after)), stamp.by.0.cast_signed(), None),
            Whose::Settled(Origin::Between(_, until)) => (None, 0, Some(until.0)),
            Whose::Settled(Origin::Known(_)) => (None, 0, None),
        };
        let (role, sum) = (role.name(), answer_checksum(&key, model, &bytes));
        let row = (key, R::KIND, model.0, role, sent, cached, sampled, after, endpoints, until, sum, bytes);
        let blocks = blocks.into_iter().map(|(block, found)| {
            let found = found.encode();
            (*block.bytes(), key, block_checksum(&block, &key, model, &found), found)
        });
        let blocks: Vec<_> = blocks.collect();
        let write = move |connection: &Connection| {
            let mut insert = connection.prepare_cached(
                "INSERT INTO answers VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)
                 ON CONFLICT DO NOTHING",
            )?;
            for statement in OUST {
                connection.prepare_cached(statement)?.execute(params![key, role])?;
            }
            insert.execute(row)?;
            let mut insert = connection.prepare_cached("INSERT INTO scores VALUES (?1, ?2, ?3, ?4)")?;
            for block in blocks {
                insert.execute(block)?;
            }
            Ok(0)
        };
        self.disk.write(write).await.map(drop)
    }

    /// Counts an answer that was paid but is not kept.
    pub(super) async fn spend(&self, role: ModelRole, usage: Usage) -> Result<(), Error> {
        let (sent, cached, sampled) = columns(usage);
        let insert = "INSERT INTO spent VALUES (?1, ?2, ?3, ?4)";
        self.disk.execute(insert, (role.name(), sent, cached, sampled)).await.map(drop)
    }

    /// What came in before the measurement that was begun as number `before` is settled.
    pub(super) async fn settle(&self, role: ModelRole, before: u64) -> Result<(), Error> {
        let settle = "UPDATE answers SET after = NULL WHERE role = ?1 AND after < ?2";
        self.disk.execute(settle, (role.name(), signed(before))).await.map(drop)
    }

    /// The endpoints now have `models`: what an earlier process left provisional is settled if it is of the only one,
    /// and in doubt if it may be of another.
    pub async fn resume(&self, role: ModelRole, models: &[ModelId]) -> Result<(), Error> {
        let Some(&model) = models.first() else { return Ok(()) };
        if models.iter().all(|it| *it == model) {
            let settle =
                "UPDATE answers SET after = NULL WHERE role = ?1 AND after IS NOT NULL AND model = ?2";
            self.disk.execute(settle, (role.name(), model.0)).await?;
        }
        self.doubt(role, Endpoints::ALL, model).await
    }

    /// The weights of these endpoints changed to `until`: provisional scores of theirs are dropped, draws lie between
    /// two versions from now on.
    pub(super) async fn doubt(&self, role: ModelRole, by: Endpoints, until: ModelId) -> Result<(), Error> {
        let write = move |connection: &Connection| {
            let of = (role.name(), by.0.cast_signed());
            for statement in DROP_SCORES {
                connection.execute(statement, of)?;
            }
            connection.execute(LIES_BETWEEN, (of.0, of.1, until.0)).map(|n| n as i64)
        };
        self.disk.write(write).await.map(drop)
    }
}

const FORGET_ANSWER: &str = "DELETE FROM answers WHERE key = ?1";
/// Its answers can be found by nobody, since their keys hold its number; the number is not given again.
const FORGET_MODEL: &str = "UPDATE models SET known = NULL WHERE id = ?1";

/// What is done with provisional scores in doubt.
const DROP_SCORES: [&str; 2] = [
    "INSERT INTO spent SELECT role, prompt_tokens, cached_tokens, completion_tokens FROM answers
     WHERE role = ?1 AND after IS NOT NULL AND endpoints & ?2 != 0 AND kind = 'score'",
    "DELETE FROM answers WHERE role = ?1 AND after IS NOT NULL AND endpoints & ?2 != 0 AND kind = 'score'",
];
/// And with draws.
const LIES_BETWEEN: &str = "UPDATE answers SET after = NULL, until = ?3 WHERE role = ?1 AND after IS NOT NULL AND endpoints & ?2 != 0";

/// SQLite's integers are signed; counts of tokens never reach the difference.
fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// What an answer cost: sent, cached, sampled.
fn columns(usage: Usage) -> (i64, Option<i64>, i64) {
    (signed(usage.prompt_tokens), usage.cached_tokens.map(signed), signed(usage.completion_tokens))
}

/// Of everything by which an answer is found and used.
fn answer_checksum(key: &[u8], model: ModelId, answer: &[u8]) -> Vec<u8> {
    checksum(&[key, &model.0.to_le_bytes(), answer])
}

/// Catches bits that flipped on the disk, and records that sit under another's key.
fn checksum(parts: &[&[u8]]) -> Vec<u8> {
    let mut hash = Sha256::new();
    parts.iter().for_each(|part| hash.update(part));
    hash.finalize()[..8].to_vec()
}

/// What is done with an answer that waits for a measurement of another role, when this one stores its own.
const OUST: [&str; 2] = [
    "INSERT INTO spent SELECT role, prompt_tokens, cached_tokens, completion_tokens FROM answers
     WHERE key = ?1 AND after IS NOT NULL AND role != ?2",
    "DELETE FROM answers WHERE key = ?1 AND after IS NOT NULL AND role != ?2",
];

/// An answer as it was found.
struct StoredAnswer {
    whose: Whose,
    sum: Vec<u8>,
    bytes: Vec<u8>,
}

/// What was written down of an answer or a block, behind whose it is.
fn found(row: &Row<'_>) -> rusqlite::Result<StoredAnswer> {
    let (model, after, until) =
        (ModelId(row.get(0)?), row.get::<_, Option<i64>>(1)?, row.get::<_, Option<i64>>(3)?);
    let whose = match (after, until) {
        (Some(after), _) => {
            let by = Endpoints(row.get::<_, i64>(2)?.cast_unsigned());
            Whose::Provisional(Stamp { after: after.unsigned_abs(), by, model })
        }
        (None, Some(until)) => Whose::Settled(Origin::Between(model, ModelId(until))),
        (None, None) => Whose::Settled(Origin::Known(model)),
    };
    Ok(StoredAnswer { whose, sum: row.get(4)?, bytes: row.get(5)? })
}

fn block_checksum(block: &Key, answer: &[u8], model: ModelId, found: &[u8]) -> Vec<u8> {
    checksum(&[block.bytes(), answer, &model.0.to_le_bytes(), found])
}

/// A block with whose it is, under the key of the answer it came with; none where it is not what was written.
type FoundBlock = (Vec<u8>, Option<(Block, Whose)>);

/// Everything that was ever found behind one beginning; what waits for another role's measurement is not found.
fn stored_blocks(connection: &Connection, block: &Key, role: ModelRole) -> rusqlite::Result<Vec<FoundBlock>> {
    let mut select = connection.prepare_cached(
        "SELECT model, after, endpoints, until, scores.checksum, found, key
         FROM scores JOIN answers ON key = scores.answer
         WHERE block = ?1 AND (after IS NULL OR role = ?2)",
    )?;
    let read = |row: &Row<'_>| {
        let key: Vec<u8> = row.get(6)?;
        let is_whole = |it: &StoredAnswer| it.sum == block_checksum(block, &key, it.whose.model(), &it.bytes);
        let stored = found(row).ok().filter(is_whole);
        let block = stored.and_then(|it| Some((Block::decode(&it.bytes)?, it.whose)));
        Ok((key, block))
    };
    select.query_map(params![block.bytes(), role.name()], read)?.collect()
}

/// What was paid, by the role's name as it is written; a name that was damaged is nobody's.
fn stored_totals(connection: &Connection) -> rusqlite::Result<Vec<(Vec<u8>, Spent)>> {
    let mut select = connection.prepare(
        "SELECT CAST(role AS BLOB), COUNT(*), SUM(prompt_tokens), COALESCE(SUM(cached_tokens), 0), SUM(completion_tokens)
         FROM (SELECT role, prompt_tokens, cached_tokens, completion_tokens FROM answers UNION ALL SELECT * FROM spent)
         GROUP BY role",
    )?;
    let rows = select.query_map([], |row| {
        let number = |idx| row.get::<_, i64>(idx).map(i64::unsigned_abs);
        let spent = Spent {
            requests: number(1)?,
            prompt_tokens: number(2)?,
            cached_tokens: number(3)?,
            completion_tokens: number(4)?,
        };
        Ok((row.get(0)?, spent))
    })?;
    rows.collect()
}

/// A model the ledger knows.
struct Known {
    id: ModelId,
    fingerprint: Fingerprint,
    noise: f64,
}

/// A model as the ledger's file has it: JSON that a person can read.
#[derive(Serialize, Deserialize)]
struct StoredModel {
    identity: Identity,
    probe: Vec<TokenId>,
    logprobs: Vec<Option<f64>>,
    noise: f64,
}

impl StoredModel {
    fn known(self, id: ModelId) -> Option<Known> {
        let Self { identity, probe, logprobs, noise } = self;
        let logprobs = logprobs.into_iter().map(|it| it.map(Logprob::new).transpose());
        let fingerprint = Fingerprint { identity, probe, logprobs: logprobs.collect::<Result<_, _>>().ok()? };
        Some(Known { id, fingerprint, noise })
    }
}

/// Every model; none where a row is not what was written.
fn stored_models(connection: &Connection) -> rusqlite::Result<Vec<(i64, Option<Known>)>> {
    let mut select =
        connection.prepare("SELECT id, known, checksum FROM models WHERE known IS NOT NULL ORDER BY id")?;
    let rows = select.query_map([], |row| {
        let id = row.get(0)?;
        let (text, sum): (Option<String>, Option<Vec<u8>>) = (row.get(1).ok(), row.get(2).ok());
        let text = text.filter(|text| sum == Some(checksum(&[text.as_bytes()])));
        let stored = text.and_then(|text| serde_json::from_str::<StoredModel>(&text).ok());
        Ok((id, stored.and_then(|it| it.known(ModelId(id)))))
    })?;
    rows.collect()
}

/// The calls under way, so that of equal calls at the same time one is paid and the others find its answer.
#[derive(Default)]
pub(super) struct Flights {
    keys: Mutex<HashSet<Key>>,
    ended: Notify,
}

impl Flights {
    /// Waits until no equal call is under way, and keeps others waiting until dropped.
    pub(super) async fn enter(&self, key: Key) -> Flight<'_> {
        loop {
            // Whoever ends from here on is noticed.
            let ended = self.ended.notified();
            if self.lock().insert(key) {
                return Flight { flights: self, key };
            }
            ended.await;
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, HashSet<Key>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) struct Flight<'a> {
    flights: &'a Flights,
    key: Key,
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        self.flights.lock().remove(&self.key);
        self.flights.ended.notify_waiters();
    }
}

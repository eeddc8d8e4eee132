//! Distilled episodes in safetensors: what Atropos groups hold and what they have no field for, in a tenth of the bytes.
//!
//! Owns the layout, which `docs/formats.md` tells to readers in other languages: numbers of all sequences behind each other,
//! and for each lens what the teacher said, position by position. Every number is finite; what is absent has no entry, a
//! flag that is not set, or a count of zero.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, BufReader, Read as _, Seek as _, SeekFrom, Write};
use std::path::{Path, PathBuf};

use safetensors::tensor::{Metadata, TensorInfo};
use safetensors::{Dtype, SafeTensors};
use serde_json::{Map, Value, json};

use crate::store::atomic::Pending;

use backsight_core::credit::distill::Row;
use backsight_core::tokens::{Logprob, TokenId, TopK};

/// What `format` says.
const FORMAT: &str = "backsight.distilled";
/// The version this writes.
const VERSION: &str = "2";

/// The table of sequences: each one's episode and length.
const SEQUENCES: &str = "sequences";
/// The table of actions: each one's sequence, step, first token and number of tokens.
const ACTIONS: &str = "actions";

/// A bit of `flags`: the student sampled the token.
const SAMPLED: u8 = 1;
/// A bit of `flags`: its logprob is known.
const KNOWN: u8 = 2;

/// One recorded sequence.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sequence {
    /// The ids.
    pub tokens: Vec<TokenId>,
    /// Which of them the student sampled.
    pub sampled: Vec<bool>,
    /// The student's logprobs, where they are known.
    pub student: Vec<Option<Logprob>>,
}

/// Where an action stands, whether or not anybody was asked about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActionPlace {
    /// The sequence it is in.
    pub sequence: usize,
    /// The step.
    pub step: usize,
    /// Its first token's position in the sequence.
    pub first: usize,
    /// How many tokens it has.
    pub len: usize,
}

/// What the teacher says of one action through one lens.
#[derive(Clone, Debug, PartialEq)]
pub struct ActionRows {
    /// The sequence the action is in.
    pub sequence: usize,
    /// The step.
    pub step: usize,
    /// Its first token's position in the sequence.
    pub first: usize,
    /// A row for each of its tokens, where there is one.
    pub rows: Vec<Option<Row>>,
}

/// What is distilled from an episode, or from many.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Distilled {
    /// The sequences.
    pub sequences: Vec<Sequence>,
    /// Which episode each sequence is of, by its place in `about`.
    pub episodes: Vec<usize>,
    /// Where the actions are.
    pub actions: Vec<ActionPlace>,
    /// What the teacher says, by lens.
    pub rows: BTreeMap<String, Vec<ActionRows>>,
    /// The episodes' names and whatever else should be known.
    pub about: Value,
}

/// A tensor on its way into a file.
struct Tensor {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

fn tensor<const N: usize>(dtype: Dtype, numbers: impl Iterator<Item = [u8; N]>) -> Tensor {
    let bytes: Vec<u8> = numbers.flatten().collect();
    Tensor { dtype, shape: vec![bytes.len() / N], bytes }
}

fn u32s(numbers: impl Iterator<Item = u32>) -> Tensor {
    tensor(Dtype::U32, numbers.map(u32::to_le_bytes))
}

fn u16s(numbers: impl Iterator<Item = usize>) -> Tensor {
    tensor(Dtype::U16, numbers.map(|it| u16::try_from(it).unwrap_or(u16::MAX).to_le_bytes()))
}

fn f32s(numbers: impl Iterator<Item = f64>) -> Tensor {
    tensor(Dtype::F32, numbers.map(|it| (it as f32).to_le_bytes()))
}

/// A table: rows of numbers that fit into 32 bits.
fn table<const N: usize>(rows: impl Iterator<Item = [usize; N]>) -> Tensor {
    let numbers = u32s(rows.flatten().map(|it| u32::try_from(it).unwrap_or(u32::MAX)));
    Tensor { shape: vec![numbers.shape[0] / N, N], ..numbers }
}

impl Distilled {
    /// Its tensors by name, those of wider numbers first, so that each begins at a multiple of its numbers' width.
    fn tensors(&self) -> Vec<(String, Tensor)> {
        let all = || self.sequences.iter();
        let lengths = self.episodes.iter().zip(&self.sequences).map(|(it, of)| [*it, of.tokens.len()]);
        let student = all().flat_map(|it| it.student.iter().map(|it| it.map_or(0.0, Logprob::get)));
        let flags = all().flat_map(|it| it.sampled.iter().zip(&it.student).map(flags));
        let actions = self.actions.iter().map(|it| [it.sequence, it.step, it.first, it.len]);
        let mut tensors = vec![
            (SEQUENCES.to_owned(), table(lengths)),
            (ACTIONS.to_owned(), table(actions)),
            ("tokens".to_owned(), u32s(all().flat_map(|it| it.tokens.iter().copied()))),
            ("student".to_owned(), f32s(student)),
            ("flags".to_owned(), tensor(Dtype::U8, flags.map(|it| [it]))),
        ];
        for (lens, actions) in &self.rows {
            tensors.extend(of_lens(actions).map(|(name, tensor)| (format!("{lens}.{name}"), tensor)));
        }
        tensors.sort_by_key(|(_, tensor)| std::cmp::Reverse(tensor.dtype.bitsize()));
        tensors
    }

    /// Writes it.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let tensors = self.tensors();
        let told = tensors.iter().map(|(name, it)| (name.as_str(), it.dtype, &it.shape[..]));
        write_header(told, &self.about, out)?;
        tensors.iter().try_for_each(|(_, tensor)| out.write_all(&tensor.bytes))
    }
}

fn flags((sampled, student): (&bool, &Option<Logprob>)) -> u8 {
    (SAMPLED * u8::from(*sampled)) | (KNOWN * u8::from(student.is_some()))
}

fn of_lens(actions: &[ActionRows]) -> [(&'static str, Tensor); 7] {
    let rows = || actions.iter().flat_map(|it| &it.rows);
    let of = |number: fn(&Row) -> f64| f32s(rows().map(move |it| it.as_ref().map_or(0.0, number)));
    let entries = || rows().flatten().flat_map(|it| it.top.entries());
    let spans = actions.iter().map(|it| [it.sequence, it.step, it.first, it.rows.len()]);
    [
        ("spans", table(spans)),
        ("ids", u32s(entries().map(|(id, _)| *id))),
        ("logprobs", f32s(entries().map(|(_, logprob)| logprob.get()))),
        ("gaps", of(|row| row.gap.unwrap_or(0.0))),
        ("tails", of(Row::tail)),
        ("ranks", u16s(rows().map(|it| it.as_ref().map_or(0, Row::rank)))),
        ("counts", u16s(rows().map(|it| it.as_ref().map_or(0, |row| row.top.entries().len())))),
    ]
}

/// Keeps it in a file, whole or not at all; the file's directory is made if need be.
pub fn keep(path: &Path, distilled: &Distilled) -> io::Result<()> {
    path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
    let mut file = Pending::create(path)?;
    distilled.write(&mut file)?;
    file.commit()
}

/// What a file says of itself, read without its numbers.
pub fn about(path: &Path) -> io::Result<Value> {
    Part::open(path).map(|part| part.about)
}

/// A file among others, by its header.
struct Part {
    path: PathBuf,
    /// Where its numbers begin.
    data: u64,
    tensors: HashMap<String, TensorInfo>,
    about: Value,
}

impl Part {
    fn open(path: &Path) -> io::Result<Self> {
        let broken = |why: &dyn std::fmt::Display| {
            io::Error::new(io::ErrorKind::InvalidData, format!("{}: {why}", path.display()))
        };
        let mut file = BufReader::new(File::open(path)?);
        let mut n = [0; 8];
        file.read_exact(&mut n)?;
        let (n, mut header) = (u64::from_le_bytes(n), Vec::new());
        file.take(n).read_to_end(&mut header)?;
        let metadata: Metadata = serde_json::from_slice(&header).map_err(|error| broken(&error))?;
        let about = said_of(&metadata).map_err(|why| broken(&why))?;
        let tensors = metadata.tensors().into_iter().map(|(name, info)| (name, info.clone())).collect();
        Ok(Self { path: path.to_owned(), data: n + 8, tensors, about })
    }

    fn rows(&self, name: &str) -> usize {
        self.tensors.get(name).and_then(|info| info.shape.first()).copied().unwrap_or(0)
    }

    /// A tensor's bytes; the first number of each row of a table is counted from `before` on.
    fn bytes(&self, name: &str, before: usize) -> io::Result<Vec<u8>> {
        let Some(info) = self.tensors.get(name) else { return Ok(Vec::new()) };
        let (start, end) = info.data_offsets;
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(self.data + start as u64))?;
        let mut bytes = Vec::with_capacity(end - start);
        file.take((end - start) as u64).read_to_end(&mut bytes)?;
        if let [_, columns] = info.shape[..] {
            for row in bytes.chunks_exact_mut(4 * columns) {
                let (first, _) = row.split_at_mut(4);
                let number = u32::from_le_bytes(first.try_into().unwrap_or_default());
                first.copy_from_slice(&number.saturating_add(before as u32).to_le_bytes());
            }
        }
        Ok(bytes)
    }
}

/// Writes one file of many, a tensor of one file at a time in memory.
pub fn join(paths: &[PathBuf], about: &Value, out: &mut impl Write) -> io::Result<()> {
    let parts = paths.iter().map(|path| Part::open(path)).collect::<io::Result<Vec<_>>>()?;
    let mut all: BTreeMap<&str, (Dtype, Vec<usize>)> = BTreeMap::new();
    for (name, info) in parts.iter().flat_map(|part| &part.tensors) {
        let shape = &mut all.entry(name).or_insert_with(|| (info.dtype, [&[0], &info.shape[1..]].concat())).1;
        shape[0] += info.shape[0];
    }
    let mut all: Vec<_> = all.into_iter().map(|(name, (dtype, shape))| (name, dtype, shape)).collect();
    all.sort_by_key(|(_, dtype, _)| std::cmp::Reverse(dtype.bitsize()));
    write_header(all.iter().map(|(name, dtype, shape)| (*name, *dtype, &shape[..])), about, out)?;
    for (name, ..) in &all {
        let (mut n_episodes, mut n_sequences) = (0, 0);
        for part in &parts {
            let before = if *name == SEQUENCES { n_episodes } else { n_sequences };
            out.write_all(&part.bytes(name, before)?)?;
            n_episodes += 1;
            n_sequences += part.rows(SEQUENCES);
        }
    }
    Ok(())
}

/// The header of a file with these tensors, in this order.
fn write_header<'t>(
    tensors: impl Iterator<Item = (&'t str, Dtype, &'t [usize])>,
    about: &Value,
    out: &mut impl Write,
) -> io::Result<()> {
    let mut header = Map::new();
    let told = json!({"format": FORMAT, "version": VERSION, "about": about.to_string()});
    header.insert("__metadata__".to_owned(), told);
    let mut end = 0;
    for (name, dtype, shape) in tensors {
        let start = end;
        end += shape.iter().product::<usize>() * dtype.bitsize() / 8;
        let place = json!({"dtype": dtype.to_string(), "shape": shape, "data_offsets": [start, end]});
        header.insert(name.to_owned(), place);
    }
    let mut header = Value::Object(header).to_string();
    // Numbers begin at a multiple of eight.
    header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(header.as_bytes())
}

/// Reads a file that was written here.
pub fn read(path: &Path) -> io::Result<Distilled> {
    let bytes = std::fs::read(path)?;
    parse(&bytes)
        .map_err(|why| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {why}", path.display())))
}

fn parse(bytes: &[u8]) -> Result<Distilled, String> {
    let (_, header) = SafeTensors::read_metadata(bytes).map_err(|error| error.to_string())?;
    let about = said_of(&header)?;
    let of = Numbers(SafeTensors::deserialize(bytes).map_err(|error| error.to_string())?);
    let lengths = of.u32s(SEQUENCES)?;
    let n_tokens = |row: &[u32]| row[1] as usize;
    let (mut tokens, mut student) = (of.u32s("tokens")?.into_iter(), of.f32s("student")?.into_iter());
    let mut flags = of.bytes("flags")?.iter().copied();
    let mut sequence = |n: usize| -> Result<Sequence, String> {
        let mut sequence = Sequence::default();
        for _ in 0..n {
            let (id, logprob, flags) = next3(&mut tokens, &mut student, &mut flags).ok_or(SHORT)?;
            sequence.tokens.push(id);
            sequence.sampled.push(flags & SAMPLED != 0);
            let logprob = (flags & KNOWN != 0).then(|| Logprob::new(f64::from(logprob))).transpose()?;
            sequence.student.push(logprob);
        }
        Ok(sequence)
    };
    let rows = lengths.chunks_exact(2);
    let sequences = rows.clone().map(|row| sequence(n_tokens(row))).collect::<Result<Vec<_>, _>>()?;
    let episodes = rows.map(|row| row[0] as usize).collect();
    let places = places(&of, &sequences)?;
    let names = of.0.names();
    let lenses = names.iter().filter_map(|name| name.strip_suffix(".spans"));
    let rows = lenses.map(|lens| Ok((lens.to_owned(), actions(&of, lens, &sequences)?)));
    let rows = rows.collect::<Result<_, String>>()?;
    Ok(Distilled { rows, sequences, episodes, actions: places, about })
}

/// Where the actions are; none stands outside its sequence.
fn places(of: &Numbers<'_>, sequences: &[Sequence]) -> Result<Vec<ActionPlace>, String> {
    let place = |row: &[u32]| {
        let [sequence, step, first, len] = [0, 1, 2, 3].map(|at| row[at] as usize);
        let own = sequences.get(sequence).ok_or(SHORT)?;
        own.tokens.get(first..first.saturating_add(len)).ok_or(SHORT)?;
        Ok(ActionPlace { sequence, step, first, len })
    };
    of.u32s(ACTIONS)?.chunks_exact(4).map(place).collect()
}

/// What a header says beside its tensors.
fn said_of(header: &Metadata) -> Result<Value, String> {
    let metadata = header.metadata().clone().unwrap_or_default();
    let told = |key: &str| metadata.get(key).map(String::as_str);
    if (told("format"), told("version")) != (Some(FORMAT), Some(VERSION)) {
        return Err(format!("it is no {FORMAT} of version {VERSION}"));
    }
    serde_json::from_str(told("about").unwrap_or_default()).map_err(|error| error.to_string())
}

/// What is said of numbers that end too early.
const SHORT: &str = "its lists do not fit together";

fn next3<A, B, C>(
    a: &mut impl Iterator<Item = A>,
    b: &mut impl Iterator<Item = B>,
    c: &mut impl Iterator<Item = C>,
) -> Option<(A, B, C)> {
    Some((a.next()?, b.next()?, c.next()?))
}

/// The tensors of a file as numbers.
struct Numbers<'f>(SafeTensors<'f>);

impl<'f> Numbers<'f> {
    fn bytes(&self, name: &str) -> Result<&'f [u8], String> {
        Ok(self.0.tensor(name).map_err(|error| format!("{name}: {error}"))?.data())
    }

    fn numbers<const N: usize, T>(&self, name: &str, read: fn([u8; N]) -> T) -> Result<Vec<T>, String> {
        let (numbers, _) = self.bytes(name)?.as_chunks::<N>();
        Ok(numbers.iter().copied().map(read).collect())
    }

    fn u32s(&self, name: &str) -> Result<Vec<u32>, String> {
        self.numbers(name, u32::from_le_bytes)
    }

    fn f32s(&self, name: &str) -> Result<Vec<f32>, String> {
        self.numbers(name, f32::from_le_bytes)
    }
}

/// What the teacher says through one lens; the student's numbers say where a row has a gap.
fn actions(of: &Numbers<'_>, lens: &str, sequences: &[Sequence]) -> Result<Vec<ActionRows>, String> {
    let name = |tensor: &str| format!("{lens}.{tensor}");
    let mut entries = of.u32s(&name("ids"))?.into_iter().zip(of.f32s(&name("logprobs"))?);
    let gaps = of.f32s(&name("gaps"))?;
    let counts = of.numbers(&name("counts"), u16::from_le_bytes)?;
    let mut rows = gaps.into_iter().zip(counts);
    let mut row = |id: TokenId, student: Option<Logprob>| -> Result<Option<Row>, String> {
        let (gap, count) = rows.next().ok_or(SHORT)?;
        let mut top = Vec::with_capacity(count.into());
        for _ in 0..count {
            let (id, logprob) = entries.next().ok_or(SHORT)?;
            top.push((id, Logprob::new(f64::from(logprob))?));
        }
        let top = TopK::new(top);
        if count == 0 {
            return Ok(None);
        }
        let teacher = top.get(id).ok_or("a row does not hold its own token")?;
        Ok(Some(Row { id, teacher, gap: student.map(|_| f64::from(gap)), top }))
    };
    let spans = of.u32s(&name("spans"))?;
    let action = |span: &[u32]| {
        let [sequence, step, first, n] = [0, 1, 2, 3].map(|at| span[at] as usize);
        let place = first..first.saturating_add(n);
        let own = sequences.get(sequence).ok_or(SHORT)?;
        let (ids, student) = (own.tokens.get(place.clone()).ok_or(SHORT)?, &own.student[place]);
        let rows = ids.iter().zip(student).map(|(id, student)| row(*id, *student));
        Ok(ActionRows { sequence, step, first, rows: rows.collect::<Result<_, String>>()? })
    };
    spans.chunks_exact(4).map(action).collect()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    fn logprob(value: f64) -> Logprob {
        Logprob::new(value).unwrap()
    }

    fn row(id: TokenId, gap: Option<f64>, entries: &[(TokenId, f64)]) -> Row {
        let top = TopK::new(entries.iter().map(|(id, value)| (*id, logprob(*value))).collect());
        Row { id, teacher: top.get(id).unwrap(), gap, top }
    }

    fn distilled() -> Distilled {
        let sequence = |tokens: Vec<TokenId>, student: Vec<Option<Logprob>>| Sequence {
            sampled: tokens.iter().map(|id| *id > 5).collect(),
            tokens,
            student,
        };
        let of_hint = ActionRows {
            sequence: 1,
            step: 3,
            first: 1,
            rows: vec![
                Some(row(7, Some(0.5), &[(7, -1.0), (9, -2.0)])),
                None,
                Some(row(9, None, &[(9, 0.0)])),
            ],
        };
        Distilled {
            sequences: vec![
                sequence(vec![1, 6], vec![None, Some(logprob(-0.25))]),
                sequence(vec![1, 7, 8, 9], vec![None, Some(logprob(-1.5)), Some(logprob(-3.0)), None]),
            ],
            episodes: vec![0, 1],
            actions: vec![
                ActionPlace { sequence: 0, step: 0, first: 1, len: 1 },
                ActionPlace { sequence: 1, step: 3, first: 1, len: 3 },
            ],
            rows: [("hint-last_user".to_owned(), vec![of_hint]), ("placebo".to_owned(), vec![])].into(),
            about: json!({"episodes": ["a", "b"]}),
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let mut file = Vec::new();
        distilled().write(&mut file).unwrap();
        assert_eq!(parse(&file).unwrap(), distilled());
        for cut in [0, 7, 60, file.len() - 1] {
            assert!(parse(&file[..cut]).is_err());
        }
    }

    #[test]
    fn files_are_joined() {
        let dir = tempfile::tempdir().unwrap();
        let paths = ["a", "b"].map(|name| dir.path().join(name));
        let plain = Distilled { rows: BTreeMap::new(), episodes: vec![0, 0], ..distilled() };
        let hinted = Distilled { episodes: vec![0, 0], ..distilled() };
        keep(&paths[0], &plain).unwrap();
        keep(&paths[1], &hinted).unwrap();
        assert_eq!(about(&paths[1]).unwrap(), hinted.about);
        let mut file = Vec::new();
        join(&paths, &json!(7), &mut file).unwrap();
        let joined = parse(&file).unwrap();
        assert_eq!((&joined.about, &joined.episodes[..]), (&json!(7), &[0, 0, 1, 1][..]));
        assert_eq!(joined.sequences, [&plain.sequences[..], &hinted.sequences].concat());
        let mut rows = hinted.rows;
        rows.values_mut().flatten().for_each(|it| it.sequence += 2);
        assert_eq!(joined.rows, rows);
        let moved = hinted.actions.iter().map(|it| ActionPlace { sequence: it.sequence + 2, ..*it });
        assert_eq!(joined.actions, plain.actions.into_iter().chain(moved).collect::<Vec<_>>());
    }

    #[test]
    fn an_action_outside_its_sequence_is_refused() {
        let mut wrong = distilled();
        wrong.actions[1].len = 4;
        let mut file = Vec::new();
        wrong.write(&mut file).unwrap();
        assert_eq!(parse(&file).unwrap_err(), SHORT);
    }

    #[test]
    fn a_row_without_its_token_is_refused() {
        let mut wrong = distilled();
        wrong.sequences[1].tokens[1] = 8;
        let mut file = Vec::new();
        wrong.write(&mut file).unwrap();
        assert_eq!(parse(&file).unwrap_err(), "a row does not hold its own token");
    }

    /// A row of 51 candidates of which none is left out, and everything its token has beside it.
    #[test]
    fn a_scored_token_takes_at_most_432_bytes() {
        const N: usize = 1000;
        let entries: Vec<(TokenId, f64)> = (0..51).map(|id| (id, -1.0 - f64::from(id))).collect();
        let rows = vec![Some(row(50, Some(1.0), &entries)); N];
        let actions = vec![ActionRows { sequence: 0, step: 0, first: 0, rows }];
        let sequence =
            Sequence { tokens: vec![50; N], sampled: vec![true; N], student: vec![Some(logprob(-1.0)); N] };
        let of = |rows: Vec<ActionRows>| Distilled {
            sequences: vec![sequence.clone()],
            episodes: vec![0],
            actions: vec![ActionPlace { sequence: 0, step: 0, first: 0, len: N }],
            rows: [("hint".to_owned(), rows)].into(),
            about: Value::Null,
        };
        let size = |distilled: Distilled| {
            let mut file = Vec::new();
            distilled.write(&mut file).unwrap();
            file.len()
        };
        let header = size(Distilled { rows: [("hint".to_owned(), vec![])].into(), ..Distilled::default() });
        let bytes = (size(of(actions)) - header) as f64 / N as f64;
        assert!((429.0..432.0).contains(&bytes), "{bytes}");
    }
}

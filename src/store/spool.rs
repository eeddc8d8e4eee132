//! Rows that are ready in any order and end up in theirs.
//!
//! Owns [`Spool`]: a file to which rows are appended as they come, and from which the final file is written in the
//! order of their places. Memory holds two numbers a row, however long the rows are.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::atomic::Pending;

/// Rows on their way into a file.
#[derive(Debug)]
pub struct Spool {
    path: PathBuf,
    file: BufWriter<File>,
    end: u64,
    /// Where each row begins and how long it is, once it is there.
    rows: Vec<Option<(u64, u64)>>,
}

impl Spool {
    /// An empty spool for `n_rows` rows.
    pub fn create(path: &Path, n_rows: usize) -> io::Result<Self> {
        let file = File::options().read(true).write(true).create(true).truncate(true).open(path)?;
        Ok(Self { path: path.to_owned(), file: BufWriter::new(file), end: 0, rows: vec![None; n_rows] })
    }

    /// Takes the row at `place`, without its line break.
    pub fn put(&mut self, place: usize, row: &str) -> io::Result<()> {
        writeln!(self.file, "{row}")?;
        let length = row.len() as u64 + 1;
        self.rows[place] = Some((self.end, length));
        self.end += length;
        Ok(())
    }

    /// Writes the rows in order and gives them their final name: what is there is the old file or the whole new one.
    pub fn finish(self, out: &Path) -> io::Result<()> {
        let Self { path, file, rows, .. } = self;
        let mut spooled = BufReader::new(file.into_inner().map_err(|error| error.into_error())?);
        let mut target = Pending::create(out)?;
        let mut at = None;
        for (begin, length) in rows.into_iter().flatten() {
            if at != Some(begin) {
                spooled.seek(SeekFrom::Start(begin))?;
            }
            io::copy(&mut Read::by_ref(&mut spooled).take(length), &mut target)?;
            at = Some(begin + length);
        }
        target.commit()?;
        fs::remove_file(&path)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    fn check(order: &[usize], expected: &str) {
        let dir = tempfile::tempdir().unwrap();
        let (path, out) = (dir.path().join("rows.spool"), dir.path().join("out"));
        fs::write(&out, "old").unwrap();
        let mut spool = Spool::create(&path, 4).unwrap();
        for &place in order {
            spool.put(place, &"é".repeat(place + 1)).unwrap();
        }
        assert_eq!(fs::read_to_string(&out).unwrap(), "old");
        spool.finish(&out).unwrap();
        assert_eq!(fs::read_to_string(&out).unwrap(), expected);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn rows_come_out_in_their_order() {
        check(&[0, 1, 2, 3], "é\néé\nééé\néééé\n");
        check(&[3, 1, 0, 2], "é\néé\nééé\néééé\n");
        check(&[2, 0], "é\nééé\n");
        check(&[], "");
    }
}
